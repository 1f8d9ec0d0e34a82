/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/sync_batch_norm.c: batch norm with the statistics of the rows of all ranks
 * (torch.nn.SyncBatchNorm).
 *
 * Each rank computes mean and variance of its rows with the kernel of batch_norm. The ranks exchange them with their
 * counts in one all_gather and combine them by the formula of Chan, Golub and LeVeque (1983), in f64. Then the kernel
 * of batch_norm in evaluation mode normalises by the result.
 *
 * Backward, with xhat = (x - mean) rstd, a = weight rstd, and N values per channel on all ranks:
 *
 *     dx = a dy - a / N (sum dy + xhat sum(dy xhat))      both sums over all ranks, in one all_reduce
 *
 * The first term and this rank's sums are the result of the gradient kernel in evaluation mode; the second term is
 * batch_norm of x with other weights. Gradients of weight and bias are this rank's sums, because the strategy adds them
 * up as those of other parameters. */
#include "base/host_alloc.h"
#include "base/stack.h"
#include "ctrt/strategy_plugin.h"
#include "nn/layers/layers.h"
#include "ops/backward.h"
#include "ops/op_common.h"

static __thread ctrt_batch_ranks batch_ranks;

void ctrt_swap_batch_ranks(ctrt_batch_ranks *ranks)
{
    if (ranks == NULL)
        return;
    const ctrt_batch_ranks before = batch_ranks;
    batch_ranks = *ranks;
    *ranks = before;
}

/* ---- the function ---- */

struct sync {
    ctrt_comm *comm;                        /* owned */
    double weight;                          /* of this rank's loss */
    double momentum, epsilon;
    ctrt_tensor *running_mean, *running_var;    /* borrowed; used in forward only */
    bool affine, input_grad;
};

static ctrt_dtype statistics_dtype(const ctrt_tensor *x)
{
    return ctrt_tensor_dtype(x) == CTRT_F64 ? CTRT_F64 : CTRT_F32;
}

/* The mean and the biased variance of this rank's rows, in the dtype of statistics. */
static ctrt_status local_moments(ctrt_tensor **mean, ctrt_tensor **var, ctrt_tensor *x, int64_t count)
{
    CTRT_AUTO(tensor) unused = NULL;
    const ctrt_dtype dtype = statistics_dtype(x);
    const int64_t features = ctrt_tensor_size(x, 1);
    CTRT_TRY(ctrt_zeros(mean, CTRT_SHAPE(features), dtype, ctrt_tensor_device(x)));
    CTRT_TRY(ctrt_zeros(var, CTRT_SHAPE(features), dtype, ctrt_tensor_device(x)));
    if (count == 0)
        return CTRT_OK;
    if (count == 1) {                       /* has no variance, so the kernel does not accept it */
        CTRT_TRY(ctrt_reshape(&unused, x, CTRT_SHAPE(features)));
        return ctrt_copy_(*mean, unused);
    }
    /* With a momentum of 1 the running statistics become those of the batch, the variance unbiased. */
    CTRT_TRY(ctrt_batch_norm(&unused, x, NULL, NULL, *mean, *var, true, 1, 0));
    return ctrt_mul_scalar_(*var, ctrt_float((double)(count - 1) / (double)count));
}

/* Writes mean, variance and count of all ranks' rows to out[size, 2 features + 1], in f64. */
static ctrt_status gather_moments(ctrt_tensor **out, const struct sync *sync, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) mean = NULL, var = NULL, number = NULL, local = NULL;
    const int64_t features = ctrt_tensor_size(x, 1), count = features > 0 ? ctrt_tensor_numel(x) / features : 0;
    ctrt_device *device = ctrt_tensor_device(x);
    CTRT_TRY(local_moments(&mean, &var, x, count));
    CTRT_TRY(ctrt_to_dtype(&mean, mean, CTRT_F64));
    CTRT_TRY(ctrt_to_dtype(&var, var, CTRT_F64));
    CTRT_TRY(ctrt_full(&number, CTRT_SHAPE(1), ctrt_float((double)count), CTRT_F64, device));
    CTRT_TRY(ctrt_cat(&local, (ctrt_tensor *[]){ mean, var, number }, 3, 0));
    CTRT_TRY(ctrt_empty(out, CTRT_SHAPE(ctrt_comm_size(sync->comm), 2 * features + 1), CTRT_F64, device));
    return ctrt_comm_all_gather(NULL, sync->comm, *out, local);
}

struct moments {
    ctrt_tensor *mean, *var;                /* [features], f64; the variance biased */
    ctrt_tensor *total;                     /* [1], f64: values per channel on all ranks */
    ctrt_tensor *divisor;                   /* the same, but at least 1 */
};

static void moments_release(struct moments *m)
{
    ctrt_tensor_release(&m->mean);
    ctrt_tensor_release(&m->var);
    ctrt_tensor_release(&m->total);
    ctrt_tensor_release(&m->divisor);
}

/* The mean over ranks, weighted by their counts. */
static ctrt_status weighted_mean(ctrt_tensor **out, const struct moments *m, ctrt_tensor *values, ctrt_tensor *counts)
{
    CTRT_AUTO(tensor) product = NULL;
    CTRT_TRY(ctrt_mul(&product, values, counts));
    CTRT_TRY(ctrt_sum(&product, product, CTRT_DIMS(0)));
    return ctrt_div(out, product, m->divisor);
}

static ctrt_status sync_batch_norm_combine(struct moments *m, ctrt_tensor *all, int64_t features)
{
    CTRT_AUTO(tensor) means = NULL, vars = NULL, counts = NULL, distance = NULL;
    CTRT_TRY(ctrt_narrow(&means, all, 1, 0, features));
    CTRT_TRY(ctrt_narrow(&vars, all, 1, features, features));
    CTRT_TRY(ctrt_narrow(&counts, all, 1, 2 * features, 1));
    CTRT_TRY(ctrt_sum(&m->total, counts, CTRT_DIMS(0)));
    CTRT_TRY(ctrt_clamp_min(&m->divisor, m->total, ctrt_float(1)));
    CTRT_TRY(weighted_mean(&m->mean, m, means, counts));
    CTRT_TRY(ctrt_sub(&distance, means, m->mean));
    CTRT_TRY(ctrt_square(&distance, distance));
    CTRT_TRY(ctrt_add(&distance, distance, vars));
    return weighted_mean(&m->var, m, distance, counts);
}

/* running += factor * (value - running) */
static ctrt_status running_move(ctrt_tensor *running, ctrt_tensor *value, ctrt_tensor *factor)
{
    CTRT_AUTO(tensor) wide = NULL, change = NULL;
    CTRT_TRY(ctrt_to_dtype(&wide, running, CTRT_F64));
    CTRT_TRY(ctrt_sub(&change, value, wide));
    CTRT_TRY(ctrt_mul_(change, factor));
    CTRT_TRY(ctrt_add(&wide, wide, change));
    return ctrt_copy_(running, wide);
}

/* Without rows on any rank the running statistics stay as they are; one row has the unbiased variance 0. */
static ctrt_status running_update(const struct sync *sync, const struct moments *m)
{
    CTRT_AUTO(tensor) factor = NULL, rest = NULL, unbiased = NULL;
    CTRT_TRY(ctrt_clamp_max(&factor, m->total, ctrt_float(1)));
    CTRT_TRY(ctrt_mul_scalar_(factor, ctrt_float(sync->momentum)));
    CTRT_TRY(ctrt_sub_scalar(&rest, m->total, ctrt_float(1)));
    CTRT_TRY(ctrt_clamp_min_(rest, ctrt_float(1)));
    CTRT_TRY(ctrt_mul(&unbiased, m->var, m->total));
    CTRT_TRY(ctrt_div_(unbiased, rest));
    CTRT_TRY(running_move(sync->running_mean, m->mean, factor));
    return running_move(sync->running_var, unbiased, factor);
}

enum { SAVED_X, SAVED_MEAN, SAVED_VAR, SAVED_DIVISOR, SAVED_WEIGHT };

static ctrt_status sync_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in,
                                int n_in)
{
    __attribute__((cleanup(moments_release))) struct moments m = { .mean = NULL };
    CTRT_AUTO(tensor) all = NULL, mean = NULL, var = NULL;
    const struct sync *sync = ctrt_function_user(context);
    ctrt_tensor *x = in[0], *weight = in[1];
    const ctrt_dtype dtype = statistics_dtype(x);
    (void)n_out, (void)n_in;
    CTRT_TRY(gather_moments(&all, sync, x));
    CTRT_TRY(sync_batch_norm_combine(&m, all, ctrt_tensor_size(x, 1)));
    CTRT_TRY(ctrt_to_dtype(&mean, m.mean, dtype));
    CTRT_TRY(ctrt_to_dtype(&var, m.var, dtype));
    CTRT_TRY(ctrt_batch_norm(&out[0], x, weight, in[2], mean, var, false, -1, sync->epsilon));
    CTRT_TRY(running_update(sync, &m));
    CTRT_TRY(ctrt_function_save(context, x));
    CTRT_TRY(ctrt_function_save(context, mean));
    CTRT_TRY(ctrt_function_save(context, var));
    CTRT_TRY(ctrt_function_save(context, m.divisor));
    return weight != NULL ? ctrt_function_save(context, weight) : CTRT_OK;
}

/* Operands of the backward pass. f16 and bf16 become f32, so that only the results are rounded. */
struct sync_batch_norm_operands {
    ctrt_tensor *x, *dy, *weight;           /* owned; weight: ones if the layer has none */
    ctrt_tensor *mean, *var, *divisor;      /* borrowed */
    ctrt_tensor *rstd;                      /* owned */
};

static ctrt_status operands_find(struct sync_batch_norm_operands *o, ctrt_function_context *context, ctrt_tensor *dy)
{
    const struct sync *sync = ctrt_function_user(context);
    ctrt_tensor *x, *weight;
    CTRT_TRY(ctrt_function_saved(&x, context, SAVED_X));
    CTRT_TRY(ctrt_function_saved(&o->mean, context, SAVED_MEAN));
    CTRT_TRY(ctrt_function_saved(&o->var, context, SAVED_VAR));
    CTRT_TRY(ctrt_function_saved(&o->divisor, context, SAVED_DIVISOR));
    const ctrt_dtype dtype = statistics_dtype(x);
    CTRT_TRY(ctrt_to_dtype(&o->x, x, dtype));
    if (dy != NULL)
        CTRT_TRY(ctrt_to_dtype(&o->dy, dy, dtype));
    else
        CTRT_TRY(ctrt_zeros_like(&o->dy, o->x, CTRT_DTYPE_DEFAULT, NULL));
    if (sync->affine) {
        CTRT_TRY(ctrt_function_saved(&weight, context, SAVED_WEIGHT));
        CTRT_TRY(ctrt_to_dtype(&o->weight, weight, dtype));
    } else {
        CTRT_TRY(ctrt_ones(&o->weight, CTRT_SHAPE(ctrt_tensor_size(x, 1)), dtype, ctrt_tensor_device(x)));
    }
    CTRT_TRY(ctrt_add_scalar(&o->rstd, o->var, ctrt_float(sync->epsilon)));
    return ctrt_rsqrt(&o->rstd, o->rstd);
}

static void operands_release(struct sync_batch_norm_operands *o)
{
    ctrt_tensor_release(&o->x);
    ctrt_tensor_release(&o->dy);
    ctrt_tensor_release(&o->weight);
    ctrt_tensor_release(&o->rstd);
}

/* Adds the second term, with the sums of all ranks, to dx. The losses of the ranks may have different weights, with
 * which the strategy multiplies the gradients later. */
static ctrt_status add_statistics_gradient(const struct sync *sync, const struct sync_batch_norm_operands *o,
                                           ctrt_tensor *dx, ctrt_tensor *dweight, ctrt_tensor *dbias)
{
    CTRT_AUTO(tensor) sums = NULL, factor = NULL, scale = NULL, shift = NULL, term = NULL;
    const int64_t features = ctrt_tensor_numel(dbias);
    CTRT_TRY(ctrt_stack(&sums, (ctrt_tensor *[]){ dweight, dbias }, 2, 0));
    CTRT_TRY(ctrt_to_dtype(&sums, sums, CTRT_F64));
    CTRT_TRY(ctrt_mul_scalar_(sums, ctrt_float(sync->weight)));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, sync->comm, sums, CTRT_COMM_SUM));
    if (ctrt_tensor_numel(dx) == 0)
        return CTRT_OK;
    CTRT_TRY(ctrt_mul(&factor, o->weight, o->rstd));
    CTRT_TRY(ctrt_to_dtype(&factor, factor, CTRT_F64));
    CTRT_TRY(ctrt_div(&factor, factor, o->divisor));
    CTRT_TRY(ctrt_mul_scalar_(factor, ctrt_float(-1 / sync->weight)));
    CTRT_TRY(ctrt_mul(&sums, sums, factor));
    CTRT_TRY(ctrt_to_dtype(&sums, sums, ctrt_tensor_dtype(o->x)));
    CTRT_TRY(ctrt_narrow(&scale, sums, 0, 0, 1));
    CTRT_TRY(ctrt_view_as(&scale, scale, CTRT_SHAPE(features)));
    CTRT_TRY(ctrt_narrow(&shift, sums, 0, 1, 1));
    CTRT_TRY(ctrt_view_as(&shift, shift, CTRT_SHAPE(features)));
    CTRT_TRY(ctrt_batch_norm(&term, o->x, scale, shift, o->mean, o->var, false, -1, sync->epsilon));
    return ctrt_add_(dx, term);
}

static ctrt_status sync_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                 ctrt_tensor *const *grad_out, int n_out)
{
    __attribute__((cleanup(operands_release))) struct sync_batch_norm_operands o = { .x = NULL };
    CTRT_AUTO(tensor) dx = NULL, dweight = NULL, dbias = NULL;
    const struct sync *sync = ctrt_function_user(context);
    ctrt_tensor *x, *weight;
    (void)n_in, (void)n_out;
    if (ctrt_grad_enabled())
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "SyncBatchNorm has no second derivative; call backward without "
                         "create_graph, or use BatchNorm");
    CTRT_TRY(operands_find(&o, context, grad_out[0]));
    CTRT_TRY(op_batch_norm_backward(&dx, &dweight, &dbias, o.dy, o.x, o.weight, o.mean, o.rstd, false));
    if (sync->input_grad) {
        CTRT_TRY(add_statistics_gradient(sync, &o, dx, dweight, dbias));
        CTRT_TRY(ctrt_function_saved(&x, context, SAVED_X));
        CTRT_TRY(ctrt_to_dtype(&grad_in[0], dx, ctrt_tensor_dtype(x)));
    }
    if (!sync->affine)
        return CTRT_OK;
    CTRT_TRY(ctrt_function_saved(&weight, context, SAVED_WEIGHT));
    CTRT_TRY(ctrt_to_dtype(&grad_in[1], dweight, ctrt_tensor_dtype(weight)));
    return ctrt_to_dtype(&grad_in[2], dbias, ctrt_tensor_dtype(weight));
}

static void sync_destroy(ctrt_function_context *context)
{
    struct sync *sync = ctrt_function_user(context);
    ctrt_comm_release(&sync->comm);
    host_free(sync);
}

static const ctrt_function sync_function = {
    .size = sizeof(ctrt_function), .name = "sync_batch_norm", .forward = sync_forward, .backward = sync_backward,
    .destroy = sync_destroy,
};

/* ---- the module ---- */

static ctrt_status check_input(const struct batch_norm *norm, ctrt_comm *comm, const ctrt_tensor *x)
{
    const int64_t features = ctrt_tensor_numel(norm->running_mean);
    if (ctrt_tensor_size(x, 1) != features)
        return ctrt_fail(CTRT_ERR_SHAPE, "x has %lld channels (dimension 1), expected %lld",
                         (long long)ctrt_tensor_size(x, 1), (long long)features);
    if (ctrt_tensor_device(x) != ctrt_comm_device(comm))
        return ctrt_fail(CTRT_ERR_DEVICE, "x is on %s, but rank %d of group %s uses %s",
                         ctrt_device_name(ctrt_tensor_device(x)), ctrt_comm_rank(comm), ctrt_comm_name(comm),
                         ctrt_device_name(ctrt_comm_device(comm)));
    return op_require_floating("SyncBatchNorm", "x", (ctrt_tensor *)x);
}

static ctrt_status sync_batch_norm_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct batch_norm *norm = ctrt_module_state(self);
    CTRT_TRY(module_one_input(self, inputs, count));
    ctrt_tensor *x = inputs[0];
    if (ctrt_tensor_ndim(x) < 2)
        return ctrt_fail(CTRT_ERR_SHAPE, "expected [N, C, ...], got %d dimensions", ctrt_tensor_ndim(x));
    ctrt_comm *comm = norm->comm != NULL ? norm->comm : batch_ranks.comm;
    if (!self->training || comm == NULL || ctrt_comm_size(comm) == 1)
        return batch_norm_run(y, self, x);
    CTRT_TRY(check_input(norm, comm, x));
    struct sync *sync = host_calloc(sizeof *sync);
    ALLOC_CHECK(sync, sizeof *sync, "batch norm");
    *sync = (struct sync){
        .comm = ctrt_comm_retain(comm), .weight = batch_ranks.comm != NULL ? batch_ranks.weight : 1,
        .epsilon = norm->epsilon, .running_mean = norm->running_mean, .running_var = norm->running_var,
        .affine = norm->weight != NULL, .input_grad = ctrt_tensor_requires_grad(x),
    };
    ctrt_status status = batch_norm_begin(&sync->momentum, self);
    if (status == CTRT_OK)
        return ctrt_function_apply(&sync_function, sync, y, 1, (ctrt_tensor *[]){ x, norm->weight, norm->bias }, 3);
    ctrt_comm_release(&sync->comm);
    host_free(sync);
    return status;
}

static void sync_batch_norm_destroy(ctrt_module *self)
{
    struct batch_norm *norm = ctrt_module_state(self);
    ctrt_comm_release(&norm->comm);
}

/* The copy has the tensors already. */
static ctrt_status sync_batch_norm_replicate(ctrt_module *copy, ctrt_module *original)
{
    struct batch_norm *to = ctrt_module_state(copy);
    const struct batch_norm *from = ctrt_module_state(original);
    *to = (struct batch_norm){ .epsilon = from->epsilon, .momentum = from->momentum,
                               .comm = ctrt_comm_retain(from->comm) };
    if (from->weight != NULL) {
        CTRT_TRY(ctrt_module_tensor(&to->weight, copy, "weight"));
        CTRT_TRY(ctrt_module_tensor(&to->bias, copy, "bias"));
    }
    CTRT_TRY(ctrt_module_tensor(&to->running_mean, copy, "running_mean"));
    CTRT_TRY(ctrt_module_tensor(&to->running_var, copy, "running_var"));
    return ctrt_module_tensor(&to->batches, copy, "num_batches_tracked");
}

static const ctrt_module_class sync_batch_norm_class = {
    .size = sizeof(ctrt_module_class), .kind = "SyncBatchNorm", .state_bytes = sizeof(struct batch_norm),
    .forward = sync_batch_norm_forward, .destroy = sync_batch_norm_destroy, .replicate = sync_batch_norm_replicate,
};

ctrt_status ctrt_sync_batch_norm_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                     ctrt_comm *comm, ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL;
    NULL_CHECK("sync_batch_norm_new", out);
    CTRT_TRY(batch_norm_new(&self, &sync_batch_norm_class, "sync_batch_norm_new", features, options, device));
    struct batch_norm *norm = ctrt_module_state(self);
    norm->comm = ctrt_comm_retain(comm);
    module_give(out, &self);
    return CTRT_OK;
}

/* ---- all layers of a module ---- */

static ctrt_status each(ctrt_module *module, void (*visit)(void *user, ctrt_module *module), void *user)
{
    CTRT_TRY(stack_check("sync_batch_norm"));
    visit(user, module);
    for (size_t i = 0; i < module->children.count; i++)
        CTRT_TRY(each(module->children.items[i].module, visit, user));
    return CTRT_OK;
}

static void sync_batch_norm_convert(void *user, ctrt_module *module)
{
    ctrt_comm *comm = user;
    struct batch_norm *norm = ctrt_module_state(module);
    if (batch_norm_is(module)) {
        module->class_of = &sync_batch_norm_class;
        module->forward = sync_batch_norm_class.forward;
    } else if (module->class_of != &sync_batch_norm_class) {
        return;
    }
    (void)ctrt_comm_retain(comm);
    ctrt_comm_release(&norm->comm);
    norm->comm = comm;
}

static void nothing(void *user, ctrt_module *module)
{
    (void)user, (void)module;
}

ctrt_status ctrt_convert_sync_batch_norm(ctrt_module *module, ctrt_comm *comm)
{
    if (module == NULL)
        return module_missing("convert_sync_batch_norm", "module");
    CTRT_TRY(each(module, nothing, NULL));  /* all or none, if modules are nested too deep */
    return each(module, sync_batch_norm_convert, comm);
}

static void sync_batch_norm_find(void *user, ctrt_module *module)
{
    ctrt_sync_layers *found = user;
    if (module->class_of != &sync_batch_norm_class)
        return;
    const struct batch_norm *norm = ctrt_module_state(module);
    found->layers++;
    found->training += module->training;
    found->own += norm->comm != NULL;
}

ctrt_status ctrt_sync_layers_find(ctrt_sync_layers *out, ctrt_module *module)
{
    NULL_CHECKS("sync_layers_find", out, module);
    *out = (ctrt_sync_layers){ .layers = 0 };
    return each(module, sync_batch_norm_find, out);
}

static void abort_own(void *user, ctrt_module *module)
{
    if (module->class_of != &sync_batch_norm_class)
        return;
    const struct batch_norm *norm = ctrt_module_state(module);
    if (norm->comm != NULL && ctrt_comm_error(norm->comm) == CTRT_OK)
        ctrt_comm_abort(norm->comm, user);
}

void ctrt_sync_layers_abort(ctrt_module *module, const char *reason)
{
    if (module != NULL)
        (void)each(module, abort_own, (void *)(reason != NULL ? reason : ""));
}
