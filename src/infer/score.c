// Scores a text or continuations in batches of token rows.
#include "infer/score.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Buffers for a batch of token rows, [longest, B] each: element i of row b is at i*B + b.
typedef struct {
    const ScoreModel *model;
    int n; // of the longest row
    int32_t *tokens, *labels;
    float *nll, *margin;
} Rows;

static Status rows_open(Rows *rows, const ScoreModel *model) {
    size_t count = (size_t)model->longest * (size_t)model->batch;
    *rows = (Rows){.model = model};
    rows->tokens = calloc(count, sizeof *rows->tokens);
    rows->labels = calloc(count, sizeof *rows->labels);
    rows->nll = malloc(count * sizeof *rows->nll);
    rows->margin = malloc(count * sizeof *rows->margin);
    if (rows->tokens && rows->labels && rows->nll && rows->margin) return OK;
    return fail(ERR_OS, "no memory for a batch of %zu tokens", count);
}

static void rows_close(Rows *rows) {
    free(rows->tokens);
    free(rows->labels);
    free(rows->nll);
    free(rows->margin);
}

// Clears the rows: padding is token 0.
static void rows_clear(Rows *rows) {
    size_t bytes = (size_t)rows->model->longest * (size_t)rows->model->batch * sizeof *rows->tokens;
    rows->n = 0;
    memset(rows->tokens, 0, bytes);
    memset(rows->labels, 0, bytes);
}

// Sets row b. The last of `count` tokens is only predicted, the first only seen.
static void rows_set(Rows *rows, int b, const int32_t *tokens, int count) {
    CHECK(count >= 2 && count - 1 <= rows->model->longest, "a row of %d tokens", count);
    for (int i = 0; i + 1 < count; i++) {
        rows->tokens[i * rows->model->batch + b] = tokens[i];
        rows->labels[i * rows->model->batch + b] = tokens[i + 1];
    }
    if (count - 1 > rows->n) rows->n = count - 1;
}

static Status rows_score(Rows *rows) {
    const ScoreModel *model = rows->model;
    if (model->score(model->self, rows->tokens, rows->labels, rows->n, rows->nll, rows->margin)) return OK;
    return fail(INTERRUPTED, "stopped by a signal");
}

// ---- perplexity ---------------------------------------------------------------------------------

typedef struct {
    const ScoreText *text;
    Perplexity *result;
    int64_t sequence, offset; // of the next token
    int32_t *window;          // [S + 1]: the last token of the window before comes first
    int held;                 // tokens in the window
} Windows;

// Reads tokens until the window is full or the text ends.
static Status fill_window(Windows *w) {
    const IndexedDataset *data = w->text->data;
    while (w->held < w->text->window + 1 && w->sequence < w->text->range.end) {
        int64_t left = indexed_dataset_length(data, w->sequence) - w->offset;
        int64_t room = w->text->window + 1 - w->held, count = left < room ? left : room;
        TRY(indexed_dataset_read(data, w->sequence, w->offset, count, w->window + w->held, 1));
        w->held += (int)count;
        w->offset = count < left ? w->offset + count : 0;
        w->sequence += count == left;
    }
    return OK;
}

// Counts the bytes of the predicted tokens. End tokens have no text.
static Status count_bytes(Windows *w) {
    const Tokenizer *tokenizer = w->text->tokenizer;
    if (!tokenizer) return OK;
    Text text = {0};
    Status status = OK;
    for (int from = 1, to; from < w->held && status == OK; from = to + 1) {
        for (to = from; to < w->held && w->window[to] != tokenizer_eod(tokenizer);) to++;
        status = tokenizer_decode(tokenizer, w->window + from, (size_t)(to - from), &text);
    }
    w->result->bytes += (int64_t)text.size;
    text_free(&text);
    return status;
}

// Fills rows with the next windows, at most B; their lengths go to counts [B].
static Status fill_rows(Windows *w, Rows *rows, int *counts, int *num_rows) {
    rows_clear(rows);
    for (*num_rows = 0; *num_rows < rows->model->batch; ++*num_rows) {
        TRY(fill_window(w));
        if (w->held < 2) return OK;
        rows_set(rows, *num_rows, w->window, w->held);
        TRY(count_bytes(w));
        counts[*num_rows] = w->held - 1;
        w->window[0] = w->window[w->held - 1];
        w->held = 1;
    }
    return OK;
}

static void add_up(const Rows *rows, const int *counts, int num_rows, Perplexity *result) {
    for (int b = 0; b < num_rows; b++) {
        result->tokens += counts[b];
        for (int i = 0; i < counts[b]; i++) result->nats += (double)rows->nll[i * rows->model->batch + b];
    }
}

static Status score_windows(Windows *w, Rows *rows, int *counts) {
    for (;;) {
        int num_rows;
        TRY(fill_rows(w, rows, counts, &num_rows));
        if (num_rows == 0) break;
        TRY(rows_score(rows));
        add_up(rows, counts, num_rows, w->result);
    }
    if (w->result->tokens) return OK;
    return fail(ERR_DATA, "this share of the data set has less than two tokens: there is nothing to predict");
}

Status score_text(const ScoreModel *model, const ScoreText *text, Perplexity *result) {
    CHECK(text->window <= model->longest, "windows of %d tokens, a model of %d", text->window,
          model->longest);
    *result = (Perplexity){0};
    Windows w = {.text = text, .result = result, .sequence = text->range.first};
    Rows rows;
    w.window = malloc(((size_t)text->window + 1) * sizeof *w.window);
    int *counts = calloc((size_t)model->batch, sizeof *counts);
    CHECK(w.window && counts, "no memory for a window of %d tokens", text->window);
    Status status = rows_open(&rows, model);
    if (status == OK) status = score_windows(&w, &rows, counts);
    rows_close(&rows);
    free(counts);
    free(w.window);
    return status;
}

// ---- conversations ------------------------------------------------------------------------------

typedef struct {
    int64_t sequence;
    int32_t length;
} Chat;

// Rows of a batch should be of about the same length.
static int longest_chat_first(const void *a, const void *b) {
    const Chat *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static Status read_chat(const ScoreChats *chats, const Chat *chat, int32_t *tokens, int32_t *mask) {
    TRY(indexed_dataset_read(chats->data, chat->sequence, 0, chat->length, tokens, 1));
    return indexed_dataset_read(chats->mask, chat->sequence, 0, chat->length, mask, 1);
}

// tokens [longest + 1] is room for one conversation, masks [batch, longest + 1] for those of a batch.
static Status score_chat_batch(Rows *rows, const ScoreChats *chats, const Chat *batch, int count,
                               int32_t *tokens, int32_t *masks, Perplexity *result) {
    const ScoreModel *model = rows->model;
    size_t row = (size_t)model->longest + 1;
    rows_clear(rows);
    for (int b = 0; b < count; b++) {
        TRY(read_chat(chats, &batch[b], tokens, masks + (size_t)b * row));
        rows_set(rows, b, tokens, batch[b].length);
    }
    TRY(rows_score(rows));
    for (int b = 0; b < count; b++)
        for (int i = 0; i + 1 < batch[b].length; i++) {
            if (!masks[(size_t)b * row + (size_t)i + 1]) continue;
            result->tokens++;
            result->nats += (double)rows->nll[i * model->batch + b];
        }
    return OK;
}

static Status list_chats(const ScoreModel *model, const ScoreChats *chats, Chat *list, int64_t *count) {
    *count = 0;
    for (int64_t s = chats->range.first; s < chats->range.end; s++) {
        int32_t length = indexed_dataset_length(chats->data, s);
        if (length > model->longest + 1)
            return fail(
                ERR_DATA,
                "%s: conversation %lld has %d tokens, but --seq-length %d and the one that follows are %d: "
                "give --seq-length as it was given to `trireme prepare-chat`",
                indexed_dataset_name(chats->data), (long long)s, length, model->longest, model->longest + 1);
        if (length >= 2) list[(*count)++] = (Chat){s, length};
    }
    qsort(list, (size_t)*count, sizeof *list, longest_chat_first);
    return OK;
}

static Status score_listed(const ScoreModel *model, const ScoreChats *chats, const Chat *list, int64_t count,
                           Perplexity *result) {
    Rows rows;
    size_t row = (size_t)model->longest + 1;
    int32_t *room = malloc((size_t)(model->batch + 1) * row * sizeof *room);
    CHECK(room, "no memory for %d conversations", model->batch);
    Status status = rows_open(&rows, model);
    for (int64_t i = 0; i < count && status == OK; i += model->batch) {
        int n = count - i < model->batch ? (int)(count - i) : model->batch;
        status = score_chat_batch(&rows, chats, list + i, n, room, room + row, result);
    }
    rows_close(&rows);
    free(room);
    return status;
}

Status score_chats(const ScoreModel *model, const ScoreChats *chats, Perplexity *result) {
    int64_t count;
    Chat *list = malloc((size_t)(chats->range.end - chats->range.first + 1) * sizeof *list);
    CHECK(list, "no memory for a list of conversations");
    *result = (Perplexity){0};
    Status status = list_chats(model, chats, list, &count);
    if (status == OK) status = score_listed(model, chats, list, count, result);
    free(list);
    if (status != OK || result->tokens) return status;
    return fail(ERR_DATA,
                "this share of the data set has no token that is trained: there is nothing to evaluate");
}

// ---- requests -----------------------------------------------------------------------------------

static int longest_first(const void *a, const void *b) {
    const Continuation *x = *(Continuation *const *)a, *y = *(Continuation *const *)b;
    if (x->tokens.count != y->tokens.count) return x->tokens.count > y->tokens.count ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void answer(const Rows *rows, int b, Continuation *c) {
    int count = (int)c->tokens.count - 1;
    c->log_likelihood = 0;
    c->greedy = true;
    for (int i = count - c->scored; i < count; i++) {
        c->log_likelihood -= (double)rows->nll[i * rows->model->batch + b];
        c->greedy = c->greedy && rows->margin[i * rows->model->batch + b] >= 0;
    }
}

static Status score_batch(Rows *rows, Continuation **batch, int count) {
    rows_clear(rows);
    for (int b = 0; b < count; b++) rows_set(rows, b, batch[b]->tokens.ids, (int)batch[b]->tokens.count);
    TRY(rows_score(rows));
    for (int b = 0; b < count; b++) answer(rows, b, batch[b]);
    return OK;
}

// A continuation whose text became part of the context's tokens has no tokens, and so a log-likelihood of 0.
static int to_score(Requests *r, Continuation **sorted) {
    int count = 0;
    for (int i = 0; i < r->num_continuations; i++) {
        r->continuations[i].greedy = true;
        if (r->continuations[i].scored) sorted[count++] = &r->continuations[i];
    }
    qsort(sorted, (size_t)count, sizeof(Continuation *), longest_first);
    return count;
}

static Status score_batches(Rows *rows, Continuation **sorted, int count) {
    int batch = rows->model->batch;
    for (int i = 0; i < count; i += batch)
        TRY(score_batch(rows, sorted + i, count - i < batch ? count - i : batch));
    return OK;
}

Status requests_score(const ScoreModel *model, Requests *r) {
    Rows rows;
    Continuation **sorted = malloc((size_t)r->num_continuations * sizeof(Continuation *));
    CHECK(sorted, "no memory for %d requests", r->num_continuations);
    Status status = rows_open(&rows, model);
    if (status == OK) status = score_batches(&rows, sorted, to_score(r, sorted));
    rows_close(&rows);
    free(sorted);
    return status;
}
