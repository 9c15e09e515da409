// Encodes the documents of a batch, or counts their pieces, on one thread of preprocess.
#include "corpus/encoding.h"
#include "base/array.h"
#include "base/libraries.h"
#include "tokenizer/hash_map.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE_BYTES = 4 << 20 }; // the memory that a larger document took is freed after it

// ---- Tools ------------------------------------------------------------------------------------------------

void slot_open(BatchSlot *slot, int num_outputs) {
    *slot = (BatchSlot){.outputs = calloc((size_t)num_outputs, sizeof *slot->outputs)};
    CHECK(slot->outputs, "no memory for %d outputs", num_outputs);
}

void slot_close(BatchSlot *slot, int num_outputs) {
    for (int k = 0; slot->outputs && k < num_outputs; k++) {
        token_list_free(&slot->outputs[k].tokens);
        free(slot->outputs[k].parts);
    }
    free(slot->outputs);
    piece_counter_close(slot->counter);
    batch_free(&slot->batch);
    text_free(&slot->bad);
    *slot = (BatchSlot){0};
}

void worker_open(Worker *w, const char *const *json_keys, int num_json_keys, bool skip_bad_lines,
                 const atomic_int *stopped) {
    *w = (Worker){.skip_bad_lines = skip_bad_lines, .stopped = stopped};
    json_line_open(&w->json, json_keys, num_json_keys);
}

Status worker_encodes(Worker *w, const Tokenizer *tokenizer, bool may_cut) {
    w->tokenizer = tokenizer;
    w->may_cut = may_cut;
    return encoder_open(&w->encoder, tokenizer);
}

void worker_close(Worker *w) {
    encoder_close(w->encoder);
    json_line_free(&w->json);
    *w = (Worker){0};
}

// Frees scratch and caches, which grow with the largest document: those of all workers would fill the machine.
static Status renew(Worker *w) {
    text_free(&w->json.scratch);
    if (!w->encoder) return OK;
    encoder_close(w->encoder);
    w->encoder = NULL;
    return encoder_open(&w->encoder, w->tokenizer);
}

// ---- One document -----------------------------------------------------------------------------------------

static Status about(const Document *d, Status status, const char *what) {
    return d->line ? fail(status, "%s:%" PRId64 ": %s", d->path, d->line, what)
                   : fail(status, "%s: %s", d->path, what);
}

// The number of bytes up to the first cut of a text.
static size_t first_stretch(const Worker *w, const char *text, size_t bytes) {
    for (size_t most = BATCH_BYTES; w->may_cut && most < bytes; most *= 2) {
        size_t cut = cut_place(text, most);
        if (cut) return cut;
    }
    return bytes;
}

// Encodes a long text part by part, since the memory of an encoder grows with the text it gets at once.
static Status encode_text(Worker *w, const Document *d, const char *text, size_t bytes, TokenList *out) {
    for (size_t stretch; bytes; text += stretch, bytes -= stretch) {
        stretch = first_stretch(w, text, bytes);
        if (stretch > MAX_STRETCH_BYTES)
            return about(d, ERR_DATA,
                         w->may_cut
                             ? "16 MiB of a text without a place to cut, a blank or line end behind a "
                               "letter or digit"
                             : "a text of more than 16 MiB, which this tokenizer can only encode at once");
        Status status = encoder_encode(w->encoder, text, stretch, out);
        if (status != OK) return about(d, status, fail_message());
    }
    return OK;
}

// Counts or encodes one text.
static Status take_text(Worker *w, BatchSlot *slot, const Document *d, const char *text, size_t bytes,
                        Output *out, TokenRun part) {
    slot->text_bytes += (int64_t)bytes;
    if (slot->counter) {
        Status status = piece_counter_add(slot->counter, text, bytes);
        return status == OK ? OK : about(d, status, fail_message());
    }
    size_t before = out->tokens.count;
    TRY(encode_text(w, d, text, bytes, &out->tokens));
    part.tokens = out->tokens.count - before;
    array_grow(&out->parts, sizeof *out->parts, out->num_parts + 1, &out->capacity);
    out->parts[out->num_parts++] = part;
    return OK;
}

static bool is_strings(JsonLine *line, JsonCursor at) {
    const char *string;
    size_t bytes;
    if (at.text[at.at] == '"') return true;
    if (at.text[at.at] != '[') return false;
    for (bool more = json_line_begins_list(&at); more; more = json_line_next_element(&at))
        if (!json_line_string(line, &at, &string, &bytes)) return false;
    return true;
}

// Checks all keys before any text is counted, since counts cannot be undone.
static Status check_keys(JsonLine *line, const Document *d, JsonCursor at) {
    for (int k = 0; k < line->num_keys; k++) {
        at.at = line->values[k];
        if (!at.at)
            return fail(ERR_DATA, "%s:%" PRId64 ": no key \"%s\" (--json-keys names the keys to read)",
                        d->path, d->line, line->keys[k]);
        if (!is_strings(line, at))
            return fail(ERR_DATA, "%s:%" PRId64 ": the value of \"%s\" is not a string or a list of strings",
                        d->path, d->line, line->keys[k]);
    }
    return OK;
}

static Status take_key(Worker *w, BatchSlot *slot, const Document *d, JsonCursor at, int k) {
    Output *out = &slot->outputs[k];
    const char *string;
    size_t bytes;
    at.at = w->json.values[k];
    if (json_line_string(&w->json, &at, &string, &bytes))
        return take_text(w, slot, d, string, bytes, out, (TokenRun){.ends = true});
    for (bool more = json_line_begins_list(&at); more; more = json_line_next_element(&at)) {
        json_line_string(&w->json, &at, &string, &bytes);
        TRY(take_text(w, slot, d, string, bytes, out, (TokenRun){.sentence = true}));
    }
    return take_text(w, slot, d, "", 0, out, (TokenRun){.ends = true});
}

// Recognises a file that is one JSON value, over many lines or as a list.
static const char *hint(const Document *d, const char *line) {
    return d->line == 1 && line[0] == '[' ? "; `jq -c '.[]' FILE` makes lines of a list"
           : d->line == 1 && d->bytes < 4 ? "; `jq -c . FILE` puts each value on a line of its own"
                                          : "";
}

static Status take_line(Worker *w, BatchSlot *slot, const Document *d, const char *line) {
    if (d->too_long) return about(d, ERR_DATA, "a line of more than 64 MiB");
    JsonCursor cursor = {.text = line, .bytes = d->bytes - (line[d->bytes - 1] == '\n')};
    if (!json_line_scan(&w->json, &cursor))
        return fail(ERR_DATA, "%s:%" PRId64 ": byte %zu: %s%s", d->path, d->line, cursor.at, cursor.error,
                    hint(d, line));
    TRY(check_keys(&w->json, d, cursor));
    for (int k = 0; k < w->json.num_keys; k++) TRY(take_key(w, slot, d, cursor, k));
    return OK;
}

static Status take_document(Worker *w, BatchSlot *slot, const Document *d) {
    const char *raw = slot->batch.raw + d->start;
    if (d->line) return take_line(w, slot, d, raw);
    return take_text(w, slot, d, raw, d->bytes, &slot->outputs[0], (TokenRun){.ends = d->ends});
}

// ---- Bad lines --------------------------------------------------------------------------------------------

static void keep_document(BatchSlot *slot, int num_outputs) {
    slot->good_bytes = slot->text_bytes;
    for (int k = 0; k < num_outputs; k++) {
        Output *out = &slot->outputs[k];
        out->good_tokens = out->tokens.count;
        out->good_parts = out->num_parts;
    }
}

static void drop_document(BatchSlot *slot, int num_outputs) {
    slot->text_bytes = slot->good_bytes;
    for (int k = 0; k < num_outputs; k++) {
        Output *out = &slot->outputs[k];
        out->tokens.count = out->good_tokens;
        out->num_parts = out->good_parts;
    }
}

// Leaves a bad line out with skip_bad_lines. Otherwise fails, and the message names the option.
static Status forgive(const Worker *w, BatchSlot *slot, const Document *d, Status status) {
    if (status != ERR_DATA || !d->line) return status;
    char why[512];
    snprintf(why, sizeof why, "%s", fail_message());
    if (!w->skip_bad_lines) return fail(status, "%s; --skip-bad-lines leaves such lines out", why);
    drop_document(slot, w->json.num_keys);
    if (slot->num_bad++ < MAX_BAD_SHOWN) text_add(&slot->bad, "%s\n", why);
    return OK;
}

void slot_note_bad(const BatchSlot *slot, int64_t *bad_lines, Text *left_out) {
    const char *line = text_string(&slot->bad);
    for (int64_t i = *bad_lines; i < MAX_BAD_SHOWN && *line; i++) {
        int length = (int)strcspn(line, "\n");
        text_add(left_out, "    %.*s\n", length, line);
        line += length + 1;
    }
    *bad_lines += slot->num_bad;
}

// ---- A batch ----------------------------------------------------------------------------------------------

void slot_trim(BatchSlot *slot, int num_outputs) {
    if (slot->counter) piece_counter_clear(slot->counter);
    if (slot->batch.raw_capacity > LARGE_BYTES) batch_free(&slot->batch);
    for (int k = 0; k < num_outputs; k++) {
        Output *out = &slot->outputs[k];
        if (out->tokens.capacity > LARGE_BYTES / sizeof(int32_t)) token_list_free(&out->tokens);
    }
}

Status encode_batch(Worker *w, BatchSlot *slot) {
    slot->text_bytes = slot->num_bad = 0;
    slot->bad.size = 0;
    for (int k = 0; k < w->json.num_keys; k++) slot->outputs[k].tokens.count = slot->outputs[k].num_parts = 0;
    for (size_t i = 0; i < slot->batch.count; i++) {
        const Document *d = &slot->batch.documents[i];
        if (w->stopped && *w->stopped) return fail(INTERRUPTED, "stopped by a signal");
        keep_document(slot, w->json.num_keys);
        Status status = take_document(w, slot, d);
        if (status != OK) TRY(forgive(w, slot, d, status));
        if (d->bytes > LARGE_BYTES) TRY(renew(w));
    }
    return OK;
}

static Status write_output(const Output *out, IndexedWriter *writer, int32_t eod) {
    const int32_t *ids = out->tokens.ids;
    for (size_t i = 0; i < out->num_parts; i++) {
        const TokenRun *part = &out->parts[i];
        if (part->sentence && part->tokens) TRY(indexed_writer_end_sequence(writer));
        TRY(indexed_writer_extend(writer, ids, part->tokens));
        if (part->ends) TRY(indexed_writer_end_document(writer, eod));
        if (part->tokens) ids += part->tokens;
    }
    return OK;
}

Status write_batch(const BatchSlot *slot, IndexedWriter *const *writers, int num_outputs, int32_t eod) {
    for (int k = 0; k < num_outputs; k++) TRY(write_output(&slot->outputs[k], writers[k], eod));
    return OK;
}

// ---- Cutting ----------------------------------------------------------------------------------------------

// True when a text and its two parts have the same tokens.
static Status cut_alike(Encoder *encoder, const char *text, bool *alike) {
    TokenList whole = {0}, parts = {0};
    size_t cut = cut_place(text, strlen(text));
    Status status = encoder_encode(encoder, text, strlen(text), &whole);
    if (status == OK) status = encoder_encode(encoder, text, cut, &parts);
    if (status == OK) status = encoder_encode(encoder, text + cut, strlen(text) - cut, &parts);
    *alike = whole.count && whole.count == parts.count &&
             !memcmp(whole.ids, parts.ids, whole.count * sizeof *whole.ids);
    token_list_free(&whole);
    token_list_free(&parts);
    return status;
}

static Status all_cut_alike(Encoder *encoder, const char *const *texts, bool *alike) {
    for (*alike = true; *alike && *texts; texts++) TRY(cut_alike(encoder, *texts, alike));
    return OK;
}

// Finds a token that contains a place to cut, such as "New York": an added token, or merged over words.
static bool has_token_to_cut(const Tokenizer *tokenizer) {
    Text bytes = {0};
    bool found = false;
    for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer) && !found; id++) {
        bytes.size = 0;
        found = tokenizer_decode(tokenizer, &id, 1, &bytes) != OK || cut_place(bytes.data, bytes.size);
    }
    text_free(&bytes);
    return found;
}

Status may_be_cut(const Tokenizer *tokenizer, bool *may) {
    static const char *const texts[] = {"the word", "the\nword", "the\n\n word", "the  word", "it's\n",
                                        "1 2",      "1\n2",      "1 \n2",        NULL};
    static const char *const beyond_ascii[] = {"\xe5\xad\x97\nthe", NULL};
    *may = tokenizer_kind(tokenizer) == TOKENIZER_NULL;
    if (*may || has_token_to_cut(tokenizer)) return OK;
    Encoder *encoder;
    TRY(encoder_open(&encoder, tokenizer));
    Status status = all_cut_alike(encoder, texts, may);
    if (status == OK && *may && library_present(LIBRARY_PCRE2))
        status = all_cut_alike(encoder, beyond_ascii, may);
    encoder_close(encoder);
    return status;
}
