// Calls the activation that a model has between the two linear layers of its MLPs.
#include "nn/activation.h"

MlpActivation activation_of(const ModelShape *s) {
    return (MlpActivation){.is_gated = model_is_gated(s),
                           .gate = s->activation == ACTIVATION_GEGLU         ? GATE_GELU
                                   : s->activation == ACTIVATION_QUICK_GEGLU ? GATE_QUICK
                                                                             : GATE_SILU,
                           .offset = s->glu_offset,
                           .clamp = s->glu_clamp,
                           .form = s->activation == ACTIVATION_GELU_ERF       ? GELU_EXACT
                                   : s->activation == ACTIVATION_RELU_SQUARED ? RELU_SQUARED
                                                                              : GELU_TANH};
}

int64_t activation_inputs(const ModelShape *s, int64_t width) { return (model_is_gated(s) ? 2 : 1) * width; }

void activation_forward(Context *c, const MlpActivation *m, Tensor x, Tensor bias, Tensor y) {
    if (m->is_gated)
        swiglu_forward(
            c->device, c->stream,
            (SwigluForward){
                .x = x, .bias = bias, .y = y, .form = m->gate, .offset = m->offset, .clamp = m->clamp});
    else
        bias_gelu_forward(c->device, c->stream,
                          (BiasGeluForward){.x = x, .bias = bias, .y = y, .form = m->form});
}

void activation_backward(Context *c, const MlpActivation *m, Tensor dy, Tensor x, Tensor bias, Tensor dx) {
    if (m->is_gated)
        swiglu_backward(c->device, c->stream,
                        (SwigluBackward){.dy = dy,
                                         .x = x,
                                         .bias = bias,
                                         .dx = dx,
                                         .form = m->gate,
                                         .offset = m->offset,
                                         .clamp = m->clamp});
    else
        bias_gelu_backward(c->device, c->stream,
                           (BiasGeluBackward){.dy = dy, .x = x, .bias = bias, .dx = dx, .form = m->form});
}
