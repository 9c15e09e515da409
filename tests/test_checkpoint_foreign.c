// Models of others as they come: spelled otherwise, in several files, or no model of ours, which is refused
// with a message that tells why. And which of several checkpoints is chosen.
#include "base/file.h"
#include "checkpoint_models.h"
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

// ---- folders of others, changed --------------------------------------------------------------------------

typedef struct {
    const char *drop;      // a tensor that is left out
    const char *from, *to; // one that gets another name
    const char *resize;    // a vector that loses its last element
    const char *integers;  // one that becomes I32
    const char *prefix;    // taken off every name that has it
    int part, parts;       // only tensors i with i % parts == part; parts 0: all
} Change;

static bool is_it(const char *name, const char *wanted) { return wanted && !strcmp(name, wanted); }

// A copy of a safetensors file, changed.
static void rewrite(const char *from, const char *to, Change change) {
    Safetensors *file;
    EXPECT_OK(safetensors_open(&file, from));
    CHECK(file, "no file %s", from);
    SafeTensor *tensors = calloc((size_t)file->count, sizeof *tensors);
    char *bytes = malloc((size_t)file->file_bytes), *end = bytes;
    CHECK(tensors && bytes, "no memory");
    int count = 0;
    for (int i = 0; i < file->count; i++) {
        SafeTensor t = file->tensors[i];
        if (is_it(t.name, change.drop) || (change.parts && i % change.parts != change.part)) continue;
        if (is_it(t.name, change.resize)) t.shape[0]--;
        int64_t elements = t.shape[0] * (t.ndim == 2 ? t.shape[1] : 1);
        EXPECT_OK(safetensors_read(file, &t, 0, elements, end));
        if (is_it(t.name, change.integers)) t.type = FILE_I32;
        if (is_it(t.name, change.from)) t.name = change.to;
        if (change.prefix && !strncmp(t.name, change.prefix, strlen(change.prefix)))
            t.name += strlen(change.prefix);
        tensors[count++] = t;
        end += (size_t)elements * file_type_bytes(t.type);
    }
    SafetensorsWriter writer;
    EXPECT_OK(safetensors_create(&writer, to, tensors, count, NULL, 0));
    EXPECT_OK(safetensors_add(&writer, bytes, (size_t)(end - bytes)));
    EXPECT_OK(safetensors_finish(&writer));
    free(bytes);
    free(tensors);
    safetensors_close(file);
}

static void copy_config(const char *from, const char *to, const char *old, const char *new) {
    char *text;
    size_t size;
    Text changed = {0};
    EXPECT_OK(file_read(inside(from, "config.json").text, 1 << 20, &text, &size));
    char *at = old ? strstr(text, old) : NULL;
    EXPECT(!old || at, "no %s in config.json", old);
    if (at)
        text_add(&changed, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    else
        text_add(&changed, "%s", text);
    EXPECT_OK(folder_make(to));
    EXPECT_OK(file_write(inside(to, "config.json").text, changed.data, changed.size));
    text_free(&changed);
    free(text);
}

static Path exported(const char *name, MakeShape *shape) {
    ModelShape s = shape();
    Path save = path_of(name), folder = inside(save.text, "hf");
    make_checkpoint(save.text, &s, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    return folder;
}

static const char tensors_name[] = "model.safetensors";

static void changed_tensors(void) {
    static const struct {
        Change change;
        Status status;
        const char *told;
    } cases[] = {
        {{.drop = "model.layers.1.mlp.up_proj.weight"},
         ERR_DATA,
         "model.layers.1.mlp.up_proj.weight is missing"},
        {{.from = "lm_head.weight", .to = "score.weight"}, ERR_DATA, "lm_head.weight is missing"},
        {{.from = "model.norm.weight", .to = "model.norm.bias"}, ERR_DATA, "model.norm.weight is missing"},
        {{.resize = "model.norm.weight"}, ERR_DATA, "model.norm.weight is not [32]"},
        {{.integers = "model.norm.weight"}, ERR_UNAVAILABLE, "model.norm.weight is of type I32"},
        {{.drop = "model.layers.0.self_attn.o_proj.bias"}, ERR_DATA, "o_proj.bias is missing"},
    };
    Path from = exported("changed", attention_biases);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "changed%zu", i);
        Path folder = path_of(name);
        copy_config(from.text, folder.text, NULL, NULL);
        rewrite(inside(from.text, tensors_name).text, inside(folder.text, tensors_name).text,
                cases[i].change);
        expect_source_refused(folder.text, cases[i].status, cases[i].told);
    }
}

static void changed_config(void) {
#define CACHE(new, status, told)                                                                             \
    { "\"use_cache\": true", new, status, told }
#define LLAMA3 "\"rope_type\": \"llama3\", \"factor\": 8, \"high_freq_factor\": 4, "
    static const struct {
        const char *old, *new;
        Status status;
        const char *told;
    } cases[] = {
        {"LlamaForCausalLM", "MambaForCausalLM", ERR_UNAVAILABLE, "architecture MambaForCausalLM"},
        {"\"hidden_size\": 32", "\"hidden_size\": \"32\"", ERR_DATA, "\"hidden_size\" is not a whole number"},
        {"\"hidden_size\": 32", "\"hidden_size\": 64", ERR_DATA, "is not ["},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", ERR_DATA, "model.layers.2"},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", ERR_DATA, "is not a weight of the model"},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 99999", ERR_DATA, "99999 layers"},
        {"\"vocab_size\": 67", "\"vocab_size\": -1", ERR_DATA, "vocab_size"},
        {"\"vocab_size\": 67,", "", ERR_DATA, "no member \"vocab_size\""},
        {"\"use_cache\": true", "\"quantization_config\": {}", ERR_UNAVAILABLE, "quantization_config"},
        CACHE("\"rope_scaling\": {\"factor\": 2}", ERR_UNAVAILABLE, "rope_scaling: byte "),
        CACHE("\"rope_scaling\": {\"type\": \"axial\"}", ERR_UNAVAILABLE, "known: default, linear, llama3"),
        CACHE("\"rope_scaling\": {\"type\": \"su\", \"factor\": 2, \"short_factor\": [1, 1, 1]}", ERR_DATA,
              "\"short_factor\" is not a list of 4 numbers"),
        CACHE("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1}", ERR_DATA,
              "beta_fast 1 is not above beta_slow 1"),
        CACHE("\"rope_scaling\": {\"type\": \"linear\"}", ERR_DATA, "no member \"factor\""),
        CACHE("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}", ERR_DATA, "\"factor\" is not"),
        CACHE("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 3}", ERR_UNAVAILABLE,
              "\"beta_fast\" is not supported"),
        CACHE("\"rope_scaling\": {" LLAMA3 "\"low_freq_factor\": 1}", ERR_DATA,
              "no member \"original_max_position_embeddings\""),
        CACHE("\"rope_scaling\": {" LLAMA3 "\"low_freq_factor\": 4, "
              "\"original_max_position_embeddings\": 64}",
              ERR_DATA, "high_freq_factor 4 is not above low_freq_factor 4"),
        CACHE("\"rope_scaling\": \"linear\"", ERR_DATA, "\"rope_scaling\" is not an object"),
        CACHE("\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", ERR_UNAVAILABLE,
              "partial_rotary_factor"),
        CACHE("\"partial_rotary_factor\": 0.5", ERR_UNAVAILABLE, "partial_rotary_factor"),
        CACHE("\"sliding_window\": 4096", ERR_UNAVAILABLE, "\"sliding_window\" is not supported"),
        CACHE("\"residual_multiplier\": 0.5", ERR_UNAVAILABLE, "\"residual_multiplier\""),
        CACHE("\"pruned_heads\": {\"0\": [1]}", ERR_UNAVAILABLE, "\"pruned_heads\""),
        {"\"model_type\": \"llama\"", "\"model_type\": \"mistral\"", ERR_UNAVAILABLE,
         "model_type \"mistral\" with an architecture of model_type \"llama\""},
        {"silu", "relu", ERR_UNAVAILABLE, "hidden_act \"relu\""},
        {"float32", "int8", ERR_UNAVAILABLE, "\"int8\""},
        {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", ERR_DATA, "groups divide heads"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0", ERR_DATA, "is not true or false"},
        {"{", "[", ERR_DATA, "config.json"},
    };
#undef CACHE
#undef LLAMA3
    Path from = exported("configs", llama);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "configs%zu", i);
        Path folder = path_of(name);
        copy_config(from.text, folder.text, cases[i].old, cases[i].new);
        rewrite(inside(from.text, tensors_name).text, inside(folder.text, tensors_name).text, (Change){0});
        expect_source_refused(folder.text, cases[i].status, cases[i].told);
    }
}

// As the hub has GPT-2: names of the model without its head, and a rotation told the new way.
static void other_spellings(void) {
    ModelShape shape = gpt2(), rotated = llama();
    Path from = exported("bare", gpt2), folder = path_of("bare_copy");
    copy_config(from.text, folder.text, NULL, NULL);
    rewrite(inside(from.text, tensors_name).text, inside(folder.text, tensors_name).text,
            (Change){.prefix = "transformer."});
    expect_weights(folder.text, &shape, 5);
    from = exported("rotation", llama), folder = path_of("rotation_copy");
    copy_config(from.text, folder.text, "\"rope_theta\": 50000.0",
                "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 50000.0}");
    rewrite(inside(from.text, tensors_name).text, inside(folder.text, tensors_name).text, (Change){0});
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, folder.text, -1));
    if (source)
        EXPECT(model_source_info(source)->shape.rotary_base == rotated.rotary_base, "base %g",
               model_source_info(source)->shape.rotary_base);
    model_source_close(source);
}

// Whatever base a config.json is read with, a run takes it.
static void large_base(void) {
    Path from = exported("base", llama), folder = path_of("base_copy"), save = inside(from.text, "imported");
    ModelSource *source;
    copy_config(from.text, folder.text, "\"rope_theta\": 50000.0", "\"rope_theta\": 1e11");
    rewrite(inside(from.text, tensors_name).text, inside(folder.text, tensors_name).text, (Change){0});
    import_to(folder.text, save.text);
    EXPECT_OK(model_source_open(&source, save.text, -1));
    if (source) {
        ModelOption rows[MAX_MODEL_OPTIONS];
        int count = model_options(&model_source_info(source)->shape, rows);
        for (int i = 0; i < count; i++)
            EXPECT(strcmp(rows[i].option, "rotary_base") != 0 || !strcmp(rows[i].value, "100000000000"), "%s",
                   rows[i].value);
    }
    model_source_close(source);
    copy_config(from.text, folder.text, "\"rope_theta\": 50000.0", "\"rope_theta\": 1e13");
    expect_source_refused(folder.text, ERR_DATA, "\"rope_theta\" is not a number from 2 to 1e+12");
}

// As others spell what is read here too, or leave it to be as it is without.
static void accepted_configs(void) {
    static const struct {
        MakeShape *shape;
        const char *old, *new;
        Activation activation;
        Rope rope;
    } cases[] = {
        {gpt2, "gelu_new", "gelu_pytorch_tanh", ACTIVATION_GELU, {0}},
        {gpt2, "gelu_new", "gelu_fast", ACTIVATION_GELU, {0}},
        {gpt2, "gelu_new", "gelu", ACTIVATION_GELU_ERF, {0}},
        {llama,
         "\"use_cache\": true",
         "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         ACTIVATION_SWIGLU,
         {.kind = ROPE_LINEAR, .factor = 2}},
        {llama,
         "\"rope_theta\": 50000.0",
         "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 50000.0, \"factor\": 8.0, "
         "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64}",
         ACTIVATION_SWIGLU,
         {.kind = ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 64}},
        {llama,
         "\"use_cache\": true",
         "\"sliding_window\": null, \"use_qk_norm\": false, \"pruned_heads\": {}, \"pad_token_id\": 3, "
         "\"_name_or_path\": \"x\", \"unsloth_version\": \"1\", \"temperature\": 0.7, \"auto_map\": {\"a\": \"b\"}, "
         "\"cache_implementation\": \"hybrid\", \"model_name\": \"x\"",
         ACTIVATION_SWIGLU,
         {0}},
        {gpt2,
         "gelu_new",
         "gelu\", \"n_special\": 0, \"predict_special_tokens\": true, \"cls_token_id\": 1, "
         "\"mask_token_id\": 2, \"max_new_tokens\": 9, \"min_new_tokens\": 1, \"penalty_alpha\": 0.6, "
         "\"renormalize_logits\": true, \"prefix\": \"",
         ACTIVATION_GELU_ERF,
         {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32], copy[32];
        snprintf(name, sizeof name, "accepted%zu", i), snprintf(copy, sizeof copy, "accepted%zu_copy", i);
        Path from = exported(name, cases[i].shape), folder = path_of(copy);
        ModelSource *source;
        copy_config(from.text, folder.text, cases[i].old, cases[i].new);
        rewrite(inside(from.text, tensors_name).text, inside(folder.text, tensors_name).text, (Change){0});
        EXPECT_OK(model_source_open(&source, folder.text, -1));
        if (!source) continue;
        const ModelShape *shape = &model_source_info(source)->shape;
        const Rope *a = &shape->rope, *b = &cases[i].rope;
        EXPECT(shape->activation == cases[i].activation, "case %zu: activation", i);
        EXPECT(a->kind == b->kind && a->factor == b->factor && a->original == b->original, "case %zu: rope",
               i);
        EXPECT(shape->position != POSITION_ROTARY || shape->rotary_base == 50000, "case %zu: base", i);
        model_source_close(source);
    }
}

static void write_index(const char *folder, const char *tensors, const char *second) {
    Safetensors *file;
    Text index = {0};
    EXPECT_OK(safetensors_open(&file, tensors));
    text_add(&index, "{\"metadata\": {\"total_size\": 0}, \"weight_map\": {");
    for (int i = 0; i < file->count; i++)
        text_add(&index, "%s\"%s\": \"%s\"", i ? ", " : "", file->tensors[i].name,
                 i % 2 ? second : "model-00001-of-00002.safetensors");
    text_add(&index, "}}");
    EXPECT_OK(file_write(inside(folder, "model.safetensors.index.json").text, index.data, index.size));
    text_free(&index);
    safetensors_close(file);
}

static void several_files(void) {
    ModelShape shape = llama();
    Path from = exported("one_file", llama), folder = path_of("two_files"),
         tensors = inside(from.text, tensors_name);
    copy_config(from.text, folder.text, NULL, NULL);
    expect_source_refused(folder.text, ERR_NO_INPUT, "neither model.safetensors nor");
    rewrite(tensors.text, inside(folder.text, "model-00001-of-00002.safetensors").text,
            (Change){.part = 0, .parts = 2});
    write_index(folder.text, tensors.text, "model-00002-of-00002.safetensors");
    expect_source_refused(folder.text, ERR_NO_INPUT, "model-00002-of-00002.safetensors");
    rewrite(tensors.text, inside(folder.text, "model-00002-of-00002.safetensors").text,
            (Change){.part = 1, .parts = 2});
    expect_weights(folder.text, &shape, 5);
    write_index(folder.text, tensors.text, "../model.safetensors");
    expect_source_refused(folder.text, ERR_DATA, "not a file's name");
}

// ---- which model is chosen --------------------------------------------------------------------------------

static void expect_step(const char *save, int64_t asked, int64_t wanted) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, save, asked));
    if (!source) return;
    int64_t found = model_source_info(source)->state.iteration;
    EXPECT(found == wanted && model_source_checkpoint(source), "step %" PRId64 ", not %" PRId64, found,
           wanted);
    model_source_close(source);
}

static void damage(const char *save, int64_t step) {
    CheckpointNames names;
    EXPECT_OK(checkpoint_names(save, step, &names));
    Path manifest = inside(names.final, "manifest.json");
    EXPECT_OK(file_write(manifest.text, "{}", 2));
}

static void expect_refused_step(const char *save, int64_t step, const char *told) {
    ModelSource *source;
    EXPECT(model_source_open(&source, save, step) == ERR_DATA, "step %" PRId64 " is taken", step);
    EXPECT(strstr(fail_message(), told), "no '%s' in: %s", told, fail_message());
    model_source_close(source);
}

static void choice(void) {
    ModelShape shape = llama();
    Path save = path_of("choice");
    CheckpointNames names;
    ModelSource *source;
    for (int64_t step = 1; step <= 3; step++) make_checkpoint(save.text, &shape, step, 5);
    expect_step(save.text, -1, 3);
    expect_step(save.text, 2, 2);
    EXPECT_OK(checkpoint_names(save.text, 2, &names));
    expect_step(names.final, -1, 2);
    EXPECT(model_source_open(&source, names.final, 3) == ERR_NO_INPUT, "step 2 is not step 3");
    EXPECT(model_source_open(&source, save.text, 4) == ERR_NO_INPUT &&
               strstr(fail_message(), "there is no checkpoint of step 4; there are 3, 2, 1"),
           "%s", fail_message());
    Path third = inside(save.text, "step-00000003"), fourth = inside(save.text, "step-00000004");
    EXPECT(rename(third.text, fourth.text) == 0, "cannot rename"); // it is still the third
    expect_step(save.text, -1, 2);
    expect_refused_step(save.text, 4, "its manifest is of step 3");
    EXPECT(rename(fourth.text, third.text) == 0, "cannot rename back");
    damage(save.text, 3);
    expect_step(save.text, -1, 2);
    damage(save.text, 1);
    damage(save.text, 2);
    expect_source_refused(save.text, ERR_DATA, "none of 3 checkpoints can be read; of the newest: ");
    EXPECT(strstr(fail_message(), "step-00000003"), "%s", fail_message());
    expect_source_refused(path_of("nothing").text, ERR_NO_INPUT, "there is no such folder");
    Path folder = exported("no_steps", llama);
    EXPECT(model_source_open(&source, folder.text, 7) == ERR_USAGE, "a Hugging Face model has steps");
}

// Every checksum is right, but it is not the model that the manifest tells of.
static void another_model(void) {
    ModelShape is = llama(), said = is;
    Path save = path_of("another");
    make_checkpoint(save.text, &is, 1, 5);
    said.untied = false;
    make_mistaken(save.text, &is, &said, 2, 5); // a head too many
    expect_step(save.text, -1, 1);
    expect_source_refused(inside(save.text, "step-00000002").text, ERR_DATA, "15 tensors; its model has 14");
    make_mistaken(save.text, &said, &is, 3, 5);
    expect_source_refused(inside(save.text, "step-00000003").text, ERR_DATA,
                          "output_layer.weight is missing");
    said = is, said.ffn = 32;
    make_mistaken(save.text, &is, &said, 4, 5); // larger than it should be
    expect_source_refused(inside(save.text, "step-00000004").text, ERR_DATA,
                          "mlp.linear_fc1.weight is [128, 32]; in its model it is [64, 32]");
    make_mistaken(save.text, &said, &is, 5, 5); // smaller
    expect_source_refused(inside(save.text, "step-00000005").text, ERR_DATA, "in its model it is");
    expect_step(save.text, -1, 1);
}

// ---- what the architectures lack --------------------------------------------------------------------------

static void expect_unavailable(ModelShape shape, const char *told) {
    Path save = path_of("lacks"), folder = inside(save.text, "hf"), file = inside(save.text, "file.gguf");
    ModelSource *source;
    make_checkpoint(save.text, &shape, 7, 5);
    EXPECT_OK(model_source_open(&source, save.text, -1));
    EXPECT(export_hugging_face(source, folder.text, FILE_F32) == ERR_UNAVAILABLE, "%s", told);
    EXPECT(strstr(fail_message(), told), "no '%s' in: %s", told, fail_message());
    EXPECT(export_gguf(source, file.text, GGUF_F16) == ERR_UNAVAILABLE, "%s", told);
    EXPECT(!file_exists(folder.text) && !file_exists(file.text), "something was left behind");
    model_source_close(source);
}

static void lacking(void) {
    ModelShape shape = gpt2();
    shape.rms_norm = true;
    expect_unavailable(shape, "GPT2LMHeadModel has no RMSNorm");
    shape = gpt2(), shape.position = POSITION_NONE;
    expect_unavailable(shape, "without positions");
    shape = gpt2(), shape.groups = 2;
    expect_unavailable(shape, "groups of heads");
    shape = gpt2(), shape.no_linear_bias = true;
    expect_unavailable(shape, "without biases");
    shape = llama(), shape.rotary_columns = 4, shape.mlp_bias = true;
    expect_unavailable(shape, "LlamaForCausalLM has no partly rotated heads");
    shape = llama(), shape.norm_place = NORM_SANDWICH;
    expect_unavailable(shape, "norms in these places");
    shape = llama(), shape.softmax = SOFTMAX_SINKS;
    expect_unavailable(shape, "such a softmax");
    shape = llama(), shape.logit_cap = 30;
    expect_unavailable(shape, "logit_cap");
    shape = llama(), shape.activation = ACTIVATION_GELU;
    expect_unavailable(shape, "GELU");
    shape = llama(), shape.proj_bias = true;
    expect_unavailable(shape, "bias of the attention's output alone");
}

static void never_replaced(void) {
    ModelShape shape = llama();
    Path save = path_of("replaced"), folder = inside(save.text, "hf");
    ModelSource *source;
    make_checkpoint(save.text, &shape, 7, 5);
    Path mine = inside(save.text, "hf.tmp");
    EXPECT_OK(folder_make(mine.text));
    export_to(save.text, folder.text, FILE_F32);
    EXPECT(file_exists(mine.text), "somebody's folder was removed");
    EXPECT_OK(model_source_open(&source, save.text, -1));
    EXPECT(export_hugging_face(source, folder.text, FILE_F32) == ERR_CREATE,
           "an existing folder was replaced");
    Path imported = path_of("imported");
    EXPECT_OK(import_model(source, NULL, imported.text, 0));
    EXPECT(import_model(source, NULL, imported.text, 0) == ERR_CREATE, "an existing checkpoint was replaced");
    model_source_close(source);
}

// The warning is looked at elsewhere.
static void import_in_silence(ModelSource *source, const char *save) {
    fflush(stderr);
    int terminal = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    EXPECT(dup2(nowhere, STDERR_FILENO) >= 0, "cannot redirect");
    Status status = import_model(source, NULL, save, 0);
    EXPECT(dup2(terminal, STDERR_FILENO) >= 0, "cannot redirect back");
    close(terminal), close(nowhere);
    EXPECT_OK(status);
}

// The last weight of a folder becomes `value`: an import says which one it is, and makes it only when asked to.
static void one_weight_is(float value, const char *word) {
    Path folder = exported(word, llama), save = path_of("not_a_number"), weights;
    ModelSource *source;
    weights = inside(folder.text, "model.safetensors");
    FILE *file = fopen(weights.text, "r+b");
    EXPECT(file && fseek(file, -(long)sizeof value, SEEK_END) == 0, "cannot open %s", weights.text);
    EXPECT(fwrite(&value, sizeof value, 1, file) == 1 && fclose(file) == 0, "cannot write %s", weights.text);
    EXPECT_OK(folder_remove(save.text));
    EXPECT_OK(model_source_open(&source, folder.text, -1));
    EXPECT(import_model(source, NULL, save.text, 0) == ERR_DATA, "a weight that is %s is imported", word);
    EXPECT(strstr(fail_message(), word) && strstr(fail_message(), "tensor lm_head.weight is ") &&
               strstr(fail_message(), "--allow-non-finite"),
           "%s", fail_message());
    EXPECT(!file_exists(inside(save.text, "step-00000000").text), "a checkpoint of %s is there", word);
    model_source_close(source);

    EXPECT_OK(model_source_open(&source, folder.text, -1));
    model_source_allow_non_finite(source, true);
    import_in_silence(source, save.text);
    EXPECT(model_source_non_finite(source) == 1, "%" PRId64 " weights", model_source_non_finite(source));
    model_source_close(source);

    Checkpoint *c = NULL;
    const char *tensor = "";
    EXPECT_OK(checkpoint_open(&c, inside(save.text, "step-00000000").text));
    EXPECT_OK(checkpoint_verify(c));
    EXPECT(checkpoint_non_finite(c, &tensor) == 1 && !strcmp(tensor, "output_layer.weight"), "in %s", tensor);
    checkpoint_close(c);
}

static void not_a_number(void) {
    one_weight_is(NAN, "NaN");
    one_weight_is(-INFINITY, "infinite");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"changed_tensors", changed_tensors},
                                      {"changed_config", changed_config},
                                      {"other_spellings", other_spellings},
                                      {"large_base", large_base},
                                      {"accepted_configs", accepted_configs},
                                      {"several_files", several_files},
                                      {"choice", choice},
                                      {"another_model", another_model},
                                      {"lacking", lacking},
                                      {"never_replaced", never_replaced},
                                      {"not_a_number", not_a_number},
                                      {0}},
                       argc, argv);
}
