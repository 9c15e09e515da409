// Says which rows belong to which of a rank's experts.
#include "nn/expert_stretches.h"

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void expert_rows_of(ExpertRows *rows, const Dispatch *d, const DispatchPlan *plan) {
    rows->count = d->experts, rows->sources = 1;
    rows->most = d->rules.tokens;
    rows->maxima = (ExpertMaxima){0};
    for (int64_t e = 0, at = 0; e < d->experts; at += plan->mine[e++])
        rows->stretches[e] = (DispatchStretch){
            .expert = (int)e, .first_sample = plan->first_sample[0], .begin = at, .count = plan->mine[e]};
}

void expert_rows_of_round(ExpertRows *rows, const Dispatch *d, const DispatchPlan *plan, int round) {
    rows->count = dispatch_stretches(d);
    rows->sources = d->rules.grads_apart ? d->ranks : 1;
    rows->most = d->rules.apart ? smaller(d->stride, d->rules.tokens)
                                : smaller(dispatch_rows(d), d->ranks * d->rules.tokens);
    rows->maxima = (ExpertMaxima){0};
    for (int i = 0; i < rows->count; i++) rows->stretches[i] = dispatch_stretch(d, plan, round, i);
}

Tensor expert_matrix(const ExpertWeights *w, Tensor all, int e) {
    int64_t rows = all.rows / w->experts;
    return tensor_rows(all, e * rows, rows);
}

Tensor expert_stretch(Tensor x, const DispatchStretch *s) { return tensor_rows(x, s->begin, s->count); }
