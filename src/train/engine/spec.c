// Turns the options of a run into the description of an engine: model, mode, layers of each stage.
#include "base/control_groups.h"
#include "base/cores.h"
#include "nn/recipes.h"
#include "train/engine/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int threads_per_rank(const Options *o, int ranks_here) {
    if (o->threads != INT_UNSET) return o->threads;
    Cores cores;
    cores_allowed(&cores);
    // A launcher may have bound each rank; then the cores that this rank may use are its own.
    int share = (launcher_ranks() ? (int)sysconf(_SC_NPROCESSORS_ONLN) : cores.count) / ranks_here;
    int quota = control_groups_processors("") / ranks_here;
    if (share > cores.count) share = cores.count;
    int threads = share < quota ? share : quota;
    return threads > 0 ? threads : 1;
}

static Activation activation_of(const Options *o) {
    if (o->swiglu) return ACTIVATION_SWIGLU;
    if (o->geglu) return ACTIVATION_GEGLU;
    if (o->quick_geglu) return ACTIVATION_QUICK_GEGLU;
    if (o->squared_relu) return ACTIVATION_RELU_SQUARED;
    return o->bias_gelu_fusion || o->openai_gelu ? ACTIVATION_GELU : ACTIVATION_GELU_ERF;
}

static Softmax softmax_of(const Options *o) {
    if (!strcmp(o->softmax_type, "off-by-one")) return SOFTMAX_OFF_BY_ONE;
    return strcmp(o->softmax_type, "learnable") ? SOFTMAX_PLAIN : SOFTMAX_SINKS;
}

// 0: what YaRN has unless something else is said.
static double yarn_attention(const Options *o) {
    double factor = o->rope_scaling_factor, scale = o->mscale, all = o->mscale_all_dim;
    if (!isnan(o->yarn_attention_factor)) return o->yarn_attention_factor;
    if (!o->multi_latent_attention || (scale == 1 && all == 0)) return 0;
    return model_yarn_scale(factor, scale) / model_yarn_scale(factor, all);
}

static RopeFactors factors_of(const StringList *words) {
    RopeFactors factors = {.count = words->count};
    for (int i = 0; i < words->count; i++) factors.at[i] = strtod(words->items[i], NULL);
    return factors;
}

static Rope scaling_of_type(const Options *o) {
    Rope rope = {.kind = ROPE_DYNAMIC,
                 .factor = o->rope_scaling_factor,
                 .original = o->rope_original_max_position_embeddings};
    if (!strcmp(o->rope_scaling_type, "dynamic")) return rope;
    if (!strcmp(o->rope_scaling_type, "longrope")) {
        rope.kind = ROPE_LONG;
        rope.attention = isnan(o->yarn_attention_factor) ? 0 : o->yarn_attention_factor;
        rope.shorter = factors_of(&o->rope_short_factors), rope.longer = factors_of(&o->rope_long_factors);
        return rope;
    }
    rope.kind = ROPE_YARN;
    rope.low = o->yarn_beta_slow, rope.high = o->yarn_beta_fast;
    rope.mscale_all = o->multi_latent_attention ? o->mscale_all_dim : 0;
    rope.attention = yarn_attention(o);
    rope.unrounded = !o->yarn_correction_range_round_to_int;
    return rope;
}

static ModelFamily family_of_name(const char *name) {
    static const char *const names[] = {
        [FAMILY_ANY] = "any",
        [FAMILY_MISTRAL] = "mistral",
        [FAMILY_QWEN2] = "qwen2",
        [FAMILY_QWEN3] = "qwen3",
        [FAMILY_SMOLLM3] = "smollm3",
        [FAMILY_PHI3] = "phi3",
        [FAMILY_OLMO2] = "olmo2",
        [FAMILY_GEMMA2] = "gemma2",
        [FAMILY_GEMMA3] = "gemma3",
        [FAMILY_GPT_NEOX] = "gpt_neox",
        [FAMILY_STABLELM] = "stablelm",
        [FAMILY_GRANITE] = "granite",
        [FAMILY_NEMOTRON] = "nemotron",
        [FAMILY_MINICPM3] = "minicpm3",
        [FAMILY_DEEPSEEK_V2] = "deepseek_v2",
        [FAMILY_DEEPSEEK_V3] = "deepseek_v3",
        [FAMILY_MIXTRAL] = "mixtral",
        [FAMILY_QWEN3_MOE] = "qwen3_moe",
        [FAMILY_OLMOE] = "olmoe",
        [FAMILY_GRANITE_MOE] = "granitemoe",
        [FAMILY_QWEN2_MOE] = "qwen2_moe",
        [FAMILY_GPT_OSS] = "gpt_oss",
    };
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (!strcmp(names[i], name)) return (ModelFamily)i;
    CHECK(false, "no family is named %s", name);
}

static NormPlace norm_place_of(const Options *o) {
    if (!strcmp(o->norm_placement, "post")) return NORM_POST;
    return strcmp(o->norm_placement, "sandwich") ? NORM_PRE : NORM_SANDWICH;
}

static QkNorm qk_norm_of(const Options *o) {
    if (o->multi_latent_attention) return QK_NORM_NONE; // "head" are the norms of latents
    if (!strcmp(o->qk_norm, "head")) return QK_NORM_HEAD;
    return strcmp(o->qk_norm, "all") ? QK_NORM_NONE : QK_NORM_ALL;
}

static Rope rope_of(const Options *o) {
    if (strcmp(o->position_embedding_type, "rope") != 0) return (Rope){0};
    if (o->use_rope_scaling)
        return (Rope){.kind = ROPE_LLAMA3,
                      .factor = o->rope_scaling_factor,
                      .low = o->rope_low_freq_factor,
                      .high = o->rope_high_freq_factor,
                      .original = o->rope_original_max_position_embeddings};
    if (o->rope_scaling_type) return scaling_of_type(o);
    double factor = o->rotary_seq_len_interpolation_factor;
    return isnan(factor) ? (Rope){0} : (Rope){.kind = ROPE_LINEAR, .factor = factor};
}

ModelShape options_model(const Options *o, int vocabulary) {
    bool has_experts = o->num_experts != INT_UNSET;
    return (ModelShape){
#define SIZE(TYPE, member, least, most, option, ...) .member = (SIZE_##TYPE)o->option,
#include "nn/sizes.def"
        .groups = o->shape.query_groups,
        .kv_rank = o->multi_latent_attention ? o->kv_lora_rank : 0,
        .q_rank = o->multi_latent_attention && o->q_lora_rank != INT_UNSET ? o->q_lora_rank : 0,
        .value_size = o->multi_latent_attention ? o->v_head_dim : 0,
        .experts = has_experts ? o->num_experts : 0,
        .experts_topk = has_experts ? o->moe_router_topk : 0,
        .expert_ffn = o->shape.expert_width,
        .shared_ffn = has_experts && o->moe_shared_expert_intermediate_size != INT_UNSET
                          ? o->moe_shared_expert_intermediate_size
                          : 0,
        .shared_gate =
            has_experts && o->moe_shared_expert_gate && o->moe_shared_expert_intermediate_size != INT_UNSET,
        .router_sigmoid = has_experts && !strcmp(o->moe_router_score_function, "sigmoid"),
        .router_pre_softmax = has_experts && o->moe_router_pre_softmax,
        .router_bias = has_experts && o->moe_router_enable_expert_bias,
        .router_scale = has_experts && o->moe_router_topk_scaling_factor != 1
                            ? (float)o->moe_router_topk_scaling_factor
                            : 0,
        .router_groups = has_experts && o->moe_router_num_groups != INT_UNSET ? o->moe_router_num_groups : 0,
        .router_open_groups =
            has_experts && o->moe_router_group_topk != INT_UNSET ? o->moe_router_group_topk : 0,
        .experts_period = o->shape.experts_period,
        .experts_layers = o->shape.experts_layers,
        .vocabulary = vocabulary,
        .activation = activation_of(o),
        .position = !strcmp(o->position_embedding_type, "rope")   ? POSITION_ROTARY
                    : !strcmp(o->position_embedding_type, "none") ? POSITION_NONE
                                                                  : POSITION_LEARNED,
        .rotary_columns = o->shape.rotary_columns,
        .rope = rope_of(o),
        .window = o->shape.window,
        .window_period = o->shape.window_period,
        .window_layers = o->shape.window_layers,
        .softmax = softmax_of(o),
        .rms_norm = !strcmp(o->normalization, "RMSNorm"),
        .norm_place = norm_place_of(o),
        .qk_norm = qk_norm_of(o),
        .family = family_of_name(o->model_family),
        .lora_rank = o->lora_rank,
        .lora_alpha = o->lora_rank ? (float)o->lora_alpha : 0,
        .lora_dropout = o->lora_rank ? (float)o->lora_dropout : 0,
        .lora_sqrt = o->lora_rank && o->use_rslora,
        .lora_targets = o->shape.lora_targets,
    };
}

static Recompute recompute_of(const char *name) {
    static const char *const names[] = {[RECOMPUTE_NOTHING] = "nothing",
                                        [RECOMPUTE_SELECTIVE] = "selective",
                                        [RECOMPUTE_UNIFORM] = "uniform",
                                        [RECOMPUTE_BLOCK] = "block"};
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (!strcmp(names[i], name)) return (Recompute)i;
    CHECK(false, "no recomputation is named %s", name);
}

static Float8 float8_of(const Options *o) {
    if (o->fp4_format) return FLOAT4_E2M1;
    if (!o->fp8_format) return FLOAT8_NONE;
    return strcmp(o->fp8_format, "hybrid") ? FLOAT8_E4M3 : FLOAT8_HYBRID;
}

static ScalingRecipe scaling_of(const Options *o) {
    const char *name = o->fp4_format ? o->fp4_recipe : o->fp8_recipe;
    if (!float8_of(o)) return RECIPE_TENSORWISE;
    for (int i = 0; i < NUM_RECIPES; i++)
        if (!strcmp(recipe_rows[i].name, name)) return (ScalingRecipe)i;
    CHECK(false, "no recipe is named %s", name);
}

static RouterTraining router_training(const Options *o) {
    const char *type = o->moe_router_load_balancing_type;
    if (o->num_experts == INT_UNSET) return (RouterTraining){0};
    return (RouterTraining){
        .balance = strcmp(type, "none") ? (float)o->moe_aux_loss_coeff : 0,
        .by_sequence = !strcmp(type, "seq_aux_loss"),
        .z = (float)o->moe_z_loss_coeff,
        .capacity = isnan(o->moe_expert_capacity_factor) ? 0 : (float)o->moe_expert_capacity_factor,
        .by_position = !strcmp(o->moe_token_drop_policy, "position"),
        .jitter = (float)o->moe_input_jitter_eps};
}

ContextWay options_context_way(const Options *o) {
    return !strcmp(o->cp_comm_type, "a2a")   ? CONTEXT_ALL_TO_ALL
           : !strcmp(o->cp_comm_type, "p2p") ? CONTEXT_RING
                                             : CONTEXT_ALL_GATHER;
}

static ModelMode model_mode(const Options *o, int vocabulary) {
    return (ModelMode){
        .microbatch = o->micro_batch_size,
        .padded_vocabulary = padded_vocabulary(vocabulary, o->make_vocab_size_divisible_by, o->shape.tp),
        .dtype = o->bf16   ? BF16
                 : o->fp16 ? F16
                           : F32,
        .float8 = float8_of(o),
        .recipe = scaling_of(o),
        .delayed = {.history = o->fp8_amax_history_len,
                    .most_recent = !strcmp(o->fp8_amax_compute_algo, "most_recent"),
                    .margin = o->fp8_margin},
        .wide_first = o->first_last_layers_bf16 ? o->num_layers_at_start_in_bf16 : 0,
        .wide_last = o->first_last_layers_bf16 ? o->num_layers_at_end_in_bf16 : 0,
        .context_ranks = o->shape.cp,
        .context_way = options_context_way(o),
        .sequence_parallel = o->shape.sequence_parallel,
        .keep_probabilities = o->shape.keep_probabilities,
        .attention = !strcmp(o->attention_backend, "flash")   ? ATTENTION_OWN
                     : !strcmp(o->attention_backend, "fused") ? ATTENTION_CUDNN
                                                              : ATTENTION_BY_GPU,
        .any_order = !o->deterministic_mode,
        .recompute = recompute_of(o->shape.recompute),
        .recompute_layers = o->shape.recompute_layers,
        .distribute_saved = o->distribute_saved_activations,
        .router = router_training(o),
    };
}

// ---- layers of the stages -------------------------------------------------------------------

// The cost of the head in layers: the operations of logits and loss divided by those of a layer.
static double head_in_layers(const ModelShape *shape, int table_rows) {
    ModelShape bare = *shape;
    bare.layers = 0;
    double head = model_flops(&bare, table_rows, 1);
    return head / ((model_flops(shape, table_rows, 1) - head) / shape->layers);
}

// Megatron-LM's rule: embedding and loss count as one layer each, and then all stages are equal.
static void count_ends_as_layers(const Options *o, int stages, int *counts) {
    int embedding = o->account_for_embedding_in_pipeline_split, loss = o->account_for_loss_in_pipeline_split;
    for (int s = 0; s < stages; s++) counts[s] = (o->num_layers + embedding + loss) / stages;
    counts[0] -= embedding;
    counts[stages - 1] -= loss;
}

static Status split_layers(const Options *o, int *counts, EngineSpec *spec) {
    int stages = o->shape.pp * o->shape.vp;
    LayerSplit *split = &spec->split;
    *split =
        (LayerSplit){.layers = o->num_layers, .first = o->shape.first_layers, .last = o->shape.last_layers};
    if (o->pipeline_model_parallel_layout) {
        Status status = layer_parse(o->pipeline_model_parallel_layout, o->num_layers, stages, counts);
        if (status != OK) return fail(status, "--pipeline-model-parallel-layout: %s", fail_message());
    } else if (o->balance_stages) {
        layer_balance(o->num_layers, stages, 0, head_in_layers(&spec->shape, spec->mode.padded_vocabulary),
                      counts);
    } else if (o->account_for_embedding_in_pipeline_split || o->account_for_loss_in_pipeline_split) {
        count_ends_as_layers(o, stages, counts);
    } else {
        return OK;
    }
    split->counts = counts;
    return OK;
}

// ---- the optimizer ----------------------------------------------------------------------------------

MuonOptions muon_options(const Options *o) {
    if (strcmp(o->optimizer, "muon") != 0) return (MuonOptions){0};
    return (MuonOptions){.iterations = o->muon_num_ns_steps,
                         .momentum = o->muon_momentum,
                         .nesterov = o->muon_nesterov,
                         .split_qkv = o->muon_split_qkv,
                         .coefficients = o->muon_coefficient_type,
                         .scale = !strcmp(o->muon_scale_mode, "spectral")        ? MUON_SPECTRAL
                                  : !strcmp(o->muon_scale_mode, "shape_scaling") ? MUON_SHAPE_SCALING
                                                                                 : MUON_UNIT_RMS_NORM,
                         .extra_scale = o->muon_extra_scale_factor};
}

PreferenceRule options_preference(const Options *o) {
    if (!o->dpo) return (PreferenceRule){0};
    return (PreferenceRule){preference_loss_named(o->dpo_loss), o->dpo_beta, o->dpo_label_smoothing,
                            o->simpo_gamma};
}

// ---- the whole specification ----------------------------------------------------------------------------------

static ScheduleCosts costs_of(const double times[4]) {
    double backward = times[1] + times[2];
    return (ScheduleCosts){.forward_us = times[0],
                           .backward_us = backward,
                           .weight_fraction = backward > 0 ? times[2] / backward : 0.5,
                           .hop_us = times[3]};
}

static int num_stages(const Options *o) { return o->shape.pp * o->shape.vp; }

// The number of batch sizes before the full one; neighbours may be equal after rounding.
static int ramp_levels(const RunShape *shape) {
    if (!shape->rampup_increment) return 0;
    return (shape->global_batch - shape->rampup_start) / shape->rampup_increment + 1;
}

int engine_spec_room(const Options *o) { return num_stages(o) + ramp_levels(&o->shape); }

static void list_smaller_batches(const RunShape *shape, int samples_each, int *smaller, EngineSpec *spec) {
    spec->smaller = smaller;
    for (int i = 0; i < ramp_levels(shape); i++) {
        int m = (shape->rampup_start + i * shape->rampup_increment) / samples_each, n = spec->num_smaller;
        if (m < spec->num_microbatches && (!n || smaller[n - 1] != m)) smaller[spec->num_smaller++] = m;
    }
}

Status engine_spec(const Options *o, int threads, int vocabulary, int *room, EngineSpec *spec) {
    const RunShape *shape = &o->shape;
    *spec = (EngineSpec){
        .grid = options_grid(o),
        .shape = options_model(o, vocabulary),
        .mode = model_mode(o, vocabulary),
        .schedule = shape->schedule,
        .num_chunks = shape->vp,
        .num_microbatches = shape->num_microbatches,
        .microbatch_group = shape->microbatch_group,
        .receive_ahead = shape->receive_ahead,
        .schedule_costs = costs_of(shape->schedule_times),
        .stash_limit = shape->schedule_stash_limit,
        .scatter_gather = o->scatter_gather_tensors_in_pipeline,
        .sharding = shape->sharding,
        .reduce_every = o->reduce_grads_every_microbatch,
        .share_values = o->share_parameters && shape->sharding == SHARD_VALUES,
        .virtual_data = shape->virtual_data,
        .overlap_gradients = o->overlap_grad_reduce,
        .overlap_weights = o->overlap_param_gather,
        .adam = {o->adam_beta1, o->adam_beta2, o->adam_eps, o->clip_grad},
        .muon = muon_options(o),
        .ema_decay = o->ema_decay,
        .offload = device_is_host(o->device) ? 0 : options_offload(o),
        .bucket_elements = o->ddp_bucket_size == INT_UNSET ? 40000000 : o->ddp_bucket_size,
        .device = o->device,
        .threads = threads,
        .ranks_per_gpu = options_ranks_per_gpu(o),
        .algorithms = o->product_algorithms,
        .masked = o->eod_mask_loss || o->sft,
        .first_keys = o->reset_attention_mask || options_have_conversations(o),
        .positions = o->reset_position_ids || options_have_conversations(o),
        .per_token = o->calculate_per_token_loss || o->sft,
        .audits = o->audit_interval > 0,
        .bias_rate = (float)o->moe_router_bias_update_rate,
        .preference = options_preference(o),
    };
    spec->mode.dispatch_slot = o->moe_dispatch_rows == INT_UNSET ? 0 : o->moe_dispatch_rows;
    list_smaller_batches(shape, o->micro_batch_size * shape->dp, room + num_stages(o), spec);
    TRY(engine_check_experts(spec));
    return split_layers(o, room, spec);
}

ScheduleSpec engine_schedule_spec(const EngineSpec *spec, int num_microbatches) {
    return (ScheduleSpec){.kind = spec->schedule,
                          .ranks = grid_along(spec->grid, AXIS_PP),
                          .chunks = spec->num_chunks,
                          .microbatches = num_microbatches,
                          .group = spec->microbatch_group,
                          .receive_ahead = spec->receive_ahead,
                          .costs = spec->schedule_costs,
                          .stash_limit = spec->stash_limit};
}
