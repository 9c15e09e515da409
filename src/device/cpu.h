// The cpu backend's own pieces: what its files share.
//
// The kernels (cpu_kernels.c, cpu_attention.c) are compiled once per instruction set, each time into a whole
// Backend: a variant. The program runs on any CPU of its architecture and takes the first variant that the
// machine at hand can run. Every operation is cut into pieces by its shapes alone, and each piece is computed
// by one thread: who computes it cannot change a bit.
#pragma once
#include "device/backend.h"

typedef struct {
    const char *isa; // "x86-64-v4"
    const Backend *backend;
    bool (*runs_here)(void);
} CpuVariant;

extern const CpuVariant cpu_variants[]; // best first; the last one runs everywhere
extern const int num_cpu_variants;
const CpuVariant *cpu_best(void);

#ifdef CPU_ISA
#define CPU_JOIN(name, isa)   name##_##isa
#define CPU_EXPAND(name, isa) CPU_JOIN(name, isa)
#define CPU_NAME(name)        CPU_EXPAND(name, CPU_ISA) // of a symbol that exists once per variant
#else
#define CPU_NAME(name) name##_baseline
#endif

extern const Backend CPU_NAME(cpu_backend);

// ---- shared by all variants -------------------------------------------------------------------------------

// Threads that are worth waking for this many elements of work: exec->threads, or fewer.
int cpu_team(const Exec *exec, int64_t elements);
void cpu_matmul(const Exec *exec, const Matmul *args); // oneDNN chooses its own instruction set

// One side of a product: rows `stride` floats apart, used as they are or transposed.
typedef struct {
    const float *data;
    int64_t stride;
    bool transpose;
} Factor;

// c = alpha a b + beta c.   op(a) [rows, inner], op(b) [inner, cols], c [rows, cols] with rows `stride`
// floats apart
void cpu_product(int64_t rows, int64_t cols, int64_t inner, float alpha, Factor a, Factor b, float beta,
                 float *c, int64_t stride);
// Inside a parallel region: products of the calling thread wake no others, also when the region has one
// thread only.
void cpu_products_alone(void);

size_t cpu_workspace_bytes(int threads, DeviceOp op, const void *args);

// ---- one per variant --------------------------------------------------------------------------------------

void CPU_NAME(cpu_attention_forward)(const Exec *exec, const AttentionForward *args);
void CPU_NAME(cpu_attention_backward)(const Exec *exec, const AttentionBackward *args);

// ---- sizes that the workspace depends on ------------------------------------------------------------------

enum {
    FLAT_BLOCK = 16384, // elements of a tensor without rows that one piece of work covers
    QUERY_BLOCK = 64,   // query rows of attention at a time
};

static inline int64_t cpu_num_blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }
// Floats from one row of a block of scores to the next: whole vectors, and no power of two, which would make
// rows compete for the same cache lines.
static inline int64_t cpu_score_stride(int64_t sequence) { return (sequence + 15) / 16 * 16 + 16; }
// Heads are independent, so no more threads than heads of samples work on attention.
static inline int cpu_attention_team(int threads, AttentionShape shape) {
    int64_t pieces = shape.batch * shape.heads;
    return pieces < threads ? (int)pieces : threads;
}
