// Reads logs of Megatron-LM. An argument is a line "  num_layers ............ 32"; ranks and times may stand before it.
#include "calibrate/megatron_log.h"
#include "base/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LOG_BYTES = 1 << 30, MAX_LINE = 1024 };

// What an argument becomes. A value of None is left out, and so is `without`.
typedef struct {
    const char *argument, *option;
    bool is_flag;        // True gives the option, False nothing
    const char *without; // NULL: none
} Argument;

static const Argument arguments[] = {
    {"num_layers", "num-layers", false, NULL},
    {"hidden_size", "hidden-size", false, NULL},
    {"ffn_hidden_size", "ffn-hidden-size", false, NULL},
    {"num_attention_heads", "num-attention-heads", false, NULL},
    {"kv_channels", "kv-channels", false, NULL},
    {"group_query_attention", "group-query-attention", true, NULL},
    {"num_query_groups", "num-query-groups", false, NULL},
    {"seq_length", "seq-length", false, NULL},
    {"max_position_embeddings", "max-position-embeddings", false, NULL},
    {"position_embedding_type", "position-embedding-type", false, NULL},
    {"normalization", "normalization", false, NULL},
    {"swiglu", "swiglu", true, NULL},
    {"untie_embeddings_and_output_weights", "untie-embeddings-and-output-weights", true, NULL},
    {"hidden_dropout", "hidden-dropout", false, NULL},
    {"attention_dropout", "attention-dropout", false, NULL},
    {"micro_batch_size", "micro-batch-size", false, NULL},
    {"global_batch_size", "global-batch-size", false, NULL},
    {"bf16", "bf16", true, NULL},
    {"fp16", "fp16", true, NULL},
    {"fp8", "fp8-format", false, NULL},
    {"fp8_recipe", "fp8-recipe", false, NULL},
    {"tensor_model_parallel_size", "tensor-model-parallel-size", false, NULL},
    {"pipeline_model_parallel_size", "pipeline-model-parallel-size", false, NULL},
    {"virtual_pipeline_model_parallel_size", "num-virtual-stages-per-pipeline-rank", false, NULL},
    {"context_parallel_size", "context-parallel-size", false, "1"},
    {"data_parallel_size", "data-parallel-size", false, NULL},
    {"recompute_granularity", "recompute-granularity", false, NULL},
    {"recompute_method", "recompute-method", false, NULL},
    {"recompute_num_layers", "recompute-num-layers", false, NULL},
    {"sequence_parallel", "sequence-parallel", true, NULL},
    {"use_distributed_optimizer", "use-distributed-optimizer", true, NULL},
    {"overlap_grad_reduce", "overlap-grad-reduce", true, NULL},
};

static Status add_word(MegatronLog *log, const char *option, const char *value) {
    if (log->count == MAX_LOG_WORDS) return fail(ERR_DATA, "more than %d arguments", MAX_LOG_WORDS);
    char *word = log->words[log->count++];
    int size = snprintf(word, sizeof log->words[0], "--%s%s%s", option, *value ? "=" : "", value);
    return size < (int)sizeof log->words[0] ? OK
                                            : fail(ERR_DATA, "--%s: '%.40s...' is too long", option, value);
}

// Splits "name ..... value", from the first of at least two dots after the name.   Returns whether the line is such.
static bool split(char *line, char **name, char **value) {
    char *dots = strstr(line, " ..");
    if (!dots) return false;
    *value = dots + strspn(dots, " .");
    *dots = 0;
    char *before = strrchr(line, ' ');
    *name = before ? before + 1 : line;
    (*value)[strcspn(*value, " \r\n")] = 0;
    return **name && **value;
}

static Status add_argument(MegatronLog *log, const char *name, const char *value) {
    if (!strcmp(name, "add_bias_linear") && !strcmp(value, "False"))
        return add_word(log, "disable-bias-linear", "");
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        const Argument *a = &arguments[i];
        if (strcmp(name, a->argument)) continue;
        if (!strcmp(value, "None") || (a->without && !strcmp(value, a->without))) return OK;
        if (!a->is_flag) return add_word(log, a->option, value);
        return strcmp(value, "True") ? OK : add_word(log, a->option, "");
    }
    return OK;
}

// "> padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)"
static Status add_vocabulary(MegatronLog *log, const char *line) {
    const char *size = strstr(line, "padded vocab");
    size = size ? strstr(size, "(size: ") : NULL;
    char number[16];
    if (!size) return OK;
    size += strlen("(size: ");
    snprintf(number, sizeof number, "%.*s", (int)strspn(size, "0123456789"), size);
    return add_word(log, "vocab-size", number);
}

static Status read_line(MegatronLog *log, const char *text, size_t size, bool *seen) {
    char line[MAX_LINE], *name, *value;
    if (size >= sizeof line) return OK;
    memcpy(line, text, size);
    line[size] = 0;
    bool first = log->count == 0 || !*seen;
    TRY(add_vocabulary(log, line));
    if (strstr(line, "end of arguments")) *seen = true;
    if (!first || !split(line, &name, &value)) return OK;
    return add_argument(log, name, value);
}

static Status read_text(MegatronLog *log, const char *text, size_t size, const char *path) {
    const char *end = text + size;
    bool seen = false;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        TRY(read_line(log, text, (size_t)(stop - text), &seen));
        text = stop + (stop < end);
    }
    if (!seen)
        return fail(ERR_DATA,
                    "%s: no line 'end of arguments': a log of Megatron-LM begins with its arguments", path);
    TRY(add_word(log, "mock-data", ""));
    TRY(add_word(log, "tokenizer-type", "NullTokenizer"));
    TRY(add_word(log, "lr", "1e-4"));
    return add_word(log, "train-iters", "1");
}

Status megatron_log_read(MegatronLog *log, const char *path) {
    char *text;
    size_t size;
    *log = (MegatronLog){0};
    TRY(file_read(path, MAX_LOG_BYTES, &text, &size));
    Status status = read_text(log, text, size, path);
    free(text);
    return status;
}

// Reads the number after `words` in the line.
static bool number_after(const char *line, const char *words, double *value) {
    const char *at = strstr(line, words);
    return at && sscanf(at + strlen(words), "%lf", value) == 1 && *value > 0;
}

bool megatron_log_iteration(const char *text, size_t size, double *ms, double *batch) {
    char line[MAX_LINE];
    if (size >= sizeof line) return false;
    memcpy(line, text, size);
    line[size] = 0;
    return strstr(line, "iteration") && number_after(line, "elapsed time per iteration (ms):", ms) &&
           number_after(line, "global batch size:", batch);
}
