/* SPDX-License-Identifier: Apache-2.0 */
/* tests/options.h: pointers to options of optimizers in one expression, SGD(.momentum = 0.9). */
#ifndef TESTS_OPTIONS_H
#define TESTS_OPTIONS_H

#include <ctrt/optim.h>

/* Each member that is given is initialized twice, which is meant. */
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif

#define OPTIONS(type, ...) (&(type){ .size = sizeof(type), __VA_ARGS__ })
#define SGD(...)     OPTIONS(ctrt_sgd_options, .lr = 1e-3, __VA_ARGS__)
#define ADAM(...)    OPTIONS(ctrt_adam_options, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, __VA_ARGS__)
#define ADAMW(...)   OPTIONS(ctrt_adamw_options, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, \
                             .weight_decay = 0.01, __VA_ARGS__)
#define RMSPROP(...) OPTIONS(ctrt_rmsprop_options, .lr = 1e-2, .alpha = 0.99, .epsilon = 1e-8, __VA_ARGS__)
#define ADAGRAD(...) OPTIONS(ctrt_adagrad_options, .lr = 1e-2, .epsilon = 1e-10, __VA_ARGS__)
#define NADAM(...)   OPTIONS(ctrt_nadam_options, .lr = 2e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, \
                             .momentum_decay = 4e-3, __VA_ARGS__)

#endif
