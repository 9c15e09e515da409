// Arrays of indices, computed in memory or kept in files that runs and ranks share.
//
// The arrays take minutes to compute, and are a pure function of a few numbers and of the lengths of the sequences.
// With a folder (--data-cache-path) they are kept there as NumPy files, whose names contain a hash of everything
// they depend on, so files of other data, seeds or sizes may stay. The first rank that finds no files makes them,
// the others map them. A file is used only when it has the checksum in the description file; otherwise it is made
// again. The names are Megatron-LM's, the keys are not:
//
//   KEY-GPTDataset-train-document_index.npy      an array of version 1.0, little-endian
//   KEY-GPTDataset-train-description.txt         the text that KEY is the hash of, and checksums; written last
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_INDEX_ARRAYS = 3 };

typedef struct {
    const char *name; // "document_index"
    const char *type; // of an element, as NumPy writes it: "<i4"
    size_t item_bytes;
    int64_t rows;
    int columns;  // 0: an array of one dimension
    void *data;   // [rows, columns]; read-only after index_arrays_open
    size_t bytes; // of `data`
    void *map;    // the mapped file that contains `data`; NULL: `data` is allocated
    size_t map_bytes;
} IndexArray;

// Zero-initialise it, then set the first five fields of each array.
typedef struct {
    IndexArray items[MAX_INDEX_ARRAYS];
    int count;
} IndexArrays;

typedef struct {
    const char *folder;      // is created if missing; NULL: the arrays stay in memory
    const char *kind;        // "GPTDataset-train"
    const char *description; // lines of text: everything that the arrays depend on
    // Fills the arrays, which are zero before.
    void (*build)(const void *self, IndexArrays *arrays);
    // Checks that every value is in its valid range.
    bool (*is_sound)(const void *self, const IndexArrays *arrays);
    const void *self;
} IndexRecipe;

// Makes the arrays, or maps their files. Fails with ERR_UNAVAILABLE when they are larger than the memory of this
// machine, and with ERR_CREATE and others when the folder cannot be created. When files cannot be written or read,
// a note on standard error says so, and the arrays are in memory. Any number of threads, processes and machines
// may open the same ones at the same time.
Status index_arrays_open(IndexArrays *arrays, const IndexRecipe *recipe);
void index_arrays_close(IndexArrays *arrays);
