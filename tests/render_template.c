// Renders a chat template for tests: each line of standard input is an object of variables, and each line of output is
// {"text": ..., "spans": [[start, end], ...]} or {"error": ...}. With the word "-" each line has its template, too.
// Usage: render_template TEMPLATE_FILE|-
#include "template/jinja.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_VARIABLES = 64, MAX_BYTES = 1 << 20 };

static void add_output(const JinjaOutput *output, Text *line) {
    text_add(line, "{\"text\": ");
    json_add_string(line, text_string(&output->text), output->text.size);
    text_add(line, ", \"spans\": [");
    for (size_t i = 0; i < output->num_spans; i++)
        text_add(line, "%s[%zu, %zu]", i ? ", " : "", output->spans[i].start, output->spans[i].end);
    text_add(line, "]}");
}

static Status render(const JinjaTemplate *template, const Json *variables, JinjaOutput *output) {
    JinjaVariable list[MAX_VARIABLES];
    int count = 0;
    for (size_t i = 0; i < variables->count && count < MAX_VARIABLES; i++)
        list[count++] = (JinjaVariable){variables->items[i].key, &variables->items[i]};
    return jinja_render(template, list, count, 1700000000, output);
}

static Status render_line(const JinjaTemplate *template, const char *text, JinjaOutput *output) {
    Json *root;
    JinjaTemplate *own = NULL;
    TRY(json_parse(&root, text, strlen(text), "line"));
    const Json *source = json_member(root, "template");
    Status status = template ? OK : jinja_parse(&own, source->string, source->size, "template");
    if (status == OK) status = render(own ? own : template, own ? json_member(root, "vars") : root, output);
    jinja_free(own);
    json_free(root);
    return status;
}

int main(int argc, char **argv) {
    JinjaTemplate *template = NULL;
    JinjaOutput output = {0};
    char *source, *line = NULL;
    size_t size, room = 0;
    if (argc != 2) return ERR_USAGE;
    if (strcmp(argv[1], "-") != 0) {
        Status status = file_read(argv[1], MAX_BYTES, &source, &size);
        if (status == OK) status = jinja_parse(&template, source, size, argv[1]);
        if (status != OK) fprintf(stderr, "%s\n", fail_message());
        if (status != OK) return (int)status;
        free(source);
    }
    while (getline(&line, &room, stdin) > 0) {
        Text text = {0};
        if (render_line(template, line, &output) == OK) {
            add_output(&output, &text);
        } else {
            text_add(&text, "{\"error\": ");
            json_add_string(&text, fail_message(), strlen(fail_message()));
            text_add(&text, "}");
        }
        puts(text_string(&text));
        text_free(&text);
    }
    free(line);
    jinja_output_free(&output);
    jinja_free(template);
    return 0;
}
