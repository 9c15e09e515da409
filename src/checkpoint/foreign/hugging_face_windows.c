// Reads which layers of a config.json have windows of attention, and which do not rotate.
#include "checkpoint/foreign/config_members.h"
#include "config/defaults.h"
#include <stdlib.h>
#include <string.h>

// ---- lists of layers ----------------------------------------------------------------------------------

// Reads a list with an item for each layer: words, of which "sliding_attention" is set, or numbers, of which 1 is.
static Status read_list(const Config *c, const Json *list, const char *name, int layers, char *set) {
    if (list->type != JSON_ARRAY || list->count != (size_t)layers)
        return config_bad(c, name, "a list with an item for each layer");
    for (int i = 0; i < layers; i++) {
        const char *word = json_string(&list->items[i]);
        int64_t number;
        bool sliding = word && !strcmp(word, "sliding_attention");
        bool known = word ? sliding || !strcmp(word, "full_attention") : json_int(&list->items[i], &number);
        if (!known || (!word && number != 0 && number != 1))
            return config_bad(c, name, "a list of full_attention and sliding_attention, or of 0 and 1");
        set[i] = word ? sliding : number == 1;
    }
    return OK;
}

bool config_pattern(const char *set, int layers, int *period, uint64_t *bits) {
    int n = 1;
    for (; n <= MAX_WINDOW_PERIOD; n++) {
        int i = n;
        while (i < layers && set[i] == set[i - n]) i++;
        if (i >= layers) break;
    }
    *period = n > 1 ? n : 0, *bits = 0;
    for (int i = 0; i < n && n > 1 && n <= MAX_WINDOW_PERIOD; i++) *bits |= (uint64_t)set[i] << i;
    return n <= MAX_WINDOW_PERIOD;
}

// Takes the pattern of the layers that have a window.
static Status take_windows(const Config *c, const char *set, ModelShape *s) {
    if (!config_pattern(set, s->layers, &s->window_period, &s->window_layers))
        return fail(
            ERR_UNAVAILABLE,
            "%s: this model cannot be read: which layers have a window has to repeat after at most %d "
            "layers, and its layer_types do not",
            c->what, MAX_WINDOW_PERIOD);
    if (!s->window_period && !set[0]) s->window = 0;
    return OK;
}

// ---- windows ------------------------------------------------------------------------------------------

enum { MAX_WINDOW = 1 << 24 };

// transformers 5 writes 0 for the window of a Qwen2-MoE that has none.
static Status read_window(Config *c, const Family *f, ModelShape *s) {
    const Json *value = json_member(c->object, "sliding_window");
    if (value && value->type == JSON_NULL) s->window = 0;
    bool zero = f->says & SAYS_WINDOW_SWITCH;
    return (zero ? config_count : config_size)(c, "sliding_window", MAX_WINDOW, &s->window);
}

// The layers that slide where there is no list of them.
static Status layers_without_list(Config *c, const Family *f, ModelShape *s, char *set) {
    int period = f->is.window_period, first = 28;
    bool alternating = f->says & SAYS_WINDOW_LAYERS;
    if (alternating) TRY(config_size(c, "sliding_window_pattern", MAX_WINDOW_PERIOD, &period));
    if (alternating) TRY(config_size(c, "_sliding_window_pattern", MAX_WINDOW_PERIOD, &period));
    TRY(config_size(c, "max_window_layers", 1 << 20, &first));
    for (int i = 0; i < s->layers; i++) set[i] = alternating ? (i + 1) % period != 0 : i >= first;
    return OK;
}

// `on`: windows are not switched off.
static Status read_layers(Config *c, const Family *f, bool on, ModelShape *s, char *set) {
    const Json *list = config_member(c, "layer_types");
    if (on && s->window && f->says & LISTS_WINDOWS && !config_is_given(list))
        return fail(
            ERR_UNAVAILABLE,
            "%s: use_sliding_window without layer_types is not read; add the list of layer_types that "
            "transformers makes: load the configuration and save it with save_pretrained()",
            c->what);
    TRY(layers_without_list(c, f, s, set));
    if (config_is_given(list)) TRY(read_list(c, list, "layer_types", s->layers, set));
    return take_windows(c, set, s);
}

Status config_windows(Config *c, const Family *f, ModelShape *s) {
    bool on = true;
    if (!(f->says & (SAYS_WINDOW | SAYS_WINDOW_LAYERS | SAYS_WINDOW_SWITCH))) return OK;
    TRY(read_window(c, f, s));
    if (f->says & SAYS_WINDOW_SWITCH) {
        on = false;
        TRY(config_flag(c, "use_sliding_window", &on));
    }
    if (f->says & SAYS_WINDOW) {
        config_member(c, "max_window_layers"); // it has no effect there
        if (!on) s->window = 0;
        return OK;
    }
    char *set = malloc((size_t)s->layers);
    if (!set) return fail(ERR_OS, "no memory for a list of %d layers", s->layers);
    Status status = read_layers(c, f, on, s, set);
    free(set);
    if (!on) s->window = 0;
    if (!s->window) s->window_period = 0, s->window_layers = 0;
    return status;
}

// ---- layers that do not rotate ------------------------------------------------------------------------

// Finds the N of which every Nth layer, counted from 1, does not rotate.
static Status take_no_rope(const Config *c, const char *rotates, ModelShape *s) {
    int every = 0;
    for (int i = 0; i < s->layers && !every; i++)
        if (!rotates[i]) every = i + 1;
    for (int i = 0; i < s->layers; i++)
        if (rotates[i] == (every && (i + 1) % every == 0))
            return fail(
                ERR_UNAVAILABLE,
                "%s: this model cannot be read: the layers without rotations have to be every Nth, and "
                "those of its no_rope_layers are not",
                c->what);
    s->no_rope_freq = every;
    return OK;
}

static Status read_no_rope(Config *c, const Family *f, ModelShape *s, char *rotates) {
    int every = f->is.no_rope_freq;
    const Json *list = config_member(c, "no_rope_layers");
    TRY(config_size(c, "no_rope_layer_interval", 1 << 20, &every));
    for (int i = 0; i < s->layers; i++) rotates[i] = (i + 1) % every != 0;
    if (config_is_given(list)) TRY(read_list(c, list, "no_rope_layers", s->layers, rotates));
    return take_no_rope(c, rotates, s);
}

Status config_no_rope(Config *c, const Family *f, ModelShape *s) {
    if (!(f->says & SAYS_NO_ROPE)) return OK;
    char *rotates = malloc((size_t)s->layers);
    if (!rotates) return fail(ERR_OS, "no memory for a list of %d layers", s->layers);
    Status status = read_no_rope(c, f, s, rotates);
    free(rotates);
    return status;
}
