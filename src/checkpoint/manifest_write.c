// Writes a manifest or a rank's record as text.
#include "checkpoint/fields.h"
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <string.h>

static void add_string(Text *out, const char *string) { json_add_string(out, string, strlen(string)); }

static void add_hash(Text *out, Hash hash) {
    text_add(out, "\"xxh3_128\": \"%016" PRIx64 "%016" PRIx64 "\"", hash.high, hash.low);
}

static void write_files(const Manifest *m, Text *out) {
    text_add(out, "\"files\": [");
    for (int i = 0; i < m->num_files; i++) {
        const ShardFile *f = &m->files[i];
        text_add(out, "%s\n  {\"name\": ", i ? "," : "");
        add_string(out, f->name);
        text_add(out,
                 ", \"bytes\": %" PRId64 ", \"header_bytes\": %" PRId64 ", \"header_xxh3_64\": \"%016" PRIx64
                 "\"}",
                 f->bytes, f->header_bytes, f->header_hash);
    }
    text_add(out, "]");
}

static void write_slice(const SliceEntry *s, Text *out) {
    text_add(out,
             "\n    {\"file\": %d, \"at\": [%" PRId64 ", %" PRId64 "], \"shape\": [%" PRId64 ", %" PRId64
             "], ",
             s->file, s->rect.row, s->rect.col, s->rect.rows, s->rect.cols);
    add_hash(out, s->hash);
    text_add(out, "}");
}

static bool same_tensor(const SliceEntry *a, const SliceEntry *b) {
    return !strcmp(a->tensor, b->tensor) && a->rows == b->rows && a->cols == b->cols;
}

// Neighbouring slices of one tensor share an entry.
static void write_tensors(const Manifest *m, Text *out) {
    text_add(out, "\"tensors\": [");
    for (int i = 0; i < m->num_slices; i++) {
        const SliceEntry *s = &m->slices[i];
        if (i && same_tensor(s, s - 1)) {
            text_add(out, ",");
        } else {
            text_add(out, "%s\n  {\"name\": ", i ? "]}," : "");
            add_string(out, s->tensor);
            text_add(out, ", \"shape\": [%" PRId64 ", %" PRId64 "], \"slices\": [", s->rows, s->cols);
        }
        write_slice(s, out);
    }
    text_add(out, "%s]", m->num_slices ? "]}" : "");
}

static void write_others(const Manifest *m, Text *out) {
    text_add(out, "\"others\": [");
    for (int i = 0; i < m->num_others; i++) {
        text_add(out, "%s\n  {\"name\": ", i ? "," : "");
        add_string(out, m->others[i].name);
        text_add(out, ", \"bytes\": %" PRId64 ", ", m->others[i].bytes);
        add_hash(out, m->others[i].hash);
        text_add(out, "}");
    }
    text_add(out, "]");
}

void manifest_write_record(const Manifest *m, Text *out) {
    text_add(out, "{");
    write_files(m, out);
    text_add(out, ",\n");
    write_tensors(m, out);
    text_add(out, "}\n");
}

// Sizes that programs of version 3 do not know, and ignore.
static bool has_newer_sizes(const ModelShape *s) {
    static const char *const known[] = {"layers",
                                        "hidden",
                                        "heads",
                                        "head_size",
                                        "ffn",
                                        "sequence",
                                        "groups",
                                        "positions",
                                        "vocabulary",
                                        "activation",
                                        "position",
                                        "rotary_base",
                                        "rotary_columns",
                                        "rope_scaling",
                                        "rope_factor",
                                        "rope_low_frequency",
                                        "rope_high_frequency",
                                        "rope_original_positions",
                                        "rms_norm",
                                        "no_linear_bias",
                                        "qkv_bias",
                                        "proj_bias",
                                        "mlp_bias",
                                        "untied",
                                        "hidden_dropout",
                                        "attention_dropout",
                                        "norm_epsilon",
                                        "init_std",
                                        "seed",
                                        "family"};
    for (int i = 0; i < num_model_sizes; i++) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            is_known |= !strcmp(model_sizes[i].field.name, known[k]);
        if (!is_known && !field_is_zero(&model_sizes[i].field, s)) return true;
    }
    return false;
}

// The lowest version of the format whose programs go on correctly. Programs of version 1 ignore the scaling of
// rotations, those of version 2 the samples that are left out, those of version 3 what families other than GPT-2 and
// Llama have; they take Muon's momentum and averages for damage. Those of version 4 miss the weights of a base; those
// of version 5 take magnitudes of delayed scaling for damage, and know neither latents nor experts nor LongRoPE.
static int version_needed(const Manifest *m) {
    const CheckpointInfo *info = &m->info;
    const ModelShape *shape = &info->shape;
    if (model_is_latent(shape) || shape->experts || shape->rope.kind == ROPE_LONG ||
        manifest_find(m, STATE_AMAX_NAME) >= 0)
        return 6;
    if (info->shape.lora_rank) return 5;
    if (has_newer_sizes(&info->shape)) return 4;
    if (manifest_keeps(m, STATE_MOMENTUM) || manifest_keeps(m, STATE_EMA)) return 4;
    return info->state.skipped.count ? 3 : info->shape.rope.kind == ROPE_PLAIN ? 1 : 2;
}

static void write_info(const Manifest *m, Text *out) {
    const CheckpointInfo *info = &m->info;
    text_add(out, "\"format\": \"" MANIFEST_FORMAT "\",\n\"version\": %d,\n\"program\": ", version_needed(m));
    add_string(out, info->program);
    text_add(out, ",\n\"state\": ");
    state_write(&info->state, out);
    if (info->state.skipped.count) {
        text_add(out, ",\n\"skipped\": ");
        skipped_write(&info->state, out);
    }
    text_add(out, ",\n\"model\": ");
    shape_write(&info->shape, out);
    if (tokens_said(&info->tokens)) {
        text_add(out, ",\n\"tokens\": ");
        tokens_write(&info->tokens, out);
    }
    text_add(out, ",\n\"grid\": {\"tensor\": %d, \"pipeline\": %d, \"data\": %d, \"chunks\": %d},\n",
             grid_along(info->grid, AXIS_TP), grid_along(info->grid, AXIS_PP),
             grid_along(info->grid, AXIS_DP), info->num_chunks);
    text_add(out, "\"dtype\": \"%s\",\n\"optimizer\": %s,\n", info->dtype,
             info->has_optimizer ? "true" : "false");
    if (!info->shape.lora_rank) return;
    text_add(out, "\"base\": {\"path\": ");
    add_string(out, info->base.path);
    text_add(out, ", \"xxh3_64\": \"%016" PRIx64 "\"},\n", info->base.hash);
}

void manifest_write_last_line(const char *text, size_t size, Text *out) {
    add_hash(out, hash_of(text, size));
    text_add(out, "}\n");
}

void manifest_write(const Manifest *m, Text *out) {
    text_add(out, "{\n");
    write_info(m, out);
    write_files(m, out);
    text_add(out, ",\n");
    write_tensors(m, out);
    text_add(out, ",\n");
    write_others(m, out);
    text_add(out, ",\n");
    manifest_write_last_line(out->data, out->size, out);
}
