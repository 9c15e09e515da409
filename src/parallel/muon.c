// Steps hidden matrices by Muon (Jordan 2024). Each replica keeps the momentum of its shards. Their updates are
// gathered in the memory of gradients, one replica makes each matrix orthogonal, and every shard gets its part back.
#include "parallel/muon.h"
#include <math.h>
#include <stdlib.h>

// ---- the matrices of a parameter ------------------------------------------------------------------

// One of the matrices of a parameter: of every `period` rows `height` are its own, from row `first` on. It lies in rows
// [begin, begin + extent) of a rank's share, all of them where it is not an expert's. Rows and columns are those of the
// whole matrix.
typedef struct {
    int64_t period, first, height, rows, cols, begin, extent;
} Matrix;

static bool splits(const Optimizer *o, const Param *p) {
    return o->options.muon.split_qkv && p->spec.matrices[1] > 0;
}

static int experts_here(const Optimizer *o, const Param *p) {
    return p->spec.experts / context_ranks(o->context, ROLE_EXPERT);
}

// The matrices that this rank has a share of. A parameter is of experts on all ranks, or on none.
static int count_matrices(const Optimizer *o, const Param *p) {
    int count = 1;
    if (p->spec.experts) return experts_here(o, p);
    while (splits(o, p) && count < MAX_MATRICES && p->spec.matrices[count]) count++;
    return count;
}

static Matrix matrix_of(const Optimizer *o, const Param *p, int k) {
    const int64_t *heights = p->spec.matrices;
    Matrix m = {1, 0, 1, p->spec.rows, p->spec.cols, 0, placement_rows(&p->place)};
    if (p->spec.experts) {
        m.rows /= p->spec.experts;
        m.extent /= experts_here(o, p);
        m.begin = k * m.extent;
    }
    if (p->spec.experts || !splits(o, p)) return m;
    m.height = heights[k];
    for (int i = 0; i < k; i++) m.first += heights[i];
    m.period = m.first;
    for (int i = k; i < MAX_MATRICES; i++) m.period += heights[i];
    m.rows = p->spec.rows / m.period * m.height;
    return m;
}

// The number of the k-th matrix here of a parameter, among all of the model.
static int matrix_number(const Optimizer *o, int param, int k) {
    const Param *p = o->params->items[param];
    int before = p->spec.experts ? experts_here(o, p) * context_rank(o->context, ROLE_EXPERT) : 0;
    return o->muon->first[param] + before + k;
}

// Numbers the matrices of the model: a row of at least MAX_MATRICES for each parameter.
static void number_matrices(const Optimizer *o) {
    for (int i = 0; i < o->params->count; i++) {
        int experts = o->params->items[i]->spec.experts;
        o->muon->first[i] = o->muon->num_matrices;
        o->muon->num_matrices += experts > MAX_MATRICES ? experts : MAX_MATRICES;
    }
}

// ---- life ---------------------------------------------------------------------------------------

// The elements of a parameter's share from `begin` to `end` that are of a matrix, by their rows. Returns how many there
// are; `rows` may be NULL.
static int list_rows(Matrix m, int64_t width, OpSegment piece, int64_t begin, OpSegment *rows) {
    int count = 0;
    int64_t end = begin + piece.count, group = m.period * width;
    int64_t low = m.begin * width, high = low + m.extent * width;
    bool all = m.height == m.period;
    low = low > begin ? low : begin, high = high < end ? high : end;
    for (int64_t at = all ? low : begin / group * group; at < high; at = all ? high : at + group) {
        int64_t from = all ? at : at + m.first * width, to = all ? high : from + m.height * width;
        from = from > low ? from : low, to = to < high ? to : high;
        if (from >= to) continue;
        if (rows) rows[count] = (OpSegment){piece.begin + from - begin, to - from, piece.row, false};
        count++;
    }
    return count;
}

// Lists the rows of all matrices in a shard, or only counts them.
static int list_shard(const Optimizer *o, int bucket, OpSegment *rows) {
    const Bucket *b = &o->buckets->items[bucket];
    const ShardState *shard = &o->shards[bucket];
    int count = 0;
    for (int i = 0; i < shard->num_pieces && is_stepped_whole(b); i++) {
        const Param *p = shard->params[i];
        OpSegment piece = shard->pieces[i];
        int64_t begin = piece.begin + b->shard_begin - p->offset;
        for (int k = 0, param = (int)shard->pieces[i].row; k < count_matrices(o, p); k++) {
            piece.row = param < 0 ? -1 : matrix_number(o, param, k);
            count += list_rows(matrix_of(o, p, k), p->value.cols, piece, begin, rows ? rows + count : NULL);
        }
    }
    return count;
}

static double cost_of(const Optimizer *o, const Param *p) {
    double cost = 0;
    for (int k = 0; k < count_matrices(o, p); k++) {
        Matrix m = matrix_of(o, p, k);
        cost += (double)m.rows * (double)m.cols * (double)(m.rows < m.cols ? m.rows : m.cols);
    }
    return cost;
}

// Gives the matrices of each parameter to the replica that has least to do so far: alike on all replicas, which hold
// the same ones.
static Status divide_work(Optimizer *o, Reduction reduction) {
    int replicas = context_ranks(o->context, placement_reductions[reduction].replicas);
    double *load = calloc((size_t)replicas, sizeof *load);
    if (!load) return fail(ERR_OS, "no memory for the work of %d replicas", replicas);
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        int least = 0;
        if (p->chunk < 0 || p->place.reduction != reduction) continue;
        for (int r = 1; r < replicas; r++)
            if (load[r] < load[least]) least = r;
        o->muon->owner[i] = least;
        load[least] += cost_of(o, p);
    }
    free(load);
    return OK;
}

static Status check_sums(const Optimizer *o) {
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        if (is_stepped_whole(b) && b->replicas > 1) TRY(comm_can_reduce(b->group, F32, REDUCE_SUM));
    }
    return OK;
}

Status muon_create(Optimizer *o, Arena *arena) {
    Muon *muon = o->muon = calloc(1, sizeof *muon);
    if (!muon) return fail(ERR_OS, "no memory for Muon");
    size_t n = (size_t)o->buckets->count + 1;
    muon->first = calloc((size_t)o->params->count + 1, sizeof *muon->first);
    if (!muon->first) return fail(ERR_OS, "no memory for %d parameters of Muon", o->params->count);
    number_matrices(o);
    muon->owner = calloc((size_t)o->params->count + 1, sizeof *muon->owner);
    muon->num_rows = calloc(n, sizeof *muon->num_rows);
    muon->rows = calloc(n, sizeof(OpSegment *));
    muon->host = calloc((size_t)muon->num_matrices * 3 + 1, sizeof *muon->host);
    if (!muon->owner || !muon->num_rows || !muon->rows || !muon->host)
        return fail(ERR_OS, "no memory for %d matrices of Muon", muon->num_matrices);
    for (int i = 0; i < o->buckets->count; i++) {
        muon->num_rows[i] = list_shard(o, i, NULL);
        muon->rows[i] = calloc((size_t)muon->num_rows[i] + 1, sizeof *muon->rows[i]);
        if (!muon->rows[i]) return fail(ERR_OS, "no memory for %d parts of matrices", muon->num_rows[i]);
        list_shard(o, i, muon->rows[i]);
    }
    muon->sums = tensor_take(arena, "sums of squares of updates", muon->num_matrices, 3, F64);
    for (Reduction r = 0; r < NUM_REDUCTIONS; r++)
        if (placement_reductions[r].matrices) TRY(divide_work(o, r));
    return check_sums(o);
}

void muon_destroy(Optimizer *o) {
    Muon *muon = o->muon;
    if (!muon) return;
    for (int i = 0; muon->rows && i < o->buckets->count; i++) free(muon->rows[i]);
    free(muon->rows);
    free(muon->num_rows);
    free(muon->first);
    free(muon->owner);
    free(muon->host);
    free(muon);
}

// ---- momentum and norms -----------------------------------------------------------------------------

// m <- momentum m + (1 - momentum) g. The update, m or with Nesterov momentum m + (1 - momentum) g, takes the
// gradient's place.
static void accumulate(const Optimizer *o, const Bucket *b, Tensor m, double grad_scale) {
    const Context *c = o->context;
    const MuonOptions *options = &o->options.muon;
    double keep = options->momentum, factor = (1 - keep) * grad_scale;
    Tensor g = bucket_grads(o->params, b);
    blend(c->device, c->stream, (Blend){.x = g, .y = m, .keep = keep, .factor = factor});
    if (options->nesterov)
        blend(c->device, c->stream, (Blend){.x = m, .y = g, .keep = factor, .factor = keep});
    else
        device_copy(c->device, c->stream, g, m);
}

static double largest_update(Optimizer *o) {
    bool has[NUM_REDUCTIONS] = {[REDUCTION_MATRIX] = true};
    double max = 0;
    for (int i = 0; i < o->params->count; i++) has[o->params->items[i]->place.reduction] = true;
    for (Reduction r = 0; r < NUM_REDUCTIONS; r++)
        if (has[r] && placement_reductions[r].matrices) max = fmax(max, optimizer_largest(o, r));
    return max;
}

// Finds the norm of every matrix of the model, to which no cut can change a bit (optimizer_grad_norm does the same).
static void find_norms(Optimizer *o) {
    const Context *c = o->context;
    Muon *muon = o->muon;
    int exponent;
    double max = largest_update(o);
    // A step whose gradients are not finite was left out before, and of finite ones fp32 holds the momentum.
    CHECK(isfinite(max), "an update of Muon is not finite");
    frexp(max, &exponent);
    device_zero(c->device, c->stream, muon->sums);
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        if (!muon->num_rows[i]) continue;
        sum_squares(c->device, c->stream,
                    (SumSquares){.x = bucket_grads(o->params, b),
                                 .sum = muon->sums,
                                 .exponent = exponent,
                                 .num_segments = muon->num_rows[i],
                                 .segments = muon->rows[i]});
    }
    device_download(c->device, c->stream, muon->host, muon->sums);
    comm_all_reduce_host(o->owners, muon->host, muon->num_matrices * 3, REDUCE_SUM);
    for (int i = 0; i < muon->num_matrices; i++) {
        const double *sums = muon->host + 3 * (ptrdiff_t)i;
        muon->host[i] = ldexp(sqrt(sums[0] + sums[1] + sums[2]), exponent);
    }
}

// ---- one matrix ---------------------------------------------------------------------------------

static double scale_of(const MuonOptions *options, Matrix m) {
    double out = (double)m.rows, in = (double)m.cols, square = 0;
    switch (options->scale) {
    case MUON_SPECTRAL: square = fmax(out, in); break;
    case MUON_SHAPE_SCALING: square = fmax(1, out / in); break;
    case MUON_UNIT_RMS_NORM: square = out / in; break;
    }
    return options->extra_scale * sqrt(square);
}

// Multiplies the rows of a matrix by `factor`: from `share`, where they stand between those of others, to `alone`, or
// with `back` the other way.
static void move_rows(const Context *c, Matrix m, Tensor share, Tensor alone, double factor, bool back) {
    int64_t groups = m.height == m.period ? 1 : share.rows / m.period, height = alone.rows / groups;
    for (int64_t i = 0; i < groups; i++) {
        Tensor between = tensor_rows(share, i * m.period + m.first, height);
        Tensor dense = tensor_rows(alone, i * height, height);
        blend(c->device, c->stream,
              (Blend){.x = back ? dense : between, .y = back ? between : dense, .factor = factor});
    }
}

// Moves the rows of a matrix between the shares of all tensor ranks, which stand one after the other, and `alone`.
static void move_shares(const Context *c, Matrix m, Tensor whole, int parts, Tensor alone, double factor) {
    int64_t all = whole.rows / parts, rows = alone.rows / parts;
    if (m.extent == all) { // of all shares at once
        move_rows(c, m, whole, alone, factor, false);
        return;
    }
    for (int i = 0; i < parts; i++)
        move_rows(c, m, tensor_rows(whole, i * all + m.begin, m.extent), tensor_rows(alone, i * rows, rows),
                  factor, false);
}

// Makes one matrix of a parameter orthogonal. `whole` are the shares of all tensor ranks, one after the other, of which
// `share` is this rank's.
static void orthogonalise(const Optimizer *o, int param, int k, Tensor whole, Tensor share) {
    const Context *c = o->context;
    const Param *p = o->params->items[param];
    const MuonOptions *options = &o->options.muon;
    const double least = 1e-7, norm = o->muon->host[matrix_number(o, param, k)];
    ArenaMark mark = arena_mark(c->scratch);
    Matrix m = matrix_of(o, p, k);
    int parts = p->place.parts, blocks = p->place.cut.dim == 1 ? parts : 1;
    int64_t rows = m.rows * m.cols / whole.cols, own = rows / parts;
    Tensor x = tensor_take(c->scratch, "matrix of updates", rows, whole.cols, F32);
    Tensor y = tensor_take(c->scratch, "next matrix of updates", rows, whole.cols, F32);
    move_shares(c, m, whole, parts, x, 1 / fmax(norm, least));
    x = newton_schulz(c, options, x, y, blocks);
    move_rows(c, m, tensor_rows(share, m.begin, m.extent), tensor_rows(x, own * p->place.part, own),
              scale_of(options, m), true);
    arena_release(c->scratch, mark);
}

static void step_param(const Optimizer *o, int param) {
    const Context *c = o->context;
    const Param *p = o->params->items[param];
    ArenaMark mark = arena_mark(c->scratch);
    Tensor whole = p->grad;
    if (p->place.parts > 1) {
        whole = tensor_take(c->scratch, "updates of all tp ranks", p->grad.rows * p->place.parts,
                            p->grad.cols, F32);
        Role shares = p->spec.experts ? ROLE_EXPERT_TENSOR : ROLE_TENSOR;
        comm_all_gather(context_group(c, shares), c->stream, p->grad, whole);
    }
    for (int k = 0; k < count_matrices(o, p); k++) orthogonalise(o, param, k, whole, p->grad);
    arena_release(c->scratch, mark);
}

// ---- all of them ----------------------------------------------------------------------------------

static void gather_updates(const Optimizer *o) {
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        if (is_stepped_whole(b) && b->sharded)
            comm_all_gather(b->group, o->context->stream, bucket_grads(o->params, b),
                            bucket_whole_grads(o->params, b));
    }
}

// What other replicas orthogonalise becomes zero here, so that the sum over them is their result.
static void orthogonalise_own(const Optimizer *o) {
    const Context *c = o->context;
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        const ReductionInfo *info = &placement_reductions[p->place.reduction];
        if (p->chunk < 0 || !info->matrices) continue;
        if (o->muon->owner[i] == context_rank(c, info->replicas))
            step_param(o, i);
        else
            device_zero(c->device, c->stream, p->grad);
    }
}

static void share_results(const Optimizer *o) {
    Stream *stream = o->context->stream;
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        if (!is_stepped_whole(b) || b->replicas == 1) continue;
        Tensor whole = bucket_whole_grads(o->params, b);
        if (b->sharded)
            comm_reduce_scatter(b->group, stream, whole, bucket_grads(o->params, b), REDUCE_SUM);
        else
            comm_all_reduce(b->group, stream, whole, REDUCE_SUM);
    }
}

void muon_step(Optimizer *o, double grad_scale, double lr, double weight_decay) {
    const Context *c = o->context;
    rank_doing("Muon");
    for (int i = 0; i < o->buckets->count; i++)
        if (is_stepped_whole(&o->buckets->items[i]))
            accumulate(o, &o->buckets->items[i], o->shards[i].m, grad_scale);
    find_norms(o);
    gather_updates(o);
    orthogonalise_own(o);
    share_results(o);
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        Tensor values = o->params->chunks[b->chunk].values;
        if (!is_stepped_whole(b)) continue;
        blend(c->device, c->stream,
              (Blend){.x = bucket_grads(o->params, b),
                      .y = o->shards[i].main,
                      .y_value = values.dtype == F32 ? (Tensor){0} : bucket_values(o->params, b),
                      .keep = 1,
                      .factor = -lr,
                      .own = weight_decay});
    }
}
