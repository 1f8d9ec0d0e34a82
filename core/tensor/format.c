/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/format.c: formats a tensor as PyTorch's print does.
 *
 * All numbers have the width of the widest. Floating-point numbers are printed without decimals if all are whole ("1.,
 * 2."), and in scientific notation if the largest is above 1e8 or above 1000 times the smallest, or the smallest is
 * below 1e-4 (zeros and non-finite numbers are ignored). Tensors with more elements than the threshold show the first
 * and last few of each dimension, and only these determine the format. */
#include "tensor/format.h"

#include <math.h>
#include <stdarg.h>

#include "base/strbuf.h"

const struct format_options format_defaults = { .precision = 4, .threshold = 1000, .edgeitems = 3, .linewidth = 80,
                                                .scientific = -1 };

/* ---- numbers ---- */

#define NUMBER_BYTES   512
#define MOST_PRECISION 100

struct format_graph_params {
    bool floating, whole, scientific;
    int width, precision;
};

/* snprintf prints the sign of a NaN; Python does not. */
static int put_double(char *buffer, const char *format, int precision, double value)
{
    if (isnan(value))
        return snprintf(buffer, NUMBER_BYTES, "nan");
    return snprintf(buffer, NUMBER_BYTES, format, precision, value);
}

static int number_text(char *buffer, const struct format_graph_params *numbers, ctrt_scalar value)
{
    if (value.kind == CTRT_SCALAR_BOOL)
        return snprintf(buffer, NUMBER_BYTES, "%s", value.i ? "True" : "False");
    if (value.kind == CTRT_SCALAR_INT)
        return snprintf(buffer, NUMBER_BYTES, "%lld", (long long)value.i);
    if (numbers->scientific)
        return put_double(buffer, "%.*e", numbers->precision, value.f);
    if (!numbers->whole)
        return put_double(buffer, "%.*f", numbers->precision, value.f);
    int length = put_double(buffer, "%.*f", 0, value.f);
    if (isfinite(value.f)) {
        buffer[length++] = '.';
        buffer[length] = '\0';
    }
    return length;
}

/* ---- iterating over the shown elements ---- */

struct print {
    const ctrt_view *view;
    const struct format_options *options;
    bool partly;                    /* more elements than the threshold */
    struct format_graph_params numbers;
    struct strbuf text;
    /* results of the first pass */
    double smallest, largest;       /* magnitudes of the finite numbers other than 0 */
    bool any;
};

static bool in_parts(const struct print *print, int dim)
{
    return print->partly && print->view->shape[dim] > 2 * print->options->edgeitems;
}

static ctrt_scalar element_at(const struct print *print, int64_t offset)
{
    const ctrt_dtype dtype = print->view->dtype;
    return dtype_load((const char *)print->view->data + offset * (int64_t)dtype_bytes(dtype), dtype);
}

/* Calls `visit` for every element that is shown. */
static void for_each_shown(struct print *print, int dim, int64_t offset,
                           void (*visit)(struct print *print, ctrt_scalar value))
{
    if (dim == print->view->ndim) {
        visit(print, element_at(print, offset));
        return;
    }
    const int64_t size = print->view->shape[dim], edge = print->options->edgeitems;
    for (int64_t i = 0; i < size; i++) {
        if (i == edge && in_parts(print, dim))
            i = size - edge;
        if (i < size)
            for_each_shown(print, dim + 1, offset + i * print->view->strides[dim], visit);
    }
}

static bool counts(ctrt_scalar value)
{
    return isfinite(value.f) && value.f != 0;
}

static void visit_range(struct print *print, ctrt_scalar value)
{
    if (!counts(value))
        return;
    const double magnitude = fabs(value.f);
    print->smallest = print->any ? fmin(print->smallest, magnitude) : magnitude;
    print->largest = print->any ? fmax(print->largest, magnitude) : magnitude;
    print->any = true;
    print->numbers.whole &= value.f == ceil(value.f);
}

static void visit_width(struct print *print, ctrt_scalar value)
{
    char buffer[NUMBER_BYTES];
    if (print->numbers.floating && !counts(value))
        return;
    const int length = number_text(buffer, &print->numbers, value);
    print->numbers.width = MAX(print->numbers.width, length);
}

static void choose_numbers(struct print *print)
{
    struct format_graph_params *numbers = &print->numbers;
    *numbers = (struct format_graph_params){ .floating = dtype_floating(print->view->dtype), .whole = true, .width = 1,
                                 .precision = MIN(MAX(print->options->precision, 0), MOST_PRECISION) };
    if (numbers->floating) {
        for_each_shown(print, 0, 0, visit_range);
        if (print->any)
            numbers->scientific = print->largest / print->smallest > 1000 || print->largest > 1e8
                                  || (!numbers->whole && print->smallest < 1e-4);
    }
    for_each_shown(print, 0, 0, visit_width);
    if (print->options->scientific >= 0)            /* after the width was computed, as in PyTorch */
        numbers->scientific = print->options->scientific;
}

/* ---- brackets and lines ---- */

static void put_number(struct print *print, int64_t offset)
{
    char buffer[NUMBER_BYTES];
    const int length = number_text(buffer, &print->numbers, element_at(print, offset));
    strbuf_add_repeated(&print->text, ' ', print->numbers.width - length);
    strbuf_add_bytes(&print->text, buffer, (size_t)length);
}

static void put_vector(struct print *print, int dim, int64_t offset, int indent)
{
    const int64_t size = print->view->shape[dim], edge = print->options->edgeitems;
    const bool parts = in_parts(print, dim);
    const int64_t items = parts ? 2 * edge + 1 : size;      /* the dots count as an item */
    const int64_t per_line = MAX((print->options->linewidth - indent) / (print->numbers.width + 2), 1);
    strbuf_add_string(&print->text, "[");
    for (int64_t i = 0; i < items; i++) {
        if (i > 0 && i % per_line == 0) {
            strbuf_add_string(&print->text, ",\n");
            strbuf_add_repeated(&print->text, ' ', indent + 1);
        } else if (i > 0) {
            strbuf_add_string(&print->text, ", ");
        }
        if (parts && i == edge)
            strbuf_add_string(&print->text, edge > 0 ? " ..." : "...");
        else
            put_number(print, offset + (parts && i > edge ? size - items + i : i) * print->view->strides[dim]);
    }
    strbuf_add_string(&print->text, "]");
}

static void put_block(struct print *print, int dim, int64_t offset, int indent)
{
    const int below = print->view->ndim - dim;
    if (below == 0) {
        put_number(print, offset);
        return;
    }
    if (below == 1) {
        put_vector(print, dim, offset, indent);
        return;
    }
    const int64_t size = print->view->shape[dim], edge = print->options->edgeitems;
    const bool parts = in_parts(print, dim);
    const int64_t items = parts ? 2 * edge + 1 : size;
    strbuf_add_string(&print->text, "[");
    for (int64_t i = 0; i < items; i++) {
        if (i > 0) {
            strbuf_add_string(&print->text, ",");
            strbuf_add_repeated(&print->text, '\n', below - 1);
            strbuf_add_repeated(&print->text, ' ', indent + 1);
        }
        if (parts && i == edge)
            strbuf_add_string(&print->text, "...");
        else
            put_block(print, dim + 1, offset + (parts && i > edge ? size - items + i : i) * print->view->strides[dim],
                      indent + 1);
    }
    strbuf_add_string(&print->text, "]");
}

/* ---- suffixes after the elements ---- */

/* State of put_suffix, which appends ", name=value", on a new line if the current one would become too long. */
struct suffixes {
    struct print *print;
    int indent;
    size_t line;                    /* length of the last line */
};

static void put_suffix(struct suffixes *suffixes, const char *format, ...) CTRT_PRINTF(2, 3);
static void put_suffix(struct suffixes *suffixes, const char *format, ...)
{
    char part[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part, sizeof part, format, arguments);
    va_end(arguments);
    struct strbuf *text = &suffixes->print->text;
    const size_t length = strlen(part);
    if (suffixes->line + length + 2 > (size_t)suffixes->print->options->linewidth) {
        strbuf_add_string(text, ",\n");
        strbuf_add_repeated(text, ' ', suffixes->indent);
        suffixes->line = (size_t)suffixes->indent + length;
    } else {
        strbuf_add_string(text, ", ");
        suffixes->line += length + 2;
    }
    strbuf_add_bytes(text, part, length);
}

static void put_suffixes(struct print *print, const struct format_suffix *suffix, int indent)
{
    const ctrt_view *view = print->view;
    const ctrt_dtype dtype = view->dtype;
    const char *last = print->text.bytes ? strrchr(print->text.bytes, '\n') : NULL;
    struct suffixes suffixes = { print, indent,
                                 print->text.length - (last ? (size_t)(last - print->text.bytes) : (size_t)-1) + 1 };
    if (suffix->device != NULL)
        put_suffix(&suffixes, "device='%s'", suffix->device);
    bool show_dtype = dtype != ctrt_default_dtype() && dtype != CTRT_I64 && dtype != CTRT_BOOL;
    if (view->numel == 0) {
        show_dtype = dtype != ctrt_default_dtype();
        if (view->ndim != 1) {
            char shape[SHAPE_TEXT_BYTES];
            shape_text(shape, view->shape, view->ndim);
            shape[strlen(shape) - 1] = '\0';
            put_suffix(&suffixes, "size=(%s)", shape + 1);
        }
    }
    if (show_dtype)
        put_suffix(&suffixes, "dtype=torch.%s", dtype_table[dtype].torch_name);
    if (suffix->grad_fn != NULL)
        put_suffix(&suffixes, "grad_fn=<%s>", suffix->grad_fn);
    else if (suffix->requires_grad)
        put_suffix(&suffixes, "requires_grad=True");
}

ctrt_status tensor_format_view(char **out, const ctrt_view *view, const struct format_suffix *suffix,
                               const struct format_options *options)
{
    static const char prefix[] = "tensor(";
    const int indent = (int)sizeof prefix - 1;
    struct print print = { .view = view, .options = options, .partly = view->numel > options->threshold };
    strbuf_add_string(&print.text, prefix);
    if (view->numel == 0) {
        strbuf_add_string(&print.text, "[]");
    } else {
        choose_numbers(&print);
        put_block(&print, 0, 0, indent);
    }
    put_suffixes(&print, suffix, indent);
    strbuf_add_string(&print.text, ")");
    return strbuf_finish(out, &print.text, "the text of a tensor");
}
