// Exports a model as one GGUF file for llama.cpp.
#include "base/file.h"
#include "checkpoint/fields.h"
#include "checkpoint/foreign/gguf_tokenizer.h"
#include "checkpoint/foreign/tensor_stream.h"
#include "checkpoint/place.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Source: llama.cpp's convert_hf_to_gguf and the key list of its gguf package, for names and conventions.

static const struct {
    GgmlType type;
    uint32_t file_type; // general.file_type
} kinds[] = {[GGUF_F32] = {GGML_F32, 0},
             [GGUF_F16] = {GGML_F16, 1},
             [GGUF_BF16] = {GGML_BF16, 32},
             [GGUF_Q8_0] = {GGML_Q8_0, 7}};

// ---- the model ------------------------------------------------------------------------------------------

// "gpt2.block_count"
typedef struct {
    char text[64];
} Key;

static Key key_of(const Family *family, const char *name) {
    Key key;
    snprintf(key.text, sizeof key.text, "%s.%s", family->gguf, name);
    return key;
}

static void set_size(GgufMetadata *m, const Family *family, const char *name, const ManifestField *field,
                     const ModelShape *s) {
    const void *at = (const char *)s + field->offset;
    Key key = key_of(family, name);
    switch (field->type) {
    case INT_FIELD: gguf_set_u32(m, key.text, (uint32_t) * (const int *)at); break;
    case BOOL_FIELD: gguf_set_bool(m, key.text, *(const bool *)at); break;
    case FLOAT_FIELD: gguf_set_f32(m, key.text, *(const float *)at); break;
    case DOUBLE_FIELD: gguf_set_f32(m, key.text, (float)*(const double *)at); break;
    default: CHECK(false, "%s has no form in GGUF", field->name);
    }
}

static const char *const first_names[] = {"vocab_size",
                                          "context_length",
                                          "embedding_length",
                                          "block_count",
                                          "feed_forward_length",
                                          "attention.head_count",
                                          "attention.head_count_kv",
                                          "attention.layer_norm_epsilon",
                                          "attention.layer_norm_rms_epsilon",
                                          "attention.key_length",
                                          "attention.value_length",
                                          "rope.dimension_count"};
enum { NUM_FIRST = sizeof first_names / sizeof first_names[0] };

static bool is_first(const char *name) {
    for (int i = 0; i < NUM_FIRST; i++)
        if (!strcmp(name, first_names[i])) return true;
    return false;
}

// Sizes that are not among the first are written where they are not zero.
static void describe_sizes(GgufMetadata *m, const Family *family, const ModelShape *s) {
    for (int i = 0; i < NUM_FIRST; i++) {
        bool own = model_is_latent(s) && !strcmp(first_names[i], "attention.value_length");
        const ModelSize *size = size_of_name(FORMAT_GGUF, family, first_names[i]);
        if (size && !own) set_size(m, family, first_names[i], &size->field, s);
    }
    for (int i = 0; i < num_model_sizes; i++) {
        const char *name = size_name(&model_sizes[i], FORMAT_GGUF, family);
        if (!name || !*name || is_first(name) || field_is_zero(&model_sizes[i].field, s)) continue;
        set_size(m, family, name, &model_sizes[i].field, s);
    }
}

static void set_real(GgufMetadata *m, const Family *family, const char *name, double value) {
    gguf_set_f32(m, key_of(family, name).text, (float)value);
}

static void describe_rotation(GgufMetadata *m, const Family *family, const ModelShape *s) {
    const Rope *rope = &s->rope;
    set_real(m, family, "rope.freq_base", s->rotary_base);
    if (rope->kind == ROPE_LONG) {
        gguf_set_u32(m, key_of(family, "rope.scaling.original_context_length").text,
                     (uint32_t)rope->original);
        set_real(m, family, "rope.scaling.attn_factor", model_rotary_factor(s, false));
    }
    if (rope->kind != ROPE_LINEAR && rope->kind != ROPE_YARN) return;
    gguf_set_string(m, key_of(family, "rope.scaling.type").text,
                    rope->kind == ROPE_LINEAR ? "linear" : "yarn");
    set_real(m, family, "rope.scaling.factor", rope->factor);
    if (rope->kind == ROPE_LINEAR) return;
    gguf_set_u32(m, key_of(family, "rope.scaling.original_context_length").text, (uint32_t)rope->original);
    if (rope->high != 32) set_real(m, family, "rope.scaling.yarn_beta_fast", rope->high);
    if (rope->low != 1) set_real(m, family, "rope.scaling.yarn_beta_slow", rope->low);
    if (family->says & SAYS_LATENT) {
        set_real(m, family, "rope.scaling.yarn_log_multiplier", 0.1 * rope->mscale_all);
        return;
    }
    // llama.cpp multiplies this factor by YaRN's own, which ours replaces.
    double own = 1 + 0.1 * log(rope->factor);
    if (rope->attention > 0) set_real(m, family, "rope.scaling.attn_factor", rope->attention / own);
}

static void describe_member(GgufMetadata *m, const Family *family, const FamilyMember *member,
                            const ModelShape *s) {
    const ManifestField *field = &size_named(member->size)->field;
    bool one = member->meaning == SAME_FACTOR && field_is_zero(field, s);
    if (one)
        set_real(m, family, member->gguf, 1);
    else
        set_size(m, family, member->gguf, field, s);
}

static void describe_family(GgufMetadata *m, const Family *family, const ModelShape *s) {
    for (const FamilyMember *member = family->members;
         member < family->members + MAX_FAMILY_MEMBERS && member->name; member++)
        if (member->gguf) describe_member(m, family, member, s);
    if (family->says & SAYS_WIDTH_IN_GGUF)
        gguf_set_u32(m, key_of(family, "expert_feed_forward_length").text, (uint32_t)s->expert_ffn);
    if (s->window && family->says & SAYS_WINDOW_LAYERS)
        gguf_set_u32(m, key_of(family, "attention.sliding_window").text, (uint32_t)s->window);
}

// llama.cpp wants to be told of experts where there are none. The cache that it makes has heads, like ours.
static void describe_latents(GgufMetadata *m, const Family *family, const ModelShape *s) {
    static const char *const of_experts[] = {"expert_feed_forward_length", "expert_shared_count"};
    if (!(family->says & SAYS_LATENT)) return;
    gguf_set_u32(m, key_of(family, "attention.value_length").text, (uint32_t)model_value_size(s));
    gguf_set_u32(m, key_of(family, "leading_dense_block_count").text, (uint32_t)s->layers);
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++)
        gguf_set_u32(m, key_of(family, of_experts[i]).text, 0);
}

static void describe_model(GgufMetadata *m, const Family *family, const ModelShape *s, GgufKind kind) {
    gguf_set_string(m, "general.architecture", family->gguf);
    gguf_set_string(m, "general.type", "model");
    gguf_set_u32(m, "general.alignment", GGUF_ALIGNMENT);
    gguf_set_u32(m, "general.file_type", kinds[kind].file_type);
    if (kind == GGUF_Q8_0) gguf_set_u32(m, "general.quantization_version", 2);
    ModelShape spelled_out = shape_spelled_out(s);
    if (family->says & EXPERTS_ARE_MLPS) spelled_out.ffn = spelled_out.expert_ffn;
    describe_sizes(m, family, &spelled_out);
    describe_latents(m, family, &spelled_out);
    describe_family(m, family, &spelled_out);
    if (s->position == POSITION_ROTARY) describe_rotation(m, family, s);
}

// ---- the model's name ---------------------------------------------------------------------------------------

// Shortens the path by its last name. Returns that of its folder, with a slash before it.
static char *step_up(char *path, char *name) {
    *name = 0;
    return strrchr(path, '/');
}

// Whether the model at `path` is in a folder that `trireme finetune` has made.
static bool is_of_finetuning(char *path, char *name) {
    *name = 0;
    bool is = place_is_finetuning(path);
    *name = '/';
    return is;
}

// The name of the model: that of its file or its folder, or of the folder of its checkpoints or of its fine-tuning.
static void describe_name(GgufMetadata *m, const ModelSource *source) {
    char *path = realpath(model_source_path(source), NULL);
    char *name = path ? strrchr(path, '/') : NULL;
    if (name && !strncmp(name, "/step-", 6) && name > path) name = step_up(path, name);
    if (name && name > path && is_of_finetuning(path, name)) name = step_up(path, name);
    size_t size = name ? strlen(name) : 0;
    if (size > 6 && !strcmp(name + size - 5, ".gguf")) name[size - 5] = 0;
    if (name && name[1]) gguf_set_string(m, "general.name", name + 1);
    free(path);
}

// ---- tensors ----------------------------------------------------------------------------------------------

// Vectors, positions and routers stay fp32, as in llama.cpp's files. Rows that are not whole blocks are stored in fp16.
static GgmlType type_of(const TheirTensor *t, GgufKind kind) {
    GgmlType type = kinds[kind].type;
    if (t->is_vector || t->is_fp32) return GGML_F32;
    return t->cols % ggml_type_block(type) ? GGML_F16 : type;
}

static GgufTensor describe_tensor(const TheirTensor *t, GgufKind kind) {
    int64_t shape[3];
    int ndim = tensor_shape(t, shape);
    GgufTensor tensor = {.type = type_of(t, kind), .ndim = ndim};
    for (int i = 0; i < ndim; i++) tensor.dims[i] = shape[ndim - 1 - i];
    CHECK(strlen(t->name) < sizeof tensor.name, "the name %s is too long", t->name);
    snprintf(tensor.name, sizeof tensor.name, "%.63s", t->name);
    return tensor;
}

typedef struct {
    GgufWriter *writer;
    GgmlType type;
    char *bytes; // of MAX_PIECE elements
} Sink;

static Status take(void *self, const float *elements, int64_t count) {
    Sink *sink = self;
    TRY(ggml_of_f32(sink->type, elements, count, sink->bytes));
    return gguf_add(sink->writer, sink->bytes, (size_t)ggml_type_bytes(sink->type, count));
}

static Status stream_all(ModelSource *source, const Mapping *mapping, const GgufTensor *tensors,
                         GgufWriter *writer) {
    Sink sink = {.writer = writer, .bytes = malloc(MAX_PIECE * sizeof(float))};
    Status status = sink.bytes ? OK : fail(ERR_OS, "no memory for %d elements", MAX_PIECE);
    for (int i = 0; status == OK && i < mapping->num_tensors; i++) {
        sink.type = tensors[i].type;
        status = tensor_stream(mapping, source, i, take, &sink);
        if (status == ERR_NUMERIC) {
            char message[256];
            snprintf(message, sizeof message, "%s", fail_message());
            status = fail(ERR_NUMERIC, "%s: %s", tensors[i].name, message);
        }
    }
    free(sink.bytes);
    return status;
}

static Status write_tensors(ModelSource *source, const Mapping *mapping, const GgufMetadata *metadata,
                            const char *path, GgufKind kind) {
    GgufTensor *tensors = calloc((size_t)mapping->num_tensors + 1, sizeof *tensors);
    if (!tensors) return fail(ERR_OS, "no memory for %d tensors", mapping->num_tensors);
    for (int i = 0; i < mapping->num_tensors; i++) tensors[i] = describe_tensor(&mapping->tensors[i], kind);
    GgufWriter writer;
    Status status = gguf_create(&writer, path, metadata, tensors, mapping->num_tensors);
    if (status == OK) {
        status = stream_all(source, mapping, tensors, &writer);
        if (status == OK)
            status = gguf_finish(&writer);
        else
            gguf_abandon(&writer);
    }
    free(tensors);
    return status;
}

// ---- the file -------------------------------------------------------------------------------------------

// Reads the file back before it is renamed.
static Status check_and_name(const char *temporary, const char *path) {
    Gguf *file;
    Status status = gguf_open(&file, temporary);
    if (status == OK) gguf_close(file);
    if (status == OK) status = file_publish(temporary, path);
    if (status != OK) remove(temporary);
    return status;
}

static Status write_file(ModelSource *source, const Family *family, const GgufMetadata *metadata,
                         const char *path, GgufKind kind) {
    char temporary[4096];
    Mapping mapping;
    TRY(file_temporary_name(path, temporary));
    remove(temporary);
    TRY(mapping_create(&mapping, &model_source_info(source)->shape, family, FORMAT_GGUF));
    Status status = write_tensors(source, &mapping, metadata, temporary, kind);
    mapping_destroy(&mapping);
    return status == OK ? check_and_name(temporary, path) : status;
}

Status export_gguf(ModelSource *source, const char *path, GgufKind kind) {
    const ModelShape *shape = &model_source_info(source)->shape;
    const Family *family;
    GgufMetadata metadata = {0};
    Tokenizer *tokenizer = NULL;
    if (file_exists(path)) return fail(ERR_CREATE, "%s exists and is not replaced", path);
    TRY(family_of(shape, &family));
    TRY(shape_check_names(shape, FORMAT_GGUF, family));
    TRY(family_in_gguf(family, shape));
    Status status = model_source_tokenizer(source, &tokenizer);
    if (status != OK && status != ERR_NO_INPUT) return status;
    bool known = status == OK && tokenizer_kind(tokenizer) != TOKENIZER_NULL;
    status = OK;
    describe_model(&metadata, family, shape, kind);
    describe_name(&metadata, source);
    if (known) {
        tokenizer_print_note(tokenizer);
        status = gguf_describe_tokenizer(&metadata, source, tokenizer);
    } else {
        gguf_set_string(&metadata, "tokenizer.ggml.model", "none");
    }
    if (status == OK) status = write_file(source, family, &metadata, path, kind);
    tokenizer_close(tokenizer);
    text_free(&metadata.bytes);
    return status;
}
