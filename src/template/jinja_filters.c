// Filters: `x | trim`, `x | join(', ')`.
#include "template/internal.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaValue Value;

// `args` are those of the row of FILTERS, bound.
typedef Status Filter(Render *r, const Value *value, const Value *args, Value *out);

static Status finish(Render *r, Status status, Text *text, Value *out) {
    if (status == OK) status = jinja_make_string(r, text, out);
    text_free(text);
    return status;
}

// ---- text ---------------------------------------------------------------------------------------------------

static Status trim(Render *r, const Value *value, const Value *args, Value *out) {
    Value string;
    TRY(jinja_str(r, value, &string));
    return jinja_method(
        r, &string, "strip",
        &(JinjaArguments){.values = args, .count = jinja_given(args), .positional = jinja_given(args)}, out);
}

// How the case of a letter follows from what is before it.
typedef enum { UPPER, LOWER, TITLE, CAPITAL } Case;

static Status change_case(Render *r, const Value *value, Case to, Value *out) {
    Value string;
    char *copy, before = ' ';
    TRY(jinja_str(r, value, &string));
    TRY(jinja_take(r, string.size + 1, &copy));
    for (size_t i = 0; i < string.size; before = string.string[i++]) {
        unsigned char c = (unsigned char)string.string[i];
        if (c >= 0x80)
            return jinja_fail(r, "upper and lower case of a letter outside ASCII are not known here");
        // Jinja's filter begins a word behind a blank, a hyphen or an opening bracket.
        bool begins =
            to == TITLE ? isspace((unsigned char)before) || (before && strchr("-([{<", before)) : i == 0;
        bool raise = to == UPPER || (to != LOWER && begins);
        copy[i] = (char)(raise ? toupper(c) : tolower(c));
    }
    *out = jinja_string(copy, string.size);
    return OK;
}

static Status upper(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return change_case(r, value, UPPER, out);
}
static Status lower(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return change_case(r, value, LOWER, out);
}
static Status title(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return change_case(r, value, TITLE, out);
}
static Status capitalize(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return change_case(r, value, CAPITAL, out);
}

static Status replace(Render *r, const Value *value, const Value *args, Value *out) {
    Value string, old, new;
    TRY(jinja_str(r, value, &string));
    TRY(jinja_str(r, &args[0], &old));
    TRY(jinja_str(r, &args[1], &new));
    if (!old.size) return jinja_fail(r, "replace of an empty string");
    int64_t left = args[2].type == JINJA_INTEGER ? args[2].integer : -1;
    Text text = {0};
    const char *at = string.string, *end = at + string.size;
    Status status = OK;
    for (const char *found; status == OK && left != 0; left--) {
        if (!(found = memmem(at, (size_t)(end - at), old.string, old.size))) break;
        text_add_bytes(&text, at, (size_t)(found - at));
        text_add_bytes(&text, new.string, new.size);
        at = found + old.size;
        if (text.size > JINJA_MAX_OUTPUT_BYTES) status = jinja_fail(r, "the template writes more than 8 MiB");
    }
    text_add_bytes(&text, at, (size_t)(end - at));
    return finish(r, status, &text, out);
}

// Lines but the first, or with `first` that, too, get blanks before them; empty ones only with `blank`.
static Status indent(Render *r, const Value *value, const Value *args, Value *out) {
    Value string, width = jinja_integer(4), blank = jinja_string(" ", 1), margin;
    TRY(jinja_str(r, value, &string));
    if (args[0].type == JINJA_STRING)
        margin = args[0];
    else
        TRY(jinja_binary(r, JINJA_MULTIPLY, &blank, jinja_given(&args[0]) ? &args[0] : &width, &margin));
    bool first = jinja_truth(&args[1]), empty = jinja_truth(&args[2]);
    Text text = {0};
    Status status = OK;
    size_t line_end = 1;
    for (size_t at = 0; line_end && status == OK;) {
        size_t size = jinja_line(string.string + at, string.size - at, &line_end);
        if (at ? size || empty : first) text_add_bytes(&text, margin.string, margin.size);
        text_add_bytes(&text, string.string + at, size);
        if (line_end) text_add(&text, "\n");
        at += size + line_end;
        if (text.size > JINJA_MAX_OUTPUT_BYTES) status = jinja_fail(r, "the template writes more than 8 MiB");
    }
    return finish(r, status, &text, out);
}

static Status escape(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    Value string;
    TRY(jinja_str(r, value, &string));
    Text text = {0};
    for (size_t i = 0; i < string.size; i++) {
        char c = string.string[i];
        const char *name = c == '&'   ? "&amp;"
                           : c == '<' ? "&lt;"
                           : c == '>' ? "&gt;"
                           : c == '"' ? "&#34;"
                                      : "&#39;";
        if (c && strchr("&<>\"'", c))
            text_add(&text, "%s", name);
        else
            text_add_bytes(&text, &c, 1);
    }
    return finish(r, OK, &text, out);
}

static Status as_string(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return jinja_str(r, value, out);
}

static Status tojson(Render *r, const Value *value, const Value *args, Value *out) {
    Text text = {0};
    int width = -1;
    if (jinja_given(&args[2])) return jinja_fail(r, "tojson: other separators are not supported");
    if (jinja_given(&args[0]) && jinja_truth(&args[0]))
        return jinja_fail(r, "tojson: ensure_ascii is not supported");
    if (args[1].type == JINJA_INTEGER && args[1].integer >= 0 && args[1].integer <= 64)
        width = (int)args[1].integer;
    Status status = jinja_add_json(r, value, width, 0, jinja_truth(&args[3]), &text);
    return finish(r, status, &text, out);
}

static Status join(Render *r, const Value *value, const Value *args, Value *out) {
    Value elements, separator = jinja_string("", 0);
    TRY(jinja_elements(r, value, &elements));
    if (jinja_given(&args[0])) TRY(jinja_str(r, &args[0], &separator));
    Text text = {0};
    Status status = OK;
    for (size_t i = 0; i < elements.size && status == OK; i++) {
        Value item = elements.items[i];
        if (i) text_add_bytes(&text, separator.string, separator.size);
        if (jinja_given(&args[1])) status = jinja_item(r, &elements.items[i], &args[1], &item);
        if (status == OK) status = jinja_add_str(r, &item, &text);
    }
    return finish(r, status, &text, out);
}

// ---- numbers ------------------------------------------------------------------------------------------------

static Status as_integer(Render *r, const Value *value, const Value *args, Value *out) {
    (void)r;
    char *end = NULL, digits[24];
    *out = jinja_given(&args[0]) ? args[0] : jinja_integer(0);
    if (value->type == JINJA_INTEGER || value->type == JINJA_BOOL)
        *out = jinja_integer(value->type == JINJA_BOOL ? value->flag : value->integer);
    if (value->type == JINJA_FLOAT && fabs(value->real) < 9e18) *out = jinja_integer((int64_t)value->real);
    if (value->type != JINJA_STRING || !value->size || value->size > 18) return OK;
    memcpy(digits, value->string, value->size);
    digits[value->size] = 0;
    int64_t number = strtoll(digits, &end, 10);
    if (!*end) *out = jinja_integer(number);
    return OK;
}

static Status as_float(Render *r, const Value *value, const Value *args, Value *out) {
    (void)r;
    double number = 0;
    char digits[64];
    *out = jinja_given(&args[0]) ? args[0] : (Value){.type = JINJA_FLOAT};
    if (value->type == JINJA_FLOAT) *out = *value;
    if (value->type == JINJA_INTEGER) *out = (Value){.type = JINJA_FLOAT, .real = (double)value->integer};
    if (value->type != JINJA_STRING || value->size >= sizeof digits) return OK;
    memcpy(digits, value->string, value->size);
    digits[value->size] = 0;
    if (parse_double(digits, &number)) *out = (Value){.type = JINJA_FLOAT, .real = number};
    return OK;
}

static Status absolute(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    Value zero = jinja_integer(0);
    bool negative;
    TRY(jinja_compare(r, JINJA_LESS, value, &zero, &negative));
    if (negative) return jinja_binary(r, JINJA_SUBTRACT, &zero, value, out);
    *out = *value;
    return OK;
}

static Status round_number(Render *r, const Value *value, const Value *args, Value *out) {
    double number = value->type == JINJA_FLOAT ? value->real : (double)value->integer;
    if (value->type != JINJA_FLOAT && value->type != JINJA_INTEGER)
        return jinja_fail(r, "round of a value of type %s", jinja_type_name(value));
    if (jinja_given(&args[1])) return jinja_fail(r, "round up or down is not supported");
    char digits[400];
    int64_t decimals = args[0].type == JINJA_INTEGER ? args[0].integer : 0;
    if (decimals < 0 || decimals > 15) return jinja_fail(r, "round to %lld digits", (long long)decimals);
    snprintf(digits, sizeof digits, "%.*f", (int)decimals, number);
    *out = (Value){.type = JINJA_FLOAT, .real = strtod(digits, NULL)};
    return OK;
}

static Status length(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    int64_t count;
    TRY(jinja_length(r, value, &count));
    *out = jinja_integer(count);
    return OK;
}

// ---- what is there, and parts of it -------------------------------------------------------------------------

static Status or_default(Render *r, const Value *value, const Value *args, Value *out) {
    (void)r;
    bool missing = value->type == JINJA_UNDEFINED || (jinja_truth(&args[1]) && !jinja_truth(value));
    *out = !missing ? *value : jinja_given(&args[0]) ? args[0] : jinja_string("", 0);
    return OK;
}

static Status at_end(Render *r, const Value *value, bool last, Value *out) {
    Value elements;
    TRY(jinja_elements(r, value, &elements));
    *out = (Value){.type = JINJA_UNDEFINED,
                   .string = last ? "the last element of nothing" : "the first element of nothing"};
    if (elements.size) *out = elements.items[last ? elements.size - 1 : 0];
    return OK;
}
static Status first(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return at_end(r, value, false, out);
}
static Status last(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return at_end(r, value, true, out);
}

static Status as_list(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    TRY(jinja_elements(r, value, out));
    out->type = JINJA_LIST;
    return OK;
}

static Status unchanged(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    return jinja_str(r, value, out);
}

static Status items(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    Value *pairs, *both;
    if (value->type != JINJA_DICT && value->type != JINJA_UNDEFINED)
        return jinja_fail(r, "items of a value of type %s", jinja_type_name(value));
    size_t count = value->type == JINJA_DICT ? value->size : 0;
    TRY(jinja_make_list(r, JINJA_LIST, count, &pairs, out));
    for (size_t i = 0; i < count; i++) {
        TRY(jinja_make_list(r, JINJA_TUPLE, 2, &both, &pairs[i]));
        both[0] = value->pairs[i].key;
        both[1] = value->pairs[i].value;
    }
    return OK;
}

static Status reverse(Render *r, const Value *value, const Value *args, Value *out) {
    (void)args;
    const Value bounds[3] = {jinja_none(), jinja_none(), jinja_integer(-1)};
    return jinja_slice(r, value, bounds, out);
}

// ---- the table ----------------------------------------------------------------------------------------------

static const struct {
    const char *name, *parameters; // see jinja_bind
    Filter *call;
} FILTERS[] = {
    {"trim", "|chars", trim},
    {"upper", "", upper},
    {"lower", "", lower},
    {"title", "", title},
    {"capitalize", "", capitalize},
    {"replace", "old new|count", replace},
    {"indent", "|width first blank", indent},
    {"escape", "", escape},
    {"e", "", escape},
    {"string", "", as_string},
    {"safe", "", unchanged},
    {"tojson", "|ensure_ascii indent separators sort_keys", tojson},
    {"join", "|d attribute", join},
    {"int", "|default", as_integer},
    {"float", "|default", as_float},
    {"abs", "", absolute},
    {"round", "|precision method", round_number},
    {"length", "", length},
    {"count", "", length},
    {"default", "|default_value boolean", or_default},
    {"d", "|default_value boolean", or_default},
    {"first", "", first},
    {"last", "", last},
    {"list", "", as_list},
    {"items", "", items},
    {"reverse", "", reverse},
};

bool jinja_has_filter(const char *name) {
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++)
        if (!strcmp(name, FILTERS[i].name)) return true;
    return jinja_has_list_filter(name);
}

Status jinja_filter(Render *r, const char *name, const Value *value, const JinjaArguments *given,
                    Value *out) {
    enum { MAX_PARAMETERS = 4 };
    Value args[MAX_PARAMETERS] = {{0}};
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++) {
        if (strcmp(name, FILTERS[i].name) != 0) continue;
        TRY(jinja_bind(r, name, FILTERS[i].parameters, given, args));
        if (value->type == JINJA_STRING) TRY(jinja_work(r, value->size));
        return FILTERS[i].call(r, value, args, out);
    }
    if (jinja_has_list_filter(name)) return jinja_list_filter(r, name, value, given, out);
    return jinja_fail(r, "the filter '%.100s' is not known here", name);
}
