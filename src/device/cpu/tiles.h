// The registers of AMX: tiles of 16 rows of 64 bytes. One instruction adds to a tile of fp32 the product of two
// others: 16 rows of 32 numbers in bf16, and 16 rows of 16 pairs of them, neighbours along the sum.
//
// Linux has to have given the process room for them (cpu.c). Only files compiled for AMX include this.
#pragma once
#include <immintrin.h>
#include <stdint.h>

enum { TILE = 16 }; // rows of a tile; floats, or pairs of bf16, in one of its rows

// Around what tiles load and store: gcc would leave out or move what it does not know to be used.
static inline void tiles_meet_memory(void) { __asm__ volatile("" ::: "memory"); }

// Around products, in each thread: all eight tiles are whole.
static inline void tiles_open(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) shapes.row_bytes[t] = 4 * TILE, shapes.rows[t] = TILE;
    __asm__ volatile("" ::"m"(shapes)); // gcc takes the next line to read 8 bytes of it
    _tile_loadconfig(&shapes);
}
static inline void tiles_close(void) { _tile_release(); }
