// Methods of strings, lists and dicts: `x.strip()`, `x.get('a')`.
#include "template/internal.h"
#include <ctype.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaValue Value;

// `args` are those of the row of METHODS, bound.
typedef Status Method(Render *r, const Value *self, const Value *args, Value *out);

static Value part(const Value *s, size_t from, size_t to) {
    return jinja_string(s->string + from, to - from);
}

static Status need_string(Render *r, const char *what, const Value *value) {
    if (value->type == JINJA_STRING) return OK;
    return jinja_fail(r, "%s: a string is expected, not a value of type %s", what, jinja_type_name(value));
}

// ---- strip --------------------------------------------------------------------------------------------------

static Status strip_sides(Render *r, const Value *self, const Value *set, bool left, bool right, Value *out) {
    bool given = jinja_given(set) && set->type != JINJA_NONE;
    if (given) TRY(need_string(r, "strip", set));
    size_t end = self->size - (right ? jinja_trailing(self, given ? set : NULL) : 0);
    Value rest = part(self, 0, end);
    *out = part(self, left ? jinja_leading(&rest, given ? set : NULL) : 0, end);
    return OK;
}

static Status strip(Render *r, const Value *self, const Value *args, Value *out) {
    return strip_sides(r, self, args, true, true, out);
}
static Status lstrip(Render *r, const Value *self, const Value *args, Value *out) {
    return strip_sides(r, self, args, true, false, out);
}
static Status rstrip(Render *r, const Value *self, const Value *args, Value *out) {
    return strip_sides(r, self, args, false, true, out);
}

// ---- split --------------------------------------------------------------------------------------------------

typedef struct {
    Value *items;
    size_t count, most;
} Pieces;

// Cuts at blanks, which are not part of the pieces.
static void split_blanks(const Value *s, int64_t limit, Pieces *pieces) {
    size_t at = jinja_leading(s, NULL);
    while (at < s->size) {
        size_t end = at;
        if (limit >= 0 && (int64_t)pieces->count == limit) {
            end = s->size;
        } else {
            while (end < s->size && !jinja_blank(s->string + end, s->size - end))
                end += jinja_character(s->string + end, s->size - end);
        }
        pieces->items[pieces->count++] = part(s, at, end);
        Value rest = part(s, end, s->size);
        at = end + jinja_leading(&rest, NULL);
    }
}

static void split_at(const Value *s, const Value *by, int64_t limit, Pieces *pieces) {
    size_t at = 0;
    while (limit < 0 || (int64_t)pieces->count < limit) {
        const char *found = memmem(s->string + at, s->size - at, by->string, by->size);
        if (!found) break;
        size_t place = (size_t)(found - s->string);
        pieces->items[pieces->count++] = part(s, at, place);
        at = place + by->size;
    }
    pieces->items[pieces->count++] = part(s, at, s->size);
}

// The last place of `by` in the first `end` bytes; SIZE_MAX: it is not there.
static size_t last_place(const Value *s, const Value *by, size_t end) {
    for (size_t at = end >= by->size ? end - by->size + 1 : 0; at-- > 0;)
        if (!memcmp(s->string + at, by->string, by->size)) return at;
    return SIZE_MAX;
}

static void split_from_end(const Value *s, const Value *by, int64_t limit, Pieces *pieces) {
    size_t end = s->size, place;
    Value *items = pieces->items;
    while ((int64_t)pieces->count < limit && (place = last_place(s, by, end)) != SIZE_MAX) {
        items[pieces->count++] = part(s, place + by->size, end);
        end = place;
    }
    items[pieces->count++] = part(s, 0, end);
    for (size_t i = 0; i < pieces->count / 2; i++) {
        Value swapped = items[i];
        items[i] = items[pieces->count - 1 - i];
        items[pieces->count - 1 - i] = swapped;
    }
}

static Status split_both(Render *r, const Value *self, const Value *args, bool from_end, Value *out) {
    bool blanks = !jinja_given(&args[0]) || args[0].type == JINJA_NONE;
    int64_t limit = -1;
    if (!blanks) TRY(need_string(r, "split", &args[0]));
    if (!blanks && !args[0].size) return jinja_fail(r, "split: an empty separator");
    if (jinja_given(&args[1])) {
        if (args[1].type != JINJA_INTEGER)
            return jinja_fail(r, "split: the largest number of cuts is no integer");
        limit = args[1].integer;
    }
    if (from_end && blanks && limit >= 0)
        return jinja_fail(r, "rsplit at blanks with a limit is not supported");
    Pieces pieces = {.most = self->size + 1};
    TRY(jinja_take(r, pieces.most * sizeof(Value), &pieces.items));
    if (blanks)
        split_blanks(self, limit, &pieces);
    else if (from_end && limit >= 0)
        split_from_end(self, &args[0], limit, &pieces);
    else
        split_at(self, &args[0], limit, &pieces);
    *out = (Value){.type = JINJA_LIST, .size = pieces.count, .items = pieces.items};
    return OK;
}

static Status split(Render *r, const Value *self, const Value *args, Value *out) {
    return split_both(r, self, args, false, out);
}
static Status rsplit(Render *r, const Value *self, const Value *args, Value *out) {
    return split_both(r, self, args, true, out);
}

static Status splitlines(Render *r, const Value *self, const Value *args, Value *out) {
    Value *items = NULL;
    bool keep = jinja_given(&args[0]) && jinja_truth(&args[0]);
    size_t most = 1, line_end;
    for (size_t at = 0; at < self->size; at += line_end) {
        at += jinja_line(self->string + at, self->size - at, &line_end);
        most++;
    }
    TRY(jinja_make_list(r, JINJA_LIST, most, &items, out));
    out->size = 0;
    for (size_t at = 0; at < self->size;) {
        size_t end = at + jinja_line(self->string + at, self->size - at, &line_end);
        items[out->size++] = part(self, at, end + (keep ? line_end : 0));
        at = end + line_end;
    }
    return OK;
}

// ---- searches -----------------------------------------------------------------------------------------------

static bool has_at(const Value *s, const Value *wanted, bool end) {
    if (wanted->size > s->size) return false;
    return !memcmp(s->string + (end ? s->size - wanted->size : 0), wanted->string, wanted->size);
}

static Status has_side(Render *r, const Value *self, const Value *wanted, bool end, Value *out) {
    bool found = false;
    if (wanted->type == JINJA_TUPLE) {
        for (size_t i = 0; i < wanted->size && !found; i++) {
            TRY(need_string(r, "startswith and endswith", &wanted->items[i]));
            found = has_at(self, &wanted->items[i], end);
        }
    } else {
        TRY(need_string(r, "startswith and endswith", wanted));
        found = has_at(self, wanted, end);
    }
    *out = jinja_flag(found);
    return OK;
}

static Status startswith(Render *r, const Value *self, const Value *args, Value *out) {
    return has_side(r, self, args, false, out);
}
static Status endswith(Render *r, const Value *self, const Value *args, Value *out) {
    return has_side(r, self, args, true, out);
}

static Status removeprefix(Render *r, const Value *self, const Value *args, Value *out) {
    TRY(need_string(r, "removeprefix", args));
    *out = has_at(self, args, false) ? part(self, args->size, self->size) : *self;
    return OK;
}
static Status removesuffix(Render *r, const Value *self, const Value *args, Value *out) {
    TRY(need_string(r, "removesuffix", args));
    *out = has_at(self, args, true) ? part(self, 0, self->size - args->size) : *self;
    return OK;
}

// Places are counted in characters.
static Status find(Render *r, const Value *self, const Value *args, Value *out) {
    TRY(need_string(r, "find", args));
    const char *found = memmem(self->string, self->size, args->string, args->size);
    int64_t place = -1;
    Value before = part(self, 0, found ? (size_t)(found - self->string) : 0);
    if (found) TRY(jinja_length(r, &before, &place));
    *out = jinja_integer(place);
    return OK;
}
static Status rfind(Render *r, const Value *self, const Value *args, Value *out) {
    TRY(need_string(r, "rfind", args));
    size_t found = last_place(self, args, self->size);
    int64_t place = -1;
    Value before = part(self, 0, found == SIZE_MAX ? 0 : found);
    if (found != SIZE_MAX) TRY(jinja_length(r, &before, &place));
    *out = jinja_integer(place);
    return OK;
}

static Status count_parts(Render *r, const Value *self, const Value *args, Value *out) {
    int64_t count = 0;
    if (self->type != JINJA_STRING) {
        for (size_t i = 0; i < self->size; i++) count += jinja_equal(&self->items[i], args, 0);
        *out = jinja_integer(count);
        return OK;
    }
    TRY(need_string(r, "count", args));
    if (!args->size) return jinja_fail(r, "count of an empty string");
    const char *at = self->string, *end = at + self->size;
    for (; (at = memmem(at, (size_t)(end - at), args->string, args->size)); at += args->size) count++;
    *out = jinja_integer(count);
    return OK;
}

static Status index_of(Render *r, const Value *self, const Value *args, Value *out) {
    for (size_t i = 0; i < self->size; i++) {
        if (!jinja_equal(&self->items[i], args, 0)) continue;
        *out = jinja_integer((int64_t)i);
        return OK;
    }
    return jinja_fail(r, "index of a value that is not in the list");
}

// ---- by the filters of the same name ------------------------------------------------------------------------

static Status by_filter(Render *r, const char *name, const Value *self, const Value *args, int count,
                        Value *out) {
    JinjaArguments given = {.values = args, .count = count, .positional = count};
    return jinja_filter(r, name, self, &given, out);
}
static Status upper(Render *r, const Value *self, const Value *args, Value *out) {
    return by_filter(r, "upper", self, args, 0, out);
}
static Status lower(Render *r, const Value *self, const Value *args, Value *out) {
    return by_filter(r, "lower", self, args, 0, out);
}
// A word begins behind whatever is no letter; the filter of this name has another rule.
static Status title(Render *r, const Value *self, const Value *args, Value *out) {
    char *copy = NULL;
    TRY(by_filter(r, "lower", self, args, 0, out));
    TRY(jinja_take(r, self->size + 1, &copy));
    for (size_t i = 0; i < self->size; i++) {
        bool begins = i == 0 || !isalpha((unsigned char)out->string[i - 1]);
        copy[i] = (char)(begins ? toupper((unsigned char)out->string[i]) : out->string[i]);
    }
    *out = jinja_string(copy, self->size);
    return OK;
}
static Status capitalize(Render *r, const Value *self, const Value *args, Value *out) {
    return by_filter(r, "capitalize", self, args, 0, out);
}
static Status replace(Render *r, const Value *self, const Value *args, Value *out) {
    return by_filter(r, "replace", self, args, jinja_given(&args[2]) ? 3 : 2, out);
}
static Status join(Render *r, const Value *self, const Value *args, Value *out) {
    return by_filter(r, "join", &args[0], self, 1, out);
}

// ---- kinds of characters ------------------------------------------------------------------------------------

static Status all_of(Render *r, const Value *self, int (*is)(int), Value *out) {
    bool all = self->size > 0;
    for (size_t i = 0; i < self->size; i++) {
        if ((unsigned char)self->string[i] >= 0x80)
            return jinja_fail(r, "the kind of a character outside ASCII is not known here");
        all = all && is((unsigned char)self->string[i]);
    }
    *out = jinja_flag(all);
    return OK;
}
static Status isdigit_(Render *r, const Value *self, const Value *args, Value *out) {
    (void)args;
    return all_of(r, self, isdigit, out);
}
static Status isalpha_(Render *r, const Value *self, const Value *args, Value *out) {
    (void)args;
    return all_of(r, self, isalpha, out);
}
static Status isalnum_(Render *r, const Value *self, const Value *args, Value *out) {
    (void)args;
    return all_of(r, self, isalnum, out);
}
static Status isspace_(Render *r, const Value *self, const Value *args, Value *out) {
    (void)r;
    (void)args;
    *out = jinja_flag(self->size && jinja_leading(self, NULL) == self->size);
    return OK;
}

// ---- of dicts -----------------------------------------------------------------------------------------------

static Status get(Render *r, const Value *self, const Value *args, Value *out) {
    (void)r;
    const Value *found = jinja_find(self, &args[0]);
    *out = found ? *found : jinja_given(&args[1]) ? args[1] : jinja_none();
    return OK;
}

static Status keys(Render *r, const Value *self, const Value *args, Value *out) {
    (void)args;
    return jinja_elements(r, self, out);
}

static Status values(Render *r, const Value *self, const Value *args, Value *out) {
    (void)args;
    Value *items;
    TRY(jinja_make_list(r, JINJA_LIST, self->size, &items, out));
    for (size_t i = 0; i < self->size; i++) items[i] = self->pairs[i].value;
    return OK;
}

static Status items(Render *r, const Value *self, const Value *args, Value *out) {
    return by_filter(r, "items", self, args, 0, out);
}

static Status refused(Render *r, const Value *self, const Value *args, Value *out) {
    (void)args;
    (void)out;
    return jinja_fail(r, "a method that would change a %s: templates may not, as in jinja2's sandbox",
                      jinja_type_name(self));
}

// ---- the table ----------------------------------------------------------------------------------------------

enum { OF_STRING = 1, OF_LIST = 2, OF_DICT = 4 };

static const struct {
    const char *name;
    int of;
    const char *parameters; // see jinja_bind
    Method *call;
} METHODS[] = {
    {"strip", OF_STRING, "|chars", strip},
    {"lstrip", OF_STRING, "|chars", lstrip},
    {"rstrip", OF_STRING, "|chars", rstrip},
    {"split", OF_STRING, "|sep maxsplit", split},
    {"rsplit", OF_STRING, "|sep maxsplit", rsplit},
    {"splitlines", OF_STRING, "|keepends", splitlines},
    {"startswith", OF_STRING, "prefix", startswith},
    {"endswith", OF_STRING, "suffix", endswith},
    {"removeprefix", OF_STRING, "prefix", removeprefix},
    {"removesuffix", OF_STRING, "suffix", removesuffix},
    {"find", OF_STRING, "sub", find},
    {"rfind", OF_STRING, "sub", rfind},
    {"count", OF_STRING | OF_LIST, "sub", count_parts},
    {"index", OF_LIST, "value", index_of},
    {"upper", OF_STRING, "", upper},
    {"lower", OF_STRING, "", lower},
    {"title", OF_STRING, "", title},
    {"capitalize", OF_STRING, "", capitalize},
    {"replace", OF_STRING, "old new|count", replace},
    {"join", OF_STRING, "iterable", join},
    {"isdigit", OF_STRING, "", isdigit_},
    {"isnumeric", OF_STRING, "", isdigit_},
    {"isalpha", OF_STRING, "", isalpha_},
    {"isalnum", OF_STRING, "", isalnum_},
    {"isspace", OF_STRING, "", isspace_},
    {"get", OF_DICT, "key|default", get},
    {"keys", OF_DICT, "", keys},
    {"values", OF_DICT, "", values},
    {"items", OF_DICT, "", items},
    {"append", OF_LIST, "value", refused},
    {"extend", OF_LIST, "value", refused},
    {"insert", OF_LIST, "at value", refused},
    {"pop", OF_LIST | OF_DICT, "|at default", refused},
    {"update", OF_DICT, "|value", refused},
};

static int method_of(const Value *object, const char *name) {
    int kind = object->type == JINJA_STRING                                ? OF_STRING
               : object->type == JINJA_LIST || object->type == JINJA_TUPLE ? OF_LIST
               : object->type == JINJA_DICT                                ? OF_DICT
                                                                           : 0;
    for (size_t i = 0; kind && i < sizeof METHODS / sizeof *METHODS; i++)
        if (METHODS[i].of & kind && !strcmp(name, METHODS[i].name)) return (int)i;
    return -1;
}

bool jinja_has_method(const Value *object, const char *name) { return method_of(object, name) >= 0; }

Status jinja_method(Render *r, const Value *object, const char *name, const JinjaArguments *given,
                    Value *out) {
    enum { MAX_PARAMETERS = 3 };
    int m = method_of(object, name);
    Value args[MAX_PARAMETERS] = {{0}};
    CHECK(m >= 0, "the method %s", name);
    TRY(jinja_bind(r, name, METHODS[m].parameters, given, args));
    TRY(jinja_work(r, object->size));
    return METHODS[m].call(r, object, args, out);
}
