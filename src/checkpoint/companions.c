// The files beside a model's weights that say how it is used: kept from an import to an export, byte for byte.
#include "checkpoint/manifest.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_COMPANION = 256 << 20 };

// Of the model; then of its tokenizer, which another tokenizer would contradict; last the form of a
// tokenizer.model that other libraries read. What Tokenizer writes itself is not among them.
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
    TRY(file_read(from, MOST_COMPANION, &data, &size));
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
