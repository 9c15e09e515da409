// The front of the operations of experts.
#include "device/launch.h"
#include <string.h>

static void check_router(DeviceOp op, const RouterRules *r, int64_t experts) {
    CHECK(experts > 0 && experts <= MAX_EXPERTS && r->topk > 0 && r->topk <= experts && r->topk <= MAX_TOPK,
          "%s: %d of %lld experts", op_rows[op].name, r->topk, (long long)experts);
    if (!r->groups) return;
    CHECK(r->groups > 0 && r->groups <= MAX_EXPERT_GROUPS && experts % r->groups == 0 && r->group_topk > 0 &&
              r->group_topk <= r->groups && r->topk <= experts / r->groups * r->group_topk,
          "%s: %d of %lld experts in %d of %d groups", op_rows[op].name, r->topk, (long long)experts,
          r->group_topk, r->groups);
}

void router_forward(Device *device, Stream *stream, RouterForward args) {
    Shape logits = like_f32(args.logits);
    check_router(OP_ROUTER_FORWARD, &args.rules, logits.cols);
    device_launch(device, stream, OP_ROUTER_FORWARD, &args,
                  (Shape[]){logits, optional(f32(1, logits.cols)), f32(logits.rows, args.rules.topk),
                            i32(logits.rows, args.rules.topk)});
}

static void check_samples(DeviceOp op, int64_t rows, int64_t samples) {
    CHECK(samples > 0 && rows % samples == 0, "%s: %lld rows of %lld samples", op_rows[op].name,
          (long long)rows, (long long)samples);
}

void router_sums(Device *device, Stream *stream, RouterSums args) {
    Shape logits = like_f32(args.logits);
    check_router(OP_ROUTER_SUMS, &args.rules, logits.cols);
    check_samples(OP_ROUTER_SUMS, logits.rows, args.counts.rows);
    device_launch(
        device, stream, OP_ROUTER_SUMS, &args,
        (Shape[]){logits, f32(args.counts.rows, logits.cols), f32(args.counts.rows, logits.cols + 1)});
}

void router_backward(Device *device, Stream *stream, RouterBackward args) {
    Shape logits = like_f32(args.logits), pairs = f32(logits.rows, args.rules.topk), dlogits = logits;
    dlogits.dtype = element_type(OP_ROUTER_BACKWARD, args.dlogits);
    check_router(OP_ROUTER_BACKWARD, &args.rules, logits.cols);
    if (args.counts.data) check_samples(OP_ROUTER_BACKWARD, logits.rows, args.counts.rows);
    device_launch(device, stream, OP_ROUTER_BACKWARD, &args,
                  (Shape[]){logits, i32(pairs.rows, pairs.cols), pairs,
                            optional(f32(args.counts.rows, logits.cols)), dlogits});
}

void router_drop(Device *device, Stream *stream, RouterDrop args) {
    Shape pairs = i32(args.experts.rows, args.experts.cols);
    check_samples(OP_ROUTER_DROP, pairs.rows, args.samples);
    CHECK(args.capacity > 0, "router_drop: a capacity of %lld", (long long)args.capacity);
    device_launch(device, stream, OP_ROUTER_DROP, &args,
                  (Shape[]){f32(pairs.rows, pairs.cols), pairs, pairs});
}

void sort_pairs(Device *device, Stream *stream, SortPairs args) {
    Shape pairs = i32(args.experts.rows, args.experts.cols);
    CHECK(pairs.rows * pairs.cols <= INT32_MAX, "sort_pairs: %lld rows of %lld", (long long)pairs.rows,
          (long long)pairs.cols);
    device_launch(device, stream, OP_SORT_PAIRS, &args,
                  (Shape[]){pairs, i32(1, pairs.rows * pairs.cols), pairs, i32(1, args.counts.cols)});
}

void gather_rows(Device *device, Stream *stream, GatherRows args) {
    Shape x = like(OP_GATHER_ROWS, args.x);
    CHECK(args.divisor > 0, "gather_rows: a divisor of %lld", (long long)args.divisor);
    device_launch(device, stream, OP_GATHER_ROWS, &args,
                  (Shape[]){x, i32(1, args.y.rows), of(x.dtype, args.y.rows, x.cols)});
}

void combine_rows(Device *device, Stream *stream, CombineRows args) {
    Shape x = like(OP_COMBINE_ROWS, args.x), positions = i32(args.y.rows, args.positions.cols);
    CHECK(positions.cols <= MAX_TOPK, "combine_rows: %lld rows in one", (long long)positions.cols);
    device_launch(device, stream, OP_COMBINE_ROWS, &args,
                  (Shape[]){x, positions, optional(f32(positions.rows, positions.cols)),
                            of(x.dtype, positions.rows, x.cols)});
}

void combine_backward(Device *device, Stream *stream, CombineBackward args) {
    Shape dy = like(OP_COMBINE_BACKWARD, args.dy), x = of(dy.dtype, args.x.rows, dy.cols);
    Shape weights = f32(dy.rows, args.positions.cols);
    device_launch(device, stream, OP_COMBINE_BACKWARD, &args,
                  (Shape[]){dy, x, i32(weights.rows, weights.cols), weights, x, weights});
}

void jitter(Device *device, Stream *stream, Jitter args) {
    Shape x = like(OP_JITTER, args.x);
    check_samples(OP_JITTER, x.rows, args.place.samples);
    CHECK(args.place.first_row % args.place.samples == 0 && args.epsilon >= 0 && args.epsilon < 1,
          "jitter: from row %lld on, by %g", (long long)args.place.first_row, (double)args.epsilon);
    device_launch(device, stream, OP_JITTER, &args, (Shape[]){x, x});
}

static bool same_product(const Matmul *x, const Matmul *y) {
    return tensor_same_shape(x->a, y->a) && tensor_same_shape(x->b, y->b) && tensor_same_shape(x->d, y->d) &&
           x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b &&
           x->accumulate == y->accumulate;
}

static bool is_reserved(Device *device, const Matmul *most, bool summed) {
    int known = device->num_reserved < MAX_RESERVED ? device->num_reserved : MAX_RESERVED;
    for (int i = 0; i < known; i++)
        if (device->reserved[i].summed == summed && same_product(&device->reserved[i].most, most))
            return true;
    int at = device->num_reserved++ % MAX_RESERVED;
    device->reserved[at].most = *most, device->reserved[at].summed = summed;
    return false;
}

static Matmul product_of_tokens(Matmul most, bool summed, int64_t tokens) {
    *(most.transpose_a == summed ? &most.a.rows : &most.a.cols) = tokens;
    if (!summed)
        most.d.rows = tokens;
    else
        *(most.transpose_b ? &most.b.cols : &most.b.rows) = tokens;
    return most;
}

void matmul_reserve(Device *device, Stream *stream, Matmul most, bool summed) {
    // Products of the reference take none; a plan records thousands of them, of many rows each.
    bool takes_none = !device->model->workspace_bytes || !strcmp(device->model->name, "reference");
    if (takes_none || is_reserved(device, &most, summed)) return;
    int64_t tokens = !summed ? most.d.rows : most.transpose_a ? most.a.rows : most.a.cols;
    for (int64_t n = 1; n <= tokens; n++) {
        Matmul one = product_of_tokens(most, summed, n);
        size_t need = device->model->workspace_bytes(&device->options, OP_MATMUL, &one);
        if (need > stream->peak_bytes) stream->peak_bytes = need;
    }
}
