// Finds models in the cache that Hugging Face's tools download to, by their names and by their folders there.
#include "formats/hub_cache.h"
#include "base/file.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 4096, MAX_REVISION = 200 };

// ORG/NAME, or NAME alone, of letters, digits, '-', '_' and '.'.
static bool is_name(const char *path) {
    int slashes = 0;
    if (!isalnum((unsigned char)*path)) return false;
    for (const char *c = path; *c; c++) {
        if (*c == '/' && (!c[1] || slashes++)) return false;
        if (*c != '/' && !isalnum((unsigned char)*c) && !strchr("-_.", *c)) return false;
    }
    return true;
}

// Writes the folder of the cache. Returns false where no variable says where it is.
static bool cache_folder(char *room) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value) return snprintf(room, ROOM, "%s%s", value, places[i].below) < ROOM;
    }
    return false;
}

// The folder of a model's downloads, CACHE/models--ORG--NAME.
static bool folder_of(const char *name, char *room) {
    if (!is_name(name) || !cache_folder(room)) return false;
    size_t size = strlen(room);
    int added = snprintf(room + size, ROOM - size, "/models--");
    for (const char *c = name; *c && size + (size_t)added + 2 < ROOM; c++)
        added += snprintf(room + size + added, ROOM - size - (size_t)added, *c == '/' ? "--" : "%c", *c);
    return file_exists(room);
}

// The revision that FOLDER/refs/main names.
static bool main_revision(const char *folder, char *revision) {
    char path[ROOM];
    char *text = NULL;
    size_t size;
    if (snprintf(path, sizeof path, "%s/refs/main", folder) >= ROOM || !file_exists(path) ||
        file_read(path, MAX_REVISION, &text, &size) != OK)
        return false;
    snprintf(revision, MAX_REVISION, "%.*s", (int)strcspn(text, "\r\n \t"), text);
    free(text);
    return *revision && !strchr(revision, '/');
}

// The only revision that was downloaded.
static bool only_revision(const char *folder, char *revision) {
    char path[ROOM];
    char **names = NULL;
    int count = 0;
    if (snprintf(path, sizeof path, "%s/snapshots", folder) >= ROOM || !file_exists(path) ||
        folder_list(path, &names, &count) != OK)
        return false;
    if (count == 1) snprintf(revision, MAX_REVISION, "%s", names[0]);
    free(names);
    return count == 1;
}

static bool snapshot_of(const char *folder, char *room) {
    char revision[MAX_REVISION];
    if (!main_revision(folder, revision) && !only_revision(folder, revision)) return false;
    return snprintf(room, ROOM, "%s/snapshots/%s", folder, revision) < ROOM && file_exists(room);
}

const char *hub_model(const char *path, char *room) {
    char folder[ROOM];
    if (file_exists(path)) return snapshot_of(path, room) ? room : path;
    return folder_of(path, folder) && snapshot_of(folder, room) ? room : path;
}

void hub_add_advice(const char *path, Text *out) {
    char cache[ROOM];
    if (!strchr(path, '/') || !is_name(path) || file_exists(path) || !cache_folder(cache)) return;
    text_add(out, "; nor is a model of this name in Hugging Face's cache, %s: `hf download %s` fetches it",
             cache, path);
}

const char *hub_model_name(const char *path, char *room) {
    const char *start = strstr(path, "models--"), *name = NULL;
    while (start && start != path && start[-1] != '/') start = strstr(start + 1, "models--");
    if (!start) return NULL;
    size_t size = strcspn(start, "/");
    for (const char *c = start; (c = strstr(c, "--")) && c < start + size; c += 2) name = c + 2;
    snprintf(room, ROOM, "%.*s", (int)(start + size - name), name);
    return *room ? room : NULL;
}
