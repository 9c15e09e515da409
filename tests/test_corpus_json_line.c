// The scanner of JSON lines against the parser that builds values: what one takes the other takes, with the
// same strings, for random objects and for what becomes of them when bytes are changed, lost or cut off.
#include "base/rng.h"
#include "corpus/json_line.h"
#include "formats/formats.h"
#include "harness.h"
#include <string.h>

typedef struct {
    RngKey key;
    uint64_t used;
    Text text;
} Maker;

static int below(Maker *m, int most) { return (int)(rng_word(m->key, 0, m->used++) % (uint32_t)most); }

static void make_string(Maker *m) {
    static const char *const some[] = {
        "a",       "word",           " ",        "\\n",       "\\\"", "\\\\", "\\u00e9",
        "\\u0000", "\\uD83d\\uDe00", "\xc3\xa9", "eightytwo", "/"};
    text_add(&m->text, "\"");
    for (int n = below(m, 12); n > 0; n--) text_add(&m->text, "%s", some[below(m, 12)]);
    text_add(&m->text, "\"");
}

static void make_value(Maker *m, int depth);

static void make_members(Maker *m, int depth, bool keys) {
    for (int i = 0, n = below(m, 4); i < n; i++) {
        text_add(&m->text, i ? " ," : "");
        if (keys) text_add(&m->text, "\"k%d\"%s:\t", i, below(m, 2) ? " " : "");
        make_value(m, depth);
    }
}

static void make_value(Maker *m, int depth) {
    static const char *const simple[] = {"true", "false", "null", "0", "-1.5e+3", "12", "0.25", "7E2"};
    int kind = below(m, depth > 3 ? 2 : 4);
    if (kind == 0) make_string(m);
    if (kind == 1) text_add(&m->text, "%s", simple[below(m, 8)]);
    if (kind < 2) return;
    text_add(&m->text, kind == 2 ? "{" : "[ ");
    make_members(m, depth + 1, kind == 2);
    text_add(&m->text, kind == 2 ? "}" : "]");
}

// {"k": ..., "text": "...", "k2": ...}
static void make_object(Maker *m, uint64_t number) {
    *m = (Maker){.key = rng_key(7, "json lines", number), .text = m->text};
    m->text.size = 0;
    text_add(&m->text, "%s{\"before\":", below(m, 2) ? " " : "");
    make_value(m, 0);
    text_add(&m->text, ", \"%s\" : ", below(m, 5) ? "text" : "t\\u0065xt");
    make_string(m);
    text_add(&m->text, ",\"after\":");
    make_value(m, 0);
    text_add(&m->text, "} ");
}

static void damage(Maker *m) {
    static const char bytes[] = "\"\\{}[],:0truefn\tu e-.";
    char *at = m->text.data + below(m, (int)m->text.size);
    switch (below(m, 3)) {
    case 0: *at = bytes[below(m, (int)sizeof bytes - 1)]; break;
    case 1: m->text.size = (size_t)(at - m->text.data); break;
    default: memmove(at, at + 1, (size_t)(m->text.data + --m->text.size - at));
    }
}

// What is not told apart from JSON on purpose.
static bool is_allowed(const char *why) {
    return strstr(why, "surrogate") || strstr(why, "UTF-8") || strstr(why, "second value");
}

static void compare(JsonLine *line, const Text *text, int *valid) {
    JsonCursor cursor = {.text = text_string(text), .bytes = text->size};
    Json *root = NULL;
    bool good = json_line_scan(line, &cursor);
    bool known = json_parse(&root, cursor.text, cursor.bytes, "text") == OK;
    if (known && root->type == JSON_OBJECT)
        EXPECT(good, "refused at byte %zu (%s): %s", cursor.at, cursor.error, cursor.text);
    if (good)
        EXPECT((known && root->type == JSON_OBJECT) || is_allowed(fail_message()), "taken: %s", cursor.text);
    const Json *value = known ? json_member(root, "text") : NULL;
    *valid += good && known;
    const char *string = "";
    size_t bytes = 0;
    JsonCursor at = {.text = cursor.text, .bytes = cursor.bytes, .at = line->values[0]};
    if (good && known) EXPECT(!value == !line->values[0], "the key: %s", cursor.text);
    if (good && value && value->type == JSON_STRING) {
        EXPECT(json_line_string(line, &at, &string, &bytes), "no string: %s", cursor.text);
        EXPECT(bytes == value->size && !memcmp(string, value->string, bytes), "string of %s", cursor.text);
    }
    json_free(root);
}

static void random_objects_and_damaged_ones(void) {
    static const char *const keys[] = {"text"};
    JsonLine line;
    Maker m = {0};
    json_line_open(&line, keys, 1);
    int valid = 0, valid_damaged = 0, cases = harness_short() ? 300 : 3000;
    for (int i = 0; i < cases; i++) {
        make_object(&m, (uint64_t)i);
        compare(&line, &m.text, &valid);
        for (int k = 0; k < 6; k++) {
            make_object(&m, (uint64_t)i);
            m.used += (uint64_t)(1000 * k);
            damage(&m);
            compare(&line, &m.text, &valid_damaged);
        }
    }
    EXPECT(valid == cases, "%d of %d objects are valid", valid, cases);
    EXPECT(valid_damaged > cases && valid_damaged < 5 * cases, "%d damaged ones", valid_damaged);
    text_free(&m.text);
    json_line_free(&line);
}

static void expect_string(const char *text, const char *want, size_t bytes) {
    static const char *const keys[] = {"text"};
    JsonLine line;
    json_line_open(&line, keys, 1);
    JsonCursor cursor = {.text = text, .bytes = strlen(text)};
    EXPECT(json_line_scan(&line, &cursor), "%s: byte %zu: %s", text, cursor.at, cursor.error);
    const char *string = "";
    size_t size = 0;
    cursor.at = line.values[0];
    EXPECT(json_line_string(&line, &cursor, &string, &size), "no string: %s", text);
    EXPECT(size == bytes && !memcmp(string, want, size), "%s gives %.*s", text, (int)size, string);
    json_line_free(&line);
}

static void what_others_write_is_taken(void) {
    expect_string("{\"x\": [NaN, -Infinity, Infinity], \"text\": \"a\"}", "a", 1);
    expect_string("{\"text\": \"\\ud800!\"}", "\xef\xbf\xbd!", 4);
    expect_string("{\"text\": \"\\udc00\\ud83d\\ude00\"}", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7);
    expect_string("{\"text\": \"\xff raw\"}", "\xff raw", 5);
    expect_string("{\"text\": \"first\", \"text\": \"last\"}", "last", 4);
    expect_string("{\"inner\": {\"text\": \"no\"}, \"text\": \"\"}", "", 0);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"random_objects_and_damaged_ones", random_objects_and_damaged_ones},
        {"what_others_write_is_taken", what_others_write_is_taken},
        {0},
    };
    return harness_run(tests, argc, argv);
}
