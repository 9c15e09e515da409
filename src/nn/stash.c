// The bytes that one layer stashes of one microbatch, term by term.
#include "nn/shape.h"

// The published terms assume 16 bits; in another element type those of activations grow with
// it, masks do not.
int model_stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), t = tp, tokens = (double)s->sequence * mode->microbatch;
    double rows = mode->sequence_parallel ? tokens / t : tokens; // of what only sequence parallelism cuts
    double hidden = rows * s->hidden, width = (double)s->heads * s->head_size;
    double qkv = tokens * (width + 2.0 * model_groups(s) * s->head_size) / t;
    double inner = tokens * s->ffn / t, fc1 = s->activation == ACTIVATION_SWIGLU ? 2 * inner : inner;
    double square = tokens * s->heads * s->sequence / t; // elements of the S x S matrices
    bool core = mode->recompute != RECOMPUTE_SELECTIVE;  // keeps what is inside the attention core
    double per_row = s->rms_norm ? 1 : 2;
    const StashTerm terms[] = {
        {"inputs of the two norms", 2 * e * hidden, 2 * e * hidden},
        {"inputs of qkv and fc1", 2 * e * hidden, 2 * e * hidden},
        {"queries, keys, values", e * qkv, e * qkv},
        {"softmax output", core ? e * square : 0, core && mode->keep_probabilities ? e * square : 0},
        {"softmax dropout mask", core ? square : 0, 0},
        {"softmax dropout output", core ? e * square : 0, 0},
        {"attention output", e * tokens * width / t, e * tokens * width / t},
        {"attention dropout mask", hidden, 0},
        {"fc1 output", e * fc1, e * fc1},
        {"activation output", e * inner, e * inner},
        {"mlp dropout mask", hidden, 0},
        {"norm statistics, fp32", 0, 2 * per_row * 4 * rows},
        {"softmax statistics, fp32", 0, core ? 4 * tokens * s->heads / t : 0},
    };
    int count = sizeof terms / sizeof terms[0];
    for (int i = 0; i < count; i++) out[i] = terms[i];
    return count;
}
