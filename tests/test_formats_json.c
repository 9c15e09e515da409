// Tests the JSON reader and writer: what is written is read back, and what is no JSON fails.
#include "base/rng.h"
#include "formats/formats.h"
#include "harness.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Status parse(Json **root, const char *text) { return json_parse(root, text, strlen(text), "it"); }

// ---- random values, written and read ------------------------------------------------------------

typedef struct {
    RngKey key;
    uint64_t at;
} Dice;

static uint32_t roll(Dice *dice, uint32_t sides) { return rng_word(dice->key, 0, dice->at++) % sides; }

static void add_space(Dice *dice, Text *out) {
    text_add(out, "%.*s", (int)roll(dice, 3), &" \t\r\n  "[roll(dice, 4)]);
}

static void add_both(Text *text, Text *form, const char *string) {
    text_add(text, "%s", string);
    text_add(form, "%s", string);
}

static void add_random_string(Dice *dice, Text *text, Text *form) {
    char bytes[12];
    size_t size = roll(dice, sizeof bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (char)roll(dice, roll(dice, 2) ? 128 : 256);
    json_add_string(text, bytes, size);
    json_add_string(form, bytes, size);
}

static void add_random_name(Dice *dice, uint32_t number, Text *text, Text *form) {
    char name[16], last = (char)roll(dice, 128);
    int size = snprintf(name, sizeof name, "%u%c", number, last);
    text_add(text, "\"%u\\u%04x\"", number, (unsigned)last);
    json_add_string(form, name, (size_t)size);
}

// A random value with blanks and escapes to `text`, and in one form to `form`: without blanks, strings as
// json_add_string writes them.
static void add_random(Dice *dice, Text *text, Text *form, int depth) {
    static const char *const PLAIN[] = {"null", "true", "false", "0", "-0", "12", "-3.5e-7", "1E+5", "0.10"};
    uint32_t kind = roll(dice, depth > 4 ? 2 : 5), items = roll(dice, 7) * (roll(dice, 12) ? 1u : 9u);
    add_space(dice, text);
    if (kind == 0)
        add_both(text, form, PLAIN[roll(dice, sizeof PLAIN / sizeof *PLAIN)]);
    else if (kind == 1)
        add_random_string(dice, text, form);
    else
        add_both(text, form, kind == 2 ? "[" : "{");
    for (uint32_t i = 0; kind >= 2 && i < items; i++) {
        if (i) add_both(text, form, ",");
        add_space(dice, text);
        if (kind > 2) add_random_name(dice, i, text, form);
        if (kind > 2) add_space(dice, text);
        if (kind > 2) add_both(text, form, ":");
        add_random(dice, text, form, depth + 1);
    }
    if (kind >= 2) add_both(text, form, kind == 2 ? "]" : "}");
    add_space(dice, text);
}

static void add_value(const Json *value, Text *form) {
    static const char *const WORDS[] = {"null", "false", "true"};
    if (value->type <= JSON_TRUE) text_add(form, "%s", WORDS[value->type]);
    if (value->type == JSON_NUMBER) text_add(form, "%s", value->string);
    if (value->type == JSON_STRING) json_add_string(form, value->string, value->size);
    if (value->type < JSON_ARRAY) return;
    text_add(form, value->type == JSON_ARRAY ? "[" : "{");
    for (size_t i = 0; i < value->count; i++) {
        if (i) text_add(form, ",");
        if (value->items[i].key) json_add_string(form, value->items[i].key, value->items[i].key_size);
        if (value->items[i].key) text_add(form, ":");
        add_value(&value->items[i], form);
    }
    text_add(form, value->type == JSON_ARRAY ? "]" : "}");
}

static void check_offsets(const Json *value, const char *text) {
    static const char FIRST[] = "nft0\"[{";
    char c = text[value->offset];
    EXPECT(value->type == JSON_NUMBER ? c == '-' || (c >= '0' && c <= '9') : c == FIRST[value->type],
           "%c of type %d", c, (int)value->type);
    for (size_t i = 0; i < value->count; i++) check_offsets(&value->items[i], text);
}

static void what_is_written_is_read(void) {
    for (uint64_t round = 0; round < 200; round++) {
        Dice dice = {rng_key(round, "json", 0), 0};
        Text text = {0}, form = {0}, read = {0};
        Json *value;
        add_random(&dice, &text, &form, 0);
        EXPECT_OK(json_parse(&value, text_string(&text), text.size, "random"));
        if (value) check_offsets(value, text.data);
        if (value) add_value(value, &read);
        EXPECT(read.size == form.size && memcmp(text_string(&read), form.data, form.size) == 0,
               "%s instead of %s", text_string(&read), form.data);
        json_free(value);
        text_free(&text);
        text_free(&form);
        text_free(&read);
    }
}

// ---- strictness ---------------------------------------------------------------------------------

static void what_is_not_json_fails(void) {
    static const struct {
        const char *text, *message;
    } BAD[] = {{"", "byte 0: a value"},
               {" ", "byte 1: a value"},
               {"nul", "byte 0: a value"},
               {"True", "byte 0: a value"},
               {"NaN", "byte 0: a value"},
               {"\xef\xbb\xbf{}", "byte 0: a value"},
               {"1 2", "byte 2: more text"},
               {"{}}", "byte 2: more text"},
               {"[1,]", "byte 3: a value"},
               {"[,1]", "byte 1: a value"},
               {"[1 2]", "byte 3: ',' or ']'"},
               {"[1", "byte 2: ',' or ']'"},
               {"{\"a\":1,}", "byte 7: a name"},
               {"{a:1}", "byte 1: a name"},
               {"{\"a\" 1}", "byte 5: ':'"},
               {"{\"a\":}", "byte 5: a value"},
               {"{\"a\":1", "byte 6: ',' or '}'"},
               {"[}", "byte 1: a value"},
               {"01", "byte 1: more text"},
               {"-", "byte 1: a digit"},
               {"+1", "byte 0: a value"},
               {".5", "byte 0: a value"},
               {"1.", "byte 2: a digit"},
               {"1.e5", "byte 2: a digit"},
               {"1e", "byte 2: a digit"},
               {"1e+", "byte 3: a digit"},
               {"0x10", "byte 1: more text"},
               {"'a'", "byte 0: a value"},
               {"\"a", "byte 0: a string without end"},
               {"\"a\nb\"", "byte 2: a control character"},
               {"\"\\x41\"", "byte 1: no such escape"},
               {"\"\\", "byte 1: no such escape"},
               {"\"\\u12g4\"", "byte 5: four hexadecimal"},
               {"\"\\ud800\"", "byte 1: half of a surrogate"},
               {"\"\\udc00\\ud800\"", "byte 1: half of a surrogate"},
               {"\"\\ud800\\u0041\"", "byte 1: half of a surrogate"},
               {"\"\x80\"", "byte 1: invalid UTF-8"},
               {"\"\xc0\xaf\"", "byte 1: invalid UTF-8"},
               {"\"\xed\xa0\x80\"", "byte 1: invalid UTF-8"},
               {"\"\xf4\x90\x80\x80\"", "byte 1: invalid UTF-8"},
               {"\"\xe2\x82\"", "byte 1: invalid UTF-8"},
               {"\"\xe0\x9f\xbf\"", "byte 1: invalid UTF-8"},
               {"\"\xf0\x8f\xbf\xbf\"", "byte 1: invalid UTF-8"},
               {"{\"a\":1,\"b\":2,\"\\u0061\":3}", "byte 22: a second value for the name \"a\""},
               {"/**/1", "byte 0: a value"}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        Json *root;
        EXPECT(parse(&root, BAD[i].text) == ERR_DATA && !root && strncmp(fail_message(), "it: ", 4) == 0 &&
                   strstr(fail_message(), BAD[i].message),
               "%s: %s", BAD[i].text, fail_message());
        json_free(root);
    }
    Json *root;
    EXPECT(json_parse(&root, "1\0", 2, "it") == ERR_DATA, "a NUL behind the value");
    EXPECT(json_parse(&root, "[\0]", 3, "it") == ERR_DATA, "a NUL for a value");
    EXPECT(json_parse(&root, "\"\\\0\"", 4, "it") == ERR_DATA, "a NUL for an escape");
}

static void depth_is_limited(void) {
    enum { MAX_DEPTH = 64 };
    char text[2 * MAX_DEPTH + 3];
    for (int depth = MAX_DEPTH; depth <= MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        Json *root;
        Status status = json_parse(&root, text, 2 * (size_t)depth, "deep");
        EXPECT(status == (depth > MAX_DEPTH ? ERR_DATA : OK), "%d deep: %s", depth, fail_message());
        json_free(root);
    }
}

// No beginning of a text is one, and no changed byte does harm.
static void damaged_texts_fail_in_order(void) {
    const char text[] = "{\"a\":[1,-2.5e3,\"x\\u00e9\xc3\xa9\\ud83d\\ude00\"],\"b\":{\"c\":null,\"d\":true}}";
    size_t size = sizeof text - 1;
    Json *root;
    for (size_t cut = 0; cut < size; cut++) {
        char *copy = malloc(cut + 1); // of just this size, for the address sanitizer
        memcpy(copy, text, cut);
        EXPECT(json_parse(&root, copy, cut, "cut") == ERR_DATA, "%zu bytes", cut);
        free(copy);
    }
    for (size_t i = 0; i < size * 256; i++) {
        char *copy = malloc(size);
        memcpy(copy, text, size);
        copy[i / 256] = (char)i;
        Status status = json_parse(&root, copy, size, "changed");
        EXPECT(status == OK || status == ERR_DATA, "%d", (int)status);
        json_free(root);
        free(copy);
    }
}

static void names_are_unique_in_large_objects(void) {
    enum { MEMBERS = 200000 };
    Text text = {0};
    Json *root;
    alarm(20);
    for (int twice = 0; twice < 2; twice++) {
        text_free(&text);
        for (int i = 0; i < MEMBERS; i++)
            text_add(&text, "%s\"%d\":%d", i ? "," : "{", i * 7919 % MEMBERS, i);
        text_add(&text, twice ? ",\"777\":0}" : "}");
        Status status = json_parse(&root, text.data, text.size, "large");
        EXPECT(status == (twice ? ERR_DATA : OK), "%s", fail_message());
        if (twice) EXPECT(strstr(fail_message(), "\"777\""), "%s", fail_message());
        if (root) EXPECT(root->count == MEMBERS && json_member(root, "199999"), "%zu members", root->count);
        json_free(root);
    }
    EXPECT_OK(parse(&root, "{\"a\":1,\"a\\u0000\":2,\"a\\u0000b\":3,\"a\\u0000c\":4}"));
    EXPECT(json_member(root, "a") == &root->items[0], "a name with a NUL is another name");
    json_free(root);
    alarm(0);
    text_free(&text);
}

// ---- strings ------------------------------------------------------------------------------------

// Every character, escaped as one or two \u, reads as its UTF-8, and this writes and reads as itself.
static void every_character_is_read(void) {
    for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 37) {
        char escaped[32];
        uint32_t rest = code - 0x10000;
        Json *a, *b;
        Text plain = {0};
        if (code >= 0xd800 && code < 0xe000) continue;
        if (code < 0x10000)
            snprintf(escaped, sizeof escaped, "\"\\u%04X\"", code);
        else
            snprintf(escaped, sizeof escaped, "\"\\u%04x\\u%04x\"", 0xd800 + (rest >> 10),
                     0xdc00 + (rest & 1023));
        EXPECT_OK(parse(&a, escaped));
        json_add_string(&plain, a->string, a->size);
        EXPECT_OK(json_parse(&b, plain.data, plain.size, "plain"));
        EXPECT(a->size == b->size && memcmp(a->string, b->string, a->size) == 0, "U+%04X", code);
        EXPECT(a->size == (code < 0x80 ? 1u : code < 0x800 ? 2u : code < 0x10000 ? 3u : 4u), "U+%04X", code);
        json_free(a);
        json_free(b);
        text_free(&plain);
    }
}

static void written(const char *string, size_t size, const char *expected) {
    Text text = {0};
    json_add_string(&text, string, size);
    EXPECT(strcmp(text.data, expected) == 0, "%s instead of %s", text.data, expected);
    text_free(&text);
}

static void strings_are_escaped_where_needed(void) {
    written("", 0, "\"\"");
    written("a/\"\\\b\f\n\r\t\x1f\x7f", 11, "\"a/\\\"\\\\\\b\\f\\n\\r\\t\\u001f\x7f\"");
    written("\0x", 2, "\"\\u0000x\"");
    written("\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    written("a\xff"
            "b\xc3",
            4,
            "\"a\xef\xbf\xbd"
            "b\xef\xbf\xbd\"");
    written("\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

// ---- numbers ------------------------------------------------------------------------------------

static void integers_are_exact_or_none(void) {
    static const struct {
        const char *text;
        bool valid;
        int64_t value;
    } CASES[] = {{"0", true, 0},
                 {"-0", true, 0},
                 {"9223372036854775807", true, INT64_MAX},
                 {"-9223372036854775808", true, INT64_MIN},
                 {"9223372036854775808", false, 0},
                 {"1.0", false, 0},
                 {"1e3", false, 0},
                 {"\"1\"", false, 0},
                 {"true", false, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Json *root;
        int64_t value = 0;
        EXPECT_OK(parse(&root, CASES[i].text));
        EXPECT(json_int(root, &value) == CASES[i].valid && value == CASES[i].value, "%s: %" PRId64,
               CASES[i].text, value);
        json_free(root);
    }
}

static void check_double(double x) {
    Text text = {0};
    Json *root;
    double back = NAN;
    json_add_double(&text, x);
    EXPECT_OK(parse(&root, text.data));
    EXPECT(json_double(root, &back) && memcmp(&x, &back, sizeof x) == 0, "%s is not %a", text.data, x);
    json_free(root);
    text_free(&text);
}

static void doubles_return(void) {
    static const struct {
        double x;
        const char *text;
    } SHORT[] = {{0, "0"}, {-0.0, "-0"},  {0.1, "0.1"},        {5e-324, "5e-324"},   {1e22, "1e+22"},
                 {3, "3"}, {NAN, "null"}, {-INFINITY, "null"}, {1.5e300, "1.5e+300"}};
    for (size_t i = 0; i < sizeof SHORT / sizeof *SHORT; i++) {
        Text text = {0};
        json_add_double(&text, SHORT[i].x);
        EXPECT(strcmp(text.data, SHORT[i].text) == 0, "%s instead of %s", text.data, SHORT[i].text);
        text_free(&text);
    }
    RngKey key = rng_key(1, "doubles", 0);
    for (uint64_t i = 0; i < 4000; i++) {
        uint64_t bits = (uint64_t)rng_word(key, 0, i) << 32 | rng_word(key, 1, i);
        double x;
        memcpy(&x, &bits, sizeof x);
        if (isfinite(x)) check_double(x);
    }
    Json *root;
    double x;
    EXPECT_OK(parse(&root, "1e999"));
    EXPECT(!json_double(root, &x), "out of range");
    json_free(root);
}

static void absent_values_have_no_value(void) {
    Json *root;
    int64_t n;
    double x;
    bool flag = false;
    EXPECT_OK(parse(&root, "{\"s\":\"text\",\"z\":\"a\\u0000\",\"t\":true,\"n\":null}"));
    EXPECT(!json_member(root, "none") && !json_member(NULL, "s") && !json_member(json_member(root, "s"), "s"),
           "absent");
    EXPECT(!json_int(NULL, &n) && !json_double(NULL, &x) && !json_flag(NULL, &flag) && !json_string(NULL),
           "NULL");
    EXPECT(strcmp(json_string(json_member(root, "s")), "text") == 0, "a string");
    EXPECT(!json_string(json_member(root, "z")) && json_member(root, "z")->size == 2, "with a NUL");
    EXPECT(!json_string(json_member(root, "t")) && !json_flag(json_member(root, "n"), &flag), "other types");
    EXPECT(json_flag(json_member(root, "t"), &flag) && flag, "true");
    json_free(root);
    json_free(NULL);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"what_is_written_is_read", what_is_written_is_read},
                       {"what_is_not_json_fails", what_is_not_json_fails},
                       {"depth_is_limited", depth_is_limited},
                       {"damaged_texts_fail_in_order", damaged_texts_fail_in_order},
                       {"names_are_unique_in_large_objects", names_are_unique_in_large_objects},
                       {"every_character_is_read", every_character_is_read},
                       {"strings_are_escaped_where_needed", strings_are_escaped_where_needed},
                       {"integers_are_exact_or_none", integers_are_exact_or_none},
                       {"doubles_return", doubles_return},
                       {"absent_values_have_no_value", absent_values_have_no_value},
                       {0}},
        argc, argv);
}
