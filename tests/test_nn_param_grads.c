// Gradients of experts for the tokens of several ranks: leaves and sources are added in one tree, with the bits of plain
// loops.
#include "base/rng.h"
#include "device/ops.h"
#include "harness.h"
#include "nn/params.h"
#include <string.h>

enum { MOST_SOURCES = 4, MOST_LEAVES = 4, EACH = 3, GRADS = 24 * 2 };

static void drawn_contribution(int source, int leaf, int index, float *x) {
    rng_fill_normal(rng_key((uint64_t)source, "contribution", (uint64_t)(leaf * EACH + index)), 0, GRADS, 0,
                    1, x);
}

// The sum of [first, first + count) leaves of all sources, one source's after the other's.
static void plain_tree(int leaves, int first, int count, float *sum) {
    float x[GRADS];
    if (count == 1) {
        drawn_contribution(first / leaves, first % leaves, 0, sum);
        for (int i = 1; i < EACH; i++) {
            drawn_contribution(first / leaves, first % leaves, i, x);
            for (int k = 0; k < GRADS; k++) sum[k] += x[k];
        }
        return;
    }
    plain_tree(leaves, first, count / 2, sum);
    plain_tree(leaves, first + count / 2, count / 2, x);
    for (int k = 0; k < GRADS; k++) sum[k] += x[k];
}

static void add_contribution(Params *params, Device *device, Arena *arena, int source, LeafPlace place) {
    float values[GRADS];
    Param *p = params->items[0];
    ArenaMark mark = arena_mark(arena);
    Tensor x = tensor_take(arena, "contribution", p->grad.rows, p->grad.cols, F32);
    drawn_contribution(source, place.leaf, place.index, values);
    device_upload(device, device_stream(device), x, values);
    add(device, device_stream(device),
        (Add){.x = x, .y = param_grad(param_of_source(p, source), device, place)});
    arena_release(arena, mark);
}

// A rank computes a microbatch of every source before the next one.
static void sources_are_added_as_more_leaves(void) {
    for (int sources = 1; sources <= MOST_SOURCES; sources += sources)
        for (int leaves = 1; leaves <= MOST_LEAVES; leaves += leaves) {
            Device *device;
            Arena arena;
            Params params = {.leaves = leaves, .sources = sources};
            Topology topology = topology_of((Grid)GRID(1, 1, 1), 0);
            float want[GRADS], got[GRADS];
            EXPECT_OK(device_open(&device, (DeviceOptions){.kind = "reference", .threads = 1}));
            EXPECT_OK(arena_open(&arena, "run", device_memory(device), 1 << 20));
            params_begin_unit(&params);
            params_declare(&params, (ParamSpec){.name = "w", .rows = 24, .cols = 2, .experts = 4});
            params_place(&params, &arena, &topology, F32, (int[]){0}, 1);
            for (int step = 0; step < 2; step++) {
                params_begin_grads(&params);
                for (int i = 0; i < leaves * EACH; i++)
                    for (int s = 0; s < sources; s++)
                        add_contribution(&params, device, &arena, s, (LeafPlace){i / EACH, i % EACH});
                params_finish_grads(&params, device, 0);
            }
            device_download(device, device_stream(device), got, params.items[0]->grad);
            plain_tree(leaves, 0, sources * leaves, want);
            EXPECT(!memcmp(got, want, sizeof want), "%d sources of %d leaves", sources, leaves);
            params_free(&params);
            arena_close(&arena);
            device_close(device);
        }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"sources_are_added_as_more_leaves", sources_are_added_as_more_leaves}, {0}}, argc,
        argv);
}
