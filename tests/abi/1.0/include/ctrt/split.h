/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_SPLIT_H
#define CTRT_SPLIT_H
#include "ctrt/nn.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_split ctrt_split;
typedef struct ctrt_split_options {
    size_t size;
    int64_t pieces;
    int64_t most_pieces;
    int64_t grow_after;
    int64_t canonical;
} ctrt_split_options;
#define CTRT_SPLIT_OPTIONS CTRT_SIZED_(ctrt_split_options)
typedef struct ctrt_split_result {
    size_t size;
    int64_t pieces;
    int64_t failures;
} ctrt_split_result;
#define CTRT_SPLIT_RESULT CTRT_SIZED_(ctrt_split_result)
typedef ctrt_status (*ctrt_split_function)(void *user, int64_t from, int64_t to, double weight);
CTRT_API ctrt_status ctrt_split_new(ctrt_split **out, ctrt_module *module, const ctrt_split_options *options);
CTRT_API void ctrt_split_release(ctrt_split **split);
CTRT_API ctrt_status ctrt_split_step(ctrt_split_result *result, ctrt_split *split, int64_t batch,
                                     ctrt_split_function function, void *user);
CTRT_API int64_t ctrt_split_pieces(const ctrt_split *split);
CTRT_END_DECLS
#endif
