// Keeps arrays of indices in files that runs and ranks share, or computes them in memory.
#include "dataset/cache.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/rank.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_DESCRIPTION_BYTES = 1 << 20, NPY_ALIGNMENT = 64, KEY_CHARACTERS = 32 };
// A process that has waited this long for another to make the same arrays makes them itself.
static const double patience_s = 120;

typedef struct {
    char characters[KEY_CHARACTERS + 1];
} Key;

static Key hash_key(const void *data, size_t bytes) {
    Hash hash = hash_of(data, bytes);
    Key key;
    snprintf(key.characters, sizeof key.characters, "%016" PRIx64 "%016" PRIx64, hash.high, hash.low);
    return key;
}

// Appends the path of one file: "FOLDER/KEY-KIND-NAME".
static void add_path(Text *path, const IndexRecipe *recipe, const char *name, const char *ending) {
    Key key = hash_key(recipe->description, strlen(recipe->description));
    text_add(path, "%s/%s-%s-%s%s", recipe->folder, key.characters, recipe->kind, name, ending);
}

// ---- In memory --------------------------------------------------------------------------------------------

static void release(IndexArray *array) {
    if (array->map)
        munmap(array->map, array->map_bytes);
    else
        free(array->data);
    array->map = array->data = NULL;
}

void index_arrays_close(IndexArrays *arrays) {
    for (int i = 0; i < arrays->count; i++) release(&arrays->items[i]);
}

static Status count_bytes(IndexArrays *arrays) {
    int64_t sum = 0, most = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    for (int i = 0; i < arrays->count; i++) {
        IndexArray *array = &arrays->items[i];
        int64_t columns = array->columns ? array->columns : 1, bytes;
        bool overflow = __builtin_mul_overflow(array->rows, columns * (int64_t)array->item_bytes, &bytes) ||
                        __builtin_add_overflow(sum, bytes, &sum);
        if (overflow || sum > most)
            return fail(ERR_UNAVAILABLE,
                        "the %s of %" PRId64 " entries does not fit into this machine's %" PRId64
                        " MB of memory: train on fewer samples",
                        array->name, array->rows, most / 1000000);
        array->bytes = (size_t)bytes;
    }
    return OK;
}

static Status build(IndexArrays *arrays, const IndexRecipe *recipe) {
    for (int i = 0; i < arrays->count; i++) {
        IndexArray *array = &arrays->items[i];
        array->data = calloc(array->bytes + 1, 1);
        if (array->data) continue;
        index_arrays_close(arrays);
        return fail(ERR_UNAVAILABLE, "no memory for the %s of %" PRId64 " entries (%zu MB)", array->name,
                    array->rows, array->bytes / 1000000);
    }
    recipe->build(recipe->self, arrays);
    return OK;
}

// ---- Files ------------------------------------------------------------------------------------------------

// The header of a NumPy file, with type and shape; data begin at a multiple of 64 bytes. A file has this type and
// shape when it begins with these bytes.
static void add_npy_header(Text *out, const IndexArray *array) {
    Text fields = {0};
    text_add(&fields, "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRId64 ",", array->type,
             array->rows);
    if (array->columns) text_add(&fields, " %d", array->columns);
    text_add(&fields, "), }");
    const size_t before = 10; // magic, version, and the size of the rest
    while ((before + fields.size + 1) % NPY_ALIGNMENT) text_add_bytes(&fields, " ", 1);
    text_add_bytes(&fields, "\n", 1);
    const unsigned char size[2] = {(unsigned char)(fields.size & 0xff), (unsigned char)(fields.size >> 8)};
    text_add_bytes(out, "\x93NUMPY\x01\x00", 8);
    text_add_bytes(out, size, sizeof size);
    text_add_bytes(out, fields.data, fields.size);
    text_free(&fields);
}

static Status map_descriptor(IndexArray *array, const char *path, int descriptor, int64_t bytes,
                             const Text *header) {
    if ((uint64_t)bytes != header->size + array->bytes)
        return fail(ERR_DATA, "%s: %lld bytes, not %zu", path, (long long)bytes, header->size + array->bytes);
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (map == MAP_FAILED) return fail(errno_status(), "%s: %s", path, strerror(errno));
    array->map = map;
    array->map_bytes = (size_t)bytes;
    array->data = (char *)map + header->size;
    if (memcmp(map, header->data, header->size) == 0) return OK;
    return fail(ERR_DATA, "%s: byte 0: another type or shape", path);
}

static Status map_array(IndexArray *array, const char *path) {
    int descriptor;
    int64_t bytes;
    TRY(file_open_regular(path, &descriptor, &bytes));
    Text header = {0};
    add_npy_header(&header, array);
    Status status = map_descriptor(array, path, descriptor, bytes, &header);
    text_free(&header);
    close(descriptor);
    return status;
}

// The text of the description file: the description, and the checksums of the arrays.
static void add_description(Text *out, const IndexRecipe *recipe, const IndexArrays *arrays) {
    text_add(out, "%s", recipe->description);
    for (int i = 0; i < arrays->count; i++) {
        const IndexArray *array = &arrays->items[i];
        text_add(out, "%s: %zu bytes, xxh3 %s\n", array->name, array->bytes,
                 hash_key(array->data, array->bytes).characters);
    }
}

static Status check_description(const char *path, const IndexRecipe *recipe, const IndexArrays *arrays) {
    char *found;
    size_t size;
    TRY(file_read(path, MAX_DESCRIPTION_BYTES, &found, &size));
    Text want = {0};
    add_description(&want, recipe, arrays);
    bool same = size == want.size && !memcmp(found, want.data, size);
    text_free(&want);
    free(found);
    return same ? OK : fail(ERR_DATA, "%s: its checksums are not those of the arrays", path);
}

static Status map_all(IndexArrays *arrays, const IndexRecipe *recipe, const char *description) {
    Text path = {0};
    Status status = OK;
    for (int i = 0; i < arrays->count && status == OK; i++) {
        path.size = 0;
        add_path(&path, recipe, arrays->items[i].name, ".npy");
        status = map_array(&arrays->items[i], path.data);
    }
    if (status == OK) status = check_description(description, recipe, arrays);
    if (status == OK && !recipe->is_sound(recipe->self, arrays))
        status = fail(ERR_DATA, "%s: values out of range", path.data);
    text_free(&path);
    if (status != OK) index_arrays_close(arrays);
    return status;
}

// Maps the files. Fails with ERR_NO_INPUT when no process has finished them yet.
static Status read_files(IndexArrays *arrays, const IndexRecipe *recipe) {
    Text description = {0};
    add_path(&description, recipe, "description", ".txt");
    Status status = file_exists(description.data) ? map_all(arrays, recipe, description.data)
                                                  : fail(ERR_NO_INPUT, "%s: no such file", description.data);
    text_free(&description);
    return status;
}

// Writes under a name that no other process or thread uses, then renames. So readers see a complete file or none.
static Status write_file(const char *path, const Text *first, const void *data, size_t bytes) {
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    Text temporary = {0};
    text_add(&temporary, "%s.tmp-%s-%d", path, host, (int)gettid());
    unlink(temporary.data); // left by a killed process that had the same number
    FileWriter writer;
    Status status = file_writer_open(&writer, temporary.data);
    if (status == OK) status = file_writer_add(&writer, first->data, first->size);
    if (status == OK) status = file_writer_add(&writer, data, bytes);
    if (status == OK)
        status = file_writer_finish(&writer);
    else
        file_writer_abandon(&writer);
    if (status == OK && rename(temporary.data, path)) {
        status = fail(create_status(), "%s: %s", path, strerror(errno));
        unlink(temporary.data);
    }
    text_free(&temporary);
    return status;
}

static Status write_files(const IndexArrays *arrays, const IndexRecipe *recipe) {
    Text path = {0}, text = {0};
    Status status = OK;
    for (int i = 0; i < arrays->count && status == OK; i++) {
        path.size = text.size = 0;
        add_path(&path, recipe, arrays->items[i].name, ".npy");
        add_npy_header(&text, &arrays->items[i]);
        status = write_file(path.data, &text, arrays->items[i].data, arrays->items[i].bytes);
    }
    path.size = text.size = 0;
    add_path(&path, recipe, "description", ".txt");
    add_description(&text, recipe, arrays);
    if (status == OK) status = write_file(path.data, &text, "", 0);
    if (status == OK) status = folder_sync(recipe->folder);
    text_free(&path);
    text_free(&text);
    return status;
}

// ---- One makes them, all use them -------------------------------------------------------------------------

// Takes a lock that ends with its process and also works between threads. Returns -1 when it cannot be taken; then
// work is done twice without harm, since all write the same bytes.
static int lock(const IndexRecipe *recipe) {
    Text path = {0};
    add_path(&path, recipe, "index", ".lock");
    int descriptor = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    text_free(&path);
    double until = clock_s() + patience_s;
    while (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB)) {
        if (errno == EINTR) continue;
        if (errno == EWOULDBLOCK && clock_s() < until) {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            continue;
        }
        close(descriptor);
        descriptor = -1;
    }
    return descriptor;
}

static void unlock(const IndexRecipe *recipe, int descriptor) {
    if (descriptor < 0) return;
    Text path = {0};
    add_path(&path, recipe, "index", ".lock");
    unlink(path.data);
    text_free(&path);
    close(descriptor);
}

static void note(const IndexRecipe *recipe, const char *what) {
    fprintf(stderr, "--data-cache-path %s: %s: %s\n", recipe->folder, fail_message(), what);
}

// The arrays were made in memory. It is freed when the files, which all ranks share, can be mapped.
static Status make_files(IndexArrays *arrays, const IndexRecipe *recipe) {
    IndexArrays files = *arrays;
    TRY(build(arrays, recipe));
    Status status = write_files(arrays, recipe);
    if (status == OK) status = read_files(&files, recipe);
    if (status == OK) {
        index_arrays_close(arrays);
        *arrays = files;
    } else {
        note(recipe, "the order of samples is kept in memory");
    }
    return OK;
}

Status index_arrays_open(IndexArrays *arrays, const IndexRecipe *recipe) {
    TRY(count_bytes(arrays));
    if (!recipe->folder) return build(arrays, recipe);
    TRY(folder_make(recipe->folder));
    if (read_files(arrays, recipe) == OK) return OK;
    int descriptor = lock(recipe);
    Status status = read_files(arrays, recipe);
    if (status != OK) {
        if (status != ERR_NO_INPUT) note(recipe, "made again");
        status = make_files(arrays, recipe);
    }
    unlock(recipe, descriptor);
    return status;
}
