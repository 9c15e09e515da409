// `trireme generate`: continues a prompt with a trained model.
#include "cli/model_verb.h"
#include "infer/generate.h"

static Status check(const Options *o) {
    for (int i = 0; i < o->stop.count; i++)
        if (!*o->stop.items[i]) return fail(ERR_CONFIG, "--stop is empty: give a text, or leave it out");
    return OK;
}

Status cmd_generate(Options *options) {
    options_note_idle(options);
    return model_verb(options, check, model_job_needs_tokenizer, generate_run);
}
