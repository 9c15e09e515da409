// Measures what this machine can do: multiply-adds from registers, and bytes to and from memory.
#include "ceilings.h"
#include "device/cpu/vector.h"
#include "median.h"
#include <math.h>
#include <string.h>

// ---- multiply-adds ----------------------------------------------------------------------------------------

enum { CHAINS = 12, PAIR_CHAINS = 16, FMA_STEPS = 1 << 22 };

typedef struct {
    int threads;
    float (*chains)(void);
    float sink; // keeps the compiler from dropping the arithmetic
} Arithmetic;

static float fma_chains(void) {
    Floats chains[CHAINS], sum = {0};
    for (int i = 0; i < CHAINS; i++) chains[i] = splat((float)i);
    for (int step = 0; step < FMA_STEPS; step++)
        for (int i = 0; i < CHAINS; i++) chains[i] = chains[i] * 0.999f + 0.001f;
    for (int i = 0; i < CHAINS; i++) sum += chains[i];
    return sum_lanes(sum);
}

static const double FMA_FLOPS = 2.0 * CHAINS * FMA_STEPS * LANES;

// The product of pairs of bf16, which the unit adds to a sum of fp32; more chains, since it takes longer.
#if defined(__AVX512BF16__)
static float pair_chains(void) {
    __m512 chains[PAIR_CHAINS];
    Floats sum = {0};
    for (int i = 0; i < PAIR_CHAINS; i++) chains[i] = (__m512)splat((float)i);
    __m512bh half = (__m512bh)_mm512_set1_epi16(0x3f00);
    for (int step = 0; step < FMA_STEPS; step++)
        for (int i = 0; i < PAIR_CHAINS; i++) chains[i] = _mm512_dpbf16_ps(chains[i], half, half);
    for (int i = 0; i < PAIR_CHAINS; i++) sum += (Floats)chains[i];
    return sum_lanes(sum);
}
static const double PAIR_FLOPS = 4.0 * PAIR_CHAINS * FMA_STEPS * LANES;
#else
static float pair_chains(void) { return fma_chains(); }
static const double PAIR_FLOPS = 2.0 * CHAINS * FMA_STEPS * LANES;
#endif

// The same of whole tiles, [16, 32] times [32, 16].
enum { TILE_CHAINS = 6, TILE_STEPS = 1 << 19 };
#if defined(__AMX_BF16__) || defined(__AMXBF16__) // gcc's name and clang's
#include "device/cpu/tiles.h"
static float tile_chains(void) {
    float sum[TILE * LANES] = {0};
    tiles_open();
    tiles_meet_memory();
    _tile_loadd(6, sum, 4 * LANES);
    _tile_loadd(7, sum, 4 * LANES);
    for (int step = 0; step < TILE_STEPS; step++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_stored(0, sum, 4 * LANES);
    tiles_close();
    return sum[0];
}
static bool has_tiles(void) { return cpu_has_amx(); }
#else
static float tile_chains(void) { return 0; }
static bool has_tiles(void) { return false; }
#endif
static const double TILE_FLOPS = 2.0 * TILE_CHAINS * TILE_STEPS * 16 * 16 * 32;

static void compute(void *self) {
    Arithmetic *a = self;
    float sink = 0;
#pragma omp parallel num_threads(a->threads) reduction(+ : sink)
    sink += a->chains();
    a->sink = sink;
}

static double arithmetic_rate(int threads, float (*chains)(void), double flops) {
    Arithmetic arithmetic = {.threads = threads, .chains = chains};
    return flops * threads / median_time(threads, compute, &arithmetic);
}

// ---- memory -----------------------------------------------------------------------------------------------

enum { MEMORY_FLOATS = 1 << 25 };

typedef struct {
    int threads;
    float *x, *y, *z;
    float sink;
} Traffic;

static void copy(void *self) {
    Traffic *t = self;
#pragma omp parallel for num_threads(t->threads) schedule(static)
    for (int64_t i = 0; i < MEMORY_FLOATS; i += LANES) store(t->y + i, LANES, load(t->x + i, LANES));
}

static void triad(void *self) {
    Traffic *t = self;
#pragma omp parallel for num_threads(t->threads) schedule(static)
    for (int64_t i = 0; i < MEMORY_FLOATS; i += LANES)
        store(t->z + i, LANES, load(t->x + i, LANES) + 0.5f * load(t->y + i, LANES));
}

static void update(void *self) {
    Traffic *t = self;
#pragma omp parallel for num_threads(t->threads) schedule(static)
    for (int64_t i = 0; i < MEMORY_FLOATS; i += LANES)
        store(t->y + i, LANES, load(t->y + i, LANES) + load(t->x + i, LANES));
}

// Four sums, so that no addition waits for the one before.
static void read_sums(void *self) {
    Traffic *t = self;
    float sink = 0;
#pragma omp parallel num_threads(t->threads) reduction(+ : sink)
    {
        Floats sums[4] = {{0}};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < MEMORY_FLOATS; i += 4 * LANES)
            for (int k = 0; k < 4; k++) sums[k] += load(t->x + i + k * LANES, LANES);
        sink += sum_lanes(sums[0] + sums[1] + sums[2] + sums[3]);
    }
    t->sink = sink;
}

static double traffic_rate(Traffic *t, void (*work)(void *), int tensors) {
    return (double)tensors * MEMORY_FLOATS * sizeof(float) / median_time(t->threads, work, t);
}

Ceilings measure_ceilings(int threads) {
    size_t bytes = MEMORY_FLOATS * sizeof(float);
    float *memory = malloc(3 * bytes);
    CHECK(memory, "no memory for three tensors of %zu bytes", bytes);
    // A page that was never written is not memory yet; zeros would let the compiler ask for such pages.
    memset(memory, 0x3c, 3 * bytes);
    Traffic t = {threads, memory, memory + MEMORY_FLOATS, memory + 2 * MEMORY_FLOATS, 0};
    Ceilings c = {.copy = traffic_rate(&t, copy, 2),
                  .triad = traffic_rate(&t, triad, 3),
                  .update = traffic_rate(&t, update, 3),
                  .read = traffic_rate(&t, read_sums, 1)};
    free(memory);
    c.memory = fmax(c.copy, fmax(c.triad, c.update));
    c.flops[F32] = c.flops[F16] = arithmetic_rate(threads, fma_chains, FMA_FLOPS);
    c.flops[BF16] = has_tiles() ? arithmetic_rate(threads, tile_chains, TILE_FLOPS)
                                : arithmetic_rate(threads, pair_chains, PAIR_FLOPS);
    return c;
}
