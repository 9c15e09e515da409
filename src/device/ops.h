// The operations of a device: fused functions on whole tensors, and some that join several of these.
//
// Every operation passes one front (launch.c) that checks shapes and counts calls, flops and bytes; the functions of a
// backend contain arithmetic only. Operations are stream-ordered and may return before they are done; none allocates.
// Results do not depend on the number of threads. A bad shape is our bug (CHECK).
//
// Precision. One call has one *element type* E, F32, BF16 or F16: that of its activations and parameters.
// Results of long sums are F32: statistics, losses, gradients of parameters, AdamW's state. All sums are made in
// fp32 or better and rounded to E once, when a result is stored. A tensor below is E unless its line says
// otherwise.
//
// Letters: B microbatch, S sequence, H hidden, N heads, G groups of heads that share keys and values, D head
// size, F mlp, V vocabulary, T = S*B rows (row = s*B + b), t tensor-parallel size. With sequence parallelism
// a tensor of T rows is a share of T/t of them, from `first_row` on.
#pragma once
#include "base/rng.h"
#include "device/device.h"

// ---- the table, counting ----------------------------------------------------------------------------------

//  name, tensors read, tensors written (an argument struct holds them first, in this order)
#define BASIC_OPS(X)                                                                                         \
    X(MATMUL, matmul, Matmul, 5, 1)                                                                          \
    X(QUANTIZE, quantize, Quantize, 2, 2)                                                                    \
    X(QUANTIZE_BLOCKS, quantize_blocks, QuantizeBlocks, 2, 2)                                                \
    X(HADAMARD, hadamard, Hadamard, 1, 1)                                                                    \
    X(SCALE_PRODUCT, scale_product, ScaleProduct, 4, 1)                                                      \
    X(BIAS_GELU_FORWARD, bias_gelu_forward, BiasGeluForward, 2, 1)                                           \
    X(BIAS_GELU_BACKWARD, bias_gelu_backward, BiasGeluBackward, 3, 1)                                        \
    X(SWIGLU_FORWARD, swiglu_forward, SwigluForward, 2, 1)                                                   \
    X(SWIGLU_BACKWARD, swiglu_backward, SwigluBackward, 3, 1)                                                \
    X(BIAS_DROPOUT_ADD, bias_dropout_add, BiasDropoutAdd, 3, 1)                                              \
    X(DROPOUT_BACKWARD, dropout_backward, DropoutBackward, 1, 1)                                             \
    X(SCALE, scale, Scale, 1, 1)                                                                             \
    X(SOFT_CAP, soft_cap, SoftCap, 1, 1)                                                                     \
    X(SOFT_CAP_BACKWARD, soft_cap_backward, SoftCapBackward, 2, 1)                                           \
    X(COLUMN_SUM, column_sum, ColumnSum, 1, 1)                                                               \
    X(NORM_FORWARD, norm_forward, NormForward, 3, 3)                                                         \
    X(NORM_BACKWARD_INPUT, norm_backward_input, NormBackwardInput, 6, 1)                                     \
    X(NORM_BACKWARD_WEIGHT, norm_backward_weight, NormBackwardWeight, 4, 2)                                  \
    X(QK_SUMS, qk_sums, QkSums, 5, 1)                                                                        \
    X(QK_NORM_FORWARD, qk_norm_forward, QkNormForward, 4, 2)                                                 \
    X(QK_NORM_BACKWARD_INPUT, qk_norm_backward_input, QkNormBackwardInput, 6, 1)                             \
    X(QK_NORM_BACKWARD_WEIGHT, qk_norm_backward_weight, QkNormBackwardWeight, 3, 2)                          \
    X(ROTARY, rotary, Rotary, 1, 1)                                                                          \
    X(ATTENTION_FORWARD, attention_forward, AttentionForward, 4, 3)                                          \
    X(ATTENTION_BACKWARD, attention_backward, AttentionBackward, 8, 3)                                       \
    X(ATTENTION_CACHED, attention_cached, AttentionCached, 2, 3)                                             \
    X(EMBEDDING_FORWARD, embedding_forward, EmbeddingForward, 2, 1)                                          \
    X(EMBEDDING_BACKWARD, embedding_backward, EmbeddingBackward, 2, 1)                                       \
    X(POSITION_DROPOUT, position_dropout, PositionDropout, 2, 1)                                             \
    X(POSITION_BACKWARD, position_backward, PositionBackward, 1, 1)                                          \
    X(LOSS_MAX, loss_max, LossMax, 1, 1)                                                                     \
    X(LOSS_SUM, loss_sum, LossSum, 3, 2)                                                                     \
    X(LOSS_FINISH, loss_finish, LossFinish, 6, 2)                                                            \
    X(ABS_MAX, abs_max, AbsMax, 1, 1)                                                                        \
    X(SUM_SQUARES, sum_squares, SumSquares, 1, 2)                                                            \
    X(ADAMW, adamw, AdamW, 1, 4)                                                                             \
    X(BLEND, blend, Blend, 2, 2)                                                                             \
    X(ADD, add, Add, 1, 1)                                                                                   \
    X(ARRANGE_COLUMNS, arrange_columns, ArrangeColumns, 3, 1)                                                \
    X(ROUTER_FORWARD, router_forward, RouterForward, 2, 2)                                                   \
    X(ROUTER_SUMS, router_sums, RouterSums, 1, 2)                                                            \
    X(ROUTER_BACKWARD, router_backward, RouterBackward, 4, 1)                                                \
    X(ROUTER_DROP, router_drop, RouterDrop, 2, 1)                                                            \
    X(SORT_PAIRS, sort_pairs, SortPairs, 1, 3)                                                               \
    X(GATHER_ROWS, gather_rows, GatherRows, 2, 1)                                                            \
    X(COMBINE_ROWS, combine_rows, CombineRows, 3, 1)                                                         \
    X(COMBINE_BACKWARD, combine_backward, CombineBackward, 4, 2)                                             \
    X(JITTER, jitter, Jitter, 1, 1)

//  Operations that join others so that a tensor is read once. A device that is `fused` makes them; for all others the
//  front makes each of the basic ones (fused.c), and these are counted: no number and no bit of theirs changes.
#define FUSED_OPS(X)                                                                                         \
    X(MATMUL_SUMS, matmul_sums, MatmulSums, 2, 2)                                                            \
    X(MATMUL_GELU, matmul_gelu, MatmulGelu, 3, 2)                                                            \
    X(MATMUL_GELU_BACKWARD, matmul_gelu_backward, MatmulGeluBackward, 3, 1)                                  \
    X(NORM_BACKWARD, norm_backward, NormBackward, 6, 3)                                                      \
    X(LOSS_WHOLE, loss_whole, LossWhole, 3, 5)
#define DEVICE_OPS(X) BASIC_OPS(X) FUSED_OPS(X)

#define X(NAME, function, Args, reads, writes) OP_##NAME,
typedef enum { DEVICE_OPS(X) NUM_DEVICE_OPS } DeviceOp;
#undef X

typedef struct {
    int64_t calls;
    // The operations of matrix products, as specified; all else is bound by memory and counts 0. matmul 2MNK; causal
    // attention in full, B*S*S*D*N/t times 4 forward and 10 backward (scores again, dv, dp, dq, dk); with a
    // cache 4 B*S*P*D*N/t. A window counts the share of the causal scores that it leaves; documents count as one.
    double flops;
    double bytes; // the size of its tensors, each once (one that is updated in place too)
} OpCount;

const char *device_op_name(DeviceOp op);
const OpCount *device_counts(const Device *device); // [NUM_DEVICE_OPS] since open or the last reset
void device_counts_reset(Device *device);
// Sets an optional function that is called for every operation once it is counted: `args` is its argument struct, `one`
// what the call adds to the counts. NULL removes it.
typedef void OnOperation(void *self, DeviceOp op, const void *args, OpCount one);
void device_on_operation(Device *device, OnOperation *hook, void *self);

// ---- operations: matrix products --------------------------------------------------------------------------

// d = op(a) op(b) (+ bias) (+ d).   op(a) [M, K], op(b) [K, N], bias [1, N] or absent; d [M, N] in E or F32,
// and F32 with `accumulate`. Products are added in fp32.
// Factors in 8 bits, E4M3 both or one E4M3 and one E5M2, come with scales, F32 [1, 1] (see quantize):
// d = scale_a * scale_b * a b^T (+ bias) (+ d), for a [M, K] and b [N, K]: transpose_b alone. d is then in any E and
// the bias in the type of d. With `fast_sums` a GPU may keep fewer bits of their sums, some 14, between roundings to
// fp32.
typedef struct {
    Tensor a, b, bias, scale_a, scale_b; // scales: absent but for factors in 8 bits
    Tensor d;
    bool transpose_a, transpose_b, accumulate, fast_sums;
} Matmul;
void matmul(Device *device, Stream *stream, Matmul args);
// Makes up to MATMULS_AT_ONCE products of one type, with the bits of matmul. None reads or writes what another one
// writes. Where a device has several threads they share out the products: each may be too small to occupy them all.
// Messages advance before the products then, not between them.
enum { MATMULS_AT_ONCE = 16 };
void matmul_each(Device *device, Stream *stream, const Matmul *calls, int count);

// The gradients of a linear layer's weight and bias: d = a^T b (+ d), sums = the column sums of a (+ sums).
//   a [T, M], b [T, N], d F32 [M, N], sums F32 [1, M]
typedef struct {
    Tensor a, b;
    Tensor d, sums;
    bool accumulate, accumulate_sums;
} MatmulSums;
void matmul_sums(Device *device, Stream *stream, MatmulSums args);

// A linear layer and GELU in its tanh form: aux = a b^T (+ bias), d = gelu(aux). The backward reads aux; d may be made
// of it before it was rounded.   a [M, K], b [N, K], bias [1, N] or absent, d, aux [M, N]
typedef struct {
    Tensor a, b, bias;
    Tensor d, aux;
} MatmulGelu;
void matmul_gelu(Device *device, Stream *stream, MatmulGelu args);

// d = (a b) * gelu'(aux), where a b need not be rounded.   a [M, K], b [K, N], aux, d [M, N]; d is none of the others
typedef struct {
    Tensor a, b, aux;
    Tensor d;
} MatmulGeluBackward;
void matmul_gelu_backward(Device *device, Stream *stream, MatmulGeluBackward args);

// ---- activations, dropout, residual -----------------------------------------------------------------------

// y = gelu(x + bias). The tanh form, as Megatron-LM's fused kernel and OpenAI's GPT-2 have it, is
// 0.5 u (1 + tanh(0.79788456 u (1 + 0.044715 u^2))); GELU_EXACT is u times the normal distribution function,
// 0.5 u (1 + erf(u / sqrt(2))).
// Instead of GELU it can also be the square of max(u, 0) (So 2021).
//   x, y [T, F/t], bias [1, F/t] or absent
typedef enum { GELU_TANH, GELU_EXACT, RELU_SQUARED } GeluForm;
typedef struct {
    Tensor x, bias;
    Tensor y;
    GeluForm form;
} BiasGeluForward;
void bias_gelu_forward(Device *device, Stream *stream, BiasGeluForward args);

// dx = dy * gelu'(x + bias).   dx may be dy or x.
typedef struct {
    Tensor dy, x, bias;
    Tensor dx;
    GeluForm form;
} BiasGeluBackward;
void bias_gelu_backward(Device *device, Stream *stream, BiasGeluBackward args);

// SwiGLU (Shazeer 2020): y = silu(g) * u, where g and u are the first and the last F/t columns of x + bias,
// and silu(g) = g / (1 + exp(-g)). GATE_GELU is GeGLU, with the tanh form of GELU in its place. GATE_QUICK, of GPT-OSS,
// is y = g / (1 + exp(-1.702 g)) * (u + offset), where with `clamp` above 0 g is at most clamp and u within +-clamp;
// what is cut off has no gradient.
//   x [T, 2F/t], bias [1, 2F/t] or absent, y [T, F/t]
typedef enum { GATE_SILU, GATE_GELU, GATE_QUICK } GateForm;
typedef struct {
    Tensor x, bias;
    Tensor y;
    GateForm form;
    float offset, clamp; // of GATE_QUICK
} SwigluForward;
void swiglu_forward(Device *device, Stream *stream, SwigluForward args);

// dy [T, F/t] -> dx [T, 2F/t]; dx may be x.
typedef struct {
    Tensor dy, x, bias;
    Tensor dx;
    GateForm form;
    float offset, clamp;
} SwigluBackward;
void swiglu_backward(Device *device, Stream *stream, SwigluBackward args);

// The key of a dropout mask: element (row s*B + b, column c) of a [S*B, H] tensor is
// element s*H + c of sample first_sample + b (rng.h), so no grid and no schedule can change a mask. A tensor
// that holds rows from `first_row` on drops what the whole one would. All zeros: no dropout.
typedef struct {
    RngKey key;
    float probability;
    int64_t first_sample; // numbered over the whole run
    int64_t samples;      // B
    int64_t first_row;    // of the [S*B, H] tensor; a multiple of B
    // Of a tensor that holds columns from `first_col` on of `cols` (H): it drops what the whole one would. For
    // bias_dropout_add and dropout_backward alone. cols 0: it holds all.
    int64_t first_col, cols;
} Dropout;

// y = residual + dropout(x + bias).   x, residual, y [T, H], bias [1, H] or absent; y may be residual or x.
typedef struct {
    Tensor x, bias, residual;
    Tensor y;
    Dropout dropout;
} BiasDropoutAdd;
void bias_dropout_add(Device *device, Stream *stream, BiasDropoutAdd args);

// dx = dropout'(dy); dx may be dy.
typedef struct {
    Tensor dy;
    Tensor dx;
    Dropout dropout;
} DropoutBackward;
void dropout_backward(Device *device, Stream *stream, DropoutBackward args);

// y = factor * x; y may be x.
typedef struct {
    Tensor x;
    Tensor y;
    float factor;
} Scale;
void scale(Device *device, Stream *stream, Scale args);

// y = cap * tanh(x / cap), both F32; y may be x.
typedef struct {
    Tensor x;
    Tensor y;
    float cap;
} SoftCap;
void soft_cap(Device *device, Stream *stream, SoftCap args);

// dx = dy * (1 - (y / cap)^2).   y F32, what soft_cap made; dy, dx in E; dx may be dy
typedef struct {
    Tensor dy, y;
    Tensor dx;
    float cap;
} SoftCapBackward;
void soft_cap_backward(Device *device, Stream *stream, SoftCapBackward args);

// sum += the column sums of x.   x [T, C], sum F32 [1, C]
typedef struct {
    Tensor x;
    Tensor sum;
} ColumnSum;
void column_sum(Device *device, Stream *stream, ColumnSum args);

// ---- norms: statistics per row in fp32 --------------------------------------------------------------------

// Layer norm (Ba 2016): y = (x - mean) * rstd * gamma + beta.   RMS norm (Zhang 2019), where beta and mean
// are absent: y = x * rstd * gamma, rstd = 1 / sqrt(mean of x^2 + epsilon). Where there is an `offset`, offset + gamma,
// added in fp32, stands in gamma's place.
//   x, y [T, H], gamma, beta [1, H], mean, rstd F32 [1, T]
typedef struct {
    Tensor x, gamma, beta;
    Tensor y, mean, rstd;
    float epsilon, offset;
} NormForward;
void norm_forward(Device *device, Stream *stream, NormForward args);

// dx = residual (if present) + the gradient of x.   dx may be residual, dy or x. mean absent: RMS norm.
typedef struct {
    Tensor dy, x, gamma, mean, rstd, residual;
    Tensor dx;
    float offset;
} NormBackwardInput;
void norm_backward_input(Device *device, Stream *stream, NormBackwardInput args);

// dgamma += ..., dbeta += ...   F32 [1, H] both; mean and dbeta absent: RMS norm.
typedef struct {
    Tensor dy, x, mean, rstd;
    Tensor dgamma, dbeta;
} NormBackwardWeight;
void norm_backward_weight(Device *device, Stream *stream, NormBackwardWeight args);

// Both of them: dx as of norm_backward_input; dgamma and dbeta are added to with `accumulate`, else written.
typedef struct {
    Tensor dy, x, gamma, mean, rstd, residual;
    Tensor dx, dgamma, dbeta;
    bool accumulate;
    float offset;
} NormBackward;
void norm_backward(Device *device, Stream *stream, NormBackward args);

// ---- self-attention ---------------------------------------------------------------------------------------

// Columns of qkv: for each local group its N/G query heads, then its key and its value head (D each), so a
// cut by groups is a cut of rows of the weight; as many groups as heads is the attention of GPT-2, fewer is
// grouped-query attention (Ainslie 2023). Scores are scaled by 1/sqrt(D). Dropout acts on the probabilities:
// element (h*S + q)*S + k of the sample, h global. Probabilities and the gradients of scores are factors of
// further products, for which a backend may round them to E.
// With `keys`, a call has only some neighbouring positions of each sample: `sequence` of them from `first_position` on,
// whose queries see the keys and values of all `keys` positions in a tensor of their own. S above is then `keys`. With
// `kept`, that tensor has those of `kept` positions from `first_kept` on alone, and nothing is computed of the others.
typedef struct {
    int64_t batch, sequence, heads, groups, head_size; // B, S, N/t, G/t, D
    int64_t first_head;                                // global number of local head 0
    int64_t keys, first_position;                      // 0, 0: the call has all positions
    int64_t first_kept, kept;                          // 0, 0: keys and values of all of them
} AttentionShape;

// Which keys a query sees, and what a score becomes. Position i of a sample sees the keys from first(i) to i, where
// first(i) is the larger of first_key[i] (0 where the tensor is absent) and i - window + 1 (0 without a window). Scores
// outside are never computed where whole blocks of them lie outside. A score is x = scale * q.k, then with a cap C
// C tanh(x / C). With sinks the denominator of a query's softmax has a term more, exp(z) of the head's sink z; with
// off_by_one exp(0). Zeros: plain causal attention.
typedef struct {
    int64_t window;  // keys that a query sees, its own included; 0: all
    float scale;     // 0: 1/sqrt(D)
    float cap;       // C; 0: none
    bool off_by_one; // only without sinks
} AttentionRules;

// Returns the share of the causal scores of positions [first, first + count) that a window leaves; 1 without one.
double attention_visible_share(int64_t window, int64_t first, int64_t count);

// Rotary position embedding (Su 2021), half by half as in Llama and Megatron-LM: in every query and key head
// (x1, x2) = (columns i, i + R/2) become (x1 cos - x2 sin, x2 cos + x1 sin); columns from R on stay.
//   table F32 [S, R]: row s holds cos of the angles of position s, then sin (R/2 each)
//   qkv [T, (N + 2G)/t * D], in place.   inverse: the transposed rotation, for gradients
typedef struct {
    Tensor table;
    Tensor qkv;
    AttentionShape shape;
    bool inverse;
} Rotary;
void rotary(Device *device, Stream *stream, Rotary args);

// RMS norms of queries and keys (Henry 2020), in one of two ways. Each head by itself: the mean is over its D columns,
// and query_gamma and key_gamma are [1, D]. Or all query heads of a row together, and all its key heads, those of other
// ranks included: gammas are [1, N/t * D] and [1, G/t * D], and `sums` hold the sums of squares, or of gradients, over
// the heads of all `ranks`. `offset` as of norm_forward.
//
// This makes such sums over the local heads: of squares, or, with dy, of dy * gamma * x * rstd.
//   qkv, dy [T, (N + 2G)/t * D], rstd F32 [T, (N + G)/t], sums F32 [T, 2]: of queries, of keys
// Only qkv need be there.
typedef struct {
    Tensor qkv, dy, query_gamma, key_gamma, rstd;
    Tensor sums;
    AttentionShape shape;
    float offset;
} QkSums;
void qk_sums(Device *device, Stream *stream, QkSums args);

// y = qkv with normalised queries and keys. rstd: that of each query and key head of a group, group by group.
// sums absent: each head by itself.
typedef struct {
    Tensor qkv, query_gamma, key_gamma, sums;
    Tensor y, rstd;
    AttentionShape shape;
    int ranks;
    float epsilon, offset;
} QkNormForward;
void qk_norm_forward(Device *device, Stream *stream, QkNormForward args);

// dx may be dy or qkv.
typedef struct {
    Tensor dy, qkv, query_gamma, key_gamma, rstd, sums;
    Tensor dx;
    AttentionShape shape;
    int ranks;
    float offset;
} QkNormBackwardInput;
void qk_norm_backward_input(Device *device, Stream *stream, QkNormBackwardInput args);

// dquery_gamma += ..., dkey_gamma += ...   F32, as large as the gammas
typedef struct {
    Tensor dy, qkv, rstd;
    Tensor dquery_gamma, dkey_gamma;
    AttentionShape shape;
} QkNormBackwardWeight;
void qk_norm_backward_weight(Device *device, Stream *stream, QkNormBackwardWeight args);

//   qkv [T, (N + 2G)/t * D], out [T, D*N/t]
//   kv [shape.keys * B, 2G/t * D], or of the kept positions alone, or absent: of each position the key and the value of
//   each group. Those of qkv are then not read.
//   first_key I32 [1, T] or absent: of row s*B + b a position of sample b up to that of the row; along a sample it
//   never falls
//   sinks [1, N/t] or absent
//   stats F32 [B*N/t, S]: log of the sum of exp(scores) per query, with the sink's
//   probabilities [B*N/t * S, S] before dropout, zero where a query does not see a key, or absent: then no S x S
//   matrix exists (Dao 2022). With kv they have shape.keys columns; with kept keys there are none.
//   continues: out and stats hold the result for other keys, with the sink's term, and become that for those and these
//   together (Milakov 2018); out is rounded to E each time. For kept keys; without it every query sees one of them.
typedef struct {
    Tensor qkv, kv, first_key, sinks;
    Tensor out, stats, probabilities;
    bool continues;
    AttentionShape shape;
    AttentionRules rules;
    Dropout dropout;
} AttentionForward;
void attention_forward(Device *device, Stream *stream, AttentionForward args);

// dqkv may be qkv. probabilities absent: computed again from qkv and stats. dsinks F32, +=; absent without sinks.
// With kv its gradient is added to dkv, which each call rounds to E, and dqkv is that of the queries alone, [T, D*N/t].
// With kept keys the gradients are those that they have a part in, by out and stats of all keys; `adds`: that of the
// queries is added to dqkv, which each call rounds to E.
typedef struct {
    Tensor dout, qkv, kv, out, stats, probabilities, first_key, sinks;
    Tensor dqkv, dkv, dsinks;
    bool adds;
    AttentionShape shape;
    AttentionRules rules;
    Dropout dropout;
} AttentionBackward;
void attention_backward(Device *device, Stream *stream, AttentionBackward args);

// Attention of S new positions, from `position` on, to themselves and to all P = position + S so far: their
// keys and values go to the last rows of the cache, the rows before are those of earlier calls. `out` has the
// bits of one call with all positions, however they were cut into calls.
//   qkv [S*B, (N + 2G)/t * D], out [S*B, N/t * D], keys, values [P*B, G/t * D], row = position * B + b
typedef struct {
    Tensor qkv, sinks;
    Tensor out, keys, values;
    AttentionShape shape; // sequence: S of this call
    AttentionRules rules;
    int64_t position;
} AttentionCached;
void attention_cached(Device *device, Stream *stream, AttentionCached args);

// Makes the columns of y from those of others, as latent attention (DeepSeek-V2) needs it around its heads. y is a
// number of equal blocks of columns, and each block is the same pieces, side by side. A piece of block i, `width`
// columns, is the sum of `terms` pieces of the source: of the columns from first + i * step on, and of those each
// `stride` after the piece before. Terms are added in their order, in fp32 or better.
//   a [T, A], b [T, B], c [T, C] or absent  ->  y [T, blocks * the sum of the widths], none of the others
typedef enum { SOURCE_A, SOURCE_B, SOURCE_C, SOURCE_ZEROS } ColumnSource;
typedef struct {
    ColumnSource source;
    int terms;
    int64_t width, first, step, stride;
} ColumnPiece;
enum { MAX_PIECES = 8 };
typedef struct {
    Tensor a, b, c;
    Tensor y;
    int64_t blocks;
    ColumnPiece pieces[MAX_PIECES]; // one of width 0 is none
} ArrangeColumns;
void arrange_columns(Device *device, Stream *stream, ArrangeColumns args);

// ---- embedding, cut over the vocabulary -------------------------------------------------------------------

// y row = table row (token - first_row), or zeros for a token outside this rank's rows.
//   tokens I32 [1, T], table [V/t, H], y [T, H]
typedef struct {
    Tensor tokens, table;
    Tensor y;
    int64_t first_row;
} EmbeddingForward;
void embedding_forward(Device *device, Stream *stream, EmbeddingForward args);

typedef struct {
    Tensor tokens, dy;
    Tensor dtable; // F32, +=, in the order of the rows of dy
    int64_t first_row;
} EmbeddingBackward;
void embedding_backward(Device *device, Stream *stream, EmbeddingBackward args);

// y = dropout(x + position row s).   x, y [S*B, H], position [>= S, H] or absent; y may be x.
typedef struct {
    Tensor x, position;
    Tensor y;
    Dropout dropout; // samples = B and first_row say which position a row has
} PositionDropout;
void position_dropout(Device *device, Stream *stream, PositionDropout args);

// dposition row s += the sum over b of dy rows s*B + b.   dposition F32
typedef struct {
    Tensor dy;
    Tensor dposition;
    int64_t samples, first_row; // B; row 0 of dy is row first_row of [S*B, H], a multiple of B
} PositionBackward;
void position_backward(Device *device, Stream *stream, PositionBackward args);

#include "device/ops_experts.h"  // routers, rows ordered by experts
#include "device/ops_few_bits.h" // factors of 8 and 4 bits
#include "device/ops_training.h" // losses, the optimizer
