// Reads what a config.json says of experts beside the sizes that families.def names: which layers have them, and what
// of them is not supported.
#include "checkpoint/foreign/config_members.h"
#include <inttypes.h>
#include <stdlib.h>

// ---- layers -------------------------------------------------------------------------------------------

// Clears the layers that a list names.
static Status clear_listed(Config *c, const char *name, int layers, char *set) {
    const Json *list = config_member(c, name);
    if (!config_is_given(list)) return OK;
    if (list->type != JSON_ARRAY) return config_bad(c, name, "a list of layers");
    for (size_t i = 0; i < list->count; i++) {
        int64_t layer;
        if (!json_int(&list->items[i], &layer) || layer < 0 || layer >= layers)
            return config_bad(c, name, "a list of layers that the model has");
        set[layer] = 0;
    }
    return OK;
}

static Status read_layers(Config *c, const Family *f, ModelShape *s, char *set) {
    int every = 1, dense = 0;
    if (f->says & SAYS_SPARSE) TRY(config_size(c, "decoder_sparse_step", 1 << 20, &every));
    if (f->says & SAYS_DENSE) TRY(config_size(c, "first_k_dense_replace", 1 << 20, &dense));
    for (int i = 0; i < s->layers; i++) set[i] = (i + 1) % every == 0 && i >= dense;
    if (f->says & SAYS_SPARSE) TRY(clear_listed(c, "mlp_only_layers", s->layers, set));
    if (!config_pattern(set, s->layers, &s->experts_period, &s->experts_layers))
        return fail(
            ERR_UNAVAILABLE,
            "%s: this model cannot be read: which layers have experts has to repeat after at most %d layers",
            c->what, MAX_WINDOW_PERIOD);
    if (s->experts_period || set[0]) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "%s: this model cannot be read: none of its %d layers has experts, as decoder_sparse_step and "
        "mlp_only_layers say",
        c->what, s->layers);
}

// ---- all of it ----------------------------------------------------------------------------------------

Status config_experts(Config *c, const Family *f, ModelShape *s) {
    if (!s->experts) return OK;
    if (f->says & EXPERTS_ARE_MLPS) s->expert_ffn = s->ffn;
    TRY(config_must_be_zero(c, "router_jitter_noise"));
    TRY(config_must_be_absent(c, "clip_qkv"));
    if (s->experts_topk > s->experts)
        return fail(ERR_DATA, "%s: %d experts of a token (num_experts_per_tok), and there are %d", c->what,
                    s->experts_topk, s->experts);
    if (!(f->says & (SAYS_SPARSE | SAYS_DENSE))) return OK;
    char *set = malloc((size_t)s->layers);
    if (!set) return fail(ERR_OS, "no memory for a list of %d layers", s->layers);
    Status status = read_layers(c, f, s, set);
    free(set);
    return status;
}
