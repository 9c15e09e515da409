// Records matrix products and makes them again.
#include "replay.h"
#include "base/array.h"
#include <stdlib.h>
#include <string.h>

void replay_add(Replay *r, const Matmul *call, OpCount one) {
    array_grow(&r->calls, sizeof *r->calls, r->count + 1, &r->capacity);
    r->calls[r->count++] = *call;
    r->flops += one.flops;
}

// Bytes of 0x3c make small normal numbers in every type; what other operations left might be multiplied slower.
static void fill(Tensor x) { memset(x.data, 0x3c, tensor_bytes(x)); }

void replay_fill(Replay *r) {
    for (size_t i = 0; i < r->count; i++) fill(r->calls[i].a), fill(r->calls[i].b), fill(r->calls[i].d);
}

void replay_make(const Replay *r, Device *device, Stream *stream) {
    for (size_t i = 0; i < r->count; i++) matmul(device, stream, r->calls[i]);
}

void replay_close(Replay *r) {
    free(r->calls);
    *r = (Replay){0};
}
