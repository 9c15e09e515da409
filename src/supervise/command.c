// Reads the command that is supervised, and builds the arguments of each start.
#include "supervise/supervise.h"
#include <stdlib.h>
#include <string.h>

static bool is_number(const char *word) {
    int64_t value;
    return word && parse_int(word, &value) && value > 0 && value < 1 << 20;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_one_of(const char *word, const char *const *list) {
    while (*list && strcmp(word, *list) != 0) list++;
    return *list != NULL;
}

// How launchers are told the number of ranks. The last row is for all others.
static const struct {
    const char *names[8], *flags[6];
} launchers[] = {
    {{"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun"},
     {"-n", "-np", "--n", "--np", "-c"}},
    {{"srun"}, {"-n", "--ntasks"}},
    {{NULL}, {"-n", "-np", "--np", "--ntasks"}},
};
enum { NUM_LAUNCHERS = sizeof launchers / sizeof launchers[0] };

// Programs that start one process, in whose place they often come themselves.
static const char *const wrappers[] = {"nice",  "ionice", "chrt",   "taskset", "numactl", "env",
                                       "nohup", "setsid", "stdbuf", "timeout", NULL};

// Returns where in a word the number of ranks begins; 0: the flag and the number are two words; -1: another word.
static int number_in(const char *word, const char *flag) {
    size_t length = strlen(flag);
    if (strncmp(word, flag, length) != 0) return -1;
    if (!word[length]) return 0;
    bool is_long = !strncmp(flag, "--", 2);
    int at = (int)length + (word[length] == '=');
    return (is_long ? word[length] == '=' : length == 2) && is_number(word + at) ? at : -1;
}

static void find_ranks(RunCommand *c, int from, const char *const *flags) {
    for (int i = from; i < c->num_launcher; i++)
        for (int f = 0; flags[f]; f++) {
            int at = number_in(c->launcher[i], flags[f]);
            bool next = at == 0 && i + 1 < c->num_launcher && is_number(c->launcher[i + 1]);
            if (at < 1 && !next) continue;
            c->ranks_word = i + next;
            c->ranks_at = next ? 0 : at;
            return;
        }
}

static void read_launcher(RunCommand *c) {
    c->ranks_word = -1;
    for (int i = 0; i < c->num_launcher; i++) c->wants_hosts |= strstr(c->launcher[i], "{hosts}") != NULL;
    for (int i = 0; i < c->num_launcher; i++)
        for (int l = 0; l < NUM_LAUNCHERS - 1; l++)
            if (is_one_of(base_name(c->launcher[i]), launchers[l].names)) {
                c->launches = true;
                find_ranks(c, i + 1, launchers[l].flags);
                return;
            }
    bool wrapped = c->num_launcher && is_one_of(base_name(c->launcher[0]), wrappers);
    c->launches = c->num_launcher && (c->wants_hosts || !wrapped);
    if (!wrapped) find_ranks(c, 1, launchers[NUM_LAUNCHERS - 1].flags);
}

int command_ranks(const RunCommand *c) {
    return c->ranks_word < 0 ? 0 : atoi(c->launcher[c->ranks_word] + c->ranks_at);
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
    read_launcher(command);
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

// The last value of an option is the one that counts.
static void add_grid(WordList *list, const RunCommand *command, const GridChoice *grid) {
    if (!command->launches) add_number(list, "--ranks", grid_ranks(*grid));
    add_number(list, "--tensor-model-parallel-size", grid->t);
    add_number(list, "--pipeline-model-parallel-size", grid->p);
    add_number(list, "--data-parallel-size", grid->d);
    add_number(list, "--num-virtual-stages-per-pipeline-rank", grid->v);
}

static void add_lines(WordList *list, const char *lines) {
    char word[4096];
    for (size_t length; *lines; lines += length + (lines[length] == '\n')) {
        length = strcspn(lines, "\n");
        snprintf(word, sizeof word, "%.*s", (int)length, lines);
        add_word(list, word);
    }
}

static const char *const first_load_fields[] = {"load", "finetune", "ckpt_step", "load_optim", NULL};
static const char *const grid_fields[] = {"num_layers_per_virtual_pipeline_stage", NULL};

static void add_arguments(WordList *list, const RunCommand *c, const GridChoice *grid) {
    const char *field;
    for (int i = 0, count; i < c->num_arguments; i += count) {
        count = option_words(FOR_TRAIN, c->arguments + i, c->num_arguments - i, &field);
        bool left_out = field && ((c->resumes && is_one_of(field, first_load_fields)) ||
                                  (grid && is_one_of(field, grid_fields)));
        for (int w = i; !left_out && w < i + count; w++) add_word(list, c->arguments[w]);
    }
}

// The word with the number of ranks, with another number.
static void add_ranks_word(WordList *list, const RunCommand *c, int ranks) {
    Text text = {0};
    text_add(&text, "%.*s%d", c->ranks_at, c->launcher[c->ranks_word], ranks);
    add_word(list, text_string(&text));
    text_free(&text);
}

char **command_build(const RunCommand *c, const GridChoice *grid, const char *hosts, const Text *extra) {
    WordList list = {0};
    for (int i = 0; i < c->num_launcher; i++)
        if (grid && i == c->ranks_word)
            add_ranks_word(&list, c, grid_ranks(*grid));
        else
            add_launcher_word(&list, c->launcher[i], hosts);
    add_word(&list, c->program);
    add_word(&list, "train");
    add_arguments(&list, c, grid);
    if (grid) add_grid(&list, c, grid);
    if (c->resumes) add_word(&list, "--load"), add_word(&list, c->save);
    add_lines(&list, text_string(extra));
    return list.items;
}

void command_free(char **argv) {
    for (int i = 0; argv && argv[i]; i++) free(argv[i]);
    free(argv);
}
