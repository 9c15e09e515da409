// Built-in chat templates, and what becomes of templates in a model's folder.
#include "corpus/chat_format.h"
#include "harness.h"
#include <string.h>

// Other programs know no {% generation %}: what stands in its place writes the same text.
static void marks_are_taken_out(void) {
    static const char SOURCE[] =
        "{{ a }}{%- generation %}b{% endgeneration -%} {% generations %}{% generation";
    Text out = {0};
    template_without_marks(SOURCE, strlen(SOURCE), &out);
    EXPECT(!strcmp(text_string(&out), "{{ a }}{%- if true %}b{% endif -%} {% generations %}{% generation"),
           "%s", text_string(&out));
    text_free(&out);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"marks_are_taken_out", marks_are_taken_out}, {0}}, argc, argv);
}
