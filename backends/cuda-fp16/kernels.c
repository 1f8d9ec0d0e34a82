/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda-fp16/kernels.c: kernels for f32 that call cuda's kernels for f16 or bf16.
 *
 * Operands are rounded into the workspace; their layouts are kept. Matrix products: cuda's kernel multiplies the
 * rounded operands, sums in f32, adds the unrounded bias and writes f32. Convolutions: the bias and the result are
 * also rounded, and the result is converted back to f32. As with autocast, values beyond 65504 become infinite in f16
 * (not in bf16). The results of attention are also rounded, except logsumexp, which is always f32. */
#include "fp16.h"
#include "plugins/common/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define INPUTS   6
#define OUTPUTS  3
#define OPERANDS (INPUTS + OUTPUTS)
#define ALIGNED  256u

/* ---- cuda's kernels ---- */

static const ctrt_kernel *kernel_at(const ctrt_kernel_table *table, size_t i)
{
    return (const ctrt_kernel *)((const char *)table->kernels + i * table->stride);
}

/* cuda's kernels for an op and dtype, by decreasing score; looked up once. */
#define KERNELS_PER_OP 8
struct found {
    const char *op;
    ctrt_dtype dtype;
    const ctrt_kernel *kernels[KERNELS_PER_OP];
    size_t count;
};
static struct found found[16];
static atomic_size_t found_count;
FORK_MUTEX(found_lock)

static void fill(struct found *f, const char *op, ctrt_dtype dtype)
{
    const ctrt_backend *cuda = fp16_host->backend("cuda");
    *f = (struct found){ .op = op, .dtype = dtype };
    for (size_t i = 0; cuda != NULL && CTRT_SLOT(cuda, kernels) && i < cuda->kernels->count
         && f->count < KERNELS_PER_OP; i++) {
        const ctrt_kernel *kernel = kernel_at(cuda->kernels, i);
        if (strcmp(kernel->op, op) != 0 || !(kernel->dtypes & CTRT_DTYPE_BIT(dtype)))
            continue;
        size_t at = f->count++;
        for (; at > 0 && f->kernels[at - 1]->score < kernel->score; at--)
            f->kernels[at] = f->kernels[at - 1];
        f->kernels[at] = kernel;
    }
}

static const struct found *look(size_t from, size_t to, const char *op, ctrt_dtype dtype)
{
    for (size_t i = from; i < to; i++)
        if (found[i].dtype == dtype && strcmp(found[i].op, op) == 0)
            return &found[i];
    return NULL;
}

/* Returns cuda's kernels for an op and dtype. `op` must be a static string. */
static const struct found *kernels_of(const char *op, ctrt_dtype dtype)
{
    const size_t known = atomic_load_explicit(&found_count, memory_order_acquire);
    const struct found *there = look(0, known, op, dtype);
    if (there != NULL)
        return there;
    pthread_mutex_lock(&found_lock);
    const size_t now = atomic_load(&found_count);
    there = look(known, now, op, dtype);
    if (there == NULL && now < sizeof found / sizeof found[0]) {
        fill(&found[now], op, dtype);
        there = &found[now];
        atomic_store_explicit(&found_count, now + 1, memory_order_release);
    }
    pthread_mutex_unlock(&found_lock);
    return there;
}

/* Returns cuda's kernel with the highest score for this op and dtype that accepts the call, or NULL. */
static const ctrt_kernel *find(const char *op, ctrt_dtype dtype, ctrt_call *call)
{
    const struct found *f = kernels_of(op, dtype);
    for (size_t i = 0; f != NULL && i < f->count; i++) {
        call->kernel = f->kernels[i];
        if (!CTRT_SLOT(call->kernel, accepts) || call->kernel->accepts(call))
            return call->kernel;
    }
    return NULL;
}

/* ---- lowering one call to 16 bits ---- */

struct lowered {
    ctrt_call call;                         /* the call of cuda's kernel */
    ctrt_view views[OPERANDS];              /* inputs, then outputs from index INPUTS on */
    const ctrt_view *inputs[INPUTS], *outputs[OUTPUTS];
    size_t places[OPERANDS], bytes;         /* offsets in the workspace; their total size */
};

/* Returns the number of distinct elements if the view is dense apart from dimensions of stride 0; 0 if it is not. */
static int64_t dense(const ctrt_view *view)
{
    int64_t span = 1, count = 1;
    for (int d = 0; d < view->ndim; d++) {
        if (view->strides[d] < 0)
            return 0;
        if (view->strides[d] == 0 || view->shape[d] == 1)
            continue;
        span += (view->shape[d] - 1) * view->strides[d];
        count *= view->shape[d];
    }
    return span == count ? count : 0;
}

/* Makes `out` a view of the same elements in the dtype of the products, with the same layout if the view is dense, else
 * row-major. Returns the number of distinct elements. */
static int64_t stand_in(ctrt_view *out, const ctrt_view *view)
{
    int64_t count = dense(view);
    *out = *view;
    out->data = NULL;                       /* NULL counts as aligned; workspace offsets are multiples of ALIGNED */
    out->dtype = (uint8_t)fp16_matrix_dtype;
    out->owner = NULL;
    if (count > 0)
        return count;
    count = 1;
    for (int d = view->ndim - 1; d >= 0; d--) {
        out->strides[d] = count;
        count *= view->shape[d];
    }
    out->flags = (uint16_t)((out->flags & ~(CTRT_VIEW_CHANNELS_LAST)) | CTRT_VIEW_CONTIGUOUS);
    return count;
}

/* Operands that are passed unchanged. */
#define INPUT(i)  (1u << (i))
#define OUTPUT(i) (1u << (INPUTS + (i)))
static const struct { const char *op; unsigned kept; } exceptions[] = {
    { "matmul", OUTPUT(0) },
    { "linear", INPUT(2) | OUTPUT(0) },     /* the bias */
    { "attention", OUTPUT(1) },             /* logsumexp */
    { "attention_backward", INPUT(5) },
};

/* Returns whether `view`, operand `i`, is rounded. */
static bool rounded(const ctrt_call *call, const ctrt_view *view, unsigned i)
{
    unsigned kept = 0;
    for (size_t k = 0; k < sizeof exceptions / sizeof exceptions[0]; k++)
        if (strcmp(call->kernel->op, exceptions[k].op) == 0)
            kept = exceptions[k].kept;
    return view != NULL && !(kept >> i & 1);
}

/* Returns the view that cuda's kernel gets for `view`, operand `i`. */
static const ctrt_view *place(struct lowered *l, const ctrt_call *call, const ctrt_view *view, unsigned i)
{
    if (!rounded(call, view, i))
        return view;
    const int64_t count = stand_in(&l->views[i], view);
    l->places[i] = l->bytes;
    l->bytes += ((size_t)count * 2 + ALIGNED - 1) / ALIGNED * ALIGNED;
    return &l->views[i];
}

static ctrt_status fail_missing(const ctrt_call *call)
{
    return fp16_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s: cuda has no kernel for it in the type that cuda-fp16 requires",
                           call->kernel->op);
}

/* Prepares the call of cuda's kernel; the addresses are set later. */
static ctrt_status lower(struct lowered *l, const ctrt_call *call)
{
    memset(l, 0, sizeof *l);
    l->call = *call;
    l->call.inputs = l->inputs;
    l->call.outputs = l->outputs;
    l->call.workspace = NULL;
    l->call.workspace_bytes = 0;
    for (uint32_t i = 0; i < call->n_inputs; i++)
        l->inputs[i] = place(l, call, call->inputs[i], i);
    for (uint32_t i = 0; i < call->n_outputs; i++)
        l->outputs[i] = place(l, call, call->outputs[i], INPUTS + i);
    return find(call->kernel->op, fp16_matrix_dtype, &l->call) != NULL ? CTRT_OK : fail_missing(call);
}

static ctrt_status workspace(const ctrt_call *call, size_t *bytes)
{
    struct lowered l;
    size_t more = 0;
    ctrt_status status = lower(&l, call);
    if (status == CTRT_OK && CTRT_SLOT(l.call.kernel, workspace))
        status = l.call.kernel->workspace(&l.call, &more);
    *bytes = l.bytes + more;
    return status;
}

static bool accepts(const ctrt_call *call)
{
    struct lowered l;
    return call->n_inputs <= INPUTS && call->n_outputs <= OUTPUTS && lower(&l, call) == CTRT_OK;
}

/* Converts between the dtypes, on the call's queue. Dense views are converted as one dimension. */
static ctrt_status convert(const ctrt_call *call, const ctrt_view *to, const ctrt_view *from)
{
    ctrt_view flat_to = *to, flat_from = *from;
    const int64_t count = dense(from);
    if (count > 0 && dense(to) == count && memcmp(to->strides, from->strides, to->ndim * sizeof to->strides[0]) == 0) {
        flat_to.ndim = flat_from.ndim = 1;
        flat_to.numel = flat_from.numel = flat_to.shape[0] = flat_from.shape[0] = count;
        flat_to.strides[0] = flat_from.strides[0] = 1;
        flat_to.flags = flat_from.flags = CTRT_VIEW_CONTIGUOUS;
    }
    const ctrt_view *in = &flat_from, *out = &flat_to;
    ctrt_call copy = *call;
    copy.inputs = &in;
    copy.outputs = &out;
    copy.n_inputs = copy.n_outputs = 1;
    copy.attributes = NULL;
    copy.workspace = NULL;
    copy.workspace_bytes = 0;
    const ctrt_kernel *kernel = find("copy", (ctrt_dtype)from->dtype, &copy);
    return kernel != NULL ? kernel->run(&copy) : fail_missing(call);
}

static ctrt_status run(const ctrt_call *call)
{
    struct lowered l;
    ctrt_status status = lower(&l, call);
    if (status != CTRT_OK)
        return status;
    char *scratch = call->workspace;
    for (uint32_t i = 0; i < call->n_inputs && status == CTRT_OK; i++) {
        if (!rounded(call, call->inputs[i], i))
            continue;
        l.views[i].data = scratch + l.places[i];
        if (call->inputs[i]->numel > 0)
            status = convert(call, &l.views[i], call->inputs[i]);
    }
    for (uint32_t i = 0; i < call->n_outputs; i++)
        if (rounded(call, call->outputs[i], INPUTS + i))
            l.views[INPUTS + i].data = scratch + l.places[INPUTS + i];
    l.call.workspace = scratch + l.bytes;
    l.call.workspace_bytes = call->workspace_bytes - l.bytes;
    if (status == CTRT_OK)
        status = l.call.kernel->run(&l.call);
    for (uint32_t i = 0; i < call->n_outputs && status == CTRT_OK; i++)
        if (rounded(call, call->outputs[i], INPUTS + i) && call->outputs[i]->numel > 0)
            status = convert(call, call->outputs[i], &l.views[INPUTS + i]);
    return status;
}

static ctrt_status prepare(void *device)
{
    const ctrt_backend *cuda = fp16_host->backend("cuda");
    return cuda != NULL && CTRT_SLOT(cuda, kernels) && CTRT_SLOT(cuda->kernels, prepare)
           ? cuda->kernels->prepare(device) : CTRT_OK;
}

#define KERNEL(name, more)                                                                                             \
    { .size = sizeof(ctrt_kernel), .op = name, .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .score = 100, .flags = (more),      \
      .run = run, .accepts = accepts, .workspace = workspace }

static const ctrt_kernel kernels[] = {
    KERNEL("matmul", CTRT_KERNEL_STRIDED),
    KERNEL("linear", CTRT_KERNEL_STRIDED),
    KERNEL("attention", CTRT_KERNEL_STRIDED),
    KERNEL("attention_backward", CTRT_KERNEL_STRIDED),
    KERNEL("conv2d", CTRT_KERNEL_CHANNELS_LAST),
    KERNEL("conv2d_input_grad", CTRT_KERNEL_CHANNELS_LAST),
    KERNEL("conv2d_weight_grad", CTRT_KERNEL_CHANNELS_LAST),
};

const ctrt_kernel_table fp16_kernel_table = {
    .size = sizeof(ctrt_kernel_table),
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .stride = sizeof kernels[0],
    .prepare = prepare,
};
