// Trains a byte-pair encoding: merges the most frequent pair until the vocabulary is large enough.
#include "tokenizer/bpe_train.h"
#include "base/array.h"
#include <stdlib.h>
#include <string.h>

void piece_counts_add(PieceCounts *counts, const char *piece, size_t bytes, int64_t times) {
    bool added, full = counts->pieces.count >= MAX_DISTINCT_PIECES ||
                       counts->pieces.pool_bytes + bytes >= MAX_DISTINCT_BYTES;
    if (bytes > MAX_TRAINED_PIECE_BYTES) return;
    if (full && bytes_map_find(&counts->pieces, piece, bytes) == NOT_FOUND) return;
    uint32_t i = bytes_map_add(&counts->pieces, piece, bytes, &added);
    array_grow(&counts->counts, sizeof *counts->counts, (size_t)i + 1, &counts->capacity);
    counts->counts[i] = added ? times : counts->counts[i] + times;
}

// A distinct piece: its current symbols, and how often it occurs.
typedef struct {
    int32_t *symbols; // into Trainer.symbols
    int length;
    int64_t times;
} Word;

// An adjacent pair. `queued` >= `count` is the count of its newest entry in the heap, so the heap never has a count
// that is too low.
typedef struct {
    int64_t count, queued;
    uint32_t *words; // words that contain or contained it
    size_t num_words, capacity;
    bool touched;
} Pair;

typedef struct {
    int64_t count;
    int32_t left, right;
    uint32_t pair;
} Queued;

enum { ANY = -1 };

typedef struct {
    Bpe *bpe;
    int32_t *symbols;
    Word *words;
    uint32_t num_words;
    PairMap map; // index into pairs
    Pair *pairs;
    size_t pairs_capacity;
    Queued *heap;
    size_t heap_count, heap_capacity;
    uint32_t *touched; // pairs whose count has increased in this merge
    size_t num_touched, touched_capacity;
} Trainer;

// ---- The heap: most frequent first, then the smaller left id, then the smaller right id ---------------

static bool comes_first(const Queued *a, const Queued *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void queue_pair(Trainer *t, uint32_t index) {
    Pair *pair = &t->pairs[index];
    Queued entry = {.count = pair->queued = pair->count, .pair = index};
    pair_map_at(&t->map, index, &entry.left, &entry.right);
    array_grow(&t->heap, sizeof *t->heap, t->heap_count + 1, &t->heap_capacity);
    size_t i = t->heap_count++;
    for (; i && comes_first(&entry, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = entry;
}

static Queued dequeue(Trainer *t) {
    Queued top = t->heap[0], last = t->heap[--t->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < t->heap_count) {
        if (child + 1 < t->heap_count && comes_first(&t->heap[child + 1], &t->heap[child])) child++;
        if (!comes_first(&t->heap[child], &last)) break;
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = last;
    return top;
}

// Finds the pair to merge next; false when no pair occurs twice. An entry whose count has become too high is put back
// with the right count.
static bool most_frequent(Trainer *t, Queued *best) {
    while (t->heap_count) {
        *best = dequeue(t);
        Pair *pair = &t->pairs[best->pair];
        if (best->count != pair->queued) continue; // a newer entry exists
        pair->queued = 0;
        if (best->count == pair->count) return true;
        if (pair->count >= 2) queue_pair(t, best->pair);
    }
    return false;
}

// ---- Counting pairs in words --------------------------------------------------------------------------

// `list`: adds the word to the list of the pair unless it is the last one there.
static void count_pair(Trainer *t, uint32_t word, int32_t left, int32_t right, bool list) {
    bool added;
    uint32_t index = pair_map_add(&t->map, left, right, &added);
    if (added) {
        array_grow(&t->pairs, sizeof *t->pairs, (size_t)index + 1, &t->pairs_capacity);
        t->pairs[index] = (Pair){0};
    }
    Pair *pair = &t->pairs[index];
    pair->count += t->words[word].times;
    if (list && (!pair->num_words || pair->words[pair->num_words - 1] != word)) {
        array_grow(&pair->words, sizeof *pair->words, pair->num_words + 1, &pair->capacity);
        pair->words[pair->num_words++] = word;
    }
    if (pair->touched) return;
    pair->touched = true;
    array_grow(&t->touched, sizeof *t->touched, t->num_touched + 1, &t->touched_capacity);
    t->touched[t->num_touched++] = index;
}

// Counts the pairs of a word. Pairs with the token `merged`, or with ANY all pairs, are new in it: the word is
// added to their lists.
static void count_word(Trainer *t, uint32_t word, int32_t merged) {
    const Word *w = &t->words[word];
    for (int i = 0; i + 1 < w->length; i++) {
        int32_t left = w->symbols[i], right = w->symbols[i + 1];
        count_pair(t, word, left, right, merged == ANY || left == merged || right == merged);
    }
}

static void uncount_word(Trainer *t, uint32_t word) {
    const Word *w = &t->words[word];
    for (int i = 0; i + 1 < w->length; i++) {
        uint32_t index = pair_map_find(&t->map, w->symbols[i], w->symbols[i + 1]);
        t->pairs[index].count -= w->times;
    }
}

static void queue_touched(Trainer *t) {
    for (size_t i = 0; i < t->num_touched; i++) {
        Pair *pair = &t->pairs[t->touched[i]];
        pair->touched = false;
        if (pair->count > pair->queued && pair->count >= 2) queue_pair(t, t->touched[i]);
    }
    t->num_touched = 0;
}

static bool contains(const Word *w, int32_t left, int32_t right) {
    for (int i = 0; i + 1 < w->length; i++)
        if (w->symbols[i] == left && w->symbols[i + 1] == right) return true;
    return false;
}

static void replace(Word *w, int32_t left, int32_t right, int32_t result) {
    int to = 0;
    for (int from = 0; from < w->length; to++) {
        bool here = from + 1 < w->length && w->symbols[from] == left && w->symbols[from + 1] == right;
        w->symbols[to] = here ? result : w->symbols[from];
        from += here ? 2 : 1;
    }
    w->length = to;
}

// ---- The model ----------------------------------------------------------------------------------------

static void add_bytes(Bpe *bpe) {
    for (unsigned code = 0; code < 256 + 68; code++)
        for (int b = 0; b < 256; b++) {
            if (bpe_byte_char((unsigned char)b) != code) continue;
            char spelling[2];
            size_t size = bpe_spell_byte((unsigned char)b, spelling);
            bpe->byte_ids[b] = (int32_t)bpe->spellings.count;
            bpe_add_token(bpe, spelling, size);
        }
}

// Returns the token spelled left + right. It may exist already, made from another pair; then it is the result of both
// merges.
static int32_t joined_token(Bpe *bpe, int32_t left, int32_t right) {
    Text spelling = {0};
    size_t size;
    const char *part = bytes_map_at(&bpe->spellings, (uint32_t)left, &size);
    text_add_bytes(&spelling, part, size);
    part = bytes_map_at(&bpe->spellings, (uint32_t)right, &size);
    text_add_bytes(&spelling, part, size);
    bpe_add_token(bpe, spelling.data, spelling.size);
    int32_t id = bpe_find(bpe, spelling.data, spelling.size);
    text_free(&spelling);
    return id;
}

static void merge_pair(Trainer *t, Queued best) {
    int32_t result = joined_token(t->bpe, best.left, best.right);
    bpe_add_merge(t->bpe, best.left, best.right, result);
    uint32_t *words =
        t->pairs[best.pair].words; // merging removes the pair, so its list does not grow meanwhile
    size_t num_words = t->pairs[best.pair].num_words;
    t->pairs[best.pair].words = NULL;
    t->pairs[best.pair].num_words = t->pairs[best.pair].capacity = 0;
    for (size_t i = 0; i < num_words; i++) {
        Word *w = &t->words[words[i]];
        if (!contains(w, best.left, best.right)) continue;
        uncount_word(t, words[i]);
        replace(w, best.left, best.right, result);
        count_word(t, words[i], result);
    }
    free(words);
    queue_touched(t);
}

static void trainer_open(Trainer *t, Bpe *bpe, const PieceCounts *counts) {
    *t = (Trainer){.bpe = bpe, .num_words = counts->pieces.count};
    size_t num_words = t->num_words, num_symbols = counts->pieces.pool_bytes;
    t->words = malloc((num_words + 1) * sizeof *t->words);
    t->symbols = malloc((num_symbols + 1) * sizeof *t->symbols);
    CHECK(t->words && t->symbols, "no memory to train on %zu distinct pieces", num_words);
    int32_t *at = t->symbols;
    for (uint32_t i = 0; i < t->num_words; i++) {
        size_t bytes;
        const char *piece = bytes_map_at(&counts->pieces, i, &bytes);
        t->words[i] = (Word){at, (int)bytes, counts->counts[i]};
        for (size_t k = 0; k < bytes; k++) *at++ = bpe->byte_ids[(unsigned char)piece[k]];
        count_word(t, i, ANY);
    }
    queue_touched(t);
}

static void trainer_close(Trainer *t) {
    for (uint32_t i = 0; i < t->map.count; i++) free(t->pairs[i].words);
    free(t->pairs);
    pair_map_free(&t->map);
    free(t->heap);
    free(t->touched);
    free(t->words);
    free(t->symbols);
}

void bpe_train(Bpe *bpe, const PieceCounts *counts, int vocab_size, bool (*tick)(void *self, int num_tokens),
               void *self) {
    add_bytes(bpe);
    Trainer trainer;
    trainer_open(&trainer, bpe, counts);
    Queued best;
    bool more = true;
    while (more && bpe->spellings.count < (uint32_t)vocab_size - 1 && most_frequent(&trainer, &best)) {
        merge_pair(&trainer, best);
        if (tick) more = tick(self, (int)bpe->spellings.count);
    }
    trainer_close(&trainer);
    bpe_add_literal(bpe, EOD_SPELLING, strlen(EOD_SPELLING));
}
