/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers.h: what the files of standard modules share. */
#ifndef NN_LAYERS_H
#define NN_LAYERS_H

#include "nn/module.h"

/* Linear and convolution: weight and bias uniform in +-1/sqrt(fan_in), PyTorch's default. bias may be NULL. */
ctrt_status layer_init_uniform(ctrt_tensor *weight, ctrt_tensor *bias);

#endif
