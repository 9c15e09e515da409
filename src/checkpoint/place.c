// Tells what kind of model a path names, and finds the model in the folder of a fine-tuning and in the cache that
// Hugging Face's tools download to.
#include "checkpoint/place.h"
#include "base/file.h"
#include "checkpoint/foreign/peft.h"
#include "checkpoint/manifest.h"
#include "formats/hub_cache.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool place_holds(const char *folder, const char *file) {
    char path[4096];
    int size = snprintf(path, sizeof path, "%s/%s", folder, file);
    return size < (int)sizeof path && file_exists(path);
}

bool place_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool place_is_gguf(const char *path) {
    struct stat st;
    size_t size = strlen(path);
    return size > 5 && !strcmp(path + size - 5, ".gguf") && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool place_is_adapter(const char *path) {
    return peft_is_there(path) && !place_holds(path, "model.safetensors") &&
           !place_holds(path, "model.safetensors.index.json");
}

bool place_is_finetuning(const char *folder) { return place_holds(folder, "finetune.json"); }

const char *place_of_model(const char *path, int64_t step, char *room) {
    if (!place_is_finetuning(path)) return hub_model(path, room);
    bool exported = step < 0 && place_holds(path, "hf/config.json");
    return path_join(room, path, exported ? "hf" : "checkpoints") == OK ? room : path;
}

bool model_is_there(const char *path) {
    return place_holds(path, "manifest.json") || place_holds(path, "config.json") || peft_is_there(path) ||
           place_is_gguf(path) || place_is_finetuning(path);
}

bool model_is_named(const char *path) {
    char room[PATH_ROOM];
    return model_is_there(place_of_model(path, -1, room));
}

void model_name(const char *path, char name[4096]) {
    char *real = realpath(path, NULL);
    const char *whole = real ? real : path, *slash = strrchr(whole, '/'), *last = slash ? slash + 1 : whole;
    if (!*last) last = "model";
    size_t size = strlen(last);
    if (size > 5 && !strcmp(last + size - 5, ".gguf")) size -= 5;
    if (!hub_model_name(whole, name)) snprintf(name, 4096, "%.*s", (int)size, last);
    free(real);
}
