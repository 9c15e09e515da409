// Prints a configuration as command lines of trireme and of Megatron-LM. Options with the same name in both are
// printed by one function.
#include "checkpoint/fields.h"
#include "plan/memory.h"
#include "report/plan_report.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 100 };

// The command so far, and where its last line begins.
typedef struct {
    Text *out;
    size_t line;      // the last line's first byte in `out`
    bool is_megatron; // which has other names for some options
} Command;

static Command command_begin(Text *out, const char *program, bool is_megatron) {
    size_t line = out->size;
    text_add(out, "%s", program);
    return (Command){out, line, is_megatron};
}

static void add_flag(Command *command, const char *flag) {
    if (command->out->size - command->line + strlen(flag) + 3 > MAX_COLUMNS) {
        text_add(command->out, " \\\n   ");
        command->line = command->out->size - 3;
    }
    text_add(command->out, " %s", flag);
}

__attribute__((format(printf, 2, 3))) static void put(Command *command, const char *format, ...) {
    char flag[128];
    va_list list;
    va_start(list, format);
    vsnprintf(flag, sizeof flag, format, list);
    va_end(list);
    add_flag(command, flag);
}

static void put_factors(Command *to, const char *option, const RopeFactors *factors) {
    put(to, "%s", option);
    for (int i = 0; i < factors->count; i++) put(to, "%.17g", factors->at[i]);
}

static void add_scaling(Command *to, const Rope *rope) {
    if (rope->kind == ROPE_LINEAR) put(to, "--rotary-seq-len-interpolation-factor %g", rope->factor);
    if (rope->kind == ROPE_YARN || rope->kind == ROPE_DYNAMIC)
        put(to, "--rope-scaling-type %s --rope-scaling-factor %g --rope-original-max-position-embeddings %d",
            rope->kind == ROPE_YARN ? "yarn" : "dynamic", rope->factor, rope->original);
    if (rope->kind == ROPE_LONG) {
        put(to,
            "--rope-scaling-type longrope --rope-scaling-factor %g "
            "--rope-original-max-position-embeddings %d",
            rope->factor, rope->original);
        put_factors(to, "--rope-short-factors", &rope->shorter);
        put_factors(to, "--rope-long-factors", &rope->longer);
    }
    if (rope->kind == ROPE_YARN && rope->high != 32) put(to, "--yarn-beta-fast %g", rope->high);
    if (rope->kind == ROPE_YARN && rope->low != 1) put(to, "--yarn-beta-slow %g", rope->low);
    if (rope->attention > 0) put(to, "--yarn-attention-factor %g", rope->attention);
    if (rope->mscale_all > 0) put(to, "--mscale-all-dim %g", rope->mscale_all);
    if (rope->unrounded) put(to, "--no-yarn-correction-range-round-to-int");
    if (rope->kind != ROPE_LLAMA3) return;
    put(to, "--use-rope-scaling --rope-scaling-factor %g", rope->factor);
    if (rope->low != 1) put(to, "--rope-low-freq-factor %g", rope->low);
    if (rope->high != 4) put(to, "--rope-high-freq-factor %g", rope->high);
    if (rope->original != 8192) put(to, "--rope-original-max-position-embeddings %d", rope->original);
}

// Returns whether add_model has a line of its own for a size's option, or no line is needed.
static bool is_named(const char *option) {
    static const char *const named[] = {"num_layers",          "hidden_size",
                                        "num_attention_heads", "norm_epsilon",
                                        "disable_bias_linear", "untie_embeddings_and_output_weights"};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (!strcmp(option, named[i])) return true;
    return false;
}

static void put_option(Command *to, const ModelOption *row) {
    char name[64];
    snprintf(name, sizeof name, "%s", row->option);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    bool is_flag = !strcmp(row->value, "true");
    put(to, "--%s%s%s", name, is_flag ? "" : " ", is_flag ? "" : row->value);
}

// Adds options that are words, where they are not what they are by default.
static void add_words(Command *to, const ModelShape *m) {
    static const struct {
        const char *name, *usual;
    } options[] = {{"window_size", ""},
                   {"window_attn_skip_freq", ""},
                   {"softmax_type", "vanilla"},
                   {"norm_placement", "pre"}};
    ModelOption rows[MAX_MODEL_OPTIONS];
    int count = model_options(m, rows);
    for (int j = 0; j < count; j++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (!strcmp(rows[j].option, options[i].name) && *rows[j].value &&
                strcmp(rows[j].value, options[i].usual) != 0)
                put_option(to, &rows[j]);
}

// The norm of queries and keys. Megatron-LM has that of each head alone, as a flag.
static void add_qk_norm(Command *to, const ModelShape *m) {
    bool heads = model_is_latent(m) || m->qk_norm == QK_NORM_HEAD;
    if (heads) put(to, "%s", to->is_megatron ? "--qk-layernorm" : "--qk-norm head");
    if (!heads && m->qk_norm == QK_NORM_ALL && !to->is_megatron) put(to, "--qk-norm all");
}

// Adds the options of all other sizes that are not zero.
static void add_other_sizes(Command *to, const ModelShape *m) {
    ModelOption rows[MAX_MODEL_OPTIONS];
    int count = model_options(m, rows);
    for (int i = 0; i < num_model_sizes; i++) {
        const ModelSize *size = &model_sizes[i];
        if (size->meaning != MEANS_FUNCTION || is_named(size->option) || field_is_zero(&size->field, m))
            continue;
        for (int j = 0; j < count; j++)
            if (!strcmp(rows[j].option, size->option)) put_option(to, &rows[j]);
    }
}

static void add_latents(Command *to, const ModelShape *m) {
    put(to, "--multi-latent-attention --kv-lora-rank %d", m->kv_rank);
    if (m->q_rank) put(to, "--q-lora-rank %d", m->q_rank);
    put(to, "--qk-head-dim %d --qk-pos-emb-head-dim %d --v-head-dim %d", m->head_size - m->rotary_columns,
        m->rotary_columns, model_value_size(m));
}

static void add_experts(Command *to, const ModelShape *m) {
    put(to, "--num-experts %d --moe-router-topk %d --moe-ffn-hidden-size %d", m->experts, m->experts_topk,
        m->expert_ffn);
    if (m->shared_ffn) put(to, "--moe-shared-expert-intermediate-size %d", m->shared_ffn);
    if (m->shared_gate) put(to, "--moe-shared-expert-gate");
    if (m->router_sigmoid) put(to, "--moe-router-score-function sigmoid");
    if (m->router_pre_softmax) put(to, "--moe-router-pre-softmax");
    if (m->router_bias) put(to, "--moe-router-enable-expert-bias");
    if (m->router_scale > 0) put(to, "--moe-router-topk-scaling-factor %g", (double)m->router_scale);
    if (m->router_groups)
        put(to, "--moe-router-num-groups %d --moe-router-group-topk %d", m->router_groups,
            m->router_open_groups);
    if (!m->experts_period) return;
    char list[2 * MAX_WINDOW_PERIOD + 2];
    int size = 0;
    for (int i = 0; i < m->experts_period; i++)
        size += snprintf(list + size, sizeof list - (size_t)size, "%s%d", i ? "," : "[",
                         (int)(m->experts_layers >> i & 1));
    put(to, "--moe-layer-freq %s]", list);
}

static void add_model(Command *to, const ModelShape *m) {
    put(to, "--num-layers %d", m->layers);
    put(to, "--hidden-size %d", m->hidden);
    put(to, "--ffn-hidden-size %d", m->ffn);
    put(to, "--num-attention-heads %d", m->heads);
    if (m->head_size * m->heads != m->hidden && !model_is_latent(m))
        put(to, "--kv-channels %d", m->head_size);
    if (model_is_latent(m)) add_latents(to, m);
    if (m->experts) add_experts(to, m);
    if (model_groups(m) != m->heads)
        put(to, "--group-query-attention --num-query-groups %d", model_groups(m));
    put(to, "--seq-length %d", m->sequence);
    if (m->position == POSITION_LEARNED) put(to, "--max-position-embeddings %d", m->positions);
    if (m->position == POSITION_ROTARY) put(to, "--position-embedding-type rope");
    if (m->position == POSITION_NONE) put(to, "--position-embedding-type none");
    if (m->position == POSITION_ROTARY && m->rotary_base != 10000)
        put(to, "--rotary-base %.0f", m->rotary_base);
    if (m->rotary_columns && m->rotary_columns != m->head_size && !model_is_latent(m))
        put(to, "--rotary-percent %g", (double)m->rotary_columns / m->head_size);
    if (m->position == POSITION_ROTARY) add_scaling(to, &m->rope);
    if (m->rms_norm) put(to, "--normalization RMSNorm");
    if (m->activation == ACTIVATION_SWIGLU) put(to, "--swiglu");
    if (m->activation == ACTIVATION_GEGLU) put(to, "--geglu");
    if (m->activation == ACTIVATION_QUICK_GEGLU) put(to, "--quick-geglu");
    if (m->activation == ACTIVATION_RELU_SQUARED) put(to, "--squared-relu");
    if (m->activation == ACTIVATION_GELU_ERF) put(to, "--no-bias-gelu-fusion");
    if (m->no_linear_bias) put(to, "--disable-bias-linear");
    if (m->qkv_bias) put(to, "--add-qkv-bias");
    if (m->proj_bias) put(to, "--add-attn-proj-bias");
    if (m->mlp_bias) put(to, "--add-mlp-bias");
    if (m->untied) put(to, "--untie-embeddings-and-output-weights");
    if (m->attention_dropout != 0.1f) put(to, "--attention-dropout %g", (double)m->attention_dropout);
    if (m->hidden_dropout != 0.1f) put(to, "--hidden-dropout %g", (double)m->hidden_dropout);
    add_words(to, m);
    add_qk_norm(to, m);
    add_other_sizes(to, m);
}

static void add_layers(int layers, Text *out) {
    if (layers) text_add(out, layers > 1 ? "t*%d" : "t", layers);
}

// Prints stages of different sizes as "Et*3|(t*3|)*6(t*2|)*8t*2L".
static void add_layout(Command *to, const int *layers, int stages) {
    Text text = {0};
    text_add(&text, "--pipeline-model-parallel-layout 'E");
    add_layers(layers[0], &text);
    text_add(&text, "|");
    for (int i = 1, times; i + 1 < stages; i += times) {
        for (times = 1; i + times + 1 < stages && layers[i + times] == layers[i];) times++;
        text_add(&text, times > 1 ? "(" : "");
        add_layers(layers[i], &text);
        text_add(&text, times > 1 ? "|)*%d" : "|", times);
    }
    add_layers(layers[stages - 1], &text);
    text_add(&text, "L'");
    add_flag(to, text_string(&text));
    text_free(&text);
}

static bool all_equal(const int *layers, int stages) {
    for (int i = 1; i < stages; i++)
        if (layers[i] != layers[0]) return false;
    return true;
}

// Prints how many chunks of equal stages a rank has. Megatron-LM has one option for it, trireme another one beside a
// schedule that is named.
static void add_chunks(Command *to, const ParallelConfig *c, int layers) {
    if (to->is_megatron || parallel_config_kind(c)->is_default)
        put(to, "--num-layers-per-virtual-pipeline-stage %d", layers);
    else
        put(to, "--num-virtual-stages-per-pipeline-rank %d", c->chunks);
}

// Prints the stages that were priced. A layout also says how many there are.
static void add_pipeline(Command *to, const Stack *stack, const ModelShape *model, const ParallelConfig *c) {
    int stages = grid_along(c->grid, AXIS_PP) * c->chunks, *layers = calloc((size_t)stages, sizeof *layers);
    CHECK(layers && parallel_config_layers(stack, model, c, layers) == OK,
          "the layers of %d stages are unknown", stages);
    put(to, "--pipeline-model-parallel-size %d", grid_along(c->grid, AXIS_PP));
    if (!all_equal(layers, stages))
        add_layout(to, layers, stages);
    else if (c->chunks > 1)
        add_chunks(to, c, layers[0]);
    free(layers);
}

static void add_recompute(Command *to, Recompute recompute) {
    if (recompute == RECOMPUTE_SELECTIVE) put(to, "--recompute-granularity selective");
    if (recompute != RECOMPUTE_UNIFORM) return;
    put(to, "--recompute-granularity full");
    put(to, "--recompute-method uniform");
    put(to, "--recompute-num-layers 1");
}

// What is cut over replicas. Megatron-LM cuts more than the optimizer with its FSDP alone.   Source: Megatron Core,
// user guide, Megatron FSDP
static void add_sharding(Command *to, const ParallelConfig *c) {
    bool fsdp = to->is_megatron && c->zero_stage > SHARD_OPTIMIZER;
    if (c->zero_stage == SHARD_OPTIMIZER || fsdp) put(to, "--use-distributed-optimizer");
    if (fsdp) put(to, "--use-megatron-fsdp --ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion");
    if (c->zero_stage > SHARD_OPTIMIZER)
        put(to, "--data-parallel-sharding-strategy %s", sharding_names[c->zero_stage]);
    if (c->zero_stage && c->grid.instances > 1)
        put(to, "--num-distributed-optimizer-instances %d", c->grid.instances);
}

static void add_run(Command *to, const Stack *stack, const ModelShape *model, const ParallelConfig *c) {
    put(to, "--micro-batch-size %d", c->microbatch);
    put(to, "--global-batch-size %d", c->batch);
    if (c->dtype != F32) put(to, "--%s", c->dtype == BF16 ? "bf16" : "fp16");
    if (c->factors == FACTORS_NVFP4) put(to, "--fp4-format e2m1 --fp4-recipe nvfp4");
    if (c->factors == FACTORS_FP8 || c->factors == FACTORS_MXFP8) put(to, "--fp8-format hybrid");
    if (c->factors == FACTORS_MXFP8) put(to, "--fp8-recipe mxfp8");
    if (c->factors == FACTORS_FP8) put(to, "--fp8-recipe tensorwise");
    put(to, "--tensor-model-parallel-size %d", grid_along(c->grid, AXIS_TP));
    if (grid_along(c->grid, AXIS_CP) > 1) put(to, "--context-parallel-size %d", grid_along(c->grid, AXIS_CP));
    if (grid_along(c->grid, AXIS_EP) > 1)
        put(to, "--expert-model-parallel-size %d", grid_along(c->grid, AXIS_EP));
    if (c->grid.size[AXIS_ETP] && c->grid.size[AXIS_ETP] != grid_along(c->grid, AXIS_TP))
        put(to, "--expert-tensor-parallel-size %d", c->grid.size[AXIS_ETP]);
    if (c->sequence_parallel) put(to, "--sequence-parallel");
    add_pipeline(to, stack, model, c);
    add_recompute(to, c->recompute);
    put(to, "--attention-backend %s", c->attention == ATTENTION_UNFUSED ? "unfused" : "flash");
    add_sharding(to, c);
    if (c->muon.iterations) put(to, "--optimizer muon");
    if (c->muon.iterations) put(to, "--muon-num-ns-steps %d", c->muon.iterations);
    if (c->offload > 0) put(to, "--optimizer-cpu-offload");
    if (c->offload > 0 && c->offload < 1) put(to, "--optimizer-offload-fraction %g", c->offload);
    if (c->overlap_gradients) put(to, "--overlap-grad-reduce");
    if (grid_along(c->grid, AXIS_PP) > 1 && !c->scatter_gather)
        put(to, "--no-scatter-gather-tensors-in-pipeline");
}

const char *context_way_word(ContextWay way) {
    static const char *const words[] = {
        [CONTEXT_ALL_GATHER] = "all_gather", [CONTEXT_ALL_TO_ALL] = "a2a", [CONTEXT_RING] = "p2p"};
    return words[way];
}

const char *products_word(const ParallelConfig *config) {
    static const char *const words[NUM_FACTOR_FORMATS] = {[FACTORS_FP8] = "bf16 with products in fp8",
                                                          [FACTORS_MXFP8] = "bf16 with products in mxfp8",
                                                          [FACTORS_NVFP4] = "bf16 with products in nvfp4"};
    return config->factors ? words[config->factors] : dtype_name(config->dtype);
}

// Prints what the program lacks, as a comment for the shell.
static void add_missing(bool missing, const char *what, Text *out) {
    if (missing) text_add(out, "# %s\n", what);
}

// `usual`: the program's way where none is given.
static void add_context_way(Command *to, const ParallelConfig *c, ContextWay usual) {
    if (grid_along(c->grid, AXIS_CP) > 1 && c->context_way != usual)
        put(to, "--cp-comm-type %s", context_way_word(c->context_way));
}

void flags_trireme(const CostModel *costs, const ModelShape *model, const ParallelConfig *c, Text *out) {
    char program[64];
    add_missing(c->factors > FACTORS_FP8,
                "trireme train computes products of blocks in bf16: the same numbers, no faster", out);
    add_missing(c->factors && model_is_latent(model),
                "trireme train refuses products of 8 and 4 bits with latent attention: leave them out", out);
    add_missing(c->factors == FACTORS_NVFP4 && grid_along(c->grid, AXIS_CP) > 1,
                "trireme train refuses products of 4 bits with context parallelism: plan with "
                "--context-parallel-size 1, or without --fp4-format",
                out);
    snprintf(program, sizeof program, "mpirun -n %d trireme train", grid_size(c->grid));
    Command command = command_begin(out, program, false);
    if (c->device) put(&command, "--device %s", c->device);
    add_model(&command, model);
    add_run(&command, costs->stack, model, c);
    add_context_way(&command, c, CONTEXT_ALL_GATHER);
    if (c->reduce_every && c->zero_stage >= SHARD_GRADIENTS) put(&command, "--reduce-grads-every-microbatch");
    if (!parallel_config_kind(c)->is_default) put(&command, "--schedule %s", c->schedule);
    text_add(out, "\n");
}

// How tokens travel to experts and their products are made, as they were priced; neither is Megatron-LM's default. Its
// dispatcher "flex" sends a token once to a node or rank that has several of its experts.
static void add_dispatch(Command *to, const Stack *stack, const ParallelConfig *c) {
    bool once = stack->dispatches_once && !c->sends_pairs;
    if (c->groups_experts) put(to, "--moe-grouped-gemm");
    if (grid_along(c->grid, AXIS_EP) == 1) return;
    put(to, "--moe-token-dispatcher-type %s", once ? "flex" : "alltoall");
    if (once) put(to, "--moe-flex-dispatcher-backend deepep");
}

// Says what Megatron-LM refuses of the configuration.
static void add_refusals(const ModelShape *model, const ParallelConfig *c, Text *out) {
    add_missing(
        c->offload > 0 && !c->zero_stage,
        "Megatron-LM refuses --optimizer-cpu-offload without --use-distributed-optimizer: plan with both",
        out);
    add_missing(model->experts && grid_along(c->grid, AXIS_TP) > 1 && !c->sequence_parallel,
                "Megatron-LM refuses experts with t > 1 without --sequence-parallel: plan with it", out);
    add_missing(!model_is_latent(model) && model->qk_norm == QK_NORM_ALL,
                "Megatron-LM has no norm of the queries and keys of all heads together (--qk-norm all)", out);
}

void flags_megatron(const CostModel *costs, const ModelShape *model, const ParallelConfig *c, Text *out) {
    char program[120];
    int devices = parallel_config_devices(c), here = parallel_config_devices_in_node(costs->machine, c);
    bool usual = parallel_config_kind(c)->is_default;
    bool pairs = parallel_config_kind(c)->pairs && (c->chunks > 1 || grid_along(c->grid, AXIS_PP) == 1);
    add_missing(!usual && !pairs, "Megatron-LM has no such schedule", out);
    add_refusals(model, c, out);
    if (devices % here)
        text_add(out, "# on the last node with --nproc-per-node %d, its share of %d devices\n",
                 devices % here, devices);
    snprintf(program, sizeof program, "torchrun --nnodes %d --nproc-per-node %d pretrain_gpt.py",
             (devices + here - 1) / here, here);
    Command command = command_begin(out, program, true);
    add_model(&command, model);
    if (model->position != POSITION_LEARNED) put(&command, "--max-position-embeddings %d", model->sequence);
    add_run(&command, costs->stack, model, c);
    add_context_way(&command, c, CONTEXT_RING);
    if (model->experts) add_dispatch(&command, costs->stack, c);
    if (c->overlap_tensor && c->sequence_parallel) put(&command, "--tp-comm-overlap");
    if (c->offload > 0) put(&command, "--use-precision-aware-optimizer --overlap-cpu-optimizer-d2h-h2d");
    if (pairs) put(&command, "--overlap-moe-expert-parallel-comm --delay-wgrad-compute");
    text_add(out, "\n");
}
