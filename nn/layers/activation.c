/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/activation.c: modules without parameters that call one op: ReLU, GELU, Tanh, Sigmoid, Softmax, Flatten. */
#include "nn/layers/layers.h"

struct activation {
    int first, last;    /* Flatten: the dimensions; GELU: first != 0: tanh approximation; Softmax: first: dimension */
};

/* Defines the class of a module with the state `s` whose forward pass is `call`. */
#define ACTIVATION(name, word, call)                                                                             \
    static ctrt_status name##_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count) \
    {                                                                                                            \
        __attribute__((unused)) const struct activation *s = ctrt_module_state(self);                            \
        CTRT_TRY(module_one_input(self, inputs, count));                                                         \
        return call;                                                                                             \
    }                                                                                                            \
    static const ctrt_module_class name##_class = {                                                              \
        .size = sizeof(ctrt_module_class), .kind = word, .state_bytes = sizeof(struct activation),               \
        .forward = name##_forward, .state_pointers = CTRT_STATE_PLAIN,                                           \
    }
ACTIVATION(relu, "ReLU", ctrt_relu(y, inputs[0]));
ACTIVATION(gelu, "GELU", ctrt_gelu(y, inputs[0], s->first != 0));
ACTIVATION(tanh, "Tanh", ctrt_tanh(y, inputs[0]));
ACTIVATION(sigmoid, "Sigmoid", ctrt_sigmoid(y, inputs[0]));
ACTIVATION(softmax, "Softmax", ctrt_softmax(y, inputs[0], s->first));
ACTIVATION(flatten, "Flatten", ctrt_flatten(y, inputs[0], s->first, s->last));
#undef ACTIVATION

static ctrt_status activation_new(ctrt_module **out, const ctrt_module_class *class_of, int first, int last)
{
    CTRT_TRY(ctrt_module_new(out, class_of));
    *(struct activation *)ctrt_module_state(*out) = (struct activation){ first, last };
    return CTRT_OK;
}

ctrt_status ctrt_relu_new(ctrt_module **out)
{
    return activation_new(out, &relu_class, 0, 0);
}

ctrt_status ctrt_gelu_new(ctrt_module **out, bool tanh_approximation)
{
    return activation_new(out, &gelu_class, tanh_approximation, 0);
}

ctrt_status ctrt_tanh_new(ctrt_module **out)
{
    return activation_new(out, &tanh_class, 0, 0);
}

ctrt_status ctrt_sigmoid_new(ctrt_module **out)
{
    return activation_new(out, &sigmoid_class, 0, 0);
}

ctrt_status ctrt_softmax_new(ctrt_module **out, int dim)
{
    return activation_new(out, &softmax_class, dim, 0);
}

ctrt_status ctrt_flatten_new(ctrt_module **out, int first_dim, int last_dim)
{
    return activation_new(out, &flatten_class, first_dim, last_dim);
}
