// Copies between a device and memory of device_host_memory, which the host does not wait for.
#include "device_fixture.h"

// In floats: less and more than the CUDA device copies through a stage of its own.
enum { FEW = 16, MANY = 1 << 16, HOST_BYTES = 1 << 20 };

// Memory of the host beside a device.
typedef struct {
    Arena arena;
    float *sent, *got; // 0, 1, 2 ...; -1 everywhere
} HostValues;

static HostValues host_open(Fixture *b, int64_t count) {
    HostValues host = {0};
    EXPECT_OK(arena_open(&host.arena, "host", device_host_memory(b->device), HOST_BYTES));
    host.sent = tensor_take(&host.arena, "sent", 1, count, F32).data;
    host.got = tensor_take(&host.arena, "got", 1, count, F32).data;
    for (int64_t i = 0; i < count; i++) host.sent[i] = (float)i, host.got[i] = -1;
    return host;
}

// Expects the values that were sent, each with `more` added.
static void expect_sum(const HostValues *host, const float *got, int64_t count, float more) {
    for (int64_t i = 0; i < count; i++)
        if (got[i] != host->sent[i] + more) {
            EXPECT(false, "value %d of %d: %g, not %g", (int)i, (int)count, (double)got[i],
                   (double)(host->sent[i] + more));
            return;
        }
}

// The copies have their places among the operations of the stream: the second addition comes after the download.
static void copies_keep_the_order(Fixture *b) {
    static const int64_t counts[] = {FEW, MANY};
    for (int i = 0; i < 2; i++) {
        int64_t count = counts[i];
        HostValues host = host_open(b, count);
        Tensor x = zeros_of(b, F32, 1, count), one = tensor_f32(b, 1, count);
        float *ones = malloc(tensor_bytes(one));
        CHECK(ones, "no memory");
        for (int64_t k = 0; k < count; k++) ones[k] = 1;
        device_upload(b->device, b->stream, one, ones);
        device_upload_async(b->device, b->stream, x, host.sent);
        add(b->device, b->stream, (Add){one, x});
        device_download_async(b->device, b->stream, host.got, x);
        StreamEvent came = event_record(b->device, b->stream);
        add(b->device, b->stream, (Add){one, x});
        event_wait(b->device, came);
        expect_sum(&host, host.got, count, 1);
        device_download(b->device, b->stream, ones, x);
        expect_sum(&host, ones, count, 2);
        free(ones);
        arena_close(&host.arena);
    }
}

static void copies_are_in_order(void) { on_every_device(copies_keep_the_order); }

// Both return while the work that was put on the stream before is still to be done, whatever their size.
static void copies_do_not_wait(void) {
    static const int64_t counts[] = {FEW, MANY};
    for (int i = 0; i < 2; i++) {
        Fixture b = fixture_open("cuda-sim", 1);
        int64_t count = counts[i];
        HostValues host = host_open(&b, count);
        Tensor x = zeros_of(&b, F32, 1, count);
        const float *there = device_address(b.device, x);
        device_sync(b.device, b.stream);
        device_upload_async(b.device, b.stream, x, host.sent);
        EXPECT(there[1] == 0, "%d values: the upload waited", (int)count);
        device_download_async(b.device, b.stream, host.got, x);
        EXPECT(there[1] == 0 && host.got[0] == -1 && host.got[count - 1] == -1,
               "%d values: the download waited", (int)count);
        event_wait(b.device, event_record(b.device, b.stream));
        expect_sum(&host, host.got, count, 0);
        arena_close(&host.arena);
        fixture_close(&b);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"copies_are_in_order", copies_are_in_order},
                                      {"copies_do_not_wait", copies_do_not_wait},
                                      {0}},
                       argc, argv);
}
