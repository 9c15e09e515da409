// Reads a configuration file: YAML with one line per option.
#include "base/file.h"
#include "config/table.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_ITEMS = 1024 };

typedef struct {
    Options *options;
    const char *path;
    yaml_parser_t parser;
    yaml_event_t event; // the current one; all zero before the first
} Reader;

static Status broken(const Reader *reader, yaml_mark_t mark, const char *what) {
    return fail(ERR_CONFIG, "%s:%zu:%zu: %s", reader->path, mark.line + 1, mark.column + 1, what);
}

static Status next_event(Reader *reader) {
    yaml_event_delete(&reader->event);
    yaml_parser_t *parser = &reader->parser;
    if (yaml_parser_parse(parser, &reader->event)) return OK;
    memset(&reader->event, 0, sizeof reader->event);
    yaml_mark_t mark = parser->error == YAML_READER_ERROR ? parser->mark : parser->problem_mark;
    return broken(reader, mark, parser->problem ? parser->problem : "this is not YAML");
}

// Copies the current scalar into the options. Refuses a NUL, which YAML can escape: it would hide the rest of the word.
static Status read_scalar(Reader *reader, const char **word) {
    const char *value = (const char *)reader->event.data.scalar.value;
    if (strlen(value) != reader->event.data.scalar.length)
        return broken(reader, reader->event.start_mark, "the value has a NUL character");
    *word = options_string(reader->options, value);
    return OK;
}

static Status read_key(Reader *reader, const char **key) {
    if (reader->event.type != YAML_SCALAR_EVENT)
        return broken(reader, reader->event.start_mark, "the name of an option is expected");
    TRY(read_scalar(reader, key));
    for (const char *c = *key; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_- ", *c))
            return broken(reader, reader->event.start_mark, "a name has letters, digits, '_' and '-' only");
    return **key ? OK : broken(reader, reader->event.start_mark, "a name is empty");
}

// Reads a value. Refuses YAML's null, which would become the word "null".
static Status read_value(Reader *reader, const char **value) {
    static const char *const nulls[] = {"~", "null", "Null", "NULL"};
    TRY(read_scalar(reader, value));
    bool plain = reader->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    char why[80];
    snprintf(why, sizeof why, "%.8s is no value; leave the option out, or quote the word", *value);
    for (size_t i = 0; plain && i < sizeof nulls / sizeof nulls[0]; i++)
        if (!strcmp(*value, nulls[i])) return broken(reader, reader->event.start_mark, why);
    return OK;
}

static Status read_items(Reader *reader, const char *items[MAX_ITEMS], int *count) {
    for (*count = 0;; (*count)++) {
        TRY(next_event(reader));
        if (reader->event.type == YAML_SEQUENCE_END_EVENT) return OK;
        if (reader->event.type != YAML_SCALAR_EVENT)
            return broken(reader, reader->event.start_mark, "a list holds single values only");
        if (*count == MAX_ITEMS) return broken(reader, reader->event.start_mark, "the list is too long");
        TRY(read_value(reader, &items[*count]));
    }
}

// Refuses a list for a flag, and an empty list for an answer.
static Status check_list(const Reader *reader, const char *key, yaml_mark_t mark, int count) {
    Meaning meaning = meaning_of(reader->options->store->verb, key);
    if (!meaning.option && !meaning.answer) return OK;
    if (meaning_arity(meaning) == NONE) return broken(reader, mark, "true or false is expected, not a list");
    return count || meaning.option ? OK : broken(reader, mark, "the list is empty");
}

static Status apply_value(Reader *reader, const char *key, yaml_mark_t mark) {
    const char *words[MAX_ITEMS];
    int count = 1;
    if (reader->event.type == YAML_SCALAR_EVENT) {
        TRY(read_value(reader, &words[0]));
    } else {
        yaml_mark_t list = reader->event.start_mark;
        TRY(read_items(reader, words, &count));
        TRY(check_list(reader, key, list, count));
    }
    Text where = {0};
    text_add(&where, "%s:%zu:%zu: ", reader->path, mark.line + 1, mark.column + 1);
    Source source = {FROM_FILE, where.data, key, (int)mark.line + 1};
    Status status = name_apply(reader->options, key, words, count, source);
    text_free(&where);
    return status;
}

static bool is_name(const Reader *reader, const char *key) {
    Meaning meaning = meaning_of(reader->options->store->verb, key);
    return meaning.option || meaning.answer;
}

// Reads the mapping whose start is the current event: `option: value`, and at the top also `section: {option: value}`.
static Status read_mapping(Reader *reader, bool in_section) {
    for (;;) {
        TRY(next_event(reader));
        if (reader->event.type == YAML_MAPPING_END_EVENT) return OK;
        yaml_mark_t mark = reader->event.start_mark;
        const char *key = NULL;
        TRY(read_key(reader, &key));
        TRY(next_event(reader));
        if (reader->event.type == YAML_ALIAS_EVENT)
            return broken(reader, mark, "aliases have no meaning here");
        if (reader->event.type != YAML_MAPPING_START_EVENT) {
            TRY(apply_value(reader, key, mark));
            continue;
        }
        if (is_name(reader, key))
            return broken(reader, mark, "an option needs a value, not options of its own");
        if (in_section) return broken(reader, mark, "a section holds options, not sections");
        TRY(read_mapping(reader, true));
    }
}

static Status read_stream(Reader *reader) {
    TRY(next_event(reader)); // the start of the stream
    TRY(next_event(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT) return OK; // nothing but comments
    TRY(next_event(reader));
    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return broken(reader, reader->event.start_mark, "lines of `option: value` are expected");
    TRY(read_mapping(reader, false));
    TRY(next_event(reader)); // the end of the document
    TRY(next_event(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT) return OK;
    return broken(reader, reader->event.start_mark, "one document is expected, and here a second begins");
}

Status yaml_read(Options *options, const char *path) {
    char *data;
    size_t size;
    TRY(file_read(path, MAX_FILE_BYTES, &data, &size));
    Reader reader = {.options = options, .path = path};
    Status status = OK;
    if (!yaml_parser_initialize(&reader.parser)) {
        status = fail(ERR_OS, "%s: no memory to read it", path);
    } else {
        yaml_parser_set_input_string(&reader.parser, (const unsigned char *)data, size);
        status = read_stream(&reader);
        yaml_event_delete(&reader.event);
        yaml_parser_delete(&reader.parser);
    }
    free(data);
    return status;
}
