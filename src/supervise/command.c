// Reads the command that is supervised, and builds the arguments of each start.
#include "supervise/supervise.h"
#include <stdlib.h>
#include <string.h>

static bool is_number(const char *word) {
    int64_t value;
    return word && parse_int(word, &value) && value > 0 && value < 1 << 20;
}

static int find_ranks_word(char **words, int count) {
    static const char *const flags[] = {"-n", "-np", "-c", "--ntasks", "--np"};
    for (int i = 0; i + 1 < count; i++)
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
            if (!strcmp(words[i], flags[f]) && is_number(words[i + 1])) return i + 1;
    return -1;
}

Status command_read(RunCommand *command, char **words, int count, const char *self) {
    int at = 0;
    while (at < count && strcmp(words[at], "train") != 0) at++;
    if (!count)
        return fail(ERR_USAGE,
                    "the command to supervise is missing: trireme supervise [options] -- train ...");
    if (at == count)
        return fail(
            ERR_USAGE,
            "'%s ...' does not train: supervise -- train ..., or supervise -- mpirun ... trireme train ...",
            words[0]);
    *command = (RunCommand){.launcher = words,
                            .num_launcher = at ? at - 1 : 0,
                            .program = at ? words[at - 1] : self,
                            .arguments = words + at + 1,
                            .num_arguments = count - at - 1};
    command->ranks_word = find_ranks_word(words, command->num_launcher);
    for (int i = 0; i < command->num_launcher; i++)
        command->wants_hosts |= strstr(words[i], "{hosts}") != NULL;
    return OK;
}

typedef struct {
    char **items;
    int count;
} WordList;

static void add_word(WordList *list, const char *word) {
    list->items = realloc(list->items, ((size_t)list->count + 2) * sizeof *list->items);
    char *copy = strdup(word);
    CHECK(list->items && copy, "no memory for a command");
    list->items[list->count++] = copy;
    list->items[list->count] = NULL;
}

static void add_number(WordList *list, const char *option, int value) {
    char number[16];
    snprintf(number, sizeof number, "%d", value);
    add_word(list, option);
    add_word(list, number);
}

static void add_launcher_word(WordList *list, const char *word, const char *hosts) {
    Text text = {0};
    for (const char *at; (at = strstr(word, "{hosts}")); word = at + strlen("{hosts}"))
        text_add(&text, "%.*s%s", (int)(at - word), word, hosts);
    text_add(&text, "%s", word);
    add_word(list, text_string(&text));
    text_free(&text);
}

// What comes last wins.
static void add_grid(WordList *list, const RunCommand *command, const GridChoice *grid) {
    if (!command->num_launcher) add_number(list, "--ranks", grid_ranks(*grid));
    add_number(list, "--tensor-model-parallel-size", grid->t);
    add_number(list, "--pipeline-model-parallel-size", grid->p);
    add_number(list, "--data-parallel-size", grid->d);
    if (grid->v > 1) add_number(list, "--num-virtual-stages-per-pipeline-rank", grid->v);
}

static void add_lines(WordList *list, const char *lines) {
    char word[4096];
    for (size_t length; *lines; lines += length + (lines[length] == '\n')) {
        length = strcspn(lines, "\n");
        snprintf(word, sizeof word, "%.*s", (int)length, lines);
        add_word(list, word);
    }
}

char **command_build(const RunCommand *command, const GridChoice *grid, const char *hosts,
                     const Text *extra) {
    WordList list = {0};
    for (int i = 0; i < command->num_launcher; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", grid ? grid_ranks(*grid) : 0);
        add_launcher_word(&list, grid && i == command->ranks_word ? number : command->launcher[i], hosts);
    }
    add_word(&list, command->program);
    add_word(&list, "train");
    for (int i = 0; i < command->num_arguments; i++) add_word(&list, command->arguments[i]);
    if (grid) add_grid(&list, command, grid);
    add_lines(&list, text_string(extra));
    return list.items;
}

void command_free(char **argv) {
    for (int i = 0; argv && argv[i]; i++) free(argv[i]);
    free(argv);
}
