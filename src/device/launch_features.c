// The front of the operations that only some runs need: factors, soft caps, norms of queries and keys, columns in
// another order, blocks with scales.
#include "device/launch.h"

void scale(Device *device, Stream *stream, Scale args) {
    Shape x = like(OP_SCALE, args.x);
    device_launch(device, stream, OP_SCALE, &args, (Shape[]){x, x});
}

void soft_cap(Device *device, Stream *stream, SoftCap args) {
    Shape x = f32(args.x.rows, args.x.cols);
    CHECK(args.cap > 0, "soft_cap: a cap of %g", (double)args.cap);
    device_launch(device, stream, OP_SOFT_CAP, &args, (Shape[]){x, x});
}

void soft_cap_backward(Device *device, Stream *stream, SoftCapBackward args) {
    Shape dy = like(OP_SOFT_CAP_BACKWARD, args.dy);
    CHECK(args.cap > 0, "soft_cap_backward: a cap of %g", (double)args.cap);
    device_launch(device, stream, OP_SOFT_CAP_BACKWARD, &args, (Shape[]){dy, f32(dy.rows, dy.cols), dy});
}

// The gammas of queries or keys, of so many heads, and their gradients: of one head or of all.
static Shape gamma_of(DeviceOp op, DType type, Tensor gamma, AttentionShape s, int64_t heads) {
    bool fits = gamma.cols == s.head_size || gamma.cols == heads * s.head_size;
    CHECK(fits || !gamma.data, "%s: %lld columns of gamma for %lld heads of %lld", op_rows[op].name,
          (long long)gamma.cols, (long long)heads, (long long)s.head_size);
    return of(type, 1, gamma.data ? gamma.cols : s.head_size);
}

static Shape qk_rstd_of(AttentionShape s) { return f32(s.sequence * s.batch, s.heads + s.groups); }
static Shape qk_sums_of(AttentionShape s) { return f32(s.sequence * s.batch, 2); }

void qk_sums(Device *device, Stream *stream, QkSums args) {
    AttentionShape s = args.shape;
    check_heads(OP_QK_SUMS, s);
    DType e = element_type(OP_QK_SUMS, args.qkv);
    Shape query = gamma_of(OP_QK_SUMS, e, args.query_gamma, s, s.heads),
          key = gamma_of(OP_QK_SUMS, e, args.key_gamma, s, s.groups);
    CHECK(!args.dy.data == !args.rstd.data && !args.dy.data == !args.query_gamma.data,
          "qk_sums: dy, rstd and gammas come together");
    device_launch(device, stream, OP_QK_SUMS, &args,
                  (Shape[]){qkv_of(e, s), optional(qkv_of(e, s)), optional(query), optional(key),
                            optional(qk_rstd_of(s)), qk_sums_of(s)});
}

void qk_norm_forward(Device *device, Stream *stream, QkNormForward args) {
    AttentionShape s = args.shape;
    check_heads(OP_QK_NORM_FORWARD, s);
    DType e = element_type(OP_QK_NORM_FORWARD, args.qkv);
    Shape query = gamma_of(OP_QK_NORM_FORWARD, e, args.query_gamma, s, s.heads),
          key = gamma_of(OP_QK_NORM_FORWARD, e, args.key_gamma, s, s.groups);
    device_launch(device, stream, OP_QK_NORM_FORWARD, &args,
                  (Shape[]){qkv_of(e, s), query, key, optional(qk_sums_of(s)), qkv_of(e, s), qk_rstd_of(s)});
}

void qk_norm_backward_input(Device *device, Stream *stream, QkNormBackwardInput args) {
    AttentionShape s = args.shape;
    check_heads(OP_QK_NORM_BACKWARD_INPUT, s);
    DType e = element_type(OP_QK_NORM_BACKWARD_INPUT, args.dy);
    Shape query = gamma_of(OP_QK_NORM_BACKWARD_INPUT, e, args.query_gamma, s, s.heads),
          key = gamma_of(OP_QK_NORM_BACKWARD_INPUT, e, args.key_gamma, s, s.groups);
    device_launch(device, stream, OP_QK_NORM_BACKWARD_INPUT, &args,
                  (Shape[]){qkv_of(e, s), qkv_of(e, s), query, key, qk_rstd_of(s), optional(qk_sums_of(s)),
                            qkv_of(e, s)});
}

void qk_norm_backward_weight(Device *device, Stream *stream, QkNormBackwardWeight args) {
    AttentionShape s = args.shape;
    check_heads(OP_QK_NORM_BACKWARD_WEIGHT, s);
    DType e = element_type(OP_QK_NORM_BACKWARD_WEIGHT, args.dy);
    Shape query = gamma_of(OP_QK_NORM_BACKWARD_WEIGHT, F32, args.dquery_gamma, s, s.heads),
          key = gamma_of(OP_QK_NORM_BACKWARD_WEIGHT, F32, args.dkey_gamma, s, s.groups);
    device_launch(device, stream, OP_QK_NORM_BACKWARD_WEIGHT, &args,
                  (Shape[]){qkv_of(e, s), qkv_of(e, s), qk_rstd_of(s), query, key});
}

// Each piece of each block lies within its source.
static void check_pieces(const ArrangeColumns *p) {
    const Tensor *sources = &p->a;
    for (const ColumnPiece *piece = p->pieces; piece < p->pieces + MAX_PIECES; piece++) {
        if (!piece->width || piece->source == SOURCE_ZEROS) continue;
        int64_t last = piece->first + (p->blocks - 1) * piece->step + (piece->terms - 1) * piece->stride;
        CHECK(piece->first >= 0 && piece->step >= 0 && piece->stride >= 0 && piece->terms > 0 &&
                  last + piece->width <= sources[piece->source].cols,
              "arrange_columns: columns up to %lld of a source of %lld", (long long)(last + piece->width),
              (long long)sources[piece->source].cols);
    }
}

void arrange_columns(Device *device, Stream *stream, ArrangeColumns args) {
    DType e = element_type(OP_ARRANGE_COLUMNS, args.a);
    int64_t width = 0, rows = args.a.rows;
    for (int i = 0; i < MAX_PIECES; i++) width += args.pieces[i].width;
    check_pieces(&args);
    device_launch(device, stream, OP_ARRANGE_COLUMNS, &args,
                  (Shape[]){of(e, rows, args.a.cols), optional(of(e, rows, args.b.cols)),
                            optional(of(e, rows, args.c.cols)), of(e, rows, args.blocks * width)});
}

// ---- codes of few bits whose blocks have scales -----------------------------------------------------------

static void check_random(RandomRounding random, const QuantizeBlocks *args) {
    int64_t rows = random.transposed ? args->x.cols : args->x.rows,
            cols = random.transposed ? args->x.rows : args->x.cols;
    if (!random.samples) return;
    CHECK(args->codes == CODES_E2M1, "quantize_blocks: codes %d at random, which e2m1 has alone",
          (int)args->codes);
    CHECK(random.samples > 0 && rows % random.samples == 0 && random.part > 0 && cols % random.part == 0 &&
              random.cols > 0,
          "quantize_blocks: random numbers of %lld rows in %lld samples, %lld columns in parts of %lld",
          (long long)rows, (long long)random.samples, (long long)cols, (long long)random.part);
}

void quantize_blocks(Device *device, Stream *stream, QuantizeBlocks args) {
    Shape x = like(OP_QUANTIZE_BLOCKS, args.x), scale = f32(1, 1);
    CHECK(args.block_rows > 0 && args.block_cols > 0 && args.block_cols <= MAX_BLOCK_COLS,
          "quantize_blocks: blocks of %lld x %lld; at most %d columns are possible",
          (long long)args.block_rows, (long long)args.block_cols, MAX_BLOCK_COLS);
    bool scaled = args.scales == BLOCK_E4M3;
    CHECK(scaled == !!args.max.data && scaled == !!args.scale.data,
          "quantize_blocks: a tensor has a scale beside e4m3 scales of blocks alone");
    check_random(args.random, &args);
    if (!scaled) scale = optional(scale);
    device_launch(device, stream, OP_QUANTIZE_BLOCKS, &args,
                  (Shape[]){x, scale, of(BF16, x.rows, x.cols), scale});
}

void hadamard(Device *device, Stream *stream, Hadamard args) {
    Shape x = like(OP_HADAMARD, args.x);
    CHECK(x.rows % HADAMARD_SIZE == 0, "hadamard: %lld rows, no multiple of %d", (long long)x.rows,
          HADAMARD_SIZE);
    device_launch(device, stream, OP_HADAMARD, &args, (Shape[]){x, of(x.dtype, x.cols, x.rows)});
}

void scale_product(Device *device, Stream *stream, ScaleProduct args) {
    DType d = args.accumulate ? F32 : element_type(OP_SCALE_PRODUCT, args.d);
    int64_t m = args.d.rows, n = args.d.cols;
    device_launch(device, stream, OP_SCALE_PRODUCT, &args,
                  (Shape[]){f32(m, n), f32(1, 1), f32(1, 1), optional(of(d, 1, n)), of(d, m, n)});
}
