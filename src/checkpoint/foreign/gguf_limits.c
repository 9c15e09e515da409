// Finds features of a model that llama.cpp would compute differently: it fixes them, and GGUF has no name for them.
#include "checkpoint/fields.h"
#include <math.h>
#include <string.h>

static bool says(const Family *f, unsigned any) { return f->says & any; }

static Status refuse(const Family *f, const char *what) {
    return fail(ERR_UNAVAILABLE, "llama.cpp's %s has no %s: --to hf can hold it", f->gguf, what);
}

// Whether the layers with a window are those that llama.cpp takes, and whether the same layers rotate.
static bool has_their_windows(const Family *f, const ModelShape *s) {
    for (int i = 0; i < s->layers; i++)
        if (!model_window(s, i) != !model_window(&f->is, i)) return false;
    return true;
}

static bool has_their_rotations(const Family *f, const ModelShape *s) {
    for (int i = 0; i < s->layers; i++)
        if (model_layer_rotates(s, i) != model_layer_rotates(&f->is, i)) return false;
    return true;
}

static Status check_layers(const Family *f, const ModelShape *s) {
    if (says(f, ONLY_TANH_IN_GGUF) && s->activation == ACTIVATION_GELU_ERF)
        return fail(ERR_UNAVAILABLE,
                    "llama.cpp's %s has the tanh form of GELU, the model the exact one: "
                    "--to hf can hold it",
                    f->gguf);
    if (says(f, SAYS_WINDOW_LAYERS) && !has_their_windows(f, s))
        return fail(ERR_UNAVAILABLE,
                    "llama.cpp's %s has windows in all layers but every Nth, N = %d, the model in others "
                    "(window-attn-skip-freq): --to hf can hold it",
                    f->gguf, f->is.window_period);
    if (!says(f, SAYS_WINDOW_LAYERS) && s->window && s->window < s->positions)
        return refuse(f, "windows of attention");
    return OK;
}

static Status check_rotation(const Family *f, const ModelShape *s) {
    const Rope *rope = &s->rope;
    if (rope->kind == ROPE_DYNAMIC) return refuse(f, "dynamic scaling of rotary positions");
    if (rope->kind == ROPE_LONG && f->family != FAMILY_PHI3) return refuse(f, "LongRoPE");
    if (rope->kind == ROPE_LLAMA3 && !says(f, FREQUENCIES_IN_GGUF))
        return refuse(f, "llama3 scaling of rotary positions");
    // llama.cpp rounds for GPT-OSS, too, whose models were trained without: it lives with that.
    if (rope->unrounded && !f->is.rope.unrounded)
        return refuse(f, "YaRN without rounding (no-yarn-correction-range-round-to-int)");
    if (rope->attention > 0 && s->rotary_base_local > 0)
        return refuse(f, "factor of YaRN for layers without a window alone (yarn-attention-factor)");
    if (s->position == POSITION_ROTARY && !has_their_rotations(f, s))
        return fail(
            ERR_UNAVAILABLE,
            "llama.cpp's %s rotates all layers but every Nth, N = %d, the model others (no-rope-freq): "
            "--to hf can hold it",
            f->gguf, f->is.no_rope_freq);
    if (s->rotary_base_local != f->is.rotary_base_local)
        return fail(ERR_UNAVAILABLE,
                    "llama.cpp's %s rotates by the base %g in layers with a window, the model by %g "
                    "(rotary-base-local): --to hf can hold it",
                    f->gguf, f->is.rotary_base_local, s->rotary_base_local);
    return OK;
}

// llama.cpp's norms of latents have the epsilon of the others, its YaRN leaves sines and cosines as they are.
static Status check_latents(const Family *f, const ModelShape *s) {
    if (!model_is_latent(s)) return OK;
    if (!s->q_rank) return refuse(f, "models without a latent of queries");
    if (s->latent_epsilon > 0) return refuse(f, "epsilon of latents of its own (latent-norm-epsilon)");
    if (s->softmax_scale > 0) return refuse(f, "softmax-scale");
    if (s->rope.kind == ROPE_YARN && s->rope.attention != 1)
        return refuse(f, "factor of sines and cosines (yarn-attention-factor, mscale)");
    return OK;
}

// ---- members of the configuration -------------------------------------------------------------------------

static Status check_scale(const Family *f, const ModelShape *s) {
    bool by_hidden = s->layers == f->gguf_hidden_scale_layers;
    double theirs = 1 / sqrt(by_hidden ? s->hidden / s->heads : s->head_size);
    double ours = s->softmax_scale > 0 ? s->softmax_scale : 1 / sqrt(s->head_size);
    if (fabs(ours - theirs) <= 1e-6 * theirs) return OK;
    return fail(ERR_UNAVAILABLE,
                "llama.cpp's %s scales scores of a model of these sizes by %g, the model by %g "
                "(softmax-scale): --to hf can hold it",
                f->gguf, theirs, ours);
}

static Status check_negated(const Family *f, const FamilyMember *m, const ModelShape *s) {
    size_t at = size_named(m->size)->field.offset;
    bool ours = *(const bool *)((const char *)s + at), theirs = *(const bool *)((const char *)&f->is + at);
    if (ours == theirs) return OK;
    return fail(ERR_UNAVAILABLE, "llama.cpp's %s has %s %s, the model %s: --to hf can hold it", f->gguf,
                m->name, theirs ? "false" : "true", ours ? "false" : "true");
}

// A number that llama.cpp takes as all models of the family have it.
static Status check_number(const Family *f, const FamilyMember *m, const ManifestField *field,
                           const ModelShape *s) {
    float ours = *(const float *)(const void *)((const char *)s + field->offset),
          theirs = *(const float *)(const void *)((const char *)&f->is + field->offset);
    if (ours == theirs) return OK;
    return fail(ERR_UNAVAILABLE, "llama.cpp's %s has a %s of %g, the model of %g: --to hf can hold it",
                f->gguf, m->name, (double)theirs, (double)ours);
}

// A member without a name in GGUF is as llama.cpp takes it; a cap with one is divided by.
static Status check_member(const Family *f, const FamilyMember *m, const ModelShape *s) {
    const ModelSize *size = size_named(m->size);
    bool is_zero = field_is_zero(&size->field, s);
    if (size->meaning == MEANS_TRAINING) return OK;
    if (m->gguf && m->meaning == SAME_CAP && is_zero)
        return fail(ERR_UNAVAILABLE, "llama.cpp's %s has no models without %s: --to hf can hold it", f->gguf,
                    m->name);
    if (m->gguf || m->meaning == OTHER_NAME) return OK;
    if (m->meaning == NEGATED) return check_negated(f, m, s);
    if (m->meaning == INVERSE_SQUARE) return check_scale(f, s);
    if (m->meaning == SAME_VALUE && size->field.type == FLOAT_FIELD)
        return check_number(f, m, &size->field, s);
    return is_zero ? OK : refuse(f, m->name);
}

Status family_in_gguf(const Family *f, const ModelShape *shape) {
    ModelShape spelled_out = shape_spelled_out(shape), *s = &spelled_out;
    if (!f->gguf) return fail(ERR_UNAVAILABLE, "llama.cpp has no %s: --to hf can hold it", f->architecture);
    TRY(check_layers(f, s));
    TRY(check_rotation(f, s));
    TRY(check_latents(f, s));
    if (s->experts && model_is_latent(s))
        return fail(ERR_UNAVAILABLE,
                    "models with latent attention and experts are not written as GGUF: --to hf can hold it");
    if (s->experts_period) return refuse(f, "layers without experts (moe-layer-freq)");
    for (const FamilyMember *m = f->members; m < f->members + MAX_FAMILY_MEMBERS && m->name; m++)
        TRY(check_member(f, m, s));
    return OK;
}
