// The gradients of parameters: who writes and who adds to them, and how leaves and sources become one sum.
#include "device/ops.h"
#include "nn/params.h"

static int num_sources(const Params *params, const Param *p) { return p->sources ? params->sources : 1; }

// Adds the leaves before this one to it that make a whole subtree with it. Returns the level of that subtree.
static int add_halves(const Param *p, Device *device) {
    int level = 0;
    for (; p->last.leaf >> level & 1; level++)
        add(device, device_stream(device), (Add){.x = p->partial[level], .y = p->grad});
    return level;
}

static bool same_place(LeafPlace a, LeafPlace b) { return a.leaf == b.leaf && a.index == b.index; }

// Shows the watch a gradient that is about to change, where it is due.
static void show(Param *p) {
    const GradWatch *watch = p->watch;
    if (!watch || p->grad_uninitialized || !same_place(p->last, watch->last)) return;
    p->watch = NULL;
    watch->see(watch->self, p);
}

static void begin_leaf(Param *p, Device *device, int leaf) {
    CHECK(leaf == p->last.leaf + 1 && !p->grad_uninitialized, "%s: leaf %d after leaf %d", p->spec.name, leaf,
          p->last.leaf);
    int level = add_halves(p, device);
    device_copy(device, device_stream(device), p->partial[level], p->grad);
    p->grad_uninitialized = true;
}

GradSum param_grad_sum(Param *p, Device *device, LeafPlace place) {
    if (!same_place(place, p->last)) show(p);
    if (place.leaf != p->last.leaf) begin_leaf(p, device, place.leaf);
    GradSum sum = {p->grad, !p->grad_uninitialized};
    p->grad_uninitialized = false;
    p->last = place;
    return sum;
}

Tensor param_grad(Param *p, Device *device, LeafPlace place) {
    if (!p) return (Tensor){0};
    GradSum sum = param_grad_sum(p, device, place);
    if (!sum.adds) device_zero(device, device_stream(device), sum.sum);
    return sum.sum;
}

static void finish_leaves(const Params *params, Device *device, Param *p) {
    show(p);
    if (params->leaves < 2) return;
    CHECK(p->last.leaf == params->leaves - 1, "%s ends with leaf %d of %d", p->spec.name, p->last.leaf,
          params->leaves);
    add_halves(p, device);
}

// The leaves of neighbouring sources follow each other: their sums are halves of the next larger subtree.
static void add_sources(const Params *params, Device *device, Param *p) {
    for (int step = 1; step < params->sources; step += step)
        for (int s = 0; s + step < params->sources; s += 2 * step)
            add(device, device_stream(device),
                (Add){.x = param_of_source(p, s + step)->grad, .y = param_of_source(p, s)->grad});
}

void params_finish_grads(const Params *params, Device *device, int unit) {
    for (int i = params->units[unit].first; i < params->units[unit].end; i++) {
        Param *p = params->items[i];
        if (p->chunk < 0 || p->frozen) continue;
        for (int s = 0; s < num_sources(params, p); s++) finish_leaves(params, device, param_of_source(p, s));
        if (p->sources) add_sources(params, device, p);
    }
}

// ---- a step -------------------------------------------------------------------------------------

void params_zero_grads(const Params *params, Device *device) {
    Stream *stream = device_stream(device);
    for (int c = 0; c < params->num_chunks; c++) device_zero(device, stream, params->chunks[c].grads);
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        if (p->tied_value && !p->frozen) device_zero(device, stream, p->grad);
        p->grad_uninitialized = false;
    }
}

void params_begin_grads(const Params *params) {
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        for (int s = 0; s < num_sources(params, p); s++) {
            Param *q = param_of_source(p, s);
            q->grad_uninitialized = p->chunk >= 0 && !p->frozen;
            q->last = (LeafPlace){0};
        }
    }
}

void params_watch_grads(const Params *params, const GradWatch *watch) {
    for (int i = 0; i < params->count; i++)
        if (params->items[i]->chunk >= 0 && !params->items[i]->frozen) params->items[i]->watch = watch;
}

void params_show_grads(const Params *params, int unit) {
    for (int i = params->units[unit].first; i < params->units[unit].end; i++) show(params->items[i]);
}

void params_end_watch(const Params *params) {
    for (int i = 0; i < params->count; i++) {
        Param *p = params->items[i];
        show(p);
        CHECK(!p->watch, "%s ends with microbatch %d of leaf %d", p->spec.name, p->last.index, p->last.leaf);
    }
}
