// Counts what the experts of all layers have to do in a step.
#include "nn/expert_loads.h"
#include "nn/layers.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t row_size(const ExpertLoads *l) { return (size_t)(l->experts + NUM_LOAD_SUMS); }

Status expert_loads_open(ExpertLoads *l, const ModelShape *shape, const Params *params) {
    if (!shape->experts) return OK;
    l->layers = shape->layers, l->experts = shape->experts, l->shape = shape;
    l->sums = calloc((size_t)l->layers * row_size(l), sizeof *l->sums);
    l->biases = calloc((size_t)l->layers, sizeof(Param *));
    if (!l->sums || !l->biases) return fail(ERR_OS, "no memory for the loads of %d experts", l->experts);
    for (int layer = 0; layer < l->layers && shape->router_bias; layer++) {
        Param *bias = params_find(params, part_name(layer, "mlp.router." ROUTER_BIAS).text);
        if (bias && bias->chunk >= 0 && !params->adapters_only) l->biases[layer] = bias;
    }
    return OK;
}

void expert_loads_close(ExpertLoads *l) {
    free(l->sums);
    free(l->biases);
    *l = (ExpertLoads){0};
}

void expert_loads_begin(ExpertLoads *l) {
    if (l->layers) memset(l->sums, 0, (size_t)l->layers * row_size(l) * sizeof *l->sums);
}

void expert_loads_end(ExpertLoads *l, Comm *world, int microbatches) {
    if (!l->layers) return;
    comm_all_reduce_host(world, l->sums, l->layers * (int)row_size(l), REDUCE_SUM);
    for (int layer = 0; layer < l->layers; layer++)
        for (LoadSum sum = LOAD_BALANCE_LOSS; sum <= LOAD_Z_LOSS; sum++)
            *expert_load_sum(l, layer, sum) /= microbatches;
}

void expert_biases_step(const ExpertLoads *l, Device *device, Stream *stream, float rate) {
    float bias[MAX_EXPERTS];
    for (int layer = 0; layer < l->layers; layer++) {
        const double *loads = expert_loads_of(l, layer);
        double all = 0;
        if (!l->biases[layer]) continue;
        device_download(device, stream, bias, l->biases[layer]->value);
        for (int e = 0; e < l->experts; e++) all += loads[e];
        for (int e = 0; e < l->experts; e++) {
            double missing = all - l->experts * loads[e]; // a whole number
            bias[e] += missing > 0 ? rate : missing < 0 ? -rate : 0;
        }
        device_upload(device, stream, l->biases[layer]->value, bias);
    }
}

bool expert_loads_count(const Context *c, const Microbatch *mb) {
    return c->loads && mb->training && !c->again && device_computes(c->device);
}

double *expert_loads_of(const ExpertLoads *l, int layer) { return l->sums + (size_t)layer * row_size(l); }

double *expert_load_sum(const ExpertLoads *l, int layer, LoadSum sum) {
    return expert_loads_of(l, layer) + l->experts + sum;
}

bool expert_loads_has(const ExpertLoads *l, int layer) { return model_layer_has_experts(l->shape, layer); }

LoadStatistics expert_load_statistics(const ExpertLoads *l, int layer) {
    const double *loads = expert_loads_of(l, layer);
    double all = 0, most = 0, entropy = 0;
    for (int e = 0; e < l->experts; e++) all += loads[e], most = fmax(most, loads[e]);
    for (int e = 0; e < l->experts; e++)
        if (loads[e] > 0) entropy -= loads[e] / all * log(loads[e] / all);
    if (all <= 0) return (LoadStatistics){0};
    return (LoadStatistics){.most = most * l->experts / all,
                            .dropped = *expert_load_sum(l, layer, LOAD_DROPPED) / all,
                            .entropy = l->experts > 1 ? entropy / log(l->experts) : 1};
}

double expert_loads_mean(const ExpertLoads *l, LoadSum sum) {
    double all = 0;
    int layers = 0;
    for (int layer = 0; layer < l->layers; layer++) {
        if (!expert_loads_has(l, layer)) continue;
        all += *expert_load_sum(l, layer, sum);
        layers++;
    }
    return all / layers;
}
