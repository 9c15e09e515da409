// `trireme generate`: continues a prompt with a trained model.
#include "cli/model_verb.h"
#include "infer/generate.h"

static Status check(const Options *o) {
    for (int i = 0; i < o->stop.count; i++)
        if (!*o->stop.items[i]) return fail(ERR_CONFIG, "--stop is empty: give a text, or leave it out");
    if (o->chat && (!o->prompt || !*o->prompt))
        return fail(ERR_USAGE, "--chat answers a question: give it by --prompt");
    if (o->chat_template && !o->chat)
        return fail(ERR_USAGE, "--chat-template is for --chat: add it, or leave --chat-template out");
    if (o->prompts && (o->prompt || o->num_samples != 1))
        return fail(ERR_USAGE, "--prompts has the prompts, one text for each: leave out %s",
                    o->prompt ? "--prompt" : "--num-samples");
    if (!o->prompts && o->adapter.count > 1)
        return fail(
            ERR_USAGE,
            "--adapter names %d adapters: a prompt says which it takes, as in --prompts FILE with lines "
            "{\"prompt\": \"...\", \"adapter\": \"NAME\"}; with --prompt name one",
            o->adapter.count);
    return OK;
}

Status cmd_generate(Options *options) {
    options_note_idle(options);
    return model_verb(options, check, model_job_needs_tokenizer,
                      options->prompts ? generate_prompts_run : generate_run, NULL);
}
