// Writes the records of TensorBoard's event files.
#include "formats/tfevents.h"
#include <string.h>

// The wire types of protocol buffers that are used here.
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
// The fields of an Event, of a Summary and of its Value, and of a SessionLog.
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };

uint32_t crc32c(const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked_crc(const void *bytes, size_t size) {
    uint32_t crc = crc32c(bytes, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_little_endian(Text *out, uint64_t value, int size) {
    uint8_t bytes[8];
    for (int i = 0; i < size; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    text_add_bytes(out, bytes, (size_t)size);
}

static void add_varint(Text *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) add_little_endian(out, value | 0x80, 1);
    add_little_endian(out, value, 1);
}

static void add_key(Text *out, int field, int wire) { add_varint(out, (uint64_t)(field << 3 | wire)); }

static void add_field(Text *out, int field, const void *bytes, size_t size) {
    add_key(out, field, BYTES);
    add_varint(out, size);
    text_add_bytes(out, bytes, size);
}

static void add_record(Text *out, const Text *event) {
    Text length = {0};
    add_little_endian(&length, event->size, 8);
    text_add_bytes(out, length.data, length.size);
    add_little_endian(out, masked_crc(length.data, length.size), 4);
    text_add_bytes(out, event->data, event->size);
    add_little_endian(out, masked_crc(event->data, event->size), 4);
    text_free(&length);
}

static void begin_event(Text *event, double time, int64_t step) {
    uint64_t bits;
    memcpy(&bits, &time, sizeof bits);
    add_key(event, EVENT_TIME, FIXED64);
    add_little_endian(event, bits, 8);
    if (step < 0) return;
    add_key(event, EVENT_STEP, VARINT);
    add_varint(event, (uint64_t)step);
}

static void add_event(Text *out, double time, int64_t step, int field, const void *bytes, size_t size) {
    Text event = {0};
    begin_event(&event, time, step);
    add_field(&event, field, bytes, size);
    add_record(out, &event);
    text_free(&event);
}

void tfevents_add_version(Text *out, double time) {
    static const char version[] = "brain.Event:2";
    add_event(out, time, -1, EVENT_VERSION, version, strlen(version));
}

void tfevents_add_start(Text *out, double time, int64_t step) {
    static const uint8_t start[] = {SESSION_STATUS << 3 | VARINT, SESSION_START};
    add_event(out, time, step, EVENT_SESSION, start, sizeof start);
}

static void add_value(Text *summary, const EventScalar *scalar) {
    float single = (float)scalar->value;
    uint32_t bits;
    Text value = {0};
    memcpy(&bits, &single, sizeof bits);
    add_field(&value, VALUE_TAG, scalar->tag, strlen(scalar->tag));
    add_key(&value, VALUE_SIMPLE, FIXED32);
    add_little_endian(&value, bits, 4);
    add_field(summary, SUMMARY_VALUE, value.data, value.size);
    text_free(&value);
}

void tfevents_add_scalars(Text *out, double time, int64_t step, const EventScalar *scalars, int count) {
    Text summary = {0};
    for (int i = 0; i < count; i++) add_value(&summary, &scalars[i]);
    add_event(out, time, step, EVENT_SUMMARY, text_string(&summary), summary.size);
    text_free(&summary);
}
