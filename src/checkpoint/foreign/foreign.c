// Describes a path that was expected to hold a model and does not: a typo, an empty folder, or the files of another
// program.
#include "checkpoint/checkpoint.h"
#include "formats/hub_cache.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const char *file;       // a pattern of the name of a file in the folder
    const char *what, *use; // what such a file means, and what to do
} Sign;

// The first pattern that matches is reported.
static const Sign signs[] = {
    {"finetune.json", "a fine-tuning",
     "its checkpoints are in the folder checkpoints/, and its model is in hf/"},
    {"config.json", "a Hugging Face model, which is no checkpoint", "`trireme import` makes one of it"},
    {"latest_checkpointed_iteration.txt", "checkpoints of Megatron-LM",
     "convert one to a Hugging Face folder with Megatron-LM's tools and name that folder"},
    {"iter_[0-9]*", "checkpoints of Megatron-LM",
     "convert one to a Hugging Face folder with Megatron-LM's tools and name that folder"},
    {"mp_rank_*", "a checkpoint of Megatron-LM or DeepSpeed",
     "convert it to a Hugging Face folder with their tools and name that folder"},
    {"*.distcp", "a distributed checkpoint of PyTorch",
     "convert it to a Hugging Face folder with the program that wrote it and name that folder"},
    {"zero_to_fp32.py", "a checkpoint of DeepSpeed",
     "convert it to a Hugging Face folder with that script and name that folder"},
    {"model_index.json", "a pipeline of diffusers", "name a folder of GPT-2 or Llama"},
    {"pytorch_model*.bin*", "weights of PyTorch (pytorch_model.bin)",
     "load it with transformers, and save_pretrained() writes a folder that is read"},
    {"consolidated.*", "weights as Meta or Mistral publish them",
     "take the Hugging Face edition of the model, with config.json and safetensors"},
    {"*.gguf", "a GGUF file", "name the file instead of its folder"},
    {"rank-[0-9]*.safetensors", "a checkpoint without its manifest.json, so it is not whole",
     "copy the whole folder again, or name another checkpoint"},
    {"*.safetensors", "safetensors without their config.json", "add the model's config.json"},
    {"*.nemo", "a model of NeMo", "convert it to a Hugging Face folder with NeMo and name that folder"},
};

static const Sign *find_sign(const char *const *names, int count) {
    for (size_t s = 0; s < sizeof signs / sizeof signs[0]; s++)
        for (int i = 0; i < count; i++)
            if (fnmatch(signs[s].file, names[i], 0) == 0) return &signs[s];
    return NULL;
}

// Finds the name in the same folder that is most similar to a name that does not exist.
static void add_nearest(const char *path, Text *what) {
    char folder[4096];
    char **names = NULL;
    int count = 0;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    if (end >= sizeof folder) return;
    snprintf(folder, sizeof folder, "%.*s", (int)end, path);
    char *slash = strrchr(folder, '/');
    const char *last = slash ? slash + 1 : folder;
    if (slash) *slash = 0;
    if (folder_list(!slash ? "." : *folder ? folder : "/", &names, &count) != OK) return;
    const char *nearest = text_nearest(last, (const char *const *)names, count);
    if (nearest)
        text_add(what, "; the nearest name is %s%s%s", slash ? folder : "", slash ? "/" : "", nearest);
    free(names);
}

// Recognises the files of a run that was stopped before its first checkpoint: its lock, its state, part of a save.
static bool is_of_a_run(const char *name) { return *name == '.' || !strcmp(name, "run.json"); }

static void add_names(char *const *names, int count, Text *what) {
    enum { MAX_SHOWN = 4 };
    text_add(what, "it holds no model, but ");
    for (int i = 0; i < count && i < MAX_SHOWN; i++) text_add(what, "%s%.60s", i ? ", " : "", names[i]);
    if (count > MAX_SHOWN) text_add(what, " and %d more", count - MAX_SHOWN);
}

static FoundThere look_into(const char *path, Text *what) {
    char **names = NULL;
    int count = 0, others = 0;
    if (folder_list(path, &names, &count) != OK) {
        text_add(what, "%s", fail_message());
        return FOUND_FOREIGN;
    }
    const Sign *sign = find_sign((const char *const *)names, count);
    for (int i = 0; i < count; i++)
        if (!is_of_a_run(names[i])) names[others++] = names[i];
    if (sign)
        text_add(what, "it holds %s: %s", sign->what, sign->use);
    else if (count == 0)
        text_add(what, "the folder is empty");
    else if (others == 0)
        text_add(what, "its run was stopped before the first checkpoint");
    else
        add_names(names, others, what);
    free(names);
    return sign ? FOUND_FOREIGN : FOUND_NOTHING;
}

FoundThere model_absent(const char *path, Text *what) {
    struct stat st;
    if (stat(path, &st)) {
        text_add(what, "there is no such folder");
        hub_add_advice(path, what);
        add_nearest(path, what);
        return FOUND_NOTHING;
    }
    if (S_ISDIR(st.st_mode)) return look_into(path, what);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const Sign *sign = find_sign(&name, 1);
    text_add(what, "it is a file, not a folder");
    if (sign) text_add(what, ", %s: %s", sign->what, sign->use);
    return FOUND_FOREIGN;
}
