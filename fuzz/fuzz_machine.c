// A machine's file, and a stack's. Law: what is accepted is, printed and read again, printed as the same.
#include "fuzz.h"
#include "machine/machine.h"
#include <string.h>

static void check_same(Text *first, Text *second) {
    CHECK(first->size == second->size && memcmp(first->data, second->data, first->size) == 0,
          "printed as\n%s\nand then as\n%s", first->data, second->data);
    text_free(first);
    text_free(second);
}

static Status read_machine(const char *path) {
    static Machine machine;
    Text first = {0}, second = {0};
    TRY(machine_open(&machine, path));
    machine_print(&machine, &first);
    machine_close(&machine);
    CHECK(machine_open(&machine, fuzz_file("printed.yaml", first.data, first.size)) == OK, "%s",
          fail_message());
    machine_print(&machine, &second);
    machine_close(&machine);
    check_same(&first, &second);
    return OK;
}

static Status read_stack(const char *path) {
    Stack stack;
    Text first = {0}, second = {0};
    TRY(stack_open(&stack, path));
    stack_print(&stack, &first);
    CHECK(stack_open(&stack, fuzz_file("printed.yaml", first.data, first.size)) == OK, "%s", fail_message());
    stack_print(&stack, &second);
    check_same(&first, &second);
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("input.yaml", data, size);
    Status status = read_machine(path);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    status = read_stack(path);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    return 0;
}
