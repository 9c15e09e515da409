// A GPT: embedding, layers, final norm and head, run chunk by chunk. GPT-2 (Radford 2019, as trained in the
// paper) and Llama (Touvron 2023) are two settings of ModelShape.
//
// Every rank declares the whole model and builds the layers of the stages it holds; a pipeline runs it
// through Stage.
#pragma once
#include "layout/layers.h"
#include "layout/schedule.h"
#include "nn/params.h"
#include "nn/shape.h"
#include "nn/stage.h"

typedef struct Gpt Gpt;

// Declares all parameters into `params`, in the model's order; `schedule` says which stages this rank's
// chunks are, `split` which layers a stage has, context->mode how the model is run.
Status gpt_create(Gpt **gpt, const ModelShape *shape, LayerSplit split, Context *context,
                  const Schedule *schedule, Params *params);
// Takes and fills the model's tables that are no parameters, after params_place.   ERR_OS
// without host memory.
Status gpt_place(Gpt *gpt, Arena *arena);
// Takes what cached microbatches need: keys and values of so many positions of B sequences, for every layer
// of this rank.
void gpt_place_cache(Gpt *gpt, Arena *arena, int64_t positions);
void gpt_destroy(Gpt *gpt);
Stage gpt_stage(Gpt *gpt); // borrowed: valid as long as the Gpt
// Asks for a copy of the next microbatches' logits, F32 [T, V/t], on the last stage; an absent tensor ends
// it. For tests and scoring. A microbatch without labels leaves F32 [B, V/t] there, of its last position.
void gpt_keep_logits(Gpt *gpt, Tensor logits);
