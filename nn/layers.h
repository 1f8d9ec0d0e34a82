/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers.h: functions shared by the standard modules (layers_*.c). */
#ifndef NN_LAYERS_H
#define NN_LAYERS_H

#include "nn/module.h"

/* Initialises the weight and bias of a linear layer or a convolution with uniform values in +-1/sqrt(fan_in), which is
 * PyTorch's default. `bias` may be NULL. */
ctrt_status layer_init_uniform(ctrt_tensor *weight, ctrt_tensor *bias);

#endif
