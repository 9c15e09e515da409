// The fused operations by the basic ones, for devices that do not make them as one: this defines them.
#include "device/front.h"

void split_matmul_sums(Device *device, Stream *stream, const MatmulSums *p) {
    if (!p->accumulate_sums) device_zero(device, stream, p->sums);
    column_sum(device, stream, (ColumnSum){.x = p->a, .sum = p->sums});
    matmul(device, stream,
           (Matmul){.a = p->a, .b = p->b, .d = p->d, .transpose_a = true, .accumulate = p->accumulate});
}

void split_matmul_gelu(Device *device, Stream *stream, const MatmulGelu *p) {
    matmul(device, stream, (Matmul){.a = p->a, .b = p->b, .bias = p->bias, .d = p->aux, .transpose_b = true});
    bias_gelu_forward(device, stream, (BiasGeluForward){.x = p->aux, .y = p->d});
}

void split_matmul_gelu_backward(Device *device, Stream *stream, const MatmulGeluBackward *p) {
    matmul(device, stream, (Matmul){.a = p->a, .b = p->b, .d = p->d});
    bias_gelu_backward(device, stream, (BiasGeluBackward){.dy = p->d, .x = p->aux, .dx = p->d});
}

// The weights come first: dx may take the place of dy or x.
void split_norm_backward(Device *device, Stream *stream, const NormBackward *p) {
    if (!p->accumulate) {
        device_zero(device, stream, p->dgamma);
        if (p->dbeta.data) device_zero(device, stream, p->dbeta);
    }
    norm_backward_weight(device, stream,
                         (NormBackwardWeight){.dy = p->dy,
                                              .x = p->x,
                                              .mean = p->mean,
                                              .rstd = p->rstd,
                                              .dgamma = p->dgamma,
                                              .dbeta = p->dbeta});
    norm_backward_input(device, stream,
                        (NormBackwardInput){.dy = p->dy,
                                            .x = p->x,
                                            .gamma = p->gamma,
                                            .mean = p->mean,
                                            .rstd = p->rstd,
                                            .residual = p->residual,
                                            .dx = p->dx,
                                            .offset = p->offset});
}

void split_loss_whole(Device *device, Stream *stream, const LossWhole *p) {
    loss_max(device, stream, (LossMax){.logits = p->logits, .max = p->max, .vocabulary = p->vocabulary});
    loss_sum(device, stream,
             (LossSum){.logits = p->logits,
                       .labels = p->labels,
                       .max = p->max,
                       .sum = p->sum,
                       .target = p->target,
                       .vocabulary = p->vocabulary});
    loss_finish(device, stream,
                (LossFinish){.labels = p->labels,
                             .max = p->max,
                             .sum = p->sum,
                             .target = p->target,
                             .mask = p->mask,
                             .logits = p->logits,
                             .dlogits = p->dlogits,
                             .loss = p->loss,
                             .vocabulary = p->vocabulary,
                             .scale = p->scale});
}
