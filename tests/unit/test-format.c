/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that tensors print exactly as in tests/reference/printing.txt, from row-major and from strided memory. */
#include "calls.h"
#include "ctrt/ctrt.h"
#include "tensor/format.h"
#include "tests/reference/ref.h"
#include "tap.h"

static int64_t option(const struct ref_file *file, const char *name, const char *what, int64_t otherwise)
{
    const struct ref_record *record = ref_find(file, "%s/attr/%s", name, what);
    return record ? record->i[0] : otherwise;
}

/* Sets up `view` on new memory with the record's elements: in row-major order or, with `strided`, with the smallest
 * stride in dimension 0 and a gap of one element after each dimension. The caller frees the memory. */
static void *laid_out(ctrt_view *view, const struct ref_record *record, ctrt_dtype dtype, bool strided)
{
    int64_t reach = 1;
    view->dtype = (uint8_t)dtype;
    view->ndim = (uint8_t)record->ndim;
    view->flags = 0;
    for (int i = 0; i < record->ndim; i++) {
        int d = strided ? i : record->ndim - 1 - i;
        view->shape[d] = record->dims[d];
        view->strides[d] = reach;
        reach *= record->dims[d] + strided;
    }
    view_refresh(view);
    char *memory = calloc((size_t)reach + 1, dtype_bytes(dtype));
    for (int64_t i = 0; i < record->numel && memory; i++) {
        int64_t rest = i, offset = 0;
        for (int d = record->ndim - 1; d >= 0; d--) {
            offset += rest % record->dims[d] * view->strides[d];
            rest /= record->dims[d];
        }
        dtype_store(memory + offset * (int64_t)dtype_bytes(dtype), dtype,
                    record->i ? ctrt_int(record->i[i]) : ctrt_float(record->f[i]));
    }
    view->data = memory;
    return memory;
}

TEST(reference, "tensors print as in PyTorch")
{
    struct ref_file *file = ref_load("printing.txt");
    int cases = 0;
    for (size_t r = 0; r < file->count; r++) {
        char name[128];
        const char *slash = strstr(file->records[r].name, "/x");
        if (slash == NULL || slash[2] != '\0')
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(slash - file->records[r].name), file->records[r].name);
        const struct ref_record *x = &file->records[r], *wanted = ref_find(file, "%s/print", name);
        ctrt_dtype dtype;
        if (!CHECK_OK(ctrt_dtype_parse(&dtype, x->dtype)) || !CHECK(wanted != NULL, "%s has no text", name))
            continue;
        struct format_options options = format_defaults;
        options.precision = (int)option(file, name, "precision", options.precision);
        options.threshold = option(file, name, "threshold", options.threshold);
        options.edgeitems = option(file, name, "edgeitems", options.edgeitems);
        options.linewidth = (int)option(file, name, "linewidth", options.linewidth);
        options.scientific = (int)option(file, name, "sci_mode", -1);
        const struct format_suffix suffix = { .requires_grad = option(file, name, "requires_grad", 0) };
        for (int strided = 0; strided < 2; strided++) {
            ctrt_view view;
            char *got = NULL;
            void *memory = laid_out(&view, x, dtype, strided);
            if (CHECK_OK(tensor_format_view(&got, &view, &suffix, &options)))
                CHECK(strcmp(got, wanted->text) == 0, "%s%s:\n%s\nexpected\n%s", name, strided ? ", strided" : "", got,
                      wanted->text);
            free(got);
            free(memory);
        }
        cases++;
    }
    CHECK(cases >= 60, "only %d cases in the file", cases);
    ref_free(file);
}

/* Checks how the first `numel` numbers 1, 2, ... print in a line of `width` columns. */
static void check_suffix(const struct format_suffix *suffix, int64_t numel, int width, const char *want)
{
    float values[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    struct format_options options = format_defaults;
    ctrt_view view = { .data = values, .dtype = CTRT_F32, .ndim = 1, .shape = { numel }, .strides = { 1 } };
    char *got = NULL;
    options.linewidth = width;
    view_refresh(&view);
    if (CHECK_OK(tensor_format_view(&got, &view, suffix, &options)))
        CHECK_STR(got, want);
    free(got);
}

TEST(suffixes, "suffixes for device, dtype, requires_grad and grad_fn")
{
    static const struct { struct format_suffix suffix; int64_t numel; const char *wanted; } cases[] = {
        { { "cuda:0", NULL, false }, 2, "tensor([1., 2.], device='cuda:0')" },
        { { NULL, "AddBackward0", true }, 2, "tensor([1., 2.], grad_fn=<AddBackward0>)" },
        { { "cuda:1", "LogSoftmaxBackward0", true }, 2,
          "tensor([1., 2.], device='cuda:1', grad_fn=<LogSoftmaxBackward0>)" },
        { { "cuda:0", NULL, true }, 0, "tensor([], device='cuda:0', requires_grad=True)" },
    };
    EACH(c, cases)
        check_suffix(&c->suffix, c->numel, format_defaults.linewidth, c->wanted);
    /* A suffix that does not fit into the line starts a new line. */
    check_suffix(&(struct format_suffix){ .device = "cuda:1" }, 9, 50,
                 "tensor([1., 2., 3., 4., 5., 6., 7., 8., 9.],\n       device='cuda:1')");
    CHECK_OK(ctrt_set_default_dtype(CTRT_F64));
    check_suffix(&(struct format_suffix){ 0 }, 1, 80, "tensor([1.], dtype=torch.float32)");
    CHECK_OK(ctrt_set_default_dtype(CTRT_F32));
}

TEST(public_function, "ctrt_tensor_format formats a transposed tensor")
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_device *cpu = NULL;
    char *text = NULL;
    const float values[4] = { 1, 2.5f, -3, 4 };
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    CHECK_OK(ctrt_from_data(&x, values, 4, CTRT_SHAPE(2, 2), CTRT_F32, cpu));
    CHECK_OK(ctrt_t(&x, x));
    CHECK_OK(ctrt_tensor_format(&text, x));
    CHECK_STR(text, "tensor([[ 1.0000, -3.0000],\n        [ 2.5000,  4.0000]])");
    free(text);
}

TESTS_MAIN
