// Converts the options of `trireme train` into the configuration that the planner predicts.
#include "plan/plan.h"
#include <string.h>

static FactorFormat factors_of_run(const Options *o) {
    if (o->fp4_format) return FACTORS_NVFP4;
    if (!o->fp8_format) return FACTORS_WHOLE;
    return strcmp(o->fp8_recipe, "mxfp8") ? FACTORS_FP8 : FACTORS_MXFP8;
}

Status parallel_config_of_run(const Options *o, ParallelConfig *out) {
    const RunShape *s = &o->shape;
    if (!strcmp(s->recompute, "block"))
        return fail(ERR_CONFIG, "recompute-method block is not predicted; uniform is");
    *out = (ParallelConfig){.grid = options_grid(o),
                            .chunks = s->vp,
                            .microbatch = o->micro_batch_size,
                            .batch = s->global_batch,
                            .schedule = schedule_kind(s->schedule)->name,
                            .recompute = !strcmp(s->recompute, "nothing")     ? RECOMPUTE_NOTHING
                                         : !strcmp(s->recompute, "selective") ? RECOMPUTE_SELECTIVE
                                                                              : RECOMPUTE_UNIFORM,
                            .attention = s->keep_probabilities ? ATTENTION_UNFUSED : ATTENTION_FUSED,
                            .dtype = o->bf16   ? BF16
                                     : o->fp16 ? F16
                                               : F32,
                            .factors = factors_of_run(o),
                            .sequence_parallel = s->sequence_parallel,
                            .zero_stage = (int)s->sharding,
                            .reduce_every = o->reduce_grads_every_microbatch,
                            .context_way = options_context_way(o),
                            .scatter_gather = o->scatter_gather_tensors_in_pipeline,
                            .overlap_gradients = o->overlap_grad_reduce,
                            .device = strcmp(o->device, "cuda") ? NULL : "cuda",
                            .muon = muon_options(o),
                            .offload = strcmp(o->device, "cuda") ? 0 : options_offload(o)};
    return OK;
}
