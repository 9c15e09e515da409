// Opens a GGUF file as a model and reads its weights.
#include "checkpoint/foreign/gguf_model.h"
#include "base/hash.h"
#include "checkpoint/foreign/gguf_tokenizer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct GgufModel {
    Gguf *file;
    CheckpointInfo info;
    Mapping mapping;
    const GgufTensor **found; // of mapping.tensors; NULL: the copy of a table, which files need not have
};

// ---- finding the tensors ---------------------------------------------------------------------------------

static int compare_names(const void *a, const void *b) {
    const GgufTensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

// The file's tensors by name.
typedef struct {
    const GgufTensor **items;
    bool *used;
    size_t count;
} Sorted;

static Status sort_tensors(const Gguf *file, Sorted *sorted) {
    sorted->count = (size_t)file->num_tensors;
    sorted->items = malloc((sorted->count + 1) * sizeof *sorted->items);
    sorted->used = calloc(sorted->count + 1, sizeof *sorted->used);
    if (!sorted->items || !sorted->used)
        return fail(ERR_OS, "no memory for %zu tensors of %s", sorted->count, file->path);
    for (size_t i = 0; i < sorted->count; i++) sorted->items[i] = &file->tensors[i];
    qsort(sorted->items, sorted->count, sizeof *sorted->items, compare_names);
    return OK;
}

static const GgufTensor *take_named(Sorted *sorted, const char *name) {
    GgufTensor wanted;
    const GgufTensor *key = &wanted;
    if (strlen(name) >= sizeof wanted.name) return NULL;
    snprintf(wanted.name, sizeof wanted.name, "%s", name);
    const GgufTensor **at = bsearch(&key, sorted->items, sorted->count, sizeof *sorted->items, compare_names);
    if (!at) return NULL;
    sorted->used[at - sorted->items] = true;
    return *at;
}

static Status check_found(const GgufModel *m, const TheirTensor *theirs, const GgufTensor *t) {
    bool copy = !m->info.shape.untied && !strcmp(theirs->name, "output.weight");
    if (!t && copy) return OK;
    if (!t) return fail(ERR_DATA, "%s: tensor %s is missing", m->file->path, theirs->name);
    int64_t shape[3];
    int ndim = tensor_shape(theirs, shape);
    bool fits = t->ndim == ndim;
    for (int i = 0; fits && i < ndim; i++) fits = t->dims[i] == shape[ndim - 1 - i];
    if (fits) return OK;
    Text wanted = {0};
    for (int i = ndim; i-- > 0;) text_add(&wanted, "%" PRId64 "%s", shape[i], i ? ", " : "");
    Status status = fail(ERR_DATA, "%s: tensor %s is not [%s]", m->file->path, t->name, text_string(&wanted));
    text_free(&wanted);
    return status;
}

// gguf_shape has found a scaling for the divisors, if it is not that there is none.
static Status check_all_used(const GgufModel *m, const Sorted *sorted) {
    for (size_t i = 0; i < sorted->count; i++)
        if (!sorted->used[i] && strcmp(sorted->items[i]->name, "rope_freqs.weight") != 0)
            return fail(ERR_DATA, "%s: tensor %s is not a weight of the model that its keys describe",
                        m->file->path, sorted->items[i]->name);
    return OK;
}

static Status find_all(GgufModel *m, Sorted *sorted) {
    TRY(sort_tensors(m->file, sorted));
    for (int i = 0; i < m->mapping.num_tensors; i++) {
        m->found[i] = take_named(sorted, m->mapping.tensors[i].name);
        TRY(check_found(m, &m->mapping.tensors[i], m->found[i]));
    }
    return check_all_used(m, sorted);
}

static Status find_tensors(GgufModel *m) {
    Sorted sorted = {0};
    m->found = calloc((size_t)m->mapping.num_tensors + 1, sizeof(const GgufTensor *));
    if (!m->found) return fail(ERR_OS, "no memory for %d tensors", m->mapping.num_tensors);
    Status status = find_all(m, &sorted);
    free(sorted.items);
    free(sorted.used);
    return status;
}

// ---- opening ---------------------------------------------------------------------------------------------

// The type of most of its elements; quantised ones are fp32 once they are read.
static const char *dtype_of(const Gguf *file) {
    const GgufTensor *t = gguf_tensor(file, "blk.0.ffn_down.weight");
    if (!t) t = gguf_tensor(file, "blk.0.ffn_down_exps.weight");
    return t && t->type == GGML_F16 ? "f16" : t && t->type == GGML_BF16 ? "bf16" : "f32";
}

static bool find_token(const Gguf *file, const char *key, int *id) {
    int64_t number;
    if (!gguf_int(gguf_find(file, key), &number) || number < 0 || number > INT32_MAX) return false;
    *id = (int)number;
    return true;
}

// llama.cpp has a key for each of several tokens that end a text.
static void read_tokens(const Gguf *file, ModelTokens *tokens) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        tokens->num_ends += find_token(file, ends[i], &tokens->ends[tokens->num_ends]);
    tokens->says_ends = tokens->num_ends > 0;
    tokens->says_begin = find_token(file, "tokenizer.ggml.bos_token_id", &tokens->begin);
    tokens->says_pad = find_token(file, "tokenizer.ggml.padding_token_id", &tokens->pad);
}

static Status open_model(GgufModel *m, const char *path) {
    const Family *family;
    TRY(gguf_open(&m->file, path));
    m->info = (CheckpointInfo){
        .grid = GRID(1, 1, 1), .num_chunks = 1, .program = "llama.cpp", .dtype = dtype_of(m->file)};
    TRY(gguf_shape(m->file, &m->info.shape, &family));
    read_tokens(m->file, &m->info.tokens);
    // Checked before anything is allocated for each layer.
    if (m->info.shape.layers > m->file->num_tensors)
        return fail(ERR_DATA, "%s: %d layers, %" PRId64 " tensors", path, m->info.shape.layers,
                    m->file->num_tensors);
    TRY(mapping_create(&m->mapping, &m->info.shape, family, FORMAT_GGUF));
    return find_tensors(m);
}

Status gguf_model_open(GgufModel **model, const char *path) {
    GgufModel *m = *model = calloc(1, sizeof *m);
    CHECK(m, "no memory for a model");
    Status status = open_model(m, path);
    if (status == OK) return OK;
    gguf_model_close(m);
    *model = NULL;
    return status;
}

void gguf_model_close(GgufModel *m) {
    if (!m) return;
    mapping_destroy(&m->mapping);
    gguf_close(m->file);
    free(m->found);
    free(m);
}

const CheckpointInfo *gguf_model_info(const GgufModel *m) { return &m->info; }

GgufString gguf_model_template(const GgufModel *m) {
    const GgufPair *pair = gguf_find(m->file, "tokenizer.chat_template");
    bool is_text = pair && !pair->is_array && pair->type == GGUF_STRING;
    return is_text ? pair->text[0] : (GgufString){0};
}

Status gguf_model_tokenizer(const GgufModel *m, Tokenizer **tokenizer) {
    return gguf_read_tokenizer(m->file, tokenizer);
}

const char *gguf_model_tensor_at(const GgufModel *m, const char *name, int64_t row, int64_t col) {
    return mapping_tensor_at(&m->mapping, name, row, col);
}

uint64_t gguf_model_hash(const GgufModel *m) {
    return hash64_of(m->file->map, (size_t)m->file->tensors[0].offset);
}

// ---- reading ---------------------------------------------------------------------------------------------

// Reads the part of a rectangle of ours that one strip holds.
static void read_strip(const GgufModel *m, const WeightStrip *s, Rect rect, float *out, int64_t stride) {
    const TheirTensor *theirs = &m->mapping.tensors[s->tensor];
    int64_t begin = strip_rows_before(s, rect.row), end = strip_rows_before(s, rect.row + rect.rows);
    for (int64_t i = begin; m->found[s->tensor] && i < end; i++) {
        int64_t row = s->first + tensor_row_stored(theirs, i);
        float *to = out + (strip_row(s, i) - rect.row) * stride;
        gguf_read(m->file, m->found[s->tensor], row * theirs->cols + rect.col, rect.cols, to);
        for (int64_t c = 0; theirs->plus != 0 && c < rect.cols; c++) to[c] -= theirs->plus;
    }
}

static void read_rect(const GgufModel *m, int weight, Rect rect, float *out, int64_t stride) {
    for (int i = 0; i < m->mapping.num_strips; i++)
        if (m->mapping.strips[i].weight == weight) read_strip(m, &m->mapping.strips[i], rect, out, stride);
}

Status gguf_model_read(const GgufModel *m, const char *name, Rect rect, float *out, int64_t stride) {
    int weight = mapping_find(&m->mapping, name);
    const WeightSpec *spec = &m->mapping.weights[weight];
    CHECK(rect.row >= 0 && rect.col >= 0 && rect.row + rect.rows <= spec->rows &&
              rect.col + rect.cols <= spec->cols,
          "a rectangle outside %s", name);
    if (!weight_is_vector(spec)) read_rect(m, weight, rect, out, stride);
    for (int64_t i = 0; weight_is_vector(spec) && i < rect.rows; i++)
        read_rect(m, weight, vector_rect(spec, rect, i), out + i * stride, 1);
    return OK;
}
