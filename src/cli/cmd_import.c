// `trireme import`: makes a checkpoint of a Hugging Face folder.
#include "base/rank.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"

Status cmd_import(Options *o) {
    tell_notes(o);
    ModelSource *source;
    if (o->positional.count != 1)
        return fail(ERR_USAGE, "usage: trireme import SOURCE --save FOLDER; SOURCE is a Hugging Face folder");
    if (!o->save || !*o->save)
        return fail(ERR_USAGE, "import needs --save FOLDER: it writes FOLDER/step-00000000");
    TRY(model_source_open(&source, o->positional.items[0], -1));
    model_source_warn(source);
    model_source_allow_non_finite(source, o->allow_non_finite);
    double start = clock_s();
    Status status = import_model(source, o->save, o->lock_timeout);
    double millions = (double)model_parameters(&model_source_info(source)->shape) / 1e6;
    if (status == OK)
        printf("%s/step-00000000: %.2f M parameters from %s in %.1f s\n", o->save, millions,
               model_source_path(source), clock_s() - start);
    if (status == OK && model_source_non_finite(source))
        printf("WARNING: %lld of its weights are NaN or infinite\n",
               (long long)model_source_non_finite(source));
    model_source_close(source);
    return status;
}
