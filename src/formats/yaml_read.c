// Parses YAML, by libyaml, into the tree of JSON. The events are read twice: the first time features that JSON
// lacks are refused and values are counted; the second time one block is filled as in json_read.c.
#include "formats/formats.h"
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_DEPTH = 64, MAX_MEMBERS = 1000 };

typedef struct {
    const char *what, *text;
    size_t size;
    yaml_parser_t parser;
    yaml_event_t event;           // the current one; all zero before the first
    size_t num_values, num_chars; // the most that are needed, counted by the first walk
    Json *values;
    size_t stacked, finished; // values[0, stacked) and values[finished, num_values)
    char *chars;              // the place of the next characters
} Reader;

static Status wrong(const Reader *r, yaml_mark_t mark, const char *why) {
    return fail(ERR_DATA, "%s:%zu: %s", r->what, mark.line + 1, why);
}

static Status no_memory(const Reader *r) { return fail(ERR_OS, "%s: no memory to read it", r->what); }

static Status next_event(Reader *r) {
    yaml_event_delete(&r->event);
    const yaml_parser_t *parser = &r->parser;
    if (yaml_parser_parse(&r->parser, &r->event)) return OK;
    memset(&r->event, 0, sizeof r->event);
    if (parser->error == YAML_MEMORY_ERROR) return no_memory(r);
    yaml_mark_t mark = parser->error == YAML_READER_ERROR ? parser->mark : parser->problem_mark;
    return wrong(r, mark, parser->problem ? parser->problem : "this is not YAML");
}

// ---- the first walk -----------------------------------------------------------------------------

static Status refuse_extras(const Reader *r, const yaml_char_t *anchor, const yaml_char_t *tag) {
    if (anchor) return wrong(r, r->event.start_mark, "anchors have no meaning here; write the value out");
    if (tag) return wrong(r, r->event.start_mark, "tags have no meaning here; quote a value to make it text");
    return OK;
}

static Status measure_event(Reader *r, int *depth, int *documents) {
    const yaml_event_t *event = &r->event;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents > 1) return wrong(r, event->start_mark, "one document is expected, not a second");
        return OK;
    case YAML_ALIAS_EVENT:
        return wrong(r, event->start_mark, "aliases have no meaning here; write the value out");
    case YAML_SCALAR_EVENT:
        r->num_values++;
        r->num_chars += event->data.scalar.length + 1;
        return refuse_extras(r, event->data.scalar.anchor, event->data.scalar.tag);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        r->num_values++;
        if (++*depth > MAX_DEPTH)
            return wrong(r, event->start_mark, "values within values, more than 64 deep");
        if (event->type == YAML_SEQUENCE_START_EVENT)
            return refuse_extras(r, event->data.sequence_start.anchor, event->data.sequence_start.tag);
        return refuse_extras(r, event->data.mapping_start.anchor, event->data.mapping_start.tag);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: --*depth; return OK;
    default: return OK;
    }
}

static Status measure(Reader *r) {
    int depth = 0, documents = 0;
    do {
        TRY(next_event(r));
        TRY(measure_event(r, &depth, &documents));
    } while (r->event.type != YAML_STREAM_END_EVENT);
    return OK;
}

// ---- the second walk ----------------------------------------------------------------------------

static Json *push(Reader *r, JsonType type) {
    CHECK(r->stacked < r->finished, "%s has more values than were counted", r->what);
    Json *value = &r->values[r->stacked++];
    *value = (Json){.type = type, .offset = (int64_t)r->event.start_mark.line + 1};
    return value;
}

// Copies the characters of the current scalar and a NUL.
static const char *copy_scalar(Reader *r, size_t *size) {
    char *chars = r->chars;
    *size = r->event.data.scalar.length;
    memcpy(chars, r->event.data.scalar.value, *size);
    chars[*size] = 0;
    r->chars += *size + 1;
    return chars;
}

static bool skip_digits(const char **at) {
    const char *start = *at;
    while (**at >= '0' && **at <= '9') ++*at;
    return *at > start;
}

// Accepts numbers as JSON writes them. The octal, hexadecimal and base-60 numbers of YAML 1.1 are text here.
static bool is_number(const char *at) {
    if (*at == '-') at++;
    bool leading_zero = at[0] == '0' && at[1] >= '0' && at[1] <= '9';
    if (leading_zero || !skip_digits(&at)) return false;
    if (*at == '.') {
        at++;
        if (!skip_digits(&at)) return false;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        if (!skip_digits(&at)) return false;
    }
    return !*at;
}

static JsonType type_of(const char *plain) {
    if (!*plain || !strcmp(plain, "~") || !strcmp(plain, "null")) return JSON_NULL;
    if (!strcmp(plain, "true")) return JSON_TRUE;
    if (!strcmp(plain, "false")) return JSON_FALSE;
    return is_number(plain) ? JSON_NUMBER : JSON_STRING;
}

static void build_scalar(Reader *r) {
    bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    Json *value = push(r, JSON_STRING);
    size_t size;
    const char *string = copy_scalar(r, &size);
    if (plain) value->type = type_of(string);
    if (value->type < JSON_NUMBER) return;
    value->string = string;
    value->size = size;
}

static Status check_name(const Reader *r, const Json *members, size_t count, const char *key, size_t size) {
    if (count == MAX_MEMBERS) return wrong(r, r->event.start_mark, "a mapping of more than 1000 names");
    for (size_t i = 0; i < count; i++)
        if (members[i].key_size == size && memcmp(members[i].key, key, size) == 0)
            return fail(ERR_DATA, "%s:%zu: a second value for the name \"%.80s\"", r->what,
                        r->event.start_mark.line + 1, key);
    return OK;
}

// Moves the items of `container`, which are the stack above it, to the back.
static void finish(Reader *r, size_t container) {
    Json *value = &r->values[container];
    value->count = r->stacked - container - 1;
    r->finished -= value->count;
    memmove(r->values + r->finished, value + 1, value->count * sizeof *value);
    value->items = r->values + r->finished;
    r->stacked = container + 1;
}

static Status build_value(Reader *r);

static Status build_sequence(Reader *r) {
    size_t container = r->stacked;
    push(r, JSON_ARRAY);
    while (true) {
        TRY(next_event(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        TRY(build_value(r));
    }
    finish(r, container);
    return OK;
}

static Status build_mapping(Reader *r) {
    size_t container = r->stacked, key_size;
    push(r, JSON_OBJECT);
    while (true) {
        TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        if (r->event.type != YAML_SCALAR_EVENT)
            return wrong(r, r->event.start_mark, "a name is expected, not a mapping or a list");
        // Members on the stack are single values: their items have moved to the back.
        size_t member = r->stacked;
        const char *key = copy_scalar(r, &key_size);
        TRY(check_name(r, r->values + container + 1, member - container - 1, key, key_size));
        TRY(next_event(r));
        TRY(build_value(r));
        r->values[member].key = key;
        r->values[member].key_size = key_size;
    }
    finish(r, container);
    return OK;
}

static Status build_value(Reader *r) {
    if (r->event.type == YAML_MAPPING_START_EVENT) return build_mapping(r);
    if (r->event.type == YAML_SEQUENCE_START_EVENT) return build_sequence(r);
    build_scalar(r);
    return OK;
}

static Status build(Reader *r) {
    TRY(next_event(r)); // the start of the stream
    TRY(next_event(r)); // of the document
    if (r->event.type == YAML_STREAM_END_EVENT) {
        push(r, JSON_NULL);
        return OK;
    }
    TRY(next_event(r));
    return build_value(r);
}

// ---- both ---------------------------------------------------------------------------------------

static Status walk(Reader *r, Status (*visit)(Reader *)) {
    if (!yaml_parser_initialize(&r->parser)) return no_memory(r);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)r->text, r->size);
    Status status = visit(r);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    return status;
}

Status yaml_parse(Json **root, const char *text, size_t size, const char *what) {
    Reader r = {.what = what, .text = text, .size = size, .num_values = 1};
    *root = NULL;
    TRY(walk(&r, measure));
    size_t bytes;
    if (__builtin_mul_overflow(r.num_values, sizeof(Json), &bytes) ||
        __builtin_add_overflow(bytes, r.num_chars, &bytes))
        return fail(ERR_DATA, "%s: too large", what);
    r.values = malloc(bytes);
    if (!r.values) return no_memory(&r);
    r.finished = r.num_values;
    r.chars = (char *)(r.values + r.num_values);
    Status status = walk(&r, build);
    if (status == OK)
        *root = r.values;
    else
        free(r.values);
    return status;
}
