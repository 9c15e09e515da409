// The cache that Hugging Face's tools download models to: `hf download ORG/NAME` makes CACHE/models--ORG--NAME, in
// which refs/main holds the newest revision and snapshots/REVISION the files of the model, as links.
//   Source: the documentation of huggingface_hub, "Understand caching".
#pragma once
#include "base/text.h"

// The cache is at $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub. Every
// `room` below has 4096 bytes.

// The folder with the files of a model that the path names: by a folder of the cache, or, where there is nothing at the
// path, by the name of a model that was downloaded. Any other path is returned as it is.
const char *hub_model(const char *path, char *room);
// The NAME of a model of the cache, of whose files `path` is the folder; NULL: it is none of them.
const char *hub_model_name(const char *path, char *room);
// Where nothing is at the path and it could be a model's name, ORG/NAME, adds that it is not in the cache and how to
// download it.
void hub_add_advice(const char *path, Text *out);
