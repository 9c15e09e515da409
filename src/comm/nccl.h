// The device transport "nccl": GPUs of any processes and machines, by links of NVIDIA's NCCL (device/links.h).
//
// Sums. NCCL adds in an order of its own and rounds bf16 at every step, and its maximum loses NaN. So ranks exchange
// slices through a staging buffer, each adds its own slice of everybody's in rank order, and the sums are gathered: the
// bits of device/reduce.h, for as many bytes as a ring moves. Small tensors are gathered whole, and each rank adds all.
// Without CommOptions.deterministic sums are NCCL's own.
//
// No rank waits for ever. An operation of a link stays on the GPU until all of its ranks have come to theirs, and holds
// up what is behind it. So each channel of messages has a link and a stream of its own, which suffices for every
// schedule of pipelines (tests/test_layout_nccl.c), and each group has a link and a stream for the collectives that are
// started and awaited later. A collective that is awaited at once runs on the stream of the call. Links take few thread
// blocks of a GPU, so that all fit on it together.
//
// Links and staging are made and used once before the first step, when groups are opened and by comm_open_channels:
// what NCCL allocates later would wait for operations that run. The group of all ranks has none: no step has calls on
// its tensors, and what there is goes by the host's transport.
#pragma once
#include <stddef.h>

// The memory of the device that a group of so many ranks takes for its staging buffer; NCCL's own comes on top.
size_t nccl_staging_bytes(int ranks);
