// Adapters (LoRA): the linear layers that have one, and what a run with them needs.
#include "config/lora.h"
#include "config/rules.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- targets ----------------------------------------------------------------------------------------------

static const struct {
    const char *name, *others;
} targets[NUM_LORA_TARGETS] = {
#define X(target, name, others) {name, others},
    LORA_TARGETS(X)
#undef X
};

const char *lora_target_name(int number) { return targets[number].name; }

static bool is_word(const char *name, size_t length, const char *word, size_t word_length) {
    return length == word_length && !memcmp(name, word, length);
}

static bool has_name(int number, const char *name, size_t length) {
    if (is_word(name, length, targets[number].name, strlen(targets[number].name))) return true;
    for (const char *other = targets[number].others; *other; other += strcspn(other, " ") + 1)
        if (is_word(name, length, other, strcspn(other, " "))) return true;
    return false;
}

int lora_targets_of(const char *name, size_t length) {
    int found = 0;
    for (int i = 0; i < NUM_LORA_TARGETS; i++) found |= has_name(i, name, length) << i;
    return found;
}

int lora_all_targets(bool fused, bool gated) {
    int qkv = fused ? LORA_QKV : LORA_Q | LORA_K | LORA_V;
    return qkv | LORA_PROJ | (gated && !fused ? LORA_GATE | LORA_UP : LORA_FC1) | LORA_FC2;
}

void lora_targets_print(int set, Text *out) {
    const char *comma = "";
    for (int i = 0; i < NUM_LORA_TARGETS; i++) {
        if (!(set >> i & 1)) continue;
        text_add(out, "%s%s", comma, targets[i].name);
        comma = ",";
    }
}

// ---- rules ------------------------------------------------------------------------------------------------

// GPT-2, GPT-NeoX and Phi-3 have queries, keys and values in one matrix, the others in three.
static bool has_fused_matrices(const Options *o) {
    return !strcmp(o->position_embedding_type, "learned_absolute") || !strcmp(o->model_family, "phi3") ||
           !strcmp(o->model_family, "gpt_neox");
}

static Status unknown_target(const char *word, int length) {
    const char *names[NUM_LORA_TARGETS];
    char name[64];
    Text all = {0};
    for (int i = 0; i < NUM_LORA_TARGETS; i++) names[i] = targets[i].name;
    snprintf(name, sizeof name, "%.*s", length, word);
    const char *nearest = text_nearest(name, names, NUM_LORA_TARGETS);
    lora_targets_print((1 << NUM_LORA_TARGETS) - 1, &all);
    Status status = fail(ERR_CONFIG,
                         "--lora-target-modules: no linear layer is named '%s'%s%s%s; there are %s and "
                         "all-linear, or the names of Hugging Face's modules, such as q_proj",
                         name, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "",
                         text_string(&all));
    text_free(&all);
    return status;
}

// Models without a gate have one matrix where others have gate and up, and some call it by the name of the latter.
static int without_gate(int set, const char *word, size_t length) {
    return set == LORA_UP && is_word(word, length, "up_proj", 7) ? LORA_FC1 : set;
}

static Status add_target(Options *o, const char *word, int length) {
    bool gated = options_have_gate(o);
    int found = lora_targets_of(word, (size_t)length);
    if (is_word(word, (size_t)length, "all-linear", 10))
        found = lora_all_targets(has_fused_matrices(o), gated);
    if (!found) return unknown_target(word, length);
    if (o->multi_latent_attention && is_word(word, (size_t)length, "all-linear", 10)) found &= ~LORA_HEADS;
    if (o->multi_latent_attention && found & LORA_HEADS)
        return fail(
            ERR_CONFIG,
            "--lora-target-modules %.*s: the layers of latent attention have no adapters, but for its "
            "output: use linear_proj, or layers of the MLP",
            length, word);
    if (!gated) found = without_gate(found, word, (size_t)length);
    if (!gated && found & (LORA_GATE | LORA_UP))
        return fail(ERR_CONFIG,
                    "--lora-target-modules %.*s: the MLP of this model has no gate: use linear_fc1", length,
                    word);
    o->shape.lora_targets |= found;
    return OK;
}

static Status check_parts(const Options *o) {
    static const struct {
        int whole, parts;
        const char *which, *names;
    } rows[] = {{LORA_QKV, LORA_Q | LORA_K | LORA_V, "linear_qkv", "linear_q, linear_k or linear_v"},
                {LORA_FC1, LORA_GATE | LORA_UP, "linear_fc1", "linear_fc1_gate or linear_fc1_up"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (o->shape.lora_targets & rows[i].whole && o->shape.lora_targets & rows[i].parts)
            return fail(ERR_CONFIG,
                        "--lora-target-modules names %s and parts of it: keep one adapter for the whole "
                        "matrix, or those of %s",
                        rows[i].which, rows[i].names);
    return OK;
}

static Status resolve_targets(Options *o) {
    const StringList *list = &o->lora_target_modules;
    if (!list->count) TRY(add_target(o, "all-linear", 10));
    for (int i = 0; i < list->count; i++)
        for (const char *word = list->items[i]; *word; word += *word == ',') {
            size_t length = strcspn(word, ",");
            TRY(add_target(o, word, (int)length));
            word += length;
        }
    return check_parts(o);
}

static Status check_optimizer(const Options *o) {
    if (!o->lora_rank || strcmp(o->optimizer, "muon") != 0) return OK;
    return fail(ERR_CONFIG,
                "--optimizer muon steps the hidden matrices, and with --lora-rank %d they stay as they are: "
                "leave one of them out",
                o->lora_rank);
}

Status resolve_lora(Options *o) {
    if (!o->lora_rank) return OK;
    TRY(resolve_targets(o));
    if (isnan(o->lora_alpha)) o->lora_alpha = o->lora_rank, derived(o, OPT_lora_alpha);
    return check_optimizer(o);
}

Status check_lora_base(Options *o) {
    if (!o->lora_rank || o->load) return OK;
    return fail(ERR_CONFIG,
                "--lora-rank %d trains adapters beside a model that stays as it is: name it by --load MODEL "
                "--finetune",
                o->lora_rank);
}
