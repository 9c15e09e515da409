// Attention: which layers have a window, and how wide it is.
#include "config/defaults.h"
#include "config/rules.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// ---- the window -------------------------------------------------------------------------------------------

// Reads "L,R" or "(L,R)"; L of -1 is no window. Nine characters hold every number that is allowed.
static bool read_window(const char *text, int *left, int *right) {
    int end = 0;
    if (sscanf(text, " %9d , %9d %n", left, right, &end) != 2 &&
        sscanf(text, " ( %9d , %9d ) %n", left, right, &end) != 2)
        return false;
    return end > 0 && !text[end];
}

static Status resolve_window(Options *o) {
    int left = -1, right = 0;
    if (!o->window_size) return OK;
    if (!read_window(o->window_size, &left, &right) || left < -1 || left >= 1 << 24)
        return fail(
            ERR_CONFIG,
            "--window-size '%s' is no pair of numbers: use L,0, such as 127,0, where a token attends to "
            "itself and the L tokens before it",
            o->window_size);
    if (right > 0 || right < -1)
        return fail(ERR_CONFIG,
                    "--window-size %s: no token attends to later ones, so the second number must be 0: use "
                    "--window-size %d,0",
                    o->window_size, left);
    o->shape.window = left + 1;
    return OK;
}

// ---- the layers that have it ------------------------------------------------------------------------------

// A list of layers, 1 for a window, read from an expression such as "([1]*5+[0])*2".
typedef struct {
    const char *at;
    char *layers;
    int count, room;
} Pattern;

static bool next_is(Pattern *p, char c) {
    while (isspace((unsigned char)*p->at)) p->at++;
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static bool add_layer(Pattern *p, char layer) {
    if (p->count == p->room) return false;
    p->layers[p->count++] = layer;
    return true;
}

static bool read_list(Pattern *p) {
    do {
        bool windowed = next_is(p, '1');
        if (!windowed && !next_is(p, '0')) return false;
        if (!add_layer(p, windowed)) return false;
    } while (next_is(p, ','));
    return next_is(p, ']');
}

// Repeats the layers from `first` on so that they are there `times` times.
static bool repeat_layers(Pattern *p, int first, long times) {
    int count = p->count - first;
    if (times < 1 || times > p->room) return false;
    for (long i = 1; i < times; i++)
        for (int k = 0; k < count; k++)
            if (!add_layer(p, p->layers[first + k])) return false;
    return true;
}

enum { MAX_NESTED = 16 }; // parentheses

// Reads terms with '+' between them: lists, or parentheses around terms, each with "*n" or without.
static bool read_terms(Pattern *p, int depth) {
    if (depth > MAX_NESTED) return false;
    do {
        int first = p->count;
        bool group = next_is(p, '(');
        if (group && !(read_terms(p, depth + 1) && next_is(p, ')'))) return false;
        if (!group && !(next_is(p, '[') && read_list(p))) return false;
        while (next_is(p, '*')) {
            char *end;
            long times = strtol(p->at, &end, 10);
            if (end == p->at || !repeat_layers(p, first, times)) return false;
            p->at = end;
        }
    } while (next_is(p, '+'));
    return true;
}

// Returns after how many layers the list repeats. Unless it has every layer, it goes on from its start after its end.
static int period_of(const Pattern *p) {
    for (int period = 1;; period++) {
        int i = period;
        while (i < p->count && p->layers[i] == p->layers[i - period]) i++;
        if (i == p->count && (p->count == p->room || p->count % period == 0)) return period;
    }
}

Status layer_pattern(const Options *o, const char *option, const char *text, int *period, uint64_t *layers) {
    Pattern p = {.at = text, .room = o->num_layers};
    p.layers = malloc((size_t)p.room);
    if (!p.layers) return fail(ERR_OS, "no memory for a list of %d layers", p.room);
    bool good = read_terms(&p, 0) && (next_is(&p, ' '), !*p.at);
    Status status = OK;
    *layers = 0;
    *period = good ? period_of(&p) : 0;
    if (!good)
        status = fail(
            ERR_CONFIG,
            "%s '%s' is neither a number from 1 on nor a list of ones and zeros for at most --num-layers "
            "%d: use such as 6, [1,1,0] or [1]*5+[0]",
            option, text, o->num_layers);
    else if (*period > MAX_WINDOW_PERIOD)
        status =
            fail(ERR_CONFIG, "%s %s: the list does not repeat within %d layers, which is the longest pattern",
                 option, text, MAX_WINDOW_PERIOD);
    for (int i = 0; status == OK && i < *period; i++) *layers |= (uint64_t)p.layers[i] << i;
    free(p.layers);
    return status;
}

static Status resolve_list(Options *o) {
    RunShape *s = &o->shape;
    TRY(layer_pattern(o, "--window-attn-skip-freq", o->window_attn_skip_freq, &s->window_period,
                      &s->window_layers));
    if (s->window_period > 1) return OK;
    s->window_period = 0;
    if (!s->window_layers) s->window = 0;
    s->window_layers = 0;
    return OK;
}

// Source: Megatron-LM, is_layer_window_attention: of layers counted from 1 every Nth has no window.
static Status resolve_every(Options *o, long every) {
    if (every == 1) o->shape.window = 0;
    if (every == 1 || every > o->num_layers) return OK;
    if (every > MAX_WINDOW_PERIOD)
        return fail(ERR_CONFIG,
                    "--window-attn-skip-freq %ld is more than %d, the longest pattern: use %d or less", every,
                    MAX_WINDOW_PERIOD, MAX_WINDOW_PERIOD);
    o->shape.window_period = (int)every;
    o->shape.window_layers = ((uint64_t)1 << (every - 1)) - 1;
    return OK;
}

Status resolve_windows(Options *o) {
    char *end;
    TRY(resolve_window(o));
    if (!o->window_attn_skip_freq) return OK;
    if (!o->window_size)
        return fail(ERR_CONFIG,
                    "--window-attn-skip-freq %s says which layers have no window, but none has one: add "
                    "--window-size, or leave this out",
                    o->window_attn_skip_freq);
    if (o->shape.window == 0)
        return fail(
            ERR_CONFIG,
            "--window-attn-skip-freq %s says which layers have no window, but with --window-size %s none has "
            "one: use another --window-size, or leave this out",
            o->window_attn_skip_freq, o->window_size);
    long every = strtol(o->window_attn_skip_freq, &end, 10);
    bool number = end != o->window_attn_skip_freq && !*end && every > 0;
    return number ? resolve_every(o, every) : resolve_list(o);
}
