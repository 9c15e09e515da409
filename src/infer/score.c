// Scores a text or continuations in batches of token rows.
#include "infer/score.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Buffers for a batch of token rows, [longest, B] each: element i of row b is at i*B + b.
typedef struct {
    const ScoreModel *model;
    int n;        // of the longest row
    int position; // tokens of each row that the model has seen before
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

// Clears the rows, which begin after so many tokens: padding is token 0.
static void rows_clear(Rows *rows, int position) {
    size_t bytes = (size_t)rows->model->longest * (size_t)rows->model->batch * sizeof *rows->tokens;
    rows->n = 0;
    rows->position = position;
    memset(rows->tokens, 0, bytes);
    memset(rows->labels, 0, bytes);
}

// Sets row b to the tokens of a text from the position on. The last of `count` tokens is only predicted, the first only
// seen.
static void rows_set(Rows *rows, int b, const int32_t *tokens, int count) {
    int n = count - 1 - rows->position;
    CHECK(n >= 1 && n <= rows->model->longest, "a row of %d tokens after %d", count, rows->position);
    tokens += rows->position;
    for (int i = 0; i < n; i++) {
        rows->tokens[i * rows->model->batch + b] = tokens[i];
        rows->labels[i * rows->model->batch + b] = tokens[i + 1];
    }
    if (n > rows->n) rows->n = n;
}

static Status rows_run(Rows *rows, int32_t *labels, int n) {
    const ScoreModel *model = rows->model;
    if (model->score(model->self, rows->position, rows->tokens, labels, n, rows->nll, rows->margin))
        return OK;
    return fail(INTERRUPTED, "stopped by a signal");
}

static Status rows_score(Rows *rows) { return rows_run(rows, rows->labels, rows->n); }

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
    rows_clear(rows, 0);
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
    rows_clear(rows, 0);
    for (int b = 0; b < count; b++) {
        TRY(read_chat(chats, &batch[b], tokens, masks + (size_t)b * row));
        rows_set(rows, b, tokens, batch[b].length);
    }
    TRY(rows_score(rows));
    for (int b = 0; b < count; b++) {
        Perplexity one = {0};
        for (int i = 0; i + 1 < batch[b].length; i++) {
            if (!masks[(size_t)b * row + (size_t)i + 1]) continue;
            one.tokens++;
            one.nats += (double)rows->nll[i * model->batch + b];
        }
        result->tokens += one.tokens;
        result->nats += one.nats;
        if (chats->each) chats->each[batch[b].sequence - chats->range.first] = one;
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

// ---- continuations ------------------------------------------------------------------------------

// The fewest common tokens for which the continuations of a question are computed apart from them.
enum { MIN_SHARED = 8 };

// Continuations that are computed one after the other, after their first `shared` tokens.
typedef struct {
    Continuation *first;
    int count, shared;
} Question;

// Questions of as many continuations side by side, long ones first.
static int longest_first(const void *a, const void *b) {
    const Question *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    if (x->shared != y->shared) return x->shared > y->shared ? -1 : 1;
    if (x->first->tokens.count != y->first->tokens.count)
        return x->first->tokens.count > y->first->tokens.count ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void answer(const Rows *rows, int b, Continuation *c) {
    int count = (int)c->tokens.count - 1 - rows->position;
    c->log_likelihood = 0;
    c->greedy = true;
    for (int i = count - c->scored; i < count; i++) {
        c->log_likelihood -= (double)rows->nll[i * rows->model->batch + b];
        c->greedy = c->greedy && rows->margin[i * rows->model->batch + b] >= 0;
    }
}

// Computes the first tokens of each question, which all have the same number of them.
static Status see_shared(Rows *rows, const Question *batch, int count, int shared) {
    rows_clear(rows, 0);
    for (int b = 0; b < count; b++) rows_set(rows, b, batch[b].first->tokens.ids, shared + 1);
    return rows_run(rows, NULL, shared);
}

static Status score_batch(Rows *rows, const Question *batch, int count) {
    int shared = batch[count - 1].shared; // the least: they are sorted
    if (shared) TRY(see_shared(rows, batch, count, shared));
    for (int i = 0; i < batch[0].count; i++) {
        rows_clear(rows, shared);
        for (int b = 0; b < count; b++) {
            const TokenList *tokens = &batch[b].first[i].tokens;
            rows_set(rows, b, tokens->ids, (int)tokens->count);
        }
        TRY(rows_score(rows));
        for (int b = 0; b < count; b++) answer(rows, b, &batch[b].first[i]);
    }
    return OK;
}

// The first tokens that two continuations have in common and that predict none that is scored.
static int common(const Continuation *a, const Continuation *b) {
    int most = (int)a->tokens.count - 1 - a->scored, other = (int)b->tokens.count - 1 - b->scored, n = 0;
    if (other < most) most = other;
    while (n < most && a->tokens.ids[n] == b->tokens.ids[n]) n++;
    return n;
}

// The continuations from `c` on, at most `left`, that are computed after their common tokens.
static Question question_at(const ScoreModel *model, Continuation *c, int left) {
    Question q = {c, 1, 0};
    int shared = (int)c->tokens.count;
    while (model->cache && q.count < left && c[q.count].question == c->question && c[q.count].scored) {
        int also = common(c, &c[q.count]);
        if (also < MIN_SHARED) break;
        if (also < shared) shared = also;
        q.count++;
    }
    if (q.count > 1) q.shared = shared;
    return q;
}

// A continuation whose text became part of the context's tokens has no tokens, and so a log-likelihood of 0.
static int to_score(const ScoreModel *model, Continuations *all, Question *questions) {
    int count = 0;
    for (int i = 0; i < all->count;) {
        Continuation *c = &all->items[i];
        c->greedy = true;
        if (!c->scored) {
            i++;
            continue;
        }
        questions[count] = question_at(model, c, all->count - i);
        i += questions[count++].count;
    }
    qsort(questions, (size_t)count, sizeof *questions, longest_first);
    return count;
}

// Batches have questions of equally many continuations.
static Status score_batches(Rows *rows, const Question *questions, int count) {
    for (int i = 0, n; i < count; i += n) {
        for (n = 1; n < rows->model->batch && i + n < count; n++)
            if (questions[i + n].count != questions[i].count) break;
        TRY(score_batch(rows, questions + i, n));
        if (rows->model->done) rows->model->done(rows->model->self, n * questions[i].count);
    }
    return OK;
}

Status continuations_score(const ScoreModel *model, Continuations *all) {
    Rows rows;
    Question *questions = malloc((size_t)all->count * sizeof *questions + 1);
    CHECK(questions, "no memory for %d continuations", all->count);
    Status status = rows_open(&rows, model);
    if (status == OK) status = score_batches(&rows, questions, to_score(model, all, questions));
    rows_close(&rows);
    free(questions);
    return status;
}

void continuations_free(Continuations *c) {
    for (int i = 0; i < c->count; i++) token_list_free(&c->items[i].tokens);
    free(c->items);
    *c = (Continuations){0};
}
