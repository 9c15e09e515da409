// `trireme generate`: continues a prompt with a trained model.
#include "cli/model_verb.h"
#include "infer/generate.h"
#include <string.h>

static Status check_chat(const Options *o) {
    if (!o->chat && (o->system || o->chat_template))
        return fail(ERR_CONFIG, "--system and --chat-template are parts of a conversation: add --chat");
    if (o->chat && o->prompts)
        return fail(ERR_CONFIG, "--prompts are texts to continue, not messages: leave out --chat");
    if (o->chat && o->prompt && (!*o->prompt || !strcmp(o->prompt, "-")))
        return fail(ERR_CONFIG, "--chat reads messages from standard input, a line each, where --prompt has "
                                "none: leave out --prompt");
    if (o->chat && o->num_samples != 1)
        return fail(ERR_CONFIG, "--chat gives one answer to each message: leave out --num-samples");
    return OK;
}

static Status check(const Options *o) {
    TRY(check_chat(o));
    for (int i = 0; i < o->stop.count; i++)
        if (!*o->stop.items[i]) return fail(ERR_CONFIG, "--stop is empty: give a text, or leave it out");
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
    RankMain *run = options->chat ? chat_run : options->prompts ? generate_prompts_run : generate_run;
    return model_verb(options, check, model_job_needs_tokenizer, run, NULL);
}
