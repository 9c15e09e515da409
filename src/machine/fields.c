// Reads, checks and prints structs by tables of their fields.
#include "machine/files.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = MAX_CONSTANTS };

// Copies a text of a file into a message: at most 47 characters, without control characters.
static void show(char out[48], const char *string) {
    size_t size = 0;
    for (; string[size] && size < 47; size++)
        out[size] = string[size] >= ' ' && string[size] <= '~' ? string[size] : '?';
    out[size] = 0;
}

static void show_value(char out[48], const Json *value) {
    static const char *const WORDS[] = {[JSON_NULL] = "nothing",
                                        [JSON_FALSE] = "false",
                                        [JSON_TRUE] = "true",
                                        [JSON_ARRAY] = "a list",
                                        [JSON_OBJECT] = "a mapping"};
    bool has_text = value->type == JSON_NUMBER || value->type == JSON_STRING;
    show(out, has_text ? value->string : WORDS[value->type]);
}

Status value_wrong(const char *file, const Json *value, const char *expected) {
    char key[48], shown[48];
    show(key, value->key ? value->key : "item of the list");
    show_value(shown, value);
    return fail(ERR_DATA, "%s:%lld: %s: %s: %s is expected", file, (long long)value->offset, key, shown,
                expected);
}

Status expect_type(const char *file, const Json *value, JsonType type, const char *expected) {
    return value->type == type ? OK : value_wrong(file, value, expected);
}

// ---- one value ----------------------------------------------------------------------------------

static Status read_text(const char *file, const Json *value, const YamlField *field, char *out) {
    char expected[64];
    const char *text = json_string(value);
    bool valid = text && *text && value->size < field->size;
    for (const char *c = text; valid && *c; c++) valid = *c >= ' ' && *c <= '~';
    snprintf(expected, sizeof expected, "a text of 1 to %zu printable ASCII characters", field->size - 1);
    if (!valid) return value_wrong(file, value, expected);
    memcpy(out, text, value->size + 1);
    return OK;
}

static Status read_number(const char *file, const Json *value, const YamlField *field, double *out) {
    double number;
    char expected[96];
    bool is_count = field->type == FIELD_COUNT, valid = json_double(value, &number);
    valid = valid && number >= field->lowest && number <= field->highest;
    snprintf(expected, sizeof expected, "a %snumber from %.7g to %.7g%s%s", is_count ? "whole " : "",
             field->lowest, field->highest, field->unit ? " " : "", field->unit ? field->unit : "");
    if (!valid || (is_count && number != (int)number)) return value_wrong(file, value, expected);
    *out = number;
    return OK;
}

Status field_read(const char *file, const Json *value, const YamlField *field, void *out) {
    char *member = (char *)out + field->offset;
    double number;
    switch (field->type) {
    case FIELD_TEXT: return read_text(file, value, field, member);
    case FIELD_NUMBER: return read_number(file, value, field, (double *)(void *)member);
    case FIELD_COUNT:
        TRY(read_number(file, value, field, &number));
        *(int *)(void *)member = (int)number;
        return OK;
    case FIELD_FLAG:
        return json_flag(value, (bool *)(void *)member) ? OK : value_wrong(file, value, "true or false");
    case FIELD_PART: return OK;
    }
    CHECK(false, "field type %d", (int)field->type);
}

// ---- a mapping ----------------------------------------------------------------------------------

static Status unknown_key(const char *file, const Json *member, const YamlField *fields, int count) {
    const char *keys[MAX_FIELDS] = {0};
    char key[48];
    Text right = {0};
    show(key, member->key);
    for (int i = 0; i < count; i++) keys[i] = fields[i].key;
    const char *nearest = text_nearest(key, keys, count);
    if (nearest) text_add(&right, "did you mean %s?", nearest);
    for (int i = 0; !nearest && i < count; i++) text_add(&right, "%s%s", i ? ", " : "allowed: ", keys[i]);
    Status status = fail(ERR_DATA, "%s:%lld: unknown key %s; %s", file, (long long)member->offset, key,
                         text_string(&right));
    text_free(&right);
    return status;
}

Status field_require(const char *file, const Json *mapping, const char *key) {
    if (json_member(mapping, key)) return OK;
    return fail(ERR_DATA, "%s:%lld: the key %s is missing%s%s", file, (long long)mapping->offset, key,
                mapping->key ? " under " : "", mapping->key ? mapping->key : "");
}

Status fields_read(const char *file, const Json *mapping, const YamlField *fields, int count, void *out) {
    CHECK(count <= MAX_FIELDS, "%d fields", count);
    TRY(expect_type(file, mapping, JSON_OBJECT, "a mapping"));
    for (size_t i = 0; i < mapping->count; i++) {
        const Json *member = &mapping->items[i];
        const YamlField *field = fields;
        while (field < fields + count && strcmp(field->key, member->key) != 0) field++;
        if (field == fields + count) return unknown_key(file, member, fields, count);
        TRY(field_read(file, member, field, out));
    }
    for (int i = 0; i < count; i++)
        if (fields[i].required) TRY(field_require(file, mapping, fields[i].key));
    return OK;
}

Status aliases_read(const char *file, const Json *list, Aliases *out) {
    static const YamlField NAME = {NULL, FIELD_TEXT, true, 0, MAX_NAME, 0, 0, NULL};
    if (!list) return OK;
    if (list->type != JSON_ARRAY || list->count > MAX_ALIASES)
        return value_wrong(file, list, "a list of at most 4 names");
    for (size_t i = 0; i < list->count; i++) TRY(field_read(file, &list->items[i], &NAME, out->names[i]));
    out->count = (int)list->count;
    return OK;
}

// ---- writing ------------------------------------------------------------------------------------

static bool is_printed(const YamlField *field, const void *from) {
    const char *member = (const char *)from + field->offset;
    if (field->type == FIELD_PART) return false;
    for (size_t i = 0; i < field->size; i++)
        if (member[i]) return true;
    return field->required;
}

static void print_value(const YamlField *field, const void *from, Text *out) {
    const char *member = (const char *)from + field->offset;
    text_add(out, "%s: ", field->key);
    switch (field->type) {
    case FIELD_TEXT: json_add_string(out, member, strlen(member)); break;
    case FIELD_NUMBER: json_add_double(out, *(const double *)(const void *)member); break;
    case FIELD_COUNT: text_add(out, "%d", *(const int *)(const void *)member); break;
    case FIELD_FLAG: text_add(out, "%s", *(const bool *)member ? "true" : "false"); break;
    case FIELD_PART: break;
    }
}

void fields_print(const YamlField *fields, int count, const void *from, const char *indent, Text *out) {
    for (int i = 0; i < count; i++) {
        if (!is_printed(&fields[i], from)) continue;
        text_add(out, "%s", indent);
        print_value(&fields[i], from, out);
        text_add(out, "\n");
    }
}

void fields_print_inline(const YamlField *fields, int count, const void *from, Text *out) {
    const char *separator = "";
    for (int i = 0; i < count; i++) {
        if (!is_printed(&fields[i], from)) continue;
        text_add(out, "%s", separator);
        print_value(&fields[i], from, out);
        separator = ", ";
    }
}

void aliases_print(const Aliases *aliases, Text *out) {
    for (int i = 0; i < aliases->count; i++) {
        text_add(out, i ? ", " : "aliases: [");
        json_add_string(out, aliases->names[i], strlen(aliases->names[i]));
    }
    if (aliases->count) text_add(out, "]\n");
}
