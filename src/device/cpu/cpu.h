// The cpu backend's own pieces: what its files share.
//
// The kernels (kernels.c, matmul.c, attention.c, cached.c, qk_norm.c, experts.c, optimizer.c) are compiled once
// per instruction set and element type, each time into a whole Backend. The program runs on any CPU of its
// architecture: it takes the first variant that the machine at hand can run, and of it the backend of an
// operation's element type. Every operation is cut into pieces by its shapes alone, and each piece is
// computed by one thread: who computes it cannot change a bit.
#pragma once
#include "device/backend.h"

typedef struct {
    const char *name;              // "avx512": a value of TRIREME_MAX_CPU_ISA
    const char *isa;               // "x86-64-v4", with units for products: "bf16", "amx"
    const Backend *of[NUM_DTYPES]; // by element type
    bool (*runs_here)(void);
    bool (*slow_here)(void); // where it runs: whether the next one is faster
} CpuVariant;

extern const CpuVariant cpu_variants[]; // best first; the last one runs everywhere
extern const int num_cpu_variants;
// Returns the best variant for this machine: the first that it runs and that is not slow here; with a limit, a
// variant's name, the first from that one on. The one that is named is taken where it runs, slow or not, so that
// machines of two kinds can be given the same kernels. NULL and unknown names limit nothing.
const CpuVariant *cpu_best_up_to(const char *limit);
// The one that this process takes: the best up to TRIREME_MAX_CPU_ISA.
const CpuVariant *cpu_best(void);

#ifndef CPU_ISA
#define CPU_ISA baseline
#endif
#ifndef CPU_ELEMENT
#define CPU_ELEMENT F32
#endif
// CPU_NAME(f) is the name of a symbol that is compiled once per instruction set and element type.
#define CPU_JOIN(name, isa, element)   name##_##isa##_##element
#define CPU_EXPAND(name, isa, element) CPU_JOIN(name, isa, element)
#define CPU_NAME(name)                 CPU_EXPAND(name, CPU_ISA, CPU_ELEMENT)

extern const Backend CPU_NAME(cpu_backend);

// ---- shared by all variants -------------------------------------------------------------------------------

// Threads that are worth waking for this many elements of work: exec->threads, or fewer.
int cpu_team(const Exec *exec, int64_t elements);
int64_t cpu_product_elements(const Matmul *p); // a product's work, as cpu_team counts it
size_t cpu_workspace_bytes(const DeviceOptions *options, DeviceOp op, const void *args);

// One side of a product: rows `stride` elements apart, F32 or BF16, used as they are or transposed.
typedef struct {
    const void *data;
    DType dtype;
    int64_t stride;
    bool transpose;
} Factor;

// The variable that holds oneDNN to an instruction set, ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA; NULL: neither is set.
const char *cpu_products_limit(void);
// Holds oneDNN to the variant that TRIREME_MAX_CPU_ISA names, unless the user has set oneDNN's own variable. Before any
// product.
void cpu_limit_products(const char *name);
// Return whether the limit that the user set for oneDNN permits bf16 instructions, and AMX: our products obey it, too.
bool cpu_may_use_bf16(void);
bool cpu_may_use_amx(void);
void cpu_describe_onednn(Text *out); // its version and the instruction set that it uses
void cpu_arithmetic(Text *out);      // see Backend
// Returns whether this CPU multiplies BF16 factors; if not, products are made of F32 copies.
bool cpu_multiplies_bf16(void);
// The type of the factors that a product of elements of this type takes: itself, or F32, to which they are copied.
DType cpu_factor_type(DType element);

// d = a b, or with `adds` d + a b, added in fp32.
//   op(a) [rows, inner], op(b) [inner, cols], both of one type
//   d [rows, cols], its rows `stride` elements apart
// With BF16 factors and without `adds`, d may be BF16, rounded once. Then a bias [cols] of BF16 may be added to
// each row before it is rounded; NULL: none.
typedef struct {
    int64_t rows, cols, inner;
    Factor a, b;
    const void *bias;
    void *d;
    DType dtype; // of d: F32 or BF16
    int64_t stride;
    bool adds;
} Product;
// All of it F32. Called by threads that have called cpu_products_alone.
void cpu_product_f32(const Product *product);
// Inside a parallel region: products of the calling thread wake no others, also when the region has one
// thread only.
void cpu_products_alone(void);

// Operations on numbers of few bits, the same in every variant. `wide`: the backend of BF16.
void cpu_quantize(const Exec *exec, const Quantize *args);
void cpu_quantize_blocks(const Exec *exec, const QuantizeBlocks *args);
void cpu_hadamard(const Exec *exec, const Hadamard *args);
void cpu_scale_product(const Exec *exec, const ScaleProduct *args);
// Writes `count` elements of any element type from element `at` on as fp32.
void cpu_load_floats(Tensor x, int64_t at, int64_t count, float *to);
void cpu_matmul_float8(const Exec *exec, const Matmul *args, const Backend *wide);
size_t cpu_float8_workspace(int threads, const Matmul *args);

// ---- one per backend --------------------------------------------------------------------------------------

void CPU_NAME(cpu_matmul)(const Exec *exec, const Matmul *args);
void CPU_NAME(cpu_matmuls)(const Exec *exec, const Matmul *calls, int count);
void CPU_NAME(cpu_attention_forward)(const Exec *exec, const AttentionForward *args);
void CPU_NAME(cpu_attention_backward)(const Exec *exec, const AttentionBackward *args);
void CPU_NAME(cpu_attention_cached)(const Exec *exec, const AttentionCached *args);
void CPU_NAME(cpu_qk_sums)(const Exec *exec, const QkSums *args);
void CPU_NAME(cpu_qk_norm_forward)(const Exec *exec, const QkNormForward *args);
void CPU_NAME(cpu_qk_norm_backward_input)(const Exec *exec, const QkNormBackwardInput *args);
void CPU_NAME(cpu_qk_norm_backward_weight)(const Exec *exec, const QkNormBackwardWeight *args);
void CPU_NAME(cpu_router_forward)(const Exec *exec, const RouterForward *args);
void CPU_NAME(cpu_router_sums)(const Exec *exec, const RouterSums *args);
void CPU_NAME(cpu_router_backward)(const Exec *exec, const RouterBackward *args);
void CPU_NAME(cpu_router_drop)(const Exec *exec, const RouterDrop *args);
void CPU_NAME(cpu_sort_pairs)(const Exec *exec, const SortPairs *args);
void CPU_NAME(cpu_gather_rows)(const Exec *exec, const GatherRows *args);
void CPU_NAME(cpu_combine_rows)(const Exec *exec, const CombineRows *args);
void CPU_NAME(cpu_combine_backward)(const Exec *exec, const CombineBackward *args);
void CPU_NAME(cpu_jitter)(const Exec *exec, const Jitter *args);
void CPU_NAME(cpu_abs_max)(const Exec *exec, const AbsMax *args);
void CPU_NAME(cpu_sum_squares)(const Exec *exec, const SumSquares *args);
void CPU_NAME(cpu_adamw)(const Exec *exec, const AdamW *args);
void CPU_NAME(cpu_blend)(const Exec *exec, const Blend *args);

// ---- sizes that the workspace depends on ------------------------------------------------------------------

enum {
    FLAT_BLOCK = 16384, // elements of a tensor without rows that one piece of work covers
    // A matrix product is cut into tiles by its shape alone: left to oneDNN, the cut and with it some
    // bits would depend on the number of threads. Each tile packs its operands again; of oneDNN's in fp32
    // that costs one thread 2 to 5 %, at twice the rows half as much, at 256 x 384 up to 8 %.
    TILE_ROWS = 512,
    HIGH_TILE_ROWS = 1024,
    TILE_COLS = 768,
    PANEL_INNER = 512, // elements along the sum that are copied at a time
};

static inline int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }
static inline int64_t cpu_num_blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }
// Floats from one row to the next of a block in the workspace: whole vectors, and an odd number of cache
// lines, so that rows do not compete for the same ones.
static inline int64_t cpu_row_stride(int64_t count) { return (count + 15) / 16 * 16 | 16; }

// Queries and keys of attention at a time: a block of keys in fp32 takes half of a first-level cache, and all
// that a pair of blocks works on a part of a second-level one.
enum { ATTENTION_QUERIES = 128, ATTENTION_KEYS = 64 };

// A matrix product in down x across tiles of so many rows and columns; the last ones may be smaller or empty.
typedef struct {
    int64_t down, across, rows, cols;
} CpuCut;
CpuCut cpu_cut(const Matmul *args);

// The workspace of one thread for its largest tile of a matrix product, piece by piece, in floats.
typedef struct {
    int64_t sum, panel_a, panel_b; // 0 where none is needed
    int64_t all;
} CpuTileSizes;
CpuTileSizes cpu_tile_sizes(const Matmul *args);
// Returns whether the CPU has AMX, and both Linux and DNNL_MAX_CPU_ISA let this process use it.
bool cpu_has_amx(void);
// Returns whether a product of BF16 of these sizes is made by AMX (amx.c), not by the instruction for pairs (pairs.c).
bool cpu_by_amx(const Matmul *args);
// The product of one tile with BF16 factors, and the size of its workspace, which is 64-byte aligned. Only on CPUs that
// have these instructions.
CpuTileSizes cpu_amx_sizes(const Product *tile); // depends on its sizes and the type of d
void cpu_amx_product(const Product *tile, float *workspace);
// On arm64 its instruction for matrices takes two pairs at a time (mmla.c).
CpuTileSizes cpu_pairs_sizes(const Product *tile); // also on whether a is transposed
void cpu_pairs_product(const Product *tile, float *workspace);

// The workspace of one thread for its head in attention, in floats; large enough for every variant.
typedef struct {
    int64_t head;         // keys or values, packed, or the sums of their gradients
    int64_t rows, scores; // a block of queries, of out, of dout or of dq; a block of scores
    int64_t all;
} CpuHeadSizes;
CpuHeadSizes cpu_head_sizes(AttentionShape shape, bool backward);
// The workspace of one thread for the scores of one query over a cache, in floats.
static inline int64_t cpu_cached_floats(const AttentionCached *args) {
    return cpu_row_stride(args->position + args->shape.sequence);
}
// The workspace of one thread for the pairs of an expert and a sample, in floats: a weight and a number for each.
static inline int64_t cpu_drop_floats(const RouterDrop *args) {
    return 2 * (tensor_count(args->experts) / args->samples);
}
