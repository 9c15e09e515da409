// Holds what the options own: the strings that values point into, where each value came from, and the notes.
#include "config/table.h"
#include <stdlib.h>
#include <string.h>

void *options_block(Options *options, size_t bytes) {
    OptionsStore *store = options->store;
    void **blocks = realloc(store->blocks, (size_t)(store->num_blocks + 1) * sizeof *blocks);
    CHECK(blocks, "no memory for options");
    store->blocks = blocks;
    void *block = calloc(1, bytes ? bytes : 1);
    CHECK(block, "no memory for %zu bytes of options", bytes);
    return blocks[store->num_blocks++] = block;
}

const char *options_string(Options *options, const char *string) {
    size_t size = strlen(string) + 1;
    return memcpy(options_block(options, size), string, size);
}

void options_destroy(Options *options) {
    OptionsStore *store = options->store;
    if (!store) return;
    for (int i = 0; i < store->num_blocks; i++) free(store->blocks[i]);
    free(store->blocks);
    text_free(&store->notes);
    text_free(&store->refused);
    text_free(&store->also_refused);
    free(store);
    *options = (Options){0};
}

// ---- origins ----------------------------------------------------------------------------------------------

int option_position(const char *field) {
    for (int i = 0; i < NUM_OPTIONS; i++)
        if (!strcmp(option_table[i].field, field)) return i;
    CHECK(false, "no option has the field %s", field);
    return -1;
}

Verb options_verb(const Options *options) { return options->store->verb; }

Origin options_origin(const Options *options, const char *field) {
    return options->store->origins[option_position(field)];
}

// ---- notes ------------------------------------------------------------------------------------------------

void options_note(Options *options, const char *note) {
    OptionsStore *store = options->store;
    Text line = {0};
    text_add(&line, "%s\n", note);
    if (!strstr(text_string(&store->notes), line.data)) text_add(&store->notes, "%s", line.data);
    text_free(&line);
}

void note_idle(Options *options, const char *name, const char *why) {
    Text note = {0};
    text_add(&note, "%s has no effect: %s", name, why);
    options_note(options, note.data);
    text_free(&note);
}

const char *options_notes(const Options *options) { return text_string(&options->store->notes); }
