// Adapters in PEFT's format, for models of every kind: merged, each tensor of the other format is its own sum; what is
// written is what was read.
#include "adapter_fixture.h"

// ---- merged -----------------------------------------------------------------------------------------------

// What the adapter adds to element (row, col) of a tensor, by its own name and in its own order.
static double change(const AdapterKind *kind, const SafeTensor *t, int64_t row, int64_t col) {
    static float a[MAX_ELEMENTS], b[MAX_ELEMENTS];
    static char last[200];
    char name[200], stem[160];
    bool conv1d = strstr(t->name, "attn.c_") || strstr(t->name, "mlp.c_");
    int64_t rows = t->shape[conv1d], cols = t->shape[!conv1d];
    if (strcmp(last, t->name) != 0) {
        snprintf(stem, sizeof stem, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
        snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", stem);
        adapter_matrix(kind, name, kind->rank * cols, a);
        snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", stem);
        adapter_matrix(kind, name, rows * kind->rank, b);
        snprintf(last, sizeof last, "%s", t->name);
    }
    int64_t out = conv1d ? col : row, in = conv1d ? row : col;
    double sum = 0;
    for (int k = 0; k < kind->rank; k++) sum += (double)b[out * kind->rank + k] * (double)a[k * cols + in];
    return sum * kind->alpha / (kind->rslora ? sqrt(kind->rank) : kind->rank);
}

static bool is_linear(const char *name) {
    bool experts = strstr(name, "expert") || strstr(name, "mlp.gate.") || strstr(name, "_moe.") ||
                   strstr(name, "mlp.router.") || strstr(name, ".sinks");
    return !experts && !strstr(name, "norm") && !strstr(name, ".ln_") && !strstr(name, "bias") &&
           (strstr(name, ".h.") || strstr(name, "layers."));
}

static void expect_merged(const AdapterKind *kind, const char *base, const char *merged) {
    static float before[MAX_ELEMENTS], after[MAX_ELEMENTS];
    Safetensors *x, *y;
    EXPECT_OK(safetensors_open(&x, inside(base, "model.safetensors").text));
    EXPECT_OK(safetensors_open(&y, inside(merged, "model.safetensors").text));
    for (int i = 0; x && y && i < x->count; i++) {
        const SafeTensor *t = &x->tensors[i], *other = safetensors_find(y, t->name);
        int64_t cols = t->ndim == 2 ? t->shape[1] : 1, count = t->shape[0] * cols;
        EXPECT_OK(safetensors_read_f32(x, t, 0, count, before));
        EXPECT_OK(safetensors_read_f32(y, other, 0, count, after));
        for (int64_t j = 0; j < count; j++) {
            double add = is_linear(t->name) ? change(kind, t, j / cols, j % cols) : 0;
            double wanted = (double)before[j] + add, error = fabs((double)after[j] - wanted);
            EXPECT(error <= (add == 0 ? 0 : 1e-5), "%s, element %" PRId64 ": %g, not %g", t->name, j,
                   (double)after[j], wanted);
        }
    }
    safetensors_close(x);
    safetensors_close(y);
}

static void every_kind(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        ModelShape shape = shapes[i]();
        char name[32];
        snprintf(name, sizeof name, "kind%d", i);
        Path save = path_of(name), plain = inside(save.text, "plain"), adapter = inside(save.text, "lora"),
             merged = inside(save.text, "merged"), back = inside(save.text, "back");
        AdapterKind kind = {.rank = 3, .alpha = 5, .rslora = i % 2, .seed = 9};
        make_checkpoint(save.text, &shape, 7, (uint64_t)i);
        adapter_write(&kind, &shape, adapter.text, save.text);
        export_to(save.text, plain.text, FILE_F32);
        export_to(adapter.text, merged.text, FILE_F32);
        expect_merged(&kind, plain.text, merged.text);
        ModelSource *source;
        EXPECT_OK(model_source_open(&source, save.text, -1));
        EXPECT_OK(model_source_adapt(&source, adapter.text, false));
        EXPECT_OK(export_peft(source, back.text, FILE_F32));
        expect_same_file(inside(adapter.text, "adapter_model.safetensors").text,
                         inside(back.text, "adapter_model.safetensors").text);
        model_source_close(source);
        import_to(back.text, inside(save.text, "imported").text);
        export_to(inside(save.text, "imported").text, inside(save.text, "again").text, FILE_F32);
        expect_same_file(inside(merged.text, "model.safetensors").text,
                         inside(save.text, "again/model.safetensors").text);
    }
}

// ---- what is refused ----------------------------------------------------------------------------------------

static void expect_refused(const char *base, const char *folder, Status status, const char *words) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, base, -1));
    Status found = model_source_adapt(&source, folder, false);
    EXPECT(found == status && strstr(fail_message(), words), "%d: %s; wanted %d: %s", (int)found,
           fail_message(), (int)status, words);
    EXPECT(!strcmp(model_source_base_path(source), model_source_path(source)), "the source stays as it was");
    model_source_close(source);
}

static void refused(void) {
    ModelShape shape = llama(), deeper = llama(), other = gpt2();
    AdapterKind kind = {.rank = 3, .alpha = 5};
    deeper.layers = 3;
    Path save = path_of("base"), deep = path_of("deep"), foreign = path_of("foreign"), lora = path_of("lora");
    make_checkpoint(save.text, &shape, 1, 1);
    make_checkpoint(deep.text, &deeper, 1, 1);
    make_checkpoint(foreign.text, &other, 1, 1);
    adapter_write(&kind, &shape, lora.text, save.text);
    expect_refused(deep.text, lora.text, ERR_DATA, "although other layers have them");
    expect_refused(foreign.text, lora.text, ERR_DATA, "belongs to no linear layer of the model in");
    expect_refused(save.text, save.text, ERR_CONFIG, "is a whole model, no adapter");
    static const struct {
        const char *more, *words;
        Status status;
    } rows[] = {{", \"use_dora\": true", "\"use_dora\" is not what plain LoRA has", ERR_UNAVAILABLE},
                {", \"rank_pattern\": {\"q_proj\": 4}", "\"rank_pattern\" is not", ERR_UNAVAILABLE},
                {", \"init_lora_weights\": \"olora\"", "\"init_lora_weights\" is not", ERR_UNAVAILABLE},
                {", \"lora_dropout\": 2", "\"lora_dropout\" is not a number from 0 to 1", ERR_DATA}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        adapter_config(&kind, lora.text, save.text, rows[i].more);
        expect_refused(save.text, lora.text, rows[i].status, rows[i].words);
    }
    adapter_config(&kind, lora.text, "somebody/model", "");
    ModelSource *source;
    Status status = model_source_open(&source, lora.text, -1);
    EXPECT(status == ERR_NO_INPUT && strstr(fail_message(), "names the model \"somebody/model\""), "%s",
           fail_message());
    adapter_config(&kind, lora.text, lora.text, "");
    status = model_source_open(&source, lora.text, -1);
    EXPECT(status == ERR_CONFIG && strstr(fail_message(), "has to be a whole model"), "%s", fail_message());
    EXPECT_OK(model_source_open(&source, save.text, -1));
    status = export_peft(source, path_of("never").text, FILE_F32);
    EXPECT(status == ERR_CONFIG && strstr(fail_message(), "without an adapter"), "%s", fail_message());
    model_source_close(source);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every_kind", every_kind}, {"refused", refused}, {0}}, argc, argv);
}
