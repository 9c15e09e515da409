// Tests the records of TensorBoard's event files: the checksum's published answer, and the bytes of each kind of record
// as the definitions of TensorFlow's protocol buffers give them. tests/monitors.sh has TensorBoard read them.
#include "formats/tfevents.h"
#include "harness.h"
#include <string.h>

static void expect_record(const Text *record, const char *event, size_t size) {
    uint8_t framed[64] = {(uint8_t)size};
    size_t have = 0;
    EXPECT(record->size == size + 16, "%zu bytes", record->size);
    EXPECT(!memcmp(record->data, framed, 8), "the length is not %zu", size);
    have = record->size >= 12 + size ? size : 0;
    EXPECT(have && !memcmp(record->data + 12, event, size), "the event has other bytes");
}

// The checksum over bytes, rotated and shifted as the format wants it.
static uint32_t masked(const void *bytes, size_t size) {
    uint32_t crc = crc32c(bytes, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void expect_checksums(const Text *record) {
    const uint8_t *at = (const uint8_t *)record->data, *end = at + record->size - 4;
    uint32_t head = masked(at, 8), body = masked(at + 12, record->size - 16);
    for (int i = 0; i < 4; i++)
        EXPECT(at[8 + i] == (uint8_t)(head >> 8 * i) && end[i] == (uint8_t)(body >> 8 * i), "byte %d", i);
}

static void checksum(void) {
    EXPECT(crc32c("123456789", 9) == 0xe3069283u, "%08x", crc32c("123456789", 9));
    EXPECT(crc32c("", 0) == 0, "%08x", crc32c("", 0));
}

static void version(void) {
    static const char event[] = "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"
                                "brain.Event:2";
    Text record = {0};
    tfevents_add_version(&record, 1.0);
    expect_record(&record, event, sizeof event - 1);
    expect_checksums(&record);
    text_free(&record);
}

static void scalar(void) {
    // Step 300 takes two bytes; 0.5 in single precision is 3f000000.
    static const char event[] = "\x09\0\0\0\0\0\0\xf0\x3f\x10\xac\x02\x2a\x10\x0a\x0e\x0a\x07"
                                "lm loss"
                                "\x15\0\0\0\x3f";
    Text record = {0};
    tfevents_add_scalars(&record, 1.0, 300, &(EventScalar){"lm loss", 0.5}, 1);
    expect_record(&record, event, sizeof event - 1);
    expect_checksums(&record);
    text_free(&record);
}

static void start(void) {
    static const char event[] = "\x09\0\0\0\0\0\0\xf0\x3f\x10\x06\x3a\x02\x08\x01";
    Text record = {0};
    tfevents_add_start(&record, 1.0, 6);
    expect_record(&record, event, sizeof event - 1);
    text_free(&record);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){
            {"checksum", checksum}, {"version", version}, {"scalar", scalar}, {"start", start}, {0}},
        argc, argv);
}
