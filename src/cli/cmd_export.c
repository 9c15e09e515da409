// `trireme export`: writes a model as a Hugging Face folder or a GGUF file.
#include "base/rank.h"
#include "checkpoint/adapter_weights.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "infer/model_job.h"
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const char *name;
    FileType hugging_face; // NUM_FILE_TYPES: not there
    GgufKind gguf;
} TypeRow;

static const TypeRow types[] = {
    {"f32", FILE_F32, GGUF_F32},
    {"f16", FILE_F16, GGUF_F16},
    {"bf16", FILE_BF16, GGUF_BF16},
    {"q8_0", NUM_FILE_TYPES, GGUF_Q8_0},
};

// Returns the file type of that name; NULL: it is unknown, as that of a checkpoint of another version may be.
static const TypeRow *find_type(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) return &types[i];
    return NULL;
}

static Status check_options(const Options *o) {
    if (o->positional.count > 0)
        return fail(ERR_USAGE, "'%s' belongs to no option; the model is given by --load",
                    o->positional.items[0]);
    if (!o->load || !*o->load)
        return fail(ERR_USAGE,
                    "export needs --load PATH: a checkpoint, a folder of them, or a Hugging Face model");
    if (!o->output || !*o->output)
        return fail(ERR_USAGE, "export needs --output %s", !strcmp(o->to, "gguf") ? "FILE" : "FOLDER");
    if (strcmp(o->to, "gguf") != 0 && o->dtype && find_type(o->dtype)->hugging_face == NUM_FILE_TYPES)
        return fail(ERR_CONFIG, "--dtype %s works with --to gguf only; with --to %s use f32, f16 or bf16",
                    o->dtype, o->to);
    return options_check_one_adapter(o);
}

static double written_mb(const char *path) {
    char tensors[4096];
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    for (int i = 0; folder && i < 2; i++) {
        const char *name = i ? "adapter_model" : "model";
        int size = snprintf(tensors, sizeof tensors, "%s/%s.safetensors", path, name);
        if (size < (int)sizeof tensors && stat(tensors, &info) == 0) return (double)info.st_size / 1e6;
    }
    return folder ? 0 : (double)info.st_size / 1e6;
}

static void note_family(const ModelShape *shape) {
    Text lack = {0};
    family_lack(shape, &lack);
    if (lack.size) fprintf(stderr, "note: %s: it is written as a model of another family\n", lack.data);
    text_free(&lack);
}

static Status export(ModelSource *source, const Options *o) {
    const CheckpointInfo *info = model_source_info(source);
    const TypeRow *type = find_type(o->dtype ? o->dtype : info->dtype);
    if (!type)
        return fail(ERR_UNAVAILABLE, "%s: tensors in %s cannot be written; choose another type with --dtype",
                    model_source_path(source), info->dtype);
    note_family(&info->shape);
    double start = clock_s();
    bool adapter = !strcmp(o->to, "peft");
    if (adapter)
        TRY(export_peft(source, o->output, type->hugging_face));
    else if (!strcmp(o->to, "gguf"))
        TRY(export_gguf(source, o->output, type->gguf));
    else
        TRY(export_hugging_face(source, o->output, type->hugging_face));
    double seconds = clock_s() - start, mb = written_mb(o->output);
    int64_t parameters =
        adapter ? adapter_weights_parameters(model_source_adapter(source)) : model_parameters(&info->shape);
    printf("%s: %.2f M parameters as %s, %.1f MB in %.1f s (%.0f MB/s), from %s\n", o->output,
           (double)parameters / 1e6, type->name, mb, seconds, mb / (seconds + 1e-9),
           model_source_path(source));
    return OK;
}

Status cmd_export(Options *o) {
    tell_notes(o);
    ModelSource *source;
    TRY(check_options(o));
    TRY(model_open(o, o->load, o->ckpt_step == INT_UNSET ? -1 : o->ckpt_step, &source));
    model_source_warn(source);
    Status status = export(source, o);
    model_source_close(source);
    return status;
}
