/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/options.h: who computes products, convolutions and attention, and how; how memory is allocated. */
#ifndef CUDA_OPTIONS_H
#define CUDA_OPTIONS_H

#include "cuda.h"

/* Of device->libraries. */
enum cuda_library_slot { CUDA_LIBRARY_LT, CUDA_LIBRARY_DNN };

enum cuda_path { CUDA_PATH_AUTO, CUDA_PATH_LIBRARY, CUDA_PATH_BUILTIN, CUDA_PATH_PRODUCT };    /* product: convolutions by cuBLASLt */

enum cuda_attention { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_BUILTIN, CUDA_ATTENTION_COMPOSITE };

enum cuda_scatter { CUDA_SCATTER_AUTO, CUDA_SCATTER_TILES, CUDA_SCATTER_SORT };

/* Which algorithms of a library may be taken. Those whose sums come in an order that varies are left out unless asked for. */
enum cuda_determinism {
    CUDA_DETERMINISM_AUTO,                  /* what is quickest may be found by timing, of those that give the same always */
    CUDA_DETERMINISM_YES,                   /* nothing is chosen by timing in this process either: results repeat from run to run */
    CUDA_DETERMINISM_NO                     /* any */
};

struct cuda_options {
    enum cuda_path products, convolutions;
    enum cuda_attention attention;          /* one kernel, or composed of products and softmax */
    enum cuda_scatter scatter;              /* how index_add and scatter_add find what to add */
    bool tf32_products, tf32_convolutions;  /* f32 may be rounded to 10 bits of fraction before it is multiplied */
    size_t workspace;                       /* bytes that an algorithm of a product may ask for; of a convolution: cuda_conv_room */
    bool workspace_set;                     /* by the user, for both */
    bool benchmark;                         /* algorithms are timed at a shape's first use */
    enum cuda_determinism determinism;
    const char *tuning;                     /* file where timed choices are kept; NULL: none */
    const char *libraries;                  /* "FOLDER:FOLDER", where cuBLASLt and cuDNN are; NULL: where the loader searches */
    bool share;                             /* memory is allocated so that it can be exported */
    bool pool;                              /* memory comes in the order of queues: ordered.c */
};

/* Read at init. */
extern struct cuda_options cuda_options;
ctrt_status cuda_options_init(void);

#endif
