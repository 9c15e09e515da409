// Folders of PEFT with random adapters of small models.
#pragma once
#include "base/file.h"
#include "checkpoint/foreign/peft.h"
#include "checkpoint_models.h"

typedef struct {
    int rank;
    double alpha;
    bool rslora;
    uint64_t seed;
    const char *only; // modules whose names contain this; NULL: all
} AdapterKind;

static inline void adapter_matrix(const AdapterKind *kind, const char *name, int64_t count, float *values) {
    rng_fill_normal(rng_key(kind->seed, name, 0), 0, (uint64_t)count, 0, 1, values);
}

// `more` are further members of the configuration.
static inline void adapter_config(const AdapterKind *kind, const char *folder, const char *base,
                                  const char *more) {
    Text text = {0};
    text_add(&text,
             "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": %d, \"lora_alpha\": %g, "
             "\"use_rslora\": %s, \"bias\": \"none\", \"target_modules\": [\"any\"], "
             "\"base_model_name_or_path\": \"%s\"%s}",
             kind->rank, kind->alpha, kind->rslora ? "true" : "false", base, more);
    EXPECT_OK(file_write(inside(folder, "adapter_config.json").text, text.data, text.size));
    text_free(&text);
}

typedef struct {
    SafeTensor tensors[64];
    char names[64][160];
    int count;
} AdapterMatrices;

static inline void adapter_add(AdapterMatrices *m, const TheirTensor *t, char which, int64_t rows,
                               int64_t cols) {
    CHECK(m->count < 64, "too many matrices");
    peft_name(t, which, m->names[m->count]);
    m->tensors[m->count] =
        (SafeTensor){.name = m->names[m->count], .type = FILE_F32, .ndim = 2, .shape = {rows, cols}};
    m->count++;
}

static inline void adapter_list(const AdapterKind *kind, const ModelShape *shape, AdapterMatrices *m) {
    Mapping mapping;
    const Family *family;
    AdapterModule module;
    EXPECT_OK(family_of(shape, &family));
    EXPECT_OK(mapping_create(&mapping, shape, family, FORMAT_HUGGING_FACE));
    for (int i = 0; i < mapping.num_tensors; i++) {
        const TheirTensor *t = &mapping.tensors[i];
        if (!peft_module(&mapping, shape, t, &module) || (kind->only && !strstr(t->name, kind->only)))
            continue;
        adapter_add(m, t, 'A', kind->rank, t->cols);
        adapter_add(m, t, 'B', t->rows, kind->rank);
    }
    mapping_destroy(&mapping);
}

static inline void adapter_write(const AdapterKind *kind, const ModelShape *shape, const char *folder,
                                 const char *base) {
    static float values[MAX_ELEMENTS];
    AdapterMatrices m = {0};
    SafetensorsWriter writer;
    adapter_list(kind, shape, &m);
    EXPECT_OK(folder_make(folder));
    adapter_config(kind, folder, base, "");
    EXPECT_OK(safetensors_create(&writer, inside(folder, "adapter_model.safetensors").text, m.tensors,
                                 m.count, &(SafeMetadata){"format", "pt"}, 1));
    for (int i = 0; i < m.count; i++) {
        int64_t count = m.tensors[i].shape[0] * m.tensors[i].shape[1];
        adapter_matrix(kind, m.tensors[i].name, count, values);
        EXPECT_OK(safetensors_add(&writer, values, (size_t)count * sizeof *values));
    }
    EXPECT_OK(safetensors_finish(&writer));
}
