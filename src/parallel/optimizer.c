#include "parallel/parallel.h"
#include <math.h>
#include <stdlib.h>

Status optimizer_create(Optimizer *o, Context *context, const Params *params, Arena *arena,
                        AdamOptions options) {
    *o = (Optimizer){.context = context, .params = params, .options = options};
    o->sums = tensor_take(arena, "sums of squares of gradients", 1, params->count, F64);
    o->host = calloc((size_t)params->count, sizeof *o->host);
    if (!o->host) return fail(ERR_OS, "no memory for the gradient norm");
    return OK;
}

void optimizer_destroy(Optimizer *o) {
    free(o->host);
    *o = (Optimizer){0};
}

static bool counts_here(const Param *p, int tp_rank) {
    return p->chunk >= 0 && !p->spec.tied_to && (p->spec.shard.dim >= 0 || tp_rank == 0);
}

double optimizer_grad_norm(Optimizer *o) {
    const Context *c = o->context;
    rank_doing("gradient norm");
    device_zero(c->device, c->stream, o->sums);
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        if (!counts_here(p, c->place.tp)) continue;
        Tensor sum = {(double *)o->sums.data + i, 1, 1, F64};
        sum_squares(c->device, c->stream, (SumSquares){.x = p->grad, .sum = sum});
    }
    device_download(c->device, c->stream, o->host, o->sums);
    comm_all_reduce_host(c->model, o->host, o->params->count, REDUCE_SUM);
    double total = 0;
    for (int i = 0; i < o->params->count; i++) total += o->host[i];
    return sqrt(total);
}

void optimizer_step(Optimizer *o, double grad_norm, double lr, double weight_decay) {
    const Context *c = o->context;
    const AdamOptions *a = &o->options;
    rank_doing("optimizer step");
    o->steps++;
    double coefficient = a->clip > 0 ? a->clip / (grad_norm + 1e-6) : 1;
    AdamW args = {.lr = lr, .beta1 = a->beta1, .beta2 = a->beta2, .epsilon = a->epsilon};
    args.correction1 = 1 - pow(a->beta1, (double)o->steps);
    args.correction2 = 1 - pow(a->beta2, (double)o->steps);
    args.grad_scale = coefficient < 1 ? coefficient : 1;
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        if (p->chunk < 0 || p->shares) continue;
        args.gradient = p->grad, args.parameter = p->value, args.m = p->m, args.v = p->v;
        args.weight_decay = p->spec.decay ? weight_decay : 0;
        adamw(c->device, c->stream, args);
    }
}
