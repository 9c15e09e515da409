// Carries the files in a model's folder that say how it is used, so that imports, training and exports keep them.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_COMPANION = 256 << 20 };

// First the files of the model; then those of its tokenizer, which would contradict another tokenizer; last the
// tokenizer.json of a tokenizer.model, which other libraries read. Files that Tokenizer writes itself are not listed,
// but for the chat template, which stays where another tokenizer has none.
static const char *const names[NUM_COMPANIONS] = {"generation_config.json", "chat_template.jinja",
                                                  "chat_template.json",     "special_tokens_map.json",
                                                  "added_tokens.json",      "tokenizer.json"};
enum { OF_THE_MODEL = 3 };

static int how_many(const Tokenizer *own) {
    if (!own) return OF_THE_MODEL;
    return tokenizer_kind(own) == TOKENIZER_SENTENCEPIECE ? NUM_COMPANIONS : NUM_COMPANIONS - 1;
}

Status companions_read(Companions *companions, const char *folder, const Tokenizer *own) {
    *companions = (Companions){0};
    for (int i = 0; i < how_many(own); i++) {
        char path[PATH_ROOM], *data;
        size_t size;
        TRY(path_join(path, folder, names[i]));
        if (!file_exists(path)) continue;
        TRY(file_read(path, MAX_COMPANION, &data, &size));
        text_add_bytes(&companions->files[i], data, size);
        free(data);
    }
    return OK;
}

Status companions_write(const Companions *companions, const char *folder) {
    for (int i = 0; i < NUM_COMPANIONS; i++) {
        const Text *file = &companions->files[i];
        char path[PATH_ROOM];
        TRY(path_join(path, folder, names[i]));
        if (file->size) TRY(file_write(path, file->data, file->size));
    }
    return OK;
}

void companions_free(Companions *companions) {
    for (int i = 0; i < NUM_COMPANIONS; i++) text_free(&companions->files[i]);
}
