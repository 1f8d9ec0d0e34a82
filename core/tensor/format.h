/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/format.h: formats a tensor in host memory as text. */
#ifndef CORE_TENSOR_FORMAT_H
#define CORE_TENSOR_FORMAT_H

#include "tensor/shape.h"

/* PyTorch's print options; format_defaults has PyTorch's defaults. */
struct format_options {
    int precision;              /* digits after the decimal point */
    int64_t threshold;          /* tensors with more elements are summarized */
    int64_t edgeitems;          /* elements shown at either end of each dimension of a summary */
    int linewidth;              /* characters per line */
    int scientific;             /* 1: always, 0: never, -1: depends on the values */
};
extern const struct format_options format_defaults;

/* The text after the elements. */
struct format_suffix {
    const char *device;         /* NULL: not shown */
    const char *grad_fn;        /* "AddBackward0"; NULL: not shown */
    bool requires_grad;
};

/* Formats the elements of `view`, whose data the host must be able to read, as PyTorch's print does. The caller frees
 * *out with free(). */
ctrt_status tensor_format_view(char **out, const ctrt_view *view, const struct format_suffix *suffix,
                               const struct format_options *options);

#endif
