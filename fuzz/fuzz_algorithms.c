// Tables of algorithms of matrix products, as the CUDA device on the simulated GPU takes them. Laws: a file that is
// read has its title and checksum; a table is taken or refused with a line. The simulated GPU's objects are part of
// this program.
#include "device/algorithms.h"
#include "device/module.h"
#include "fuzz.h"
#include <stdlib.h>
#include <string.h>

extern const DeviceModule trireme_device;

// Lines of a stranger behind the lines that say for which GPU the table is.
static void take(const uint8_t *data, size_t size) {
    const Backend *backend = trireme_device.backends[0];
    void *state = NULL;
    Text table = {0};
    CHECK(backend->open(&state, &(DeviceOptions){.kind = backend->name, .threads = 1}) == OK, "%s",
          fail_message());
    text_add(&table, "%s\n", ALGORITHMS_TITLE);
    backend->algorithms_about(state, &table);
    text_add_bytes(&table, data, size);
    if (!size || data[size - 1] != '\n') text_add(&table, "\n");
    Status status = backend->algorithms_take(state, "table", text_string(&table));
    CHECK(status == OK || (status == ERR_DATA && !strncmp(fail_message(), "table:", 6)), "status %d: %s",
          (int)status, fail_message());
    backend->close(state);
    text_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text;
    Text whole = {0};
    Status status = algorithms_read(fuzz_file("table.txt", data, size), &text);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    if (status == OK) {
        text_add(&whole, "%s", text);
        algorithms_end(&whole);
        CHECK(whole.size == size && !memcmp(whole.data, data, size), "read otherwise than written");
        text_free(&whole);
        free(text);
    }
    take(data, size);
    return 0;
}
