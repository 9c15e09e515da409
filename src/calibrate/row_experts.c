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
        m->window = window, m->window_period = 2, m->window_layers = 1;
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

// How the program moves tokens and launches kernels, as the note and the release of the stack say it.
static void add_words(const char *note, PlanRow *row) {
    static const struct {
        const char *phrase, *word;
    } words[] = {{"dispatcher deepep", "deepep"},
                 {"dispatcher hybridep", "hybridep"},
                 {"all-to-all overlapped", "overlapped"},
                 {"CUDA graph full_iteration", "graph"},
                 {"CUDA graph transformer_engine", "graphs"},
                 {"tokens dropped", "dropped"}};
    const char *release = strrchr(row->stack, '(');
    if (release) add_word(row, release + 1, strcspn(release + 1, ")"));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(note, words[i].phrase)) add_word(row, words[i].word, strlen(words[i].word));
    if (strstr(note, "recipe of") && !strstr(note, "dispatcher "))
        add_word(row, "alltoall", strlen("alltoall"));
    if (row->model.window) add_word(row, "windows", strlen("windows"));
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
