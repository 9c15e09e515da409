// Finds the YAML file of a machine or stack, by name, alias or path, and parses it.
#include "machine/files.h"
#include "base/file.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };

static bool ends_in(const char *name, const char *suffix) {
    size_t size = strlen(name), end = strlen(suffix);
    return size >= end && !strcmp(name + size - end, suffix);
}

static bool has_alias(const Json *root, const char *name) {
    const Json *list = json_member(root, "aliases");
    for (size_t i = 0; list && i < list->count; i++) {
        const char *alias = json_string(&list->items[i]);
        if (alias && !strcmp(alias, name)) return true;
    }
    return false;
}

// ---- a file of the user's -----------------------------------------------------------------------

static Status take_name(YamlDocument *document, const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t size = strlen(base) - (ends_in(base, ".yaml") ? strlen(".yaml") : 0);
    if (!size || size >= MAX_NAME)
        return fail(ERR_USAGE, "%s: the file's name, without .yaml, has %zu characters; 1 to %d are allowed",
                    path, size, MAX_NAME - 1);
    memcpy(document->name, base, size);
    document->name[size] = 0;
    return OK;
}

static Status open_path(YamlDocument *document, const char *path) {
    char *text;
    size_t size;
    TRY(take_name(document, path));
    snprintf(document->file, sizeof document->file, "%s", path);
    TRY(file_read(path, MAX_FILE_BYTES, &text, &size));
    Status status = yaml_parse(&document->root, text, size, document->file);
    free(text);
    return status;
}

// ---- a shipped one ------------------------------------------------------------------------------

static Status open_shipped(YamlDocument *document, const Library *library, const ShippedFile *shipped) {
    snprintf(document->name, sizeof document->name, "%s", shipped->name);
    snprintf(document->file, sizeof document->file, "%s/%s.yaml", library->folder, shipped->name);
    return yaml_parse(&document->root, shipped->text, strlen(shipped->text), document->file);
}

static void keep_nearer(const char *wanted, const char *candidate, char nearest[MAX_NAME]) {
    if (!candidate || !text_nearest(wanted, &candidate, 1)) return;
    if (!nearest[0] || text_distance(wanted, candidate) < text_distance(wanted, nearest))
        snprintf(nearest, MAX_NAME, "%s", candidate);
}

static Status unknown_name(const Library *library, const char *name) {
    char nearest[MAX_NAME] = "", question[MAX_NAME + 32] = "";
    Text list = {0};
    for (int i = 0; i < library->num_shipped; i++) {
        YamlDocument document = {0};
        const Json *aliases = NULL;
        if (open_shipped(&document, library, &library->shipped[i]) == OK)
            aliases = json_member(document.root, "aliases");
        text_add(&list, "%s%s", i ? ", " : "", library->shipped[i].name);
        keep_nearer(name, library->shipped[i].name, nearest);
        for (size_t k = 0; aliases && k < aliases->count; k++)
            keep_nearer(name, json_string(&aliases->items[k]), nearest);
        document_close(&document);
    }
    if (nearest[0]) snprintf(question, sizeof question, "; did you mean %s?", nearest);
    Status status = fail(ERR_USAGE, "unknown %s %.80s%s (there are %s, and files: a path with '/' or .yaml)",
                         library->kind, name, question, text_string(&list));
    text_free(&list);
    return status;
}

static Status open_name(YamlDocument *document, const Library *library, const char *name) {
    for (int i = 0; i < library->num_shipped; i++)
        if (!strcmp(library->shipped[i].name, name))
            return open_shipped(document, library, &library->shipped[i]);
    for (int i = 0; i < library->num_shipped; i++) {
        TRY(open_shipped(document, library, &library->shipped[i]));
        if (has_alias(document->root, name)) return OK;
        document_close(document);
    }
    return unknown_name(library, name);
}

Status document_open(YamlDocument *document, const Library *library, const char *name) {
    *document = (YamlDocument){0};
    bool is_path = strchr(name, '/') || ends_in(name, ".yaml");
    TRY(is_path ? open_path(document, name) : open_name(document, library, name));
    if (document->root->type == JSON_OBJECT) return OK;
    document_close(document);
    return fail(ERR_DATA, "%s: lines of `key: value` are expected", document->file);
}

void document_close(YamlDocument *document) {
    json_free(document->root);
    document->root = NULL;
}
