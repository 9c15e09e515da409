// What the reader and the writer of safetensors share.
#pragma once
#include "formats/formats.h"

enum { SAFETENSORS_MOST_HEADER = 100000000, SAFETENSORS_SIZE_BYTES = 8 };

// Everything in a file that its header says, `file->path` and `file->file_bytes` being set: fills in the rest
// but `fd`. ERR_DATA for what the format forbids.
Status safetensors_parse(Safetensors *file, const char *header, size_t size);
void safetensors_forget(Safetensors *file); // what safetensors_parse filled in
