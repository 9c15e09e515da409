// Operators of templates: arithmetic, comparisons, members, elements and slices, as Python has them.
#include "template/internal.h"
#include <math.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaValue Value;

// ---- arithmetic ---------------------------------------------------------------------------------------------

static bool is_whole(const Value *v) { return v->type == JINJA_INTEGER || v->type == JINJA_BOOL; }
static bool is_number(const Value *v) { return is_whole(v) || v->type == JINJA_FLOAT; }
static int64_t whole(const Value *v) { return v->type == JINJA_BOOL ? v->flag : v->integer; }
static double real(const Value *v) { return v->type == JINJA_FLOAT ? v->real : (double)whole(v); }
static bool is_list(const Value *v) { return v->type == JINJA_LIST || v->type == JINJA_TUPLE; }

static const char *const SIGNS[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static Status cannot(Render *r, JinjaSign sign, const Value *a, const Value *b) {
    if (a->type == JINJA_UNDEFINED) return jinja_undefined(r, a);
    if (b->type == JINJA_UNDEFINED) return jinja_undefined(r, b);
    bool parts = sign == JINJA_ADD &&
                 ((is_list(a) && b->type == JINJA_STRING) || (a->type == JINJA_STRING && is_list(b)));
    return jinja_fail(
        r, "'%s' between a value of type %s and one of type %s%s", SIGNS[sign], jinja_type_name(a),
        jinja_type_name(b),
        parts ? ": where this is the content of a message, this template takes strings alone, not "
                "lists of parts"
              : "");
}

static Status too_large(Render *r) { return jinja_fail(r, "a number of more than 64 bits"); }

static Status power(Render *r, int64_t base, int64_t exponent, Value *out) {
    int64_t result = 1;
    for (; exponent > 0; exponent--) {
        TRY(jinja_step(r));
        if (__builtin_mul_overflow(result, base, &result)) return too_large(r);
    }
    *out = jinja_integer(result);
    return OK;
}

// Quotients are rounded down, and a remainder has the sign of the divisor.
static Status whole_binary(Render *r, JinjaSign sign, int64_t a, int64_t b, Value *out) {
    int64_t result = 0;
    bool over = false, divides = sign == JINJA_FLOOR_DIVIDE || sign == JINJA_MODULO;
    if (divides && !b) return jinja_fail(r, "a division by zero");
    if (divides && b == -1) {
        over = __builtin_sub_overflow((int64_t)0, a, &result);
        *out = jinja_integer(sign == JINJA_MODULO ? 0 : result);
        return over && sign != JINJA_MODULO ? too_large(r) : OK;
    }
    switch (sign) {
    case JINJA_ADD: over = __builtin_add_overflow(a, b, &result); break;
    case JINJA_SUBTRACT: over = __builtin_sub_overflow(a, b, &result); break;
    case JINJA_MULTIPLY: over = __builtin_mul_overflow(a, b, &result); break;
    case JINJA_FLOOR_DIVIDE: result = a / b - (a % b && (a % b < 0) != (b < 0)); break;
    case JINJA_MODULO: result = a % b + (a % b && (a % b < 0) != (b < 0) ? b : 0); break;
    default: return power(r, a, b, out);
    }
    *out = jinja_integer(result);
    return over ? too_large(r) : OK;
}

static Status real_binary(Render *r, JinjaSign sign, double a, double b, Value *out) {
    *out = (Value){.type = JINJA_FLOAT};
    if (b == 0 && (sign == JINJA_DIVIDE || sign == JINJA_FLOOR_DIVIDE || sign == JINJA_MODULO))
        return jinja_fail(r, "a division by zero");
    switch (sign) {
    case JINJA_ADD: out->real = a + b; break;
    case JINJA_SUBTRACT: out->real = a - b; break;
    case JINJA_MULTIPLY: out->real = a * b; break;
    case JINJA_DIVIDE: out->real = a / b; break;
    case JINJA_FLOOR_DIVIDE: out->real = floor(a / b); break;
    case JINJA_MODULO: out->real = a - b * floor(a / b); break;
    default: out->real = pow(a, b);
    }
    return OK;
}

static Status join_strings(Render *r, const Value *a, const Value *b, Value *out) {
    char *both;
    TRY(jinja_take(r, a->size + b->size + 1, &both));
    if (a->size) memcpy(both, a->string, a->size);
    if (b->size) memcpy(both + a->size, b->string, b->size);
    *out = jinja_string(both, a->size + b->size);
    return OK;
}

static Status join_lists(Render *r, const Value *a, const Value *b, Value *out) {
    Value *items;
    TRY(jinja_make_list(r, a->type, a->size + b->size, &items, out));
    if (a->size) memcpy(items, a->items, a->size * sizeof *items);
    if (b->size) memcpy(items + a->size, b->items, b->size * sizeof *items);
    return OK;
}

static Status repeat(Render *r, const Value *value, int64_t times, Value *out) {
    bool string = value->type == JINJA_STRING;
    size_t element = string ? 1 : sizeof(Value), count = times > 0 ? (size_t)times : 0, bytes;
    char *block;
    if (__builtin_mul_overflow(value->size, element, &bytes) || __builtin_mul_overflow(bytes, count, &bytes))
        bytes = SIZE_MAX / 2;
    TRY(jinja_take(r, bytes + 1, &block));
    const void *from = string ? (const void *)value->string : (const void *)value->items;
    for (size_t i = 0; i < count && value->size; i++)
        memcpy(block + i * value->size * element, from, value->size * element);
    *out = *value;
    out->size = value->size * count;
    if (string)
        out->string = block;
    else
        out->items = (const Value *)(const void *)block;
    return OK;
}

Status jinja_binary(Render *r, JinjaSign sign, const Value *a, const Value *b, Value *out) {
    if (is_whole(a) && is_whole(b) && sign != JINJA_DIVIDE && !(sign == JINJA_POWER && whole(b) < 0))
        return whole_binary(r, sign, whole(a), whole(b), out);
    if (is_number(a) && is_number(b)) return real_binary(r, sign, real(a), real(b), out);
    if (sign == JINJA_ADD && a->type == JINJA_STRING && b->type == JINJA_STRING)
        return join_strings(r, a, b, out);
    if (sign == JINJA_ADD && is_list(a) && a->type == b->type) return join_lists(r, a, b, out);
    if (sign == JINJA_MULTIPLY && (a->type == JINJA_STRING || is_list(a)) && is_whole(b))
        return repeat(r, a, whole(b), out);
    if (sign == JINJA_MULTIPLY && (b->type == JINJA_STRING || is_list(b)) && is_whole(a))
        return repeat(r, b, whole(a), out);
    if (sign == JINJA_MODULO && a->type == JINJA_STRING)
        return jinja_fail(r, "formatting by %% is not supported: write the parts with ~");
    return cannot(r, sign, a, b);
}

// ---- comparisons --------------------------------------------------------------------------------------------

static Status contains(Render *r, const Value *value, const Value *in, bool *out) {
    *out = false;
    TRY(jinja_work(r, in->type == JINJA_STRING ? in->size : in->size * sizeof(Value)));
    if (in->type == JINJA_UNDEFINED) return OK;
    if (in->type == JINJA_STRING) {
        if (value->type != JINJA_STRING) return cannot(r, JINJA_IN, value, in);
        *out = memmem(in->string, in->size, value->string, value->size) != NULL;
        return OK;
    }
    if (in->type == JINJA_DICT) {
        *out = jinja_find(in, value) != NULL;
        return OK;
    }
    if (!is_list(in)) return jinja_fail(r, "'in' a value of type %s", jinja_type_name(in));
    for (size_t i = 0; i < in->size && !*out; i++) *out = jinja_equal(&in->items[i], value, 0);
    return OK;
}

static Status order(Render *r, JinjaSign sign, const Value *a, const Value *b, int *out) {
    if (is_whole(a) && is_whole(b)) {
        *out = (whole(a) > whole(b)) - (whole(a) < whole(b));
    } else if (is_number(a) && is_number(b)) {
        *out = (real(a) > real(b)) - (real(a) < real(b));
    } else if (a->type == JINJA_STRING && b->type == JINJA_STRING) {
        size_t common = a->size < b->size ? a->size : b->size;
        int first = common ? memcmp(a->string, b->string, common) : 0;
        *out = first ? first : (a->size > b->size) - (a->size < b->size);
    } else {
        return cannot(r, sign, a, b);
    }
    return OK;
}

Status jinja_compare(Render *r, JinjaSign sign, const Value *a, const Value *b, bool *out) {
    int sides = 0;
    if (sign == JINJA_EQUAL || sign == JINJA_UNEQUAL) {
        if (a->type == b->type) TRY(jinja_work(r, a->size));
        *out = jinja_equal(a, b, 0) == (sign == JINJA_EQUAL);
        return OK;
    }
    if (sign == JINJA_IN || sign == JINJA_NOT_IN) {
        TRY(contains(r, a, b, out));
        *out = *out == (sign == JINJA_IN);
        return OK;
    }
    TRY(order(r, sign, a, b, &sides));
    *out = sign == JINJA_LESS         ? sides < 0
           : sign == JINJA_LESS_EQUAL ? sides <= 0
           : sign == JINJA_GREATER    ? sides > 0
                                      : sides >= 0;
    return OK;
}

// ---- members and elements -----------------------------------------------------------------------------------

static Status lacks(Render *r, const Value *object, const char *name, size_t size, Value *out) {
    Value *copy;
    TRY(jinja_take(r, sizeof *copy, &copy));
    *copy = *object;
    char *spelled;
    TRY(jinja_take(r, size + 1, &spelled));
    memcpy(spelled, name, size);
    *out = (Value){.type = JINJA_UNDEFINED, .string = spelled, .object = copy};
    return OK;
}

static bool loop_member(const JinjaLoop *loop, const char *name, Value *out) {
    int64_t at = (int64_t)loop->at, count = (int64_t)loop->count;
    const struct {
        const char *name;
        int64_t value;
    } NUMBERS[] = {{"index", at + 1},
                   {"index0", at},
                   {"revindex", count - at},
                   {"revindex0", count - at - 1},
                   {"length", count},
                   {"depth", 1},
                   {"depth0", 0}};
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        *out = jinja_integer(NUMBERS[i].value);
        if (!strcmp(name, NUMBERS[i].name)) return true;
    }
    bool first = !strcmp(name, "first"), next = !strcmp(name, "nextitem");
    if (first || !strcmp(name, "last")) {
        *out = jinja_flag(first ? at == 0 : at + 1 == count);
        return true;
    }
    if (!next && strcmp(name, "previtem") != 0) return false;
    int64_t beside = next ? at + 1 : at - 1;
    *out = (Value){.type = JINJA_UNDEFINED, .string = next ? "loop.nextitem" : "loop.previtem"};
    if (beside >= 0 && beside < count) *out = loop->items[beside];
    return true;
}

// A member that is a method, a part of a loop or of a namespace. Sets *found.
static Status special_member(Render *r, const Value *object, const char *name, bool *found, Value *out) {
    *found = true;
    if (object->type == JINJA_LOOP && loop_member(object->loop, name, out)) return OK;
    const Value *member = object->type == JINJA_NAMESPACE ? jinja_lookup(object->space, name) : NULL;
    if (member) {
        *out = *member;
        return OK;
    }
    *found = jinja_has_method(object, name);
    if (!*found) return OK;
    Value *copy;
    TRY(jinja_take(r, sizeof *copy, &copy));
    *copy = *object;
    *out = (Value){.type = JINJA_METHOD, .string = name, .object = copy};
    return OK;
}

Status jinja_attribute(Render *r, const Value *object, const char *name, Value *out) {
    bool found;
    if (object->type == JINJA_UNDEFINED) return jinja_undefined(r, object);
    if (object->type == JINJA_DICT) TRY(jinja_work(r, object->size * sizeof(Value)));
    TRY(special_member(r, object, name, &found, out));
    if (found) return OK;
    Value key = jinja_string(name, strlen(name));
    const Value *member = object->type == JINJA_DICT ? jinja_find(object, &key) : NULL;
    if (!member) return lacks(r, object, name, strlen(name), out);
    *out = *member;
    return OK;
}

static Status element(Render *r, const Value *object, int64_t at, Value *out) {
    Value list;
    TRY(jinja_elements(r, object, &list));
    if (at < 0) at += (int64_t)list.size;
    if (at < 0 || at >= (int64_t)list.size) return lacks(r, object, "element", 7, out);
    *out = list.items[at];
    return OK;
}

Status jinja_item(Render *r, const Value *object, const Value *key, Value *out) {
    if (object->type == JINJA_UNDEFINED) return jinja_undefined(r, object);
    if (object->type == JINJA_DICT) {
        TRY(jinja_work(r, object->size * sizeof(Value)));
        const Value *found = jinja_find(object, key);
        if (found) {
            *out = *found;
            return OK;
        }
    } else if (is_whole(key) && (is_list(object) || object->type == JINJA_STRING)) {
        return element(r, object, whole(key), out);
    }
    if (key->type != JINJA_STRING) return lacks(r, object, "element", 7, out);
    char *name;
    bool found;
    TRY(jinja_take(r, key->size + 1, &name));
    if (key->size) memcpy(name, key->string, key->size);
    TRY(special_member(r, object, name, &found, out));
    return found ? OK : lacks(r, object, key->string, key->size, out);
}

// ---- slices -------------------------------------------------------------------------------------------------

static Status bound(Render *r, const Value *value, int64_t unset, int64_t *out) {
    *out = unset;
    if (value->type == JINJA_NONE) return OK;
    if (!is_whole(value)) return jinja_fail(r, "a slice by a value of type %s", jinja_type_name(value));
    *out = whole(value);
    return OK;
}

static int64_t clamp(int64_t at, int64_t low, int64_t high) { return at < low ? low : at > high ? high : at; }

// Counts from the end where it is negative, and keeps within the list.
static int64_t place(int64_t at, int64_t size, int64_t step) {
    if (at < 0 && at >= -size) at += size;
    return step > 0 ? clamp(at, 0, size) : clamp(at, -1, size - 1);
}

static Status join_characters(Render *r, const Value *list, Value *out) {
    Text text = {0};
    for (size_t i = 0; i < list->size; i++) text_add_bytes(&text, list->items[i].string, list->items[i].size);
    Status status = jinja_make_string(r, &text, out);
    text_free(&text);
    return status;
}

Status jinja_slice(Render *r, const Value *object, const Value bounds[3], Value *out) {
    Value list, part, *items;
    int64_t step, start, stop, count = 0;
    if (object->type == JINJA_UNDEFINED) return jinja_undefined(r, object);
    if (!is_list(object) && object->type != JINJA_STRING)
        return jinja_fail(r, "a slice of a value of type %s", jinja_type_name(object));
    TRY(jinja_elements(r, object, &list));
    int64_t size = (int64_t)list.size;
    TRY(bound(r, &bounds[2], 1, &step));
    if (!step) return jinja_fail(r, "a slice in steps of 0");
    TRY(bound(r, &bounds[0], step > 0 ? 0 : size - 1, &start));
    TRY(bound(r, &bounds[1], step > 0 ? size : -size - 1, &stop));
    start = place(start, size, step);
    stop = place(stop, size, step);
    step = clamp(step, -size - 1, size + 1);
    TRY(jinja_make_list(r, object->type == JINJA_STRING ? JINJA_LIST : object->type, (size_t)size, &items,
                        &part));
    for (int64_t at = start; step > 0 ? at < stop : at > stop; at += step) items[count++] = list.items[at];
    part.size = (size_t)count;
    *out = part;
    return object->type == JINJA_STRING ? join_characters(r, &part, out) : OK;
}
