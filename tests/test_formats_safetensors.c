// Tests safetensors files: what is written is read back, and what the format forbids fails.
#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "formats/formats.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TENSORS = 12, MAX_BYTES = 1 << 20 };

// ---- random files -------------------------------------------------------------------------------

typedef struct {
    SafeTensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][32];
    int count;
    uint8_t *data;
    int64_t bytes;
} Random;

static int64_t tensor_bytes(const SafeTensor *t) {
    int64_t bytes = (int64_t)file_type_bytes(t->type);
    for (int i = 0; i < t->ndim; i++) bytes *= t->shape[i];
    return bytes;
}

// Scalars, empty tensors and up to 8 dimensions of every type.
static void make_random(RngKey key, Random *r) {
    *r = (Random){.count = (int)(rng_word(key, 0, 0) % MAX_TENSORS), .data = calloc(1, MAX_BYTES)};
    for (int i = 0; i < r->count; i++) {
        SafeTensor *t = &r->tensors[i];
        snprintf(r->names[i], sizeof r->names[i], "%c.\"%d\xc3\xa9", 'z' - i % 5, i);
        t->name = r->names[i];
        t->type = (FileType)(rng_word(key, 1, (uint64_t)i) % NUM_FILE_TYPES);
        t->ndim = (int)(rng_word(key, 2, (uint64_t)i) % (SAFETENSORS_DIMS + 1));
        for (int d = 0; d < t->ndim; d++)
            t->shape[d] = rng_word(key, 3, (uint64_t)(i * SAFETENSORS_DIMS + d)) % (t->ndim > 3 ? 4 : 11);
        r->bytes += tensor_bytes(t);
    }
    for (int64_t i = 0; i < r->bytes; i++) r->data[i] = (uint8_t)rng_word(key, 4, (uint64_t)i);
}

static void write_random(const Random *r, const char *path, size_t piece) {
    static const SafeMetadata METADATA[] = {{"format", "pt"}, {"quote", "\"\n"}};
    SafetensorsWriter writer;
    EXPECT_OK(safetensors_create(&writer, path, r->tensors, r->count, METADATA, r->count % 3));
    for (int64_t done = 0; done < r->bytes; done += (int64_t)piece) {
        int64_t left = r->bytes - done;
        EXPECT_OK(safetensors_add(&writer, r->data + done, (int64_t)piece < left ? piece : (size_t)left));
    }
    EXPECT(writer.header_bytes % 64 == 0, "the first tensor is aligned");
    EXPECT(writer.total_bytes == writer.header_bytes + r->bytes, "%lld bytes", (long long)writer.total_bytes);
    EXPECT_OK(safetensors_finish(&writer));
}

static void check_tensor(const Safetensors *file, const SafeTensor *wanted, const uint8_t *data, RngKey key) {
    const SafeTensor *t = safetensors_find(file, wanted->name);
    EXPECT(t, "no tensor %s", wanted->name);
    if (!t) return;
    int64_t size = (int64_t)file_type_bytes(t->type), elements = t->bytes / size;
    EXPECT(t->type == wanted->type && t->ndim == wanted->ndim && t->bytes == tensor_bytes(wanted), "%s",
           t->name);
    EXPECT(memcmp(t->shape, wanted->shape, sizeof t->shape) == 0, "shape of %s", t->name);
    int64_t first = rng_word(key, 5, 0) % (elements + 1),
            count = rng_word(key, 6, 0) % (elements - first + 1);
    uint8_t *whole = malloc((size_t)t->bytes + 1), *part = malloc((size_t)(count * size) + 1);
    EXPECT_OK(safetensors_read(file, t, 0, elements, whole));
    EXPECT_OK(safetensors_read(file, t, first, count, part));
    EXPECT(memcmp(whole, data, (size_t)t->bytes) == 0, "bytes of %s", t->name);
    EXPECT(memcmp(part, data + first * size, (size_t)(count * size)) == 0, "part of %s", t->name);
    free(whole);
    free(part);
}

static void what_is_written_is_read(void) {
    for (uint64_t round = 0; round < 60; round++) {
        RngKey key = rng_key(round, "safetensors", 0);
        Random r;
        make_random(key, &r);
        Safetensors *file;
        const char *path = harness_path("random");
        write_random(&r, path, 1 + rng_word(key, 7, 0) % 5000);
        EXPECT_OK(safetensors_open(&file, path));
        EXPECT(file->count == r.count && file->num_metadata == r.count % 3, "%d tensors", file->count);
        const uint8_t *data = r.data;
        for (int i = 0; i < r.count; data += tensor_bytes(&r.tensors[i]), i++)
            check_tensor(file, &r.tensors[i], data, key);
        EXPECT(!safetensors_find(file, "none") && !safetensors_metadata(file, "none"), "absent");
        const char *quote = safetensors_metadata(file, "quote");
        if (file->num_metadata == 2)
            EXPECT(quote && strcmp(quote, "\"\n") == 0, "%s", quote ? quote : "none");
        safetensors_close(file);
        unlink(path);
        free(r.data);
    }
}

static void bytes_follow_from_the_arguments(void) {
    Random r;
    make_random(rng_key(5, "same", 0), &r);
    char *a = NULL, *b = NULL;
    size_t size_a = 0, size_b = 1;
    write_random(&r, harness_path("a"), 7);
    write_random(&r, harness_path("b"), MAX_BYTES);
    EXPECT_OK(file_read(harness_path("a"), 2 * MAX_BYTES, &a, &size_a));
    EXPECT_OK(file_read(harness_path("b"), 2 * MAX_BYTES, &b, &size_b));
    EXPECT(size_a == size_b && memcmp(a, b, size_a) == 0, "%zu and %zu bytes", size_a, size_b);
    free(a);
    free(b);
    free(r.data);
}

// ---- files of others ----------------------------------------------------------------------------

// A file that says it has a header of `size` bytes.
static Status open_bytes(Safetensors **file, uint64_t size, const char *header, size_t data) {
    Text text = {0};
    const char *path = harness_path("bytes");
    for (int i = 0; i < 8; i++) text_add_bytes(&text, &(uint8_t){(uint8_t)(size >> 8 * i)}, 1);
    text_add_bytes(&text, header, strlen(header));
    for (size_t i = 0; i < data; i++) text_add_bytes(&text, "x", 1);
    EXPECT_OK(file_write(path, text.data, text.size));
    text_free(&text);
    return safetensors_open(file, path);
}

static void what_the_format_allows_opens(void) {
    static const struct {
        const char *header;
        size_t data;
        int count;
    } GOOD[] = {{"{}", 0, 0},
                {"{\"__metadata__\":{}}   ", 0, 0},
                {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1},
                {"{\"b\":{\"data_offsets\":[2,4],\"shape\":[1],\"dtype\":\"BF16\"},"
                 "\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}",
                 4, 2},
                {"{\"b\":{\"dtype\":\"F64\",\"shape\":[0,9000000000000000000],\"data_offsets\":[1,1]},"
                 "\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                 1, 2}};
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        Safetensors *file;
        EXPECT_OK(open_bytes(&file, strlen(GOOD[i].header), GOOD[i].header, GOOD[i].data));
        if (file) EXPECT(file->count == GOOD[i].count, "%s: %d tensors", GOOD[i].header, file->count);
        if (file && file->count == 2) EXPECT(strcmp(file->tensors[0].name, "a") == 0, "by offset");
        safetensors_close(file);
    }
}

#define TENSOR(name, type, shape, offsets)                                                                   \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void what_the_format_forbids_fails(void) {
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } BAD[] = {
        {"", 0, "byte 0: a value"},
        {"[]", 0, "byte 0: '{'"},
        {" {}", 0, "byte 0: '{'"},
        {"{}x", 0, "byte 2: more text"},
        {"{}", 1, "the tensors end here"},
        {"{" TENSOR("a", "U8", "[9]", "[0,9]") "}", 8, "which is cut, as by a download that did not end"},
        {"{\"__metadata__\":1}", 0, "no object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\": text"},
        {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "\"a\": text"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a second value"},
        {"{\"__metadata__\":{},\"__metadata__\\u0000\":{}}", 0, "NUL"},
        {"{" TENSOR("a\\u0000", "U8", "[1]", "[0,1]") "}", 1, "NUL"},
        {"{\"a\":1}", 0, "an object"},
        {"{\"a\":{}}", 0, "dtype"},
        {"{" TENSOR("a", "F31", "[1]", "[0,4]") "}", 4, "dtype"},
        {"{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{" TENSOR("a", "F32", "1", "[0,4]") "}", 4, "shape"},
        {"{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "no size"},
        {"{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "no size"},
        {"{" TENSOR("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "no size"},
        {"{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "more than 8"},
        {"{" TENSOR("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "2^63"},
        {"{" TENSOR("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "2^63"},
        {"{" TENSOR("a", "U8", "[18446744073709551617]", "[0,1]") "}", 1, "no size"},
        {"{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "two integers"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4,4]") "}", 4, "two integers"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4.0]") "}", 4, "two integers"},
        {"{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "within"},
        {"{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "within"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 3, "is cut, as by"},
        {"{" TENSOR("a", "F32", "[1]", "[9223372036854775804,9223372036854775807]") "}", 4, "is cut, as by"},
        {"{" TENSOR("a", "F32", "[1]", "[0,5]") "}", 5, "do not fit"},
        {"{" TENSOR("a", "F32", "[1]", "[1,5]") "}", 5, "bytes of no tensor"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 5, "byte "},
        {"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[1,3]") "}", 3, "overlap"},
        {"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[0,2]") "}", 2, "overlap"},
        {"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[0]", "[1,1]") "}", 2, "overlap"},
        {"{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("b", "U8", "[1]", "[2,3]") "}", 3, "no tensor"},
        {"{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[1,2]") "}", 2, "a second"}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        Safetensors *file;
        Status status = open_bytes(&file, strlen(BAD[i].header), BAD[i].header, BAD[i].data);
        EXPECT(status == ERR_DATA && !file && strstr(fail_message(), BAD[i].message) &&
                   strstr(fail_message(), harness_folder()),
               "%s: %s", BAD[i].header, fail_message());
        safetensors_close(file);
    }
}

static void sizes_of_headers_are_checked(void) {
    static const uint64_t SIZES[] = {3, 100000001, INT64_MAX, 1ull << 63, UINT64_MAX - 8, UINT64_MAX};
    Safetensors *file;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        EXPECT(open_bytes(&file, SIZES[i], "{}", 0) == ERR_DATA, "%s", fail_message());
    EXPECT_OK(file_write(harness_path("short"), "1234567", 7));
    EXPECT(safetensors_open(&file, harness_path("short")) == ERR_DATA, "%s", fail_message());
    EXPECT(safetensors_open(&file, harness_path("none")) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT(safetensors_open(&file, harness_folder()) == ERR_NO_INPUT && strstr(fail_message(), "regular"),
           "%s", fail_message());
}

// Whatever opens has its tensors within the file.
static void check_opened(const char *path) {
    Safetensors *file;
    Status status = safetensors_open(&file, path);
    EXPECT(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    for (int i = 0; file && i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        EXPECT(t->offset >= file->header_bytes && t->bytes >= 0 && t->bytes <= file->file_bytes - t->offset,
               "%s at %lld", t->name, (long long)t->offset);
        EXPECT(t->bytes == tensor_bytes(t) && safetensors_find(file, t->name) == t, "%s", t->name);
    }
    safetensors_close(file);
}

static void damage_is_found_or_harmless(void) {
    static const SafeTensor TENSORS[] = {{.name = "a", .type = FILE_F32, .ndim = 2, .shape = {2, 3}},
                                         {.name = "b", .type = FILE_I8, .ndim = 1, .shape = {5}}};
    static const uint8_t DATA[29];
    static const SafeMetadata METADATA = {"k", "v"};
    SafetensorsWriter writer;
    char *bytes = NULL;
    size_t size = 0;
    Safetensors *file;
    const char *path = harness_path("damaged");
    EXPECT_OK(safetensors_create(&writer, path, TENSORS, 2, &METADATA, 1));
    EXPECT_OK(safetensors_add(&writer, DATA, sizeof DATA));
    EXPECT_OK(safetensors_finish(&writer));
    EXPECT_OK(file_read(path, MAX_BYTES, &bytes, &size));
    for (size_t cut = 0; cut < size; cut++) {
        EXPECT_OK(file_write(path, bytes, cut));
        EXPECT(safetensors_open(&file, path) == ERR_DATA, "%zu of %zu bytes", cut, size);
    }
    for (size_t bit = 0; bit < 8 * (size_t)writer.header_bytes; bit++) {
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
        EXPECT_OK(file_write(path, bytes, size));
        check_opened(path);
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    }
    free(bytes);
}

// ---- writing what cannot be ---------------------------------------------------------------------

static void wrong_writers_leave_nothing(void) {
    static const SafeTensor TWICE[] = {{.name = "a", .type = FILE_U8}, {.name = "a", .type = FILE_U8}};
    static const SafeTensor HUGE_SHAPE = {
        .name = "h", .type = FILE_F64, .ndim = 2, .shape = {1LL << 40, 1LL << 30}};
    static const SafeTensor HALF = {.name = "h", .type = FILE_U8, .ndim = 1, .shape = {INT64_MAX / 2 + 1}};
    static const SafeTensor RESERVED = {.name = "__metadata__", .type = FILE_U8};
    const SafeTensor halves[] = {HALF,
                                 {.name = "i", .type = FILE_U8, .ndim = 1, .shape = {INT64_MAX / 2 + 1}}};
    const char *path = harness_path("wrong");
    SafetensorsWriter writer;
    EXPECT(safetensors_create(&writer, path, TWICE, 2, NULL, 0) == ERR_DATA, "%s", fail_message());
    safetensors_abandon(&writer);
    EXPECT(safetensors_create(&writer, path, &HUGE_SHAPE, 1, NULL, 0) == ERR_DATA, "%s", fail_message());
    EXPECT(safetensors_create(&writer, path, halves, 2, NULL, 0) == ERR_DATA, "%s", fail_message());
    EXPECT(safetensors_create(&writer, path, &RESERVED, 1, NULL, 0) == ERR_DATA, "%s", fail_message());
    for (size_t bytes = 0; bytes < 4; bytes++) {
        EXPECT(!file_exists(path), "nothing is left");
        EXPECT_OK(safetensors_create(&writer, path, TWICE, 1, NULL, 0));
        EXPECT_OK(safetensors_add(&writer, "xxx", bytes));
        Status status = safetensors_finish(&writer);
        EXPECT(status == (bytes == 1 ? OK : ERR_BUG), "%zu bytes: %d", bytes, (int)status);
        if (status == OK) unlink(path);
    }
    EXPECT_OK(file_write(path, "mine", 4));
    EXPECT(safetensors_create(&writer, path, TWICE, 1, NULL, 0) == ERR_CREATE, "%s", fail_message());
    safetensors_abandon(&writer);
    EXPECT(file_exists(path), "what was there stays");
}

// ---- types --------------------------------------------------------------------------------------

static void floats_are_read_as_fp32(void) {
    enum { N = 40000 }; // more than are converted at once
    float *x = malloc(N * sizeof *x), *back = malloc(N * sizeof *back);
    char *stored = malloc(N * sizeof *x);
    rng_fill_normal(rng_key(1, "x", 0), 0, N, 0, 1, x);
    static const FileType TYPES[] = {FILE_F32, FILE_BF16, FILE_F16, FILE_I32};
    for (size_t k = 0; k < 4; k++) {
        SafeTensor t = {.name = "x", .type = TYPES[k], .ndim = 1, .shape = {N}};
        SafetensorsWriter writer;
        Safetensors *file;
        const char *path = harness_path(file_type_name(TYPES[k]));
        if (file_type_is_float(TYPES[k])) file_type_of_f32(TYPES[k], x, N, stored);
        EXPECT_OK(safetensors_create(&writer, path, &t, 1, NULL, 0));
        EXPECT_OK(safetensors_add(&writer, stored, N * file_type_bytes(TYPES[k])));
        EXPECT_OK(safetensors_finish(&writer));
        EXPECT_OK(safetensors_open(&file, path));
        Status status = safetensors_read_f32(file, &file->tensors[0], 3, N - 3, back);
        EXPECT(status == (TYPES[k] == FILE_I32 ? ERR_DATA : OK), "%s", fail_message());
        for (int i = 3; status == OK && i < N; i++) {
            float expected = TYPES[k] == FILE_F32    ? x[i]
                             : TYPES[k] == FILE_BF16 ? bf16_to_f32(bf16_of_f32(x[i]))
                                                     : f16_to_f32(f16_of_f32(x[i]));
            EXPECT(back[i - 3] == expected, "element %d of %s", i, t.name);
        }
        safetensors_close(file);
    }
    free(x);
    free(back);
    free(stored);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"what_is_written_is_read", what_is_written_is_read},
                                      {"bytes_follow_from_the_arguments", bytes_follow_from_the_arguments},
                                      {"what_the_format_allows_opens", what_the_format_allows_opens},
                                      {"what_the_format_forbids_fails", what_the_format_forbids_fails},
                                      {"sizes_of_headers_are_checked", sizes_of_headers_are_checked},
                                      {"damage_is_found_or_harmless", damage_is_found_or_harmless},
                                      {"wrong_writers_leave_nothing", wrong_writers_leave_nothing},
                                      {"floats_are_read_as_fp32", floats_are_read_as_fp32},
                                      {0}},
                       argc, argv);
}
