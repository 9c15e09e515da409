// Prices of operations. A matrix product is cut into tiles; the tiles run in waves over the multiprocessors; each
// tile walks K and pays for filling and draining. All other operations are limited by memory bandwidth.
#include "machine/rates.h"
#include "plan/plan.h"
#include <math.h>

static double us(double microseconds) { return microseconds * 1e-6; }

// ---- operations -----------------------------------------------------------------------------------

static double memory_seconds(const CostModel *costs, double bytes) {
    return bytes / (costs->machine->memory_gbs * 1e9 * costs->constants.memory_efficiency);
}

static double stream_seconds(const CostModel *costs, double bytes) {
    return bytes / (costs->machine->memory_gbs * 1e9 * costs->constants.stream_efficiency);
}

static double bytes_seconds(const CostModel *costs, double bytes) {
    return memory_seconds(costs, bytes) + us(costs->constants.kernel_us);
}

static double ceil_div(double a, double b) { return ceil(a / b); }

// The waves that the tiles of a product make. In a last wave that is not full, the tiles have more memory bandwidth
// and clock: it counts as less than a full one.
static double waves_of(const CostModel *costs, double tiles) {
    double waves = tiles / costs->machine->sms;
    return fmax(1, waves + costs->constants.wave_tail * (ceil(waves) - waves));
}

// What a product multiplies: the FLOP/s of tiles that fill every wave, the additional K that filling and draining a
// tile costs, and the bytes of a number.
typedef struct {
    double rate, depth, bytes;
} Operands;

static Operands operands_of(const CostModel *costs, DType dtype) {
    const Constants *c = &costs->constants;
    return (Operands){.rate = costs->machine->peak_tflops[dtype] * 1e12 * c->tile_efficiency *
                              c->matmul_efficiency,
                      .depth = c->tile_depth,
                      .bytes = (double)dtype_bytes(dtype)};
}

// Filling and draining a tile takes the same time as in 16 bits, in which smaller factors walk further along K.
static Operands factors_of(const CostModel *costs, FactorFormat format) {
    const Machine *machine = costs->machine;
    const Constants *c = &costs->constants;
    const double efficiency[NUM_FACTOR_FORMATS] = {[FACTORS_FP8] = c->fp8_efficiency,
                                                   [FACTORS_MXFP8] = c->mxfp8_efficiency,
                                                   [FACTORS_NVFP4] = c->nvfp4_efficiency};
    double peak = machine->factor_tflops[format];
    return (Operands){.rate = peak * 1e12 * c->factor_tile_efficiency * efficiency[format],
                      .depth = c->tile_depth * peak / machine->peak_tflops[BF16],
                      .bytes = factor_format_bytes(format)};
}

// `batch` products of [m, k] and [k, n], with the tile size that is fastest. The result has the type `dtype`.
static double product_seconds(const CostModel *costs, double batch, double m, double n, double k,
                              Operands operands, DType dtype) {
    const Machine *machine = costs->machine;
    double best = INFINITY;
    for (int i = 0; i < machine->num_tiles; i++) {
        const Tile *tile = &machine->tiles[i];
        double tiles = batch * ceil_div(m, tile->m) * ceil_div(n, tile->n);
        double one =
            2.0 * tile->m * tile->n * (k + operands.depth) * machine->sms / (operands.rate * tile->rate);
        double seconds = waves_of(costs, tiles) * one;
        if (seconds < best) best = seconds; // not fmin: gcc 12.2 for arm64 cannot compile such a reduction
    }
    double bytes = batch * ((m * k + k * n) * operands.bytes + m * n * (double)dtype_bytes(dtype));
    return fmax(best, memory_seconds(costs, bytes)) + us(costs->constants.matmul_us);
}

// The bytes that trireme's own product moves: a gradient is fp32, and read before it is added to.
static double own_bytes(const WorkItem *item) {
    return item->bytes + (item->accumulate ? (double)(item->m * item->n) * (double)dtype_bytes(F32) : 0);
}

static double matmul_seconds(const CostModel *costs, const ParallelConfig *config, const WorkItem *item) {
    DType dtype = (DType)item->dtype;
    Operands operands = item->low ? factors_of(costs, config->factors) : operands_of(costs, dtype);
    if (item->of_experts && config->groups_experts)
        operands.rate *=
            item->low ? costs->constants.grouped_factor_efficiency : costs->constants.grouped_efficiency;
    double seconds = product_seconds(costs, (double)item->batch, (double)item->m, (double)item->n,
                                     (double)item->k, operands, dtype);
    if (costs->stack->is_trireme)
        seconds = fmax(seconds, memory_seconds(costs, own_bytes(item)) + us(costs->constants.matmul_us));
    if (item->accumulate)
        seconds += stream_seconds(costs, costs->constants.gradient_add_bytes *
                                             (double)(item->batch * item->m * item->n));
    return seconds;
}

// A product that joins GELU also writes or reads what GELU takes, as large as its result.
static double aux_seconds(const CostModel *costs, const WorkItem *item) {
    return memory_seconds(costs, (double)(item->m * item->n) * (double)dtype_bytes((DType)item->dtype));
}

// The share of the rate that attention reaches with heads of this size. A score has one exponential, however long the
// heads are: where these limit attention with heads of 128, they let scores of other heads take as long.
static double head_share(const Constants *c, double head) {
    double usual = head / (head + c->attention_head_size), limit = c->attention_exponentials;
    return limit < 1 ? fmin(usual, limit * head / (128 + c->attention_head_size)) : limit * usual;
}

// Attention without the S x S matrix. It skips the half of the scores above the diagonal; its backward computes the
// scores again: five products for two.
static double fused_attention_seconds(const CostModel *costs, const WorkItem *item, bool backward) {
    const Constants *c = &costs->constants;
    double head = (double)item->n, flops = 0.5 * item->flops;
    double rate =
        costs->machine->peak_tflops[item->dtype] * 1e12 * c->fused_attention_efficiency * head_share(c, head);
    double seconds = flops / (backward ? rate * c->fused_attention_backward : rate);
    return fmax(seconds, memory_seconds(costs, item->bytes)) + us(c->kernel_us);
}

// Returns whether Megatron-LM's fused softmax refuses the shape: it takes S up to 2048 and a multiple of 4 heads times
// samples.
static bool softmax_falls_back(const WorkItem *item) { return item->batch % 4 || item->k > 2048; }

// Attention with the S x S matrix in memory: two products forward, four backward, softmax and dropout between them.
static double unfused_attention_seconds(const CostModel *costs, const WorkItem *item, bool backward) {
    const Constants *c = &costs->constants;
    double s = (double)item->m, d = (double)item->n, batch = (double)item->batch, keys = (double)item->k;
    double scores = batch * s * keys;
    DType dtype = (DType)item->dtype;
    Operands operands = operands_of(costs, dtype);
    double products = product_seconds(costs, batch, s, keys, d, operands, dtype) +
                      product_seconds(costs, batch, s, d, keys, operands, dtype);
    double bytes = scores * (backward ? c->softmax_backward_bytes : c->softmax_bytes);
    if (item->n % 8) products *= c->misaligned_heads;
    if (softmax_falls_back(item)) bytes *= c->softmax_fallback;
    double seconds = (backward ? 2 * products : products) + bytes_seconds(costs, bytes);
    return item->dropout ? seconds + bytes_seconds(costs, scores * c->dropout_bytes) : seconds;
}

static double attention_seconds(const CostModel *costs, const WorkItem *item, bool backward) {
    double copies = memory_seconds(costs, costs->constants.attention_copies * item->bytes);
    return copies + (item->probabilities ? unfused_attention_seconds(costs, item, backward)
                                         : fused_attention_seconds(costs, item, backward));
}

// The bytes that this program moves for an operation, over those of trireme's fused one.
static double passes(const Constants *c, DeviceOp op) {
    switch (op) {
    case OP_NORM_FORWARD:
    case OP_NORM_BACKWARD_INPUT:
    case OP_NORM_BACKWARD_WEIGHT:
    case OP_QK_SUMS:
    case OP_QK_NORM_FORWARD:
    case OP_QK_NORM_BACKWARD_INPUT:
    case OP_QK_NORM_BACKWARD_WEIGHT:
    case OP_NORM_BACKWARD: return c->norm_passes;
    case OP_BIAS_GELU_FORWARD:
    case OP_BIAS_GELU_BACKWARD:
    case OP_SWIGLU_FORWARD:
    case OP_SWIGLU_BACKWARD: return c->activation_passes;
    case OP_BIAS_DROPOUT_ADD:
    case OP_DROPOUT_BACKWARD:
    case OP_SCALE:
    case OP_COLUMN_SUM:
    case OP_ADD: return c->residual_passes;
    case OP_ROTARY: return c->rotary_passes;
    case OP_ROUTER_FORWARD:
    case OP_ROUTER_BACKWARD:
    case OP_SORT_PAIRS:
    case OP_GATHER_ROWS:
    case OP_COMBINE_ROWS:
    case OP_COMBINE_BACKWARD: return c->expert_passes;
    case OP_ABS_MAX:
    case OP_QUANTIZE: return c->cast_passes;
    default: return 1;
    }
}

// A lookup reads the rows it needs, not the whole table.
static double embedding_seconds(const CostModel *costs, const WorkItem *item) {
    double rows = (double)(item->m * item->n) * (double)dtype_bytes((DType)item->dtype);
    return bytes_seconds(costs, 2 * rows);
}

// The gradient of a table is dense: it is cleared and added to; where adding gradients is a separate operation, it
// is added once more.
static double table_gradient_seconds(const CostModel *costs, const WorkItem *item) {
    double parameters = (double)(item->m * item->n);
    return bytes_seconds(costs, item->bytes) +
           stream_seconds(costs, costs->constants.gradient_add_bytes * parameters);
}

// Where every rank holds the logits of the whole vocabulary, it works on all of them.
static double loss_seconds(const CostModel *costs, const ParallelConfig *config, const WorkItem *item) {
    double bytes = item->bytes * costs->constants.loss_passes;
    if (costs->stack->gathers_logits) bytes *= grid_along(config->grid, AXIS_TP);
    return stream_seconds(costs, bytes) + us(costs->constants.kernel_us);
}

bool cost_model_has_rates(const CostModel *costs) {
    return costs->machine->is_cpu || (costs->stack->is_trireme && costs->machine->num_rates > 0);
}

int cost_model_busy_ranks(const CostModel *costs, const ParallelConfig *config) {
    return costs->machine->is_cpu ? parallel_config_devices_in_node(costs->machine, config) : 1;
}

// Operations cost what was measured in training steps; with the two efficiencies users calibrate on their own logs.
static double measured_seconds(const CostModel *costs, const ParallelConfig *config, const WorkItem *item) {
    const Constants *c = &costs->constants;
    double measured = price_operation_by_rates(costs->machine, item, cost_model_busy_ranks(costs, config));
    return measured / (work_item_is_product(item) ? c->matmul_efficiency : c->memory_efficiency);
}

double price_operation(const CostModel *costs, const ParallelConfig *config, const WorkItem *item) {
    if (cost_model_has_rates(costs)) return measured_seconds(costs, config, item);
    switch ((DeviceOp)item->op) {
    case OP_MATMUL:
    case OP_MATMUL_SUMS: return matmul_seconds(costs, config, item);
    case OP_MATMUL_GELU:
    case OP_MATMUL_GELU_BACKWARD: return matmul_seconds(costs, config, item) + aux_seconds(costs, item);
    case OP_ATTENTION_FORWARD: return attention_seconds(costs, item, false);
    case OP_ATTENTION_BACKWARD: return attention_seconds(costs, item, true);
    case OP_LOSS_MAX:
    case OP_LOSS_SUM:
    case OP_LOSS_FINISH:
    case OP_LOSS_WHOLE: return loss_seconds(costs, config, item);
    case OP_EMBEDDING_FORWARD: return embedding_seconds(costs, item);
    case OP_EMBEDDING_BACKWARD: return table_gradient_seconds(costs, item);
    default: return bytes_seconds(costs, item->bytes * passes(&costs->constants, (DeviceOp)item->op));
    }
}

double operation_launches(const CostModel *costs, const WorkItem *item) {
    bool softmax = item->probabilities && softmax_falls_back(item);
    return softmax ? costs->constants.softmax_fallback : 1;
}

// ---- optimizer state on the host ------------------------------------------------------------------------

double price_offload(const CostModel *costs, const ParallelConfig *config, double parameters) {
    const Machine *m = costs->machine;
    double value = (double)dtype_bytes(config->dtype), efficiency = 1e9 * costs->constants.host_efficiency;
    // The fp32 weight and two moments are read and written; the gradient is written by the copy, and read; of values
    // in 16 bits bf16 has no fp32 weight but a remainder beside them.
    double link = 4 + value, memory = 6 * 4 + 2 * 4 + (config->dtype == F16 ? 2 * value : value);
    if (!(parameters > 0)) return 0;
    return parameters *
           fmax(link / (m->host_link_gbs * efficiency),
                memory * parallel_config_devices_in_node(m, config) / (m->host_memory_gbs * efficiency));
}
