// A chat template, rendered for a conversation. Laws: what fails names its line; spans lie within the text, in order; a
// second rendering has the same text.
#include "fuzz.h"
#include "template/jinja.h"
#include <string.h>

static const char CONVERSATION[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" Be kind. \"}, {\"role\": \"user\", \"content\": \"Hi\"},"
    "{\"role\": \"assistant\", \"content\": \"\\u00e9, yes\", \"tool_calls\": [{\"a\": 1.5}]}], \"tools\": null,"
    "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": false}";

enum { MAX_VARIABLES = 8 };

static void check_spans(const JinjaOutput *output) {
    size_t done = 0;
    for (size_t i = 0; i < output->num_spans; i++) {
        CHECK(output->spans[i].start >= done && output->spans[i].end > output->spans[i].start, "span %zu", i);
        done = output->spans[i].end;
    }
    CHECK(done <= output->text.size, "spans end at %zu of %zu", done, output->text.size);
}

static void render(const JinjaTemplate *template, const Json *root) {
    JinjaVariable variables[MAX_VARIABLES];
    JinjaOutput first = {0}, second = {0};
    for (size_t i = 0; i < root->count; i++)
        variables[i] = (JinjaVariable){root->items[i].key, &root->items[i]};
    Status status = jinja_render(template, variables, (int)root->count, 0, &first);
    CHECK(status == OK || (status == ERR_DATA && !strncmp(fail_message(), "t:", 2)), "status %d: %s",
          (int)status, fail_message());
    if (status == OK) {
        check_spans(&first);
        CHECK(jinja_render(template, variables, (int)root->count, 0, &second) == OK, "%s", fail_message());
        CHECK(first.text.size == second.text.size &&
                  (!first.text.size || !memcmp(first.text.data, second.text.data, first.text.size)),
              "another text");
    }
    jinja_output_free(&first);
    jinja_output_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    JinjaTemplate *template;
    Json *root;
    Status status = jinja_parse(&template, (const char *)data, size, "t");
    CHECK(status == OK || (status == ERR_DATA && !template && !strncmp(fail_message(), "t:", 2)),
          "status %d: %s", (int)status, fail_message());
    if (status != OK) return 0;
    CHECK(json_parse(&root, CONVERSATION, strlen(CONVERSATION), "conversation") == OK, "%s", fail_message());
    render(template, root);
    json_free(root);
    jinja_free(template);
    return 0;
}
