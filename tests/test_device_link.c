// A link of one rank: the library of links is found, has the functions that are called, and computes. On a machine with
// one GPU it is all that can be asked of NVIDIA's library (TRIREME_TEST_DEVICE=cuda).
#include "device/links.h"
#include "device_fixture.h"
#include <time.h>

enum { COUNT = 1000 };

static void wait_until_ready(DeviceLink *link) {
    bool ready = false;
    for (int turn = 0; !ready && turn < 60000; turn++) {
        EXPECT_OK(link_ready(link, &ready));
        if (!ready) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK(ready, "the link is not ready after a minute");
}

typedef enum { GATHER, BROADCAST, ALL_REDUCE, REDUCE_SCATTER, NUM_KINDS } Kind;

// Of one rank's numbers, which are what every operation gives back.
static void use(Fixture *b, DeviceLink *link, Kind kind, DType dtype) {
    float values[COUNT];
    for (int i = 0; i < COUNT; i++) values[i] = (float)(i % 200 - 100);
    Tensor x = from_floats_of(b, dtype, 1, COUNT, values), out = zeros_of(b, dtype, 1, COUNT);
    link_begin(link);
    if (kind == GATHER) link_gather(link, b->stream, x, out);
    if (kind == BROADCAST) link_broadcast(link, b->stream, x, 0);
    if (kind == ALL_REDUCE) link_all_reduce(link, b->stream, x, REDUCE_SUM);
    if (kind == REDUCE_SCATTER) link_reduce_scatter(link, b->stream, x, out);
    link_end(link);
    wait_until_ready(link);
    Tensor got = kind == BROADCAST || kind == ALL_REDUCE ? x : out, host = got;
    int wrong = 0;
    host.data = malloc(tensor_bytes(got));
    CHECK(host.data, "no memory");
    device_download(b->device, b->stream, host.data, got);
    for (int i = 0; i < COUNT; i++) wrong += load(host, i) != (double)values[i];
    EXPECT(!wrong, "operation %d of %s: %d numbers are wrong", (int)kind, dtype_name(dtype), wrong);
    free(host.data);
}

static void one_rank(void) {
    static const DType types[] = {F32, BF16, F16};
    links_set_environment();
    Fixture b = fixture_open(harness_device("cuda-sim"), 1);
    LinkSpec spec = {.name = "alone", .size = 1, .max_blocks = 4};
    DeviceLink *link = NULL;
    char version[32];
    EXPECT_OK(links_check(b.device));
    EXPECT_OK(links_version(b.device, version));
    EXPECT(strchr(version, '.'), "version %s", version);
    EXPECT_OK(link_new_id(b.device, &spec.id));
    EXPECT_OK(link_open(b.device, &spec, &link));
    CHECK(link, "no link");
    wait_until_ready(link);
    for (Kind kind = 0; kind < NUM_KINDS; kind++)
        for (int i = 0; i < 3; i++) use(&b, link, kind, types[i]);
    device_sync(b.device, b.stream);
    link_close(link);
    wait_until_ready(link);
    link_free(link);
    fixture_close(&b);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"one_rank", one_rank}, {0}}, argc, argv);
}
