// Decides what a start of a run loads: what its command says, or once there is a checkpoint of this run, that.
#include "checkpoint/checkpoint.h"
#include "supervise/supervise.h"
#include "train/train.h"
#include <inttypes.h>
#include <stdlib.h>

static bool is_for_one_start(const Options *train) {
    return train->finetune || train->ckpt_step != INT_UNSET;
}

void first_load_read(FirstLoad *first, const Options *train) {
    bool elsewhere = train->load && !saves_where_it_loads(train);
    first->needs_empty = elsewhere || is_for_one_start(train);
    if (!first->needs_empty && train->load_optim) return;
    text_add(&first->words, "--load %s", train->load ? train->load : train->save);
    if (train->ckpt_step != INT_UNSET) text_add(&first->words, " --ckpt-step %" PRId64, train->ckpt_step);
    if (train->finetune) text_add(&first->words, " --finetune");
    if (!train->load_optim) text_add(&first->words, " --no-load-optim");
}

static bool has_checkpoint(const char *save) {
    int64_t *steps = NULL;
    int count = 0;
    bool has = checkpoint_steps(save, &steps, &count) == OK && count;
    free(steps);
    return has;
}

Status first_load_choose(const FirstLoad *first, const char *ledger, RunCommand *command) {
    if (!first->words.size) return OK;
    Records records = records_read(ledger, text_string(&first->words));
    bool any = has_checkpoint(command->save);
    if (first->needs_empty && any && !records.started)
        return fail(
            ERR_CONFIG,
            "--save %s holds checkpoints that a run with %s does not go on from, and after a failure they "
            "would be taken for its own: save to another folder, or remove them",
            command->save, text_string(&first->words));
    command->resumes = records.started && any && (first->needs_empty || records.saved);
    return OK;
}

Status first_load_can_be_left(const FirstLoad *first, const RunCommand *command) {
    RunCommand later = *command;
    Options train;
    if (!first->words.size) return OK;
    later.num_launcher = 0;
    later.resumes = true;
    char **argv = command_build(&later, NULL, "", &(Text){0});
    int argc = 0;
    while (argv[argc]) argc++;
    Status status = options_parse(&train, FOR_TRAIN, argc - 2, argv + 2);
    command_free(argv);
    TRY(status);
    bool stays = is_for_one_start(&train) || !train.load_optim;
    options_destroy(&train);
    if (!stays) return OK;
    return fail(ERR_CONFIG,
                "supervise: write finetune, ckpt-step and no-load-optim on the command line instead of "
                "into the file of --config: they hold for the first start alone");
}
