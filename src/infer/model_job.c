// Finds and checks the model of `generate` and `evaluate`, and opens it on every rank.
#include "infer/model_job.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/rank.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// ---- before the ranks start ---------------------------------------------------------------------

static Status check_options(const Options *o, int ranks) {
    int t = o->tensor_model_parallel_size, p = o->pipeline_model_parallel_size;
    if (o->positional.count > 0)
        return fail(ERR_USAGE, "'%s' belongs to no option; the model is given by --load",
                    o->positional.items[0]);
    if (!o->load || !*o->load)
        return fail(ERR_USAGE, "--load is needed: a checkpoint, a folder of them, or a Hugging Face folder");
    if (!o->prompts) TRY(options_check_one_adapter(o));
    if (o->bf16 && o->fp16) return fail(ERR_CONFIG, "--bf16 and --fp16 exclude each other: keep one");
    if (o->ranks != INT_UNSET && o->ranks != ranks)
        return fail(ERR_CONFIG, "--ranks %d, but %d ranks were launched: leave out --ranks or launch %d",
                    o->ranks, ranks, o->ranks);
    if ((int64_t)t * p != ranks)
        return fail(
            ERR_CONFIG,
            "%d tensor * %d pipeline ranks share one model, but there are %d ranks: use --ranks %lld, "
            "or another --tensor-model-parallel-size or --pipeline-model-parallel-size",
            t, p, ranks, (long long)t * p);
    return OK;
}

static Status divides(const char *what, int size, int t) {
    if (size % t == 0) return OK;
    return fail(ERR_CONFIG,
                "the model's %d %s are not divisible by --tensor-model-parallel-size %d: use a size that "
                "divides %d",
                size, what, t, size);
}

static Status check_grid(const ModelShape *shape, Grid grid) {
    TRY(divides("attention heads", shape->heads, grid_along(grid, AXIS_TP)));
    TRY(divides("query groups", model_groups(shape), grid_along(grid, AXIS_TP)));
    TRY(divides("columns of the MLP", shape->ffn, grid_along(grid, AXIS_TP)));
    if (shape->layers >= grid_along(grid, AXIS_PP)) return OK;
    return fail(ERR_CONFIG, "--pipeline-model-parallel-size %d, but the model has %d layers: use %d or less",
                grid_along(grid, AXIS_PP), shape->layers, shape->layers);
}

static Status add_adapters(const Options *o, ModelSource **source) {
    AdapterOption adapter;
    for (int i = 0; i < o->adapter.count; i++) {
        TRY(options_adapter(o, i, &adapter));
        TRY(model_source_adapt(source, adapter.folder, o->use_ema));
    }
    return o->use_ema && !o->adapter.count ? model_source_use_ema(*source) : OK;
}

// Adapters are merged, so that they cost nothing, except where prompts choose theirs.
Status model_open(const Options *o, const char *path, int64_t step, ModelSource **source) {
    TRY(model_source_open(source, path, step));
    Status status = add_adapters(o, source);
    bool serves = o->prompts && o->adapter.count;
    model_source_allow_non_finite(*source, o->allow_non_finite);
    if (status == OK && serves) model_source_serve(*source);
    if (status == OK && !serves) status = model_source_merge(*source);
    if (status == OK) return OK;
    model_source_close(*source);
    *source = NULL;
    return status;
}

static Status open_tokenizer(ModelJob *job, const ModelSource *source) {
    if (job->options->tokenizer_model)
        return tokenizer_open_path(&job->tokenizer, job->options->tokenizer_model);
    Status status = model_source_tokenizer(source, &job->tokenizer);
    if (status != OK) job->tokenizer = NULL;
    return status == ERR_NO_INPUT ? OK : status;
}

static Status find_tokenizer(ModelJob *job, const ModelSource *source) {
    TRY(open_tokenizer(job, source));
    tokenizer_print_note(job->tokenizer);
    return OK;
}

static Status look_at(ModelJob *job, const ModelSource *source) {
    job->shape = model_source_info(source)->shape;
    job->path =
        strdup(job->options->adapter.count ? model_source_base_path(source) : model_source_path(source));
    job->files = strdup(model_source_files_path(source));
    if (!job->path || !job->files) return fail(ERR_OS, "no memory for a path");
    TRY(check_grid(&job->shape, job->grid));
    TRY(find_tokenizer(job, source));
    return model_source_ends(source, job->tokenizer, &job->ends);
}

Status model_job_open(ModelJob *job, const Options *o, int ranks) {
    TRY(check_options(o, ranks));
    job->options = o;
    job->grid = (Grid)GRID(o->tensor_model_parallel_size, 1, o->pipeline_model_parallel_size);
    ModelSource *source;
    TRY(model_open(o, o->load, o->ckpt_step == INT_UNSET ? -1 : o->ckpt_step, &source));
    if (launcher_rank() == 0) model_source_warn(source);
    Status status = look_at(job, source);
    model_source_close(source);
    return status;
}

void model_job_close(ModelJob *job) {
    tokenizer_close(job->tokenizer);
    token_list_free(&job->ends);
    free(job->path);
    free(job->files);
    *job = (ModelJob){0};
}

Status model_job_needs_tokenizer(const ModelJob *job) {
    if (!job->tokenizer)
        return fail(
            ERR_CONFIG,
            "%s: no tokenizer lies beside the weights: name one with --tokenizer-model (tokenizer.json, "
            "a folder, SentencePiece or tiktoken file, or the prefix of a data set)",
            job->path);
    int tokens = tokenizer_vocab_size(job->tokenizer);
    if (tokens <= job->shape.vocabulary) return OK;
    return fail(ERR_CONFIG,
                "the tokenizer has %d tokens and the model %d: they do not belong together; use the one that "
                "the model was trained with",
                tokens, job->shape.vocabulary);
}

int model_job_positions(const ModelJob *job) {
    return job->shape.position == POSITION_LEARNED ? job->shape.positions : INT_MAX;
}

int model_job_trained_positions(const ModelJob *job) {
    return job->shape.position == POSITION_LEARNED ? job->shape.positions : job->shape.sequence;
}

// ---- on the ranks -------------------------------------------------------------------------------

Status model_job_source(const ModelJob *job, Comm *world, ModelSource **source) {
    rank_doing("reading the model");
    *source = NULL;
    TRY(comm_agree(world, model_open(job->options, job->path, -1, source)));
    return model_source_compare(*source, world);
}

Status model_job_infer_from(const ModelJob *job, ModelSource *source, Comm *world, InferSpec spec,
                            Infer **infer) {
    const Options *o = job->options;
    spec.grid = job->grid;
    spec.device = o->device;
    spec.threads = o->threads != INT_UNSET ? o->threads : cores_limit(job->threads);
    spec.ranks_per_gpu = options_ranks_per_gpu(o);
    spec.algorithms = o->product_algorithms;
    spec.dtype = o->bf16 ? BF16 : o->fp16 ? F16 : F32;
    return infer_open(infer, source, &spec, world);
}

Status model_job_infer(const ModelJob *job, Comm *world, InferSpec spec, Infer **infer) {
    ModelSource *source;
    Status status = model_job_source(job, world, &source);
    if (status == OK) status = model_job_infer_from(job, source, world, spec, infer);
    model_source_close(source);
    return status;
}

bool model_job_stopped(const ModelJob *job, Comm *world) {
    double stopped = job->stopped && atomic_load(job->stopped);
    comm_all_reduce_host(world, &stopped, 1, REDUCE_MAX);
    return stopped > 0;
}

int32_t text_start(const Tokenizer *tokenizer) {
    int32_t begin = tokenizer_bos(tokenizer);
    return begin >= 0 ? begin : tokenizer_eod(tokenizer);
}

Status text_beginning(const Tokenizer *tokenizer, int32_t *begin) {
    TokenizerUse use;
    TRY(tokenizer_use_read(&use, tokenizer));
    *begin = use.adds_bos ? tokenizer_bos(tokenizer) : -1;
    tokenizer_use_free(&use);
    return OK;
}

void text_add_tokens(int32_t begin, const TokenList *tokens, TokenList *out) {
    if (begin >= 0 && !(tokens->count && tokens->ids[0] == begin)) token_list_add(out, &begin, 1);
    token_list_add(out, tokens->ids, tokens->count);
}

static Status read_stdin(size_t max_bytes, char **data, size_t *size) {
    Text text = {0};
    char block[4096];
    size_t got;
    while ((got = fread(block, 1, sizeof block, stdin)) > 0 && text.size <= max_bytes)
        text_add_bytes(&text, block, got);
    Status status = ferror(stdin)           ? fail(ERR_IO, "standard input: a read failed")
                    : text.size > max_bytes ? fail(ERR_DATA, "standard input: more than %zu bytes", max_bytes)
                                            : OK;
    if (status == OK) text_add(&text, "%s", "");
    *data = status == OK ? text.data : NULL;
    *size = text.size;
    if (status != OK) text_free(&text);
    return status;
}

Status input_read(const char *path, size_t max_bytes, char **data, size_t *size) {
    return strcmp(path, "-") ? file_read(path, max_bytes, data, size) : read_stdin(max_bytes, data, size);
}
