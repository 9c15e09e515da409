// Reads a manifest or a rank's record, and checks every entry.
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- growing ------------------------------------------------------------------------------------

static size_t room_for(size_t count) {
    size_t room = 8;
    while (room < count) room *= 2;
    return room;
}

// The capacity of an array of `count` items is the next power of two. Running out of memory is a CHECK.
static void *grow(void *items, size_t size, int count, size_t more) {
    size_t need = room_for((size_t)count + more);
    if (items && need == room_for((size_t)count)) return items;
    items = realloc(items, need * size);
    CHECK(items, "no memory for %zu entries of a manifest", need);
    return items;
}

void manifest_free(Manifest *m) {
    for (int i = 0; i < m->num_roots; i++) json_free(m->roots[i]);
    free(m->roots);
    free(m->files);
    free(m->slices);
    free(m->others);
    free(m->tensors);
    *m = (Manifest){0};
}

void manifest_add_other(Manifest *m, OtherFile file) {
    m->others = grow(m->others, sizeof *m->others, m->num_others, 1);
    m->others[m->num_others++] = file;
}

// ---- reading tables -----------------------------------------------------------------------------

static Status bad(const Json *object, const char *what, const char *name, const char *why) {
    return fail(ERR_DATA, "%s: byte %" PRId64 ": \"%s\" %s", what, object ? object->offset : 0, name, why);
}

static Status read_int(const Json *object, const char *what, const char *name, int64_t least, int64_t most,
                       int64_t *out) {
    if (json_int(json_member(object, name), out) && *out >= least && *out <= most) return OK;
    return bad(object, what, name, "is missing or no number that it can be");
}

// Reads exactly this number of lower-case hexadecimal digits, most significant first.
static bool read_hex(const char *string, size_t digits, Hash *out) {
    *out = (Hash){0};
    if (!string || strlen(string) != digits || strspn(string, "0123456789abcdef") != digits) return false;
    for (size_t i = 0; i < digits; i++) {
        uint64_t digit = (uint64_t)(string[i] <= '9' ? string[i] - '0' : string[i] - 'a' + 10);
        out->high = out->high << 4 | out->low >> 60;
        out->low = out->low << 4 | digit;
    }
    return true;
}

static Status read_hash(const Json *object, const char *what, const char *name, size_t digits, Hash *out) {
    if (read_hex(json_string(json_member(object, name)), digits, out)) return OK;
    return bad(object, what, name, "is missing or no checksum");
}

// Accepts only the name of a file in the folder, no path.
static Status read_file_name(const Json *object, const char *what, const char **out) {
    *out = json_string(json_member(object, "name"));
    if (!*out || !**out || **out == '.' || strchr(*out, '/') || strlen(*out) > MAX_NAME)
        return bad(object, what, "name", "is missing or no name of a file here");
    return OK;
}

static Status read_array(const Json *object, const char *what, const char *name, const Json **out) {
    *out = json_member(object, name);
    if (*out && (*out)->type == JSON_ARRAY && (*out)->count < INT32_MAX / 2) return OK;
    return bad(object, what, name, "is missing or no list");
}

static Status read_pair(const Json *object, const char *what, const char *name, int64_t out[2]) {
    const Json *pair = NULL;
    TRY(read_array(object, what, name, &pair));
    if (pair->count == 2 && json_int(&pair->items[0], &out[0]) && json_int(&pair->items[1], &out[1]))
        return OK;
    return bad(object, what, name, "is not two whole numbers");
}

static Status add_file(Manifest *m, const Json *entry, const char *what) {
    ShardFile file = {0};
    Hash hash;
    TRY(read_file_name(entry, what, &file.name));
    TRY(read_int(entry, what, "bytes", 8, INT64_MAX, &file.bytes));
    TRY(read_int(entry, what, "header_bytes", 8, file.bytes, &file.header_bytes));
    TRY(read_hash(entry, what, "header_xxh3_64", 16, &hash));
    file.header_hash = hash.low;
    m->files = grow(m->files, sizeof *m->files, m->num_files, 1);
    m->files[m->num_files++] = file;
    return OK;
}

static bool rect_inside(Rect r, int64_t rows, int64_t cols) {
    return r.row >= 0 && r.col >= 0 && r.rows > 0 && r.cols > 0 && r.rows <= rows - r.row &&
           r.cols <= cols - r.col;
}

// `slice` has the tensor's name and sizes. The numbers of files count from `first_file` on.
static Status add_slice(Manifest *m, SliceEntry slice, const Json *entry, int first_file, const char *what) {
    int64_t at[2], shape[2], file;
    TRY(read_int(entry, what, "file", 0, m->num_files - first_file - 1, &file));
    TRY(read_pair(entry, what, "at", at));
    TRY(read_pair(entry, what, "shape", shape));
    TRY(read_hash(entry, what, "xxh3_128", 32, &slice.hash));
    slice.file = first_file + (int)file;
    slice.rect = (Rect){at[0], at[1], shape[0], shape[1]};
    if (!rect_inside(slice.rect, slice.rows, slice.cols))
        return bad(entry, what, slice.tensor, "has a slice that is not within it");
    m->slices[m->num_slices++] = slice;
    return OK;
}

static Status add_tensor(Manifest *m, const Json *entry, int first_file, const char *what) {
    int64_t shape[2], bytes;
    const char *name = json_string(json_member(entry, "name"));
    if (!name || !*name || strlen(name) >= sizeof((Slice *)0)->tensor)
        return bad(entry, what, "name", "is missing or too long");
    TRY(read_pair(entry, what, "shape", shape));
    if (shape[0] <= 0 || shape[1] <= 0 || __builtin_mul_overflow(shape[0], shape[1], &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)sizeof(float), &bytes))
        return bad(entry, what, "shape", "is of no tensor");
    const Json *slices = NULL;
    TRY(read_array(entry, what, "slices", &slices));
    if (m->num_slices > INT32_MAX / 2) return bad(entry, what, "slices", "are too many");
    m->slices = grow(m->slices, sizeof *m->slices, m->num_slices, slices->count);
    SliceEntry slice = {.tensor = name, .rows = shape[0], .cols = shape[1]};
    for (size_t i = 0; i < slices->count; i++) TRY(add_slice(m, slice, &slices->items[i], first_file, what));
    return OK;
}

static Status add_tables(Manifest *m, const Json *root, const char *what) {
    const Json *files = NULL, *tensors = NULL;
    int first_file = m->num_files;
    TRY(read_array(root, what, "files", &files));
    TRY(read_array(root, what, "tensors", &tensors));
    for (size_t i = 0; i < files->count; i++) TRY(add_file(m, &files->items[i], what));
    for (size_t i = 0; i < tensors->count; i++) TRY(add_tensor(m, &tensors->items[i], first_file, what));
    return OK;
}

Status manifest_add(Manifest *m, const char *text, size_t size, const char *what) {
    Json *root = NULL;
    TRY(json_parse(&root, text, size, what));
    m->roots = grow(m->roots, sizeof(Json *), m->num_roots, 1);
    m->roots[m->num_roots++] = root;
    return add_tables(m, root, what);
}

// ---- the whole manifest ----------------------------------------------------------------------------

static Status read_others(Manifest *m, const Json *root, const char *what) {
    const Json *others = NULL;
    TRY(read_array(root, what, "others", &others));
    for (size_t i = 0; i < others->count; i++) {
        OtherFile file = {0};
        TRY(read_file_name(&others->items[i], what, &file.name));
        TRY(read_int(&others->items[i], what, "bytes", 0, INT64_MAX, &file.bytes));
        TRY(read_hash(&others->items[i], what, "xxh3_128", 32, &file.hash));
        manifest_add_other(m, file);
    }
    return OK;
}

enum { MAX_RANKS = 1 << 24 }; // along one axis

static Status read_grid(const Json *root, const char *what, CheckpointInfo *info) {
    const Json *grid = json_member(root, "grid");
    int64_t t, p, d, v;
    TRY(read_int(grid, what, "tensor", 1, MAX_RANKS, &t));
    TRY(read_int(grid, what, "pipeline", 1, MAX_RANKS, &p));
    TRY(read_int(grid, what, "data", 1, MAX_RANKS, &d));
    TRY(read_int(grid, what, "chunks", 1, MAX_RANKS, &v));
    info->grid = (Grid)GRID((int)t, (int)d, (int)p);
    info->num_chunks = (int)v;
    return OK;
}

static Status read_base(const Json *root, const char *what, CheckpointInfo *info) {
    const Json *base = json_member(root, "base");
    Hash hash;
    if (!info->shape.lora_rank) return OK;
    info->base.path = json_string(json_member(base, "path"));
    if (!info->base.path || *info->base.path != '/' || strlen(info->base.path) >= PATH_ROOM)
        return bad(root, what, "base", "is missing or has no absolute \"path\"");
    TRY(read_hash(base, what, "xxh3_64", 16, &hash));
    info->base.hash = hash.low;
    return OK;
}

static Status read_info(const Json *root, const char *what, CheckpointInfo *info) {
    TRY(state_read(json_member(root, "state"), what, &info->state));
    TRY(skipped_read(json_member(root, "skipped"), what, &info->state));
    TRY(shape_read(json_member(root, "model"), what, &info->shape));
    TRY(read_grid(root, what, info));
    TRY(tokens_read(json_member(root, "tokens"), what, &info->tokens));
    TRY(read_base(root, what, info));
    info->dtype = json_string(json_member(root, "dtype"));
    info->program = json_string(json_member(root, "program"));
    if (!info->dtype || !info->program) return bad(root, what, "dtype", "or \"program\" is missing");
    if (strcmp(info->dtype, "f32") != 0 && strcmp(info->dtype, "bf16") != 0 &&
        strcmp(info->dtype, "f16") != 0)
        return bad(root, what, "dtype", "is none of f32, bf16, f16");
    if (json_flag(json_member(root, "optimizer"), &info->has_optimizer)) return OK;
    return bad(root, what, "optimizer", "is missing or neither true nor false");
}

// In a newer version only this entry and the last line have a known form.
static Status check_version(const Json *root, const char *what) {
    const char *program = json_string(json_member(root, "program"));
    const char *format = json_string(json_member(root, "format"));
    int64_t version;
    if (!format || strcmp(format, MANIFEST_FORMAT) != 0)
        return bad(root, what, "format", "is missing or not \"" MANIFEST_FORMAT "\"");
    TRY(read_int(root, what, "version", 1, INT32_MAX, &version));
    if (version <= MANIFEST_VERSION) return OK;
    return fail(ERR_UNAVAILABLE,
                "%s: written by %s in version %" PRId64
                " of the format; it needs a program that reads that version; "
                "this one reads versions up to %d",
                what, program ? program : "a newer program", version, MANIFEST_VERSION);
}

// Compares the last line, the checksum of the text before it, as text, so that every bit of it counts.
static Status check_last_line(const char *text, size_t size, const char *what) {
    Text want = {0};
    size_t before = size ? size - 1 : 0;
    while (before > 0 && text[before - 1] != '\n') before--;
    manifest_write_last_line(text, before, &want);
    bool same = want.size == size - before && !memcmp(want.data, text + before, want.size);
    text_free(&want);
    if (same) return OK;
    return fail(ERR_DATA, "%s: damaged: its last line is not the checksum of its %zu other bytes", what,
                before);
}

Status manifest_read(Manifest *m, const char *text, size_t size, const char *what) {
    TRY(check_last_line(text, size, what));
    Json *root = NULL;
    TRY(json_parse(&root, text, size, what));
    Status status = check_version(root, what);
    json_free(root);
    if (status == OK) status = manifest_add(m, text, size, what);
    if (status != OK) return status;
    TRY(read_others(m, m->roots[0], what));
    TRY(read_info(m->roots[0], what, &m->info));
    return manifest_finish(m, what);
}
