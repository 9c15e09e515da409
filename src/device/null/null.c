// The null device: addresses with nothing behind them, so that a whole step can be counted without memory.
#include "device/backend.h"
#include <stdlib.h>

// Bit 61: no machine maps such an address, so following one faults at once.
static const uintptr_t FIRST_FAKE = (uintptr_t)1 << 61;

static Status null_open(void **state, const DeviceOptions *options) {
    (void)options;
    uintptr_t *next = *state = malloc(sizeof *next);
    if (!next) return fail(ERR_OS, "no memory for a device");
    *next = FIRST_FAKE;
    return OK;
}

static void *null_take(void *state, const char *name, size_t bytes, const char **why) {
    (void)name, (void)why;
    uintptr_t *next = state, address = *next;
    *next += (bytes + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
    return (void *)address;
}

static void null_give_back(void *state, void *base, size_t bytes) { (void)state, (void)base, (void)bytes; }

const Backend null_backend = {
    .name = "null",
    .counts_only = true,
    .open = null_open,
    .close = free,
    .take = null_take,
    .give_back = null_give_back,
};
