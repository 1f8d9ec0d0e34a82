/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/format.h: a tensor as text, from host memory. */
#ifndef CORE_TENSOR_FORMAT_H
#define CORE_TENSOR_FORMAT_H

#include "tensor/shape.h"

/* PyTorch's print options, with its defaults in format_defaults. */
struct format_options {
    int precision;              /* digits after the point */
    int64_t threshold;          /* more elements than this are shown in part */
    int64_t edgeitems;          /* how many at either end then */
    int linewidth;              /* characters */
    int scientific;             /* 1 always, 0 never, -1 as the numbers demand */
};
extern const struct format_options format_defaults;

/* What is told after the elements. */
struct format_suffix {
    const char *device;         /* NULL: not told */
    const char *grad_fn;        /* "AddBackward0"; NULL: none */
    bool requires_grad;
};

/* Formats the elements of `view`, whose data the host can read, as PyTorch's print does. *out is for free(). */
ctrt_status tensor_format_view(char **out, const ctrt_view *view, const struct format_suffix *suffix,
                               const struct format_options *options);

#endif
