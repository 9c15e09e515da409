// The table of families, and which of them computes the same as a model of ours.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/family.h"
#include <math.h>
#include <string.h>

#define FAMILY(...) {__VA_ARGS__},
const Family families[] = {
#include "checkpoint/foreign/families.def"
};
#undef FAMILY
const int num_families = sizeof families / sizeof families[0];

const Family *family_named(const char *architecture) {
    for (int i = 0; i < num_families; i++)
        if (!strcmp(families[i].architecture, architecture)) return &families[i];
    return NULL;
}

bool family_has(const Family *f, const char *size) {
    for (const FamilyMember *m = f->members; m < f->members + MAX_FAMILY_MEMBERS && m->name; m++)
        if (!strcmp(m->size, size)) return true;
    return false;
}

bool size_is_of_experts(const char *size) {
    return !strncmp(size, "expert", 6) || !strncmp(size, "router_", 7);
}

// ---- what a family lacks --------------------------------------------------------------------------------

typedef struct {
    bool lacks;
    const char *what;
} Trait;

static const char *first_lack(const Trait *traits, int count) {
    for (int i = 0; i < count; i++)
        if (traits[i].lacks) return traits[i].what;
    return NULL;
}

static bool says(const Family *f, unsigned any) { return f->says & any; }

static const char *lack_of_layers(const Family *f, const ModelShape *s) {
    const ModelShape *is = &f->is;
    const Trait traits[] = {
        {s->position == POSITION_NONE, "models without positions"},
        {s->position != is->position, "such positions"},
        {s->rms_norm && !is->rms_norm, "RMSNorm"},
        {!s->rms_norm && is->rms_norm, "LayerNorm"},
        {model_is_gated(s) && !model_is_gated(is), "SwiGLU"},
        {!model_is_gated(s) && model_is_gated(is), "GELU"},
        {model_is_gated(s) && s->activation != is->activation, "such gates"},
        {(s->activation == ACTIVATION_RELU_SQUARED) != (is->activation == ACTIVATION_RELU_SQUARED),
         "such an activation"},
        {s->glu_offset != is->glu_offset, "such offsets of gated MLPs (glu-linear-offset)"},
        {s->norm_place != is->norm_place, "norms in these places (norm-placement)"},
        {s->norm_offset != is->norm_offset, "such scales of norms (apply-layernorm-1p)"},
        {s->qk_norm != is->qk_norm, "such norms of queries and keys (qk-norm)"},
    };
    return first_lack(traits, sizeof traits / sizeof *traits);
}

static const char *lack_of_biases(const Family *f, const ModelShape *s) {
    bool qkv = model_has_qkv_bias(s), proj = model_has_proj_bias(s), mlp = model_has_mlp_bias(s);
    const ModelShape *is = &f->is;
    bool attention = says(f, SAYS_ATTENTION_BIAS), zeros = says(f, ADDS_ZERO_BIAS);
    const Trait traits[] = {
        {proj && !qkv && attention, "bias of the attention's output alone"},
        {!attention && !is->no_linear_bias && !(qkv && proj && mlp), "linear layers without biases"},
        {attention && qkv != proj && !zeros, "bias of queries, keys and values alone"},
        {!attention && !says(f, SAYS_QKV_BIAS) && qkv != model_has_qkv_bias(is), "such biases of queries"},
        {!attention && proj != model_has_proj_bias(is), "such biases of the attention's output"},
        {!says(f, SAYS_MLP_BIAS) && mlp != model_has_mlp_bias(is), "such biases of the MLP"},
    };
    return first_lack(traits, sizeof traits / sizeof *traits);
}

static float latent_epsilon(const ModelShape *s) {
    return s->latent_epsilon > 0 ? s->latent_epsilon : s->norm_epsilon;
}

static const char *lack_of_heads(const Family *f, const ModelShape *s) {
    bool latent = model_is_latent(s), ours = latent && says(f, SAYS_LATENT);
    bool partly = s->position == POSITION_ROTARY && s->rotary_columns && s->rotary_columns != s->head_size;
    bool scaled = s->position == POSITION_ROTARY && s->rope.kind != ROPE_PLAIN;
    const Trait traits[] = {
        {latent && !says(f, SAYS_LATENT), "latent attention (multi-latent-attention)"},
        {!latent && says(f, SAYS_LATENT), "attention without latents"},
        {ours && latent_epsilon(s) != LATENT_EPSILON, "such an epsilon of latents (latent-norm-epsilon)"},
        {model_groups(s) != s->heads && !says(f, SAYS_GROUPS), "groups of heads that share keys and values"},
        {s->heads * s->head_size != s->hidden && !says(f, SAYS_HEAD_SIZE) && !ours,
         "head size other than hidden size / heads"},
        {s->hidden % s->heads && says(f, NEEDS_WHOLE_HEADS), "hidden size that the heads do not divide"},
        {partly && !says(f, SAYS_ROTARY_SHARE | SAYS_ROTARY_PCT) && !ours,
         "partly rotated heads (rotary-percent)"},
        {scaled && !says(f, SAYS_SCALING), "scaled rotary positions"},
        {s->no_rope_freq && !says(f, SAYS_NO_ROPE), "layers without rotary positions (no-rope-freq)"},
        {s->softmax != f->is.softmax, "such a softmax (softmax-type)"},
        {s->window && !says(f, SAYS_WINDOW | SAYS_WINDOW_LAYERS | SAYS_WINDOW_SWITCH),
         "windows of attention"},
        {s->window && s->window_period && says(f, SAYS_WINDOW), "windows of some layers"},
        {!s->window && says(f, SAYS_WINDOW_LAYERS), "models without windows of attention"},
        {(s->rotary_base_local > 0) != !!says(f, SAYS_LOCAL_BASE),
         "such bases of rotary positions (rotary-base-local)"},
    };
    return first_lack(traits, sizeof traits / sizeof *traits);
}

// Sizes that a member of the configuration stands for: of other families they have to be zero.
static const char *const factors[] = {"softmax_scale",       "softmax_cap",    "embedding_multiplier",
                                      "residual_multiplier", "logits_scaling", "logit_cap",
                                      "parallel_block",      "glu_clamp"};

static const char *lack_of_factors(const Family *f, const ModelShape *s) {
    float root = sqrtf((float)s->hidden);
    if (says(f, HAS_ROOT_EMBEDDING) && s->embedding_multiplier != root) return "such factors of embeddings";
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        const ManifestField *field = &size_named(factors[i])->field;
        bool root_of_hidden = says(f, HAS_ROOT_EMBEDDING) && !strcmp(factors[i], "embedding_multiplier");
        if (!field_is_zero(field, s) && !family_has(f, factors[i]) && !root_of_hidden) return factors[i];
    }
    return NULL;
}

// The layers before those with experts are the only ones without.
static bool are_dense_first(const ModelShape *s) {
    for (int layer = 1; layer < s->layers; layer++)
        if (model_layer_has_experts(s, layer - 1) && !model_layer_has_experts(s, layer)) return false;
    return true;
}

bool family_chooses_groups(const Family *f, const ModelShape *s) {
    int best = s->experts_topk / s->router_open_groups;
    return f->is.router_sigmoid ? best == 2 : best <= 1;
}

static const char *lack_of_experts(const Family *f, const ModelShape *s) {
    bool deepseek = says(f, SAYS_DENSE), factor = s->router_scale > 0 && s->router_scale != 1;
    const Trait traits[] = {
        {s->experts && !family_has(f, "experts"), "layers with experts (num-experts)"},
        {!s->experts && f->is.experts, "models without experts"},
        {s->experts_period && !says(f, SAYS_SPARSE) && !(deepseek && are_dense_first(s)),
         "such layers without experts (moe-layer-freq)"},
        {s->experts && s->router_pre_softmax != f->is.router_pre_softmax &&
             !family_has(f, "router_pre_softmax"),
         "such weights of experts (moe-router-pre-softmax)"},
        {s->experts && s->router_sigmoid != f->is.router_sigmoid,
         "such scores of experts (moe-router-score-function)"},
        {s->experts && s->router_bias != f->is.router_bias,
         "such a choice of experts (moe-router-enable-expert-bias)"},
        {factor && !family_has(f, "router_scale"),
         "factor of the experts' weights (moe-router-topk-scaling-factor)"},
        {s->router_groups && !(deepseek && family_chooses_groups(f, s)),
         "such groups of experts (moe-router-num-groups)"},
        {s->shared_ffn && !deepseek && !family_has(f, "shared_ffn"),
         "shared experts (moe-shared-expert-intermediate-size)"},
        {s->experts && s->shared_gate && !f->is.shared_gate,
         "gate of shared experts (moe-shared-expert-gate)"},
        {s->experts && !s->shared_gate && f->is.shared_gate, "models without a gate of shared experts"},
        {s->experts && deepseek && (!s->shared_ffn || s->shared_ffn % s->expert_ffn),
         "shared experts of another width than some experts (moe-shared-expert-intermediate-size)"},
    };
    return first_lack(traits, sizeof traits / sizeof *traits);
}

// Returns a part of a model that a family does not have, or NULL.
static const char *lack_of(const Family *f, const ModelShape *s) {
    const char *lack = lack_of_layers(f, s);
    if (!lack) lack = lack_of_biases(f, s);
    if (!lack) lack = lack_of_heads(f, s);
    if (!lack) lack = lack_of_experts(f, s);
    return lack ? lack : lack_of_factors(f, s);
}

// Returns the first row of the family that a model remembers, or NULL.
static const Family *remembered(const ModelShape *s) {
    for (int i = 0; s->family && i < num_families; i++)
        if (families[i].family == s->family) return &families[i];
    return NULL;
}

void family_lack(const ModelShape *s, Text *out) {
    const Family *own = remembered(s);
    const char *lack = own ? lack_of(own, s) : NULL;
    if (lack) text_add(out, "%s has no %s, which this model has", own->architecture, lack);
}

Status family_of(const ModelShape *s, const Family **family) {
    const Family *own = remembered(s);
    bool rotary = s->position == POSITION_ROTARY;
    if (own && !lack_of(own, s)) return *family = own, OK;
    for (int i = 0; i < num_families; i++)
        if (!lack_of(&families[i], s)) return *family = &families[i], OK;
    if (s->experts && !rotary)
        return fail(
            ERR_UNAVAILABLE,
            "models with experts are written as Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, Granite-MoE or DeepSeek-V2, which have rotary positions, RMSNorm and "
            "SwiGLU, and this one has not: it stays in trireme's checkpoints. Train one to export with "
            "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear");
    *family = family_named(!rotary      ? "GPT2LMHeadModel"
                           : s->experts ? "MixtralForCausalLM"
                                        : "LlamaForCausalLM");
    return fail(ERR_UNAVAILABLE, "%s has no %s, which this model has%s", (*family)->architecture,
                lack_of(*family, s), rotary ? ", nor has any other family that is known" : "");
}
