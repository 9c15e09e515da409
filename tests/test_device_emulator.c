// The emulator of kernels: a barrier that is missing gives wrong numbers, in each order of threads.
#include "cuda_fixture.h"
#include <stdlib.h>
#include <sys/wait.h>

enum { THREADS = 64, TURNS = 3 };
void racy_ring(bool waits_to_read, bool waits_to_write, cudaStream_t stream, const float *x, float *out,
               int turns);

// Elements that are wrong.
static int wrong_of(bool waits_to_read, bool waits_to_write) {
    Gpu gpu = gpu_open();
    float *x = gpu_tensor(&gpu, F32, 1, THREADS, 0).data, *out = gpu_tensor(&gpu, F32, 1, THREADS, 0).data;
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) x[i] = (float)i;
    racy_ring(waits_to_read, waits_to_write, stream_of(&gpu.exec), x, out, TURNS);
    gpu_wait(&gpu);
    for (int i = 0; i < THREADS; i++) wrong += out[i] != (float)((i + TURNS) % THREADS);
    gpu_close(&gpu);
    return wrong;
}

// A process of its own: threads keep the order that they began with.
static int wrong_in_order(const char *order, const char *seed, bool waits_to_read, bool waits_to_write) {
    int state = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("TRIREME_SIM_ORDER", order, 1);
        setenv("TRIREME_SIM_SEED", seed, 1);
        _exit(wrong_of(waits_to_read, waits_to_write));
    }
    CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state), "the child ended with %#x",
          (unsigned)state);
    return WEXITSTATUS(state);
}

static void missing_barriers_show(void) {
    static const char *const orders[][2] = {{"forward", "1"}, {"backward", "1"}, {"drawn", "1"},
                                            {"drawn", "2"},   {"drawn", "3"},    {"drawn", "4"}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        const char *order = orders[i][0], *seed = orders[i][1];
        EXPECT(wrong_in_order(order, seed, true, true) == 0, "%s %s: wrong with both barriers", order, seed);
        EXPECT(wrong_in_order(order, seed, false, true) > 0, "%s %s: the first barrier", order, seed);
        EXPECT(wrong_in_order(order, seed, true, false) > 0, "%s %s: the second barrier", order, seed);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"missing_barriers_show", missing_barriers_show}, {0}}, argc, argv);
}
