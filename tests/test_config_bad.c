// Wrong configurations, one per line of bad_config.txt, are each refused with the exit code and the words of
// the line.
#include "base/file.h"
#include "config_words.h"
#include <stdlib.h>

// Cuts the field that starts at `*rest` off at " |" and moves behind it.
static char *next_field(char **rest) {
    char *field = *rest, *end = strstr(field, " |");
    CHECK(end, "a line of bad_config.txt needs three fields: %s", field);
    *end = 0;
    *rest = end + 2 + (end[2] == ' ');
    return field;
}

static void check_line(char *line) {
    char *rest = line;
    Status want = (Status)atoi(next_field(&rest));
    const char *text = next_field(&rest);
    bool only = !strncmp(rest, "only", 4);
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", only ? "" : GOOD_RUN, only ? rest + 4 : rest);
    Options o = {0};
    Status status = parse_line(&o, FOR_TRAIN, whole);
    if (status == OK) status = options_resolve(&o, o.ranks == INT_UNSET ? 1 : o.ranks);
    expect_failure(status, want, text, rest);
    options_destroy(&o);
}

static void bad_configurations(void) {
    char *data = NULL, *rest = NULL;
    size_t size = 0;
    int count = 0;
    EXPECT_OK(file_read(TEST_FOLDER "/bad_config.txt", 1 << 20, &data, &size));
    for (char *line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (*line == '#') continue;
        check_line(line);
        count++;
    }
    EXPECT(count >= 40, "only %d lines", count);
    free(data);
}

// What the lines start from is right; else each of them could be refused for another reason.
static void good_run(void) {
    Options o;
    EXPECT_OK(resolve_run(&o, ""));
    EXPECT_OK(options_resolve(&o, 1));
    options_destroy(&o);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"good run", good_run}, {"bad configurations", bad_configurations}, {0}}, argc, argv);
}
