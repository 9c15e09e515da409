// Parses JSON into one block of memory: values, then characters. A first pass counts the values that the text can
// have. Values whose array or object is still open are a stack at the front of the block; when it closes, its items
// move together to the back. A value is at the front or at the back, so the two never meet; the root stays in front.
#include "formats/formats.h"
#include "formats/utf8.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, FEW_MEMBERS = 8 };

typedef struct {
    const char *what, *text, *at, *end;
    Json *values;
    size_t stacked, finished; // values[0, stacked) and values[finished, capacity)
    char *chars;              // the place of the next characters
} Parser;

static Status parse_value(Parser *p, int depth);

static Status wrong(const Parser *p, const char *at, const char *why) {
    return fail(ERR_DATA, "%s: byte %lld: %s", p->what, (long long)(at - p->text), why);
}

static void skip_space(Parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t')) p->at++;
}

static char next(const Parser *p) { return p->at < p->end ? *p->at : 0; }

static Json *push(Parser *p, JsonType type) {
    CHECK(p->stacked < p->finished, "%s has more values than were counted", p->what);
    Json *value = &p->values[p->stacked++];
    *value = (Json){.type = type, .offset = p->at - p->text};
    return value;
}

// ---- strings ------------------------------------------------------------------------------------

static bool read_hex4(Parser *p, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        char c = next(p);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

static void put_utf8(Parser *p, uint32_t code) {
    if (code < 0x80) {
        *p->chars++ = (char)code;
        return;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t FIRST[] = {0, 0xc0, 0xe0, 0xf0};
    *p->chars++ = (char)(FIRST[more] | code >> 6 * more);
    while (more--) *p->chars++ = (char)(0x80 | (code >> 6 * more & 0x3f));
}

// Reads the code after \u, or a surrogate and, after another \u, its other half.
static Status read_code(Parser *p) {
    const char *start = p->at - 2;
    uint32_t code, low;
    if (!read_hex4(p, &code)) return wrong(p, p->at, "four hexadecimal digits are expected");
    if (code < 0xd800 || code > 0xdfff) {
        put_utf8(p, code);
        return OK;
    }
    if (code > 0xdbff || p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
        return wrong(p, start, "half of a surrogate pair");
    p->at += 2;
    if (!read_hex4(p, &low)) return wrong(p, p->at, "four hexadecimal digits are expected");
    if (low < 0xdc00 || low > 0xdfff) return wrong(p, start, "half of a surrogate pair");
    put_utf8(p, 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00));
    return OK;
}

static Status read_escape(Parser *p) {
    static const char NAMES[] = "\"\\/bfnrt", BYTES[] = "\"\\/\b\f\n\r\t";
    p->at++;
    if (next(p) == 'u') {
        p->at++;
        return read_code(p);
    }
    const char *name = next(p) ? strchr(NAMES, *p->at) : NULL;
    if (!name) return wrong(p, p->at - 1, "no such escape in a string");
    *p->chars++ = BYTES[name - NAMES];
    p->at++;
    return OK;
}

// Copies the characters up to the next escape or quote.
static void copy_plain(Parser *p) {
    const char *start = p->at;
    while (p->at < p->end) {
        unsigned char c = (unsigned char)*p->at;
        if (c < ' ' || c == '"' || c == '\\') break;
        size_t length = utf8_length(p->at, (size_t)(p->end - p->at));
        if (!length) break;
        p->at += length;
    }
    memcpy(p->chars, start, (size_t)(p->at - start));
    p->chars += p->at - start;
}

// Reads a string at its opening quote; its characters are NUL-terminated.
static Status read_string(Parser *p, const char **string, size_t *size) {
    const char *start = p->at++, *chars = p->chars;
    while (true) {
        copy_plain(p);
        if (p->at == p->end) return wrong(p, start, "a string without end");
        if (*p->at == '"') break;
        if (*p->at == '\\')
            TRY(read_escape(p));
        else
            return wrong(p, p->at,
                         (unsigned char)*p->at < ' ' ? "a control character in a string"
                                                     : "invalid UTF-8 in a string");
    }
    p->at++;
    *string = chars;
    *size = (size_t)(p->chars - chars);
    *p->chars++ = 0;
    return OK;
}

// ---- numbers and words --------------------------------------------------------------------------

static bool skip_digits(Parser *p) {
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    return p->at > start;
}

static Status parse_number(Parser *p) {
    Json *value = push(p, JSON_NUMBER);
    const char *start = p->at;
    if (*p->at == '-') p->at++;
    bool valid;
    if (next(p) == '0')
        valid = true, p->at++;
    else
        valid = skip_digits(p);
    if (valid && next(p) == '.') p->at++, valid = skip_digits(p);
    if (valid && (next(p) == 'e' || next(p) == 'E')) {
        p->at++;
        if (next(p) == '+' || next(p) == '-') p->at++;
        valid = skip_digits(p);
    }
    if (!valid) return wrong(p, p->at, "a digit is expected");
    value->string = p->chars;
    value->size = (size_t)(p->at - start);
    memcpy(p->chars, start, value->size);
    p->chars += value->size;
    *p->chars++ = 0;
    return OK;
}

static Status parse_word(Parser *p, const char *word, JsonType type) {
    size_t size = strlen(word);
    if ((size_t)(p->end - p->at) < size || memcmp(p->at, word, size) != 0)
        return wrong(p, p->at, "a value is expected");
    push(p, type);
    p->at += size;
    return OK;
}

// ---- arrays and objects -------------------------------------------------------------------------

// Any order in which equal names are neighbours.
static int compare_keys(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    if (x->key_size != y->key_size) return x->key_size < y->key_size ? -1 : 1;
    return memcmp(x->key, y->key, x->key_size);
}

static Status named_twice(const Parser *p, const Json *a, const Json *b) {
    const Json *second = a->offset > b->offset ? a : b;
    return fail(ERR_DATA, "%s: byte %lld: a second value for the name \"%.80s\"", p->what,
                (long long)second->offset, second->key);
}

static Status check_many_names(const Parser *p, const Json *members, size_t count) {
    const Json **sorted = malloc(count * sizeof *sorted);
    if (!sorted) return fail(ERR_OS, "%s: no memory for %zu names", p->what, count);
    for (size_t i = 0; i < count; i++) sorted[i] = &members[i];
    qsort(sorted, count, sizeof *sorted, compare_keys);
    Status status = OK;
    for (size_t i = 1; status == OK && i < count; i++)
        if (compare_keys(&sorted[i - 1], &sorted[i]) == 0) status = named_twice(p, sorted[i - 1], sorted[i]);
    free(sorted);
    return status;
}

static Status check_names(const Parser *p, const Json *members, size_t count) {
    if (count > FEW_MEMBERS) return check_many_names(p, members, count);
    for (size_t i = 1; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (compare_keys(&(const Json *){&members[j]}, &(const Json *){&members[i]}) == 0)
                return named_twice(p, &members[j], &members[i]);
    return OK;
}

// Moves the items of `container`, which are the stack above it, to the back.
static void finish(Parser *p, size_t container) {
    Json *value = &p->values[container];
    value->count = p->stacked - container - 1;
    p->finished -= value->count;
    memmove(p->values + p->finished, value + 1, value->count * sizeof *value);
    value->items = p->values + p->finished;
    p->stacked = container + 1;
}

static Status parse_member(Parser *p, int depth) {
    const char *key;
    size_t key_size, member = p->stacked;
    if (next(p) != '"') return wrong(p, p->at, "a name in quotes is expected");
    TRY(read_string(p, &key, &key_size));
    skip_space(p);
    if (next(p) != ':') return wrong(p, p->at, "':' is expected");
    p->at++;
    skip_space(p);
    TRY(parse_value(p, depth));
    p->values[member].key = key;
    p->values[member].key_size = key_size;
    return OK;
}

static Status parse_container(Parser *p, bool is_object, int depth) {
    if (depth > MAX_DEPTH) return wrong(p, p->at, "values within values, more than 64 deep");
    size_t container = p->stacked;
    char end = is_object ? '}' : ']';
    push(p, is_object ? JSON_OBJECT : JSON_ARRAY);
    p->at++;
    skip_space(p);
    bool more = next(p) != end;
    while (more) {
        TRY(is_object ? parse_member(p, depth) : parse_value(p, depth));
        skip_space(p);
        more = next(p) == ',';
        if (!more) break;
        p->at++;
        skip_space(p);
    }
    if (next(p) != end)
        return wrong(p, p->at, is_object ? "',' or '}' is expected" : "',' or ']' is expected");
    p->at++;
    finish(p, container);
    const Json *value = &p->values[container];
    return is_object ? check_names(p, value->items, value->count) : OK;
}

static Status parse_value(Parser *p, int depth) {
    switch (next(p)) {
    case '{': return parse_container(p, true, depth + 1);
    case '[': return parse_container(p, false, depth + 1);
    case '"': {
        Json *value = push(p, JSON_STRING);
        return read_string(p, &value->string, &value->size);
    }
    case 'n': return parse_word(p, "null", JSON_NULL);
    case 't': return parse_word(p, "true", JSON_TRUE);
    case 'f': return parse_word(p, "false", JSON_FALSE);
    default: break;
    }
    if (next(p) == '-' || (next(p) >= '0' && next(p) <= '9')) return parse_number(p);
    return wrong(p, p->at, "a value is expected");
}

// An array or object has at most one item more than commas.
static size_t count_values(const char *text, size_t size) {
    size_t count = 1;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '"') quoted = !quoted;
        if (quoted)
            i += c == '\\';
        else
            count += c == ',' || c == '[' || c == '{';
    }
    return count;
}

Status json_parse(Json **root, const char *text, size_t size, const char *what) {
    size_t capacity = count_values(text, size), bytes;
    *root = NULL;
    // Unescaped strings and numbers, each with a NUL, need at most one byte more than the text.
    if (__builtin_mul_overflow(capacity, sizeof(Json), &bytes) ||
        __builtin_add_overflow(bytes, size, &bytes) || __builtin_add_overflow(bytes, 1, &bytes))
        return fail(ERR_DATA, "%s: too large", what);
    Json *values = malloc(bytes);
    if (!values) return fail(ERR_OS, "%s: no memory for its %zu values", what, capacity);
    Parser p = {what, text, text, text + size, values, 0, capacity, (char *)(values + capacity)};
    skip_space(&p);
    Status status = parse_value(&p, 0);
    skip_space(&p);
    if (status == OK && p.at < p.end) status = wrong(&p, p.at, "more text behind the end of the value");
    if (status != OK)
        free(values);
    else
        *root = values;
    return status;
}

void json_free(Json *root) { free(root); }

// ---- access -------------------------------------------------------------------------------------

const Json *json_member(const Json *object, const char *name) {
    if (!object || object->type != JSON_OBJECT) return NULL;
    size_t size = strlen(name);
    for (size_t i = 0; i < object->count; i++)
        if (object->items[i].key_size == size && memcmp(object->items[i].key, name, size) == 0)
            return &object->items[i];
    return NULL;
}

bool json_int(const Json *value, int64_t *out) {
    if (!value || value->type != JSON_NUMBER) return false;
    char *end;
    errno = 0;
    long long n = strtoll(value->string, &end, 10);
    if (errno || *end) return false;
    *out = n;
    return true;
}

bool json_double(const Json *value, double *out) {
    if (!value || value->type != JSON_NUMBER) return false;
    double x = strtod(value->string, NULL);
    if (!isfinite(x)) return false;
    *out = x;
    return true;
}

bool json_flag(const Json *value, bool *out) {
    if (!value || (value->type != JSON_TRUE && value->type != JSON_FALSE)) return false;
    *out = value->type == JSON_TRUE;
    return true;
}

const char *json_string(const Json *value) {
    if (!value || value->type != JSON_STRING || strlen(value->string) != value->size) return NULL;
    return value->string;
}
