// The cpu backend: chooses among the compiled backends by machine and element type, cuts products into tiles, and sizes
// the workspace.
#include "device/cpu/cpu.h"
#include "base/text.h"
#include "device/visible.h"
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#ifdef TRIREME_X86_LEVELS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef TRIREME_ARM_LEVELS
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

// ---- the variants -----------------------------------------------------------------------------------------

static bool always(void) { return true; }
static bool never(void) { return false; }

extern const Backend cpu_backend_baseline_BF16, cpu_backend_baseline_F16;
#define OF_WITH(isa, bf16)                                                                                   \
    {                                                                                                        \
        [F32] = &cpu_backend_##isa##_F32, [BF16] = &cpu_backend_##bf16##_BF16,                               \
        [F16] = &cpu_backend_##isa##_F16                                                                     \
    }
#define OF(isa) OF_WITH(isa, isa)

#ifdef TRIREME_X86_LEVELS
extern const Backend cpu_backend_v3_F32, cpu_backend_v3_BF16, cpu_backend_v3_F16;
extern const Backend cpu_backend_v4_F32, cpu_backend_v4_BF16, cpu_backend_v4_F16;
extern const Backend cpu_backend_v4bf16_BF16, cpu_backend_v4amx_BF16;

static bool runs_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool runs_v4(void) {
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool runs_v4_bf16(void) { return runs_v4() && __builtin_cpu_supports("avx512bf16"); }

// Intel's CPUs since Sapphire Rapids, which are those with AVX512-FP16, multiply pairs of bf16 at half the rate of
// floats: there that is left to AMX. Where a virtual machine hides AMX, products of copies in fp32 are twice as fast.
static bool slow_v4_bf16(void) {
    enum { AVX512_FP16 = 1 << 23 };
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx & AVX512_FP16;
}

// AMX: the CPU has the tile registers, and Linux lets this process use them.
static bool runs_v4_amx(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, UNITS = AMX_BF16 | AMX_TILE };
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; // ARCH_REQ_XCOMP_PERM of asm/prctl.h, XFEATURE_XTILEDATA
    unsigned eax, ebx, ecx, edx;
    return runs_v4_bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & UNITS) == UNITS &&
           syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}

#endif
#ifdef TRIREME_ARM_LEVELS
extern const Backend cpu_backend_neonbf16_BF16;
extern const Backend cpu_backend_sve256_F32, cpu_backend_sve256_BF16, cpu_backend_sve256_F16;
extern const Backend cpu_backend_sve512_F32, cpu_backend_sve512_BF16, cpu_backend_sve512_F16;
extern const Backend cpu_backend_sve256bf16_BF16, cpu_backend_sve512bf16_BF16;

// Every arm64 CPU has vectors of 4 floats, NEON, and multiplies them as `fused` does.
static bool runs_neon_bf16(void) { return getauxval(AT_HWCAP2) & HWCAP2_BF16; }

// Code for SVE is compiled for one width: that which Linux gives this process.
static bool has_sve(int bytes) {
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE)) return false;
    int length = prctl(PR_SVE_GET_VL);
    return length >= 0 && (length & PR_SVE_VL_LEN_MASK) == bytes;
}

static bool runs_sve256(void) { return has_sve(32); }
static bool runs_sve512(void) { return has_sve(64); }
// Products of bf16 are NEON's, roundings to it SVE's.
static bool has_bf16(void) { return runs_neon_bf16() && getauxval(AT_HWCAP2) & HWCAP2_SVEBF16; }
static bool runs_sve256_bf16(void) { return runs_sve256() && has_bf16(); }
static bool runs_sve512_bf16(void) { return runs_sve512() && has_bf16(); }

#endif

const CpuVariant cpu_variants[] = {
#ifdef TRIREME_X86_LEVELS
    {"amx", "x86-64-v4 avx512_bf16 amx_bf16", OF_WITH(v4, v4amx), runs_v4_amx, never},
    {"avx512_bf16", "x86-64-v4 avx512_bf16", OF_WITH(v4, v4bf16), runs_v4_bf16, slow_v4_bf16},
    {"avx512", "x86-64-v4", OF(v4), runs_v4, never},
    {"avx2", "x86-64-v3", OF(v3), runs_v3, never},
#endif
#ifdef TRIREME_ARM_LEVELS
    {"sve512_bf16", "armv8-a sve512 bf16", OF_WITH(sve512, sve512bf16), runs_sve512_bf16, never},
    {"sve512", "armv8-a sve512", OF(sve512), runs_sve512, never},
    {"sve256_bf16", "armv8-a sve256 bf16", OF_WITH(sve256, sve256bf16), runs_sve256_bf16, never},
    {"sve256", "armv8-a sve256", OF(sve256), runs_sve256, never},
    {"neon_bf16", "armv8-a bf16", OF_WITH(baseline, neonbf16), runs_neon_bf16, never},
#endif
    {"baseline", "baseline", OF(baseline), always, never},
};

const int num_cpu_variants = (int)(sizeof cpu_variants / sizeof cpu_variants[0]);

static const char LIMIT[] = "TRIREME_MAX_CPU_ISA";

// Returns NULL when no variant has this name.
static const CpuVariant *find_variant(const char *name) {
    for (int i = 0; i < num_cpu_variants; i++)
        if (!strcmp(name, cpu_variants[i].name)) return &cpu_variants[i];
    return NULL;
}

static Status check_limit(void) {
    const char *limit = getenv(LIMIT);
    if (!limit || find_variant(limit)) return OK;
    Text names = {0};
    for (int i = 0; i < num_cpu_variants; i++) text_add(&names, "%s%s", i ? ", " : "", cpu_variants[i].name);
    Status status =
        fail(ERR_CONFIG, "%s=%s is unknown; unset it or use one of: %s", LIMIT, limit, text_string(&names));
    text_free(&names);
    return status;
}

const CpuVariant *cpu_best_up_to(const char *limit) {
    const CpuVariant *named = limit ? find_variant(limit) : NULL, *v = named ? named : cpu_variants;
    while (!v->runs_here() || (v != named && v->slow_here())) v++;
    return v;
}

// The best variant is found once: finding it takes a system call, and every operation asks for it.
static const CpuVariant *best_here;
static void find_best(void) {
    const char *limit = getenv(LIMIT);
    best_here = cpu_best_up_to(limit);
    if (limit && find_variant(limit)) cpu_limit_products(limit);
}

const CpuVariant *cpu_best(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_best);
    return best_here;
}

static const Backend *best(DType element) { return cpu_best()->of[element]; }

bool cpu_multiplies_bf16(void) { return strstr(cpu_best()->isa, "bf16") && cpu_may_use_bf16(); }

DType cpu_factor_type(DType element) { return element == BF16 && cpu_multiplies_bf16() ? BF16 : F32; }

bool cpu_has_amx(void) { return strstr(cpu_best()->isa, "amx") && cpu_may_use_amx(); }

// The user may limit oneDNN to an older instruction set than the kernels use.
static char kernels_here[64];
static void describe_kernels(void) {
    const char *variable = cpu_products_limit();
    snprintf(kernels_here, sizeof kernels_here, "%s%s%s%s", cpu_best()->name, variable ? " (products: " : "",
             variable ? variable : "", variable ? ")" : "");
}

static const char *cpu_kernels(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, describe_kernels);
    return kernels_here;
}

void cpu_arithmetic(Text *out) {
    text_add(out, "kernels for %s, ", cpu_best()->name);
    cpu_describe_onednn(out);
}

// ---- threads ----------------------------------------------------------------------------------------------

// Waking a thread takes some microseconds, in which one thread alone handles some ten thousand elements.
static int64_t useful_threads(int64_t elements) { return 1 + elements / 16384; }

int cpu_team(const Exec *exec, int64_t elements) {
    int64_t useful = useful_threads(elements);
    return useful < exec->threads ? (int)useful : exec->threads;
}

static int64_t inner_of(const Matmul *p) { return p->transpose_a ? p->a.rows : p->a.cols; }

int64_t cpu_product_elements(const Matmul *p) {
    enum { PRODUCTS_PER_ELEMENT = 256 }; // multiplications that one thread does in the time of an element
    return tensor_count(p->d) * inner_of(p) / PRODUCTS_PER_ELEMENT;
}

// ---- workspace --------------------------------------------------------------------------------------------

// At least one part, so that an empty matrix is one empty tile.
static int64_t num_parts(int64_t count, int64_t most) {
    return count > most ? cpu_num_blocks(count, most) : 1;
}

// With fewer rows AMX would spend most of its time on packing b.
enum { FEWEST_AMX_ROWS = 32 };

bool cpu_by_amx(const Matmul *p) {
    return p->a.dtype == BF16 && p->d.rows >= FEWEST_AMX_ROWS && cpu_has_amx();
}

// High tiles pack b less often. With AMX this saves more, so fewer of them are enough, if eight threads have work.
static bool has_high_tiles(const Matmul *p) {
    if (cpu_by_amx(p)) return num_parts(p->d.rows, HIGH_TILE_ROWS) * num_parts(p->d.cols, TILE_COLS) >= 7;
    return p->d.rows >= HIGH_TILE_ROWS && p->d.rows * p->d.cols >= 16LL * HIGH_TILE_ROWS * TILE_COLS;
}

// One tile would be one thread's work: of a product with work for two its longer side is cut.
static CpuCut halves(const Matmul *p) {
    bool down = p->d.rows > p->d.cols, useful = useful_threads(cpu_product_elements(p)) > 1;
    return (CpuCut){.down = 1 + (useful && down), .across = 1 + (useful && !down)};
}

// Cuts d into an even number of tiles, so that two threads end together. Where there are many tiles they are high.
CpuCut cpu_cut(const Matmul *p) {
    CpuCut cut = {.down = num_parts(p->d.rows, has_high_tiles(p) ? HIGH_TILE_ROWS : TILE_ROWS),
                  .across = num_parts(p->d.cols, TILE_COLS)};
    if (cut.down * cut.across == 1) cut = halves(p);
    if (cut.down * cut.across > 1 && cut.down % 2 && cut.across % 2) {
        if (cut.down > cut.across)
            cut.down++;
        else
            cut.across++;
    }
    int64_t whole = cpu_factor_type(p->a.dtype) == BF16 ? 32 : 16; // strips, or vectors
    cut.rows = cpu_num_blocks(cpu_num_blocks(p->d.rows, cut.down), whole) * whole;
    cut.cols = cpu_num_blocks(cpu_num_blocks(p->d.cols, cut.across), whole) * whole;
    return cut;
}

// Rows that are a multiple of a page apart fall into the same sets of a cache, so a column of a transposed
// matrix evicts itself. Read in place, weight gradients of a layer 3072 wide are a tenth slower, and those of a
// vocabulary of 262144 are half as fast (fp32).
static bool rows_compete(Tensor x) { return (size_t)x.cols * dtype_bytes(x.dtype) % 4096 == 0; }

CpuTileSizes cpu_tile_sizes(const Matmul *p) {
    CpuTileSizes s = {0};
    CpuCut cut = cpu_cut(p);
    // A product of one tile reserves memory for the whole tile, even where it is cut in two. A product of fewer rows
    // may not be cut, and then needs no more than this.
    bool whole = p->d.rows <= TILE_ROWS && p->d.cols <= TILE_COLS;
    int64_t rows = at_most(p->d.rows, whole ? TILE_ROWS : cut.rows);
    int64_t cols = at_most(p->d.cols, whole ? TILE_COLS : cut.cols);
    int64_t inner = inner_of(p), depth = at_most(inner, PANEL_INNER);
    if (cpu_factor_type(p->a.dtype) == BF16) {
        Product tile = {.rows = rows, .cols = cols, .inner = inner, .dtype = p->d.dtype};
        tile.a.transpose = p->transpose_a;
        if (!cpu_by_amx(p)) return cpu_pairs_sizes(&tile);
        s = cpu_amx_sizes(&tile);
        tile.rows = FEWEST_AMX_ROWS - 1; // fewer rows are made by pairs
        int64_t few = cpu_pairs_sizes(&tile).all;
        if (few > s.all) s.all = few;
        return s;
    }
    bool copies = p->a.dtype != F32;
    if (p->d.dtype != F32) s.sum = rows * cpu_row_stride(cols);
    if (copies || (p->transpose_a && rows_compete(p->a)))
        s.panel_a = p->transpose_a ? depth * cpu_row_stride(rows) : rows * cpu_row_stride(depth);
    if (copies) s.panel_b = p->transpose_b ? cols * cpu_row_stride(depth) : depth * cpu_row_stride(cols);
    s.all = s.sum + s.panel_a + s.panel_b;
    return s;
}

CpuHeadSizes cpu_head_sizes(AttentionShape shape, bool backward) {
    int64_t width = (shape.head_size + 15) / 16 * 16;
    CpuHeadSizes s = {.rows = ATTENTION_QUERIES * width, .scores = ATTENTION_QUERIES * ATTENTION_KEYS};
    s.head = cpu_num_blocks(attention_keys(&shape), ATTENTION_KEYS) * ATTENTION_KEYS * width;
    s.all = backward ? 5 * s.head + 5 * s.rows + 3 * s.scores : 2 * s.head + 2 * s.rows + s.scores;
    return s;
}

static int64_t floats_of_thread(DeviceOp op, const void *args) {
    const AttentionForward *forward = args;
    const AttentionBackward *backward = args;
    switch (op) {
    case OP_MATMUL: return cpu_tile_sizes(args).all;
    case OP_ATTENTION_FORWARD: return cpu_head_sizes(forward->shape, false).all;
    case OP_ATTENTION_BACKWARD: return cpu_head_sizes(backward->shape, true).all;
    case OP_ATTENTION_CACHED: return cpu_cached_floats(args);
    case OP_ROUTER_DROP: return cpu_drop_floats(args);
    default: return 0;
    }
}

static bool is_float8_product(DeviceOp op, const void *args) {
    return op == OP_MATMUL && dtype_is_float8(op_element(op, args));
}

size_t cpu_workspace_bytes(const DeviceOptions *options, DeviceOp op, const void *args) {
    if (is_float8_product(op, args)) return cpu_float8_workspace(options->threads, args);
    return (size_t)(options->threads * floats_of_thread(op, args)) * sizeof(float);
}

// ---- the backend: the best variant's, of the operation's element type -------------------------------------

static void cpu_run(const Exec *exec, DeviceOp op, const void *args) {
    switch (op) {
    case OP_QUANTIZE: cpu_quantize(exec, args); return;
    case OP_QUANTIZE_BLOCKS: cpu_quantize_blocks(exec, args); return;
    case OP_HADAMARD: cpu_hadamard(exec, args); return;
    case OP_SCALE_PRODUCT: cpu_scale_product(exec, args); return;
    default: break;
    }
    if (is_float8_product(op, args))
        cpu_matmul_float8(exec, args, best(BF16));
    else
        backend_run(best(op_element(op, args)), exec, op, args);
}

static void cpu_matmuls(const Exec *exec, const Matmul *calls, int count) {
    if (!is_float8_product(OP_MATMUL, calls)) {
        best(op_element(OP_MATMUL, calls))->matmuls(exec, calls, count);
        return;
    }
    for (int i = 0; i < count; i++) cpu_run(exec, OP_MATMUL, &calls[i]);
}

// oneDNN asks OpenMP for the number of threads: it gets that of the rank.
static Status cpu_open(void **state, const DeviceOptions *options) {
    (void)state;
    omp_set_num_threads(options->threads);
    return OK;
}

const Backend cpu_backend = {
    .name = "cpu",
    .run = cpu_run,
    .matmuls = cpu_matmuls,
    .workspace_bytes = cpu_workspace_bytes,
    .check = check_limit,
    .kernels = cpu_kernels,
    .arithmetic = cpu_arithmetic,
    .open = cpu_open,
};
