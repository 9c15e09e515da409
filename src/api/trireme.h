// The C interface of libtrireme: trireme's models and training runs for other programs.
//
// A model is anything that trireme opens: a checkpoint, a Hugging Face folder, a GGUF file, an adapter with its base. A
// run is a training run whose steps the caller asks for; its ranks are threads of this process. Weights are read and
// written in fp32 by name and rectangle, whatever the grid is. The library prints nothing but warnings.
//
// Functions that can fail return 0, or one of the program's exit statuses (65 damaged input, 66 a missing file, 78
// options that contradict each other, ...); trireme_message() then says what happened. An object may be used by one
// thread at a time.
#ifndef TRIREME_H
#define TRIREME_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRIREME_API __attribute__((visibility("default")))

TRIREME_API const char *trireme_version(void);
TRIREME_API const char *trireme_message(void); // of the last failure in this thread

typedef struct {
    const char *name; // Megatron-LM's, such as "decoder.layers.0.mlp.linear_fc1.weight"
    int64_t rows, cols;
} TriremeTensor;

// ---- models ---------------------------------------------------------------------------------------

typedef struct TriremeModel TriremeModel;

// Opens the model at `path`.
TRIREME_API int trireme_model_open(TriremeModel **model, const char *path);
TRIREME_API void trireme_model_close(TriremeModel *model);
TRIREME_API int trireme_model_tensors(const TriremeModel *model); // how many it has
TRIREME_API TriremeTensor trireme_model_tensor(const TriremeModel *model,
                                               int i); // valid until it is closed
// Reads rows [row, row + rows) and columns [col, col + cols) of a tensor into out [rows, cols].
TRIREME_API int trireme_model_read(TriremeModel *model, const char *name, int64_t row, int64_t col,
                                   int64_t rows, int64_t cols, float *out);
// Continues `prompt`. `words` are options of `trireme generate`, such as "--max-new-tokens", "20"; at most `count` of
// them. *text is to be freed by trireme_free. The model is in memory from the first call on, or anew when options
// differ from those of the last call.
TRIREME_API int trireme_model_generate(TriremeModel *model, const char *prompt, const char *const *words,
                                       int count, char **text);
TRIREME_API void trireme_free(void *memory);

// ---- runs -----------------------------------------------------------------------------------------

typedef struct TriremeRun TriremeRun;

typedef struct {
    int64_t iteration, train_iters; // steps that are done; of the whole run
    int64_t consumed_samples;
    double loss, grad_norm, learning_rate; // of the last step; learning_rate is that of the next one
    double seconds;                        // that it took
    int32_t skipped;                       // 1: the step changed nothing, since a number was not finite
    int32_t over;                          // 1: all steps are done
} TriremeStep;

// Opens a run. `words` are options of `trireme train`, such as "--data-path", "corpus", "--ranks", "2". It goes on from
// --load. Evaluations and saves at intervals happen as the options say.
TRIREME_API int trireme_run_open(TriremeRun **run, const char *const *words, int count);
// Takes a step. Fails with 64 when all are done. A failure of any other kind ends the run.
TRIREME_API int trireme_run_step(TriremeRun *run, TriremeStep *step);
TRIREME_API TriremeStep trireme_run_last(const TriremeRun *run);     // the last step
TRIREME_API int trireme_run_evaluate(TriremeRun *run, double *loss); // on --eval-iters batches
TRIREME_API int trireme_run_save(TriremeRun *run);                   // a checkpoint in --save
TRIREME_API int trireme_run_tensors(const TriremeRun *run);
TRIREME_API TriremeTensor trireme_run_tensor(const TriremeRun *run, int i);
// As trireme_model_read; the numbers are the fp32 weights that the optimizer steps.
TRIREME_API int trireme_run_read(TriremeRun *run, const char *name, int64_t row, int64_t col, int64_t rows,
                                 int64_t cols, float *out);
// Replaces such a part by in [rows, cols]. The optimizer's moments stay.
TRIREME_API int trireme_run_write(TriremeRun *run, const char *name, int64_t row, int64_t col, int64_t rows,
                                  int64_t cols, const float *in);
// Ends the run, which saves to --save as a run that ends early does, and frees it also after a failure.
TRIREME_API int trireme_run_close(TriremeRun *run);

#ifdef __cplusplus
}
#endif
#endif
