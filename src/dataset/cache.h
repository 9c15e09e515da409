// Index arrays, made in memory or kept in files and shared.
//
// What takes minutes to compute is a pure function of a few numbers and of the lengths of the sequences. With
// a folder (--data-cache-path) the arrays are kept there as NumPy files, named by a hash of everything they
// depend on; the first rank that finds none makes them, the others map them. Other data, seeds or sizes need
// no clean-up before. A file is used only when it has the checksum that the description beside it gives, and
// is made again otherwise. Names are Megatron-LM's, keys are not:
//
//   KEY-GPTDataset-train-document_index.npy      an array of version 1.0, little-endian
//   KEY-GPTDataset-train-description.txt         what the key is the hash of, and the checksums; written last
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_INDEX_ARRAYS = 3 };

typedef struct {
    const char *name; // "document_index"
    const char *type; // of an item, as NumPy writes it: "<i4"
    size_t item_bytes;
    int64_t rows;
    int columns;  // 0: an array of one dimension
    void *data;   // [rows, columns]; read-only once index_arrays_open has returned
    size_t bytes; // of data
    void *map;    // the mapped file that contains `data`; NULL: `data` is allocated
    size_t map_bytes;
} IndexArray;

// Zero-initialise, then set the first five fields of each array.
typedef struct {
    IndexArray items[MOST_INDEX_ARRAYS];
    int count;
} IndexArrays;

typedef struct {
    const char *folder;      // is made where it is missing; NULL: everything stays in memory
    const char *kind;        // "GPTDataset-train"
    const char *description; // lines of text: all that the arrays are a function of
    // Fills the arrays, which hold zeros.
    void (*build)(const void *self, IndexArrays *arrays);
    // Checks that every value is in its range, as readers expect.
    bool (*is_sound)(const void *self, const IndexArrays *arrays);
    const void *self;
} IndexRecipe;

// ERR_UNAVAILABLE when the arrays are larger than this machine's memory; ERR_CREATE ... when the folder
// cannot be made. When its files cannot be written or read, a note on stderr says so, and the arrays are in
// memory. Any number of threads, processes and machines may ask for the same ones at the same time.
Status index_arrays_open(IndexArrays *arrays, const IndexRecipe *recipe);
void index_arrays_close(IndexArrays *arrays);
