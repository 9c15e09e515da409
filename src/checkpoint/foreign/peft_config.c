// Reads and writes the adapter_config.json of PEFT.
#include "checkpoint/foreign/config_members.h"
#include "checkpoint/foreign/peft.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 16 << 20, MAX_RANK = 1 << 16 };

// Members that change nothing of what a finished adapter computes: they say where it came from, how it began or which
// modules it has, which its tensors say themselves. PEFT takes fan_in_fan_out from the model, too.
static const char *const harmless[] = {
    "peft_version",   "auto_mapping",   "revision",          "inference_mode",      "megatron_core",
    "layers_pattern", "loftq_config",   "qalora_group_size", "eva_config",          "corda_config",
    "lora_ga_config", "runtime_config", "fan_in_fan_out",    "ensure_weight_tying", NULL};

static Status path_of(const char *folder, char path[4096]) {
    int size = snprintf(path, 4096, "%s/adapter_config.json", folder);
    return size < 4096 ? OK : fail(ERR_NO_INPUT, "%s: the name is too long", folder);
}

bool peft_is_there(const char *folder) {
    char path[4096];
    return path_of(folder, path) == OK && file_exists(path);
}

static Status not_plain(const Config *c, const char *name) {
    const Json *value = json_member(c->object, name);
    return fail(ERR_UNAVAILABLE,
                "%s: byte %" PRId64
                ": \"%.80s\" is not what plain LoRA has, which alone is read: make a whole model of "
                "the adapter with PEFT's merge_and_unload() and save_pretrained(), and load that",
                c->what, value ? value->offset : 0, name);
}

// Reads a word that must be one of `words`; missing or null is allowed.
static Status check_word(Config *c, const char *name, const char *const *words) {
    const Json *value = config_member(c, name);
    const char *word = json_string(value);
    if (!config_is_given(value)) return OK;
    for (int i = 0; word && words[i]; i++)
        if (!strcmp(word, words[i])) return OK;
    return not_plain(c, name);
}

// Some ways to begin an adapter change the base model, so that the adapter does not belong to the model as it was.
static Status check_start(Config *c) {
    static const char *const keep_base[] = {"gaussian", "eva", "orthogonal", "mica", NULL};
    const Json *value = config_member(c, "init_lora_weights");
    if (!value || value->type == JSON_TRUE || value->type == JSON_FALSE) return OK;
    return check_word(c, "init_lora_weights", keep_base);
}

// Whether the configuration chooses layers: a pattern, or names with dots, may leave some out.
static bool chooses_layers(Config *c) {
    const Json *targets = config_member(c, "target_modules");
    bool layers = config_is_given(config_member(c, "layers_to_transform"));
    bool without = config_is_given(config_member(c, "exclude_modules"));
    if (layers || without || json_string(targets)) return true;
    for (size_t i = 0; targets && targets->type == JSON_ARRAY && i < targets->count; i++) {
        const char *name = json_string(&targets->items[i]);
        if (name && strchr(name, '.')) return true;
    }
    return false;
}

// Refuses what is there, is not off, and was not read: the adapter would compute something else.
static Status check_others(Config *c) {
    for (int i = 0; harmless[i]; i++) config_member(c, harmless[i]);
    const Json *other = config_unread(c);
    return other ? not_plain(c, other->key) : OK;
}

static Status read_members(Config *c, PeftConfig *out) {
    static const char *const kinds[] = {"LORA", NULL}, *const tasks[] = {"CAUSAL_LM", NULL};
    static const char *const biases[] = {"none", NULL};
    const Json *base = config_member(c, "base_model_name_or_path");
    if (config_is_given(base) && !json_string(base))
        return config_bad(c, "base_model_name_or_path", "a string");
    out->base = strdup(config_is_given(base) ? json_string(base) : "");
    CHECK(out->base, "no memory for a name");
    if (!config_is_given(config_member(c, "peft_type"))) return config_bad(c, "peft_type", "LORA");
    TRY(check_word(c, "peft_type", kinds));
    TRY(check_word(c, "task_type", tasks));
    TRY(check_word(c, "bias", biases));
    TRY(check_start(c));
    out->rank = -1, out->alpha = NAN;
    TRY(config_size(c, "r", MAX_RANK, &out->rank));
    TRY(config_real(c, "lora_alpha", -1e9, 1e9, &out->alpha));
    TRY(config_real(c, "lora_dropout", 0, 1, &out->dropout));
    TRY(config_flag(c, "use_rslora", &out->rslora));
    out->some_layers = chooses_layers(c);
    return check_others(c);
}

Status peft_config_read(const char *folder, PeftConfig *out) {
    char path[4096], *text;
    size_t size;
    Json *root;
    *out = (PeftConfig){0};
    TRY(path_of(folder, path));
    TRY(file_read(path, MAX_CONFIG, &text, &size));
    Status status = json_parse(&root, text, size, path);
    free(text);
    TRY(status);
    Config config = {.object = root, .what = path};
    status =
        root->type == JSON_OBJECT ? read_members(&config, out) : fail(ERR_DATA, "%s: it is no object", path);
    json_free(root);
    if (status != OK) peft_config_free(out);
    return status;
}

void peft_config_free(PeftConfig *config) {
    free(config->base);
    *config = (PeftConfig){0};
}

// ---- writing ------------------------------------------------------------------------------------------

static void add_number(Text *out, const char *name, double value) {
    text_add(out, "  \"%s\": ", name);
    json_add_double(out, value);
    text_add(out, ",\n");
}

static const char *word(bool value) { return value ? "true" : "false"; }

// Members that other versions of PEFT lack are left out, so that all versions since 0.9 read it.
void peft_config_write(const AdapterWeights *a, const char *base, bool fan_in_fan_out, const Text *targets,
                       Text *out) {
    text_add(out, "{\n  \"alpha_pattern\": {},\n  \"auto_mapping\": null,\n  \"base_model_name_or_path\": ");
    json_add_string(out, base, strlen(base));
    text_add(out,
             ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n"
             "  \"init_lora_weights\": true,\n  \"layers_pattern\": null,\n  \"layers_to_transform\": null,\n"
             "  \"loftq_config\": {},\n",
             word(fan_in_fan_out));
    add_number(out, "lora_alpha", a->alpha);
    add_number(out, "lora_dropout", a->dropout);
    text_add(out,
             "  \"megatron_config\": null,\n  \"megatron_core\": \"megatron.core\",\n"
             "  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\",\n  \"r\": %d,\n"
             "  \"rank_pattern\": {},\n  \"revision\": null,\n  \"target_modules\": %s,\n"
             "  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
             a->rank, text_string(targets), word(a->rslora));
}
