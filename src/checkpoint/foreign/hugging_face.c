// Reads the weights of a Hugging Face folder.
#include "checkpoint/foreign/hugging_face.h"
#include "base/file.h"
#include "checkpoint/foreign/stored_tensor.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 1 << 20, MAX_INDEX = 100 << 20, MAX_FILES = 4096 };

struct HuggingFace {
    char *folder;
    CheckpointInfo info;
    const Family *family;
    Mapping mapping;
    StoredTensor *found; // of mapping.tensors
    Safetensors **files;
    int num_files;
    Json *index; // of several files: "weight_map"; else NULL
    bool bare;   // names do not begin with the "transformer." of the language model
};

static Status path_of(const HuggingFace *m, const char *name, char path[4096]) {
    int size = snprintf(path, 4096, "%s/%s", m->folder, name);
    return size < 4096 ? OK : fail(ERR_NO_INPUT, "%s: the name is too long", m->folder);
}

static Status read_json(const HuggingFace *m, const char *name, size_t most, Json **root) {
    char path[4096], *text;
    size_t size;
    TRY(path_of(m, name, path));
    TRY(file_read(path, most, &text, &size));
    Status status = json_parse(root, text, size, path);
    free(text);
    return status;
}

// ---- files and tensors ------------------------------------------------------------------------------

static Status open_file(HuggingFace *m, const char *name) {
    char path[4096];
    TRY(path_of(m, name, path));
    for (int i = 0; i < m->num_files; i++)
        if (!strcmp(m->files[i]->path, path)) return OK;
    if (m->num_files == MAX_FILES) return fail(ERR_DATA, "%s: more than %d files", m->folder, MAX_FILES);
    TRY(safetensors_open(&m->files[m->num_files], path));
    m->num_files++;
    return OK;
}

static Status open_index(HuggingFace *m) {
    TRY(read_json(m, "model.safetensors.index.json", MAX_INDEX, &m->index));
    const Json *map = json_member(m->index, "weight_map");
    if (!map || map->type != JSON_OBJECT)
        return fail(ERR_DATA, "%s/model.safetensors.index.json: no object \"weight_map\"", m->folder);
    for (size_t i = 0; i < map->count; i++) {
        const char *file = json_string(&map->items[i]);
        if (!file || strchr(file, '/') || !*file || *file == '.')
            return fail(ERR_DATA, "%s/model.safetensors.index.json: byte %" PRId64 ": not a file's name",
                        m->folder, map->items[i].offset);
        TRY(open_file(m, file));
    }
    return OK;
}

static bool has(const HuggingFace *m, const char *name) {
    char path[4096];
    return path_of(m, name, path) == OK && file_exists(path);
}

static Status open_files(HuggingFace *m) {
    m->files = calloc(MAX_FILES, sizeof *m->files);
    if (!m->files) return fail(ERR_OS, "no memory for %d files", MAX_FILES);
    if (has(m, "model.safetensors.index.json")) return open_index(m);
    if (has(m, "model.safetensors")) return open_file(m, "model.safetensors");
    if (has(m, "pytorch_model.bin") || has(m, "pytorch_model.bin.index.json"))
        return fail(
            ERR_UNAVAILABLE,
            "%s has pytorch_model.bin, a pickle, which can run any program; only safetensors are read. This "
            "writes them beside it: python3 -c \"from transformers import AutoModelForCausalLM as M; "
            "M.from_pretrained('%s', torch_dtype='auto').save_pretrained('%s')\"",
            m->folder, m->folder, m->folder);
    return fail(ERR_NO_INPUT, "%s has neither model.safetensors nor model.safetensors.index.json", m->folder);
}

static StoredTensor find(const HuggingFace *m, const char *name) {
    const char *prefix = "transformer.";
    if (m->bare && !strncmp(name, prefix, strlen(prefix))) name += strlen(prefix);
    return stored_tensor_find(m->files, m->num_files, name);
}

static int64_t num_tensors(const HuggingFace *m) {
    int64_t count = 0;
    for (int i = 0; i < m->num_files; i++) count += m->files[i]->count;
    return count;
}

// ---- tensors that are not weights ------------------------------------------------------------------

static bool ends_with(const char *name, const char *ending) {
    size_t size = strlen(name), tail = strlen(ending);
    return size >= tail && !strcmp(name + size - tail, ending);
}

// Constants that older versions stored, and the head's copy of the table that it is tied to.
static bool is_spare(const HuggingFace *m, const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
           ends_with(name, ".rotary_emb.inv_freq") || ends_with(name, ".attention.bias") ||
           ends_with(name, ".attention.masked_bias") ||
           (!m->info.shape.untied && (!strcmp(name, "lm_head.weight") || !strcmp(name, "embed_out.weight")));
}

static int compare_pointers(const void *a, const void *b) {
    const SafeTensor *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

// Refuses tensors that no weight uses: with them the model would differ from its configuration.
static Status check_all_used(const HuggingFace *m) {
    int n = m->mapping.num_tensors;
    const SafeTensor **used = malloc((2 * (size_t)n + 1) * sizeof *used);
    if (!used) return fail(ERR_OS, "no memory for %d tensors", n);
    for (int i = 0; i < n; i++) used[2 * i] = m->found[i].tensor, used[2 * i + 1] = m->found[i].scales;
    qsort(used, 2 * (size_t)n, sizeof *used, compare_pointers);
    Status status = OK;
    for (int f = 0; f < m->num_files; f++)
        for (int i = 0; status == OK && i < m->files[f]->count; i++) {
            const SafeTensor *t = &m->files[f]->tensors[i];
            if (is_spare(m, t->name) || bsearch(&t, used, 2 * (size_t)n, sizeof *used, compare_pointers))
                continue;
            status = fail(ERR_DATA, "%s: tensor %.200s is not a weight of the model in %s/config.json",
                          m->files[f]->path, t->name, m->folder);
        }
    free(used);
    return status;
}

static Status find_tensors(HuggingFace *m) {
    const Mapping *map = &m->mapping;
    m->found = calloc((size_t)map->num_tensors + 1, sizeof *m->found);
    if (!m->found) return fail(ERR_OS, "no memory for %d tensors", map->num_tensors);
    m->bare = !find(m, "transformer.wte.weight").tensor;
    for (int i = 0; i < map->num_tensors; i++) {
        m->found[i] = find(m, map->tensors[i].name);
        TRY(stored_tensor_check(&m->found[i], &map->tensors[i], m->folder));
    }
    return check_all_used(m);
}

// ---- opening ------------------------------------------------------------------------------------------

static Status read_config(HuggingFace *m) {
    char path[4096];
    Json *root;
    TRY(path_of(m, "config.json", path));
    TRY(read_json(m, "config.json", MAX_CONFIG, &root));
    m->info = (CheckpointInfo){.grid = GRID(1, 1, 1), .num_chunks = 1, .program = "transformers"};
    Status status = config_read(root, path, &m->info, &m->family);
    json_free(root);
    return status;
}

// The least that layers with experts have where each expert has its own: one.
static int64_t tensors_of_experts(const ModelShape *s, const Family *f) {
    int64_t count = 0;
    if (!mapping_has_experts_apart(f, FORMAT_HUGGING_FACE)) return 0;
    for (int layer = 0; layer < s->layers; layer++)
        if (model_layer_has_experts(s, layer)) count += s->experts;
    return count;
}

static Status open_model(HuggingFace *m) {
    TRY(read_config(m));
    TRY(open_files(m));
    // Checked before anything is allocated for each layer.
    const ModelShape *s = &m->info.shape;
    if (s->layers > num_tensors(m) || tensors_of_experts(s, m->family) > num_tensors(m))
        return fail(ERR_DATA, "%s: %d layers%s in config.json, %" PRId64 " tensors", m->folder, s->layers,
                    s->experts ? " with experts" : "", num_tensors(m));
    TRY(mapping_create(&m->mapping, &m->info.shape, m->family, FORMAT_HUGGING_FACE));
    return find_tensors(m);
}

Status hugging_face_open(HuggingFace **model, const char *folder) {
    HuggingFace *m = *model = calloc(1, sizeof *m);
    CHECK(m, "no memory for a model");
    m->folder = strdup(folder);
    CHECK(m->folder, "no memory for a path");
    Status status = open_model(m);
    if (status == OK) return OK;
    hugging_face_close(m);
    *model = NULL;
    return status;
}

void hugging_face_close(HuggingFace *m) {
    if (!m) return;
    for (int i = 0; i < m->num_files; i++) safetensors_close(m->files[i]);
    mapping_destroy(&m->mapping);
    json_free(m->index);
    free(m->files);
    free(m->found);
    free(m->folder);
    free(m);
}

const CheckpointInfo *hugging_face_info(const HuggingFace *m) { return &m->info; }

const char *hugging_face_tensor_at(const HuggingFace *m, const char *name, int64_t row, int64_t col) {
    return mapping_tensor_at(&m->mapping, name, row, col);
}

void hugging_face_note(const HuggingFace *m, Text *out) {
    int packed = 0;
    for (int i = 0; i < m->mapping.num_tensors; i++) packed += m->found[i].scales != NULL;
    if (packed)
        text_add(
            out,
            "%s: %d tensors are in MXFP4, 4 bits an element: they are read as the numbers that these stand "
            "for, and written in 16 bits or 32, never in MXFP4 again\n",
            m->folder, packed);
}

// ---- reading ------------------------------------------------------------------------------------------

// Reads the part of a rectangle of ours that one strip holds: its rows [begin, end).
typedef struct {
    const WeightStrip *strip;
    const TheirTensor *theirs;
    const StoredTensor *found;
    int64_t begin, end;
    Rect rect;
    float *out;
    int64_t stride;
} Piece;

static float *place(const Piece *p, int64_t i) {
    return p->out + (strip_row(p->strip, i) - p->rect.row) * p->stride;
}

static Status read_rows(const Piece *p) {
    for (int64_t i = p->begin; i < p->end; i++) {
        int64_t row = p->strip->first + tensor_row_stored(p->theirs, i),
                first = row * p->theirs->cols + p->rect.col;
        TRY(stored_tensor_read(p->found, first, p->rect.cols, place(p, i)));
    }
    return OK;
}

enum { COLUMNS = 16, ROWS = 1024 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Reads some rows, all of one matrix, of some columns from `col` of the rectangle on. In its lines they are each
// element, or where gate and up are in turn every second one.
static Status read_block(const Piece *p, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    float lines[COLUMNS][ROWS];
    const TheirTensor *t = p->theirs;
    int64_t height = tensor_matrix_rows(t), step = t->permuted ? 2 : 1;
    int64_t at = p->strip->first + tensor_row_stored(t, row), matrix = at / height * height;
    for (int64_t c = 0; c < cols; c++) {
        int64_t first = matrix * t->cols + (p->rect.col + col + c) * height + at % height;
        TRY(stored_tensor_read(p->found, first, (rows - 1) * step + 1, lines[c]));
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) place(p, row + r)[col + c] = lines[c][r * step];
    return OK;
}

// Lines of the file are our columns. It reads some at a time, so that neighbours are written together.
static Status read_columns(const Piece *p) {
    const TheirTensor *t = p->theirs;
    CHECK(!t->permuted || t->permuted == tensor_matrix_rows(t), "%s: rows of heads in lines", t->name);
    int64_t whole = t->permuted ? t->permuted / 2 : tensor_matrix_rows(t),
            most = t->permuted ? ROWS / 2 : ROWS;
    for (int64_t row = p->begin, rows; row < p->end; row += rows) {
        rows = least(least(p->end - row, most), whole - (p->strip->first + row) % whole);
        for (int64_t col = 0; col < p->rect.cols; col += COLUMNS)
            TRY(read_block(p, row, rows, col, least(p->rect.cols - col, COLUMNS)));
    }
    return OK;
}

static Status read_rect(const HuggingFace *m, int weight, Rect rect, float *out, int64_t stride) {
    const Mapping *map = &m->mapping;
    for (int i = 0; i < map->num_strips; i++) {
        const WeightStrip *s = &map->strips[i];
        if (s->weight != weight) continue;
        Piece piece = {.strip = s,
                       .theirs = &map->tensors[s->tensor],
                       .found = &m->found[s->tensor],
                       .begin = strip_rows_before(s, rect.row),
                       .end = strip_rows_before(s, rect.row + rect.rows),
                       .rect = rect,
                       .out = out,
                       .stride = stride};
        bool columns = stored_tensor_is_transposed(piece.found, piece.theirs);
        TRY(columns ? read_columns(&piece) : read_rows(&piece));
    }
    return OK;
}

Status hugging_face_read(const HuggingFace *m, const char *name, Rect rect, float *out, int64_t stride) {
    const Mapping *map = &m->mapping;
    int weight = mapping_find(map, name);
    const WeightSpec *spec = &map->weights[weight];
    CHECK(rect.row >= 0 && rect.col >= 0 && rect.row + rect.rows <= spec->rows &&
              rect.col + rect.cols <= spec->cols,
          "a rectangle outside %s", name);
    if (!weight_is_vector(spec)) return read_rect(m, weight, rect, out, stride);
    for (int64_t i = 0; i < rect.rows; i++)
        TRY(read_rect(m, weight, vector_rect(spec, rect, i), out + i * stride, 1));
    return OK;
}
