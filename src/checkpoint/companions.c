// Carries the files in a model's folder that say how it is used, so that imports, training and exports keep them.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/place.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_COMPANION = 256 << 20 };

// First the files of the model; then those of its tokenizer, which would contradict another tokenizer; last the
// tokenizer.json of a tokenizer.model, which other libraries read. Files that Tokenizer writes itself are not listed,
// but for the chat template, which stays where another tokenizer has none.
static const char *const names[NUM_COMPANIONS] = {"generation_config.json", "chat_template.jinja",
                                                  "chat_template.json",     "special_tokens_map.json",
                                                  "added_tokens.json",      "tokenizer.json"};
enum { GENERATION_CONFIG = 0, CHAT_TEMPLATE = 1, OF_THE_MODEL = 3 };

static int how_many(const Tokenizer *own) {
    if (!own) return OF_THE_MODEL;
    return tokenizer_kind(own) == TOKENIZER_SENTENCEPIECE ? NUM_COMPANIONS : NUM_COMPANIONS - 1;
}

// ---- named chat templates -------------------------------------------------------------------------

// transformers keeps templates beside the default one in a folder, each in a file NAME.jinja. A checkpoint has no
// folders: there they are files chat_template.NAME.jinja.
static const char named_templates[] = "additional_chat_templates", prefix[] = "chat_template.",
                  ending[] = ".jinja";

// The NAME.jinja of a file that is a template, or NULL.
static char *template_of(char *file, bool in_folder) {
    size_t size = strlen(file), before = in_folder ? 0 : sizeof prefix - 1, after = sizeof ending - 1;
    bool is_one = size > before + after && *file != '.' && !strcmp(file + size - after, ending);
    return is_one && (in_folder || !strncmp(file, prefix, before)) ? file + before : NULL;
}

static Status read_file(const char *folder, const char *name, Text *out) {
    char path[PATH_ROOM], *data;
    size_t size;
    TRY(path_join(path, folder, name));
    TRY(file_read(path, MAX_COMPANION, &data, &size));
    text_add_bytes(out, data, size);
    free(data);
    return OK;
}

static Status read_templates(Companions *c, const char *model) {
    char folder[PATH_ROOM];
    int count;
    TRY(path_join(folder, model, named_templates));
    bool in_folder = place_is_folder(folder);
    if (!in_folder) snprintf(folder, sizeof folder, "%s", model);
    if (!place_is_folder(folder)) return OK; // a GGUF file
    TRY(folder_list(folder, &c->template_names, &count));
    c->templates = calloc((size_t)count + 1, sizeof *c->templates);
    CHECK(c->templates, "no memory for %d templates", count);
    for (int i = 0; i < count; i++) {
        char *file = c->template_names[i], *name = template_of(file, in_folder);
        if (!name) continue;
        c->template_names[c->num_templates] = name;
        TRY(read_file(folder, file, &c->templates[c->num_templates++]));
    }
    return OK;
}

static Status write_templates(const Companions *c, const char *folder, const char *before) {
    for (int i = 0; i < c->num_templates; i++) {
        char path[PATH_ROOM], file[PATH_ROOM];
        snprintf(file, sizeof file, "%s%s", before, c->template_names[i]);
        TRY(path_join(path, folder, file));
        TRY(file_write(path, c->templates[i].data, c->templates[i].size));
    }
    return OK;
}

static Status write_template_folder(const Companions *c, const char *model) {
    char folder[PATH_ROOM];
    if (!c->num_templates) return OK;
    TRY(path_join(folder, model, named_templates));
    TRY(folder_make(folder));
    TRY(write_templates(c, folder, ""));
    return folder_sync(folder);
}

// ---- all of them ----------------------------------------------------------------------------------

Status companions_read(Companions *companions, const ModelSource *source, const Tokenizer *own) {
    const char *folder = model_source_files_path(source);
    *companions = (Companions){0};
    model_source_template(source, &companions->files[CHAT_TEMPLATE]);
    for (int i = 0; i < how_many(own); i++) {
        char path[PATH_ROOM];
        TRY(path_join(path, folder, names[i]));
        if (file_exists(path)) TRY(read_file(folder, names[i], &companions->files[i]));
    }
    return read_templates(companions, folder);
}

Status companions_write(const Companions *companions, const char *folder, bool checkpoint) {
    for (int i = 0; i < NUM_COMPANIONS; i++) {
        const Text *file = &companions->files[i];
        char path[PATH_ROOM];
        TRY(path_join(path, folder, names[i]));
        if (file->size) TRY(file_write(path, file->data, file->size));
    }
    return checkpoint ? write_templates(companions, folder, prefix)
                      : write_template_folder(companions, folder);
}

void companions_free(Companions *companions) {
    for (int i = 0; i < NUM_COMPANIONS; i++) text_free(&companions->files[i]);
    for (int i = 0; i < companions->num_templates; i++) text_free(&companions->templates[i]);
    free(companions->template_names);
    free(companions->templates);
    *companions = (Companions){0};
}

// ---- the end of a turn --------------------------------------------------------------------------

// The end of the value that begins at `at`: a number, a word or a list of numbers.
static size_t value_end(const Text *text, size_t at) {
    if (text->data[at] == '[') return at + strcspn(text->data + at, "]") + 1;
    return at + strcspn(text->data + at, ",} \t\r\n");
}

static void splice(Text *text, size_t from, size_t to, const Text *value) {
    Text edited = {0};
    text_add_bytes(&edited, text->data, from);
    text_add_bytes(&edited, value->data, value->size);
    text_add_bytes(&edited, text->data + to, text->size - to);
    text_free(text);
    *text = edited;
}

static void write_ends(Text *file, const Json *root, const int *ends, int count) {
    const Json *member = json_member(root, "eos_token_id");
    Text value = {0};
    if (!member) text_add(&value, "\n  \"eos_token_id\": ");
    tokens_write_ends(ends, count, &value);
    if (!member) text_add(&value, root->count ? "," : "\n");
    size_t from = member ? (size_t)member->offset : (size_t)root->offset + 1;
    splice(file, from, member ? value_end(file, from) : from, &value);
    text_free(&value);
}

static Status add_end(Text *file, const Json *root, const TokenList *own, int end) {
    ModelTokens tokens;
    if (root->type != JSON_OBJECT) return fail(ERR_DATA, "%s: no JSON object", names[GENERATION_CONFIG]);
    TRY(tokens_read(root, names[GENERATION_CONFIG], &tokens));
    bool has_none = !tokens.num_ends;
    for (size_t i = 0; has_none && i < own->count && i < MAX_END_TOKENS - 1; i++)
        tokens.ends[tokens.num_ends++] = own->ids[i];
    for (int i = 0; i < tokens.num_ends; i++)
        if (tokens.ends[i] == end) return OK;
    if (tokens.num_ends == MAX_END_TOKENS) return OK;
    tokens.ends[tokens.num_ends++] = end;
    write_ends(file, root, tokens.ends, tokens.num_ends);
    return OK;
}

Status companions_add_end(Companions *companions, const TokenList *ends, int end) {
    Text *file = &companions->files[GENERATION_CONFIG];
    Json *root;
    for (size_t i = 0; !file->size && i < ends->count; i++)
        if (ends->ids[i] == end) return OK;
    if (!file->size) text_add(file, "{}\n");
    TRY(json_parse(&root, file->data, file->size, names[GENERATION_CONFIG]));
    Status status = add_end(file, root, ends, end);
    json_free(root);
    return status;
}
