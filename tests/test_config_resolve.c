// What follows from options that fit: the grid, the batch, the lengths, and what is filled in.
#include "config_words.h"
#include <math.h>

// Law: whatever is accepted is consistent, over all small grids and batches; and nothing that divides is
// refused.
static void grids(void) {
    for (int ranks = 1; ranks <= 12; ranks++)
        for (int code = 0; code < 4 * 4 * 3 * 6; code++) {
            int tp = 1 + code % 4, pp = 1 + code / 4 % 4, mbs = 1 + code / 16 % 3, gbs = 4 * (1 + code / 48);
            char line[128];
            snprintf(line, sizeof line, "--ranks %d --tp %d --pp %d --mbs %d --gbs %d", ranks, tp, pp, mbs,
                     gbs);
            int dp = ranks / (tp * pp);
            bool fits = ranks % (tp * pp) == 0 && gbs % (mbs * dp) == 0 && 8 % pp == 0 && 8 % tp == 0;
            Options o = {0};
            Status status = resolve_run(&o, line);
            EXPECT(status == (fits ? OK : ERR_CONFIG), "%s: %d %s", line, (int)status, fail_message());
            if (status != OK) continue;
            RunShape s = o.shape;
            EXPECT(s.world_size == ranks && s.tp == tp && s.pp == pp && s.dp == dp && s.vp == 1, "%s", line);
            EXPECT(s.num_microbatches * mbs * dp == gbs, "%s: m %d", line, s.num_microbatches);
            EXPECT(s.train_samples == 100 * (int64_t)gbs, "%s", line);
            options_destroy(&o);
        }
}

static void chunks(void) {
    Options o;
    EXPECT_OK(resolve_run(&o, "--ranks 2 --pp 2 --gbs 8 --vp 4"));
    EXPECT(o.shape.vp == 4 && !strcmp(o.shape.schedule, "interleaved"), "v %d %s", o.shape.vp,
           o.shape.schedule);
    EXPECT(options_origin(&o, "schedule") == DERIVED, "origin");
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--ranks 2 --pp 2 --gbs 8 --num-layers-per-virtual-pipeline-stage 2"));
    EXPECT(o.shape.vp == 2, "v %d", o.shape.vp);
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--ranks 2 --pp 2 --schedule gpipe --vp 1"));
    EXPECT(o.shape.vp == 1 && !strcmp(o.shape.schedule, "gpipe"), "%s", o.shape.schedule);
    options_destroy(&o);
}

static void filled_in(void) {
    Options o;
    EXPECT_OK(resolve_run(&o, "--ranks 4 --tp 2"));
    EXPECT(o.ffn_hidden_size == 256 && o.kv_channels == 8 && o.max_position_embeddings == 32, "model");
    EXPECT(o.global_batch_size == 4 && o.data_parallel_size == 2 && o.lr_decay_iters == 100, "run");
    EXPECT(!strcmp(o.schedule, "1f1b"), "%s", o.schedule);
    EXPECT(o.threads == INT_UNSET, "how many cores a rank has is the launcher's to know");
    static const char *const fields[] = {"ffn_hidden_size",   "kv_channels",        "max_position_embeddings",
                                         "global_batch_size", "data_parallel_size", "lr_decay_iters",
                                         "schedule"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        EXPECT(options_origin(&o, fields[i]) == DERIVED, "%s", fields[i]);
    EXPECT(options_origin(&o, "ranks") == FROM_COMMAND_LINE, "given stays given");
    options_destroy(&o);
}

static void lengths(void) {
    Options o;
    EXPECT_OK(resolve_run(&o, "--gbs 4 --lr-decay-iters 10 --lr-warmup-fraction 0.01"));
    EXPECT(o.shape.lr_decay_samples == 40 && fabs(o.shape.lr_warmup_samples - 0.4) < 1e-12,
           "a fraction is not rounded");
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--gbs 4 --lr-warmup-iters 3"));
    EXPECT(o.shape.lr_decay_samples == 400 && o.shape.lr_warmup_samples == 12, "in samples");
    options_destroy(&o);
    EXPECT_OK(parse_line(
        &o, FOR_TRAIN,
        "--data-path c --layers 2 --hidden 8 --heads 2 --seq 8 --mbs 2 --gbs 4 --lr 1 --train-samples 103 "
        "--lr-warmup-samples 5"));
    EXPECT_OK(options_resolve(&o, 1));
    EXPECT(o.shape.train_iters == 25 && o.shape.train_samples == 103, "%lld steps",
           (long long)o.shape.train_iters);
    EXPECT(o.shape.lr_decay_samples == 103 && o.shape.lr_warmup_samples == 5, "samples as they are");
    options_destroy(&o);
}

static void splits(void) {
    static const struct {
        const char *line;
        double split[3];
        int eval_iters;
    } rows[] = {
        {"", {0.969, 0.03, 0.001}, 100},
        {"--split '99,1,0'", {0.99, 0.01, 0}, 100}, // quotes that a launch script left inside
        {"--split 969,~30,~1", {0.969, 0.03, 0.001}, 100},
        {"--split .75/.25", {0.75, 0.25, 0}, 100},
        {"--split 100", {1, 0, 0}, 0}, // nothing to evaluate on
        {"--split 100,0,0 --eval-iters 0", {1, 0, 0}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        EXPECT_OK(resolve_run(&o, rows[i].line));
        for (int k = 0; k < 3; k++)
            EXPECT(fabs(o.shape.split[k] - rows[i].split[k]) < 1e-15, "%s: share %d is %g", rows[i].line, k,
                   o.shape.split[k]);
        EXPECT(o.shape.eval_iters == rows[i].eval_iters, "%s: %lld", rows[i].line,
               (long long)o.shape.eval_iters);
        options_destroy(&o);
    }
}

// Everything that says where data are, alone; and what it makes of the split.
static void data_sources(void) {
    static const char rest[] = "--layers 2 --hidden 8 --heads 2 --seq 8 --mbs 1 --lr 1 --train-iters 3 ";
    static const struct {
        const char *line;
        double split[3];
        int eval_iters;
    } rows[] = {
        {"--data-path a b", {0.969, 0.03, 0.001}, 100},
        {"--data-path 0.5 a 1e1 b", {0.969, 0.03, 0.001}, 100},
        {"--data-args-path f --split 3,1", {0.75, 0.25, 0}, 100},
        {"--train-data-path 1 a 2 b", {1, 0, 0}, 0},
        {"--train-data-path a --valid-data-path b", {0.5, 0.5, 0}, 100},
        {"--train-data-path a --test-data-path c --eval-iters 0", {0.5, 0, 0.5}, 0},
        {"--per-split-data-args-path f", {1 / 3.0, 1 / 3.0, 1 / 3.0}, 100},
        {"--mock-data --vocab-size 99", {1 / 3.0, 1 / 3.0, 1 / 3.0}, 100},
        {"--mock-data --tokenizer-model t --split 9,1", {0.9, 0.1, 0}, 100},
        {"--mock-data --tokenizer-type NullTokenizer --vocab-size 99 --eod-mask-loss --split 1",
         {1, 0, 0},
         0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        char line[512];
        snprintf(line, sizeof line, "%s%s", rest, rows[i].line);
        EXPECT_OK(parse_line(&o, FOR_TRAIN, line));
        EXPECT_OK(options_resolve(&o, 1));
        for (int k = 0; k < 3; k++)
            EXPECT(fabs(o.shape.split[k] - rows[i].split[k]) < 1e-15, "%s: share %d is %g", rows[i].line, k,
                   o.shape.split[k]);
        EXPECT(o.shape.eval_iters == rows[i].eval_iters, "%s: %lld", rows[i].line,
               (long long)o.shape.eval_iters);
        options_destroy(&o);
    }
}

// One source each, and a NullTokenizer described by its size alone.
static void tokenizers(void) {
    static const char *const lines[] = {"",
                                        "--tokenizer-type GPT2BPETokenizer --vocab-size 300",
                                        "--tokenizer-type NullTokenizer --vocab-size 300",
                                        "--vocab-file v --merge-file m",
                                        "--vocab-file v --merge-file m --vocab-size 300",
                                        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model t",
                                        "--tokenizer-model t --eod-mask-loss"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Options o = {0};
        EXPECT_OK(resolve_run(&o, lines[i]));
        options_destroy(&o);
    }
}

// A note says so when an option that was given does nothing; no other line of the tests has one.
#define ROPE "--position-embedding-type rope "
static const struct {
    const char *line, *name, *counterpart;
} idle_rows[] = {
    {"--num-query-groups 2", "--num-query-groups", "--group-query-attention"},
    {"--rotary-base 500000", "--rotary-base", "--position-embedding-type rope"},
    {"--rotary-percent 0.5", "--rotary-percent", "--use-rotary-position-embeddings"},
    {"--use-rope-scaling", "--use-rope-scaling", "--position-embedding-type rope"},
    {"--rotary-seq-len-interpolation-factor 2", "--rotary-seq-len-interpolation-factor",
     "--position-embedding-type rope"},
    {ROPE "--rope-scaling-factor 32", "--rope-scaling-factor", "--use-rope-scaling"},
    {ROPE "--rope-low-freq-factor 2", "--rope-low-freq-factor", "--use-rope-scaling"},
    {ROPE "--rope-high-freq-factor 8", "--rope-high-freq-factor", "--use-rope-scaling"},
    {ROPE "--rope-original-max-position-embeddings 64", "--rope-original-max-position-embeddings",
     "--use-rope-scaling"},
    {"--swiglu --no-bias-gelu-fusion", "--bias-gelu-fusion", "--no-swiglu"},
    {"--swiglu --openai-gelu", "--openai-gelu", "--no-swiglu"},
    {"--loss-scale 8", "--loss-scale", "--fp16"},
    {"--initial-loss-scale 8", "--initial-loss-scale", "--fp16"},
    {"--min-loss-scale 2", "--min-loss-scale", "--fp16"},
    {"--loss-scale-window 8", "--loss-scale-window", "--fp16"},
    {"--hysteresis 3", "--hysteresis", "--fp16"},
    {"--lr-wsd-decay-iters 8", "--lr-wsd-decay-iters", "--lr-decay-style WSD"},
    {"--lr-wsd-decay-style linear", "--lr-wsd-decay-style", "--lr-decay-style WSD --lr-wsd-decay-iters 8"},
    {"--sequence-parallel", "--sequence-parallel", "--ranks 2 --tp 2"},
    {"--schedule-times 2,3,1,.5", "--schedule-times", "--schedule auto"},
    {"--schedule-stash-limit 3", "--schedule-stash-limit", "--enable-zero-bubble"},
    {"--microbatch-group-size-per-virtual-pipeline-stage 3",
     "--microbatch-group-size-per-virtual-pipeline-stage", "--ranks 2 --pp 2 --vp 2 --gbs 12"},
    {"--save c --save-retain-interval 3", "--save-retain-interval", "--keep-last 2"},
    {"--loss-spike-factor 3", "--loss-spike-factor", "--check-for-spiky-loss"},
    {"--trace-events 300", "--trace-events", "--trace t"},
    {"--rope-scaling-type yarn --rope-scaling-factor 4", "--rope-scaling-type",
     "--position-embedding-type rope"},
    {ROPE "--rope-original-max-position-embeddings 64", "--rope-original-max-position-embeddings",
     "--rope-scaling-type dynamic"},
    {ROPE "--yarn-beta-fast 16", "--yarn-beta-fast", "--rope-scaling-type yarn"},
    {ROPE "--no-yarn-correction-range-round-to-int", "--yarn-correction-range-round-to-int",
     "--rope-scaling-type yarn"},
    {"--rotary-base-local 500", "--rotary-base-local", ROPE "--window-size 7,0"},
    {"--max-position-embeddings 64 " ROPE, "--max-position-embeddings",
     "--position-embedding-type learned_absolute"},
    {"--squared-relu --openai-gelu", "--openai-gelu", "--no-squared-relu"},
    {"--geglu --no-bias-gelu-fusion", "--bias-gelu-fusion", "--no-geglu"},
    {"--add-qkv-bias", "--add-qkv-bias", "--disable-bias-linear"},
    {"--muon-momentum 0.95", "--muon-momentum", "--optimizer muon"},
    {"--no-muon-split-qkv", "--muon-split-qkv", "--optimizer muon"},
    {"--muon-scale-mode unit_rms_norm", "--muon-scale-mode", "--optimizer muon"},
    {"--sft --no-reset-attention-mask", "--reset-attention-mask", "--no-sft"},
    {"--sft --calculate-per-token-loss", "--calculate-per-token-loss", "--no-sft"},
    {"--lr-decay-style constant --min-lr 1e-5", "--min-lr", "--lr-decay-style cosine"},
    {"--rewind-margin 3", "--rewind-margin", "--rewind-on-spike --save c --save-interval 5 --keep-last 9"},
    {"--eval-iters 0 --eval-interval 9", "--eval-interval", "--eval-iters 3"},
    {"--metrics-checksum-interval 7", "--metrics-checksum-interval", "--metrics m"},
    {"--fp8-recipe tensorwise", "--fp8-recipe", "--bf16 --fp8-format e4m3"},
    {"--num-layers-at-end-in-bf16 1", "--num-layers-at-end-in-bf16",
     "--bf16 --fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-start-in-bf16 0"},
    {"--ranks-per-gpu 2", "--ranks-per-gpu", "--device cuda"},
    {"--num-experts 4 --moe-router-load-balancing-type seq_aux_loss", "--moe-router-load-balancing-type",
     "--moe-aux-loss-coeff 0.01"},
};
#undef ROPE

static void notes_of_idle_options(void) {
    for (size_t i = 0; i < sizeof idle_rows / sizeof idle_rows[0]; i++) {
        Options o;
        char note[128], both[256];
        snprintf(note, sizeof note, "%s has no effect: ", idle_rows[i].name);
        EXPECT_OK(resolve_run(&o, idle_rows[i].line));
        EXPECT(strstr(options_notes(&o), note), "%s: %s", idle_rows[i].line, options_notes(&o));
        options_destroy(&o);
        snprintf(both, sizeof both, "%s %s", idle_rows[i].line, idle_rows[i].counterpart);
        EXPECT_OK(resolve_run(&o, both));
        EXPECT(!*options_notes(&o), "%s: %s", both, options_notes(&o));
        options_destroy(&o);
    }
}

// Muon steps whole matrices on a GPU; where nothing goes to the host there is nothing to refuse.
static void muon_stays_on_the_gpu(void) {
    static const struct {
        const char *line;
        bool refused;
    } rows[] = {
        {"--optimizer muon --device cuda-sim --optimizer-cpu-offload", true},
        {"--optimizer muon --device cuda-sim --optimizer-cpu-offload --optimizer-offload-fraction 0.1", true},
        {"--optimizer muon --device cuda-sim --optimizer-cpu-offload --optimizer-offload-fraction 0", false},
        {"--optimizer muon --device cpu --optimizer-cpu-offload", false},
        {"--optimizer muon --device reference --optimizer-cpu-offload", false},
        {"--optimizer adam --device cuda-sim --optimizer-cpu-offload", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Options o;
        Status status = resolve_run(&o, rows[i].line);
        if (rows[i].refused)
            expect_failure(status, ERR_CONFIG, "cannot be used with --optimizer muon", rows[i].line);
        else
            EXPECT_OK(status);
        options_destroy(&o);
    }
}

// Of options that nothing uses the reason says beside what they are used, as the table's conditions do.
static void reasons_of_idle_options(void) {
    static const struct {
        Verb verb;
        const char *line, *note;
    } rows[] = {
        {FOR_TRAIN, "--muon-momentum 0.9", "--muon-momentum has no effect: it is for --optimizer muon\n"},
        {FOR_TRAIN, "--loss-spike-factor 3",
         "--loss-spike-factor has no effect: it is for --check-for-spiky-loss or for --rewind-on-spike\n"},
        {FOR_TRAIN, "--trace-events 300", "--trace-events has no effect: it is for --trace\n"},
        {FOR_TRAIN, "--lr-decay-style constant --min-lr 1e-5",
         "--min-lr has no effect: it is for --lr-decay-style other than constant\n"},
        // One reason is enough, and without an option there is none.
        {FOR_TRAIN, "--yarn-beta-slow 2",
         "--yarn-beta-slow has no effect: it is for --position-embedding-type rope\n"},
        {FOR_GENERATE, "--temperature 0 --top-k 5",
         "--top-k has no effect: it is for --temperature other than 0.0\n"},
        {FOR_GENERATE, "--top-k 5 --seed 3", ""},
        {FOR_EVALUATE, "--task t --split 0,1,0", "--split has no effect: it is for --data-path\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        if (rows[i].verb == FOR_TRAIN) {
            EXPECT_OK(resolve_run(&o, rows[i].line));
        } else {
            EXPECT_OK(parse_line(&o, rows[i].verb, rows[i].line));
            options_note_idle(&o);
        }
        EXPECT(!strcmp(options_notes(&o), rows[i].note), "%s: '%s', not '%s'", rows[i].line,
               options_notes(&o), rows[i].note);
        options_destroy(&o);
    }
}

static void launcher_and_ranks_agree(void) {
    Options o;
    EXPECT_OK(parse_run(&o, "--ranks 4"));
    expect_failure(options_resolve(&o, 2), ERR_CONFIG, "--ranks 4, but 2 ranks were launched",
                   "--ranks 4 on 2");
    EXPECT_OK(options_resolve(&o, 4));
    options_destroy(&o);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"grids", grids},
                                      {"chunks", chunks},
                                      {"filled in", filled_in},
                                      {"lengths", lengths},
                                      {"splits", splits},
                                      {"data sources", data_sources},
                                      {"tokenizers", tokenizers},
                                      {"notes of idle options", notes_of_idle_options},
                                      {"reasons of idle options", reasons_of_idle_options},
                                      {"Muon stays on the GPU", muon_stays_on_the_gpu},
                                      {"launcher and ranks agree", launcher_and_ranks_agree},
                                      {0}},
                       argc, argv);
}
