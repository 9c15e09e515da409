// `trireme models`: lists the published models that --model knows.
#include "cli/cli.h"
#include "train/train.h"

// Resolves the options of a training run of the model, so that the list shows what a run would build.
static Status resolve_model(const ModelPreset *model, Options *options) {
    char name[64];
    snprintf(name, sizeof name, "--model=%s", model->name);
    TRY(options_parse(options, FOR_MEMORY, 2, (char *[]){name, "--micro-batch-size=1"}));
    return options_resolve(options, 1);
}

// "124.4M", "8.03B"
static void add_count(double count, Text *out) {
    bool billions = count >= 1e9;
    text_add(out, " %9.*f%c", billions ? 2 : 1, billions ? count / 1e9 : count / 1e6, billions ? 'B' : 'M');
}

static void add_row(const ModelPreset *model, const Options *o, const ModelShape *shape, Text *out) {
    text_add(out, "%-20s", model->name);
    add_count((double)model_parameters(shape), out);
    if (shape->experts)
        add_count((double)model_active_parameters(shape), out);
    else
        text_add(out, " %10s", "-");
    text_add(out, " %6d %6d %5d %6d %6d %8d %10d  %-16s %s\n", o->num_layers, o->hidden_size,
             o->num_attention_heads, o->shape.query_groups, o->ffn_hidden_size, o->seq_length, o->vocab_size,
             model->family, model->source);
}

static Status add_model(const ModelPreset *model, Text *out) {
    Options o = {0};
    EngineSpec spec;
    int room[1]; // one stage, no ramp
    Status status = resolve_model(model, &o);
    if (status == OK) status = engine_spec(&o, 1, o.vocab_size, room, &spec);
    if (status == OK) add_row(model, &o, &spec.shape, out);
    options_destroy(&o);
    return status;
}

Status cmd_models(Options *options) {
    if (options->positional.count)
        return fail(ERR_USAGE, "models takes no words such as %s; it lists all, for --model NAME",
                    options->positional.items[0]);
    Text text = {0};
    Status status = OK;
    // A token of a model with experts uses some of its parameters.
    text_add(&text, "%-20s %10s %10s %6s %6s %5s %6s %6s %8s %10s  %-16s %s\n", "name", "parameters",
             "active", "layers", "hidden", "heads", "groups", "ffn", "sequence", "vocabulary", "family",
             "source");
    for (int i = 0; i < num_model_presets && status == OK; i++) status = add_model(&model_presets[i], &text);
    if (status == OK) fputs(text_string(&text), stdout);
    text_free(&text);
    return status;
}
