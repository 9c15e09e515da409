// YAML as the tree of JSON: what JSON says means the same in both, what YAML has beyond it is refused, and a
// mistake is told with its line.
#include "base/rng.h"
#include "formats/formats.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>

static Status parse(Json **root, const char *text) { return yaml_parse(root, text, strlen(text), "it.yaml"); }

static void expect_same(const Json *a, const Json *b, const char *text) {
    EXPECT(a->type == b->type && a->count == b->count && a->size == b->size, "types %d and %d in %s",
           (int)a->type, (int)b->type, text);
    EXPECT(a->size != b->size || !a->size || !memcmp(a->string, b->string, a->size), "'%s' and '%s'",
           a->string, b->string);
    EXPECT(!a->key == !b->key && (!a->key || !strcmp(a->key, b->key)), "names in %s", text);
    for (size_t i = 0; a->count == b->count && i < a->count; i++)
        expect_same(&a->items[i], &b->items[i], text);
}

// ---- random values, in JSON's form --------------------------------------------------------------

typedef struct {
    RngKey key;
    uint64_t at;
} Dice;

static uint32_t roll(Dice *dice, uint32_t sides) { return rng_word(dice->key, 0, dice->at++) % sides; }

static void add_random_string(Dice *dice, Text *out) {
    char bytes[12];
    size_t size = roll(dice, sizeof bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (char)roll(dice, 127); // a raw DEL is no YAML
    json_add_string(out, bytes, size);
}

static void add_random(Dice *dice, Text *out, int depth) {
    static const char *const PLAIN[] = {"null", "true", "false", "0", "-0", "12", "-3.5e-7", "1E+5", "0.10"};
    uint32_t kind = roll(dice, depth > 4 ? 2 : 4), items = roll(dice, 7);
    if (kind == 0) text_add(out, "%s", PLAIN[roll(dice, sizeof PLAIN / sizeof *PLAIN)]);
    if (kind == 1) add_random_string(dice, out);
    if (kind < 2) return;
    text_add(out, kind == 2 ? "[" : "{");
    for (uint32_t i = 0; i < items; i++) {
        if (i) text_add(out, roll(dice, 2) ? ", " : ",\n  ");
        if (kind == 3) text_add(out, "\"%u\": ", i);
        add_random(dice, out, depth + 1);
    }
    text_add(out, kind == 2 ? "]" : "}");
}

static void json_is_yaml(void) {
    Dice dice = {rng_key(7, "yaml", 0), 0};
    for (int i = 0; i < 2000; i++) {
        Json *yaml = NULL, *json = NULL;
        Text text = {0};
        add_random(&dice, &text, 0);
        EXPECT_OK(parse(&yaml, text.data));
        EXPECT_OK(json_parse(&json, text.data, text.size, "it"));
        if (yaml && json) expect_same(yaml, json, text.data);
        json_free(yaml);
        json_free(json);
        text_free(&text);
    }
}

// ---- examples -----------------------------------------------------------------------------------

static const char BLOCK[] = "# a comment\n"
                            "name: dgx\n"
                            "\n"
                            "peaks: {bf16: 312, f32: 19.5}\n"
                            "points:\n"
                            "  - [1e6, 20]   # a pair\n"
                            "  - [2e6, 'x']\n"
                            "flags:\n"
                            "  yes: true\n"
                            "  no: ~\n"
                            "text: >\n"
                            "  two\n"
                            "  lines\n";

static void block_style(void) {
    Json *root;
    double x = 0;
    bool flag = false;
    EXPECT_OK(parse(&root, BLOCK));
    EXPECT(!strcmp(json_string(json_member(root, "name")), "dgx"), "plain text");
    EXPECT(json_double(json_member(json_member(root, "peaks"), "f32"), &x) && x == 19.5, "%g", x);
    const Json *points = json_member(root, "points");
    EXPECT(points && points->count == 2 && points->items[1].count == 2, "a list of lists");
    EXPECT(points->offset == 6 && points->items[1].offset == 7, "lines %d, %d", (int)points->offset,
           (int)points->items[1].offset);
    EXPECT(json_flag(json_member(json_member(root, "flags"), "yes"), &flag) && flag, "a flag");
    EXPECT(json_member(json_member(root, "flags"), "no")->type == JSON_NULL, "null");
    EXPECT(!strcmp(json_string(json_member(root, "text")), "two lines\n"), "folded");
    json_free(root);
}

static void types(void) {
    static const struct {
        const char *text;
        JsonType type;
    } rows[] = {
        {"12", JSON_NUMBER},   {"-1.5e3", JSON_NUMBER}, {"1e9", JSON_NUMBER},    {"0.5", JSON_NUMBER},
        {"'12'", JSON_STRING}, {"\"1\"", JSON_STRING},  {"010", JSON_STRING},    {"0x1f", JSON_STRING},
        {"1:30", JSON_STRING}, {".5", JSON_STRING},     {"+1", JSON_STRING},     {"1.", JSON_STRING},
        {"1_0", JSON_STRING},  {".inf", JSON_STRING},   {"nan", JSON_STRING},    {"yes", JSON_STRING},
        {"true", JSON_TRUE},   {"false", JSON_FALSE},   {"'true'", JSON_STRING}, {"null", JSON_NULL},
        {"~", JSON_NULL},      {"", JSON_NULL},         {"# none", JSON_NULL},   {"---", JSON_NULL},
        {"''", JSON_STRING},   {"[]", JSON_ARRAY},      {"{}", JSON_OBJECT},     {"1e", JSON_STRING},
        {"-", JSON_ARRAY},     {"--1", JSON_STRING},    {"1e+", JSON_STRING},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Json *root = NULL;
        EXPECT_OK(parse(&root, rows[i].text));
        EXPECT(root && root->type == rows[i].type, "'%s' is of type %d", rows[i].text,
               root ? (int)root->type : -1);
        json_free(root);
    }
}

static void mistakes(void) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"a: 1\nb: 2\na: 3\n", "it.yaml:3: a second value for the name \"a\""},
        {"a: 1\n'a': 3\n", "it.yaml:2: a second value for the name \"a\""},
        {"a: &x 1\n", "it.yaml:1: anchors have no meaning here"},
        {"a: 1\nb: *x\n", "it.yaml:2: aliases have no meaning here"},
        {"a:\n  - !!str 1\n", "it.yaml:2: tags have no meaning here"},
        {"a: ! 1\n", "it.yaml:1: tags have no meaning here"},
        {"a: &x [1]\n", "it.yaml:1: anchors have no meaning here"},
        {"a: !m {b: 1}\n", "it.yaml:1: tags have no meaning here"},
        {"a: 1\n---\nb: 2\n", "it.yaml:2: one document is expected"},
        {"a: 1\n? [b]\n: 2\n", "it.yaml:2: a name is expected, not a mapping or a list"},
        {"a: [1\n", "it.yaml:2: "},
        {"a: 1\n b: 2\n", "it.yaml:2: "},
        {"a: \"\\ud800\"\n", "it.yaml:1: "},
        {"a: \xff\n", "it.yaml:1: "},
        {"a:\n\t- 1\n", "it.yaml:2: "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Json *root = NULL;
        Status status = parse(&root, rows[i].text);
        EXPECT(status == ERR_DATA && !root, "status %d of %s", (int)status, rows[i].text);
        EXPECT(!strncmp(fail_message(), rows[i].message, strlen(rows[i].message)), "'%s' instead of '%s'",
               fail_message(), rows[i].message);
        json_free(root);
    }
}

// A text of `count` times `piece`.
static Text repeated(const char *piece, int count) {
    Text text = {0};
    for (int i = 0; i < count; i++) text_add(&text, "%s", piece);
    return text;
}

static void limits(void) {
    for (int depth = 64; depth <= 65; depth++) {
        Text text = repeated("- ", depth);
        Json *root;
        Status status = parse(&root, text.data);
        EXPECT((status == OK) == (depth == 64), "%d deep: %s", depth, fail_message());
        json_free(root);
        text_free(&text);
    }
    Text many = {0};
    for (int i = 0; i <= 1000; i++) text_add(&many, "n%d: 1\n", i);
    Json *root;
    EXPECT(parse(&root, many.data) == ERR_DATA &&
               strstr(fail_message(), "it.yaml:1001: a mapping of more than"),
           "%s", fail_message());
    many.data[many.size -= strlen("n1000: 1\n")] = 0;
    EXPECT_OK(parse(&root, many.data));
    json_free(root);
    text_free(&many);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"json_is_yaml", json_is_yaml},
                                      {"block_style", block_style},
                                      {"types", types},
                                      {"mistakes", mistakes},
                                      {"limits", limits},
                                      {0}},
                       argc, argv);
}
