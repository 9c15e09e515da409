// A YAML text. Law: what is accepted is, written as JSON, what json_parse reads as the same tree.
#include "formats/formats.h"
#include "fuzz.h"
#include <string.h>

static void add_value(const Json *value, Text *out) {
    static const char *const WORDS[] = {"null", "false", "true"};
    CHECK(value->offset > 0, "line %lld", (long long)value->offset);
    if (value->type <= JSON_TRUE) text_add(out, "%s", WORDS[value->type]);
    if (value->type == JSON_NUMBER) text_add_bytes(out, value->string, value->size);
    if (value->type == JSON_STRING) json_add_string(out, value->string, value->size);
    if (value->type < JSON_ARRAY) return;
    text_add(out, value->type == JSON_ARRAY ? "[" : "{");
    for (size_t i = 0; i < value->count; i++) {
        if (i) text_add(out, ",");
        if (value->items[i].key) json_add_string(out, value->items[i].key, value->items[i].key_size);
        if (value->items[i].key) text_add(out, ":");
        add_value(&value->items[i], out);
    }
    text_add(out, value->type == JSON_ARRAY ? "]" : "}");
}

static void check_same(const Json *a, const Json *b) {
    CHECK(a->type == b->type && a->count == b->count && a->size == b->size && a->key_size == b->key_size,
          "types %d and %d, %zu and %zu items, %zu and %zu characters", (int)a->type, (int)b->type, a->count,
          b->count, a->size, b->size);
    CHECK(!a->size || memcmp(a->string, b->string, a->size) == 0, "'%s' and '%s'", a->string, b->string);
    CHECK(!a->key_size || memcmp(a->key, b->key, a->key_size) == 0, "names '%s' and '%s'", a->key, b->key);
    for (size_t i = 0; i < a->count; i++) check_same(&a->items[i], &b->items[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json *value, *again;
    Text text = {0};
    Status status = yaml_parse(&value, (const char *)data, size, "input");
    if (status != OK) {
        CHECK(status == ERR_DATA && !value, "status %d", (int)status);
        return 0;
    }
    add_value(value, &text);
    CHECK(json_parse(&again, text.data, text.size, "written") == OK, "%s: %s", fail_message(), text.data);
    check_same(value, again);
    json_free(value);
    json_free(again);
    text_free(&text);
    return 0;
}
