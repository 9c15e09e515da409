// Reads what a config.json says of experts beside the sizes that families.def names: which layers have them, and what
// of them is not supported.
#include "checkpoint/fields.h"
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
    if (f->says & SAYS_DENSE) TRY(config_count(c, "first_k_dense_replace", 1 << 20, &dense));
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

// ---- DeepSeek ------------------------------------------------------------------------------------------

Status config_dense(Config *c, const Family *f, ModelShape *s, bool *dense) {
    static const char *const of_experts[] = {"n_routed_experts",
                                             "n_shared_experts",
                                             "num_experts_per_tok",
                                             "moe_intermediate_size",
                                             "moe_layer_freq",
                                             "routed_scaling_factor",
                                             "n_group",
                                             "topk_group",
                                             "topk_method",
                                             "norm_topk_prob",
                                             "scoring_func"};
    int first = 0;
    *dense = false;
    if (!(f->says & SAYS_DENSE)) return OK;
    TRY(config_count(c, "first_k_dense_replace", INT32_MAX, &first));
    *dense = first >= s->layers;
    if (!*dense && family_has(f, "experts")) return OK;
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++) config_member(c, of_experts[i]);
    s->router_pre_softmax = false;
    if (*dense) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "%s: this model cannot be read: its layers from %d of %d on have experts (first_k_dense_replace), whose "
        "choice has biases (e_score_correction_bias), which are not supported",
        c->what, first, s->layers);
}

// Groups are chosen by their best expert there, and by their best k / topk_group here.
static Status read_groups(Config *c, ModelShape *s) {
    static const char *const methods[] = {"greedy", "group_limited_greedy", NULL};
    int method, groups = 0, open = 0;
    TRY(config_word(c, "topk_method", methods, &method));
    TRY(config_size(c, "n_group", MAX_EXPERT_GROUPS, &groups));
    TRY(config_size(c, "topk_group", MAX_EXPERT_GROUPS, &open));
    if (method == 0) return OK;
    if (!groups || !open || s->experts % groups || open > groups ||
        s->experts_topk > open * (s->experts / groups))
        return fail(
            ERR_DATA,
            "%s: %d groups (n_group) of %d experts, of which %d (topk_group) are open: groups are equal, "
            "and the open ones have the %d experts of a token",
            c->what, groups, s->experts, open, s->experts_topk);
    if (s->experts_topk >= 2 * open)
        return fail(
            ERR_UNAVAILABLE,
            "%s: this model cannot be read: groups are chosen by their best expert, which is supported for "
            "fewer experts of a token than 2 topk_group; there are %d, and topk_group is %d",
            c->what, s->experts_topk, open);
    s->router_groups = groups, s->router_open_groups = open;
    return OK;
}

static Status read_shared(Config *c, ModelShape *s) {
    static const char *const scores[] = {"softmax", NULL};
    int shared = 2, every = 1, word;
    const double most = size_named("shared_ffn")->field.most;
    TRY(config_size(c, "n_shared_experts", MAX_EXPERTS, &shared));
    TRY(config_size(c, "moe_layer_freq", INT32_MAX, &every));
    TRY(config_word(c, "scoring_func", scores, &word));
    TRY(config_must_be(c, "norm_topk_prob", false));
    if (every != 1)
        return fail(ERR_UNAVAILABLE, "%s: a moe_layer_freq other than 1 is not supported", c->what);
    if ((double)shared * s->expert_ffn > most)
        return fail(ERR_DATA, "%s: %d shared experts of width %d: %g in all is the most", c->what, shared,
                    s->expert_ffn, most);
    s->shared_ffn = shared * s->expert_ffn;
    return read_groups(c, s);
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
    if (f->says & SAYS_DENSE) TRY(read_shared(c, s));
    if (!(f->says & (SAYS_SPARSE | SAYS_DENSE))) return OK;
    char *set = malloc((size_t)s->layers);
    if (!set) return fail(ERR_OS, "no memory for a list of %d layers", s->layers);
    Status status = read_layers(c, f, s, set);
    free(set);
    return status;
}
