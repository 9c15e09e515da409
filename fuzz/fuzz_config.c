// The YAML of --config. Law: what is accepted is, saved and read again, saved as the same.
#include "config/config.h"
#include "fuzz.h"
#include <string.h>

static Status read_options(Options *options, const char *path) {
    char *arguments[] = {(char *)"--config", (char *)path};
    return options_parse(options, FOR_TRAIN, 2, arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Options options, again;
    Text first = {0}, second = {0};
    Status status = read_options(&options, fuzz_file("input.yaml", data, size));
    if (status == OK) {
        options_save(&options, FOR_TRAIN, &first);
        CHECK(read_options(&again, fuzz_file("saved.yaml", first.data, first.size)) == OK, "%s",
              fail_message());
        options_save(&again, FOR_TRAIN, &second);
        CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0,
              "saved as\n%s\nand then as\n%s", first.data, second.data);
        options_destroy(&again);
        status = options_resolve(&options, 1 + (int)(size % 8));
        options_destroy(&options);
    }
    CHECK(status == OK || status == ERR_CONFIG || status == ERR_USAGE || status == ERR_DATA, "status %d: %s",
          (int)status, fail_message());
    text_free(&first);
    text_free(&second);
    return 0;
}
