// A JSON text. Law: what is accepted is, written and read again, the same.
#include "formats/formats.h"
#include "fuzz.h"
#include <string.h>

static void add_value(const Json *value, Text *out) {
    static const char *const WORDS[] = {"null", "false", "true"};
    double number;
    if (value->type <= JSON_TRUE) text_add(out, "%s", WORDS[value->type]);
    if (value->type == JSON_NUMBER) json_add_double(out, json_double(value, &number) ? number : 0);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json *value, *again;
    Text first = {0}, second = {0};
    Status status = json_parse(&value, (const char *)data, size, "input");
    if (status != OK) {
        CHECK(status == ERR_DATA && !value, "status %d", (int)status);
        return 0;
    }
    add_value(value, &first);
    CHECK(json_parse(&again, first.data, first.size, "written") == OK, "%s", fail_message());
    add_value(again, &second);
    CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0, "%s and %s",
          first.data, second.data);
    json_free(value);
    json_free(again);
    text_free(&first);
    text_free(&second);
    return 0;
}
