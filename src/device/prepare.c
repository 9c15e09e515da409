// Notes the kinds of calls that a run makes of products and attention, and has a device prepare for them.
#include "device/prepare.h"
#include "device/front.h"
#include <stdlib.h>
#include <string.h>

// ---- kinds of calls ---------------------------------------------------------------------------------------

static bool is_attention(DeviceOp op) { return op == OP_ATTENTION_FORWARD || op == OP_ATTENTION_BACKWARD; }

static DeviceCall kind_of(DeviceOp op, const void *args) {
    const OpRow *row = &op_rows[op];
    DeviceCall call = {.op = op};
    memcpy(&call.args, args, row->args_bytes);
    Tensor *tensors = (Tensor *)(void *)&call.args;
    for (int i = 0; i < row->reads + row->writes; i++) {
        const uintptr_t address = (uintptr_t)tensors[i].data;
        if (address) tensors[i].data = (void *)(DEVICE_CALL_ALIGNMENT + address % DEVICE_CALL_ALIGNMENT);
    }
    return call;
}

static bool same_tensors(const DeviceCall *a, const DeviceCall *b) {
    const OpRow *row = &op_rows[a->op];
    const Tensor *x = (const Tensor *)(const void *)&a->args, *y = (const Tensor *)(const void *)&b->args;
    for (int i = 0; i < row->reads + row->writes; i++)
        if (!tensor_same_shape(x[i], y[i]) || x[i].data != y[i].data) return false;
    return true;
}

// Of the same tensors, which say all of an AttentionShape but its first head.
static bool same_attention(const Dropout *x, const Dropout *y, const AttentionRules *a,
                           const AttentionRules *b) {
    return x->probability == y->probability && a->window == b->window && a->scale == b->scale &&
           a->cap == b->cap && a->off_by_one == b->off_by_one;
}

// Of the same tensors.
static bool same_product(const DeviceCall *x, const DeviceCall *y) {
    JoinedProduct first, second;
    const Matmul *a = &first.matmul, *b = &second.matmul;
    op_product(x->op, &x->args, &first), op_product(y->op, &y->args, &second);
    return a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->accumulate == b->accumulate && a->fast_sums == b->fast_sums &&
           (x->op != OP_MATMUL_SUMS ||
            x->args.matmul_sums.accumulate_sums == y->args.matmul_sums.accumulate_sums);
}

static bool same_kind(const DeviceCall *x, const DeviceCall *y) {
    if (x->op != y->op || !same_tensors(x, y)) return false;
    switch (x->op) {
    case OP_ATTENTION_FORWARD:
        return same_attention(&x->args.attention_forward.dropout, &y->args.attention_forward.dropout,
                              &x->args.attention_forward.rules, &y->args.attention_forward.rules);
    case OP_ATTENTION_BACKWARD:
        return same_attention(&x->args.attention_backward.dropout, &y->args.attention_backward.dropout,
                              &x->args.attention_backward.rules, &y->args.attention_backward.rules);
    default: return same_product(x, y);
    }
}

// ---- calls ------------------------------------------------------------------------------------------------

static bool has_room(DeviceCalls *calls) {
    if (calls->count < calls->capacity) return true;
    const int capacity = calls->capacity ? 2 * calls->capacity : 32;
    DeviceCall *items = realloc(calls->items, (size_t)capacity * sizeof *items);
    if (!items) return false;
    calls->items = items;
    calls->capacity = capacity;
    return true;
}

void device_calls_note(void *self, DeviceOp op, const void *args, OpCount one) {
    DeviceCalls *calls = self;
    JoinedProduct product;
    (void)one;
    if (!is_attention(op) && !op_product(op, args, &product)) return;
    const DeviceCall call = kind_of(op, args);
    for (int i = 0; i < calls->count; i++)
        if (same_kind(&calls->items[i], &call)) return;
    if (has_room(calls))
        calls->items[calls->count++] = call;
    else
        calls->incomplete = true;
}

void device_calls_free(DeviceCalls *calls) {
    free(calls->items);
    *calls = (DeviceCalls){0};
}

Status device_prepare(Device *device, const DeviceCalls *calls) {
    if (calls->incomplete) return fail(ERR_OS, "no memory for the kinds of a step's operations");
    for (int i = 0; i < calls->count && device->backend.prepare; i++)
        TRY(device->backend.prepare(device->state, calls->items[i].op, &calls->items[i].args));
    return OK;
}
