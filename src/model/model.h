// A GPT: embedding, transformer layers, final norm and head, run chunk by chunk. GPT-2 (Radford 2019) and Llama
// (Touvron 2023) are two settings of ModelShape.
//
// Every rank declares the parameters of the whole model and runs the layers of the stages that it holds. A pipeline
// runs it through Stage.
#pragma once
#include "layout/layers.h"
#include "layout/schedule.h"
#include "nn/params.h"
#include "nn/shape.h"
#include "nn/stage.h"

typedef struct Gpt Gpt;

// Declares all parameters in `params`, in the model's order. `schedule` says which stages this rank's chunks are,
// `split` which layers a stage has, context->mode how the model is run.   ERR_OS without host memory.
Status gpt_create(Gpt **gpt, const ModelShape *shape, LayerSplit split, Context *context,
                  const Schedule *schedule, Params *params);
// Allocates and fills the tables of the model that are not parameters, after params_place.   ERR_OS without host
// memory.
Status gpt_place(Gpt *gpt, Arena *arena);
// Allocates what cached microbatches need: keys and values of so many positions of B sequences, for every layer of this
// rank.
void gpt_place_cache(Gpt *gpt, Arena *arena, int64_t positions);
void gpt_destroy(Gpt *gpt);
Stage gpt_stage(Gpt *gpt); // borrows the Gpt
// Makes the last stage copy the logits of the next microbatches to `logits`, F32 [T, V/t], until this is called with an
// absent tensor. A microbatch without labels writes those of its last position, F32 [B, V/t].
void gpt_keep_logits(Gpt *gpt, Tensor logits);
