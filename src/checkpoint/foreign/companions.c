// Copies the files in a model's folder that say how it is used, so that an import and an export keep them unchanged.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_COMPANION = 256 << 20 };

// First the files of the model; then those of its tokenizer, which would contradict another tokenizer; last the
// tokenizer.json of a tokenizer.model, which other libraries read. Files that Tokenizer writes itself are not listed.
static const char *const companions[] = {"generation_config.json", "chat_template.jinja",
                                         "chat_template.json",     "special_tokens_map.json",
                                         "added_tokens.json",      "tokenizer.json"};
enum { NUM_COMPANIONS = sizeof companions / sizeof *companions, OF_THE_MODEL = 3 };

static int how_many(const Tokenizer *own) {
    if (!own) return OF_THE_MODEL;
    return tokenizer_kind(own) == TOKENIZER_SENTENCEPIECE ? NUM_COMPANIONS : NUM_COMPANIONS - 1;
}

static Status copy_file(const char *from, const char *to) {
    char *data;
    size_t size;
    TRY(file_read(from, MAX_COMPANION, &data, &size));
    Status status = file_write(to, data, size);
    free(data);
    return status;
}

Status companions_copy(const char *from, const char *to, const Tokenizer *own) {
    for (int i = 0; i < how_many(own); i++) {
        char old[PATH_ROOM], new[PATH_ROOM];
        TRY(path_join(old, from, companions[i]));
        TRY(path_join(new, to, companions[i]));
        if (file_exists(old)) TRY(copy_file(old, new));
    }
    return OK;
}
