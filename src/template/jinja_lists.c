// Filters of lists (map, select, sort, unique, ...) and JSON.
#include "template/internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaValue Value;

// ---- JSON, as Python's json.dumps writes it without ensure_ascii --------------------------------------------

static void new_line(int indent, int depth, Text *out) {
    if (indent >= 0) text_add(out, "\n%*s", indent * depth, "");
}

static int by_key(const void *a, const void *b) {
    const Value *x = &((const JinjaPair *)a)->key, *y = &((const JinjaPair *)b)->key;
    size_t common = x->size < y->size ? x->size : y->size;
    int order = common ? memcmp(x->string, y->string, common) : 0;
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static Status sort_pairs(Render *r, const Value *dict, const JinjaPair **sorted) {
    JinjaPair *copy;
    TRY(jinja_take(r, dict->size * sizeof *copy, &copy));
    if (dict->size) memcpy(copy, dict->pairs, dict->size * sizeof *copy);
    for (size_t i = 0; i < dict->size; i++)
        if (copy[i].key.type != JINJA_STRING) return jinja_fail(r, "keys are sorted that are no strings");
    if (dict->size) qsort(copy, dict->size, sizeof *copy, by_key);
    *sorted = copy;
    return OK;
}

static Status add_dict(Render *r, const Value *dict, int indent, int depth, bool sorted, Text *out) {
    const JinjaPair *pairs = dict->pairs;
    if (sorted) TRY(sort_pairs(r, dict, &pairs));
    text_add(out, "{");
    for (size_t i = 0; i < dict->size; i++) {
        Value key;
        if (i) text_add(out, indent < 0 ? ", " : ",");
        new_line(indent, depth + 1, out);
        if (pairs[i].key.type != JINJA_STRING) return jinja_fail(r, "tojson: a key that is no string");
        TRY(jinja_str(r, &pairs[i].key, &key));
        json_add_string(out, key.string, key.size);
        text_add(out, ": ");
        TRY(jinja_add_json(r, &pairs[i].value, indent, depth + 1, sorted, out));
    }
    if (dict->size) new_line(indent, depth, out);
    text_add(out, "}");
    return OK;
}

static Status add_list(Render *r, const Value *list, int indent, int depth, bool sorted, Text *out) {
    text_add(out, "[");
    for (size_t i = 0; i < list->size; i++) {
        if (i) text_add(out, indent < 0 ? ", " : ",");
        new_line(indent, depth + 1, out);
        TRY(jinja_add_json(r, &list->items[i], indent, depth + 1, sorted, out));
    }
    if (list->size) new_line(indent, depth, out);
    text_add(out, "]");
    return OK;
}

Status jinja_add_json(Render *r, const Value *value, int indent, int depth, bool sorted, Text *out) {
    if (depth > JINJA_MAX_DEPTH)
        return jinja_fail(r, "tojson: more than %d lists within each other", JINJA_MAX_DEPTH);
    if (out->size > JINJA_MAX_OUTPUT_BYTES) return jinja_fail(r, "the template writes more than 8 MiB");
    TRY(jinja_step(r));
    switch (value->type) {
    case JINJA_NONE: text_add(out, "null"); return OK;
    case JINJA_BOOL: text_add(out, "%s", value->flag ? "true" : "false"); return OK;
    case JINJA_INTEGER: text_add(out, "%" PRId64, value->integer); return OK;
    case JINJA_FLOAT: jinja_add_float(value->real, out); return OK;
    case JINJA_STRING: json_add_string(out, value->string, value->size); return OK;
    case JINJA_LIST:
    case JINJA_TUPLE: return add_list(r, value, indent, depth, sorted, out);
    case JINJA_DICT: return add_dict(r, value, indent, depth, sorted, out);
    case JINJA_UNDEFINED: return jinja_undefined(r, value);
    default: return jinja_fail(r, "tojson of a value of type %s", jinja_type_name(value));
    }
}

// ---- the member that a filter looks at ----------------------------------------------------------------------

// The member `path`, such as a.b; without a path the value itself.
static Status member(Render *r, const Value *value, const Value *path, Value *out) {
    Value found = *value;
    *out = *value;
    if (!jinja_given(path)) return OK;
    if (path->type == JINJA_INTEGER) return jinja_item(r, value, path, out);
    if (path->type != JINJA_STRING) return jinja_fail(r, "the name of a member is no string");
    for (size_t at = 0, end; at <= path->size; at = end + 1) {
        const char *dot = memchr(path->string + at, '.', path->size - at);
        end = dot ? (size_t)(dot - path->string) : path->size;
        Value name = jinja_string(path->string + at, end - at);
        TRY(jinja_item(r, &found, &name, out));
        found = *out;
    }
    return OK;
}

static JinjaArguments rest(const JinjaArguments *given, int from) {
    return (JinjaArguments){.values = given->values + from,
                            .names = given->names ? given->names + from : NULL,
                            .count = given->count - from,
                            .positional = given->positional - from};
}

static Status name_of(Render *r, const JinjaArguments *given, int at, const char **name) {
    if (at >= given->positional || given->values[at].type != JINJA_STRING)
        return jinja_fail(r, "the name of a filter or test is expected, as a string");
    char *copy;
    TRY(jinja_take(r, given->values[at].size + 1, &copy));
    memcpy(copy, given->values[at].string, given->values[at].size);
    *name = copy;
    return OK;
}

// map('upper'), map(attribute='a')
static Status map(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    Value *items;
    const char *name = NULL;
    TRY(jinja_make_list(r, JINJA_LIST, list->size, &items, out));
    if (given->positional) TRY(name_of(r, given, 0, &name));
    Value named[2];
    if (!name) TRY(jinja_bind(r, "map", "attribute|default", given, named));
    for (size_t i = 0; i < list->size; i++) {
        JinjaArguments others = name ? rest(given, 1) : *given;
        TRY(jinja_step(r));
        TRY(name ? jinja_filter(r, name, &list->items[i], &others, &items[i])
                 : member(r, &list->items[i], &named[0], &items[i]));
        if (!name && items[i].type == JINJA_UNDEFINED && jinja_given(&named[1])) items[i] = named[1];
    }
    return OK;
}

// select('test', ...), selectattr('member', 'test', ...): those for which the test holds, or does not (`wanted`).
static Status choose(Render *r, const Value *list, const JinjaArguments *given, bool by_member, bool wanted,
                     Value *out) {
    Value *items, path = {.type = JINJA_UNDEFINED};
    const char *name = NULL;
    int first = by_member;
    if (by_member && !given->positional) return jinja_fail(r, "the name of a member is expected");
    if (by_member) path = given->values[0];
    if (given->positional > first) TRY(name_of(r, given, first++, &name));
    TRY(jinja_make_list(r, JINJA_LIST, list->size, &items, out));
    out->size = 0;
    for (size_t i = 0; i < list->size; i++) {
        Value value;
        JinjaArguments others = rest(given, first);
        TRY(jinja_step(r));
        TRY(member(r, &list->items[i], &path, &value));
        bool holds = jinja_truth(&value);
        if (name) TRY(jinja_test(r, name, &value, &others, &holds));
        if (holds == wanted) items[out->size++] = list->items[i];
    }
    return OK;
}

static Status select_(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    return choose(r, list, given, false, true, out);
}
static Status reject(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    return choose(r, list, given, false, false, out);
}
static Status selectattr(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    return choose(r, list, given, true, true, out);
}
static Status rejectattr(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    return choose(r, list, given, true, false, out);
}

// ---- order --------------------------------------------------------------------------------------------------

// Strings compare without case, unless `exact`.
static Status comes_before(Render *r, const Value *a, const Value *b, bool exact, bool *out) {
    Value x = *a, y = *b;
    JinjaArguments none = {0};
    if (!exact && a->type == JINJA_STRING) TRY(jinja_filter(r, "lower", a, &none, &x));
    if (!exact && b->type == JINJA_STRING) TRY(jinja_filter(r, "lower", b, &none, &y));
    return jinja_compare(r, JINJA_LESS, &x, &y, out);
}

// Sorts by the keys, which stay beside the items; equal ones keep their order, also where the order is reversed.
static Status insert_sorted(Render *r, Value *items, Value *keys, size_t count, bool exact, bool reversed) {
    for (size_t i = 1; i < count; i++) {
        Value item = items[i], key = keys[i];
        size_t at = i;
        for (; at > 0; at--) {
            bool before;
            TRY(jinja_step(r));
            TRY(reversed ? comes_before(r, &keys[at - 1], &key, exact, &before)
                         : comes_before(r, &key, &keys[at - 1], exact, &before));
            if (!before) break;
            items[at] = items[at - 1];
            keys[at] = keys[at - 1];
        }
        items[at] = item;
        keys[at] = key;
    }
    return OK;
}

static Status sort_by(Render *r, const Value *list, const Value *path, bool exact, bool reversed,
                      Value *out) {
    Value *items, *keys;
    TRY(jinja_make_list(r, JINJA_LIST, list->size, &items, out));
    TRY(jinja_take(r, list->size * sizeof *keys, &keys));
    for (size_t i = 0; i < list->size; i++) {
        items[i] = list->items[i];
        TRY(member(r, &items[i], path, &keys[i]));
    }
    return insert_sorted(r, items, keys, list->size, exact, reversed);
}

static Status sort(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    Value args[3];
    TRY(jinja_bind(r, "sort", "|reverse case_sensitive attribute", given, args));
    return sort_by(r, list, &args[2], jinja_truth(&args[1]), jinja_truth(&args[0]), out);
}

static Status dictsort(Render *r, const Value *dict, const JinjaArguments *given, Value *out) {
    Value args[3], pairs, by = jinja_integer(0);
    JinjaArguments none = {0};
    TRY(jinja_bind(r, "dictsort", "|case_sensitive by reverse", given, args));
    if (jinja_given(&args[1]) && jinja_is(&args[1], "value")) by = jinja_integer(1);
    TRY(jinja_filter(r, "items", dict, &none, &pairs));
    return sort_by(r, &pairs, &by, jinja_truth(&args[0]), jinja_truth(&args[2]), out);
}

static Status unique(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    Value *items, args[2];
    TRY(jinja_bind(r, "unique", "|case_sensitive attribute", given, args));
    TRY(jinja_make_list(r, JINJA_LIST, list->size, &items, out));
    out->size = 0;
    for (size_t i = 0; i < list->size; i++) {
        bool there = false;
        for (size_t k = 0; k < out->size && !there; k++) {
            Value a, b;
            bool before, after;
            TRY(member(r, &items[k], &args[1], &a));
            TRY(member(r, &list->items[i], &args[1], &b));
            TRY(jinja_step(r));
            there = jinja_equal(&a, &b, 0);
            if (there || a.type != JINJA_STRING || b.type != JINJA_STRING) continue;
            TRY(comes_before(r, &a, &b, jinja_truth(&args[0]), &before));
            TRY(comes_before(r, &b, &a, jinja_truth(&args[0]), &after));
            there = !before && !after;
        }
        if (!there) items[out->size++] = list->items[i];
    }
    return OK;
}

static Status extreme(Render *r, const Value *list, const JinjaArguments *given, bool most, Value *out) {
    Value args[2];
    TRY(jinja_bind(r, most ? "max" : "min", "|case_sensitive attribute", given, args));
    *out = (Value){.type = JINJA_UNDEFINED, .string = "the extreme of nothing"};
    for (size_t i = 0; i < list->size; i++) {
        Value best, value;
        bool better = i == 0;
        if (i) {
            TRY(member(r, out, &args[1], &best));
            TRY(member(r, &list->items[i], &args[1], &value));
            TRY(most ? comes_before(r, &best, &value, jinja_truth(&args[0]), &better)
                     : comes_before(r, &value, &best, jinja_truth(&args[0]), &better));
        }
        if (better) *out = list->items[i];
    }
    return OK;
}
static Status min(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    return extreme(r, list, given, false, out);
}
static Status max(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    return extreme(r, list, given, true, out);
}

static Status sum(Render *r, const Value *list, const JinjaArguments *given, Value *out) {
    Value args[2], value, total;
    TRY(jinja_bind(r, "sum", "|attribute start", given, args));
    total = jinja_given(&args[1]) ? args[1] : jinja_integer(0);
    for (size_t i = 0; i < list->size; i++) {
        Value before = total;
        TRY(member(r, &list->items[i], &args[0], &value));
        TRY(jinja_binary(r, JINJA_ADD, &before, &value, &total));
    }
    *out = total;
    return OK;
}

// ---- the table ----------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    Status (*call)(Render *r, const Value *list, const JinjaArguments *given, Value *out);
} LIST_FILTERS[] = {
    {"map", map},
    {"select", select_},
    {"reject", reject},
    {"selectattr", selectattr},
    {"rejectattr", rejectattr},
    {"sort", sort},
    {"unique", unique},
    {"min", min},
    {"max", max},
    {"sum", sum},
};

bool jinja_has_list_filter(const char *name) {
    for (size_t i = 0; i < sizeof LIST_FILTERS / sizeof *LIST_FILTERS; i++)
        if (!strcmp(name, LIST_FILTERS[i].name)) return true;
    return !strcmp(name, "dictsort");
}

Status jinja_list_filter(Render *r, const char *name, const Value *value, const JinjaArguments *given,
                         Value *out) {
    Value list;
    if (!strcmp(name, "dictsort")) return dictsort(r, value, given, out);
    TRY(jinja_elements(r, value, &list));
    size_t i = 0;
    while (strcmp(name, LIST_FILTERS[i].name) != 0) i++;
    return LIST_FILTERS[i].call(r, &list, given, out);
}
