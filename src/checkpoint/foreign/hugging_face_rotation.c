// Reads what a config.json says of rotary positions: their base, their share of a head, their scaling.
#include "checkpoint/fields.h"
#include "checkpoint/foreign/config_members.h"
#include <math.h>
#include <string.h>

enum { MAX_POSITIONS = 1 << 24, MAX_SCALING = 1 << 16 };

// The smallest base of rotations that is read; sizes.def says the largest.
enum { LEAST_BASE = 2 };
static double base_most(void) { return size_named("rotary_base")->field.most; }

static Status read_llama3(Config *c, Rope *rope) {
    double low = NAN, high = NAN;
    rope->original = -1;
    TRY(config_real(c, "low_freq_factor", 1e-6, MAX_SCALING, &low));
    TRY(config_real(c, "high_freq_factor", 1e-6, MAX_SCALING, &high));
    TRY(config_size(c, "original_max_position_embeddings", MAX_POSITIONS, &rope->original));
    rope->low = low;
    rope->high = high;
    if (high > low) return OK;
    return fail(ERR_DATA, "%s: high_freq_factor %g is not above low_freq_factor %g", c->what, high, low);
}

// `original`: the positions of a model before scaling, unless its own object says it.
// `latent`: scores are scaled, too.
static Status read_yarn(Config *c, Rope *rope, int original, bool latent) {
    double low = 1, high = 32, attention = 0, scale = 0, all = 0;
    bool truncate = true;
    rope->original = original;
    TRY(config_real(c, "beta_slow", 1e-6, MAX_SCALING, &low));
    TRY(config_real(c, "beta_fast", 1e-6, MAX_SCALING, &high));
    TRY(config_real(c, "attention_factor", 0, MAX_SCALING, &attention));
    TRY(config_real(c, "mscale", 0, MAX_SCALING, &scale));
    TRY(config_real(c, "mscale_all_dim", 0, MAX_SCALING, &all));
    TRY(config_flag(c, "truncate", &truncate));
    TRY(config_size(c, "original_max_position_embeddings", MAX_POSITIONS, &rope->original));
    if (attention == 0 && scale > 0 && all > 0)
        attention = model_yarn_scale(rope->factor, scale) / model_yarn_scale(rope->factor, all);
    if (attention == 0 && latent && all > 0) attention = model_yarn_scale(rope->factor, 1);
    if (latent) rope->mscale_all = all;
    rope->low = low, rope->high = high, rope->attention = attention, rope->unrounded = !truncate;
    if (high > low) return OK;
    return fail(ERR_DATA, "%s: beta_fast %g is not above beta_slow %g", c->what, high, low);
}

// A scaling of the rotation as its object spells it. Since transformers 5 the base is in it, too.
typedef struct {
    Rope rope;
    double base, share;
    int positions, original; // of the model, with and before scaling; 0: it is not said
    int columns;             // of a head, of which a share rotates
    bool latent;
} Rotation;

// `pairs`: that rotate.
static Status read_factors(Config *c, const char *name, int pairs, RopeFactors *out) {
    const Json *value = config_member(c, name);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a list of %d numbers above 0 and up to %d", pairs, MAX_SCALING);
    bool right = config_is_given(value) && value->type == JSON_ARRAY && (int)value->count == pairs;
    for (int i = 0; right && i < pairs; i++)
        right = json_double(&value->items[i], &out->at[i]) && out->at[i] > 0 && out->at[i] <= MAX_SCALING;
    out->count = pairs;
    return right ? OK : config_bad(c, name, wanted);
}

// The original length of the model's own member wins over that of the object. The factor is positions / original,
// unless the object has one.
static Status read_long(Config *c, const Rotation *r, Rope *rope) {
    rope->original = r->positions;
    TRY(config_size(c, "original_max_position_embeddings", MAX_POSITIONS, &rope->original));
    if (r->original) rope->original = r->original;
    if (rope->original < 2) return config_bad(c, "original_max_position_embeddings", "a number above 1");
    rope->factor = fmax(1, (double)r->positions / rope->original);
    TRY(config_real(c, "factor", 1, MAX_SCALING, &rope->factor));
    TRY(config_real(c, "attention_factor", 0, MAX_SCALING, &rope->attention));
    int pairs = (int)(r->columns * r->share) / 2;
    if (pairs > MAX_ROPE_FACTORS)
        return fail(ERR_UNAVAILABLE, "%s: longrope with more than %d factors is not supported", c->what,
                    MAX_ROPE_FACTORS);
    TRY(read_factors(c, "short_factor", pairs, &rope->shorter));
    return read_factors(c, "long_factor", pairs, &rope->longer);
}

static Status read_object(Config *outer, const Json *object, const char *name, Rotation *out) {
    static const char *const types[] = {"default", "linear",   "llama3", "yarn",
                                        "dynamic", "longrope", "su",     NULL}; // longrope's first name
    static const RopeScaling kinds[] = {ROPE_PLAIN,   ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN,
                                        ROPE_DYNAMIC, ROPE_LONG,   ROPE_LONG};
    char what[4200];
    double factor = NAN;
    int older, type;
    if (object->type != JSON_OBJECT) return config_bad(outer, name, "an object");
    snprintf(what, sizeof what, "%s: %s", outer->what, name);
    Config c = {.object = object, .what = what};
    TRY(config_word(&c, "type", types, &older)); // its name before transformers 4.43
    TRY(config_word(&c, "rope_type", types, &type));
    Rope *rope = &out->rope;
    *rope = (Rope){.kind = kinds[config_is_given(json_member(object, "rope_type")) ? type : older]};
    TRY(config_real(&c, "rope_theta", LEAST_BASE, base_most(), &out->base));
    TRY(config_real(&c, "partial_rotary_factor", 0, 1, &out->share));
    if (rope->kind == ROPE_LONG) {
        TRY(read_long(&c, out, rope));
        return config_check_all_read(&c);
    }
    if (rope->kind != ROPE_PLAIN) {
        TRY(config_real(&c, "factor", 1, MAX_SCALING, &factor));
        rope->factor = factor;
    }
    if (rope->kind == ROPE_LLAMA3) TRY(read_llama3(&c, rope));
    if (rope->kind == ROPE_YARN)
        TRY(read_yarn(&c, rope, out->original ? out->original : out->positions, out->latent));
    if (rope->kind == ROPE_DYNAMIC) rope->original = out->positions;
    return config_check_all_read(&c);
}

// One rotation for layers without a window, and another for those with one.
static Status read_two(Config *outer, const Json *object, Rotation *out, double *local_base) {
    Config c = {.object = object, .what = outer->what};
    Rotation local = {.base = *local_base, .share = out->share};
    const Json *full = config_member(&c, "full_attention"), *sliding = config_member(&c, "sliding_attention");
    if (config_is_given(full)) TRY(read_object(&c, full, "full_attention", out));
    if (config_is_given(sliding)) TRY(read_object(&c, sliding, "sliding_attention", &local));
    *local_base = local.base;
    if (local.rope.kind != ROPE_PLAIN)
        return fail(ERR_UNAVAILABLE, "%s: a scaling of sliding_attention is not supported", outer->what);
    return config_check_all_read(&c);
}

static Status read_scaling(Config *c, const Family *f, const char *name, ModelShape *s, Rotation *out) {
    const Json *object = config_member(c, name);
    if (!config_is_given(object)) return OK;
    bool two =
        f->says & SAYS_LOCAL_BASE && object->type == JSON_OBJECT && json_member(object, "full_attention");
    if (two) return read_two(c, object, out, &s->rotary_base_local);
    if (json_member(object, "full_attention") || json_member(object, "sliding_attention"))
        return fail(
            ERR_UNAVAILABLE,
            "%s: this model cannot be read: %s has rotations of their own for layers with and without "
            "a window, and a %s has one for all",
            c->what, name, f->model_type);
    return read_object(c, object, name, out);
}

static Status take_share(const Config *c, const Family *f, double share, ModelShape *s) {
    if (f->says & SAYS_LATENT && share == 1) return OK; // the rotated columns have a member of their own
    s->rotary_columns = (int)(s->head_size * share);
    if (share != 1 && !(f->says & (SAYS_ROTARY_SHARE | SAYS_ROTARY_PCT)))
        return fail(ERR_UNAVAILABLE, "%s: partial_rotary_factor is not supported", c->what);
    if (s->rotary_columns > 0 && s->rotary_columns % 2 == 0) return OK;
    return fail(ERR_DATA, "%s: %g of the %d columns of a head rotate, which is no even number", c->what,
                share, s->head_size);
}

Status config_rotation(Config *c, const Family *f, ModelShape *s) {
    Rotation rotation = {.rope = f->is.rope,
                         .latent = f->says & SAYS_LATENT,
                         .base = f->is.rotary_base > 0 ? f->is.rotary_base : 10000,
                         .share = f->rotary_share > 0 ? f->rotary_share : 1,
                         .positions = s->positions,
                         .columns = f->says & SAYS_LATENT ? s->rotary_columns : s->head_size};
    bool pct = f->says & SAYS_ROTARY_PCT;
    TRY(config_real(c, "rope_theta", LEAST_BASE, base_most(), &rotation.base));
    TRY(config_size(c, "original_max_position_embeddings", MAX_POSITIONS, &rotation.original));
    if (pct) TRY(config_real(c, "rotary_emb_base", LEAST_BASE, base_most(), &rotation.base));
    if (pct) TRY(config_real(c, "rotary_pct", 0, 1, &rotation.share));
    TRY(config_real(c, "partial_rotary_factor", 0, 1, &rotation.share));
    if (f->says & SAYS_LOCAL_BASE)
        TRY(config_real(c, "rope_local_base_freq", LEAST_BASE, base_most(), &s->rotary_base_local));
    TRY(read_scaling(c, f, "rope_scaling", s, &rotation));
    TRY(read_scaling(c, f, "rope_parameters", s, &rotation));
    s->rotary_base = rotation.base;
    s->rope = rotation.rope;
    return take_share(c, f, rotation.share, s);
}
