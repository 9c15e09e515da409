// Reads the adapters that --adapter names.
#include "config/config.h"
#include <stdio.h>
#include <string.h>

// Returns the length of NAME in "NAME=FOLDER"; 0: there is none. A path may have a '=' after its first '/'.
static size_t name_size(const char *word) {
    size_t size = strcspn(word, "=/");
    return word[size] == '=' ? size : 0;
}

static void take_name(const char *word, AdapterOption *out) {
    size_t size = name_size(word), end = strlen(word), begin;
    out->folder = size ? word + size + 1 : word;
    while (!size && end > 1 && word[end - 1] == '/') end--;
    for (begin = end; !size && begin > 0 && word[begin - 1] != '/';) begin--;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(size ? size : end - begin),
             size ? word : word + begin);
}

Status options_adapter(const Options *o, int i, AdapterOption *out) {
    take_name(o->adapter.items[i], out);
    if (!*out->folder)
        return fail(ERR_CONFIG, "--adapter %s: name a folder, as in --adapter NAME=FOLDER",
                    o->adapter.items[i]);
    for (int before = 0; before < i; before++) {
        AdapterOption other;
        take_name(o->adapter.items[before], &other);
        if (!strcmp(other.name, out->name))
            return fail(ERR_CONFIG, "--adapter: two have the name %s: give them names, as in NAME=FOLDER",
                        out->name);
    }
    return OK;
}

Status options_check_one_adapter(const Options *o) {
    AdapterOption adapter;
    if (o->adapter.count > 1)
        return fail(ERR_CONFIG, "--adapter names %d adapters; this verb uses one: keep one",
                    o->adapter.count);
    return o->adapter.count ? options_adapter(o, 0, &adapter) : OK;
}
