// Values of templates: made, compared and written as Python does.
#include "template/internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaValue Value;

enum { MAX_VALUE_DEPTH = 200 }; // of lists and dicts within each other that a template makes

Value jinja_string(const char *bytes, size_t size) {
    return (Value){.type = JINJA_STRING, .size = size, .string = bytes};
}
Value jinja_integer(int64_t integer) { return (Value){.type = JINJA_INTEGER, .integer = integer}; }
Value jinja_flag(bool flag) { return (Value){.type = JINJA_BOOL, .flag = flag}; }
Value jinja_none(void) { return (Value){.type = JINJA_NONE}; }

Status jinja_make_string(Render *r, const Text *text, Value *out) {
    char *copy;
    TRY(jinja_take(r, text->size + 1, &copy));
    if (text->size) memcpy(copy, text->data, text->size);
    *out = jinja_string(copy, text->size);
    return OK;
}

Status jinja_make_list(Render *r, JinjaType type, size_t size, Value **items, Value *out) {
    TRY(jinja_take(r, size * sizeof **items, items));
    *out = (Value){.type = type, .size = size, .items = *items};
    return OK;
}

// ---- of JSON ------------------------------------------------------------------------------------------------

static Status number_of_json(Render *r, const Json *json, Value *out) {
    int64_t integer;
    double real;
    if (!strpbrk(json->string, ".eE") && json_int(json, &integer))
        *out = jinja_integer(integer);
    else if (strpbrk(json->string, ".eE") && json_double(json, &real))
        *out = (Value){.type = JINJA_FLOAT, .real = real};
    else
        return jinja_fail(r, "the number %.40s of the conversation has more than 64 bits", json->string);
    return OK;
}

static Status dict_of_json(Render *r, const Json *json, Value *out) {
    JinjaPair *pairs;
    TRY(jinja_take(r, json->count * sizeof *pairs, &pairs));
    for (size_t i = 0; i < json->count; i++) {
        pairs[i].key = jinja_string(json->items[i].key, json->items[i].key_size);
        TRY(jinja_of_json(r, &json->items[i], &pairs[i].value));
    }
    *out = (Value){.type = JINJA_DICT, .size = json->count, .pairs = pairs};
    return OK;
}

// Strings stay where they are.
Status jinja_of_json(Render *r, const Json *json, Value *out) {
    Value *items;
    switch (json->type) {
    case JSON_NULL: *out = jinja_none(); return OK;
    case JSON_FALSE:
    case JSON_TRUE: *out = jinja_flag(json->type == JSON_TRUE); return OK;
    case JSON_STRING: *out = jinja_string(json->string, json->size); return OK;
    case JSON_NUMBER: return number_of_json(r, json, out);
    case JSON_OBJECT: return dict_of_json(r, json, out);
    case JSON_ARRAY: break;
    }
    TRY(jinja_make_list(r, JINJA_LIST, json->count, &items, out));
    for (size_t i = 0; i < json->count; i++) TRY(jinja_of_json(r, &json->items[i], &items[i]));
    return OK;
}

// ---- what they are ------------------------------------------------------------------------------------------

bool jinja_is(const Value *value, const char *string) {
    return value->type == JINJA_STRING && value->size == strlen(string) &&
           !memcmp(value->string, string, value->size);
}

bool jinja_given(const Value *value) { return value->type != JINJA_UNDEFINED || value->string; }

bool jinja_truth(const Value *value) {
    switch (value->type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return value->flag;
    case JINJA_INTEGER: return value->integer != 0;
    case JINJA_FLOAT: return value->real != 0;
    case JINJA_STRING:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_DICT: return value->size > 0;
    default: return true;
    }
}

const char *jinja_type_name(const Value *value) {
    static const char *const NAMES[] = {"Undefined", "NoneType", "bool",     "int",   "float",
                                        "str",       "list",     "tuple",    "dict",  "namespace",
                                        "loop",      "macro",    "function", "method"};
    return NAMES[value->type];
}

static bool as_number(const Value *value, double *number) {
    *number = value->type == JINJA_FLOAT  ? value->real
              : value->type == JINJA_BOOL ? value->flag
                                          : (double)value->integer;
    return value->type == JINJA_FLOAT || value->type == JINJA_INTEGER || value->type == JINJA_BOOL;
}

static bool equal_dicts(const Value *a, const Value *b, int depth) {
    for (size_t i = 0; i < a->size; i++) {
        const Value *other = jinja_find(b, &a->pairs[i].key);
        if (!other || !jinja_equal(&a->pairs[i].value, other, depth + 1)) return false;
    }
    return true;
}

bool jinja_equal(const Value *a, const Value *b, int depth) {
    double x, y;
    if (a->type == JINJA_INTEGER && b->type == JINJA_INTEGER) return a->integer == b->integer;
    if (as_number(a, &x) && as_number(b, &y)) return x == y;
    if (a->type != b->type || depth > MAX_VALUE_DEPTH) return false;
    switch (a->type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return true;
    case JINJA_STRING: return a->size == b->size && (!a->size || !memcmp(a->string, b->string, a->size));
    case JINJA_LIST:
    case JINJA_TUPLE:
        for (size_t i = 0; i < a->size && a->size == b->size; i++)
            if (!jinja_equal(&a->items[i], &b->items[i], depth + 1)) return false;
        return a->size == b->size;
    case JINJA_DICT: return a->size == b->size && equal_dicts(a, b, depth);
    default: return a->space == b->space;
    }
}

const Value *jinja_find(const Value *dict, const Value *key) {
    for (size_t i = 0; i < dict->size; i++)
        if (jinja_equal(&dict->pairs[i].key, key, 0)) return &dict->pairs[i].value;
    return NULL;
}

Status jinja_undefined(Render *r, const Value *value) {
    if (!value->object) return jinja_fail(r, "'%.200s' is undefined", value->string ? value->string : "");
    return jinja_fail(r, "a value of type %s has no '%.200s'", jinja_type_name(value->object), value->string);
}

Status jinja_length(Render *r, const Value *value, int64_t *out) {
    if (value->type == JINJA_STRING) {
        *out = 0;
        for (size_t at = 0; at < value->size; at += jinja_character(value->string + at, value->size - at))
            ++*out;
        return OK;
    }
    bool counts = value->type == JINJA_LIST || value->type == JINJA_TUPLE || value->type == JINJA_DICT;
    if (!counts && value->type != JINJA_UNDEFINED)
        return jinja_fail(r, "a value of type %s has no length", jinja_type_name(value));
    *out = counts ? (int64_t)value->size : 0;
    return OK;
}

static Status characters(Render *r, const Value *string, Value *out) {
    int64_t count;
    Value *items;
    TRY(jinja_length(r, string, &count));
    TRY(jinja_make_list(r, JINJA_LIST, (size_t)count, &items, out));
    for (size_t at = 0, length; at < string->size; at += length) {
        length = jinja_character(string->string + at, string->size - at);
        *items++ = jinja_string(string->string + at, length);
    }
    return OK;
}

Status jinja_elements(Render *r, const Value *value, Value *out) {
    Value *items;
    switch (value->type) {
    case JINJA_LIST:
    case JINJA_TUPLE: *out = *value; return OK;
    case JINJA_STRING: return characters(r, value, out);
    case JINJA_UNDEFINED: return jinja_make_list(r, JINJA_LIST, 0, &items, out);
    case JINJA_DICT:
        TRY(jinja_make_list(r, JINJA_LIST, value->size, &items, out));
        for (size_t i = 0; i < value->size; i++) items[i] = value->pairs[i].key;
        return OK;
    default: return jinja_fail(r, "a value of type %s is no list", jinja_type_name(value));
    }
}

// ---- written ------------------------------------------------------------------------------------------------

// As Python's repr(): the shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
void jinja_add_float(double value, Text *out) {
    char digits[32];
    int count = 1;
    if (!isfinite(value)) {
        text_add(out, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    do snprintf(digits, sizeof digits, "%.*e", count - 1, value);
    while (strtod(digits, NULL) != value && ++count <= 17);
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        text_add(out, "%.*e", count - 1, value);
        return;
    }
    int decimals = count - 1 - exponent;
    text_add(out, "%.*f", decimals > 1 ? decimals : 1, value);
}

static bool is_plain(char c, char quote) {
    return (unsigned char)c >= ' ' && c != 0x7f && c != '\\' && c != quote;
}

static void add_quoted(const Value *string, Text *out) {
    bool single = memchr(string->string, '\'', string->size),
         twice = memchr(string->string, '"', string->size);
    char quote = single && !twice ? '"' : '\'';
    text_add_bytes(out, &quote, 1);
    for (size_t i = 0; i < string->size; i++) {
        size_t start = i;
        while (i < string->size && is_plain(string->string[i], quote)) i++;
        text_add_bytes(out, string->string + start, i - start);
        if (i == string->size) break;
        char c = string->string[i];
        if (c == '\n' || c == '\r' || c == '\t')
            text_add(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c == '\\' || c == quote)
            text_add_bytes(out, (char[]){'\\', c}, 2);
        else
            text_add(out, "\\x%02x", (unsigned)c);
    }
    text_add_bytes(out, &quote, 1);
}

static Status add_value(Render *r, const Value *value, int depth, Text *out);

static Status add_items(Render *r, const Value *list, int depth, Text *out) {
    bool tuple = list->type == JINJA_TUPLE;
    text_add_bytes(out, tuple ? "(" : "[", 1);
    for (size_t i = 0; i < list->size; i++) {
        if (i) text_add_bytes(out, ", ", 2);
        TRY(add_value(r, &list->items[i], depth + 1, out));
    }
    text_add(out, "%s", tuple ? list->size == 1 ? ",)" : ")" : "]");
    return OK;
}

static Status add_pairs(Render *r, const Value *dict, int depth, Text *out) {
    text_add_bytes(out, "{", 1);
    for (size_t i = 0; i < dict->size; i++) {
        if (i) text_add_bytes(out, ", ", 2);
        TRY(add_value(r, &dict->pairs[i].key, depth + 1, out));
        text_add_bytes(out, ": ", 2);
        TRY(add_value(r, &dict->pairs[i].value, depth + 1, out));
    }
    text_add_bytes(out, "}", 1);
    return OK;
}

static Status add_value(Render *r, const Value *value, int depth, Text *out) {
    if (depth > MAX_VALUE_DEPTH)
        return jinja_fail(r, "a value of more than %d lists within each other", MAX_VALUE_DEPTH);
    if (out->size > JINJA_MAX_OUTPUT_BYTES) return jinja_fail(r, "the template writes more than 8 MiB");
    TRY(jinja_step(r));
    switch (value->type) {
    case JINJA_UNDEFINED: text_add(out, depth ? "Undefined" : ""); return OK;
    case JINJA_NONE: text_add(out, "None"); return OK;
    case JINJA_BOOL: text_add(out, "%s", value->flag ? "True" : "False"); return OK;
    case JINJA_INTEGER: text_add(out, "%" PRId64, value->integer); return OK;
    case JINJA_FLOAT: jinja_add_float(value->real, out); return OK;
    case JINJA_STRING: add_quoted(value, out); return OK;
    case JINJA_LIST:
    case JINJA_TUPLE: return add_items(r, value, depth, out);
    case JINJA_DICT: return add_pairs(r, value, depth, out);
    default: return jinja_fail(r, "a %s is written: only values have a text", jinja_type_name(value));
    }
}

Status jinja_add_repr(Render *r, const Value *value, Text *out) { return add_value(r, value, 0, out); }

Status jinja_add_str(Render *r, const Value *value, Text *out) {
    if (value->type != JINJA_STRING) return add_value(r, value, 0, out);
    text_add_bytes(out, value->string, value->size);
    return out->size <= JINJA_MAX_OUTPUT_BYTES ? OK : jinja_fail(r, "the template writes more than 8 MiB");
}

Status jinja_str(Render *r, const Value *value, Value *out) {
    Text text = {0};
    if (value->type == JINJA_STRING) {
        *out = *value;
        return OK;
    }
    Status status = jinja_add_str(r, value, &text);
    if (status == OK) status = jinja_make_string(r, &text, out);
    text_free(&text);
    return status;
}
