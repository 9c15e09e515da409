#include "device/front.h"

// Bit 61: no machine maps such an address, so following one faults at once.
static const uintptr_t FIRST_FAKE = (uintptr_t)1 << 61;

static void *null_take(void *self, size_t bytes) {
    Device *device = self;
    if (!device->next_fake) device->next_fake = FIRST_FAKE;
    uintptr_t address = device->next_fake;
    device->next_fake += (bytes + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
    return (void *)address;
}

static void null_give_back(void *self, void *base, size_t bytes) { (void)self, (void)base, (void)bytes; }

Memory null_memory(Device *device) { return (Memory){null_take, null_give_back, device}; }
