// The front of the operations: each checks the shapes of its tensors, counts the call and has the backend make it.
#include "device/launch.h"
#include "base/rank.h"
#include "device/visible.h"
#include <string.h>

// ---- counts -----------------------------------------------------------------------------------------------

const OpCount *device_counts(const Device *device) { return device->counts; }

void device_counts_reset(Device *device) { memset(device->counts, 0, sizeof device->counts); }

void device_on_operation(Device *device, OnOperation *hook, void *self) {
    device->listener = hook;
    device->listener_self = self;
}

// ---- what every operation passes --------------------------------------------------------------------------

static void check_shapes(const OpRow *row, const Tensor *tensors, const Shape *shapes) {
    for (int i = 0; i < row->reads + row->writes; i++) {
        Tensor x = tensors[i];
        Shape s = shapes[i];
        if (!x.data && s.optional) continue;
        CHECK(x.data || !tensor_count(x), "%s: %s is absent", row->name, row->tensors[i]);
        CHECK(x.rows == s.rows && x.cols == s.cols && x.dtype == s.dtype,
              "%s: %s is [%lld, %lld] %s, wanted [%lld, %lld] %s", row->name, row->tensors[i],
              (long long)x.rows, (long long)x.cols, dtype_name(x.dtype), (long long)s.rows, (long long)s.cols,
              dtype_name(s.dtype));
    }
}

// The number of multiplications in one of the products of attention, of the queries of a call whose last position is
// the one before `positions`, with all keys of `s`, or up to that position.
static double attention_products(AttentionShape s, AttentionRules rules, int64_t positions) {
    int64_t keys = s.keys ? s.keys : positions;
    bool before =
        s.first_kept + s.kept <= s.first_position; // queries see all of these keys, not half of them
    if (s.kept) keys = before ? 2 * s.kept : s.kept;
    double all = (double)s.batch * (double)s.heads * (double)s.sequence * (double)keys * (double)s.head_size;
    return all * attention_visible_share(rules.window, positions - s.sequence, s.sequence);
}

static int64_t end_of(AttentionShape s) { return s.first_position + s.sequence; }

static double op_flops(DeviceOp op, const void *args) {
    JoinedProduct product;
    const Matmul *m = &product.matmul;
    const AttentionForward *forward = args;
    const AttentionBackward *backward = args;
    const AttentionCached *cached = args;
    if (op_product(op, args, &product))
        return 2.0 * (double)tensor_count(m->d) * (double)(m->transpose_a ? m->a.rows : m->a.cols);
    switch (op) {
    case OP_ATTENTION_FORWARD:
        return 4 * attention_products(forward->shape, forward->rules, end_of(forward->shape));
    case OP_ATTENTION_BACKWARD:
        return 10 * attention_products(backward->shape, backward->rules, end_of(backward->shape));
    case OP_ATTENTION_CACHED:
        return 4 *
               attention_products(cached->shape, cached->rules, cached->position + cached->shape.sequence);
    default: return 0;
    }
}

// The size of its tensors, each once; flat tensors with segments count these alone.
static double op_bytes(DeviceOp op, const void *args) {
    const OpRow *row = &op_rows[op];
    const Tensor *tensors = args;
    const OpSegment *segments;
    int num_segments = op_segments(op, args, &segments);
    int64_t covered = 0;
    double bytes = 0;
    for (int i = 0; i < num_segments; i++)
        if (op != OP_SUM_SQUARES || segments[i].row >= 0) covered += segments[i].count;
    for (int i = 0; i < row->reads + row->writes; i++) {
        bool is_flat = i == 0 || op == OP_ADAMW;
        int64_t count = num_segments && is_flat ? covered : tensor_count(tensors[i]);
        if (tensors[i].data) bytes += (double)count * (double)dtype_bytes(tensors[i].dtype);
    }
    return bytes;
}

static void count(Device *device, DeviceOp op, const void *args) {
    OpCount *total = &device->counts[op];
    OpCount one = {.calls = 1, .flops = op_flops(op, args), .bytes = op_bytes(op, args)};
    const OpRow *row = &op_rows[op];
    const Tensor *tensors = args;
    total->calls++;
    total->flops += one.flops;
    total->bytes += one.bytes;
    if (device->listener) device->listener(device->listener_self, op, args, one);
    Tensor result = tensors[row->reads];
    rank_event(row->event, result.rows, result.cols, 0);
}

static void find_workspace(Device *device, Stream *stream, DeviceOp op, const void *args) {
    if (!device->model->workspace_bytes) return;
    size_t need = device->model->workspace_bytes(&device->options, op, args);
    if (need > stream->peak_bytes) stream->peak_bytes = need;
    CHECK(device->backend.counts_only || need <= stream->exec.workspace_bytes,
          "%s needs %zu bytes of workspace, its stream has %zu", op_rows[op].name, need,
          stream->exec.workspace_bytes);
}

void device_admit(Device *device, Stream *stream, DeviceOp op, const void *args, const Shape *shapes) {
    CHECK(stream->device == device, "%s: a stream of another device", op_rows[op].name);
    if (device->hook) device->hook(device->hook_self);
    check_shapes(&op_rows[op], args, shapes);
    find_workspace(device, stream, op, args);
    count(device, op, args);
}

void device_launch(Device *device, Stream *stream, DeviceOp op, const void *args, const Shape *shapes) {
    device_admit(device, stream, op, args, shapes);
    if (!device->backend.counts_only) backend_run(&device->backend, &stream->exec, op, args);
}

// A fused operation: as one, or by the basic ones.
#define LAUNCH_OR_SPLIT(NAME, function, ...)                                                                 \
    if (device->model->is_fused)                                                                             \
        device_launch(device, stream, OP_##NAME, &args, (Shape[]){__VA_ARGS__});                             \
    else                                                                                                     \
        split_##function(device, stream, &args)

// Without dropout nothing else needs to be said; backends may still divide by the number of samples.
static Dropout check_dropout(DeviceOp op, Dropout dropout, int64_t rows) {
    CHECK(dropout.probability >= 0 && dropout.probability < 1, "%s: dropout probability %g, wanted in [0, 1)",
          op_rows[op].name, (double)dropout.probability);
    if (dropout.probability == 0 && dropout.samples == 0) dropout.samples = 1;
    CHECK(dropout.samples > 0 && rows % dropout.samples == 0, "%s: dropout of %lld rows in %lld samples",
          op_rows[op].name, (long long)rows, (long long)dropout.samples);
    CHECK(dropout.first_col >= 0 && (dropout.cols || !dropout.first_col), "%s: dropout from column %lld on",
          op_rows[op].name, (long long)dropout.first_col);
    CHECK(dropout.first_row >= 0 && dropout.first_row % dropout.samples == 0,
          "%s: dropout from row %lld on, of %lld samples", op_rows[op].name, (long long)dropout.first_row,
          (long long)dropout.samples);
    return dropout;
}

// ---- matrix products, activations, dropout ----------------------------------------------------------------

typedef void Launch(Device *device, Stream *stream, DeviceOp op, const void *args, const Shape *shapes);

static void matmul_float8(Launch *launch, Device *device, Stream *stream, Matmul args) {
    int64_t m = args.d.rows, n = args.d.cols, k = args.a.cols;
    DType d = args.accumulate ? F32 : element_type(OP_MATMUL, args.d);
    CHECK(dtype_is_float8(args.b.dtype) && (args.a.dtype == E4M3 || args.b.dtype == E4M3),
          "matmul: a of %s and b of %s", dtype_name(args.a.dtype), dtype_name(args.b.dtype));
    CHECK(!args.transpose_a && args.transpose_b, "matmul: factors in 8 bits are a [M, K] and b [N, K]");
    launch(device, stream, OP_MATMUL, &args,
           (Shape[]){of(args.a.dtype, m, k), of(args.b.dtype, n, k), optional(of(d, 1, n)), f32(1, 1),
                     f32(1, 1), of(d, m, n)});
}

static void matmul_by(Launch *launch, Device *device, Stream *stream, Matmul args) {
    if (dtype_is_float8(args.a.dtype)) {
        matmul_float8(launch, device, stream, args);
        return;
    }
    CHECK(!args.scale_a.data && !args.scale_b.data, "matmul: scales of factors in %s",
          dtype_name(args.a.dtype));
    int64_t m = args.d.rows, n = args.d.cols, k = args.transpose_a ? args.a.rows : args.a.cols;
    DType e = element_type(OP_MATMUL, args.a);
    Shape a = args.transpose_a ? of(e, k, m) : of(e, m, k);
    Shape b = args.transpose_b ? of(e, n, k) : of(e, k, n);
    Shape d = args.accumulate || args.d.dtype == F32 ? f32(m, n) : of(e, m, n);
    launch(device, stream, OP_MATMUL, &args,
           (Shape[]){a, b, optional(of(e, 1, n)), optional(f32(1, 1)), optional(f32(1, 1)), d});
}

void matmul(Device *device, Stream *stream, Matmul args) { matmul_by(device_launch, device, stream, args); }

// One thread makes them one after the other, so that messages under way advance in between.
void matmul_each(Device *device, Stream *stream, const Matmul *calls, int count) {
    const Backend *backend = &device->backend;
    bool at_once = backend->matmuls && device->options.threads > 1 && count > 1;
    CHECK(count <= MATMULS_AT_ONCE, "%d matrix products at once", count);
    for (int i = 0; i < count; i++) {
        CHECK(calls[i].a.dtype == calls[0].a.dtype, "matrix products of %s and %s at once",
              dtype_name(calls[i].a.dtype), dtype_name(calls[0].a.dtype));
        matmul_by(at_once ? device_admit : device_launch, device, stream, calls[i]);
    }
    if (at_once) backend->matmuls(&stream->exec, calls, count);
}

void quantize(Device *device, Stream *stream, Quantize args) {
    Shape x = like(OP_QUANTIZE, args.x), scale = f32(1, 1);
    CHECK(dtype_is_float8(args.q.dtype), "quantize: to %s; it makes e4m3 and e5m2", dtype_name(args.q.dtype));
    Shape q = args.transpose ? of(args.q.dtype, x.cols, x.rows) : of(args.q.dtype, x.rows, x.cols);
    device_launch(device, stream, OP_QUANTIZE, &args, (Shape[]){x, scale, q, scale});
}

void matmul_sums(Device *device, Stream *stream, MatmulSums args) {
    DType e = element_type(OP_MATMUL_SUMS, args.a);
    int64_t m = args.a.cols, n = args.b.cols, k = args.a.rows;
    LAUNCH_OR_SPLIT(MATMUL_SUMS, matmul_sums, of(e, k, m), of(e, k, n), f32(m, n), f32(1, m));
}

void matmul_gelu(Device *device, Stream *stream, MatmulGelu args) {
    Shape d = like(OP_MATMUL_GELU, args.d), bias = optional(of(d.dtype, 1, d.cols));
    int64_t k = args.a.cols;
    LAUNCH_OR_SPLIT(MATMUL_GELU, matmul_gelu, of(d.dtype, d.rows, k), of(d.dtype, d.cols, k), bias, d, d);
}

void matmul_gelu_backward(Device *device, Stream *stream, MatmulGeluBackward args) {
    Shape d = like(OP_MATMUL_GELU_BACKWARD, args.d);
    int64_t k = args.a.cols;
    CHECK(args.d.data != args.aux.data, "matmul_gelu_backward: d over aux");
    LAUNCH_OR_SPLIT(MATMUL_GELU_BACKWARD, matmul_gelu_backward, of(d.dtype, d.rows, k),
                    of(d.dtype, k, d.cols), d, d);
}

void bias_gelu_forward(Device *device, Stream *stream, BiasGeluForward args) {
    Shape x = like(OP_BIAS_GELU_FORWARD, args.x), bias = optional(of(x.dtype, 1, x.cols));
    device_launch(device, stream, OP_BIAS_GELU_FORWARD, &args, (Shape[]){x, bias, x});
}

void bias_gelu_backward(Device *device, Stream *stream, BiasGeluBackward args) {
    Shape x = like(OP_BIAS_GELU_BACKWARD, args.x), bias = optional(of(x.dtype, 1, x.cols));
    device_launch(device, stream, OP_BIAS_GELU_BACKWARD, &args, (Shape[]){x, x, bias, x});
}

// Backends compare with a clamp in any case.
static float clamp_or_none(float clamp) { return clamp > 0 ? clamp : INFINITY; }

void swiglu_forward(Device *device, Stream *stream, SwigluForward args) {
    args.clamp = clamp_or_none(args.clamp);
    Shape y = like(OP_SWIGLU_FORWARD, args.y), x = of(y.dtype, y.rows, 2 * y.cols);
    device_launch(device, stream, OP_SWIGLU_FORWARD, &args,
                  (Shape[]){x, optional(of(y.dtype, 1, x.cols)), y});
}

void swiglu_backward(Device *device, Stream *stream, SwigluBackward args) {
    args.clamp = clamp_or_none(args.clamp);
    Shape dy = like(OP_SWIGLU_BACKWARD, args.dy), x = of(dy.dtype, dy.rows, 2 * dy.cols);
    device_launch(device, stream, OP_SWIGLU_BACKWARD, &args,
                  (Shape[]){dy, x, optional(of(dy.dtype, 1, x.cols)), x});
}

void bias_dropout_add(Device *device, Stream *stream, BiasDropoutAdd args) {
    Shape x = like(OP_BIAS_DROPOUT_ADD, args.x), bias = optional(of(x.dtype, 1, x.cols));
    args.dropout = check_dropout(OP_BIAS_DROPOUT_ADD, args.dropout, x.rows);
    device_launch(device, stream, OP_BIAS_DROPOUT_ADD, &args, (Shape[]){x, bias, x, x});
}

void dropout_backward(Device *device, Stream *stream, DropoutBackward args) {
    Shape dy = like(OP_DROPOUT_BACKWARD, args.dy);
    args.dropout = check_dropout(OP_DROPOUT_BACKWARD, args.dropout, dy.rows);
    device_launch(device, stream, OP_DROPOUT_BACKWARD, &args, (Shape[]){dy, dy});
}

void column_sum(Device *device, Stream *stream, ColumnSum args) {
    Shape x = like(OP_COLUMN_SUM, args.x);
    device_launch(device, stream, OP_COLUMN_SUM, &args, (Shape[]){x, f32(1, x.cols)});
}

// ---- norms ------------------------------------------------------------------------------------------------

// Layer norm has both tensors, RMS norm neither.
static void check_both_or_neither(DeviceOp op, const char *names, Tensor a, Tensor b) {
    CHECK(!a.data == !b.data, "%s: of %s one is absent", op_rows[op].name, names);
}

void norm_forward(Device *device, Stream *stream, NormForward args) {
    Shape x = like(OP_NORM_FORWARD, args.x), gamma = of(x.dtype, 1, x.cols), statistic = f32(1, x.rows);
    check_both_or_neither(OP_NORM_FORWARD, "beta and mean", args.beta, args.mean);
    device_launch(device, stream, OP_NORM_FORWARD, &args,
                  (Shape[]){x, gamma, optional(gamma), x, optional(statistic), statistic});
}

void norm_backward_input(Device *device, Stream *stream, NormBackwardInput args) {
    Shape x = like(OP_NORM_BACKWARD_INPUT, args.x), gamma = of(x.dtype, 1, x.cols);
    Shape statistic = f32(1, x.rows);
    device_launch(device, stream, OP_NORM_BACKWARD_INPUT, &args,
                  (Shape[]){x, x, gamma, optional(statistic), statistic, optional(x), x});
}

void norm_backward_weight(Device *device, Stream *stream, NormBackwardWeight args) {
    Shape x = like(OP_NORM_BACKWARD_WEIGHT, args.x), sum = f32(1, x.cols), statistic = f32(1, x.rows);
    check_both_or_neither(OP_NORM_BACKWARD_WEIGHT, "mean and dbeta", args.mean, args.dbeta);
    device_launch(device, stream, OP_NORM_BACKWARD_WEIGHT, &args,
                  (Shape[]){x, x, optional(statistic), statistic, sum, optional(sum)});
}

void norm_backward(Device *device, Stream *stream, NormBackward args) {
    Shape x = like(OP_NORM_BACKWARD, args.x), gamma = of(x.dtype, 1, x.cols), sum = f32(1, x.cols);
    Shape statistic = f32(1, x.rows);
    check_both_or_neither(OP_NORM_BACKWARD, "mean and dbeta", args.mean, args.dbeta);
    LAUNCH_OR_SPLIT(NORM_BACKWARD, norm_backward, x, x, gamma, optional(statistic), statistic, optional(x), x,
                    sum, optional(sum));
}

// ---- attention --------------------------------------------------------------------------------------------

static void check_attention(DeviceOp op, AttentionShape shape, Tensor kv, Dropout dropout) {
    check_heads(op, shape);
    CHECK(kv.data ? shape.first_position >= 0 && end_of(shape) <= shape.keys
                  : !shape.keys && !shape.first_position,
          "%s: positions from %lld on to %lld of %lld keys", op_rows[op].name,
          (long long)shape.first_position, (long long)end_of(shape), (long long)shape.keys);
    CHECK(shape.first_kept >= 0 && shape.kept >= 0 && shape.first_kept + shape.kept <= shape.keys,
          "%s: %lld keys from %lld on of %lld", op_rows[op].name, (long long)shape.kept,
          (long long)shape.first_kept, (long long)shape.keys);
    check_dropout(op, dropout, shape.sequence * shape.batch);
    CHECK(dropout.probability == 0 || (dropout.samples == shape.batch && dropout.first_row == 0),
          "%s: dropout of %lld samples from row %lld on in a batch of %lld", op_rows[op].name,
          (long long)dropout.samples, (long long)dropout.first_row, (long long)shape.batch);
}

static void check_kept(DeviceOp op, AttentionShape s, Tensor probabilities, bool continues) {
    CHECK(s.kept ? !probabilities.data : !continues, "%s: results of other keys, without a part of the keys",
          op_rows[op].name);
    CHECK(continues || !s.kept || (s.first_kept <= s.first_position && end_of(s) <= s.first_kept + s.kept),
          "%s: keys from %lld on, without those of the queries from %lld on", op_rows[op].name,
          (long long)s.first_kept, (long long)s.first_position);
}

static Shape out_of(DType e, AttentionShape s) { return of(e, s.sequence * s.batch, s.heads * s.head_size); }

static Shape stats_of(AttentionShape s) { return f32(s.batch * s.heads, s.sequence); }

static Shape first_key_of(AttentionShape s) { return optional(i32(1, s.sequence * s.batch)); }
static Shape sinks_of(DType e, AttentionShape s) { return optional(of(e, 1, s.heads)); }

static Shape probabilities_of(DType e, AttentionShape s) {
    return optional(of(e, s.batch * s.heads * s.sequence, attention_keys(&s)));
}

static Shape kv_of(DType e, AttentionShape s) {
    return optional(of(e, (s.kept ? s.kept : s.keys) * s.batch, 2 * s.groups * s.head_size));
}

void rotary(Device *device, Stream *stream, Rotary args) {
    AttentionShape s = args.shape;
    int64_t columns = args.table.cols;
    check_heads(OP_ROTARY, s);
    CHECK(columns > 0 && columns % 2 == 0 && columns <= s.head_size, "rotary: %lld columns of heads of %lld",
          (long long)columns, (long long)s.head_size);
    DType e = element_type(OP_ROTARY, args.qkv);
    device_launch(device, stream, OP_ROTARY, &args, (Shape[]){f32(s.sequence, columns), qkv_of(e, s)});
}

void attention_forward(Device *device, Stream *stream, AttentionForward args) {
    AttentionShape s = args.shape;
    DType e = element_type(OP_ATTENTION_FORWARD, args.qkv);
    check_attention(OP_ATTENTION_FORWARD, s, args.kv, args.dropout);
    check_kept(OP_ATTENTION_FORWARD, s, args.probabilities, args.continues);
    check_rules(OP_ATTENTION_FORWARD, args.rules, args.sinks);
    device_launch(device, stream, OP_ATTENTION_FORWARD, &args,
                  (Shape[]){qkv_of(e, s), kv_of(e, s), first_key_of(s), sinks_of(e, s), out_of(e, s),
                            stats_of(s), probabilities_of(e, s)});
}

void attention_backward(Device *device, Stream *stream, AttentionBackward args) {
    AttentionShape s = args.shape;
    DType e = element_type(OP_ATTENTION_BACKWARD, args.qkv);
    check_attention(OP_ATTENTION_BACKWARD, s, args.kv, args.dropout);
    check_kept(OP_ATTENTION_BACKWARD, s, args.probabilities, args.adds);
    check_rules(OP_ATTENTION_BACKWARD, args.rules, args.sinks);
    CHECK(!args.dsinks.data || args.sinks.data, "attention_backward: dsinks without sinks");
    check_both_or_neither(OP_ATTENTION_BACKWARD, "kv and dkv", args.kv, args.dkv);
    Shape qkv = qkv_of(e, s), out = out_of(e, s);
    device_launch(device, stream, OP_ATTENTION_BACKWARD, &args,
                  (Shape[]){out, qkv, kv_of(e, s), out, stats_of(s), probabilities_of(e, s), first_key_of(s),
                            sinks_of(e, s), args.kv.data ? out : qkv, kv_of(e, s),
                            optional(f32(1, s.heads))});
}

void attention_cached(Device *device, Stream *stream, AttentionCached args) {
    AttentionShape s = args.shape;
    DType e = element_type(OP_ATTENTION_CACHED, args.qkv);
    check_heads(OP_ATTENTION_CACHED, s);
    check_rules(OP_ATTENTION_CACHED, args.rules, args.sinks);
    CHECK(args.position >= 0, "attention_cached: position %lld", (long long)args.position);
    Shape cache = of(e, (args.position + s.sequence) * s.batch, s.groups * s.head_size);
    device_launch(device, stream, OP_ATTENTION_CACHED, &args,
                  (Shape[]){qkv_of(e, s), sinks_of(e, s), out_of(e, s), cache, cache});
}

// ---- embedding --------------------------------------------------------------------------------------------

void embedding_forward(Device *device, Stream *stream, EmbeddingForward args) {
    Shape table = like(OP_EMBEDDING_FORWARD, args.table), y = of(table.dtype, args.y.rows, table.cols);
    device_launch(device, stream, OP_EMBEDDING_FORWARD, &args, (Shape[]){i32(1, y.rows), table, y});
}

void embedding_backward(Device *device, Stream *stream, EmbeddingBackward args) {
    Shape dy = like(OP_EMBEDDING_BACKWARD, args.dy);
    device_launch(device, stream, OP_EMBEDDING_BACKWARD, &args,
                  (Shape[]){i32(1, dy.rows), dy, f32(args.dtable.rows, dy.cols)});
}

static void check_positions(DeviceOp op, int64_t rows, int64_t samples, int64_t first_row,
                            int64_t positions) {
    CHECK(samples > 0 && rows % samples == 0 && first_row >= 0 && first_row % samples == 0,
          "%s: %lld rows from row %lld on, of %lld samples", op_rows[op].name, (long long)rows,
          (long long)first_row, (long long)samples);
    CHECK((first_row + rows) / samples <= positions, "%s: a sequence of %lld, positions for %lld",
          op_rows[op].name, (long long)((first_row + rows) / samples), (long long)positions);
}

void position_dropout(Device *device, Stream *stream, PositionDropout args) {
    Shape x = like(OP_POSITION_DROPOUT, args.x), position = of(x.dtype, args.position.rows, x.cols);
    if (args.position.data)
        check_positions(OP_POSITION_DROPOUT, x.rows, args.dropout.samples, args.dropout.first_row,
                        position.rows);
    args.dropout = check_dropout(OP_POSITION_DROPOUT, args.dropout, x.rows);
    device_launch(device, stream, OP_POSITION_DROPOUT, &args, (Shape[]){x, optional(position), x});
}

void position_backward(Device *device, Stream *stream, PositionBackward args) {
    Shape dy = like(OP_POSITION_BACKWARD, args.dy);
    check_positions(OP_POSITION_BACKWARD, dy.rows, args.samples, args.first_row, args.dposition.rows);
    device_launch(device, stream, OP_POSITION_BACKWARD, &args,
                  (Shape[]){dy, f32(args.dposition.rows, dy.cols)});
}

// ---- loss -------------------------------------------------------------------------------------------------

void loss_max(Device *device, Stream *stream, LossMax args) {
    Shape logits = like_f32(args.logits);
    device_launch(device, stream, OP_LOSS_MAX, &args, (Shape[]){logits, f32(1, logits.rows)});
}

void loss_sum(Device *device, Stream *stream, LossSum args) {
    Shape logits = like_f32(args.logits), row = f32(1, logits.rows), labels = i32(1, logits.rows);
    device_launch(device, stream, OP_LOSS_SUM, &args, (Shape[]){logits, labels, row, row, row});
}

void loss_finish(Device *device, Stream *stream, LossFinish args) {
    Shape logits = like_f32(args.logits), row = f32(1, logits.rows), labels = i32(1, logits.rows);
    Shape dlogits = of(element_type(OP_LOSS_FINISH, args.dlogits), logits.rows, logits.cols);
    CHECK(dlogits.dtype == F32 || args.dlogits.data != args.logits.data,
          "loss_finish: %s dlogits over f32 logits", dtype_name(dlogits.dtype));
    device_launch(device, stream, OP_LOSS_FINISH, &args,
                  (Shape[]){labels, row, row, row, optional(row), logits, dlogits, row});
}

void loss_whole(Device *device, Stream *stream, LossWhole args) {
    Shape logits = like_f32(args.logits), row = f32(1, logits.rows), labels = i32(1, logits.rows);
    Shape dlogits = of(element_type(OP_LOSS_WHOLE, args.dlogits), logits.rows, logits.cols);
    CHECK(dlogits.dtype == F32 || args.dlogits.data != args.logits.data,
          "loss_whole: %s dlogits over f32 logits", dtype_name(dlogits.dtype));
    LAUNCH_OR_SPLIT(LOSS_WHOLE, loss_whole, logits, labels, optional(row), dlogits, row, row, row, row);
}

// ---- optimizer --------------------------------------------------------------------------------------------

void abs_max(Device *device, Stream *stream, AbsMax args) {
    device_launch(device, stream, OP_ABS_MAX, &args, (Shape[]){like(OP_ABS_MAX, args.x), f32(1, 1)});
}

void sum_squares(Device *device, Stream *stream, SumSquares args) {
    device_launch(device, stream, OP_SUM_SQUARES, &args,
                  (Shape[]){like_f32(args.x), f64(args.sum.rows, 3), optional(f32(1, 1))});
}

void adamw(Device *device, Stream *stream, AdamW args) {
    Shape f = like_f32(args.parameter), p = f, value = f;
    if (args.value.data) value.dtype = element_type(OP_ADAMW, args.value);
    if (args.parameter.dtype == U16 && value.dtype == BF16) p.dtype = U16;
    device_launch(device, stream, OP_ADAMW, &args, (Shape[]){f, p, f, f, optional(value)});
}

// Of a number of a parameter that is kept as it is stored beside its value.
static Shape stored(Tensor x, Tensor value) {
    Shape shape = like_f32(x);
    if (x.dtype == U16 && value.dtype == BF16) shape.dtype = U16;
    return shape;
}

void blend(Device *device, Stream *stream, Blend args) {
    Shape x = stored(args.x, args.x_value), y = stored(args.y, args.y_value);
    Shape x_value = of(BF16, args.x.rows, args.x.cols), y_value = like_f32(args.x);
    y.rows = x.rows, y.cols = x.cols;
    if (args.y_value.data) y_value.dtype = element_type(OP_BLEND, args.y_value);
    if (x.dtype != U16) args.x_value = (Tensor){0};
    device_launch(device, stream, OP_BLEND, &args, (Shape[]){x, optional(x_value), y, optional(y_value)});
}

void add(Device *device, Stream *stream, Add args) {
    Shape x = like(OP_ADD, args.x);
    device_launch(device, stream, OP_ADD, &args, (Shape[]){x, x});
}
