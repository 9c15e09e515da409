// Event files of TensorBoard: records of protocol buffers, each with two checksums. A reader takes every file of a
// folder whose name contains "tfevents". It does not see what is appended after a record that was cut, so each start of
// a program begins a file of its own.
//   Source: TensorFlow's record_writer, event.proto and summary.proto.
#pragma once
#include "base/text.h"

typedef struct {
    const char *tag;
    double value; // written in single precision
} EventScalar;

// CRC-32C (Castagnoli).
uint32_t crc32c(const void *bytes, size_t size);
// Append one record. `time` is in seconds since 1970.
void tfevents_add_version(Text *out, double time); // the first record of a file
// Says that a program starts or goes back: readers drop what earlier files have of this step and later ones.
void tfevents_add_start(Text *out, double time, int64_t step);
void tfevents_add_scalars(Text *out, double time, int64_t step, const EventScalar *scalars, int count);
