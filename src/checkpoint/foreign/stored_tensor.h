// A tensor of a Hugging Face folder as it is stored: one of 16 or 32 bits under its own name, or one in MXFP4 (OCP's
// Microscaling formats), as GPT-OSS has its experts. Of MXFP4 two tensors of bytes hold NAME: NAME_blocks [.., rows,
// cols / 32, 16] has two E2M1 codes in each byte, the first one in its low half, and NAME_scales [.., rows, cols / 32]
// the power of two (E8M0) of each block of 32. Rows are outputs, whatever way round the file has the tensor in 16 bits.
#pragma once
#include "checkpoint/foreign/mapping.h"

typedef struct {
    const Safetensors *file;
    const SafeTensor *tensor; // of MXFP4 the blocks
    const Safetensors *scales_file;
    const SafeTensor *scales; // NULL: it is not in MXFP4
} StoredTensor;

// Finds a tensor among files. What is not there stays NULL.
StoredTensor stored_tensor_find(Safetensors *const *files, int num_files, const char *name);
// Fails with ERR_DATA or ERR_UNAVAILABLE, which name file and tensor, for one that is missing, that has no scales or
// no blocks, or that has another shape or type.
Status stored_tensor_check(const StoredTensor *tensor, const TheirTensor *theirs, const char *folder);
// Whether its lines are columns of ours.
bool stored_tensor_is_transposed(const StoredTensor *tensor, const TheirTensor *theirs);
// Reads elements [first, first + count) in the order of the file as fp32.
Status stored_tensor_read(const StoredTensor *tensor, int64_t first, int64_t count, float *out);
