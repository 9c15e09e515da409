// The products that join other operations: as an epilogue of cuBLASLt, or where it has none for them, one after
// another.
#include "device/cuda/products.h"

// The loss head's chunks on a GPU: see device_head_tokens. Two things want them long. With fewer than about 17 M / H
// tokens the product for dx [C, H] has less than eight waves of 128 x 128 tiles on 132 multiprocessors, and every chunk
// reads and writes dW, 8 V H bytes. But the logits and their gradient take 6 V bytes a token: no more than 2 GiB in
// all, or 1024 tokens' worth.
int64_t cuda_head_tokens(int64_t hidden, int64_t vocabulary) {
    const int64_t waves = (17 << 20) / hidden, fits = (INT64_C(2) << 30) / (6 * vocabulary), least = 1024;
    const int64_t most = fits > least ? fits : least;
    return waves < least ? least : waves < most ? waves : most;
}

// ---- sums -------------------------------------------------------------------------------------------------

static ColumnSum sums_alone(const MatmulSums *p, Tensor to) { return (ColumnSum){.x = p->a, .sum = to}; }

// The product's, then sums that are to be added.
size_t cuda_matmul_sums_workspace(const MatmulSums *p) {
    const ColumnSum alone = sums_alone(p, p->sums);
    const size_t joined = PRODUCT_WORKSPACE + tensor_bytes(p->sums),
                 apart = cuda_column_sum_workspace(&alone);
    return joined > apart ? joined : apart;
}

static bool sums_joined(const Exec *exec, const MatmulSums *p, JoinedProduct product) {
    if (p->accumulate_sums) product.extra.data = (char *)exec->workspace + PRODUCT_WORKSPACE;
    if (!products_compute(exec, &product)) return false;
    if (p->accumulate_sums) cuda_add(exec, &(Add){.x = product.extra, .y = p->sums});
    return true;
}

void cuda_matmul_sums(const Exec *exec, const MatmulSums *p) {
    const ColumnSum alone = sums_alone(p, p->sums);
    JoinedProduct product;
    op_product(OP_MATMUL_SUMS, p, &product);
    if (tensor_count(p->d) && sums_joined(exec, p, product)) return;
    if (!p->accumulate_sums) cuda_zero(exec, p->sums.data, tensor_bytes(p->sums));
    cuda_column_sum(exec, &alone);
    cuda_matmul(exec, &product.matmul);
}

// ---- GELU -------------------------------------------------------------------------------------------------

size_t cuda_matmul_gelu_workspace(const MatmulGelu *args) {
    (void)args;
    return PRODUCT_WORKSPACE;
}

void cuda_matmul_gelu(const Exec *exec, const MatmulGelu *p) {
    JoinedProduct product;
    op_product(OP_MATMUL_GELU, p, &product);
    if (!tensor_count(p->d) || products_compute(exec, &product)) return;
    product.matmul.d = p->aux;
    cuda_matmul(exec, &product.matmul);
    cuda_bias_gelu_forward(exec, &(BiasGeluForward){.x = p->aux, .y = p->d});
}

size_t cuda_matmul_gelu_backward_workspace(const MatmulGeluBackward *args) {
    (void)args;
    return PRODUCT_WORKSPACE;
}

void cuda_matmul_gelu_backward(const Exec *exec, const MatmulGeluBackward *p) {
    JoinedProduct product;
    op_product(OP_MATMUL_GELU_BACKWARD, p, &product);
    if (!tensor_count(p->d) || products_compute(exec, &product)) return;
    cuda_matmul(exec, &product.matmul);
    cuda_bias_gelu_backward(exec, &(BiasGeluBackward){.dy = p->d, .x = p->aux, .dx = p->d});
}

// ---- plans before the first call --------------------------------------------------------------------------

// Those of the call that joins, and where cuBLASLt does not join of the product alone.
Status cuda_prepare_product(CudaDevice *d, DeviceOp op, const void *args) {
    const ProductPlan *plan;
    JoinedProduct product;
    if (!op_product(op, args, &product) || !tensor_count(product.matmul.d)) return OK;
    // Sums that are added to are made in the workspace first.
    if (op == OP_MATMUL_SUMS && ((const MatmulSums *)args)->accumulate_sums)
        product.extra.data = (void *)(uintptr_t)PRODUCT_ALIGNMENT;
    TRY(products_prepare(d, &product, &plan));
    if (!plan->is_plain || product.join == JOINS_NOTHING) return OK;
    if (product.join == JOINS_GELU) product.matmul.d = product.extra;
    return products_prepare(d, &(JoinedProduct){.matmul = product.matmul}, &plan);
}
