// The checksum of a tensor's bits.
#include "base/hash.h"
#include "train/internal.h"

uint64_t tensor_hash(Device *device, Stream *stream, Tensor x, void *piece, uint64_t hash) {
    int64_t count = tensor_count(x), most = TENSOR_PIECE_BYTES / (int64_t)dtype_bytes(x.dtype);
    for (int64_t at = 0, some; at < count; at += some) {
        Tensor part = tensor_part(x, at, some = count - at < most ? count - at : most);
        device_download(device, stream, piece, part);
        hash = hash * 0x9E3779B97F4A7C15u + hash64_of(piece, tensor_bytes(part));
    }
    return hash;
}
