#include "parallel/parallel.h"
#include <stdlib.h>

static int64_t num_buckets(const GradReducer *r, int chunk) {
    int64_t n = tensor_count(r->params->chunk_grads[chunk]);
    return (n + r->bucket_elements - 1) / r->bucket_elements;
}

Status grad_reducer_create(GradReducer *r, Context *context, const Params *params, int64_t bucket_elements) {
    *r = (GradReducer){.context = context, .params = params, .bucket_elements = bucket_elements};
    for (int c = 0; c < params->num_chunks; c++) r->capacity += (int)num_buckets(r, c);
    r->posted = calloc((size_t)r->capacity + 1, sizeof *r->posted);
    if (!r->posted) return fail(ERR_OS, "no memory for %d gradient buckets", r->capacity);
    return OK;
}

void grad_reducer_destroy(GradReducer *r) {
    free(r->posted);
    *r = (GradReducer){0};
}

void grad_reducer_start(GradReducer *r, int chunk) {
    if (r->context->grid.dp == 1) return;
    Tensor grads = r->params->chunk_grads[chunk];
    for (int64_t first = 0; first < grads.cols; first += r->bucket_elements) {
        Tensor bucket = {(float *)grads.data + first, 1, grads.cols - first, F32};
        if (bucket.cols > r->bucket_elements) bucket.cols = r->bucket_elements;
        CHECK(r->num_posted < r->capacity, "chunk %d is reduced twice", chunk);
        r->posted[r->num_posted++] =
            comm_all_reduce_start(r->context->dp, r->context->stream, bucket, REDUCE_SUM);
    }
}

// First the embedding's own gradient, then the head's: the same order within one rank and between two.
static void sum_tied(const Context *c, const Params *params) {
    for (int i = 0; i < params->count; i++) {
        Param *copy = params->items[i];
        if (!copy->spec.tied_to) continue;
        Param *original = params_find(params, copy->spec.tied_to);
        if (original->chunk >= 0 && copy->chunk >= 0) {
            add(c->device, c->stream, (Add){.x = copy->grad, .y = original->grad});
        } else if (original->chunk >= 0 || copy->chunk >= 0) {
            comm_all_reduce(c->embedding, c->stream, original->chunk >= 0 ? original->grad : copy->grad,
                            REDUCE_SUM);
        }
    }
}

void grad_reducer_finish(GradReducer *r) {
    rank_doing("sum of gradients over dp");
    for (int i = 0; i < r->num_posted; i++) comm_wait(r->context->dp, r->context->stream, &r->posted[i]);
    r->num_posted = 0;
    rank_doing("sum of tied gradients");
    sum_tied(r->context, r->params);
}
