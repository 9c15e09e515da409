// The check of a safetensors header, which reader and writer share.
#pragma once
#include "formats/formats.h"

enum { SAFETENSORS_MAX_HEADER = 100000000, SAFETENSORS_SIZE_BYTES = 8 };

// Reads and checks a header. `file->path` and `file->file_bytes` must be set; all other fields except `fd` are filled
// in. Fails with ERR_DATA for everything that the format forbids.
Status safetensors_parse(Safetensors *file, const char *header, size_t size);
void safetensors_forget(Safetensors *file); // frees the fields that safetensors_parse has filled in
