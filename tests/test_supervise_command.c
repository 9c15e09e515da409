// How the supervised command is read, and which arguments each start gets.
#include "harness.h"
#include "supervise/supervise.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 32 };

// Words apart by spaces.
typedef struct {
    char text[512], *words[MOST_WORDS];
    int count;
} Words;

static void split(Words *w, const char *text) {
    *w = (Words){0};
    snprintf(w->text, sizeof w->text, "%s", text);
    for (char *rest, *word = strtok_r(w->text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        w->words[w->count++] = word;
}

static void expect_arguments(const RunCommand *command, const GridChoice *grid, const char *wanted) {
    Text extra = {0}, text = {0};
    text_add(&extra, "--run-file\nmy file\n");
    char **argv = command_build(command, grid, "a:2,b:2", &extra);
    for (int i = 0; argv[i]; i++) text_add(&text, "%s%s", i ? " " : "", argv[i]);
    EXPECT(!strcmp(text_string(&text), wanted), "%s\n    not %s", text_string(&text), wanted);
    command_free(argv);
    text_free(&extra);
    text_free(&text);
}

// A start on the grid t = 2, p = 1, v = 1, d = 2, and one as the command says.
static void starts(void) {
    static const struct {
        const char *words, *asked, *grid;
    } rows[] = {
        {"train --tp 2", "trireme train --tp 2 --run-file my file",
         "trireme train --tp 2 --ranks 4 @ --run-file my file"},
        {"mpirun -n 8 --host {hosts} trireme train --tp 2",
         "mpirun -n 8 --host a:2,b:2 trireme train --tp 2 --run-file my file",
         "mpirun -n 4 --host a:2,b:2 trireme train --tp 2 @ --run-file my file"},
        {"srun --ntasks=8 -N2 trireme train", "srun --ntasks=8 -N2 trireme train --run-file my file",
         "srun --ntasks=4 -N2 trireme train @ --run-file my file"},
        {"nice -n 5 trireme train --ranks 8", "nice -n 5 trireme train --ranks 8 --run-file my file",
         "nice -n 5 trireme train --ranks 8 --ranks 4 @ --run-file my file"},
        // What would contradict the grid is left out.
        {"train --num-layers-per-virtual-pipeline-stage 2 --lr=1e-3 --num-layers-per-virtual-pipeline-stage=2",
         "trireme train --num-layers-per-virtual-pipeline-stage 2 --lr=1e-3 --num-layers-per-virtual-pipeline-stage=2 "
         "--run-file my file",
         "trireme train --lr=1e-3 --ranks 4 @ --run-file my file"},
    };
    GridChoice grid = {2, 1, 1, 2, 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Words words;
        RunCommand command;
        Text wanted = {0};
        const char *at = strchr(rows[i].grid, '@');
        text_add(&wanted,
                 "%.*s--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --data-parallel-size 2 "
                 "--num-virtual-stages-per-pipeline-rank 1%s",
                 (int)(at - rows[i].grid), rows[i].grid, at + 1);
        split(&words, rows[i].words);
        EXPECT_OK(command_read(&command, words.words, words.count, "trireme"));
        expect_arguments(&command, NULL, rows[i].asked);
        expect_arguments(&command, &grid, text_string(&wanted));
        text_free(&wanted);
    }
}

// What the first start loads is left out of later ones, however it is spelt.
static void later_starts(void) {
    Words words;
    RunCommand command;
    split(
        &words,
        "train --load other --finetune --lr 1e-3 --ckpt-step=7 --no-load-optim --ckpt_step 8 --finetune=true");
    EXPECT_OK(command_read(&command, words.words, words.count, "trireme"));
    command.save = "mine";
    command.resumes = true;
    expect_arguments(&command, NULL, "trireme train --lr 1e-3 --load mine --run-file my file");
}

// Where the launchers' own options say how many ranks there are.
static void launchers(void) {
    static const struct {
        const char *words;
        bool launches;
        int ranks; // 0: not known
    } rows[] = {
        {"", false, 0},
        {"nice -n 15", false, 0},
        {"taskset -c 3", false, 0},
        {"env A=1 nice -n 15", false, 0},
        {"mpirun -n 8", true, 8},
        {"/usr/bin/mpirun -np 8 -x A", true, 8},
        {"nice -n 15 mpirun -n 8", true, 8},
        {"mpirun --np 8", true, 8},
        {"mpirun -c 8", true, 8},
        {"mpirun", true, 0},
        {"srun -n 8", true, 8},
        {"srun -n8", true, 8},
        {"srun --ntasks=8", true, 8},
        {"srun --ntasks 8", true, 8},
        {"srun -c 4 -n 8", true, 8},
        {"srun -c 4 --cpus-per-task=4 --ntasks-per-node=2", true, 0},
        {"nice -n 15 srun -c 4", true, 0},
        {"torchrun --nproc-per-node 8", true, 0},
        {"./start -n 8", true, 8},
        {"./start -np 8 {hosts}", true, 8},
        {"nice -n 15 ./start {hosts}", true, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Words words;
        RunCommand command;
        char text[256];
        bool alone = !*rows[i].words;
        snprintf(text, sizeof text, "%s%s", rows[i].words, alone ? "train" : " trireme train");
        split(&words, text);
        EXPECT_OK(command_read(&command, words.words, words.count, "trireme"));
        EXPECT(command.launches == rows[i].launches && command_ranks(&command) == rows[i].ranks,
               "'%s': %d, %d ranks", rows[i].words, command.launches, command_ranks(&command));
    }
}

static void refusals(void) {
    Words words;
    RunCommand command;
    split(&words, "mpirun -n 8 trireme generate");
    EXPECT(command_read(&command, words.words, 0, "x") == ERR_USAGE, "no command");
    EXPECT(command_read(&command, words.words, words.count, "x") == ERR_USAGE &&
               strstr(fail_message(), "mpirun"),
           "%s", fail_message());
}

int main(int argc, char **argv) {
    static const Test tests[] = {{"starts", starts},
                                 {"later starts", later_starts},
                                 {"launchers", launchers},
                                 {"refusals", refusals},
                                 {0}};
    return harness_run(tests, argc, argv);
}
