// The list of sublayers, and the closed forms of a model as sums over it.
#include "nn/sublayer.h"
#include <string.h>

const SublayerKind *const sublayer_kinds[NUM_SUBLAYERS] = {
#define SUBLAYER(name) &name##_sublayer,
#include "nn/sublayers.def"
#undef SUBLAYER
};

ParamCount model_layer_parameters(const ModelShape *s) {
    ParamCount sum = {0};
    for (int i = 0; i < NUM_SUBLAYERS; i++) {
        ParamCount one = sublayer_kinds[i]->parameters(s);
        sum.cut += one.cut, sum.whole += one.whole;
    }
    return sum;
}

int64_t model_parameters(const ModelShape *s) {
    ParamCount layer = model_layer_parameters(s), embedding = model_embedding_parameters(s, s->vocabulary),
               head = model_head_parameters(s, s->vocabulary);
    return s->layers * (layer.cut + layer.whole) + embedding.cut + embedding.whole + head.cut + head.whole;
}

// Of the forward of one token in a layer.
static double layer_flops(const ModelShape *s) {
    double layer = 0;
    for (int i = 0; i < NUM_SUBLAYERS; i++) layer += sublayer_kinds[i]->flops(s);
    return layer;
}

// A backward takes twice the FLOPs of its forward, but for weights that are frozen: of these it needs no gradient.
double model_flops(const ModelShape *s, int table_rows, double samples) {
    double layer = layer_flops(s), head = 2.0 * table_rows * s->hidden;
    if (!s->lora_rank) return samples * s->sequence * (3 * (s->layers * layer + head));
    ModelShape products = *s;
    products.sequence = products.window = 0;
    double weights = layer_flops(&products), adapters = 2.0 * (double)model_adapter_parameters(s);
    return samples * s->sequence * (s->layers * (3 * (layer + adapters) - weights) + 2 * head);
}

double stash_rows(const ModelShape *s, const ModelMode *mode, int tp) {
    double tokens = (double)s->sequence * mode->microbatch;
    return mode->sequence_parallel ? tokens / tp : tokens;
}

static StashTerm *find_term(StashTerm *terms, int count, const char *what) {
    for (int i = 0; i < count; i++)
        if (!strcmp(terms[i].what, what)) return &terms[i];
    return NULL;
}

// Terms of one name add up; statistics come last.
static int add_term(StashTerm *terms, int count, const StashTerm *one) {
    StashTerm *same = find_term(terms, count, one->what);
    if (same) {
        same->published += one->published, same->kept += one->kept;
        return count;
    }
    CHECK(count < MAX_STASH_TERMS, "a layer keeps more than %d kinds of tensors", MAX_STASH_TERMS);
    int at = count;
    for (; at > 0 && !one->is_statistic && terms[at - 1].is_statistic; at--) terms[at] = terms[at - 1];
    terms[at] = *one;
    return count + 1;
}

int model_stash_terms(const ModelShape *shape, const ModelMode *mode, int tp, StashTerm *terms) {
    int count = 0;
    for (int i = 0; i < NUM_SUBLAYERS; i++) {
        StashTerm own[MAX_STASH_TERMS];
        int num_own = sublayer_kinds[i]->stash_terms(shape, mode, tp, own);
        for (int n = 0; n < num_own; n++) count = add_term(terms, count, &own[n]);
    }
    return count;
}

// Names are not compared: the planner asks for many sums.
StashSum model_stash_sum(const ModelShape *shape, const ModelMode *mode, int tp) {
    StashSum sum = {0};
    for (int i = 0; i < NUM_SUBLAYERS; i++) {
        StashTerm own[MAX_STASH_TERMS];
        int num_own = sublayer_kinds[i]->stash_terms(shape, mode, tp, own);
        for (int n = 0; n < num_own; n++) sum.published += own[n].published, sum.kept += own[n].kept;
    }
    return sum;
}
