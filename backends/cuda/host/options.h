/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/options.h: the backend's parameters: implementations of products, convolutions and attention;
 * memory. */
#ifndef CUDA_OPTIONS_H
#define CUDA_OPTIONS_H

#include "cuda.h"

/* PRODUCT: convolutions as matrix products by cuBLASLt. */
enum cuda_path { CUDA_PATH_AUTO, CUDA_PATH_LIBRARY, CUDA_PATH_BUILTIN, CUDA_PATH_PRODUCT };

enum cuda_attention { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_BUILTIN, CUDA_ATTENTION_COMPOSITE };

enum cuda_scatter { CUDA_SCATTER_AUTO, CUDA_SCATTER_TILES, CUDA_SCATTER_SORT };

/* Which algorithms of a library may be used. Algorithms whose order of summation varies are excluded by default. */
enum cuda_determinism {
    CUDA_DETERMINISM_AUTO,                  /* deterministic algorithms, which may be chosen by timing */
    CUDA_DETERMINISM_YES,                   /* the same, without timing: all runs give the same results */
    CUDA_DETERMINISM_NO                     /* all algorithms */
};

struct cuda_options {
    enum cuda_path products, convolutions;
    enum cuda_attention attention;          /* fused kernels, or composed of products and softmax */
    enum cuda_scatter scatter;              /* algorithm of index_add and scatter_add */
    bool tf32_products, tf32_convolutions;  /* f32 operands may be rounded to tf32 (10-bit mantissa) */
    size_t workspace;                       /* maximum bytes for a product; convolutions: cuda_conv_workspace_limit */
    bool workspace_set;                     /* set by the user: applies to both */
    bool benchmark;                         /* time the algorithms at the first use of a shape */
    enum cuda_determinism determinism;
    const char *tuning;                     /* file that stores the results of timing; NULL: none */
    const char *libraries;                  /* "FOLDER:FOLDER" in which to search cuBLASLt and cuDNN; NULL: none */
    bool share;                             /* allocate memory that can be exported: ipc.c */
    bool pool;                              /* stream-ordered allocation: async_alloc.c */
};

/* Set by cuda_options_init(), when the plugin is initialised. */
extern struct cuda_options cuda_options;
ctrt_status cuda_options_init(void);

#endif
