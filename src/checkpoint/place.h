// What is at a path that may name a model, before anything is opened.
#pragma once
#include "checkpoint/checkpoint.h"

bool place_holds(const char *folder, const char *file);
bool place_is_folder(const char *path);
bool place_is_gguf(const char *path);
// A folder may hold an adapter's files and a model's: then it is a model where it has the weights of one.
bool place_is_adapter(const char *path);
// Whether `trireme finetune` has made the folder (its record is there).
bool place_is_finetuning(const char *folder);
// Where the model of `path` is. For the folder of a fine-tuning that is its hf/; for a step >= 0, and as long as
// nothing is exported, its checkpoints/. For a model in Hugging Face's cache (formats/hub_cache.h), named by its folder
// there or by ORG/NAME, it is the folder of its files. Any other path is that of its model.   `room` of at least
// PATH_ROOM bytes.
const char *place_of_model(const char *path, int64_t step, char *room);
