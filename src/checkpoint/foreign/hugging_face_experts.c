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
    if (!*dense) return OK;
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++) config_member(c, of_experts[i]);
    s->router_pre_softmax = s->router_sigmoid = s->router_bias = false;
    return OK;
}

static Status read_groups(Config *c, const Family *f, ModelShape *s) {
    static const char *const softmax[] = {"greedy", "group_limited_greedy", NULL}, *const sigmoid[] = {
                                                                                       "noaux_tc", NULL};
    bool v3 = f->is.router_sigmoid;
    int method, groups = v3 ? 8 : 0, open = v3 ? 4 : 0;
    TRY(config_word(c, "topk_method", v3 ? sigmoid : softmax, &method));
    TRY(config_size(c, "n_group", MAX_EXPERT_GROUPS, &groups));
    TRY(config_size(c, "topk_group", MAX_EXPERT_GROUPS, &open));
    if (groups == 1 || (!v3 && method == 0)) return OK;
    if (!groups || !open || s->experts % groups || open > groups ||
        s->experts_topk > open * (s->experts / groups))
        return fail(
            ERR_DATA,
            "%s: %d groups (n_group) of %d experts, of which %d (topk_group) are open: groups are equal, "
            "and the open ones have the %d experts of a token",
            c->what, groups, s->experts, open, s->experts_topk);
    s->router_groups = groups, s->router_open_groups = open;
    if (family_chooses_groups(f, s)) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "%s: this model cannot be read: a %s chooses groups by their best %s, which is supported for %s times "
        "topk_group experts of a token; there are %d, and topk_group is %d",
        c->what, f->model_type, v3 ? "two experts" : "expert", v3 ? "2 to 3" : "less than 2", s->experts_topk,
        open);
}

static Status read_shared(Config *c, const Family *f, ModelShape *s) {
    static const char *const softmax[] = {"softmax", NULL}, *const sigmoid[] = {"sigmoid", NULL};
    bool v3 = f->is.router_sigmoid;
    int shared = v3 ? 1 : 2, every = 1, word;
    const double most = size_named("shared_ffn")->field.most;
    TRY(config_size(c, "n_shared_experts", MAX_EXPERTS, &shared));
    TRY(config_size(c, "moe_layer_freq", INT32_MAX, &every));
    TRY(config_word(c, "scoring_func", v3 ? sigmoid : softmax, &word));
    TRY(config_must_be(c, "norm_topk_prob", v3));
    if (every != 1)
        return fail(ERR_UNAVAILABLE, "%s: a moe_layer_freq other than 1 is not supported", c->what);
    if ((double)shared * s->expert_ffn > most)
        return fail(ERR_DATA, "%s: %d shared experts of width %d: %g in all is the most", c->what, shared,
                    s->expert_ffn, most);
    s->shared_ffn = shared * s->expert_ffn;
    return read_groups(c, f, s);
}

// ---- all of it ----------------------------------------------------------------------------------------

Status config_experts(Config *c, const Family *f, ModelShape *s) {
    if (!s->experts) return OK;
    if (f->says & EXPERTS_ARE_MLPS) s->expert_ffn = s->ffn;
    if (config_must_be_zero(c, "router_jitter_noise") != OK)
        return fail(
            ERR_UNAVAILABLE,
            "%s: a router_jitter_noise other than 0 is not supported: it is of training alone, so set it "
            "to 0, and train with --moe-input-jitter-eps",
            c->what);
    TRY(config_must_be_absent(c, "clip_qkv"));
    if (s->experts_topk > s->experts)
        return fail(ERR_DATA, "%s: %d experts of a token (num_experts_per_tok), and there are %d", c->what,
                    s->experts_topk, s->experts);
    if (f->says & SAYS_DENSE) TRY(read_shared(c, f, s));
    if (!(f->says & (SAYS_SPARSE | SAYS_DENSE))) return OK;
    char *set = malloc((size_t)s->layers);
    if (!set) return fail(ERR_OS, "no memory for a list of %d layers", s->layers);
    Status status = read_layers(c, f, s, set);
    free(set);
    return status;
}
