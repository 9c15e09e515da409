// Tests (`x is mapping`), functions (`range(3)`) and the arguments of calls.
#include "template/internal.h"
#include <string.h>

typedef JinjaRender Render;
typedef JinjaValue Value;

// ---- arguments ----------------------------------------------------------------------------------------------

// The position of a name among names separated by blanks; -1: it is not there.
static int position_of(const char *names, const char *name) {
    int position = 0;
    for (const char *at = names; *at; position++) {
        size_t size = strcspn(at, " |");
        if (size == strlen(name) && !memcmp(at, name, size)) return position;
        at += size;
        at += *at != 0;
    }
    return -1;
}

static int count_names(const char *names) {
    int count = *names && *names != '|';
    for (; *names; names++) count += (*names == ' ' || *names == '|') && names[1];
    return count;
}

Status jinja_bind(Render *r, const char *what, const char *names, const JinjaArguments *given, Value *out) {
    const char *bar = strchr(names, '|');
    int most = count_names(names + (*names == '|')), needed = 0;
    for (const char *c = names; bar ? c < bar : *c; c++) needed += c == names || c[-1] == ' ';
    for (int i = 0; i < most; i++) out[i] = (Value){.type = JINJA_UNDEFINED};
    if (given->positional > most)
        return jinja_fail(r, "%s takes at most %d arguments, not %d", what, most, given->positional);
    for (int i = 0; i < given->count; i++) {
        int at = i < given->positional ? i : position_of(names + (*names == '|'), given->names[i]);
        if (at < 0) return jinja_fail(r, "%s has no argument %s", what, given->names[i]);
        out[at] = given->values[i];
        if (!jinja_given(&out[at])) out[at].string = "an argument";
    }
    for (int i = 0; i < needed; i++)
        if (!jinja_given(&out[i])) return jinja_fail(r, "%s needs %d arguments", what, needed);
    return OK;
}

// ---- tests --------------------------------------------------------------------------------------------------

static bool is_whole(const Value *v) { return v->type == JINJA_INTEGER; }
static bool is_number(const Value *v) {
    return is_whole(v) || v->type == JINJA_FLOAT || v->type == JINJA_BOOL;
}
static bool is_listed(const Value *v) { return v->type == JINJA_LIST || v->type == JINJA_TUPLE; }

static bool is_defined(const Value *v) { return v->type != JINJA_UNDEFINED; }
static bool is_undefined(const Value *v) { return v->type == JINJA_UNDEFINED; }
static bool is_none(const Value *v) { return v->type == JINJA_NONE; }
static bool is_string(const Value *v) { return v->type == JINJA_STRING; }
static bool is_mapping(const Value *v) { return v->type == JINJA_DICT; }
// Python has the length and the elements of these; of what is undefined, too.
static bool is_sequence(const Value *v) {
    return is_listed(v) || is_string(v) || is_mapping(v) || is_undefined(v);
}
static bool is_iterable(const Value *v) { return is_sequence(v); }
static bool is_integer(const Value *v) { return is_whole(v); }
static bool is_float(const Value *v) { return v->type == JINJA_FLOAT; }
static bool is_boolean(const Value *v) { return v->type == JINJA_BOOL; }
static bool is_true(const Value *v) { return v->type == JINJA_BOOL && v->flag; }
static bool is_false(const Value *v) { return v->type == JINJA_BOOL && !v->flag; }
static bool is_callable(const Value *v) {
    return v->type == JINJA_MACRO || v->type == JINJA_FUNCTION || v->type == JINJA_METHOD;
}

static const struct {
    const char *name;
    bool (*holds)(const Value *);
} PLAIN_TESTS[] = {{"defined", is_defined},   {"undefined", is_undefined}, {"none", is_none},
                   {"string", is_string},     {"mapping", is_mapping},     {"sequence", is_sequence},
                   {"iterable", is_iterable}, {"number", is_number},       {"integer", is_integer},
                   {"float", is_float},       {"boolean", is_boolean},     {"true", is_true},
                   {"false", is_false},       {"callable", is_callable}};

static const struct {
    const char *name;
    JinjaSign sign;
} COMPARING_TESTS[] = {{"eq", JINJA_EQUAL},         {"equalto", JINJA_EQUAL}, {"==", JINJA_EQUAL},
                       {"ne", JINJA_UNEQUAL},       {"lt", JINJA_LESS},       {"lessthan", JINJA_LESS},
                       {"le", JINJA_LESS_EQUAL},    {"gt", JINJA_GREATER},    {"greaterthan", JINJA_GREATER},
                       {"ge", JINJA_GREATER_EQUAL}, {"in", JINJA_IN}};

static const char *const WHOLE_TESTS[] = {"odd", "even", "divisibleby", "sameas"};

enum {
    NUM_PLAIN = sizeof PLAIN_TESTS / sizeof *PLAIN_TESTS,
    NUM_COMPARING = sizeof COMPARING_TESTS / sizeof *COMPARING_TESTS,
    NUM_WHOLE = sizeof WHOLE_TESTS / sizeof *WHOLE_TESTS,
};

bool jinja_has_test(const char *name) {
    for (int i = 0; i < NUM_PLAIN; i++)
        if (!strcmp(name, PLAIN_TESTS[i].name)) return true;
    for (int i = 0; i < NUM_COMPARING; i++)
        if (!strcmp(name, COMPARING_TESTS[i].name)) return true;
    for (int i = 0; i < NUM_WHOLE; i++)
        if (!strcmp(name, WHOLE_TESTS[i])) return true;
    return false;
}

static Status test_whole(Render *r, const char *name, const Value *value, const JinjaArguments *given,
                         bool *out) {
    Value by, two = jinja_integer(2), remainder;
    bool odd = !strcmp(name, "odd"), even = !strcmp(name, "even");
    TRY(jinja_bind(r, name, odd || even ? "" : "other", given, &by));
    if (!strcmp(name, "sameas")) {
        *out = value->type == by.type && jinja_equal(value, &by, 0);
        return OK;
    }
    TRY(jinja_binary(r, JINJA_MODULO, value, odd || even ? &two : &by, &remainder));
    *out = jinja_truth(&remainder) == odd;
    return OK;
}

Status jinja_test(Render *r, const char *name, const Value *value, const JinjaArguments *given, bool *out) {
    Value other;
    for (int i = 0; i < NUM_PLAIN; i++) {
        if (strcmp(name, PLAIN_TESTS[i].name) != 0) continue;
        TRY(jinja_bind(r, name, "", given, &other));
        *out = PLAIN_TESTS[i].holds(value);
        return OK;
    }
    for (int i = 0; i < NUM_COMPARING; i++) {
        if (strcmp(name, COMPARING_TESTS[i].name) != 0) continue;
        TRY(jinja_bind(r, name, "other", given, &other));
        return jinja_compare(r, COMPARING_TESTS[i].sign, value, &other, out);
    }
    if (!jinja_has_test(name)) return jinja_fail(r, "the test 'is %.100s' is not known here", name);
    return test_whole(r, name, value, given, out);
}

// ---- functions ----------------------------------------------------------------------------------------------

static Status make_range(Render *r, const JinjaArguments *given, Value *out) {
    Value bounds[3], *items;
    TRY(jinja_bind(r, "range", "start|stop step", given, bounds));
    bool single = !jinja_given(&bounds[1]);
    for (int i = 0; i < 3; i++)
        if (jinja_given(&bounds[i]) && bounds[i].type != JINJA_INTEGER)
            return jinja_fail(r, "range of a value of type %s", jinja_type_name(&bounds[i]));
    int64_t start = single ? 0 : bounds[0].integer, stop = single ? bounds[0].integer : bounds[1].integer;
    int64_t step = jinja_given(&bounds[2]) ? bounds[2].integer : 1;
    enum { MAX_RANGE = 100000 }; // as jinja2's sandbox has it
    const int64_t far = INT64_C(1) << 40;
    if (!step || start > far || start < -far || stop > far || stop < -far || step > far || step < -far)
        return jinja_fail(r, "range in steps of 0, or of numbers that are too large");
    int64_t count = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
    if (count < 0) count = 0;
    if (count > MAX_RANGE) return jinja_fail(r, "range of more than %d numbers", MAX_RANGE);
    TRY(jinja_make_list(r, JINJA_LIST, (size_t)count, &items, out));
    for (int64_t i = 0; i < count; i++) items[i] = jinja_integer(start + i * step);
    return OK;
}

static Status make_dict(Render *r, const JinjaArguments *given, Value *out) {
    JinjaPair *pairs;
    if (given->positional) return jinja_fail(r, "dict takes names alone here: dict(a=1)");
    TRY(jinja_take(r, (size_t)given->count * sizeof *pairs, &pairs));
    for (int i = 0; i < given->count; i++)
        pairs[i] = (JinjaPair){jinja_string(given->names[i], strlen(given->names[i])), given->values[i]};
    *out = (Value){.type = JINJA_DICT, .size = (size_t)given->count, .pairs = pairs};
    return OK;
}

static Status make_namespace(Render *r, const JinjaArguments *given, Value *out) {
    JinjaScope *space;
    if (given->positional) return jinja_fail(r, "namespace takes names alone here: namespace(a=1)");
    TRY(jinja_take(r, sizeof *space, &space));
    for (int i = 0; i < given->count; i++) jinja_assign(r, space, given->names[i], &given->values[i]);
    *out = (Value){.type = JINJA_NAMESPACE, .space = space};
    return OK;
}

static Status raise(Render *r, const JinjaArguments *given, Value *out) {
    Value message, string;
    TRY(jinja_bind(r, "raise_exception", "message", given, &message));
    TRY(jinja_str(r, &message, &string));
    *out = string;
    return jinja_fail(r, "the template refuses the conversation: %.*s",
                      (int)(string.size < 400 ? string.size : 400), string.string);
}

static Status tell_time(Render *r, const JinjaArguments *given, Value *out) {
    enum { MOST = 256 };
    Value format;
    char written[MOST];
    TRY(jinja_bind(r, "strftime_now", "format", given, &format));
    if (format.type != JINJA_STRING || format.size >= MOST / 2 || memchr(format.string, 0, format.size))
        return jinja_fail(r, "strftime_now needs a format such as '%%d %%b %%Y'");
    struct tm parts;
    char copy[MOST] = {0};
    memcpy(copy, format.string, format.size);
    if (!localtime_r(&r->now, &parts)) return jinja_fail(r, "strftime_now: the time is unknown");
    size_t size = strftime(written, sizeof written, copy, &parts);
    Text text = {0};
    text_add_bytes(&text, written, size);
    Status status = jinja_make_string(r, &text, out);
    text_free(&text);
    return status;
}

static const struct {
    const char *name;
    Status (*call)(Render *r, const JinjaArguments *given, Value *out);
} FUNCTIONS[] = {{"range", make_range},
                 {"dict", make_dict},
                 {"namespace", make_namespace},
                 {"raise_exception", raise},
                 {"strftime_now", tell_time}};

bool jinja_has_function(const char *name) {
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!strcmp(name, FUNCTIONS[i].name)) return true;
    return false;
}

Status jinja_function(Render *r, const char *name, const JinjaArguments *given, Value *out) {
    size_t i = 0;
    while (strcmp(name, FUNCTIONS[i].name) != 0) i++;
    return FUNCTIONS[i].call(r, given, out);
}
