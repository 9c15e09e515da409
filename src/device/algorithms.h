// Tables of algorithms: for matrix products of some shapes, which of its library's algorithms a device takes.
//
// A library proposes several algorithms for a product, and which is fastest only a clock can say. But results have the
// bits of the algorithm that made them, so a run never chooses by time: `trireme bench` measures once and writes a
// file, and runs that name it take its choices. Products that the file does not have get the library's first proposal.
//
// A table is text. Its first line is ALGORITHMS_TITLE, its last one "checksum " and the XXH3-64 of all bytes before
// that line, in 16 hexadecimal digits. The lines between are the backend's (device/cuda/algorithms.c): for which GPU
// and which version of the library the table is, and a row for each product. A file is read as one from a stranger: an
// algorithm is a number of bytes that means something to one version of one library only.
#pragma once
#include "device/op_table.h"

#define ALGORITHMS_TITLE "trireme product algorithms 1"

// ---- writing ----------------------------------------------------------------------------------------------

// Begins a table for the device.   ERR_CONFIG for a kind of device that has no algorithms to choose from.
Status algorithms_begin(Device *device, Text *table);
// Times the algorithms that the library proposes for a product, on the stream, and appends the row of the fastest. The
// tensors are in device memory; d, sums and the aux of a forward are written. Nothing is appended where the library has
// only one, or none.
Status algorithms_time(Device *device, Stream *stream, JoinedProduct product, Text *table);
void algorithms_end(Text *table);

// ---- reading ----------------------------------------------------------------------------------------------

// Reads a table into memory that the caller frees, without its last line.   ERR_DATA for a file that is no table, or
// that has changed since it was written; the message has file and line. As file_read for one that cannot be read.
Status algorithms_read(const char *file, char **text);
// Says which table a file has: its checksum. Ranks that have different ones compute other bits.
void algorithms_describe(const char *file, Text *out);
