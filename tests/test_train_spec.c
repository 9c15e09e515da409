// What each option asks of the engine: every option that engine_spec reads changes its field, to the value
// that was asked for.
#include "checkpoint/manifest.h"
#include "config/table.h"
#include "config_words.h"
#include "harness.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

#define BASE    "--ranks 8 --tp 2 --pp 2 --global-batch-size 32 "
#define ROPE    "--position-embedding-type rope --no-position-embedding "
#define FULL    "--recompute-granularity full --recompute-method "
#define UNIFORM FULL "uniform "
#define AUTO    "--schedule auto --schedule-times 2,3,5,0.5 "
#define SHARDED "--use-distributed-optimizer --overlap-grad-reduce "

enum { VOCABULARY = 67, THREADS = 3 };

static Status make_spec(const char *words, Options *options, int counts[64], EngineSpec *spec) {
    char line[1024];
    snprintf(line, sizeof line, BASE "%s", words);
    TRY(resolve_run(options, line));
    Status status = engine_spec(options, THREADS, VOCABULARY, counts, spec);
    if (status != OK) options_destroy(options);
    return status;
}

// ---- one field each --------------------------------------------------------------------------------------

typedef enum { IS_INT, IS_BOOL, IS_LONG, IS_FLOAT, IS_DOUBLE } FieldType;

typedef struct {
    const char *words, *field;
    size_t offset;
    FieldType type;
    double want;
} Row;

#define TYPE_OF(field)                                                                                       \
    _Generic(((EngineSpec *)0)->field, bool                                                                  \
             : IS_BOOL, float                                                                                \
             : IS_FLOAT, double                                                                              \
             : IS_DOUBLE, int64_t                                                                            \
             : IS_LONG, uint64_t                                                                             \
             : IS_LONG, default                                                                              \
             : IS_INT)
#define ROW(words, field, want)                                                                              \
    { words, #field, offsetof(EngineSpec, field), TYPE_OF(field), want }

static const Row rows[] = {
    ROW("--tp 4", grid.size[AXIS_TP], 4),
    ROW("--pp 4", grid.size[AXIS_PP], 4),
    ROW("--ranks 16", grid.size[AXIS_DP], 4),
    ROW("--num-layers 12", shape.layers, 12),
    ROW("--num-layers 12", split.layers, 12),
    ROW("--hidden-size 128", shape.hidden, 128),
    ROW("--num-attention-heads 4", shape.heads, 4),
    ROW("--kv-channels 32", shape.head_size, 32),
    ROW("--ffn-hidden-size 96", shape.ffn, 96),
    ROW("--seq-length 64", shape.sequence, 64),
    ROW("--group-query-attention --num-query-groups 4", shape.groups, 4),
    ROW("--max-position-embeddings 64", shape.positions, 64),
    ROW("--make-vocab-size-divisible-by 8", mode.padded_vocabulary, 80),
    ROW("--micro-batch-size 4", mode.microbatch, 4),
    ROW("--swiglu", shape.activation, ACTIVATION_SWIGLU),
    ROW("--no-bias-gelu-fusion", shape.activation, ACTIVATION_GELU_ERF),
    ROW("--position-embedding-type rope", shape.position, POSITION_ROTARY),
    ROW("--position-embedding-type none", shape.position, POSITION_NONE),
    ROW(ROPE "--rotary-base 500", shape.rotary_base, 500),
    ROW(ROPE "--rotary-base 1000000000000", shape.rotary_base, 1e12),
    ROW(ROPE "--rotary-percent 0.5", shape.rotary_columns, 4),
    ROW(ROPE "--rotary-seq-len-interpolation-factor 4", shape.rope.kind, ROPE_LINEAR),
    ROW(ROPE "--rotary-seq-len-interpolation-factor 4", shape.rope.factor, 4),
    ROW(ROPE "--use-rope-scaling", shape.rope.kind, ROPE_LLAMA3),
    ROW(ROPE "--use-rope-scaling --rope-scaling-factor 32", shape.rope.factor, 32),
    ROW(ROPE "--use-rope-scaling --rope-low-freq-factor 2", shape.rope.low, 2),
    ROW(ROPE "--use-rope-scaling --rope-high-freq-factor 8", shape.rope.high, 8),
    ROW(ROPE "--use-rope-scaling --rope-original-max-position-embeddings 64", shape.rope.original, 64),
    ROW("--normalization RMSNorm", shape.rms_norm, true),
    ROW("--disable-bias-linear", shape.no_linear_bias, true),
    ROW("--disable-bias-linear --add-qkv-bias", shape.qkv_bias, true),
    ROW("--disable-bias-linear --add-attn-proj-bias", shape.proj_bias, true),
    ROW("--disable-bias-linear --add-mlp-bias", shape.mlp_bias, true),
    ROW("--untie-embeddings-and-output-weights", shape.untied, true),
    ROW("--hidden-dropout 0.25", shape.hidden_dropout, 0.25),
    ROW("--attention-dropout 0.25", shape.attention_dropout, 0.25),
    ROW("--norm-epsilon 0.25", shape.norm_epsilon, 0.25),
    ROW("--init-method-std 0.25", shape.init_std, 0.25),
    ROW("--seed 7", shape.seed, 7),
    ROW("--bf16", mode.dtype, BF16),
    ROW("--fp16", mode.dtype, F16),
    ROW("--sequence-parallel", mode.sequence_parallel, true),
    ROW("--attention-backend unfused", mode.keep_probabilities, true),
    ROW("--recompute-activations", mode.recompute, RECOMPUTE_SELECTIVE),
    ROW(UNIFORM, mode.recompute, RECOMPUTE_UNIFORM),
    ROW(FULL "block", mode.recompute, RECOMPUTE_BLOCK),
    ROW(UNIFORM "--recompute-num-layers 2", mode.recompute_layers, 2),
    ROW(UNIFORM "--distribute-saved-activations", mode.distribute_saved, true),
    ROW("--decoder-first-pipeline-num-layers 3", split.first, 3),
    ROW("--decoder-last-pipeline-num-layers 3", split.last, 3),
    ROW("--vp 2", num_chunks, 2),
    ROW("--global-batch-size 64", num_microbatches, 16),
    ROW("--vp 2 --microbatch-group-size-per-virtual-pipeline-stage 4", microbatch_group, 4),
    ROW("--no-overlap-p2p-communication", receive_ahead, 0),
    ROW(AUTO, schedule_costs.forward_us, 2),
    ROW(AUTO, schedule_costs.backward_us, 8),
    ROW(AUTO, schedule_costs.weight_fraction, 0.625),
    ROW(AUTO, schedule_costs.hop_us, 0.5),
    ROW(AUTO "--schedule-stash-limit 5", stash_limit, 5),
    ROW("--no-scatter-gather-tensors-in-pipeline", scatter_gather, false),
    ROW("--use-distributed-optimizer", sharding, true),
    ROW("--data-parallel-sharding-strategy optim_grads --reduce-grads-every-microbatch", reduce_every, true),
    ROW("--use-distributed-optimizer --num-distributed-optimizer-instances 2", grid.instances, 2),
    ROW("--overlap-grad-reduce", overlap_gradients, true),
    ROW(SHARDED "--overlap-param-gather", overlap_weights, true),
    ROW("--adam-beta1 0.5", adam.beta1, 0.5),
    ROW("--adam-beta2 0.5", adam.beta2, 0.5),
    ROW("--adam-eps 0.5", adam.epsilon, 0.5),
    ROW("--clip-grad 0.5", adam.clip, 0.5),
    ROW("--ddp-bucket-size 1000", bucket_elements, 1000),
    ROW("--eod-mask-loss", masked, true),
    ROW("--reset-attention-mask", first_keys, true),
    ROW("--reset-position-ids", positions, true),
    ROW("--calculate-per-token-loss", per_token, true),
    ROW("--window-size 7,0", shape.window, 8),
    ROW("--window-size 7,0 --window-attn-skip-freq 4", shape.window_period, 4),
    ROW("--window-size 7,0 --window-attn-skip-freq [1,0,1]", shape.window_layers, 5),
    ROW("--softmax-type off-by-one", shape.softmax, SOFTMAX_OFF_BY_ONE),
    ROW("--softmax-type learnable", shape.softmax, SOFTMAX_SINKS),
    ROW("--softmax-scale 0.25", shape.softmax_scale, 0.25),
    ROW("--attn-logit-softcapping 50", shape.softmax_cap, 50),
};

static double value_of(const EngineSpec *spec, const Row *row) {
    const char *field = (const char *)spec + row->offset;
    int64_t whole = 0;
    float single;
    double twice;
    switch (row->type) {
    case IS_BOOL: return *(const bool *)field;
    case IS_FLOAT: return memcpy(&single, field, sizeof single), (double)single;
    case IS_DOUBLE: return memcpy(&twice, field, sizeof twice), twice;
    case IS_LONG: return memcpy(&whole, field, sizeof whole), (double)whole;
    case IS_INT: return *(const int *)(const void *)field;
    }
    return NAN;
}

static void every_option_changes_its_field(void) {
    Options plain, options;
    EngineSpec base, spec;
    int counts[64];
    EXPECT_OK(make_spec("", &plain, counts, &base));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const Row *row = &rows[i];
        Status status = make_spec(row->words, &options, counts, &spec);
        EXPECT(status == OK, "%s: %s", row->words, fail_message());
        if (status != OK) continue;
        EXPECT(value_of(&spec, row) == row->want, "%s: %s is %g, not %g", row->words, row->field,
               value_of(&spec, row), row->want);
        EXPECT(value_of(&base, row) != row->want, "%s: %s is %g anyway", row->words, row->field, row->want);
        options_destroy(&options);
    }
    EXPECT(base.threads == THREADS && base.shape.vocabulary == VOCABULARY, "%d threads, vocabulary %d",
           base.threads, base.shape.vocabulary);
    EXPECT(!base.split.counts, "layers that divide are not listed");
    options_destroy(&plain);
}

// ---- names, and layers of stages -------------------------------------------------------------------------

static void names(void) {
    static const char *const devices[] = {"cpu", "reference", "check"}; // without null, which no option names
    Options options;
    EngineSpec spec;
    int counts[64];
    char words[160];
    for (int i = 0; i < num_schedule_kinds; i++) {
        const char *schedule = schedule_kinds[i]->name;
        if (!strcmp(schedule, "interleaved")) continue; // needs more than one chunk: below
        bool paired = !strcmp(schedule, "paired");      // is for experts of several ranks
        snprintf(words, sizeof words, "--schedule %s%s", schedule,
                 paired ? " --tp 1 --num-experts 4 --ep 2" : "");
        EXPECT_OK(make_spec(words, &options, counts, &spec));
        EXPECT(!strcmp(spec.schedule, schedule), "%s: %s", words, spec.schedule);
        options_destroy(&options);
    }
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        snprintf(words, sizeof words, "--device %s", devices[i]);
        EXPECT_OK(make_spec(words, &options, counts, &spec));
        EXPECT(!strcmp(spec.device, devices[i]), "%s: %s", words, spec.device);
        options_destroy(&options);
    }
}

// A head of 256 * 64 weights is a third of a layer of 12 * 64 * 64: the stage that has it gets fewest layers.
static void layers_of_stages(void) {
    static const struct {
        const char *words;
        int counts[4];
    } cases[] = {
        {"--pp 4 --pipeline-model-parallel-layout E|ttt|tt|tttL", {0, 3, 2, 3}},
        {"--pp 4 --num-layers 10 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split",
         {2, 3, 3, 2}},
        {"--pp 4 --num-layers 7 --account-for-embedding-in-pipeline-split", {1, 2, 2, 2}},
        {"--pp 4 --num-layers 7 --account-for-loss-in-pipeline-split", {2, 2, 2, 1}},
        {"--pp 4 --num-layers 7 --balance-stages", {2, 2, 2, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Options options;
        EngineSpec spec;
        int counts[64];
        Status status = make_spec(cases[i].words, &options, counts, &spec);
        EXPECT(status == OK, "%s: %s", cases[i].words, fail_message());
        if (status != OK) continue;
        EXPECT(spec.split.counts == counts && !memcmp(counts, cases[i].counts, sizeof cases[i].counts),
               "%s: %d %d %d %d", cases[i].words, counts[0], counts[1], counts[2], counts[3]);
        options_destroy(&options);
    }
    Options options;
    EngineSpec spec;
    int counts[64];
    EXPECT(make_spec("--pipeline-model-parallel-layout Et|tL", &options, counts, &spec) == ERR_CONFIG &&
               strstr(fail_message(), "--pipeline-model-parallel-layout: "),
           "%s", fail_message());
}

static void threads_are_shared_out(void) {
    Options options;
    EXPECT_OK(resolve_run(&options, "--threads 5"));
    EXPECT(threads_per_rank(&options, 1000) == 5, "%d", threads_per_rank(&options, 1000));
    options_destroy(&options);
    EXPECT_OK(resolve_run(&options, ""));
    EXPECT(threads_per_rank(&options, 1 << 20) == 1, "%d", threads_per_rank(&options, 1 << 20));
    EXPECT(threads_per_rank(&options, 1) >= threads_per_rank(&options, 2), "%d, %d",
           threads_per_rank(&options, 1), threads_per_rank(&options, 2));
    options_destroy(&options);
}

// ---- a shape and its options ------------------------------------------------------------------------------

// What neither changes the model nor is brought by one.
static bool is_of_the_run(const char *field) {
    static const char *const fields[] = {"shape.init_std", "shape.seed"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (!strcmp(field, fields[i])) return true;
    return strncmp(field, "shape.", 6) != 0;
}

static ModelShape from_its_options(const ModelShape *shape) {
    ModelOption options[MAX_MODEL_OPTIONS];
    Options o;
    int count = model_options(shape, options);
    EXPECT_OK(parse_line(&o, FOR_TRAIN, "--data-path c --micro-batch-size 2 --train-iters 100 --lr 1e-3"));
    for (int i = 0; i < count; i++)
        if (*options[i].value)
            EXPECT_OK(
                options_take(&o, options[i].option, options[i].value, options[i].follows, "model", NULL));
    EXPECT_OK(options_resolve(&o, 1));
    ModelShape again = options_model(&o, o.vocab_size);
    options_destroy(&o);
    return again;
}

static void expect_returns(const ModelShape *shape, const char *words) {
    Text before = {0}, after = {0};
    ModelShape again = from_its_options(shape);
    shape_write(shape, &before);
    shape_write(&again, &after);
    EXPECT(!strcmp(before.data, after.data), "%s: %s is not %s", words, after.data, before.data);
    text_free(&before);
    text_free(&after);
}

// Law: the options that a shape stands for make the same shape, for every option that changes one.
static void shapes_return_from_their_options(void) {
    int counts[64], checked = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options options;
        EngineSpec spec;
        if (is_of_the_run(rows[i].field)) continue;
        EXPECT_OK(make_spec(rows[i].words, &options, counts, &spec));
        expect_returns(&spec.shape, rows[i].words);
        options_destroy(&options);
        checked++;
    }
    EXPECT(checked > 15, "only %d rows", checked);
    // A share that no short decimal is, and an odd epsilon.
    ModelShape shape = {.layers = 3,
                        .hidden = 48,
                        .heads = 4,
                        .head_size = 18,
                        .ffn = 7,
                        .sequence = 8,
                        .groups = 4,
                        .positions = 16,
                        .vocabulary = 99,
                        .position = POSITION_ROTARY,
                        .rotary_base = 12345,
                        .rotary_columns = 6,
                        .norm_epsilon = 1.0f / 3,
                        .hidden_dropout = 0.1f / 3,
                        .init_std = 0.02f,
                        .seed = 1234};
    expect_returns(&shape, "thirds");
}

// ---- devices ---------------------------------------------------------------------------------------------

static bool is_kind(const char *word) {
    int count;
    const char *const *kinds = device_kinds(&count);
    while (count > 0 && strcmp(kinds[count - 1], word)) count--;
    return count > 0;
}

// Law: the choices of --device are the kinds of devices but null, the planner's. config/ is below device/ and cannot ask
// for them.
static void devices_are_the_choices(void) {
    char choices[256], *rest = NULL;
    int count;
    const char *const *kinds = device_kinds(&count);
    for (int i = 0; i < count; i++) {
        char line[64];
        Options options;
        snprintf(line, sizeof line, "--device %s", kinds[i]);
        Status status = parse_run(&options, line);
        EXPECT((status == OK) == (strcmp(kinds[i], "null") != 0), "%s, a row of DEVICE_KINDS: status %d",
               line, (int)status);
        if (status == OK) options_destroy(&options);
    }
    snprintf(choices, sizeof choices, "%s", option_table[OPT_device].range);
    for (char *word = strtok_r(choices, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        EXPECT(is_kind(word), "--device %s is no row of DEVICE_KINDS", word);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every_option_changes_its_field", every_option_changes_its_field},
                                      {"names", names},
                                      {"layers_of_stages", layers_of_stages},
                                      {"threads_are_shared_out", threads_are_shared_out},
                                      {"shapes_return_from_their_options", shapes_return_from_their_options},
                                      {"devices_are_the_choices", devices_are_the_choices},
                                      {0}},
                       argc, argv);
}
