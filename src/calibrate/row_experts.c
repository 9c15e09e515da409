// Reads what a measured row says of experts in its note, since its columns are those of dense models.
#include "calibrate/rows.h"
#include <stdio.h>
#include <string.h>

// Reads the whole number behind a phrase. Returns false where the note lacks the phrase; a number that is not there, or
// too large, is 0.
static bool number_after(const char *note, const char *phrase, int most, int *number) {
    const char *at = strstr(note, phrase);
    if (!at) return false;
    int value = 0;
    for (at += strlen(phrase); *at >= '0' && *at <= '9' && value <= most; at++)
        value = 10 * value + (*at - '0');
    *number = value <= most ? value : 0;
    return true;
}

// The latents of DeepSeek-V3, which Kimi-K2 has, too.   Source: Liu 2024 (DeepSeek-V3), section 4.2
static void set_latents(ModelShape *m) {
    m->q_rank = 1536, m->kv_rank = 512;
    m->head_size = 128 + 64, m->value_size = 128, m->rotary_columns = 64;
}

// The first layers are dense: bit l of the pattern says whether layer l has experts.
static bool set_dense_layers(ModelShape *m, int dense) {
    if (dense < 1 || dense >= m->layers || m->layers > 63) return false;
    m->experts_period = m->layers;
    m->experts_layers = ((uint64_t)1 << m->layers) - ((uint64_t)1 << dense);
    return true;
}

static bool read_layers(const char *note, ModelShape *m) {
    int dense, window, head;
    if (number_after(note, ", first ", m->layers, &dense))
        if (!set_dense_layers(m, dense) || !number_after(note, "layers dense with ffn ", 1 << 24, &m->ffn) ||
            !m->ffn)
            return false;
    if (number_after(note, "every other layer attends to a window of ", 1 << 24, &window))
        m->window = window, m->window_period = 2, m->window_layers = 1, m->mlp_bias = true; // GPT-OSS
    if (number_after(note, "head size ", 1 << 13, &head)) m->head_size = head;
    if (strstr(note, "heads are MLA")) set_latents(m);
    if (m->kv_rank && m->experts == 256)
        m->router_groups = 8, m->router_open_groups = 4; // those of Kimi-K2 have none
    return m->head_size > 0;
}

static void add_word(PlanRow *row, const char *word, size_t length) {
    size_t used = strlen(row->kernel);
    snprintf(row->kernel + used, sizeof row->kernel - used, "%s%.*s", used ? "+" : "", (int)length, word);
}

static bool is_of_release(const PlanRow *row, const char *release) {
    const char *at = strrchr(row->stack, '(');
    return at && !strncmp(row->stack, "megatron-bridge", strlen("megatron-bridge")) &&
           !strncmp(at + 1, release, strlen(release));
}

// What the program does in runs whose note does not say it, by the recipes of Megatron-Bridge at these releases. 25.09
// drops tokens without DeepEP, launches whole steps of one stage as graphs on Blackwell, and overlaps messages where it
// drops none; 26.08 in mxfp8 does what 26.06 does, except on B200.
typedef struct {
    bool dropped, overlapped, graph, fused, pairs;
} Recipe;

static Recipe recipe_of(const char *note, const PlanRow *row) {
    bool on_h100 = !strncmp(row->gpu, "h100", 4), first = is_of_release(row, "25.09"),
         one_stage = grid_along(row->config.grid, AXIS_PP) == 1, told = strstr(note, "recipe of"),
         last =
             is_of_release(row, "26.08") && row->config.factors == FACTORS_MXFP8 && strcmp(row->gpu, "b200");
    Recipe r = {.dropped = strstr(note, "tokens dropped")};
    r.overlapped = strstr(note, "all-to-all overlapped") || (first && !r.dropped) || last;
    r.graph =
        strstr(note, "CUDA graph full_iteration") || (first && r.dropped && one_stage && !on_h100) || last;
    r.fused = r.graph && (is_of_release(row, "26.06") || last);
    r.pairs = r.dropped || (told && !strstr(note, "dispatcher "));
    return r;
}

// How the program moves tokens and launches kernels, as the note and the release of the stack say it.
static void add_words(const char *note, PlanRow *row) {
    Recipe r = recipe_of(note, row);
    const struct {
        bool holds;
        const char *word;
    } words[] = {{strstr(note, "dispatcher deepep"), "deepep"},
                 {strstr(note, "dispatcher hybridep"), "hybridep"},
                 {r.pairs, "alltoall"},
                 {r.overlapped, "overlapped"},
                 {r.graph, "graph"},
                 {strstr(note, "CUDA graph transformer_engine"), "graphs"},
                 {r.fused, "fused"},
                 {r.dropped, "dropped"}};
    const char *release = strrchr(row->stack, '(');
    if (release) add_word(row, release + 1, strcspn(release + 1, ")"));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].holds) add_word(row, words[i].word, strlen(words[i].word));
    row->config.sends_pairs = r.pairs;
}

bool row_experts_read(const char *note, PlanRow *row) {
    ModelShape *m = &row->model;
    ParallelConfig *c = &row->config;
    const char *at = strstr(note, "MoE: ");
    int shared = 0;
    if (!at) return true;
    m->expert_ffn = m->ffn;
    bool read = number_after(at, " ep=", 1 << 20, &c->grid.size[AXIS_EP]) &&
                number_after(at, " E=", MAX_EXPERTS, &m->experts) &&
                number_after(at, " k=", MAX_TOPK, &m->experts_topk);
    number_after(at, " shared=", 64, &shared);
    m->shared_ffn = shared * m->expert_ffn;
    c->grid.size[AXIS_ETP] = 1;
    c->further_heads = strstr(note, "with MTP layer") != NULL;
    read = read && m->experts > 0 && m->experts_topk > 0 && m->experts_topk <= m->experts &&
           read_layers(note, m);
    add_words(note, row);
    return read;
}
