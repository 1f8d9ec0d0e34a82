/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/scatter.c: cuts tensors, and the tensors of trees, into pieces on several devices. */
#include "base/base.h"
#include "base/stack.h"
#include "ctrt/strategy_plugin.h"
#include "ops/op_common.h"
#include "parallel/replicas/devices.h"
#include "parallel/replicas/tree.h"
#include "tensor/shape.h"

/* How a tensor is cut; the user data of the differentiable function. */
struct cut {
    int dim, count;
    ctrt_device *const *devices;            /* valid in forward only */
    ctrt_dtype dtype;                       /* of the tensor, as the members below */
    ctrt_device *device;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t sizes[];                        /* of the pieces */
};

/* ---- tensors ---- */

/* A copy from the host does not wait if the host memory is pinned. A copy to the host waits, because the program may
 * read the memory directly. */
static ctrt_status piece_make(ctrt_tensor **out, ctrt_tensor *tensor, const struct cut *cut, int64_t start, int i)
{
    CTRT_AUTO(tensor) piece = NULL;
    ctrt_device *device = cut->devices[i];
    CTRT_TRY(ctrt_narrow(&piece, tensor, cut->dim, start, cut->sizes[i]));
    CTRT_TRY(device_host_memory(device) ? ctrt_to_device(out, piece, device)
                                        : ctrt_to_non_blocking(out, piece, device, NULL));
    return streams_join(tensor->device, device);
}

static ctrt_status pieces_make(ctrt_tensor **out, ctrt_tensor *tensor, const struct cut *cut)
{
    int64_t start = 0;
    for (int i = 0; i < cut->count; start += cut->sizes[i++])
        CTRT_TRY(ctrt_context(piece_make(&out[i], tensor, cut, start, i), "piece %d (%s)", i,
                              ctrt_device_name(cut->devices[i])));
    return CTRT_OK;
}

static ctrt_status scatter_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out,
                                   ctrt_tensor *const *in, int n_in)
{
    (void)n_out, (void)n_in;
    return pieces_make(out, in[0], ctrt_function_user(context));
}

static ctrt_status scatter_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                    ctrt_tensor *const *grad_out, int n_out)
{
    const struct cut *cut = ctrt_function_user(context);
    int64_t shape[CTRT_MAX_DIMS];
    ctrt_status status = CTRT_OK;
    (void)n_in;
    HOST_AUTO ctrt_tensor **pieces = host_calloc((size_t)n_out * sizeof *pieces);
    ALLOC_CHECK(pieces, (size_t)n_out * sizeof *pieces, "the gradients of pieces");
    memcpy(shape, cut->shape, sizeof shape);
    for (int i = 0; i < n_out && status == CTRT_OK; i++) {
        shape[cut->dim] = cut->sizes[i];
        if (grad_out[i] != NULL)
            pieces[i] = ctrt_tensor_retain(grad_out[i]);
        else
            status = ctrt_zeros(&pieces[i], ctrt_ints_of(shape, cut->ndim), cut->dtype, cut->device);
    }
    if (status == CTRT_OK)
        status = op_cat_to(&grad_in[0], pieces, n_out, cut->dim, cut->device);
    ctrt_tensors_release(pieces, (size_t)n_out);
    return status;
}

static void scatter_destroy(ctrt_function_context *context)
{
    host_free(ctrt_function_user(context));
}

static const ctrt_function scatter_function = {
    .size = sizeof(ctrt_function), .name = "scatter", .forward = scatter_forward, .backward = scatter_backward,
    .destroy = scatter_destroy,
};

/* Fills in the shape and the sizes of the pieces. */
static ctrt_status cut_measure(struct cut *cut, const ctrt_tensor *tensor, int dim, int n,
                               const ctrt_scatter_options *options)
{
    if (tensor->view.ndim == 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "a 0-dim tensor cannot be cut into pieces");
    CTRT_TRY(shape_dim(&cut->dim, "scatter", dim, tensor->view.ndim));
    cut->dtype = tensor_dtype(tensor);
    cut->device = tensor->device;
    cut->ndim = tensor->view.ndim;
    memcpy(cut->shape, tensor->view.shape, (size_t)cut->ndim * sizeof *cut->shape);
    return ctrt_chunk_sizes(cut->sizes, &cut->count, cut->shape[cut->dim], n, options);
}

static ctrt_status cut_new(struct cut **out, const ctrt_tensor *tensor, ctrt_device *const *devices, int n, int dim,
                           const ctrt_scatter_options *options)
{
    const size_t bytes = sizeof(struct cut) + (size_t)n * sizeof(int64_t);
    struct cut *cut = host_calloc(bytes);
    ALLOC_CHECK(cut, bytes, "the sizes of pieces");
    cut->devices = devices;
    ctrt_status status = cut_measure(cut, tensor, dim, n, options);
    if (status == CTRT_OK)
        *out = cut;
    else
        host_free(cut);
    return status;
}

/* All out[n] are NULL on entry; on failure some are set. */
static ctrt_status scatter_tensor(ctrt_tensor **out, int *count, ctrt_tensor *tensor, ctrt_device *const *devices,
                                  int n, int dim, const ctrt_scatter_options *options)
{
    struct cut *cut = NULL;
    CTRT_TRY(cut_new(&cut, tensor, devices, n, dim, options));
    *count = cut->count;
    if (op_needs_grad(&tensor, 1))
        return ctrt_function_apply(&scatter_function, cut, out, cut->count, &tensor, 1);   /* takes over `cut` */
    ctrt_status status = pieces_make(out, tensor, cut);
    host_free(cut);
    return status;
}

ctrt_status ctrt_scatter_tensor(ctrt_tensor **out, int *count, ctrt_tensor *tensor, ctrt_device *const *devices, int n,
                                int dim, const ctrt_scatter_options *options)
{
    STREAMS_ORDERED;
    int pieces = 0;
    NULL_CHECKS("scatter_tensor", out, count, tensor);
    CTRT_TRY(devices_check("scatter_tensor", devices, n));
    HOST_AUTO ctrt_tensor **fresh = host_calloc((size_t)n * sizeof *fresh);
    ALLOC_CHECK(fresh, (size_t)n * sizeof *fresh, "scatter_tensor");
    ctrt_status status = ctrt_context(scatter_tensor(fresh, &pieces, tensor, devices, n, dim, options),
                                      "scatter_tensor");
    for (int i = 0; i < n; i++) {
        if (status == CTRT_OK)
            tensor_move(&out[i], fresh[i]);
        else
            tensor_release(fresh[i]);
    }
    if (status == CTRT_OK)
        *count = pieces;
    return status;
}

/* ---- trees ---- */

struct scattering {
    ctrt_device *const *devices;
    int n, dim, count;                      /* count: of pieces; 0 before the first tensor */
    const ctrt_scatter_options *options;
    struct strbuf path;                     /* the place in the tree, "input[1].mask" */
};

/* Checks that all tensors give the same number of pieces, which becomes s->count. */
static ctrt_status scatter_measure(struct scattering *s, const ctrt_tree *tree)
{
    CTRT_TRY(stack_check("scatter_tree"));
    if (ctrt_tree_kind_of(tree) == CTRT_TREE_TENSOR) {
        struct cut *cut = NULL;
        CTRT_TRY(ctrt_context(cut_new(&cut, tree->tensor, s->devices, s->n, s->dim, s->options), "%s",
                              s->path.bytes != NULL ? s->path.bytes : "input"));
        const int count = cut->count;
        const int64_t size = cut->shape[cut->dim];
        host_free(cut);
        if (s->count > 0 && count != s->count)
            return ctrt_fail(CTRT_ERR_SHAPE,
                             "%s has size %lld in dimension %d, which gives %d pieces, but the tensors before give %d",
                             s->path.bytes != NULL ? s->path.bytes : "input", (long long)size, s->dim, count, s->count);
        s->count = count;
        return CTRT_OK;
    }
    for (size_t k = 0; k < ctrt_tree_count(tree); k++) {
        const size_t length = s->path.length;
        tree_path_add(&s->path, tree, k);
        CTRT_TRY(scatter_measure(s, tree->items[k]));
        tree_path_cut(&s->path, length);
    }
    return CTRT_OK;
}

static ctrt_status scatter_tree(ctrt_tree **out, const struct scattering *s, ctrt_tree *tree);

static ctrt_status scatter_leaf(ctrt_tree **out, const struct scattering *s, ctrt_tree *tree)
{
    int count = 0;
    ctrt_status status;
    HOST_AUTO ctrt_tensor **pieces = host_calloc((size_t)s->n * sizeof *pieces);
    ALLOC_CHECK(pieces, (size_t)s->n * sizeof *pieces, "scatter_tree");
    status = scatter_tensor(pieces, &count, tree->tensor, s->devices, s->n, s->dim, s->options);
    for (int i = 0; i < s->n; i++) {
        if (status == CTRT_OK && i < count)
            status = ctrt_tree_of_tensor(&out[i], pieces[i]);
        tensor_release(pieces[i]);
    }
    return status;
}

/* Cuts each item; item k of piece i is rows[i * tree->count + k]. */
static ctrt_status scatter_items(ctrt_tree **out, const struct scattering *s, ctrt_tree *tree, ctrt_tree **rows,
                                 ctrt_tree **pieces)
{
    for (size_t k = 0; k < tree->count; k++) {
        ctrt_status status = scatter_tree(pieces, s, tree->items[k]);
        for (int i = 0; i < s->count; i++) {
            rows[(size_t)i * tree->count + k] = pieces[i];
            pieces[i] = NULL;
        }
        CTRT_TRY(status);
    }
    for (int i = 0; i < s->count; i++) {
        ctrt_tree **row = &rows[(size_t)i * tree->count];
        CTRT_TRY(tree_like(&out[i], tree, row));
        memset(row, 0, tree->count * sizeof *row);
    }
    return CTRT_OK;
}

/* Writes s->count pieces to out, which is NULL on entry; on failure some are set. */
static ctrt_status scatter_tree(ctrt_tree **out, const struct scattering *s, ctrt_tree *tree)
{
    const ctrt_tree_kind kind = ctrt_tree_kind_of(tree);
    if (kind == CTRT_TREE_TENSOR)
        return scatter_leaf(out, s, tree);
    if (kind == CTRT_TREE_POINTER)
        for (int i = 0; i < s->count; i++)
            out[i] = ctrt_tree_retain(tree);
    if (kind != CTRT_TREE_LIST && kind != CTRT_TREE_MAP)
        return CTRT_OK;
    const size_t count = (size_t)s->count, cells = count * tree->count;
    HOST_AUTO ctrt_tree **rows = host_calloc((cells + count) * sizeof *rows);
    ALLOC_CHECK(rows, (cells + count) * sizeof *rows, "scatter_tree");
    ctrt_status status = scatter_items(out, s, tree, rows, rows + cells);
    for (size_t i = 0; i < cells + count; i++)
        ctrt_tree_release(&rows[i]);
    return status;
}

ctrt_status ctrt_scatter_tree(ctrt_tree **out, int *count, ctrt_tree *tree, ctrt_device *const *devices, int n, int dim,
                              const ctrt_scatter_options *options)
{
    STREAMS_ORDERED;
    NULL_CHECKS("scatter_tree", out, count);
    CTRT_TRY(devices_check("scatter_tree", devices, n));
    struct scattering s = { .devices = devices, .n = n, .dim = dim, .options = options };
    HOST_AUTO ctrt_tree **fresh = host_calloc((size_t)n * sizeof *fresh);
    ALLOC_CHECK(fresh, (size_t)n * sizeof *fresh, "scatter_tree");
    strbuf_add(&s.path, "input");
    ctrt_status status = scatter_measure(&s, tree);
    if (s.count == 0)
        s.count = n;                        /* no tensor */
    if (status == CTRT_OK)
        status = scatter_tree(fresh, &s, tree);
    for (int i = 0; i < n; i++) {
        if (status == CTRT_OK) {
            ctrt_tree_release(&out[i]);
            out[i] = fresh[i];
        } else {
            ctrt_tree_release(&fresh[i]);
        }
    }
    if (status == CTRT_OK)
        *count = s.count;
    strbuf_drop(&s.path);
    return ctrt_context(status, "scatter_tree");
}
