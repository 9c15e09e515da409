// Tables of algorithms as files: what is timed is taken by a device that is opened with it, a damaged file is refused.
#include "base/file.h"
#include "device/algorithms.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>

enum { ROWS = 24, COLS = 16, INNER = 40 };

static const char *file_name(void) { return harness_path("table.txt"); }

static void write_table(void) {
    Text table = {0};
    text_add(&table, "%s\n# nothing\n", ALGORITHMS_TITLE);
    algorithms_end(&table);
    EXPECT_OK(file_write(file_name(), text_string(&table), table.size));
    text_free(&table);
}

// What the bench writes is taken; rows of other products stay without effect.
static void timed_table_is_taken(void) {
    Device *device;
    Arena arena;
    Text table = {0};
    DeviceOptions options = {.kind = "cuda-sim", .threads = 1, .workspace_bytes = (size_t)32 << 20};
    EXPECT_OK(device_open(&device, options));
    EXPECT_OK(arena_open(&arena, "operands", device_memory(device), 1 << 20));
    Matmul p = {.a = tensor_take(&arena, "a", ROWS, INNER, BF16),
                .b = tensor_take(&arena, "b", COLS, INNER, BF16),
                .d = tensor_take(&arena, "d", ROWS, COLS, BF16),
                .transpose_b = true};
    EXPECT_OK(algorithms_begin(device, &table));
    EXPECT_OK(algorithms_time(device, device_stream(device), (JoinedProduct){.matmul = p}, &table));
    JoinedProduct gelu = {
        .matmul = p, .join = JOINS_GELU, .extra = tensor_take(&arena, "aux", ROWS, COLS, BF16)};
    EXPECT_OK(algorithms_time(device, device_stream(device), gelu, &table));
    algorithms_end(&table);
    device_sync(device, device_stream(device));
    arena_close(&arena);
    device_close(device);
    EXPECT(strstr(text_string(&table), "\nm 16 n 24 k 40 "), "no row in %s", text_string(&table));
    EXPECT(strstr(text_string(&table), " join 2 "), "no row with GELU in %s", text_string(&table));
    EXPECT_OK(file_write(file_name(), text_string(&table), table.size));
    options.algorithms = file_name();
    EXPECT_OK(device_open(&device, options));
    device_close(device);
    text_free(&table);
}

static void other_kinds_have_none(void) {
    Device *device;
    Text table = {0};
    EXPECT_OK(device_open(&device, (DeviceOptions){.kind = "reference", .threads = 1}));
    EXPECT(algorithms_begin(device, &table) == ERR_CONFIG, "the reference device has algorithms");
    device_close(device);
    write_table();
    DeviceOptions options = {.kind = "reference", .threads = 1, .algorithms = file_name()};
    EXPECT(device_open(&device, options) == ERR_CONFIG && strstr(fail_message(), "table.txt"), "%s",
           fail_message());
    options.kind = "null";
    EXPECT_OK(device_open(&device, options));
    device_close(device);
    text_free(&table);
}

// Whatever byte is changed, and wherever the file ends.
static void damaged_files(void) {
    char *text, *whole;
    size_t size;
    write_table();
    EXPECT_OK(file_read(file_name(), 1 << 20, &whole, &size));
    for (size_t i = 0; i < size; i++) {
        char *other = malloc(size);
        CHECK(other, "no memory");
        memcpy(other, whole, size);
        other[i] ^= 1;
        EXPECT_OK(file_write(file_name(), other, size));
        EXPECT(algorithms_read(file_name(), &text) == ERR_DATA && strstr(fail_message(), "table.txt:"),
               "byte %zu: %s", i, fail_message());
        EXPECT_OK(file_write(file_name(), whole, i));
        EXPECT(algorithms_read(file_name(), &text) == ERR_DATA, "%zu bytes are a table", i);
        free(other);
    }
    EXPECT_OK(file_write(file_name(), "\0\n", 2));
    EXPECT(algorithms_read(file_name(), &text) == ERR_DATA, "zeros are a table");
    EXPECT(algorithms_read(harness_path("missing.txt"), &text) == ERR_NO_INPUT, "a missing file: %s",
           fail_message());
    free(whole);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"timed_table_is_taken", timed_table_is_taken},
                                      {"other_kinds_have_none", other_kinds_have_none},
                                      {"damaged_files", damaged_files},
                                      {0}},
                       argc, argv);
}
