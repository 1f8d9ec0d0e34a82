/* SPDX-License-Identifier: Apache-2.0 */
/* tests/options.h: pointers to options in one expression, SGD(.momentum = 0.9). */
#ifndef TESTS_OPTIONS_H
#define TESTS_OPTIONS_H

#include <ctrt/ctrt.h>

/* Each member that is given is initialized twice, which is meant. */
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif

#define OPTIONS(type, ...) (&(type){ .initialized = sizeof(type), __VA_ARGS__ })
#define SGD(...)     OPTIONS(ctrt_sgd_options, .lr = 1e-3, __VA_ARGS__)
#define ADAM(...)    OPTIONS(ctrt_adam_options, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, __VA_ARGS__)
#define ADAMW(...)   OPTIONS(ctrt_adamw_options, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, \
                             .weight_decay = 0.01, __VA_ARGS__)
#define RMSPROP(...) OPTIONS(ctrt_rmsprop_options, .lr = 1e-2, .alpha = 0.99, .epsilon = 1e-8, __VA_ARGS__)
#define ADAGRAD(...) OPTIONS(ctrt_adagrad_options, .lr = 1e-2, .epsilon = 1e-10, __VA_ARGS__)
#define NADAM(...)   OPTIONS(ctrt_nadam_options, .lr = 2e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, \
                             .momentum_decay = 4e-3, __VA_ARGS__)
#define SCALER(...)  OPTIONS(ctrt_grad_scaler_options, .init_scale = 65536, .growth_factor = 2, .backoff_factor = 0.5, \
                             .growth_interval = 2000, __VA_ARGS__)
#define PICK(...)    OPTIONS(ctrt_pick_options, .max_load = 0.5, .max_memory = 0.5, .attempts = 1, .interval = 900, \
                             __VA_ARGS__)
#define PROGRESS(...) OPTIONS(ctrt_progress_options, .scale = 1, .interval = -1, .fd = 2, __VA_ARGS__)
#define CROP(...)    OPTIONS(ctrt_random_crop_options, .scale = { 0.08, 1 }, .ratio = { 3.0 / 4, 4.0 / 3 }, __VA_ARGS__)
#define NORM(...)    OPTIONS(ctrt_batch_norm_options, .epsilon = 1e-5, .momentum = 0.1, .affine = true, __VA_ARGS__)
#define EMBEDDING(...) OPTIONS(ctrt_embedding_options, .padding_idx = -1, __VA_ARGS__)
#define ATTENTION(...) OPTIONS(ctrt_multihead_attention_options, .bias = true, __VA_ARGS__)
#define LAYER_NORM(...) OPTIONS(ctrt_layer_norm_options, .epsilon = 1e-5, .affine = true, __VA_ARGS__)

#endif
