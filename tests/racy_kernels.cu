// A kernel whose threads need two barriers, with both and with one left out, for the test of the emulator.
#include "device/cuda/portable.h"

enum { THREADS = 64 };

// Values go around a ring of threads: out[t] is x[(t + turns) % THREADS].
template <bool WAITS_TO_READ, bool WAITS_TO_WRITE>
__global__ void ring_kernel(const float *x, float *out, int turns) {
    SHARED(float, ring, THREADS);
    const unsigned t = threadIdx.x;
    float value = x[t];
    for (int i = 0; i < turns; i++) {
        ring[t] = value;
        if (WAITS_TO_READ) __syncthreads();
        value = ring[(t + 1) % THREADS];
        if (WAITS_TO_WRITE) __syncthreads();
    }
    out[t] = value;
}

extern "C" void racy_ring(bool waits_to_read, bool waits_to_write, cudaStream_t stream, const float *x,
                          float *out, int turns) {
    if (!waits_to_read)
        LAUNCH((ring_kernel<false, true>), 1, THREADS, 0, stream, x, out, turns);
    else if (!waits_to_write)
        LAUNCH((ring_kernel<true, false>), 1, THREADS, 0, stream, x, out, turns);
    else
        LAUNCH((ring_kernel<true, true>), 1, THREADS, 0, stream, x, out, turns);
}
