#include "plan/plan.h"
#include <inttypes.h>

static const char *const part_names[NUM_PARTS] = {
    [PART_EMBEDDING] = "embedding", [PART_LAYER] = "layer", [PART_HEAD] = "head"};

static void print_shape(const WorkItem *item, char *text, size_t size) {
    if (item->kind == WORK_COLLECTIVE)
        snprintf(text, size, "%s", item->axis == AXIS_TP ? "over tp" : "");
    else if (!item->batch)
        snprintf(text, size, "[%" PRId64 ", %" PRId64 "]", item->m, item->n);
    else if (item->op == OP_MATMUL)
        snprintf(text, size, "[%" PRId64 ", %" PRId64 "] x [%" PRId64 ", %" PRId64 "]", item->m, item->k,
                 item->k, item->n);
    else
        snprintf(text, size, "%" PRId64 " x [%" PRId64 ", %" PRId64 "]%s%s", item->batch, item->m, item->n,
                 item->probabilities ? " unfused" : "", item->dropout ? " dropout" : "");
}

static void print_item(const WorkItem *item, Text *out) {
    char shape[96];
    print_shape(item, shape, sizeof shape);
    const char *name =
        item->kind == WORK_OP ? device_op_name((DeviceOp)item->op) : comm_op_name((CommOp)item->op);
    text_add(out, "  %-22s %-34s %-4s %12.3f %12.3f\n", name, shape, dtype_name((DType)item->dtype),
             item->bytes / 1e6, item->flops / 1e9);
}

static void print_list(const char *what, const char *part, const WorkList *list, Text *out) {
    text_add(out, "%s of %s: %.3f GFLOP\n", what, part, work_flops(list) / 1e9);
    for (int i = 0; i < list->count; i++) print_item(&list->items[i], out);
}

void work_print(const Work *work, Text *out) {
    text_add(out, "  %-22s %-34s %-4s %12s %12s\n", "one microbatch on one rank", "", "", "MB", "GFLOP");
    for (int part = 0; part < NUM_PARTS; part++) {
        print_list("forward", part_names[part], &work->forward[part], out);
        print_list("backward", part_names[part], &work->backward[part], out);
    }
    for (int part = 0; part < NUM_PARTS; part++)
        text_add(out, "%s: %" PRId64 " parameters in %d tensors\n", part_names[part], work->parameters[part],
                 work->tensors[part]);
    text_add(out, "between stages: %.3f MB each way\n", work->stage_message_bytes / 1e6);
}
