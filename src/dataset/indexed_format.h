// The .idx file of an indexed dataset, byte by byte; little-endian, arrays unaligned. Source: Megatron-LM,
// MMapIndexedDataset.
//
//   0       magic "MMIDIDX", two NULs      26       u64 D = documents + 1
//   9       u64 version 1                  34       i32 length of each sequence, in tokens      [N]
//   17      u8 type of the tokens          34+4N    i64 byte offset of each sequence in .bin    [N]
//   18      u64 N = sequences              34+12N   i64 first sequence of each document  [D]; first 0, last N
#pragma once
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "dataset files are little-endian and read as they lie");

enum {
    INDEX_MAGIC_BYTES = 9,
    INDEX_VERSION_AT = 9,
    INDEX_TYPE_AT = 17,
    INDEX_SEQUENCES_AT = 18,
    INDEX_DOCUMENTS_AT = 26,
    INDEX_HEADER_BYTES = 34,
    INDEX_VERSION = 1,
};

enum { TOKENS_I32 = 4, TOKENS_U16 = 8, U16_VOCABULARY_BELOW = 65500 };

static const char index_magic[INDEX_MAGIC_BYTES + 1] = "MMIDIDX\0\0";
