// Tests the template engine against the cases of golden/templates.jsonl, whose texts are those of jinja2 as transformers
// sets it up (tests/ecosystem/chat_templates.py holds them to it), and against limits.
#include "harness.h"
#include "template/jinja.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_VARIABLES = 32, MAX_GOLDEN_BYTES = 4 << 20 };

static int read_variables(const Json *object, JinjaVariable *variables) {
    int count = 0;
    for (size_t i = 0; i < object->count && count < MAX_VARIABLES; i++)
        variables[count++] = (JinjaVariable){object->items[i].key, &object->items[i]};
    return count;
}

static void compare_spans(const Json *spans, const JinjaOutput *output, const char *what) {
    size_t count = spans ? spans->count : 0;
    EXPECT(output->num_spans == count, "%s: %zu spans instead of %zu", what, output->num_spans, count);
    for (size_t i = 0; i < count && i < output->num_spans; i++) {
        int64_t start = -1, end = -1;
        json_int(&spans->items[i].items[0], &start);
        json_int(&spans->items[i].items[1], &end);
        EXPECT((int64_t)output->spans[i].start == start && (int64_t)output->spans[i].end == end,
               "%s: span %zu", what, i);
    }
}

static void compare(const Json *row, const JinjaVariable *variables, int num_variables, JinjaOutput *output) {
    const Json *source = json_member(row, "template"), *text = json_member(row, "text");
    const char *error = json_string(json_member(row, "error"));
    JinjaTemplate *template;
    Status status = jinja_parse(&template, source->string, source->size, "t");
    if (status == OK) status = jinja_render(template, variables, num_variables, 1700000000, output);
    jinja_free(template);
    EXPECT(status == (error ? ERR_DATA : OK), "%s: %s", source->string, fail_message());
    if (error)
        EXPECT(!strncmp(fail_message(), "t:", 2) && !strcmp(fail_message() + 2, error), "%s: %s",
               source->string, fail_message());
    if (error || status != OK) return;
    EXPECT(output->text.size == text->size &&
               (!text->size || !memcmp(output->text.data, text->string, text->size)),
           "%s: \"%s\" instead of \"%s\"", source->string, text_string(&output->text), text->string);
    compare_spans(json_member(row, "spans"), output, source->string);
}

static void texts_are_those_of_jinja2(void) {
    char *text, *end;
    size_t size;
    Json *first = NULL;
    JinjaVariable variables[MAX_VARIABLES];
    JinjaOutput output = {0};
    int count = 0, rows = 0;
    EXPECT_OK(file_read(TEST_FOLDER "/golden/templates.jsonl", MAX_GOLDEN_BYTES, &text, &size));
    for (char *line = text; *line; line = end + 1, rows++) {
        Json *row;
        end = strchr(line, '\n');
        EXPECT_OK(json_parse(&row, line, (size_t)(end - line), "golden"));
        if (!first) {
            first = row;
            count = read_variables(json_member(row, "vars"), variables);
            continue;
        }
        compare(row, variables, count, &output);
        json_free(row);
    }
    EXPECT(rows > 300, "%d rows", rows);
    json_free(first);
    free(text);
    jinja_output_free(&output);
}

static Status try(const char *source, size_t size) {
    JinjaTemplate *template;
    JinjaOutput output = {0};
    Status status = jinja_parse(&template, source, size, "t");
    if (status == OK) status = jinja_render(template, NULL, 0, 0, &output);
    jinja_free(template);
    jinja_output_free(&output);
    return status;
}

static void expect_refused(const Text *source, const char *words) {
    Status status = try(source->data, source->size);
    EXPECT(status == ERR_DATA && strstr(fail_message(), words), "%s is expected: %s", words, fail_message());
}

static void repeated(Text *text, const char *part, int times) {
    for (int i = 0; i < times; i++) text_add(text, "%s", part);
}

// Depth, steps, memory and output are limited, and every limit is a message.
static void limits_hold(void) {
    static const struct {
        const char *begin, *part, *end, *words;
        int times;
    } CASES[] = {
        {"{{ ", "(", "1", "100 brackets", 101},
        {"{{ ", "not ", "1 }}", "within each other", 5000},
        {"{{ ", "-", "1 }}", "within each other", 5000},
        {"{{ 1", " if 1 else 1", " }}", "within each other", 5000},
        {"{{ 1", " + 1", " }}", "too deeply", 5000},
        {"", "{% if 1 %}", "", "tags within each other", 5000},
        {"{% set ns = namespace(x=[]) %}{% for i in range(400) %}", "{% set ns.x = [ns.x] %}",
         "{% endfor %}{{ ns.x }}", "lists within each other", 1},
        {"{% for i in range(100000) %}", "{% for j in range(100) %}{% if 1 %}{% endif %}{% endfor %}",
         "{% endfor %}", "than", 1},
        {"{% for i in range(100000) %}",
         "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}", "{% endfor %}",
         "more than 8 MiB", 20},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Text source = {0};
        text_add(&source, "%s", CASES[i].begin);
        repeated(&source, CASES[i].part, CASES[i].times);
        text_add(&source, "%s", CASES[i].end);
        expect_refused(&source, CASES[i].words);
        text_free(&source);
    }
    Text large = {0};
    repeated(&large, "0123456789abcdef", JINJA_MAX_SOURCE_BYTES / 16 + 1);
    expect_refused(&large, "1 MiB");
    text_free(&large);
}

// A message names the line of the tag that fails.
static void errors_name_the_line(void) {
    static const char SOURCE[] = "a\n{% if true %}\n\n  {{ x.y }}\n{% endif %}";
    EXPECT(try(SOURCE, strlen(SOURCE)) == ERR_DATA, "x is undefined");
    EXPECT(!strcmp(fail_message(), "t:4: 'x' is undefined"), "%s", fail_message());
    static const char UNKNOWN[] = "a\n\n{{ 1 |\n frob }}";
    EXPECT(try(UNKNOWN, strlen(UNKNOWN)) == ERR_DATA, "there is no filter frob");
    EXPECT(!strcmp(fail_message(), "t:4: the filter 'frob' is not known here"), "%s", fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"texts_are_those_of_jinja2", texts_are_those_of_jinja2},
                                      {"limits_hold", limits_hold},
                                      {"errors_name_the_line", errors_name_the_line},
                                      {0}},
                       argc, argv);
}
