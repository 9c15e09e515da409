// The options of Megatron-LM, one per line of golden/megatron_options.txt, each get the answer that the line
// names, so that none becomes unknown. tools/megatron_options.sh finds names that the list lacks.
#include "base/file.h"
#include "config_words.h"
#include <stdlib.h>

// "option": it is one here; "no-effect": accepted with a note that says why; "refused": with a reason or with
// the option to use; "unknown": none of them.
static const char *answer_class(Options *options, Verb verb, const char *line) {
    if (parse_line(options, verb, line) == OK)
        return strstr(options_notes(options), "has no effect: ") ? "no-effect" : "option";
    static const char *const reasons[] = {" is not supported: ", "; use ", "; choose from "};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (strstr(fail_message(), reasons[i])) return "refused";
    return "unknown";
}

static char *next_word(char **rest) {
    char *word = strsep(rest, " ");
    CHECK(word && *rest, "a line of megatron_options.txt needs a verb, a class and an option");
    return word;
}

static void check_line(char *line) {
    char *rest = line;
    const char *verb_name = next_word(&rest), *class = next_word(&rest);
    Verb verb = !strcmp(verb_name, "preprocess") ? FOR_PREPROCESS : FOR_TRAIN;
    Options options = {0};
    const char *found = answer_class(&options, verb, rest);
    EXPECT(!strcmp(found, class), "%s %s is '%s', not '%s': %s", verb_name, rest, found, class,
           strcmp(found, "unknown") ? "" : fail_message());
    options_destroy(&options);
}

static void every_option_has_its_answer(void) {
    char *data = NULL, *rest = NULL;
    size_t size = 0;
    int count = 0;
    EXPECT_OK(file_read(TEST_FOLDER "/golden/megatron_options.txt", 1 << 20, &data, &size));
    for (char *line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (*line == '#') continue;
        check_line(line);
        count++;
    }
    EXPECT(count >= 600, "only %d lines", count);
    free(data);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every option has its answer", every_option_has_its_answer}, {0}},
                       argc, argv);
}
