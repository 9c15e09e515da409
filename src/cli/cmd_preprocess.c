// `trireme preprocess`: checks its options, runs the job, prints the summary.
#include "base/cores.h"
#include "base/file.h"
#include "cli/verb_parts.h"
#include "config/config.h"
#include "corpus/corpus.h"
#include <inttypes.h>
#include <string.h>

// Checks the keys: each names a data set.
static Status check_keys(const StringList *keys) {
    for (int i = 0; i < keys->count; i++) {
        if (keys->count > 1 && strchr(keys->items[i], '/'))
            return fail(ERR_USAGE, "--json-keys: '%s' cannot be part of a file's name: give it alone",
                        keys->items[i]);
        for (int k = 0; k < i; k++)
            if (!strcmp(keys->items[i], keys->items[k]))
                return fail(ERR_USAGE, "--json-keys names '%s' twice", keys->items[i]);
    }
    return OK;
}

static Status check_options(const Options *o) {
    if (o->positional.count > 0)
        return fail(ERR_USAGE, "'%s' belongs to no option; inputs are given by --input",
                    o->positional.items[0]);
    if (o->input.count == 0)
        return fail(ERR_USAGE, "preprocess needs --input: text files, folders or JSON lines");
    if (!o->output_prefix || !*o->output_prefix)
        return fail(ERR_USAGE,
                    "preprocess needs --output-prefix PREFIX: it writes PREFIX.bin and PREFIX.idx");
    TRY(check_keys(&o->json_keys));
    TRY(options_check_tokenizer(o));
    if (!options_have_null_tokenizer(o) && o->vocab_size != INT_UNSET &&
        (o->vocab_file || o->tokenizer_model))
        return fail(ERR_CONFIG, "--vocab-size %d trains a tokenizer, %s loads one: keep one", o->vocab_size,
                    o->vocab_file ? "--vocab-file" : "--tokenizer-model");
    return OK;
}

// --vocab-size is the size of the tokenizer to train; for the null tokenizer it is the whole description.
static void choose_tokenizer(const Options *o, PreprocessJob *job) {
    int size = o->vocab_size == INT_UNSET ? 0 : o->vocab_size;
    bool is_null = options_have_null_tokenizer(o);
    job->vocab_file = o->vocab_file;
    job->merge_file = o->merge_file;
    job->tokenizer_path = o->tokenizer_model;
    job->null_size = is_null ? size : 0;
    job->vocab_size = is_null ? 0 : size;
}

static void print_summary(const PreprocessJob *job, const PreprocessSummary *s) {
    printf("%s: %" PRId64 " documents, %" PRId64 " tokens, vocabulary %d%s\n", job->output_prefix,
           s->documents, s->tokens, s->vocab_size, s->vocab_trained ? " (trained)" : "");
    printf("  read %" PRId64 " files, %.1f MB: %.2f bytes of text per token, encoded at %.1f MB/s\n",
           s->files, (double)s->bytes / 1e6, (double)s->text_bytes / (double)s->tokens,
           (double)s->bytes / 1e6 / (s->encode_s + 1e-9));
    if (s->skipped_binary) printf("  left out %" PRId64 " binary files\n", s->skipped_binary);
    if (s->bad_lines) printf("  left out %" PRId64 " bad lines\n", s->bad_lines);
    printf("%s", text_string(&s->left_out));
    if (s->vocab_trained && s->vocab_size < job->vocab_size)
        printf("  the text has no more pairs that occur twice: %d tokens instead of %d\n", s->vocab_size,
               job->vocab_size);
    if (s->vocab_trained && s->bytes > PREPROCESS_TRAIN_BYTES)
        printf("  the tokenizer was trained on the first %d MB\n", PREPROCESS_TRAIN_BYTES / 1000000);
}

Status check_new_data_set(const Options *o, const char *part) {
    Text path = {0};
    text_add(&path, "%s%s.idx", o->output_prefix, part);
    Status status = o->overwrite || !file_exists(path.data)
                        ? OK
                        : fail(ERR_CREATE,
                               "--output-prefix %s: %s exists and is not replaced: name another prefix, or "
                               "replace it with --overwrite",
                               o->output_prefix, path.data);
    text_free(&path);
    return status;
}

// Several keys make a data set each.
static Status check_new(const Options *o) {
    if (o->json_keys.count == 1) return check_new_data_set(o, "");
    for (int i = 0; i < o->json_keys.count; i++) {
        Text part = {0};
        text_add(&part, "_%s_document", o->json_keys.items[i]);
        Status status = check_new_data_set(o, part.data);
        text_free(&part);
        TRY(status);
    }
    return OK;
}

PreprocessJob preprocess_job_of(const Options *o) {
    PreprocessJob job = {
        .inputs = o->input.items,
        .num_inputs = o->input.count,
        .output_prefix = o->output_prefix,
        .json_keys = o->json_keys.items,
        .num_json_keys = o->json_keys.count,
        .append_eod = o->append_eod,
        .skip_bad_lines = o->skip_bad_lines,
        .workers = o->workers == INT_UNSET ? cores_limit(MAX_USUAL_WORKERS) : o->workers,
        .max_bytes = o->max_bytes == INT_UNSET ? 0 : o->max_bytes,
        .progress = stderr,
        .plain = o->plain,
        .log_documents = 1000 * (int64_t)o->log_interval,
        .stopped = stop_on_signals(),
    };
    choose_tokenizer(o, &job);
    return job;
}

Status cmd_preprocess(Options *o) {
    tell_notes(o);
    TRY(check_options(o));
    TRY(check_new(o));
    PreprocessJob job = preprocess_job_of(o);
    PreprocessSummary summary;
    Status status = preprocess_run(&job, &summary);
    if (status == OK) print_summary(&job, &summary);
    text_free(&summary.left_out);
    return status;
}
