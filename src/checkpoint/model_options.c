// Says which options of `train` make a model of a given shape.
#include "checkpoint/fields.h"
#include "config/config.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ModelOption *rows;
    int count;
} Rows;

typedef enum { FIXED = 1, FOLLOWS = 2, TRAINING = 4 } Kind;

__attribute__((format(printf, 4, 5))) static void add_row(Rows *rows, const char *option, int kind,
                                                          const char *format, ...) {
    CHECK(rows->count < MAX_MODEL_OPTIONS, "too many options of a model");
    ModelOption *row = &rows->rows[rows->count++];
    *row = (ModelOption){.option = option,
                         .is_fixed = kind & FIXED,
                         .follows = kind & FOLLOWS,
                         .is_training = kind & TRAINING};
    va_list list;
    va_start(list, format);
    int length = vsnprintf(row->value, sizeof row->value, format, list);
    CHECK(length < MAX_MODEL_VALUE, "the value of %s is too long", option);
    va_end(list);
}

static void add_flag(Rows *rows, const char *option, bool value) {
    add_row(rows, option, FIXED, "%s", value ? "true" : "false");
}

// Adds a size that only some models have.
static void add_size(Rows *rows, const char *option, int kind, bool has, int value) {
    if (has)
        add_row(rows, option, kind, "%d", value);
    else
        add_row(rows, option, kind, "%s", "");
}

static void add_float(Rows *rows, const char *option, int kind, float value) {
    Text text = {0};
    text_add_float(&text, value);
    add_row(rows, option, kind, "%s", text.data);
    text_free(&text);
}

// Adds the shortest decimal that gives this number of columns of a head.
static void add_share(Rows *rows, const char *option, int columns, int head_size) {
    enum { ENOUGH_DIGITS = 17 };
    char text[32];
    for (int digits = 1; digits <= ENOUGH_DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)columns / head_size);
        if ((int)(head_size * strtod(text, NULL)) == columns) break;
    }
    add_row(rows, option, FIXED, "%s", text);
}

static void add_positions(Rows *rows, const ModelShape *s) {
    static const char *const types[] = {
        [POSITION_LEARNED] = "learned_absolute", [POSITION_ROTARY] = "rope", [POSITION_NONE] = "none"};
    bool learned = s->position == POSITION_LEARNED, rotary = s->position == POSITION_ROTARY;
    add_row(rows, "position_embedding_type", FIXED, "%s", types[s->position]);
    add_size(rows, "max_position_embeddings",
             (learned ? FIXED : 0) | (s->positions == s->sequence ? FOLLOWS : 0), s->positions > 0,
             s->positions);
    char base[32] = "";
    if (rotary) snprintf(base, sizeof base, "%.17g", s->rotary_base);
    add_row(rows, "rotary_base", FIXED, "%s", base);
    int columns = s->rotary_columns ? s->rotary_columns : s->head_size;
    if (rotary && !model_is_latent(s))
        add_share(rows, "rotary_percent", columns, s->head_size);
    else
        add_row(rows, "rotary_percent", FIXED, "%s", "");
}

static void add_real(Rows *rows, const char *option, bool has, double value) {
    char text[32] = "";
    if (has) snprintf(text, sizeof text, "%.17g", value);
    add_row(rows, option, FIXED, "%s", text);
}

static void add_factors(Rows *rows, const char *option, const RopeFactors *factors) {
    Text text = {0};
    for (int i = 0; i < factors->count; i++) {
        if (i) text_add(&text, " ");
        json_add_double(&text, factors->at[i]);
    }
    add_row(rows, option, FIXED, "%s", text_string(&text));
    text_free(&text);
}

static void add_scaling(Rows *rows, const Rope *rope) {
    bool linear = rope->kind == ROPE_LINEAR, llama3 = rope->kind == ROPE_LLAMA3,
         yarn = rope->kind == ROPE_YARN;
    bool dynamic = rope->kind == ROPE_DYNAMIC, is_long = rope->kind == ROPE_LONG,
         shared = llama3 || yarn || dynamic || is_long;
    add_real(rows, "rotary_seq_len_interpolation_factor", linear, rope->factor);
    add_flag(rows, "use_rope_scaling", llama3);
    add_row(rows, "rope_scaling_type", FIXED, "%s",
            yarn      ? "yarn"
            : dynamic ? "dynamic"
            : is_long ? "longrope"
                      : "");
    add_factors(rows, "rope_short_factors", &rope->shorter);
    add_factors(rows, "rope_long_factors", &rope->longer);
    add_real(rows, "yarn_beta_slow", yarn, rope->low);
    add_real(rows, "yarn_beta_fast", yarn, rope->high);
    add_real(rows, "yarn_attention_factor", (yarn || is_long) && rope->attention > 0, rope->attention);
    add_real(rows, "mscale", false, 0);
    add_real(rows, "mscale_all_dim", rope->mscale_all > 0, rope->mscale_all);
    add_flag(rows, "yarn_correction_range_round_to_int", !rope->unrounded);
    add_real(rows, "rope_scaling_factor", shared, rope->factor);
    add_real(rows, "rope_low_freq_factor", llama3, rope->low);
    add_real(rows, "rope_high_freq_factor", llama3, rope->high);
    add_size(rows, "rope_original_max_position_embeddings", FIXED, shared, rope->original);
}

// The list of layers with a window as far as it does not repeat; a plain number where every Nth layer has none.
static void add_windows(Rows *rows, const ModelShape *s) {
    static const char *const types[] = {
        [SOFTMAX_PLAIN] = "vanilla", [SOFTMAX_OFF_BY_ONE] = "off-by-one", [SOFTMAX_SINKS] = "learnable"};
    uint64_t every = s->window_period ? ((uint64_t)1 << (s->window_period - 1)) - 1 : 0;
    Text list = {0};
    if (s->window_period && s->window_layers == every) {
        text_add(&list, "%d", s->window_period);
    } else {
        for (int i = 0; i < s->window_period; i++)
            text_add(&list, "%s%d", i ? "," : "[", model_window(s, i) > 0);
        if (s->window_period) text_add(&list, "]");
    }
    if (s->window)
        add_row(rows, "window_size", FIXED, "%d,0", s->window - 1);
    else
        add_row(rows, "window_size", FIXED, "%s", "");
    add_row(rows, "window_attn_skip_freq", FIXED, "%s", text_string(&list));
    add_row(rows, "softmax_type", FIXED, "%s", types[s->softmax]);
    text_free(&list);
}

// Sizes that are options' values as they are.
static void add_sizes(Rows *rows, const ModelShape *shape) {
    for (int i = 0; i < num_model_sizes; i++) {
        const ModelSize *size = &model_sizes[i];
        const void *at = (const char *)shape + size->field.offset;
        int kind = size->meaning == MEANS_FUNCTION ? FIXED : size->meaning == MEANS_TRAINING ? TRAINING : 0;
        if (size->meaning > MEANS_TRAINING) continue;
        switch (size->field.type) {
        case INT_FIELD: add_row(rows, size->option, kind, "%d", *(const int *)at); break;
        case BOOL_FIELD: add_flag(rows, size->option, *(const bool *)at); break;
        case FLOAT_FIELD: add_float(rows, size->option, kind, *(const float *)at); break;
        case DOUBLE_FIELD: add_row(rows, size->option, kind, "%.17g", *(const double *)at); break;
        default: CHECK(false, "%s: an option of this type needs a rule", size->option);
        }
    }
}

static void add_latents(Rows *rows, const ModelShape *s) {
    bool latent = model_is_latent(s);
    add_flag(rows, "multi_latent_attention", latent);
    add_size(rows, "q_lora_rank", FIXED, latent && s->q_rank, s->q_rank);
    add_size(rows, "kv_lora_rank", FIXED, latent, s->kv_rank);
    add_size(rows, "qk_head_dim", FIXED, latent, s->head_size - s->rotary_columns);
    add_size(rows, "qk_pos_emb_head_dim", FIXED, latent, s->rotary_columns);
    add_size(rows, "v_head_dim", FIXED, latent, model_value_size(s));
}

static void add_experts(Rows *rows, const ModelShape *s) {
    bool has = s->experts > 0;
    Text layers = {0};
    for (int i = 0; i < s->experts_period; i++)
        text_add(&layers, "%s%d", i ? "," : "[", (int)(s->experts_layers >> i & 1));
    text_add(&layers, s->experts_period ? "]" : has ? "1" : "");
    add_size(rows, "num_experts", FIXED, has, s->experts);
    add_row(rows, "moe_layer_freq", FIXED, "%s", text_string(&layers));
    add_size(rows, "moe_ffn_hidden_size", FIXED, has, s->expert_ffn);
    add_size(rows, "moe_shared_expert_intermediate_size", FIXED, s->shared_ffn > 0, s->shared_ffn);
    add_row(rows, "moe_shared_expert_gate", FIXED, "%s",
            !s->shared_ffn   ? ""
            : s->shared_gate ? "true"
                             : "false");
    add_size(rows, "moe_router_topk", FIXED, has, s->experts_topk);
    add_row(rows, "moe_router_score_function", FIXED, "%s",
            !has                ? ""
            : s->router_sigmoid ? "sigmoid"
                                : "softmax");
    add_row(rows, "moe_router_pre_softmax", FIXED, "%s",
            !has                    ? ""
            : s->router_pre_softmax ? "true"
                                    : "false");
    add_row(rows, "moe_router_enable_expert_bias", FIXED, "%s",
            !has             ? ""
            : s->router_bias ? "true"
                             : "false");
    add_real(rows, "moe_router_topk_scaling_factor", has, s->router_scale > 0 ? (double)s->router_scale : 1);
    add_size(rows, "moe_router_num_groups", FIXED, s->router_groups > 0, s->router_groups);
    add_size(rows, "moe_router_group_topk", FIXED, s->router_groups > 0, s->router_open_groups);
    text_free(&layers);
}

static void add_rules(Rows *rows, const ModelShape *s) {
    static const char *const places[] = {
        [NORM_PRE] = "pre", [NORM_POST] = "post", [NORM_SANDWICH] = "sandwich"};
    static const char *const qk_norms[] = {
        [QK_NORM_NONE] = "none", [QK_NORM_HEAD] = "head", [QK_NORM_ALL] = "all"};
    bool grouped = model_groups(s) < s->heads;
    bool usual_head = s->head_size * s->heads == s->hidden;
    bool usual_mlp = s->ffn == (model_is_gated(s) ? s->hidden / 24 * 64 : 4 * s->hidden);
    add_row(rows, "ffn_hidden_size", FIXED | (usual_mlp ? FOLLOWS : 0), "%d", s->ffn);
    add_row(rows, "kv_channels", FIXED | (usual_head || model_is_latent(s) ? FOLLOWS : 0), "%d",
            s->head_size);
    add_latents(rows, s);
    add_experts(rows, s);
    add_flag(rows, "group_query_attention", grouped);
    add_size(rows, "num_query_groups", FIXED, grouped, model_groups(s));
    add_positions(rows, s);
    add_scaling(rows, &s->rope);
    add_windows(rows, s);
    add_row(rows, "normalization", FIXED, "%s", s->rms_norm ? "RMSNorm" : "LayerNorm");
    add_row(rows, "model_family", 0, "%s", size_named("family")->field.words[s->family]);
    add_row(rows, "norm_placement", FIXED, "%s", places[s->norm_place]);
    add_row(rows, "qk_norm", FIXED, "%s", qk_norms[model_is_latent(s) ? QK_NORM_HEAD : s->qk_norm]);
    add_flag(rows, "swiglu", s->activation == ACTIVATION_SWIGLU);
    add_flag(rows, "geglu", s->activation == ACTIVATION_GEGLU);
    add_flag(rows, "quick_geglu", s->activation == ACTIVATION_QUICK_GEGLU);
    add_flag(rows, "squared_relu", s->activation == ACTIVATION_RELU_SQUARED);
    add_flag(rows, "bias_gelu_fusion", s->activation != ACTIVATION_GELU_ERF);
    add_flag(rows, "add_qkv_bias", s->no_linear_bias && s->qkv_bias); // otherwise every linear weight has one
    add_flag(rows, "add_attn_proj_bias", s->no_linear_bias && s->proj_bias);
    add_flag(rows, "add_mlp_bias", s->no_linear_bias && s->mlp_bias);
    add_row(rows, "vocab_size", FIXED, "%d", s->vocabulary);
}

// A model without adapters takes any.
static void add_adapters(Rows *rows, const ModelShape *s) {
    Text targets = {0}, alpha = {0}, dropout = {0};
    bool has = s->lora_rank > 0;
    int kind = has ? FIXED : 0;
    lora_targets_print(s->lora_targets, &targets);
    if (has) text_add_float(&alpha, s->lora_alpha), text_add_float(&dropout, s->lora_dropout);
    add_size(rows, "lora_rank", kind, has, s->lora_rank);
    add_row(rows, "lora_alpha", kind, "%s", text_string(&alpha));
    add_row(rows, "lora_target_modules", kind, "%s", text_string(&targets));
    add_row(rows, "use_rslora", kind, "%s", !has ? "" : s->lora_sqrt ? "true" : "false");
    add_row(rows, "lora_dropout", TRAINING, "%s", text_string(&dropout));
    text_free(&targets);
    text_free(&alpha);
    text_free(&dropout);
}

// In the order of the table of options; those of training alone come last.
static int in_order(const void *a, const void *b) {
    const ModelOption *x = a, *y = b;
    if (x->is_training != y->is_training) return x->is_training - y->is_training;
    return option_position(x->option) - option_position(y->option);
}

int model_options(const ModelShape *shape, ModelOption out[MAX_MODEL_OPTIONS]) {
    Rows rows = {out, 0};
    add_sizes(&rows, shape);
    add_rules(&rows, shape);
    add_adapters(&rows, shape);
    qsort(out, (size_t)rows.count, sizeof *out, in_order);
    return rows.count;
}
