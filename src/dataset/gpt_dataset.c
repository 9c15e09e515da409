// Opens the datasets of a run and fills its batches with their samples.
#include "base/file.h"
#include "dataset/blend.h"
#include "dataset/dataset.h"
#include "dataset/gpt_index.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const IndexedDataset *data;
    IndexedDataset *owned; // the same dataset; NULL: it is borrowed
    IndexedDataset *mask;  // of conversations: 1 for a token that is trained; else NULL
    GptIndex index;
} Member;

struct GptDataset {
    Member *members;
    int num_members, seq_length;
    bool blended; // by `order`; false: there is one member
    BlendOrder order;
    int64_t num_samples; // of a blend; after those of the order it starts again
    Ranges skipped;      // samples that no batch reads
    bool conversations;  // a document is a sample, padded with `padding`
    int32_t padding;
};

// ---- One data set -----------------------------------------------------------------------------------------

static Status make_set(GptDataset **set, int num_members, int seq_length) {
    *set = calloc(1, sizeof **set);
    if (*set) (*set)->members = calloc((size_t)num_members, sizeof *(*set)->members);
    if (!*set || !(*set)->members) {
        free(*set);
        *set = NULL;
        return fail(ERR_OS, "no memory for a data set");
    }
    (*set)->num_members = num_members;
    (*set)->seq_length = seq_length;
    return OK;
}

static Status keep_or_close(GptDataset **set, Status status) {
    if (status == OK) return OK;
    gpt_dataset_close(*set);
    *set = NULL;
    return status;
}

Status gpt_dataset_open(GptDataset **set, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                        int seq_length, int seed) {
    TRY(make_set(set, 1, seq_length));
    GptIndexSpec spec = {
        .data = data, .range = range, .num_samples = num_samples, .seq_length = seq_length, .seed = seed};
    (*set)->members[0].data = data;
    return keep_or_close(set, gpt_index_open(&(*set)->members[0].index, &spec));
}

void gpt_dataset_close(GptDataset *set) {
    if (!set) return;
    if (set->blended) blend_order_close(&set->order);
    for (int k = 0; k < set->num_members; k++) {
        gpt_index_close(&set->members[k].index);
        indexed_dataset_close(set->members[k].owned);
        indexed_dataset_close(set->members[k].mask);
    }
    free(set->members);
    free(set);
}

// ---- From words -------------------------------------------------------------------------------------------

static Status open_range(const GptSource *source, int64_t num_sequences, SplitRange *range) {
    *range = (SplitRange){0, num_sequences};
    return source->split ? split_range(source->split, num_sequences, source->which, range) : OK;
}

static bool same_shape(const IndexedDataset *a, const IndexedDataset *b) {
    int64_t sequences = indexed_dataset_num_sequences(a), documents = indexed_dataset_num_documents(a);
    if (sequences != indexed_dataset_num_sequences(b) || documents != indexed_dataset_num_documents(b))
        return false;
    for (int64_t i = 0; i < sequences; i++)
        if (indexed_dataset_length(a, i) != indexed_dataset_length(b, i)) return false;
    for (int64_t i = 0; i < documents; i++)
        if (indexed_dataset_document(a, i) != indexed_dataset_document(b, i)) return false;
    return true;
}

static bool has_mask(const char *prefix, const char *ending) {
    Text name = {0};
    text_add(&name, "%s%s.idx", prefix, ending);
    bool there = file_exists(name.data);
    text_free(&name);
    return there;
}

static Status no_mask(const char *prefix, bool preferences) {
    bool other = has_mask(prefix, preferences ? LOSS_MASK : PREFERENCE_MASK);
    if (preferences)
        return fail(ERR_NO_INPUT,
                    "%s is no data set of preferences: there is no %s" PREFERENCE_MASK ".idx. %s", prefix,
                    prefix,
                    other ? "It is one of conversations, which --sft trains on"
                          : "`trireme prepare-chat --preferences` makes both");
    return fail(ERR_NO_INPUT, "%s is no data set of conversations: there is no %s" LOSS_MASK ".idx. %s",
                prefix, prefix,
                other ? "It is one of preferences, which --dpo trains on"
                      : "`trireme prepare-chat` makes both");
}

// Each sample is two sequences.
static Status check_pairs(const IndexedDataset *data) {
    for (int64_t d = 0; d < indexed_dataset_num_documents(data); d++) {
        int64_t count = indexed_dataset_document(data, d + 1) - indexed_dataset_document(data, d);
        if (count != 2)
            return fail(ERR_DATA,
                        "%s: sample %" PRId64 " is of %" PRId64
                        " conversations, not a pair: make it with `trireme prepare-chat --preferences`",
                        indexed_dataset_name(data), d, count);
    }
    return OK;
}

Status loss_mask_open(IndexedDataset **mask, const IndexedDataset *data, const char *prefix,
                      bool preferences) {
    Text name = {0};
    text_add(&name, "%s%s", prefix, preferences ? PREFERENCE_MASK : LOSS_MASK);
    Status status = indexed_dataset_open(mask, name.data, 2);
    if (status == ERR_NO_INPUT) status = no_mask(prefix, preferences);
    if (status == OK && !same_shape(data, *mask))
        status = fail(ERR_DATA,
                      "%s.idx has other sequences than %s.idx: they are of different runs of prepare-chat",
                      name.data, prefix);
    text_free(&name);
    return status == OK && preferences ? check_pairs(data) : status;
}

// Text of conversations is trained on by its mask.
static Status has_no_mask(const char *prefix) {
    bool pairs = has_mask(prefix, PREFERENCE_MASK);
    if (!pairs && !has_mask(prefix, LOSS_MASK)) return OK;
    if (pairs)
        return fail(
            ERR_CONFIG,
            "%s is a data set of preferences, as %s" PREFERENCE_MASK
            ".idx is beside it: add --dpo, which trains on pairs; to train on every token, rejected answers "
            "too, move the mask elsewhere",
            prefix, prefix);
    return fail(
        ERR_CONFIG,
        "%s is a data set of conversations, as %s" LOSS_MASK
        ".idx is beside it: add --sft, which trains on the answers alone; to train on every token, questions "
        "too, move the mask elsewhere",
        prefix, prefix);
}

// Opens the data of a member and its indices for so many samples. Without a prefix: the synthetic data.
static Status open_member(Member *member, const GptSource *source, const char *prefix, int64_t num_samples) {
    TRY(prefix ? indexed_dataset_open(&member->owned, prefix, source->vocab_size)
               : indexed_dataset_open_mock(&member->owned, source->vocab_size, source->eod));
    member->data = member->owned;
    if (source->conversations) TRY(loss_mask_open(&member->mask, member->data, prefix, source->preferences));
    if (!source->conversations && prefix) TRY(has_no_mask(prefix));
    GptIndexSpec spec = {.data = member->data,
                         .num_samples = num_samples,
                         .seq_length = source->seq_length,
                         .seed = source->seed,
                         .split = source->which,
                         .cache = source->cache,
                         .conversations = source->conversations};
    TRY(open_range(source,
                   source->conversations ? indexed_dataset_num_documents(member->data)
                                         : indexed_dataset_num_sequences(member->data),
                   &spec.range));
    return gpt_index_open(&member->index, &spec);
}

// The same for a member of a blend; the message of a failure names it.
static Status open_blended(GptDataset *set, int k, const GptSource *source, const char *prefix,
                           int64_t num_samples) {
    Status status = open_member(&set->members[k], source, prefix, num_samples);
    if (status == OK || set->num_members == 1) return status;
    char why[512];
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(status, "%s, data set %d of %d: %s", source->named, k + 1, set->num_members, why);
}

// Without weights the order has one epoch of each member, and its number of samples is its weight, as in
// Megatron-LM.
static Status open_by_size(GptDataset *set, const GptSource *source, const char *const *prefixes,
                           double *shares, int64_t *sizes) {
    int64_t all = 0, wanted = source->num_samples;
    for (int k = 0; k < set->num_members; k++) {
        TRY(open_blended(set, k, source, prefixes[k], 0));
        sizes[k] = set->members[k].index.num_samples;
        shares[k] = (double)sizes[k];
        all += sizes[k];
    }
    blend_normalize(shares, set->num_members);
    set->blended = true;
    set->num_samples = wanted ? wanted : all;
    return blend_order_open(&set->order, shares, sizes, set->num_members,
                            set->num_samples < all ? set->num_samples : all, source->which, source->cache);
}

// With weights each share is rounded up. A member has half a percent more samples than that, as in Megatron-LM, or
// the number that the order draws from it where that is more.
static Status open_by_weight(GptDataset *set, const GptSource *source, const char *const *prefixes,
                             double *shares, int64_t *drawn) {
    const double surplus = 1.005;
    int64_t size = 0;
    blend_normalize(shares, set->num_members);
    for (int k = 0; k < set->num_members; k++) size += blend_target(source->num_samples, shares[k]);
    double *again = malloc((size_t)set->num_members * sizeof *again);
    if (!again) return fail(ERR_OS, "no memory for a blend");
    for (int k = 0; k < set->num_members; k++) again[k] = shares[k];
    blend_normalize(again, set->num_members); // as Megatron-LM does, and it may change the last bit
    set->blended = true;
    set->num_samples = size;
    Status status =
        blend_order_open(&set->order, again, NULL, set->num_members, size, source->which, source->cache);
    free(again);
    TRY(status);
    for (int64_t i = 0; i < size; i++) drawn[set->order.member[i]]++;
    for (int k = 0; k < set->num_members; k++) {
        int64_t built = (int64_t)ceil((double)blend_target(source->num_samples, shares[k]) * surplus);
        TRY(open_blended(set, k, source, prefixes[k], built > drawn[k] ? built : drawn[k]));
    }
    return OK;
}

static Status open_words(GptDataset **set, const GptSource *source, const char **prefixes, double *weights,
                         int64_t *counts) {
    int count = blend_parse(source->words, source->num_words, source->named, prefixes, weights);
    if (count < 0) return ERR_CONFIG;
    TRY(make_set(set, count, source->seq_length));
    (*set)->conversations = source->conversations;
    (*set)->padding = source->eod < 0 ? 0 : source->eod;
    bool weighted = weights[0] > 0 && (count > 1 || source->split); // Megatron-LM blends a single one, too
    if (count == 1 && !weighted) return open_blended(*set, 0, source, prefixes[0], source->num_samples);
    return weighted ? open_by_weight(*set, source, prefixes, weights, counts)
                    : open_by_size(*set, source, prefixes, weights, counts);
}

static Status open_source(GptDataset **set, const GptSource *source) {
    if (!source->num_words) {
        TRY(make_set(set, 1, source->seq_length));
        return open_blended(*set, 0, source, NULL, source->num_samples);
    }
    size_t count = (size_t)source->num_words;
    const char **prefixes = calloc(count, sizeof *prefixes);
    double *weights = calloc(count, sizeof *weights);
    int64_t *counts = calloc(count, sizeof *counts);
    Status status = prefixes && weights && counts ? open_words(set, source, prefixes, weights, counts)
                                                  : fail(ERR_OS, "no memory for %zu words", count);
    free(prefixes);
    free(weights);
    free(counts);
    return status;
}

Status gpt_dataset_open_source(GptDataset **set, const GptSource *source) {
    *set = NULL;
    return keep_or_close(set, open_source(set, source));
}

int64_t gpt_dataset_num_samples(const GptDataset *set) {
    return set->blended ? set->num_samples : set->members[0].index.num_samples;
}

int64_t gpt_dataset_num_distinct(const GptDataset *set) {
    return set->blended ? set->order.size : set->members[0].index.num_samples;
}

int64_t gpt_dataset_num_epochs(const GptDataset *set) {
    int64_t most = 0;
    for (int k = 0; k < set->num_members; k++)
        if (set->members[k].index.num_epochs > most) most = set->members[k].index.num_epochs;
    return most;
}

int gpt_dataset_num_members(const GptDataset *set) { return set->num_members; }

const IndexedDataset *gpt_dataset_member(const GptDataset *set, int member, bool mask) {
    return mask ? set->members[member].mask : set->members[member].data;
}

// ---- Reading ----------------------------------------------------------------------------------------------

// A position in the documents of one member.
typedef struct {
    const Member *member;
    int number; // of the member
    int64_t position, offset, left;
    int64_t end; // position behind the sample
} Walk;

// Finds tokens [skip, skip + count) of sample i.
static Walk walk_sample(const GptDataset *set, int64_t i, int64_t skip, int64_t count) {
    int64_t size = gpt_dataset_num_samples(set);
    CHECK(i >= 0 && i < size, "sample %" PRId64 " of %" PRId64, i, size);
    i %= gpt_dataset_num_distinct(set);
    int k = set->blended ? set->order.member[i] : 0;
    int64_t own = set->blended ? set->order.sample[i] : i;
    const GptIndex *index = &set->members[k].index;
    CHECK(own < index->num_samples, "sample %" PRId64 " of the %" PRId64 " of member %d", own,
          index->num_samples, k);
    int64_t drawn = gpt_index_drawn(index, own);
    SampleStart start = gpt_index_start(index, drawn);
    int64_t end = set->conversations ? chat_index_end(index, drawn) : INT64_MAX;
    return (Walk){&set->members[k], k, start.position, start.offset + skip, count, end};
}

static bool walk_next(Walk *walk, SamplePiece *piece) {
    const GptIndex *index = &walk->member->index;
    for (; walk->left > 0 && walk->position < walk->end; walk->position++) {
        CHECK(walk->position < index->num_documents, "a sample walks past %" PRId64 " documents",
              index->num_documents);
        int32_t sequence = index->documents[walk->position];
        int64_t here = indexed_dataset_length(walk->member->data, sequence) - walk->offset;
        if (here <= 0) {
            walk->offset = -here;
            continue;
        }
        int64_t take = here < walk->left ? here : walk->left;
        *piece = (SamplePiece){walk->number, sequence, walk->offset, take};
        walk->offset = 0;
        walk->left -= take;
        walk->position++;
        return true;
    }
    return false;
}

// Copies tokens [skip, skip + count) of a sample to out[0], out[stride], and so on. A shorter sample is padded.
static Status gather(const GptDataset *set, int64_t sample, int64_t skip, int64_t count, int32_t *out,
                     size_t stride) {
    Walk walk = walk_sample(set, sample, skip, count);
    SamplePiece piece;
    for (; walk_next(&walk, &piece); out += (size_t)piece.count * stride)
        TRY(indexed_dataset_read(walk.member->data, piece.sequence, piece.offset, piece.count, out, stride));
    for (int64_t i = 0; i < walk.left; i++) out[(size_t)i * stride] = set->padding;
    return OK;
}

Status gpt_dataset_sample(const GptDataset *set, int64_t index, int32_t *tokens) {
    return gather(set, index, 0, set->seq_length + 1, tokens, 1);
}

int gpt_dataset_pieces(const GptDataset *set, int64_t index, SamplePiece *pieces, int most) {
    Walk walk = walk_sample(set, index, 0, set->seq_length + 1);
    SamplePiece piece;
    int count = 0;
    for (; walk_next(&walk, &piece); count++)
        if (count < most) pieces[count] = piece;
    return count;
}

void gpt_dataset_skip(GptDataset *set, const Ranges *skipped) { set->skipped = *skipped; }

// The sample that a batch reads as the one with so many before it.
static int64_t sample_at(const GptDataset *set, int64_t count) {
    if (!set->skipped.count) return count;
    return ranges_left(&set->skipped, count) % gpt_dataset_num_samples(set);
}

int64_t gpt_dataset_pair(const GptDataset *set, int64_t sample, int *member) {
    SamplePiece piece;
    Walk walk = walk_sample(set, sample_at(set, sample), 0, 1);
    CHECK(walk_next(&walk, &piece), "sample %" PRId64 " is empty", sample);
    *member = piece.member;
    return piece.sequence / 2;
}

Status batch_fill(const GptDataset *set, BatchPlace p, int32_t *tokens, int32_t *labels) {
    CHECK(p.micro_batch > 0 && p.leaf >= 0 && p.leaf < p.leaves && p.microbatch >= 0,
          "microbatch %d, leaf %d of %d", p.microbatch, p.leaf, p.leaves);
    int64_t first = p.consumed + ((int64_t)p.microbatch * p.leaves + p.leaf) * p.micro_batch;
    size_t stride = (size_t)p.micro_batch;
    for (int j = 0; j < p.micro_batch; j++) {
        int64_t sample = sample_at(set, first + j);
        if (tokens) TRY(gather(set, sample, 0, set->seq_length, tokens + j, stride));
        if (labels) TRY(gather(set, sample, 1, set->seq_length, labels + j, stride));
    }
    return OK;
}

// ---- Conversations ----------------------------------------------------------------------------------------

// Sets out[0], out[stride], ... to 1 where a token of the piece is trained, else to 0. The first token of a
// conversation never is: what is before it belongs to another.
static Status read_mask(const IndexedDataset *mask, SamplePiece piece, float *out, size_t stride) {
    enum { BLOCK = 1024 };
    int32_t values[BLOCK];
    for (int64_t at = 0, count; at < piece.count; at += count) {
        count = piece.count - at < BLOCK ? piece.count - at : BLOCK;
        TRY(indexed_dataset_read(mask, piece.sequence, piece.offset + at, count, values, 1));
        for (int64_t i = 0; i < count; i++)
            out[(size_t)(at + i) * stride] = piece.offset + at + i > 0 && values[i] ? 1.0F : 0.0F;
    }
    return OK;
}

// The same for the labels of a sample. Those behind it are not trained.
static Status gather_mask(const GptDataset *set, int64_t sample, float *out, size_t stride) {
    Walk walk = walk_sample(set, sample, 1, set->seq_length);
    for (SamplePiece piece; walk_next(&walk, &piece); out += (size_t)piece.count * stride)
        TRY(read_mask(walk.member->mask, piece, out, stride));
    for (int64_t i = 0; i < walk.left; i++) out[(size_t)i * stride] = 0;
    return OK;
}

Status batch_fill_mask(const GptDataset *set, BatchPlace p, float *mask) {
    int64_t first = p.consumed + ((int64_t)p.microbatch * p.leaves + p.leaf) * p.micro_batch;
    CHECK(set->conversations, "a loss mask of a set that has none");
    for (int j = 0; j < p.micro_batch; j++)
        TRY(gather_mask(set, sample_at(set, first + j), mask + j, (size_t)p.micro_batch));
    return OK;
}

void batch_fill_starts(const GptDataset *set, BatchPlace p, int32_t *starts) {
    int64_t first = p.consumed + ((int64_t)p.microbatch * p.leaves + p.leaf) * p.micro_batch;
    for (int j = 0; j < p.micro_batch; j++) {
        Walk walk = walk_sample(set, sample_at(set, first + j), 0, set->seq_length);
        int32_t *out = starts + j, at = 0, begin = 0;
        for (SamplePiece piece; walk_next(&walk, &piece); begin = at)
            for (int64_t i = 0; i < piece.count; i++) out[(size_t)at++ * (size_t)p.micro_batch] = begin;
        while (at < set->seq_length) out[(size_t)at++ * (size_t)p.micro_batch] = begin;
    }
}
