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

// Whether two products are of two experts, which a step makes at once: alike but for their rows, each with an own b
// and d.
static bool go_together(const Matmul *x, const Matmul *y) {
    return x->a.dtype == y->a.dtype && x->d.cols == y->d.cols && x->transpose_a == y->transpose_a &&
           x->transpose_b == y->transpose_b && x->accumulate == y->accumulate && x->b.data != y->b.data &&
           x->d.data != y->d.data;
}

void replay_make(const Replay *r, Device *device, Stream *stream) {
    for (size_t i = 0, n; i < r->count; i += n) {
        n = 1;
        while (i + n < r->count && n < MATMULS_AT_ONCE && go_together(&r->calls[i + n - 1], &r->calls[i + n]))
            n++;
        matmul_each(device, stream, &r->calls[i], (int)n);
    }
}

void replay_close(Replay *r) {
    free(r->calls);
    *r = (Replay){0};
}
