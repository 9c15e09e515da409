// GGUF: what is written is read back; what is damaged is refused and never followed.
#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "formats/gguf.h"
#include "harness.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char text[4096];
} Path;

static Path path_of(const char *name) {
    Path path;
    snprintf(path.text, sizeof path.text, "%s/%s", harness_folder(), name);
    return path;
}

static void fill(float *values, int64_t count, const char *what) {
    rng_fill_normal(rng_key(7, what, 0), 0, (uint64_t)count, 0, 1, values);
}

// ---- a small file of every kind of value and tensor -----------------------------------------------------

enum { ROWS = 3, COLS = 64, NUM_TENSORS = 4 };

static const GgufTensor shapes[NUM_TENSORS] = {{"vector.weight", GGML_F32, 1, {5}, 0, 0},
                                               {"half.weight", GGML_F16, 2, {COLS, ROWS}, 0, 0},
                                               {"blocks.weight", GGML_Q8_0, 2, {COLS, ROWS}, 0, 0},
                                               {"brain.weight", GGML_BF16, 2, {7, 1}, 0, 0}};

static int64_t elements(const GgufTensor *t) { return t->ndim == 1 ? t->dims[0] : t->dims[0] * t->dims[1]; }

static void describe(GgufMetadata *m) {
    gguf_set_string(m, "general.architecture", "llama");
    gguf_set_u32(m, "general.alignment", GGUF_ALIGNMENT);
    gguf_set_f32(m, "llama.rope.freq_base", 10000);
    gguf_set_bool(m, "tokenizer.ggml.add_bos_token", false);
    gguf_begin_strings(m, "tokenizer.ggml.tokens", 3);
    gguf_add_string(m, "a", 1);
    gguf_add_string(m, "", 0);
    gguf_add_string(m, "b\0c", 3);
    gguf_set_i32s(m, "tokenizer.ggml.token_type", (const int32_t[]){1, -2, 3}, 3);
    gguf_set_f32s(m, "tokenizer.ggml.scores", (const float[]){0.5f, -1}, 2);
}

static Status add_tensor(GgufWriter *writer, const GgufTensor *t) {
    float values[ROWS * COLS];
    char bytes[sizeof values];
    int64_t n = elements(t), row = t->dims[0];
    fill(values, n, t->name);
    for (int64_t i = 0; i < n; i += row) {
        TRY(ggml_of_f32(t->type, values + i, row, bytes));
        TRY(gguf_add(writer, bytes, (size_t)ggml_type_bytes(t->type, row)));
    }
    return OK;
}

static Status write_small(const char *path) {
    GgufMetadata metadata = {0};
    GgufWriter writer;
    describe(&metadata);
    Status status = gguf_create(&writer, path, &metadata, shapes, NUM_TENSORS);
    text_free(&metadata.bytes);
    TRY(status);
    for (int i = 0; i < NUM_TENSORS; i++) TRY(add_tensor(&writer, &shapes[i]));
    return gguf_finish(&writer);
}

static void expect_values(const Gguf *file, const GgufTensor *shape) {
    float wanted[ROWS * COLS], found[ROWS * COLS];
    const GgufTensor *t = gguf_tensor(file, shape->name);
    EXPECT(t && t->type == shape->type && t->ndim == shape->ndim && elements(t) == elements(shape), "%s",
           shape->name);
    if (!t) return;
    EXPECT(t->offset % GGUF_ALIGNMENT == 0, "%s lies at %" PRId64, t->name, t->offset);
    int64_t n = elements(shape);
    fill(wanted, n, shape->name);
    gguf_read(file, t, 0, n, found);
    float most = t->type == GGML_F32 ? 0 : t->type == GGML_Q8_0 ? 0.03f : 0.01f;
    for (int64_t i = 0; i < n; i++)
        EXPECT(fabsf(found[i] - wanted[i]) <= most, "%s[%" PRId64 "] is %g, not %g", t->name, i,
               (double)found[i], (double)wanted[i]);
}

static void round_trip(void) {
    Path path = path_of("small.gguf");
    Gguf *file;
    int64_t number = 0;
    EXPECT_OK(write_small(path.text));
    EXPECT_OK(gguf_open(&file, path.text));
    if (!file) return;
    EXPECT(gguf_string_is(gguf_find(file, "general.architecture"), "llama"), "the architecture");
    EXPECT(gguf_int(gguf_find(file, "general.alignment"), &number) && number == 32, "alignment %" PRId64,
           number);
    EXPECT(!gguf_int(gguf_find(file, "llama.rope.freq_base"), &number), "a float is no whole number");
    EXPECT(!gguf_find(file, "general") && !gguf_tensor(file, "vector"), "names are whole");
    const GgufPair *tokens = gguf_find(file, "tokenizer.ggml.tokens");
    EXPECT(tokens && tokens->is_array && tokens->count == 3, "the tokens");
    EXPECT(tokens->text[1].size == 0 && tokens->text[2].size == 3 && !memcmp(tokens->text[2].data, "b\0c", 3),
           "the last token");
    const GgufPair *types = gguf_find(file, "tokenizer.ggml.token_type");
    int32_t second = 0;
    if (types) memcpy(&second, types->data + 4, sizeof second);
    EXPECT(types && types->count == 3 && second == -2, "the second type is %d", second);
    EXPECT(file->num_tensors == NUM_TENSORS && file->num_pairs == 7, "%" PRId64 " tensors, %" PRId64 " pairs",
           file->num_tensors, file->num_pairs);
    for (int i = 0; i < NUM_TENSORS; i++) expect_values(file, &shapes[i]);
    gguf_close(file);
}

static void same_bytes(void) {
    Path one = path_of("one.gguf"), two = path_of("two.gguf");
    char *a = NULL, *b = NULL;
    size_t size_a = 0, size_b = 0;
    EXPECT_OK(write_small(one.text));
    EXPECT_OK(write_small(two.text));
    EXPECT_OK(file_read(one.text, 1 << 20, &a, &size_a));
    EXPECT_OK(file_read(two.text, 1 << 20, &b, &size_b));
    EXPECT(a && b && size_a == size_b && !memcmp(a, b, size_a), "%zu and %zu bytes", size_a, size_b);
    free(a);
    free(b);
    EXPECT(write_small(one.text) == ERR_CREATE, "an existing file was replaced");
}

// ---- q8_0 -------------------------------------------------------------------------------------------------

// Each element is within half a step, 1/127 of the block's largest, and what fp16 rounds of the scale.
static void quantised(void) {
    float from[32], to[32];
    char block[34];
    for (int scale = -20; scale <= 20; scale += 5) {
        fill(from, 32, "block");
        float largest = 0;
        for (int i = 0; i < 32; i++)
            from[i] = ldexpf(from[i], scale), largest = fmaxf(largest, fabsf(from[i]));
        EXPECT_OK(ggml_of_f32(GGML_Q8_0, from, 32, block));
        ggml_to_f32(GGML_Q8_0, block, 32, to);
        float step = largest / 127, most = 0.5f * step + 0x1p-11f * largest + 127 * 0x1p-25f;
        for (int i = 0; i < 32; i++)
            EXPECT(fabsf(to[i] - from[i]) <= most, "%g became %g (scale 2^%d)", (double)from[i],
                   (double)to[i], scale);
    }
    float zeros[32] = {0};
    EXPECT_OK(ggml_of_f32(GGML_Q8_0, zeros, 32, block));
    ggml_to_f32(GGML_Q8_0, block, 32, to);
    for (int i = 0; i < 32; i++) EXPECT(to[i] == 0, "a zero became %g", (double)to[i]);
    for (int i = 0; i < 3; i++) {
        float bad[32] = {[7] = (const float[]){NAN, INFINITY, 1e7f}[i]};
        EXPECT(ggml_of_f32(GGML_Q8_0, bad, 32, block) == ERR_NUMERIC, "%g fits a block", (double)bad[7]);
    }
}

static void wrong_amount(void) {
    GgufMetadata metadata = {0};
    GgufWriter writer;
    Path path = path_of("short.gguf");
    EXPECT_OK(gguf_create(&writer, path.text, &metadata, shapes, 1));
    EXPECT_OK(gguf_add(&writer, "1234", 4));
    EXPECT(gguf_finish(&writer) == ERR_BUG, "finished without all bytes");
    EXPECT(!file_exists(path.text), "a broken file stays");
}

// ---- hostile files ----------------------------------------------------------------------------------------

static Status open_bytes(const char *data, size_t size) {
    Path path = path_of("hostile.gguf");
    Gguf *file;
    TRY(file_write(path.text, data, size));
    Status status = gguf_open(&file, path.text);
    for (int64_t i = 0; status == OK && i < file->num_tensors; i++) {
        float first[32];
        gguf_read(file, &file->tensors[i], 0, ggml_type_block(file->tensors[i].type), first);
    }
    if (status == OK) gguf_close(file);
    return status;
}

static void read_small(char **data, size_t *size) {
    Path path = path_of("whole.gguf");
    if (!file_exists(path.text)) EXPECT_OK(write_small(path.text));
    EXPECT_OK(file_read(path.text, 1 << 20, data, size));
    CHECK(*data, "no small file");
}

// Every way to cut a file short is seen; the padding at the end may be missing.
static void cut(void) {
    char *data;
    size_t size, last = 7 * 2;
    read_small(&data, &size);
    size_t needed = (size - 1) / 32 * 32 + last;
    for (size_t n = 0; n < size; n += harness_short() ? 7 : 3)
        EXPECT(open_bytes(data, n) == (n < needed ? ERR_DATA : OK), "%zu of %zu bytes: %s", n, size,
               fail_message());
    char *more = calloc(1, size + 1);
    memcpy(more, data, size);
    EXPECT(open_bytes(more, size + 1) == ERR_DATA, "a byte behind the end");
    free(more);
    free(data);
}

// Damage is refused or harmless, byte by byte.
static void flipped(void) {
    char *data;
    size_t size;
    int refused = 0, tried = 0;
    read_small(&data, &size);
    size_t head = size < 700 ? size : 700;
    for (size_t i = 0; i < head; i += harness_short() ? 5 : 1)
        for (int k = 0; k < 2; k++) {
            char kept = data[i];
            data[i] = (char)(kept ^ (k ? (char)0xff : 1));
            Status status = open_bytes(data, size);
            EXPECT(status == OK || status == ERR_DATA || status == ERR_UNAVAILABLE, "byte %zu: %d: %s", i,
                   status, fail_message());
            refused += status != OK;
            tried++;
            data[i] = kept;
        }
    EXPECT(refused > tried / 4 && refused < tried, "%d of %d were refused", refused, tried);
    free(data);
}

static size_t find_bytes(const char *data, size_t size, const char *text) {
    for (size_t i = 0; i + strlen(text) <= size; i++)
        if (!memcmp(data + i, text, strlen(text))) return i;
    CHECK(false, "no '%s' in the file", text);
}

typedef struct {
    const char *at; // a text in the file
    int64_t skip;   // from its first byte
    uint64_t value; // written there
    int bytes;
    const char *told;
} Damage;

static void told(void) {
    const Damage damages[] = {
        {"GGUF", 0, 'X', 1, "not a GGUF file"},
        {"GGUF", 4, 2, 4, "version 2 of GGUF instead of 3"},
        {"GGUF", 8, UINT64_MAX, 8, "more tensors or keys"},
        {"GGUF", 16, UINT64_MAX / 2, 8, "more tensors or keys"},
        {"general.architecture", -8, UINT64_MAX, 8, "the file ends inside the header"},
        {"general.alignment", 17 + 4, 24, 4, "no power of two"},
        {"general.alignment", 17, 13, 4, "no such type"},
        {"tokenizer.ggml.tokens", 21 + 4, 9, 4, "an array of arrays"},
        {"tokenizer.ggml.tokens", 21 + 8, UINT64_MAX / 4, 8, "more strings than"},
        {"tokenizer.ggml.scores", 21 + 8, UINT64_MAX / 2, 8, "more values than"},
        {"add_bos_token", 13 + 4, 2, 1, "neither 0 nor 1"},
        {"half.weight", 11, 9, 4, "1 to 4 dimensions"},
        {"half.weight", 11 + 4, UINT64_MAX, 8, "of no elements, or of too many"},
        {"half.weight", 11 + 4, UINT64_MAX / 8, 8, "of no elements, or of too many"},
        {"half.weight", 11 + 20, 16, 4,
         "half.weight is of GGUF's type 16, which is not read; these are: F32, F16, Q8_0"},
        {"half.weight", 11 + 24, 64, 8, "do not follow each other"},
        {"half.weight", 11 + 4, 640, 8, "passes the end of the file"},
        {"blocks.weight", 13 + 4, 65, 8, "no multiple"},
    };
    char *data;
    size_t size;
    read_small(&data, &size);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const Damage *d = &damages[i];
        char kept[8], *at = data + find_bytes(data, size, d->at) + d->skip;
        memcpy(kept, at, 8);
        memcpy(at, &d->value, (size_t)d->bytes);
        Status wanted = strstr(d->told, "which is not read") ? ERR_UNAVAILABLE : ERR_DATA;
        EXPECT(open_bytes(data, size) == wanted && strstr(fail_message(), d->told), "'%s': %s", d->told,
               fail_message());
        memcpy(at, kept, 8);
    }
    EXPECT_OK(open_bytes(data, size));
    free(data);
}

static void twice(void) {
    GgufMetadata metadata = {0};
    GgufTensor same[2] = {shapes[0], shapes[0]};
    GgufWriter writer;
    Gguf *file;
    Path path = path_of("twice.gguf"), pairs = path_of("pairs.gguf");
    EXPECT_OK(gguf_create(&writer, path.text, &metadata, same, 2));
    for (int i = 0; i < 2; i++) EXPECT_OK(add_tensor(&writer, &same[i]));
    EXPECT_OK(gguf_finish(&writer));
    EXPECT(gguf_open(&file, path.text) == ERR_DATA && strstr(fail_message(), "vector.weight"), "%s",
           fail_message());
    gguf_set_u32(&metadata, "a.key", 1);
    gguf_set_bool(&metadata, "a.key", true);
    EXPECT_OK(gguf_create(&writer, pairs.text, &metadata, same, 0));
    EXPECT_OK(gguf_finish(&writer));
    EXPECT(gguf_open(&file, pairs.text) == ERR_DATA && strstr(fail_message(), "a.key"), "%s", fail_message());
    text_free(&metadata.bytes);
}

// ---- quantised types that others write ------------------------------------------------------------------

// Two blocks of bytes that follow a rule, with fp16 numbers where the type has them. The sums of their elements, each
// times its place modulo 37, are those of gguf.quants.dequantize of the Python package gguf 0.17, of MXFP4 of 0.19.
static void read_only_types(void) {
    static const struct {
        GgmlType type;
        int halves[2]; // where the fp16 numbers are; -1: there is no second one
        double sum;
    } cases[] = {
        {GGML_Q4_0, {0, -1}, 0x1.7f16cp+4},       {GGML_Q4_1, {0, 2}, 0x1.c73eecp+9},
        {GGML_Q5_0, {0, -1}, -0x1.bf73cp+4},      {GGML_Q5_1, {0, 2}, 0x1.a55c1p+10},
        {GGML_Q2_K, {80, 82}, 0x1.5d9b79p+11},    {GGML_Q3_K, {108, -1}, 0x1.d49a5cp+9},
        {GGML_Q4_K, {0, 2}, 0x1.75a76288p+17},    {GGML_Q5_K, {0, 2}, 0x1.eaee78afp+18},
        {GGML_Q6_K, {208, -1}, -0x1.1ced972p+15}, {GGML_Q8_0, {0, -1}, 0x1.e8a784p+9},
        {GGML_MXFP4, {-1, -1}, -0x1.a88p-100},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint8_t bytes[2 * GGML_LONGEST_BLOCK];
        float out[2 * GGML_LONGEST_BLOCK];
        int64_t block = ggml_type_block(cases[c].type), size = ggml_type_bytes(cases[c].type, block);
        for (int64_t i = 0; i < 2 * size; i++) bytes[i] = (uint8_t)(i * 73 + i * i / 7 + 19);
        for (int b = 0; b < 2; b++)
            for (int h = 0; h < 2 && cases[c].halves[h] >= 0; h++) {
                uint16_t half = (uint16_t)(0x2c12 + 0x345 * b + 0x111 * h);
                memcpy(bytes + b * size + cases[c].halves[h], &half, sizeof half);
            }
        double sum = 0;
        ggml_to_f32(cases[c].type, bytes, 2 * block, out);
        for (int64_t i = 0; i < 2 * block; i++) sum += (double)out[i] * (double)(i % 37 + 1);
        EXPECT(sum == cases[c].sum, "%s: %a instead of %a", ggml_type_name(cases[c].type), sum, cases[c].sum);
    }
}

// Parts of blocks are the same elements.
static void parts_of_blocks(void) {
    Path path = path_of("parts.gguf");
    Gguf *file;
    float all[ROWS * COLS], part[ROWS * COLS];
    write_small(path.text);
    EXPECT_OK(gguf_open(&file, path.text));
    const GgufTensor *t = gguf_tensor(file, "blocks.weight");
    CHECK(t, "no tensor");
    gguf_read(file, t, 0, ROWS * COLS, all);
    for (int64_t first = 0; first < ROWS * COLS; first += 5)
        for (int64_t count = 0; count <= ROWS * COLS - first; count += 7) {
            gguf_read(file, t, first, count, part);
            EXPECT(!memcmp(all + first, part, (size_t)count * sizeof *part), "%" PRId64 " from %" PRId64,
                   count, first);
        }
    gguf_close(file);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"round_trip", round_trip},
                                      {"same_bytes", same_bytes},
                                      {"quantised", quantised},
                                      {"wrong_amount", wrong_amount},
                                      {"cut", cut},
                                      {"flipped", flipped},
                                      {"told", told},
                                      {"twice", twice},
                                      {"read_only_types", read_only_types},
                                      {"parts_of_blocks", parts_of_blocks},
                                      {0}},
                       argc, argv);
}
