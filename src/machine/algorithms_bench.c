// Times the algorithms of the products of a run. A product is what its plan on the device depends on: shapes, types,
// transpositions, and how addresses are aligned; the null device, on which a step is recorded, tells all of that.
#include "machine/algorithms_bench.h"
#include "base/rng.h"
#include "device/algorithms.h"
#include "device/element.h"
#include <stdlib.h>
#include <string.h>

// ---- the products of a step -------------------------------------------------------------------------------

typedef struct {
    JoinedProduct *items; // addresses are what they are modulo ALIGNMENT
    int count, capacity;
    bool incomplete; // memory ran out
} Products;

enum { ALIGNMENT = 16 };

static Tensor aligned_only(Tensor x) {
    x.data = (void *)((uintptr_t)x.data % ALIGNMENT);
    return x;
}

// An absent bias has no rows.
static bool same_tensor(Tensor a, Tensor b) { return tensor_same_shape(a, b) && a.data == b.data; }

static bool same_product(const JoinedProduct *x, const JoinedProduct *y) {
    const Matmul *a = &x->matmul, *b = &y->matmul;
    return x->join == y->join && same_tensor(x->extra, y->extra) && same_tensor(a->a, b->a) &&
           same_tensor(a->b, b->b) && same_tensor(a->bias, b->bias) && same_tensor(a->d, b->d) &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->accumulate == b->accumulate && a->fast_sums == b->fast_sums;
}

static void add_product(Products *p, JoinedProduct product) {
    for (int i = 0; i < p->count; i++)
        if (same_product(&p->items[i], &product)) return;
    if (p->count == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 64;
        JoinedProduct *items = realloc(p->items, (size_t)capacity * sizeof *items);
        if (!items) {
            p->incomplete = true;
            return;
        }
        p->items = items;
        p->capacity = capacity;
    }
    p->items[p->count++] = product;
}

// A factor in 8 bits is transposed before it is multiplied.
static bool is_weight_gradient(const Matmul *p) {
    return p->transpose_a || (dtype_is_float8(p->a.dtype) && p->d.dtype == F32);
}

static void on_operation(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one) {
    JoinedProduct product;
    Matmul *m = &product.matmul;
    (void)at, (void)one;
    if (!op_product(op, args, &product)) return;
    m->a = aligned_only(m->a), m->b = aligned_only(m->b), m->d = aligned_only(m->d);
    m->scale_a = aligned_only(m->scale_a), m->scale_b = aligned_only(m->scale_b);
    if (m->bias.rows) m->bias = aligned_only(m->bias);
    if (product.extra.rows) product.extra = aligned_only(product.extra);
    // The first microbatch of a step writes what the others add to. Sums are then made in the workspace, which is
    // aligned.
    for (int first = 0; first < (is_weight_gradient(m) ? 2 : 1); first++) {
        Tensor extra = product.extra;
        add_product(self, product);
        if (product.join == JOINS_SUMS) product.extra.data = NULL, add_product(self, product);
        product.extra = extra;
        m->accumulate = !m->accumulate;
    }
}

static void on_opened(void *self, const Params *params) { (void)self, (void)params; }

static void on_call(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    (void)self, (void)at, (void)group, (void)op, (void)dtype, (void)bytes;
}

static Status record(const EngineSpec *spec, Products *products) {
    StepListener listener = {products, on_opened, on_operation, on_call};
    for (int stage = 0; stage < grid_along(spec->grid, AXIS_PP); stage++)
        TRY(engine_record(spec, grid_rank(spec->grid, (Place){.at[AXIS_PP] = stage}), &listener));
    return products->incomplete ? fail(ERR_OS, "no memory for the products of a step") : OK;
}

// ---- their operands ---------------------------------------------------------------------------------------

typedef struct {
    Device *device;
    Stream *stream;
    Arena arena;
    void *pattern; // values that are uploaded
} Operands;

enum { PATTERN = 1 << 16 };

// Values in [-1/2, 1/2), since zeros are multiplied faster: a pattern that is repeated.
static void fill(const Operands *p, Tensor x) {
    int64_t count = tensor_count(x), done = count < PATTERN ? count : PATTERN;
    Tensor host = {p->pattern, 1, done, x.dtype};
    for (int64_t i = 0; i < done; i++)
        store(host, i, (double)rng_word(rng_key(1, "values", 0), 0, (uint64_t)i) * 0x1p-32 - 0.5);
    device_upload(p->device, p->stream, tensor_part(x, 0, done), p->pattern);
    while (done < count) {
        int64_t more = done < count - done ? done : count - done;
        device_copy(p->device, p->stream, tensor_part(x, done, more), tensor_part(x, 0, more));
        done += more;
    }
}

// A tensor as the run has it, at an address that is aligned as there.
static Tensor operand(Operands *p, Tensor x) {
    if (!x.rows) return x;
    char *block = arena_take(&p->arena, "operand", tensor_bytes(x) + ALIGNMENT);
    x.data = block + (uintptr_t)x.data;
    if (!p->arena.measuring) fill(p, x);
    return x;
}

static JoinedProduct with_operands(Operands *p, JoinedProduct product) {
    Matmul *m = &product.matmul;
    m->a = operand(p, m->a), m->b = operand(p, m->b), m->bias = operand(p, m->bias), m->d = operand(p, m->d);
    m->scale_a = operand(p, m->scale_a), m->scale_b = operand(p, m->scale_b);
    product.extra = operand(p, product.extra);
    return product;
}

static size_t most_bytes(const Products *products) {
    Operands measuring = {0};
    arena_open_measuring(&measuring.arena, "products");
    for (int i = 0; i < products->count; i++) {
        ArenaMark mark = arena_mark(&measuring.arena);
        with_operands(&measuring, products->items[i]);
        arena_release(&measuring.arena, mark);
    }
    size_t bytes = measuring.arena.peak;
    arena_close(&measuring.arena);
    return bytes;
}

// ---- timing -----------------------------------------------------------------------------------------------

static int rows_of(const Text *table) {
    int rows = 0;
    for (const char *row = text_string(table); (row = strstr(row, "\nm ")); row++) rows++;
    return rows;
}

static Status time_all(Operands *p, const Products *products, Text *table) {
    TRY(algorithms_begin(p->device, table));
    for (int i = 0; i < products->count; i++) {
        ArenaMark mark = arena_mark(&p->arena);
        JoinedProduct product = with_operands(p, products->items[i]);
        TRY(algorithms_time(p->device, p->stream, product, table));
        device_sync(p->device, p->stream);
        arena_release(&p->arena, mark);
    }
    algorithms_end(table);
    return OK;
}

Status product_workspace(const char *kind, const Matmul *product, size_t *bytes) {
    Device *null;
    TRY(device_open(&null, (DeviceOptions){.kind = "null", .stands_for = kind, .threads = 1}));
    Matmul any = *product;
    char *base = (char *)(uintptr_t)4096;
    any.a.data = base + (uintptr_t)any.a.data, any.b.data = base + (uintptr_t)any.b.data;
    any.d.data = base + (uintptr_t)any.d.data;
    if (any.bias.rows) any.bias.data = base + (uintptr_t)any.bias.data;
    if (any.scale_a.rows) any.scale_a.data = any.scale_b.data = base;
    matmul(null, device_stream(null), any);
    *bytes = device_workspace_peak(null);
    device_close(null);
    return OK;
}

static Status time_on(const EngineSpec *spec, const Products *products, Text *table) {
    Operands place = {.pattern = malloc(PATTERN * sizeof(double))};
    DeviceOptions options = {.kind = spec->device, .threads = spec->threads};
    if (!place.pattern) return fail(ERR_OS, "no memory for values");
    Status status = product_workspace(spec->device, &products->items[0].matmul, &options.workspace_bytes);
    if (status == OK) status = device_open(&place.device, options);
    if (status == OK) {
        place.stream = device_stream(place.device);
        status = arena_open(&place.arena, "products", device_memory(place.device), most_bytes(products));
        if (status == OK) status = time_all(&place, products, table);
        arena_close(&place.arena);
        device_close(place.device);
    }
    free(place.pattern);
    return status;
}

Status algorithms_bench(const EngineSpec *spec, Text *table, AlgorithmsBench *done) {
    Products products = {0};
    Status status = record(spec, &products);
    if (status == OK) status = time_on(spec, &products, table);
    *done = (AlgorithmsBench){products.count, status == OK ? rows_of(table) : 0};
    free(products.items);
    return status;
}
