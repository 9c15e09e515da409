// Prepares the data of a fine-tuning: conversations by prepare-chat, texts by preprocess; and holds out a share.
#include "cli/finetune.h"
#include "dataset/dataset.h"
#include <inttypes.h>

enum {
    HELD_OUT_SHARE = 20, // of the data, one in so many is held out
    MAX_HELD_OUT = 200,  // samples or documents
    MIN_PACKED = 20,     // fewer packed samples: one conversation each
};

static void add_data_words(const Finetune *f, const char *verb, const char *tokenizer, CommandWords *words) {
    words_add(words, "%s", verb);
    words_add(words, "--input");
    words_add(words, "%s", f->data);
    words_add(words, "--tokenizer-model");
    words_add(words, "%s", tokenizer);
    words_add(words, "--output-prefix");
    words_add(words, "%s/data", f->folder);
    words_add(words, "--overwrite"); // for those who type the command again
}

static const char *const of_data[] = {"tokenizer_model", "seq_length", NULL};

static void chat_words(const Finetune *f, int seq_length, bool pack, CommandWords *words) {
    add_data_words(f, "prepare-chat", f->tokenizer, words);
    words_add(words, "--seq-length");
    words_add(words, "%d", seq_length);
    if (!pack && !options_given(f->options, "pack")) words_add(words, "--no-pack");
    options_words(f->options, FOR_PREPARE_CHAT, of_data, words);
}

// Reads all conversations; writes them, unless `measures` their lengths alone.
static Status run_chats(Finetune *f, int seq_length, bool pack, bool measures) {
    CommandWords words = {0};
    Options options;
    ChatSummary s;
    chat_words(f, seq_length, pack, &words);
    Status status = finetune_parse(&words, FOR_PREPARE_CHAT, &options);
    if (status == OK) {
        ChatJob job = chat_job_of(&options);
        job.window = finetune_window(f);
        if (measures) job.output_prefix = NULL, job.num_shown = 1; // nothing is shown, so that all is read
        status = chat_prepare(&job, &s);
        options_destroy(&options);
    }
    if (status == OK) {
        f->count = s.conversations, f->tokens = s.tokens, f->trained = s.trained, f->longest = s.longest;
        if (!measures && s.bad_lines)
            fprintf(stderr, "left out %" PRId64 " bad lines:\n%s", s.bad_lines, text_string(&s.left_out));
        if (!measures && s.other_files)
            fprintf(stderr, "left out files of %s that are no JSON lines: %" PRId64 "\n", f->data,
                    s.other_files);
        if (!measures && s.dropped)
            fprintf(stderr, "left out %" PRId64 " conversations that are too long\n", s.dropped);
        if (!measures && s.truncated) fprintf(stderr, "truncated %" PRId64 " conversations\n", s.truncated);
        text_free(&s.left_out);
    }
    if (!measures) words_join(&f->prepare, &words);
    words_free(&words);
    return status;
}

// Few samples would leave few to hold out, so few conversations are not packed.
static Status prepare_chats(Finetune *f) {
    const Options *o = f->options;
    int window = o->seq_length != INT_UNSET ? o->seq_length : finetune_window(f);
    TRY(run_chats(f, window, true, true));
    int seq_length = finetune_seq_length(f);
    return run_chats(f, seq_length, f->tokens / (seq_length + 1) >= MIN_PACKED, false);
}

static Status prepare_text(Finetune *f) {
    CommandWords words = {0};
    Options options;
    PreprocessSummary s;
    add_data_words(f, "preprocess", f->tokenizer, &words);
    words_add(&words, "--append-eod");
    options_words(f->options, FOR_PREPROCESS, (const char *const[]){"tokenizer_model", "log_interval", NULL},
                  &words);
    Status status = finetune_parse(&words, FOR_PREPROCESS, &options);
    if (status == OK) {
        PreprocessJob job = preprocess_job_of(&options);
        status = preprocess_run(&job, &s);
        options_destroy(&options);
    }
    if (status == OK) {
        if (s.bad_lines)
            fprintf(stderr, "left out %" PRId64 " bad lines:\n%s", s.bad_lines, text_string(&s.left_out));
        text_free(&s.left_out);
    }
    words_join(&f->prepare, &words);
    words_free(&words);
    return status;
}

// The last ones are held out: one in twenty, at least one where there are two.
static Status count_data(Finetune *f) {
    IndexedDataset *data;
    Text prefix = {0};
    text_add(&prefix, "%s/data", f->folder);
    Status status = indexed_dataset_open(&data, prefix.data, 0);
    text_free(&prefix);
    TRY(status);
    int64_t documents = indexed_dataset_num_documents(data), sequences = indexed_dataset_num_sequences(data);
    f->tokens = indexed_dataset_num_tokens(data);
    indexed_dataset_close(data);
    f->units = f->conversations ? documents : sequences;
    if (!f->conversations) f->count = sequences;
    int64_t held_out = (f->units + HELD_OUT_SHARE / 2) / HELD_OUT_SHARE;
    held_out = held_out < 1 ? 1 : held_out > MAX_HELD_OUT ? MAX_HELD_OUT : held_out;
    f->held_out = f->units > 1 ? held_out : 0;
    f->samples = f->units - f->held_out;
    if (f->conversations) return OK;
    f->samples = f->tokens * f->samples / f->units / finetune_seq_length(f);
    if (f->samples) return OK;
    return fail(ERR_DATA,
                "%s: its %" PRId64
                " tokens are fewer than one sequence of %d: give more text, or a smaller --seq-length",
                f->data, f->tokens, finetune_seq_length(f));
}

Status finetune_prepare(Finetune *f) {
    CorpusContents contents;
    const StringList *keys = &f->options->json_keys;
    f->place.size = 0;
    TRY(corpus_look(f->data, keys->items, keys->count, &contents, &f->place));
    if (contents == HOLDS_PAIRS || f->options->dpo)
        return fail(
            ERR_CONFIG,
            "%s: finetune trains on conversations and texts. Pairs of answers, chosen and rejected, are for "
            "`trireme prepare-chat --preferences` and `trireme train --dpo`, best from a model that was "
            "fine-tuned before",
            text_string(&f->place));
    f->conversations = contents == HOLDS_CONVERSATIONS;
    TRY(f->conversations ? prepare_chats(f) : prepare_text(f));
    return count_data(f);
}
