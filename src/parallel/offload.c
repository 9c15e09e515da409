// Steps optimizer state that lies in the host's memory: a block's gradients come to the host while the host steps the
// block before, whose new values go to the device meanwhile.
#include "parallel/offload.h"
#include <stdlib.h>

// Large blocks make the most of the link, and several let copies overlap with steps.
static int64_t block_elements(int64_t elements) {
    enum { MOST = 1 << 22, BLOCKS = 16 };
    int64_t block = elements / BLOCKS / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    return block < PARAM_ALIGNMENT ? PARAM_ALIGNMENT : block > MOST ? MOST : block;
}

Status offload_create(Optimizer *o) {
    int64_t elements = 0, longest = 0;
    int most = 0;
    Offload *offload = o->offload = calloc(1, sizeof *offload);
    if (!offload) return fail(ERR_OS, "no memory for an optimizer on the host");
    for (int i = 0; i < o->buckets->count; i++) {
        const ShardState *state = &o->offloaded[i];
        elements += state->count;
        if (state->count > longest) longest = state->count;
        if (state->num_pieces > most) most = state->num_pieces;
    }
    offload->block = block_elements(elements);
    if (longest < offload->block) offload->block = longest;
    for (int i = 0; i < 2; i++)
        offload->gradients[i] =
            tensor_take(o->options.offload.arena, "gradients of a block", 1, offload->block, F32);
    offload->segments = calloc((size_t)most + 1, sizeof *offload->segments);
    return offload->segments ? OK : fail(ERR_OS, "no memory for %d pieces of parameters", most);
}

void offload_destroy(Optimizer *o) {
    if (o->offload) free(o->offload->segments);
    free(o->offload);
}

// ---- blocks ---------------------------------------------------------------------------------------

// Elements [begin, begin + count) of what is offloaded of a bucket's shard; count 0: there are no more.
typedef struct {
    int bucket;
    int64_t begin, count;
} StateBlock;

static StateBlock next_block(const Optimizer *o, StateBlock b) {
    b.begin += b.count;
    while (b.bucket < o->buckets->count && b.begin >= o->offloaded[b.bucket].count) b.bucket++, b.begin = 0;
    b.count = 0;
    if (b.bucket == o->buckets->count) return b;
    int64_t left = o->offloaded[b.bucket].count - b.begin;
    b.count = left < o->offload->block ? left : o->offload->block;
    return b;
}

static Tensor part_of(Tensor x, StateBlock b) { return tensor_part(x, b.begin, b.count); }

// Starts the copy of a block's gradients; the host has them when the stream has got to the event.
static StreamEvent fetch(const Optimizer *o, StateBlock b, Tensor to) {
    const Context *c = o->context;
    if (!b.count) return (StreamEvent){0};
    device_download_async(c->device, c->stream, to.data,
                          part_of(state_grads(o, b.bucket, &o->offloaded[b.bucket]), b));
    return event_record(c->device, c->stream);
}

// Lists the pieces of parameters in a block, by positions there.
static int list_segments(const Optimizer *o, StateBlock b) {
    const ShardState *state = &o->offloaded[b.bucket];
    int count = 0;
    for (int i = 0; i < state->num_pieces; i++) {
        OpSegment piece = state->pieces[i];
        int64_t begin = piece.begin - b.begin, end = begin + piece.count;
        if (begin < 0) begin = 0;
        if (end > b.count) end = b.count;
        if (begin < end)
            o->offload->segments[count++] =
                (OpSegment){.begin = begin, .count = end - begin, .decays = piece.decays};
    }
    return count;
}

static void step_block(const Optimizer *o, StateBlock b, Tensor gradients, AdamW args) {
    const ShardState *state = &o->offloaded[b.bucket];
    Device *host = o->options.offload.device;
    args.num_segments = list_segments(o, b);
    if (!args.num_segments) return;
    args.segments = o->offload->segments;
    args.gradient = tensor_part(gradients, 0, b.count);
    args.parameter = part_of(state->main, b);
    args.m = part_of(state->m, b);
    args.v = part_of(state->v, b);
    if (state->value.dtype != F32) args.value = part_of(state->value, b);
    adamw(host, device_stream(host), args);
}

static void send(const Optimizer *o, StateBlock b) {
    const Context *c = o->context;
    Tensor values = bucket_values(o->params, &o->buckets->items[b.bucket]);
    device_upload_async(c->device, c->stream, part_of(values, b),
                        part_of(o->offloaded[b.bucket].value, b).data);
}

// One stream makes all copies, in turn: gradients of block k + 1 come before values of block k go. So values of the
// step before have left the host when the first gradients are there.
void offload_step(Optimizer *o, AdamW args) {
    const Tensor *gradients = o->offload->gradients;
    StateBlock now = next_block(o, (StateBlock){0});
    StreamEvent come = fetch(o, now, gradients[0]);
    for (int i = 1; now.count; i ^= 1) {
        StateBlock next = next_block(o, now);
        StreamEvent comes = fetch(o, next, gradients[i]);
        event_wait(o->context->device, come);
        step_block(o, now, gradients[i ^ 1], args);
        send(o, now);
        now = next, come = comes;
    }
}
