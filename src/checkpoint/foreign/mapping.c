// Which rows of our weights the tensors of Hugging Face and GGUF consist of, by the table of their names.
#include "checkpoint/foreign/mapping.h"
#include "nn/expert_loads.h"
#include "nn/layers.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- the table ----------------------------------------------------------------------------------------

// A row of tensor_names.def.
typedef struct {
    const char *ours;
    WeightPart part;
    unsigned names;
    const char *theirs[NUM_FORMATS];
    bool bare;
} Row;

#define ROW(ours, part, names, hugging_face, gguf)  {ours, part, names, {hugging_face, gguf}, false},
#define BARE(ours, part, names, hugging_face, gguf) {ours, part, names, {hugging_face, gguf}, true},
static const Row table[] = {
#include "checkpoint/foreign/tensor_names.def"
};
#undef ROW
#undef BARE

enum { NUM_ROWS = sizeof table / sizeof *table, MOST_STRIPS = 3 };

// The parts of one of our names.
typedef struct {
    char stem[96];
    const char *suffix; // "weight", "bias", ROUTER_BIAS, SHARED_GATE or SOFTMAX_OFFSET, inside the name
    int layer;          // -1: it is not part of a layer
} Name;

static Name take_apart(const WeightSpec *weight) {
    Name name = {.layer = -1};
    int begin = 0;
    if (sscanf(weight->name, "decoder.layers.%d.%n", &name.layer, &begin) != 1) name.layer = -1, begin = 0;
    const char *dot = strrchr(weight->name, '.');
    CHECK(dot && dot > weight->name + begin, "a weight named %s", weight->name);
    name.suffix = dot + 1;
    snprintf(name.stem, sizeof name.stem, "%.*s", (int)(dot - weight->name) - begin, weight->name + begin);
    return name;
}

bool weight_is_vector(const WeightSpec *weight) {
    const char *dot = strrchr(weight->name, '.');
    return !strcmp(dot, ".bias") || !strcmp(dot, "." ROUTER_BIAS) || !strcmp(dot, "." SOFTMAX_OFFSET) ||
           strstr(weight->name, "layernorm.");
}

Rect vector_rect(const WeightSpec *weight, Rect rect, int64_t i) {
    return (Rect){(rect.row + i) * weight->cols + rect.col, 0, rect.cols, 1};
}

static const char *suffix_of(const Row *row, Format format, const Name *ours) {
    if (row->bare && format == FORMAT_HUGGING_FACE) return !strcmp(ours->suffix, "bias") ? "_bias" : "";
    if (!strcmp(ours->suffix, "bias")) return ".bias";
    return !strcmp(ours->suffix, ROUTER_BIAS) ? ".e_score_correction_bias" : ".weight";
}

// Puts the numbers of the layer and of the expert in a name.
static void name_theirs(char out[96], const Row *row, Format format, const Name *ours, int expert) {
    const int numbers[] = {ours->layer, expert};
    const char *pattern = row->theirs[format];
    size_t size = 0;
    for (int n = 0; *pattern; n++) {
        const char *number = strstr(pattern, "%d");
        int before = (int)(number ? (size_t)(number - pattern) : strlen(pattern));
        size += (size_t)snprintf(out + size, 96 - size, "%.*s", before, pattern);
        pattern += before;
        if (number) size += (size_t)snprintf(out + size, 96 - size, "%d", numbers[n]), pattern += 2;
        CHECK(size < 96, "the name of a tensor of %s is too long", ours->stem);
    }
    snprintf(out + size, 96 - size, "%s", suffix_of(row, format, ours));
}

static bool is_of_experts(const Row *row) { return !strncmp(row->ours, "mlp.experts.", 12); }

// Whether each expert has a tensor of its own: its name has two numbers.
static bool are_experts_apart(const Row *row, Format format) {
    const char *layer = strstr(row->theirs[format], "%d");
    return layer && strstr(layer + 2, "%d");
}

// ---- making a mapping -----------------------------------------------------------------------------------

typedef struct {
    Mapping *mapping;
    const ModelShape *shape;
    const Family *family;
    Format format;
} Maker;

// Vectors of experts, a row each, follow each other as one column.
static int64_t weight_rows(const WeightSpec *w) { return weight_is_vector(w) ? w->rows * w->cols : w->rows; }

WeightStrip weight_strip(const ModelShape *s, WeightPart part, int64_t rows) {
    int64_t size = s->head_size, groups = model_groups(s), queries = s->heads / groups * size;
    int64_t block = queries + 2 * size;
    WeightStrip strip = {.part = part, .block = block, .groups = groups};
    switch (part) {
    case PART_QUERY: strip.per = queries; return strip;
    case PART_KEY: strip.at = queries, strip.per = size; return strip;
    case PART_VALUE: strip.at = queries + size, strip.per = size; return strip;
    case PART_GATE: return (WeightStrip){.part = part, .per = rows / 2, .block = rows, .groups = 1};
    case PART_UP:
        return (WeightStrip){.part = part, .at = rows / 2, .per = rows / 2, .block = rows, .groups = 1};
    default: return (WeightStrip){.part = part, .per = rows, .block = rows, .groups = 1};
    }
}

static TheirTensor *last_tensor(Mapping *m) {
    return m->num_tensors ? &m->tensors[m->num_tensors - 1] : NULL;
}

// Which rows of a tensor, `rows` of each matrix, are stored in another order.
static void find_order(const Maker *maker, WeightPart part, int64_t rows, TheirTensor *t) {
    const ModelShape *s = maker->shape;
    unsigned says = maker->family->says;
    if (part == PART_IN_TURN) t->permuted = rows;
    bool rotated = part == PART_QUERY || part == PART_KEY;
    if (maker->format == FORMAT_GGUF && says & PAIRS_IN_GGUF && rotated) t->permuted = s->head_size;
    if (!(says & PAIRS_IN_FILES) || (part != PART_ROTATED_LAST && part != PART_KEY_LAST)) return;
    t->plain = part == PART_KEY_LAST ? s->kv_rank : s->head_size - s->rotary_columns;
    t->permuted = t->plain + s->rotary_columns;
}

static TheirTensor *add_tensor(const Maker *maker, const char *name, const WeightSpec *ours, const Row *row) {
    Mapping *m = maker->mapping;
    TheirTensor *t = &m->tensors[m->num_tensors++];
    *t = (TheirTensor){.is_vector = weight_is_vector(ours), .strip = m->num_strips};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->cols = t->is_vector ? 1 : ours->cols;
    bool linear = !strncmp(row->ours, "self_attention.", 15) || !strncmp(row->ours, "mlp.", 4);
    bool hugging_face = maker->format == FORMAT_HUGGING_FACE, together = false;
    bool conv1d = hugging_face && maker->family->names == NAMES_GPT2 && linear;
    if (is_of_experts(row)) together = !are_experts_apart(row, maker->format);
    if (together) t->matrices = maker->shape->experts;
    t->transposed = t->is_vector || conv1d || (hugging_face && row->bare && together);
    find_order(maker, row->part, weight_rows(ours) / (together ? t->matrices : 1), t);
    // llama.cpp's norms scale by what is in the file.
    bool scales = strstr(ours->name, "layernorm.weight");
    if (maker->format == FORMAT_GGUF && maker->shape->norm_offset && scales) t->plus = 1;
    t->is_choice = strstr(ours->name, "." ROUTER_BIAS);
    t->is_fp32 = !strcmp(row->ours, "embedding.position_embeddings") || !strcmp(row->ours, "mlp.router") ||
                 !strcmp(row->ours, "mlp.shared_experts");
    return t;
}

// Adds rows of a weight: as a tensor, or as the next rows of the tensor that those before them began.
static void add_strip(const Maker *maker, const char *name, const Row *row, WeightStrip strip) {
    Mapping *m = maker->mapping;
    TheirTensor *t = last_tensor(m);
    if (!t || strcmp(t->name, name)) t = add_tensor(maker, name, &m->weights[strip.weight], row);
    strip.tensor = (int)(t - m->tensors);
    strip.first = t->rows;
    t->rows += strip.per * strip.groups;
    t->strips++;
    m->strips[m->num_strips++] = strip;
}

// Adds a part of a weight, or of the matrix of each expert, which follow each other in ours.
static void add_part(const Maker *maker, int weight, const Name *name, const Row *row) {
    const WeightSpec *ours = &maker->mapping->weights[weight];
    int experts = is_of_experts(row) ? maker->shape->experts : 1;
    bool apart = are_experts_apart(row, maker->format);
    int64_t all = weight_rows(ours), rows = all / experts;
    WeightStrip strip = weight_strip(maker->shape, row->part, rows);
    char theirs[96];
    strip.weight = weight;
    if (!apart) strip.groups *= experts;
    if (apart) strip.block = all;
    for (int e = 0; e < (apart ? experts : 1); e++, strip.at += rows) {
        name_theirs(theirs, row, maker->format, name, e);
        add_strip(maker, theirs, row, strip);
    }
}

// transformers' Llama has a bias of the projection whenever queries have one. Where our model has none, zeros are
// written; importing them again gives a model with this bias.
static void add_zeros(const Maker *maker, const Name *name) {
    Mapping *m = maker->mapping;
    const ModelShape *s = maker->shape;
    bool missing =
        model_has_qkv_bias(s) && !model_has_proj_bias(s) && !strcmp(name->stem, "self_attention.linear_proj");
    if (!missing || maker->format != FORMAT_HUGGING_FACE || !(maker->family->says & ADDS_ZERO_BIAS)) return;
    TheirTensor *t = &m->tensors[m->num_tensors++];
    *t = (TheirTensor){.rows = s->hidden, .cols = 1, .is_vector = true, .transposed = true};
    snprintf(t->name, sizeof t->name, "model.layers.%d.self_attn.o_proj.bias", name->layer);
}

// A tensor of divisors of the frequencies that `s` scales.
static Status add_divisors_of(Mapping *m, const char *name, const ModelShape *s) {
    ModelShape plain = *s;
    plain.rope = (Rope){0};
    TheirTensor *t = &m->tensors[m->num_tensors++];
    *t = (TheirTensor){.rows = model_rotary_columns(s) / 2, .cols = 1, .is_vector = true, .transposed = true};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->values = malloc((size_t)t->rows * sizeof *t->values);
    if (!t->values)
        return fail(ERR_OS, "no memory for the frequencies of %d columns", model_rotary_columns(s));
    for (int i = 0; i < t->rows; i++)
        t->values[i] =
            (float)(model_rotary_frequency(&plain, i, false) / model_rotary_frequency(s, i, false));
    return OK;
}

// llama.cpp stores Llama 3's scaling and LongRoPE as divisors of the frequencies of the rotation.
static Status add_divisors(const Maker *maker) {
    ModelShape s = *maker->shape;
    if (maker->format != FORMAT_GGUF) return OK;
    if (s.rope.kind == ROPE_LLAMA3) return add_divisors_of(maker->mapping, "rope_freqs.weight", &s);
    if (s.rope.kind != ROPE_LONG) return OK;
    s.sequence = s.rope.original + 1;
    TRY(add_divisors_of(maker->mapping, "rope_factors_long.weight", &s));
    s.sequence = s.rope.original;
    return add_divisors_of(maker->mapping, "rope_factors_short.weight", &s);
}

// Some families have a tensor for their output in GGUF even where it is tied.
static void add_tied_output(const Maker *maker) {
    const Mapping *m = maker->mapping;
    Name output = {.suffix = "weight", .layer = -1};
    if (maker->format != FORMAT_GGUF || !(maker->family->says & GGUF_COPIES_TABLE) || maker->shape->untied)
        return;
    for (int w = 0; w < m->num_weights; w++)
        if (!strcmp(m->weights[w].name, "embedding.word_embeddings.weight"))
            add_part(maker, w, &output, &table[NUM_ROWS - 1]);
}

static bool has_row(const Family *family, Format format, const Row *row) {
    return row->names & family->names && row->theirs[format];
}

bool mapping_has_experts_apart(const Family *family, Format format) {
    for (int r = 0; r < NUM_ROWS; r++)
        if (has_row(family, format, &table[r]) && are_experts_apart(&table[r], format)) return true;
    return false;
}

Status mapping_create(Mapping *m, const ModelShape *shape, const Family *family, Format format) {
    *m = (Mapping){0};
    Maker maker = {.mapping = m, .shape = shape, .family = family, .format = format};
    TRY(model_weights(shape, &m->weights, &m->num_weights));
    // 2 for the tied output and the divisors.
    size_t room = (size_t)m->num_weights * MOST_STRIPS + 2;
    if (mapping_has_experts_apart(family, format))
        room += (size_t)shape->layers * (size_t)shape->experts * MOST_STRIPS;
    m->tensors = calloc(room, sizeof *m->tensors);
    m->strips = calloc(room, sizeof *m->strips);
    if (!m->tensors || !m->strips) {
        mapping_destroy(m);
        return fail(ERR_OS, "no memory for the names of %zu tensors", room);
    }
    for (int w = 0; w < m->num_weights; w++) {
        Name name = take_apart(&m->weights[w]);
        int before = m->num_strips;
        for (int r = 0; r < NUM_ROWS; r++)
            if (has_row(family, format, &table[r]) && !strcmp(table[r].ours, name.stem))
                add_part(&maker, w, &name, &table[r]);
        if (m->num_strips == before) {
            Status status =
                fail(ERR_UNAVAILABLE,
                     "no format of other programs that trireme writes has a name for %s: the model stays in "
                     "trireme's checkpoints",
                     m->weights[w].name);
            mapping_destroy(m);
            return status;
        }
        add_zeros(&maker, &name);
    }
    add_tied_output(&maker);
    Status status = add_divisors(&maker);
    if (status != OK) mapping_destroy(m);
    return status;
}

void mapping_destroy(Mapping *m) {
    for (int i = 0; i < m->num_tensors; i++) free(m->tensors[i].values);
    free(m->weights);
    free(m->tensors);
    free(m->strips);
    *m = (Mapping){0};
}

int mapping_find(const Mapping *m, const char *weight) {
    for (int i = 0; i < m->num_weights; i++)
        if (!strcmp(m->weights[i].name, weight)) return i;
    CHECK(false, "the model has no weight %s", weight);
}

int64_t tensor_matrix_rows(const TheirTensor *t) { return t->matrices ? t->rows / t->matrices : t->rows; }

int tensor_shape(const TheirTensor *t, int64_t shape[3]) {
    int64_t rows = tensor_matrix_rows(t);
    int n = 0;
    if (t->matrices) shape[n++] = t->matrices;
    if (!t->is_vector && t->transposed) shape[n++] = t->cols;
    shape[n++] = rows;
    if (!t->is_vector && !t->transposed) shape[n++] = t->cols;
    return n;
}

// ---- rows of a strip --------------------------------------------------------------------------------------

int64_t strip_rows_before(const WeightStrip *s, int64_t row) {
    int64_t group = row / s->block, within = row % s->block - s->at;
    within = within < 0 ? 0 : within > s->per ? s->per : within;
    return group < s->groups ? group * s->per + within : s->groups * s->per;
}

int64_t strip_row(const WeightStrip *s, int64_t i) { return i / s->per * s->block + s->at + i % s->per; }

// ---- rows of a head in another order --------------------------------------------------------------------

int64_t tensor_row_stored(const TheirTensor *t, int64_t row) {
    if (!t->permuted) return row;
    int64_t i = row % t->permuted - t->plain, half = (t->permuted - t->plain) / 2;
    return i < 0 ? row : row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

int64_t tensor_row_ours(const TheirTensor *t, int64_t row) {
    if (!t->permuted) return row;
    int64_t i = row % t->permuted - t->plain, half = (t->permuted - t->plain) / 2;
    return i < 0 ? row : row - i + i % 2 * half + i / 2;
}
