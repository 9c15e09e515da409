// Published models, the model family, precision, recomputation: what options mean together.
#include "config/table.h"
#include "config_words.h"
#include <math.h>
#include <stdlib.h>

// Weights of matrices and tables, counted here by themselves: biases and norms are below the tolerance.
static double weights_of(const Options *o) {
    double h = o->hidden_size, head = o->kv_channels, heads = o->num_attention_heads;
    double attention = h * head * (2 * heads + 2 * o->shape.query_groups);
    double matrices = o->swiglu || o->geglu || o->quick_geglu ? 3 : 2,
           mlp = matrices * h * o->ffn_hidden_size;
    if (o->num_experts != INT_UNSET) mlp = o->num_experts * (matrices * h * o->shape.expert_width + h);
    double tables = o->vocab_size * h * (o->untie_embeddings_and_output_weights ? 2 : 1);
    if (!strcmp(o->position_embedding_type, "learned_absolute")) tables += o->max_position_embeddings * h;
    return o->num_layers * (attention + mlp) + tables;
}

// The weights that a name says, in full where it rounds them to one digit or says those that a token uses, too.
static double weights_said(const char *name) {
    static const struct {
        const char *name;
        double weights;
    } others[] = {{"llama3.2-1b", 1.24e9},     {"llama3.2-3b", 3.21e9},    {"gemma2-2b", 2.61e9},
                  {"mixtral-8x7b", 46.7e9},    {"mixtral-8x22b", 140.6e9}, {"qwen3-30b-a3b", 30.5e9},
                  {"qwen3-235b-a22b", 235.1e9}};
    char *unit;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i].name)) return others[i].weights;
    double said = strtod(strrchr(name, '-') + 1, &unit);
    return said * (*unit == 'm' ? 1e6 : 1e9);
}

// Law: every row resolves, and has about as many weights as its name says.
static void presets_are_what_they_say(void) {
    for (int i = 0; i < num_model_presets; i++) {
        const ModelPreset *model = &model_presets[i];
        char line[128];
        snprintf(line, sizeof line, "--model %s --mbs 1", model->name);
        Options o = {0};
        EXPECT_OK(parse_line(&o, FOR_MEMORY, line));
        EXPECT_OK(options_resolve(&o, 1));
        double said = weights_said(model->name);
        EXPECT(fabs(weights_of(&o) - said) < 0.1 * said, "%s has %g weights", model->name, weights_of(&o));
        EXPECT(*model->source, "%s has no source", model->name);
        for (int k = 0; k < i; k++)
            EXPECT(strcmp(model->name, model_presets[k].name), "%s twice", model->name);
        options_destroy(&o);
    }
    EXPECT(num_model_presets == 86, "%d models", num_model_presets);
}

static void latents_make_heads(void) {
    Options o;
    EXPECT_OK(
        resolve_run(&o, "--multi-latent-attention --qk-layernorm --position-embedding-type rope "
                        "--normalization RMSNorm --qk-head-dim 12 --qk-pos-emb-head-dim 8 --v-head-dim 10"));
    EXPECT(o.kv_channels == 20 && o.shape.rotary_columns == 8, "%d columns, %d of them rotate", o.kv_channels,
           o.shape.rotary_columns);
    EXPECT(o.kv_lora_rank == 32 && o.q_lora_rank == INT_UNSET, "a latent of keys and values alone");
    EXPECT(options_origin(&o, "kv_channels") == DERIVED, "the size of heads follows");
    options_destroy(&o);
}

static void presets_give_way(void) {
    Options o;
    EXPECT_OK(
        resolve_run(&o, "--model llama3-8b --hidden-dropout 0.2 --no-swiglu --ffn 512 --kv-channels 64"));
    EXPECT(o.num_layers == 8 && o.hidden_size == 64 && o.seq_length == 32, "sizes of the command line");
    EXPECT(o.hidden_dropout == 0.2 && !o.swiglu && o.attention_dropout == 0, "given wins");
    EXPECT(o.shape.query_groups == 8 && o.rotary_base == 500000 && !strcmp(o.normalization, "RMSNorm"),
           "the rest is the model's");
    EXPECT(o.disable_bias_linear && o.untie_embeddings_and_output_weights, "of its family, too");
    EXPECT(o.norm_epsilon == 1e-5, "%g", o.norm_epsilon);
    EXPECT(o.vocab_size == INT_UNSET, "the tokenizer says how many entries there are");
    EXPECT(options_origin(&o, "rotary_base") == FROM_MODEL &&
               options_origin(&o, "swiglu") == FROM_COMMAND_LINE,
           "origins");
    Text saved = {0};
    options_save(&o, FOR_TRAIN, &saved);
    EXPECT(strstr(saved.data, "\n# rotary_base: 500000  # model\n"), "%s", saved.data);
    EXPECT(strstr(saved.data, "\nmodel: \"llama3-8b\"  # command line\n"), "%s", saved.data);
    text_free(&saved);
    options_destroy(&o);
    EXPECT_OK(parse_line(&o, FOR_TRAIN,
                         "--model gpt2-355m --mbs 1 --lr 1 --train-iters 1 --data-path c --seq 512"));
    EXPECT_OK(options_resolve(&o, 1));
    EXPECT(o.num_layers == 24 && o.max_position_embeddings == 1024 && o.ffn_hidden_size == 4096, "gpt2-355m");
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--model llama-7b"));
    EXPECT(o.norm_epsilon == 1e-6 && o.rotary_base == 10000, "the first of the family");
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--model llama3.2-1b"));
    EXPECT(o.use_rope_scaling && o.rope_scaling_factor == 32 && o.rotary_base == 500000 &&
               !o.untie_embeddings_and_output_weights,
           "a family of the third generation");
    options_destroy(&o);
}

// Synthetic data have no tokenizer: a published model brings its vocabulary, and real data do not ask for it.
static void mock_data_take_the_models_vocabulary(void) {
    static const char run[] = "--model llama3-8b --mbs 1 --lr 1 --train-iters 1 ";
    static const struct {
        const char *line;
        int vocabulary;
    } rows[] = {{"--mock-data", 128256}, {"--mock-data --vocab-size 500", 500}, {"--data-path c", INT_UNSET}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[256];
        Options o;
        snprintf(line, sizeof line, "%s%s", run, rows[i].line);
        EXPECT_OK(parse_line(&o, FOR_TRAIN, line));
        EXPECT_OK(options_resolve(&o, 1));
        EXPECT(o.vocab_size == rows[i].vocabulary, "%s: %d", rows[i].line, o.vocab_size);
        options_destroy(&o);
    }
}

// What a checkpoint brings stands between the defaults and everything that is given.
static void checkpoints_give_way(void) {
    Options o;
    Text taken = {0};
    EXPECT_OK(parse_run(&o, "--norm-epsilon 1e-6 --model llama2-7b"));
    EXPECT_OK(options_take(&o, "norm_epsilon", "1e-05", false, "ckpt", &taken));  // given
    EXPECT_OK(options_take(&o, "hidden_dropout", "0.3", false, "ckpt", &taken));  // of the model
    EXPECT_OK(options_take(&o, "add_qkv_bias", "true", false, "ckpt", &taken));   // taken
    EXPECT_OK(options_take(&o, "rotary_percent", "1", false, "ckpt", &taken));    // the default
    EXPECT_OK(options_take(&o, "kv_channels", "16", true, "ckpt", &taken));       // follows
    EXPECT_OK(options_take(&o, "init_method_std", "0.5", false, "ckpt", &taken)); // taken
    EXPECT(o.norm_epsilon == 1e-6 && o.hidden_dropout == 0, "what is given or of --model stays");
    EXPECT(o.add_qkv_bias && o.kv_channels == 16 && o.init_method_std == 0.5, "the rest is taken");
    EXPECT(!strcmp(text_string(&taken), " --add-qkv-bias --init-method-std 0.5"), "%s", text_string(&taken));
    EXPECT(options_origin(&o, "add_qkv_bias") == FROM_CHECKPOINT &&
               options_origin(&o, "rotary_percent") == FROM_DEFAULT &&
               options_origin(&o, "kv_channels") == DERIVED,
           "origins");
    expect_failure(options_take(&o, "rotary_base", "many", false, "ckpt", NULL), ERR_CONFIG,
                   "ckpt: rotary_base: 'many'", "a value that is none");
    EXPECT_OK(options_resolve(&o, 1));
    Text saved = {0};
    options_save(&o, FOR_TRAIN, &saved);
    EXPECT(strstr(saved.data, "\nadd_qkv_bias: true  # checkpoint\n"), "%s", saved.data);
    EXPECT(strstr(saved.data, "\n# kv_channels: 16  # derived\n"), "%s", saved.data);
    text_free(&saved);
    text_free(&taken);
    options_destroy(&o);
}

// trireme memory: a run without data, length and rate, but with a vocabulary.
static void memory_needs_no_data(void) {
    Options o = {0};
    EXPECT_OK(parse_line(&o, FOR_MEMORY, "--layers 2 --hidden 48 --heads 4 --seq 8 --mbs 1 --swiglu"));
    expect_failure(options_resolve(&o, 1), ERR_CONFIG, "--vocab-size is required, such as --vocab-size 50257",
                   "no vocabulary");
    options_destroy(&o);
    EXPECT_OK(parse_line(&o, FOR_MEMORY,
                         "--model gpt3-175b --mbs 1 --gbs 1536 --tp 8 --pp 16 --bf16 --vocab-size 51200 "
                         "--data-path c --lr 1 --train-iters 3"));
    EXPECT_OK(options_resolve(&o, 1024));
    EXPECT(o.vocab_size == 51200 && o.shape.num_microbatches == 192, "m %d", o.shape.num_microbatches);
    o.num_layers = 97;
    expect_failure(options_resolve(&o, 1024), ERR_CONFIG, "--num-layers 97 is not divisible", "other rules");
    options_destroy(&o);
}

static void families(void) {
    static const struct {
        const char *line;
        int ffn, groups, rotary;
        const char *position;
    } rows[] = {
        {"", 256, 8, 0, "learned_absolute"},
        {"--swiglu", 128, 8, 0, "learned_absolute"}, // int(64 * 8/3 / 64) * 64
        {"--swiglu --hidden 512", 1344, 8, 0, "learned_absolute"},
        {"--swiglu --hidden 768", 2048, 8, 0, "learned_absolute"},
        {"--group-query-attention --num-query-groups 2", 256, 2, 0, "learned_absolute"},
        {"--group-query-attention", 256, 1, 0, "learned_absolute"},
        {"--use-rotary-position-embeddings", 256, 8, 8, "rope"},
        {"--use-rotary-position-embeddings --no-position-embedding", 256, 8, 8, "rope"},
        {"--position-embedding-type rope --rotary-percent 0.5", 256, 8, 4, "rope"},
        {"--no-position-embedding", 256, 8, 0, "none"},
        {"--position-embedding-type rope --max-position-embeddings 8", 256, 8, 8, "rope"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        EXPECT_OK(resolve_run(&o, rows[i].line));
        EXPECT(o.ffn_hidden_size == rows[i].ffn, "%s: ffn %d", rows[i].line, o.ffn_hidden_size);
        EXPECT(o.shape.query_groups == rows[i].groups, "%s: %d groups", rows[i].line, o.shape.query_groups);
        EXPECT(o.shape.rotary_columns == rows[i].rotary, "%s: %d", rows[i].line, o.shape.rotary_columns);
        EXPECT(!strcmp(o.position_embedding_type, rows[i].position), "%s: %s", rows[i].line,
               o.position_embedding_type);
        options_destroy(&o);
    }
}

static void precision(void) {
    static const struct {
        const char *line;
        bool dynamic, check;
    } rows[] = {{"", false, true},
                {"--bf16", false, true},
                {"--fp16", true, false},
                {"--fp16 --loss-scale 1024", false, true},
                {"--fp16 --check-for-nan-in-loss-and-grad", true, false},
                {"--fp16 --loss-scale 1024 --device check", false, true},
                {"--bf16 --device check", false, true},
                {"--fp16 --device reference --loss-scale-window 1000.0", true, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        EXPECT_OK(resolve_run(&o, rows[i].line));
        EXPECT(o.shape.dynamic_loss_scale == rows[i].dynamic, "%s", rows[i].line);
        EXPECT(o.check_for_nan_in_loss_and_grad == rows[i].check, "%s", rows[i].line);
        EXPECT(o.initial_loss_scale == 4294967296.0 && o.loss_scale_window == 1000, "%g",
               o.initial_loss_scale);
        options_destroy(&o);
    }
}

// The largest unit of a padded vocabulary that an int holds.
static void vocabulary_is_padded(void) {
    Options o;
    EXPECT_OK(resolve_run(&o,
                          "--ranks 2048 --tp 2048 --heads 2048 --hidden 2048 --make-vocab-size-divisible-by "
                          "1048575"));
    EXPECT(o.make_vocab_size_divisible_by == 1048575, "%d", o.make_vocab_size_divisible_by);
    options_destroy(&o);
}

static void recomputation(void) {
    static const struct {
        const char *line, *what;
        int layers;
        bool keeps;
    } rows[] = {
        {"", "nothing", 0, false},
        {"--attention-backend unfused", "nothing", 0, true},
        {"--attention-backend local", "nothing", 0, true},
        {"--attention-backend flash", "nothing", 0, false},
        {"--recompute-activations", "selective", 0, false},
        {"--recompute-granularity selective --recompute-modules core_attn", "selective", 0, false},
        {"--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "uniform", 2,
         false},
        {"--recompute-granularity full --recompute-method block", "block", 1, false},
        {"--activations-checkpoint-method block --activations-checkpoint-num-layers 3", "block", 3, false},
        {"--checkpoint-activations", "uniform", 1, false},
        {"--checkpoint-activations=false", "nothing", 0, false},
        {"--ranks 2 --tp 2 --checkpoint-activations --distribute-checkpointed-activations", "uniform", 1,
         false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        EXPECT_OK(resolve_run(&o, rows[i].line));
        EXPECT(!strcmp(o.shape.recompute, rows[i].what), "%s: %s", rows[i].line, o.shape.recompute);
        EXPECT(o.shape.recompute_layers == rows[i].layers, "%s: %d", rows[i].line, o.shape.recompute_layers);
        EXPECT(o.shape.keep_probabilities == rows[i].keeps, "%s", rows[i].line);
        EXPECT(o.distribute_saved_activations == (strstr(rows[i].line, "distribute") != NULL), "shares");
        options_destroy(&o);
    }
}

static void windows(void) {
    static const struct {
        const char *line;
        int window, period;
        uint64_t layers;
    } rows[] = {
        {"--window-size 127,0", 128, 0, 0},
        {"--window-size=(3,0)", 4, 0, 0},
        {"--window-size=(3,-1)", 4, 0, 0},
        {"--window-size=-1,0", 0, 0, 0},
        {"--window-size 3,0 --window-attn-skip-freq 2", 4, 2, 1},
        {"--window-size 3,0 --window-attn-skip-freq 6", 4, 6, 31},
        {"--window-size 3,0 --window-attn-skip-freq 1", 0, 0, 0},
        {"--window-size 3,0 --window-attn-skip-freq 9", 4, 0, 0},
        {"--window-size 3,0 --window-attn-skip-freq [1,1,0]", 4, 3, 3},
        {"--window-size 3,0 --window-attn-skip-freq [1,0,1]", 4, 3, 5},
        {"--window-size 3,0 --window-attn-skip-freq [1,1,0]*2+[1,1]", 4, 3, 3},
        {"--window-size 3,0 --window-attn-skip-freq=[0,1]*4", 4, 2, 2},
        {"--window-size 3,0 --window-attn-skip-freq=([1]*3+[0])*2", 4, 4, 7},
        {"--window-size 3,0 --window-attn-skip-freq=[1]*8", 4, 0, 0},
        {"--window-size 3,0 --window-attn-skip-freq=[0]", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        EXPECT_OK(resolve_run(&o, rows[i].line));
        EXPECT(o.shape.window == rows[i].window && o.shape.window_period == rows[i].period &&
                   o.shape.window_layers == rows[i].layers,
               "%s: %d, %d, %llx", rows[i].line, o.shape.window, o.shape.window_period,
               (unsigned long long)o.shape.window_layers);
        options_destroy(&o);
    }
}

static void shards(void) {
    Options o;
    EXPECT_OK(resolve_run(&o, "--ranks 2 --tp 2 --sequence-parallel"));
    EXPECT(o.shape.sequence_parallel && !*options_notes(&o), "%s", options_notes(&o));
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--sequence-parallel"));
    EXPECT(!o.shape.sequence_parallel && o.sequence_parallel, "asked for, and of no use");
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
                              "--no-scatter-gather-tensors-in-pipeline"));
    EXPECT(o.use_distributed_optimizer && o.overlap_param_gather && !o.scatter_gather_tensors_in_pipeline,
           "flags");
    options_destroy(&o);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"presets are what they say", presets_are_what_they_say},
                       {"latents make heads", latents_make_heads},
                       {"presets give way", presets_give_way},
                       {"windows", windows},
                       {"mock data take the model's vocabulary", mock_data_take_the_models_vocabulary},
                       {"checkpoints give way", checkpoints_give_way},
                       {"memory needs no data", memory_needs_no_data},
                       {"families", families},
                       {"precision", precision},
                       {"vocabulary is padded", vocabulary_is_padded},
                       {"recomputation", recomputation},
                       {"shards", shards},
                       {0}},
        argc, argv);
}
