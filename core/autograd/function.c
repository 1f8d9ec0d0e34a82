/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/function.c: ops defined by the program (ctrt_function_apply). */
#include <pthread.h>

#include "autograd/graph_growth.h"
#include "autograd/autograd_meta.h"
#include "autograd/rule.h"
#include "base/array.h"
#include "ops/autocast.h"
#include "ops/op_common.h"
#include "tensor/scope.h"

struct function_kept {
    ctrt_tensor *tensor;
    ctrt_tensor *with_history;          /* during a recorded backward: an alias of a saved result, with its history */
    uint32_t version;
    int output;                         /* index of the result that it aliases, or -1 */
    int64_t bytes;
};

enum phase { IN_FORWARD, IDLE, IN_BACKWARD };

struct ctrt_function_context {
    const ctrt_function *function;
    void *user;
    struct function_kept *kept;
    int n_kept;
    size_t capacity;
    bool had_kept, freed, create_graph;
    enum phase phase;
    struct function_node *node;
    ctrt_autocast_settings *autocast;   /* in which backward runs; owned; NULL: without autocast */
};

struct function_node {
    struct grad_node node;
    pthread_mutex_t lock;               /* held during a run, because runs share the context */
    struct ctrt_function_context *context;
    struct grad_edge *edges;
    struct grad_shape *shapes;
};

/* ---- the context ---- */

void *ctrt_function_user(ctrt_function_context *context)
{
    return context ? context->user : NULL;
}

ctrt_status ctrt_function_save(ctrt_function_context *context, ctrt_tensor *tensor)
{
    NULL_CHECK("function_save", context);
    NULL_CHECK("function_save", tensor);
    if (context->phase != IN_FORWARD)
        return fail_from(CTRT_ERR_STATE, "function_save", "tensors can be saved only in forward");
    CTRT_TRY(ARRAY_RESERVE(context->kept, context->capacity, context->n_kept, "saving a tensor"));
    tensor_retain(tensor);
    scope_hold(tensor);
    int64_t bytes = tensor->view.numel * (int64_t)dtype_bytes(tensor_dtype(tensor));
    context->kept[context->n_kept++] = (struct function_kept){ tensor, NULL, tensor_version(tensor), -1, bytes };
    context->had_kept = true;
    autograd_count(autograd_here(), 0, bytes);
    return CTRT_OK;
}

ctrt_status ctrt_function_saved(ctrt_tensor **borrowed, ctrt_function_context *context, int index)
{
    NULL_CHECK("function_saved", borrowed);
    NULL_CHECK("function_saved", context);
    if (index < 0 || index >= context->n_kept)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "function_saved", "%s saved %d tensors; there is no index %d",
                         context->function->name, context->n_kept, index);
    struct function_kept *kept = &context->kept[index];
    if (tensor_version(kept->tensor) != kept->version)
        return ctrt_context(saved_changed("saved tensor", index, kept->tensor, kept->version), "function_saved, %s",
                            context->function->name);
    if (kept->output >= 0 && context->create_graph && context->phase == IN_BACKWARD && kept->with_history == NULL) {
        ctrt_tensor *alias = NULL;
        CTRT_TRY(tensor_alias(&alias, kept->tensor));
        node_retain(&context->node->node);
        ctrt_status status = grad_set_history(alias, &context->node->node, (uint32_t)kept->output);
        if (status != CTRT_OK) {
            tensor_release(alias);
            return status;
        }
        kept->with_history = alias;
    }
    *borrowed = kept->with_history ? kept->with_history : kept->tensor;
    return CTRT_OK;
}

static void free_kept(struct ctrt_function_context *context)
{
    int n = context->n_kept;
    context->n_kept = 0;
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        bytes += context->kept[i].bytes;
        tensor_release(context->kept[i].with_history);
        scope_release_tensor(context->kept[i].tensor);
        tensor_release(context->kept[i].tensor);
    }
    autograd_count(autograd_here(), 0, -bytes);
}

static void context_free(struct ctrt_function_context *context)
{
    free_kept(context);
    if (CTRT_SLOT(context->function, destroy))
        context->function->destroy(context);
    host_free(context->autocast);
    host_free(context->kept);
    host_free(context);
}

/* ---- the node ---- */

static void function_destroy(struct grad_node *node)
{
    struct function_node *self = (struct function_node *)node;
    if (self->context)
        context_free(self->context);
    pthread_mutex_destroy(&self->lock);
    host_free(self->edges);
    host_free(self->shapes);
    host_free(self);
}

static const char *function_name(const struct grad_node *node)
{
    return ((const struct function_node *)node)->context->function->name;
}

static ctrt_status function_run(struct grad_node *node, const struct node_run *run, ctrt_tensor **dx,
                                ctrt_tensor *const *dy)
{
    struct function_node *self = (struct function_node *)node;
    struct ctrt_function_context *context = self->context;
    ctrt_status status;
    pthread_mutex_lock(&self->lock);
    if (context->freed) {
        status = ctrt_fail(CTRT_ERR_AUTOGRAD,
                           "the graph was freed by an earlier backward; to run backward twice, call the first with "
                           "retain_graph (ctrt_backward_with)");
    } else {
        context->phase = IN_BACKWARD;
        context->create_graph = run->create_graph;
        const struct autocast_mark autocast = autocast_mark();
        status = context->autocast != NULL ? ctrt_autocast_push_state(context->autocast) : CTRT_OK;
        if (status == CTRT_OK)
            status = context->function->backward(context, dx, (int)node->n_in, dy, (int)node->n_out);
        autocast_return(autocast);
        context->phase = IDLE;
        for (int i = 0; i < context->n_kept; i++)
            tensor_move(&context->kept[i].with_history, NULL);
        if (!run->retain_graph && context->had_kept) {
            free_kept(context);
            context->freed = true;
        }
    }
    pthread_mutex_unlock(&self->lock);
    return status;
}

static void function_visit(struct grad_node *node, void (*report)(void *user, void *object, bool is_tensor), void *user)
{
    struct function_node *self = (struct function_node *)node;
    pthread_mutex_lock(&self->lock);
    for (int i = 0; self->context != NULL && i < self->context->n_kept; i++)
        report(user, self->context->kept[i].tensor, true);
    pthread_mutex_unlock(&self->lock);
}

static const struct node_class function_class = { function_run, function_name, function_destroy, function_visit };

static ctrt_status node_new(struct function_node **out, ctrt_tensor *const *results, int n_out, ctrt_tensor *const *in,
                            int n_in)
{
    for (int i = 0; i < n_in; i++)
        if (in[i])
            CTRT_TRY(grad_refresh(in[i]));
    struct function_node *self = host_calloc(sizeof *self);
    struct grad_edge *edges = host_alloc((size_t)n_in * sizeof *edges);
    struct grad_shape *shapes = host_alloc((size_t)n_out * sizeof *shapes);
    if (self == NULL || edges == NULL || shapes == NULL) {
        host_free(self);
        host_free(edges);
        host_free(shapes);
        return out_of_memory(sizeof *self, "a graph node");
    }
    node_init(&self->node, &function_class, (uint32_t)n_in, (uint32_t)n_out);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);    /* `backward` may start another backward pass */
    pthread_mutex_init(&self->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    for (int i = 0; i < n_in; i++)
        edges[i] = grad_edge_to(in[i]);
    for (int k = 0; k < n_out; k++)
        grad_shape_of(&shapes[k], results[k]);
    if (n_out > 0)
        node_take_stream(&self->node, results[0]->device);
    self->node.edges = self->edges = edges;
    self->node.shapes = self->shapes = shapes;
    *out = self;
    return CTRT_OK;
}

/* ---- application ---- */

/* Returns whether results[k] is also referenced outside this call: it is an operand, a tensor of the program or an
 * earlier result. */
static bool is_shared(const struct ctrt_function_context *context, ctrt_tensor *const *results, int k)
{
    const struct autograd_meta *meta = results[k]->grad;
    int known = 1;
    for (int i = 0; i < context->n_kept; i++)
        known += context->kept[i].tensor == results[k];
    const bool fresh_view = meta != NULL && meta->base != NULL && meta->node == NULL
        && !(results[k]->flags & TENSOR_REQUIRES_GRAD);
    return (meta != NULL && !fresh_view) || atomic_load_explicit(&results[k]->refs, memory_order_relaxed) > known;
}

/* Returns whether results[k] is an operand or a view. */
static bool is_view(ctrt_tensor *const *results, int k, ctrt_tensor *const *in, int n_in)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] == results[k])
            return true;
    return results[k]->flags & TENSOR_IS_VIEW;
}

/* Sets the results' histories. A saved result is replaced by an alias, because the result owns the node and the node
 * must not own the result. */
static ctrt_status attach(struct ctrt_function_context *context, ctrt_tensor **results, int n_out,
                          ctrt_tensor *const *in, int n_in)
{
    struct function_node *node = NULL;
    bool floating = false;
    for (int k = 0; k < n_out; k++)
        floating |= dtype_floating(tensor_dtype(results[k]));
    if (!floating)
        return CTRT_OK;
    for (int k = 0; k < n_out; k++) {
        ctrt_tensor *alias = NULL;
        if (is_shared(context, results, k)) {
            CTRT_TRY(tensor_alias(&alias, results[k]));
            ctrt_status noted = is_view(results, k, in, n_in)
                ? grad_note_view(alias, results[k], VIEW_FUNCTION) : CTRT_OK;
            tensor_move(&results[k], alias);
            CTRT_TRY(noted);
            continue;
        }
        if (results[k]->grad) {                     /* a view; forward may have changed it in place */
            results[k]->grad->view_kind = VIEW_FUNCTION;
            atomic_store_explicit(&results[k]->grad->version, tensor_version(results[k]), memory_order_relaxed);
        }
        for (int i = 0; i < context->n_kept; i++)
            if (context->kept[i].tensor == results[k]) {
                CTRT_TRY(tensor_alias(&alias, results[k]));
                scope_release_tensor(context->kept[i].tensor);
                scope_hold(alias);
                tensor_move(&context->kept[i].tensor, alias);
                context->kept[i].output = k;
                alias = NULL;
            }
    }
    CTRT_TRY(node_new(&node, results, n_out, in, n_in));
    ctrt_status status = CTRT_OK;
    for (int k = 0; k < n_out && status == CTRT_OK; k++)
        if (dtype_floating(tensor_dtype(results[k]))) {
            node_retain(&node->node);
            status = grad_set_history(results[k], &node->node, (uint32_t)k);
        }
    if (status == CTRT_OK) {
        node->context = context;        /* the node owns the context from here on */
        context->node = node;
        graph_growth_note(&node->node);       /* its warning names the context's function */
    }
    node_release(&node->node);
    return status;
}

/* Returns the dtype in which the function runs under autocast; CTRT_DTYPE_DEFAULT: it has none of its own. */
static ctrt_dtype own_dtype(const ctrt_function *function)
{
    return CTRT_HAS(function, autocast_dtype) ? function->autocast_dtype : CTRT_DTYPE_DEFAULT;
}

static ctrt_status check_function(const ctrt_function *function, ctrt_tensor **out, int n_out, ctrt_tensor *const *in,
                                  int n_in)
{
    NULL_CHECK("function_apply", function);
    NULL_CHECK("function_apply", out);
    if (!CTRT_SLOT(function, name) || !CTRT_SLOT(function, forward) || !CTRT_SLOT(function, backward))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "function_apply",
                         "the function has no %s (its size is %zu)",
                         !CTRT_SLOT(function, name) ? "name" : !CTRT_SLOT(function, forward) ? "forward" : "backward",
                         function->size);
    const ctrt_dtype dtype = own_dtype(function);
    if (dtype != CTRT_DTYPE_DEFAULT && !ctrt_dtype_is_floating(dtype))
        return ctrt_fail(CTRT_ERR_DTYPE, "function_apply, %s: autocast_dtype is %s, expected a floating type",
                         function->name, ctrt_dtype_name(dtype));
    if (n_out < 1 || n_in < 0 || (n_in > 0 && in == NULL))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "function_apply, %s: %d results, %d operands", function->name,
                         n_out, n_in);
    return CTRT_OK;
}

/* Runs forward without recording. With a dtype of its own, the function gets the inputs in this dtype, casts[n_in], and
 * runs without autocast; otherwise casts[] are the inputs. The caller owns casts[]. */
static ctrt_status run_forward(struct ctrt_function_context *context, ctrt_tensor **results, int n_out,
                               ctrt_tensor **casts, ctrt_tensor *const *in, int n_in)
{
    const ctrt_function *function = context->function;
    const ctrt_dtype dtype = own_dtype(function);
    const struct autocast_mark autocast = autocast_mark();
    for (int i = 0; i < n_in; i++)
        if (in[i] != NULL)
            CTRT_TRY(autocast_tensor(&casts[i], in[i], dtype != CTRT_DTYPE_DEFAULT ? dtype : tensor_dtype(in[i])));
    if (dtype == CTRT_DTYPE_DEFAULT)
        CTRT_TRY(autocast_save(&context->autocast));
    else
        (void)autocast_pause();
    const bool was = ctrt_set_grad_enabled(false);
    ctrt_status status = function->forward(context, results, n_out, casts, n_in);
    ctrt_set_grad_enabled(was);
    autocast_return(autocast);
    return status;
}

ctrt_status ctrt_function_apply(const ctrt_function *function, void *user, ctrt_tensor **out, int n_out,
                                ctrt_tensor *const *in, int n_in)
{
    CTRT_TRY(check_function(function, out, n_out, in, n_in));
    struct ctrt_function_context *context = host_calloc(sizeof *context);
    ctrt_tensor **results = host_calloc((size_t)(n_out + n_in) * sizeof *results);
    if (context == NULL || results == NULL) {
        struct ctrt_function_context unused = { .function = function, .user = user };
        if (CTRT_SLOT(function, destroy))
            function->destroy(&unused);
        host_free(context);
        host_free(results);
        return out_of_memory(sizeof *context, "applying a function");
    }
    ctrt_tensor **casts = results + n_out;
    context->function = function;
    context->user = user;
    ctrt_status status = run_forward(context, results, n_out, casts, in, n_in);
    context->phase = IDLE;
    for (int k = 0; k < n_out && status == CTRT_OK; k++)
        if (results[k] == NULL)
            status = ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "forward did not set result %d", k);
    if (status == CTRT_OK && op_needs_grad(casts, n_in))
        status = attach(context, results, n_out, casts, n_in);
    if (context->node == NULL)
        context_free(context);
    for (int k = 0; k < n_out; k++) {
        if (status == CTRT_OK)
            tensor_move(&out[k], results[k]);
        else
            tensor_release(results[k]);
    }
    for (int i = 0; i < n_in; i++)
        tensor_release(casts[i]);
    host_free(results);
    return ctrt_context(status, "%s", function->name);
}
