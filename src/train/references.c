// The table of the reference model's log-probabilities, and its file: lines of text, values, a checksum of both.
#include "train/references.h"
#include "base/file.h"
#include "base/hash.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the table ----------------------------------------------------------------------------------

static Status take_places(References *r, const GptDataset *set, Split split) {
    if (!set) return OK;
    int members = gpt_dataset_num_members(set);
    r->first[split] = calloc((size_t)members, sizeof *r->first[split]);
    if (!r->first[split]) return fail(ERR_OS, "no memory for %d data sets", members);
    for (int k = 0; k < members; k++) {
        const IndexedDataset *data = gpt_dataset_member(set, k, false),
                             *mask = gpt_dataset_member(set, k, true);
        r->first[split][k] = r->count;
        r->count += indexed_dataset_num_documents(data);
        text_add(&r->data, "%s %016" PRIx64 " %016" PRIx64 " %" PRId64 "\n", split_name(split),
                 indexed_dataset_hash(data), indexed_dataset_hash(mask), indexed_dataset_num_documents(data));
    }
    return OK;
}

void references_forget(References *r) {
    for (int64_t i = 0; i < r->count; i++) r->values[i][CHOSEN] = r->values[i][REJECTED] = (double)NAN;
}

Status references_open(References *r, const GptDataset *train, const GptDataset *valid) {
    *r = (References){0};
    TRY(take_places(r, train, SPLIT_TRAIN));
    TRY(take_places(r, valid, SPLIT_VALID));
    r->values = malloc((size_t)r->count * sizeof *r->values + 1);
    if (!r->values) return fail(ERR_OS, "no memory for the references of %" PRId64 " pairs", r->count);
    references_forget(r);
    return OK;
}

void references_close(References *r) {
    for (int split = 0; split < NUM_SPLITS; split++) free(r->first[split]);
    free(r->values);
    text_free(&r->data);
    *r = (References){0};
}

int64_t references_place(const References *r, const GptDataset *set, Split split, int64_t sample) {
    int member;
    int64_t pair = gpt_dataset_pair(set, sample, &member);
    return r->first[split][member] + pair;
}

void references_fill(const References *r, const GptDataset *set, Split split, BatchPlace p,
                     double (*out)[NUM_ANSWERS]) {
    int64_t first = p.consumed + ((int64_t)p.microbatch * p.leaves + p.leaf) * p.micro_batch;
    for (int j = 0; j < p.micro_batch; j++) {
        const double *values = r->values[references_place(r, set, split, first + j)];
        CHECK(!r->complete || !isnan(values[CHOSEN]), "sample %" PRId64 " has no reference", first + j);
        memcpy(out[j], values, sizeof out[j]);
    }
}

// ---- the file ----------------------------------------------------------------------------------

static const char TITLE[] = "trireme reference log-probabilities, version 1\n";
enum { CHECKSUM_BYTES = sizeof(uint64_t), MAX_LINES_BYTES = 1 << 20 };

static size_t values_bytes(const References *r) { return (size_t)r->count * sizeof *r->values; }

static void add_lines(const References *r, const ReferenceModel *model, Text *out) {
    text_add(out, "%smodel %s\narithmetic %s\nweights %016" PRIx64 "\n%spairs %" PRId64 "\n", TITLE,
             model->model, model->arithmetic, model->weights, text_string(&r->data), r->count);
}

Status references_write(const References *r, const char *path, const ReferenceModel *model) {
    Text out = {0};
    add_lines(r, model, &out);
    text_add_bytes(&out, r->values, values_bytes(r));
    uint64_t sum = hash64_of(out.data, out.size);
    text_add_bytes(&out, &sum, sizeof sum);
    Status status = file_write(path, out.data, out.size);
    text_free(&out);
    return status;
}

// Copies the rest of a line that begins with `word`. Returns what follows it, or NULL.
static const char *take_line(const char *text, const char *word, char *out, size_t room) {
    size_t length = strlen(word);
    if (!text || strncmp(text, word, length) != 0) return NULL;
    const char *end = strchr(text + length, '\n');
    if (!end || (size_t)(end - text) - length >= room) return NULL;
    snprintf(out, room, "%.*s", (int)((size_t)(end - text) - length), text + length);
    return end + 1;
}

static bool is_whole(const char *data, size_t size) {
    uint64_t sum;
    if (size < sizeof TITLE - 1 + CHECKSUM_BYTES || memcmp(data, TITLE, sizeof TITLE - 1) != 0) return false;
    memcpy(&sum, data + size - CHECKSUM_BYTES, sizeof sum);
    return hash64_of(data, size - CHECKSUM_BYTES) == sum;
}

// The file is whole, so its lines are what a run has written; they may be of other data.
static bool take_values(References *r, const char *data, size_t size, ReferenceModel *model) {
    char weights[32];
    Text lines = {0};
    const char *rest = data + sizeof TITLE - 1;
    rest = take_line(rest, "model ", model->model, sizeof model->model);
    rest = take_line(rest, "arithmetic ", model->arithmetic, sizeof model->arithmetic);
    rest = take_line(rest, "weights ", weights, sizeof weights);
    if (!rest) return false;
    model->weights = strtoull(weights, NULL, 16);
    add_lines(r, model, &lines);
    bool same =
        size == lines.size + values_bytes(r) + CHECKSUM_BYTES && !memcmp(data, lines.data, lines.size);
    if (same) memcpy(r->values, data + lines.size, values_bytes(r));
    text_free(&lines);
    return same;
}

Status references_read(References *r, const char *path, ReferenceModel *model, bool *found, Text *note) {
    char *data;
    size_t size;
    *found = false;
    if (!file_exists(path)) return OK;
    TRY(file_read(path, MAX_LINES_BYTES + values_bytes(r) + CHECKSUM_BYTES, &data, &size));
    bool whole = is_whole(data, size);
    *found = whole && take_values(r, data, size, model);
    free(data);
    if (*found) return OK;
    *model = (ReferenceModel){0};
    text_add(note, "%s is %s: it is not used, and written again", path,
             whole ? "of other data sets than this run's" : "damaged");
    return OK;
}
