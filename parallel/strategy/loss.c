/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/loss.c: how the loss of a part of a batch enters that of the whole batch.
 *
 * The graph of the loss, as far as the loss function has recorded it, is followed from the module's output to the loss.
 * Each result is one of: values of rows; a sum of terms that are reduced over the rows (means, sums, fractions) or that
 * do not depend on the rows; or something else, which no number of parts gives right. A fraction that ends the
 * reduction was listed by loss_fraction (ops/composite.c). */
#include "parallel/strategy/loss.h"

#include <math.h>

#include "autograd/autograd_meta.h"
#include "base/base.h"
#include "base/ptr_map.h"
#include "base/stack.h"
#include "ops/op_common.h"

/* Terms of a result that is reduced over the rows. */
enum { TERM_FIXED = 1, TERM_MEAN = 2, TERM_SUM = 4, TERM_FRACTION = 8 };    /* FRACTION << k: fraction k */

struct loss_state {
    bool rows;                              /* the result has values of rows; else see `terms` */
    int dim;                                /* the dimension of the rows; -1: unknown */
    uint32_t terms;                         /* set of TERM_...; 0: no such sum, because of `why` */
    const char *why;                        /* name of an op */
};

struct loss_visit {                              /* item of the table */
    const struct grad_node *node;
    struct loss_state state;
};

struct loss_search {
    const struct loss_parts *parts;
    const ctrt_tensor *output;
    uint64_t mark;
    int64_t elements;                       /* of the newest sum over the rows */
    struct ptr_map seen;
};

static const struct loss_state fixed = { .terms = TERM_FIXED };

static struct loss_state refused(const char *op)
{
    return (struct loss_state){ .why = op };
}

static const struct op_node *as_op(const struct grad_node *node)
{
    return node->class == &op_node_class ? (const struct op_node *)node : NULL;
}

/* ---- ops on values of rows ---- */

/* The dimension of a reshaped result that begins with dimension `dim` of the input; -1: none. */
static int dim_reshaped(const struct grad_want *from, int dim, const struct grad_shape *to)
{
    int64_t before = 1, here = 1;
    for (int d = 0; d < dim; d++)
        before *= from->shape[d];
    for (int d = 0; d < to->ndim; here *= to->shape[d++])
        if (here == before && to->shape[d] >= from->shape[dim] && from->shape[dim] > 0
            && to->shape[d] % from->shape[dim] == 0)
            return d;
    return -1;
}

static struct loss_state reduced_rows(const struct op_node *node, const struct grad_want *from, int dim)
{
    const uint32_t dims = node->attributes.reduce.dims, all = from->ndim >= 32 ? UINT32_MAX : (1u << from->ndim) - 1;
    if (from->ndim > 0 && (dims & all) != all && (dim < 0 || !(dims >> dim & 1))) {
        for (int d = dim - 1; d >= 0 && !node->attributes.reduce.keepdim; d--)
            dim -= dims >> d & 1;
        return (struct loss_state){ .rows = true, .dim = dim };
    }
    if (node->op == OP_mean)
        return (struct loss_state){ .terms = TERM_MEAN };
    return node->op == OP_sum ? (struct loss_state){ .terms = TERM_SUM } : refused(op_table[node->op].name);
}

/* `i`: an operand with values of rows, whose dimension is `dim`. */
static struct loss_state rows_state(const struct grad_node *node, uint32_t i, int dim)
{
    const struct op_node *op = as_op(node);
    const struct grad_shape *to = &node->shapes[0];
    const struct grad_want from = edge_want(&node->edges[i]);
    struct loss_state next = { .rows = true, .dim = -1 };
    if (op == NULL)                         /* a function of the program: one result for all rows, or values of rows */
        return to->ndim == 0 ? refused(node->class->name(node)) : (struct loss_state){ .rows = true, .dim = 0 };
    const bool same_dim = op->attributes.slice.dim == dim;
    switch (op->op) {
    case OP_sum: case OP_mean: case OP_prod: case OP_amax: case OP_amin: case OP_var:
        return reduced_rows(op, &from, dim);
    case OP_view:
        next.dim = dim < 0 ? -1 : dim_reshaped(&from, dim, to);
        return next;
    case OP_permute:
        for (int d = 0; d < to->ndim; d++)
            next.dim = op->attributes.permute.dims[d] == dim ? d : next.dim;
        return next;
    case OP_select:
        next.dim = dim > op->attributes.slice.dim ? dim - 1 : dim;
        return same_dim ? refused("select") : next;
    case OP_slice:
        next.dim = dim;
        return same_dim && to->shape[dim] != from.shape[dim] ? refused("slice") : next;
    case OP_softmax: case OP_log_softmax:
        next.dim = dim;
        return op->attributes.dim.dim == dim ? refused(op_table[op->op].name) : next;
    case OP_index_select: case OP_gather: case OP_index_add: case OP_scatter_add:
        next.dim = dim;
        return op->attributes.index.dim == dim ? refused(op_table[op->op].name) : next;
    case OP_batch_norm:
        return op->attributes.norm.training ? refused("batch_norm") : (struct loss_state){ .rows = true, .dim = dim };
    case OP_matmul: case OP_linear:
        if (dim >= 0 && dim == (i == 1 && op->op == OP_matmul && from.ndim > 1 ? from.ndim - 2 : from.ndim - 1))
            return refused(op_table[op->op].name);      /* a sum over the rows */
        next.dim = dim;
        return next;
    case OP_cross_entropy:
        next.dim = dim == 0 ? 0 : -1;
        return next;
    default:
        next.dim = dim < 0 ? -1 : dim + to->ndim - from.ndim;
        return next;
    }
}

/* ---- ops on reduced results ---- */

static bool is_factor(const struct op_node *node)
{
    for (int i = 0; i < node->n_saved; i++)
        if (!node->saved[i].output && node->saved[i].tensor->flags & TENSOR_LOSS_FACTOR)
            return true;
    return false;
}

/* `terms`: of the operands; `dependent`: number of operands that depend on the rows. */
static struct loss_state terms_state(const struct grad_node *node, uint32_t terms, int dependent)
{
    const struct op_node *op = as_op(node);
    if (op == NULL)
        return refused(node->class->name(node));
    const bool number = op->has_attributes && node->n_in == 1;
    const bool tensor = !number && node->n_in == 2 && (node->edges[0].to == NULL || node->edges[1].to == NULL);
    const uint32_t reduced = terms & ~(uint32_t)TERM_FIXED;
    switch (op->op) {
    case OP_neg: case OP_copy: case OP_to: case OP_view: case OP_expand: case OP_permute: case OP_select: case OP_slice:
    case OP_cat: case OP_sum: case OP_mean:
        return (struct loss_state){ .terms = terms };
    case OP_add: case OP_sub:
        return (struct loss_state){ .terms = terms | (number || tensor ? TERM_FIXED : 0) };
    case OP_mul:
        if (number || (tensor && is_factor(op)))
            return (struct loss_state){ .terms = terms };
        return dependent == 1 && !tensor ? (struct loss_state){ .terms = reduced } : refused("mul");
    case OP_div:
        if (number && !op->attributes.scalar.left)
            return (struct loss_state){ .terms = terms };
        return refused("div");
    default:
        return refused(op_table[op->op].name);
    }
}

/* A sum times a number is a sum. Warns if the number is the size of this part, because it would be another number with
 * other parts. */
static void divisor_check(const struct loss_search *search, const struct grad_node *node,
                          const struct loss_state *state)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const struct op_node *op = as_op(node);
    if (state->rows || !(state->terms & TERM_SUM) || !op->has_attributes || (op->op != OP_div && op->op != OP_mul))
        return;
    const ctrt_scalar value = op->attributes.scalar.value;
    const double number = value.kind == CTRT_SCALAR_FLOAT ? value.f : (double)value.i;
    const double divisor = op->op == OP_div ? number : 1 / number, rows = (double)search->parts->rows;
    const bool is_size = fabs(divisor - rows) < 1e-6 * rows
                         || fabs(divisor - (double)search->elements) < 1e-6 * (double)search->elements;
    if (rows < 2 || !is_size || atomic_flag_test_and_set(&warned))
        return;
    log_message(CTRT_LOG_WARNING, "parallel", "the loss of a part of the batch is a sum divided by %.9g, the number of "
                "%s of this part; if the loss function reads this number from a shape, the loss of the batch is the "
                "sum of the means of the parts, not the mean: use ctrt_mean, or ctrt_loss_fraction", divisor,
                fabs(divisor - rows) < 1e-6 * rows ? "rows" : "elements");
}

/* ---- the search ---- */

static ctrt_status node_state(struct loss_state *out, struct loss_search *search, struct grad_node *node);

static ctrt_status edge_state(struct loss_state *out, struct loss_search *search, const struct grad_edge *edge)
{
    *out = fixed;
    if (edge->to == NULL)
        return CTRT_OK;
    if (!edge_is_leaf(edge))
        return node_state(out, search, edge_node(edge));
    if (edge_leaf(edge) != search->output)
        return loss_leaf_check(edge_leaf(edge));
    *out = (struct loss_state){ .rows = true };
    return CTRT_OK;
}

/* The operands of a node that have values of rows. */
struct row_operands {
    int count;
    uint32_t first;                         /* an operand whose dimension is known, if there is one */
    int dim, from_end;                      /* its dimension of the rows; that minus its number of dimensions */
    bool apart;                             /* another one has its rows elsewhere */
};

static void row_operand_add(struct row_operands *rows, const struct grad_node *node, uint32_t i, int dim)
{
    const int from_end = dim - edge_want(&node->edges[i]).ndim;
    if (rows->count > 0 && rows->dim >= 0 && dim >= 0 && from_end != rows->from_end)
        rows->apart = true;
    if (rows->count == 0 || rows->dim < 0) {
        rows->first = i;
        rows->dim = dim;
        rows->from_end = from_end;
    }
    rows->count++;
}

/* Whether each row of the result depends on one row only, if the op computes its rows one by one. */
static bool row_by_row(const struct grad_node *node, const struct row_operands *rows)
{
    const struct op_node *op = as_op(node);
    if (rows->apart)                        /* for example differences of each row and each other one */
        return false;
    if (op == NULL)
        return true;
    if ((op->op == OP_matmul || op->op == OP_linear) && rows->count > 1)
        return rows->dim >= 0 && rows->from_end < -2;   /* the rows are batches of matrices */
    return op->op != OP_cat || op->attributes.dim.dim != rows->dim || rows->count == (int)node->n_in;
}

static ctrt_status operands_state(struct loss_state *out, struct loss_search *search, struct grad_node *node)
{
    struct row_operands rows = { .dim = -1 };
    uint32_t terms = 0;
    int dependent = 0;
    for (uint32_t i = 0; i < node->n_in; i++) {
        struct loss_state here;
        if (node->edges[i].to == NULL)
            continue;
        CTRT_TRY(edge_state(&here, search, &node->edges[i]));
        if (!here.rows && here.terms == 0) {
            *out = here;
            return CTRT_OK;
        }
        if (here.rows)
            row_operand_add(&rows, node, i, here.dim);
        terms |= here.terms;
        dependent += here.rows || here.terms != TERM_FIXED;
    }
    if (dependent == 0)
        *out = fixed;
    else if (rows.count > 0 && (terms & ~(uint32_t)TERM_FIXED || !row_by_row(node, &rows)))
        *out = refused(node->class->name(node));
    else
        *out = rows.count > 0 ? rows_state(node, rows.first, rows.dim) : terms_state(node, terms, dependent);
    if (rows.count > 0 && out->terms == TERM_SUM) {
        const struct grad_want from = edge_want(&node->edges[rows.first]);
        search->elements = shape_numel(from.shape, from.ndim);
    }
    return CTRT_OK;
}

static ctrt_status node_state(struct loss_state *out, struct loss_search *search, struct grad_node *node)
{
    CTRT_TRY(stack_check("the loss"));
    if (node->sequence <= search->mark) {   /* of the forward pass */
        *out = (struct loss_state){ .rows = true };
        return CTRT_OK;
    }
    for (int k = 0; k < search->parts->count; k++)
        if (search->parts->list[k].node == node) {
            CTRT_TRY(operands_state(out, search, node));        /* checks the leaves */
            *out = (struct loss_state){ .terms = TERM_FRACTION << k };
            return CTRT_OK;
        }
    struct loss_visit *visit = ptr_map_find(&search->seen, node, sizeof *visit);
    if (visit != NULL) {
        *out = visit->state;
        return CTRT_OK;
    }
    CTRT_TRY(operands_state(out, search, node));
    divisor_check(search, node, out);
    visit = ptr_map_add(&search->seen, node, sizeof *visit);
    if (visit == NULL)
        return out_of_memory(sizeof *visit, "the search of a loss");
    visit->state = *out;
    return CTRT_OK;
}

/* ---- results ---- */

#define REMEDY "for the gradient of the whole batch, return a mean or sum over the rows, or ctrt_loss_fraction(sum, " \
               "weight), times numbers; or run the batch in one part (strategy single)"

/* The fractions of a set of terms. */
struct fraction_terms {
    int count;
    const struct loss_fraction *first;
    bool one_weight;                        /* they have one weight: the same tensor */
    bool full;                              /* all are */
};

static struct fraction_terms fractions(const struct loss_parts *parts, uint32_t terms)
{
    struct fraction_terms found = { .one_weight = true, .full = true };
    for (int k = 0; k < parts->count; k++) {
        const struct loss_fraction *here = &parts->list[k];
        if (!(terms & TERM_FRACTION << k))
            continue;
        found.first = found.count++ == 0 ? here : found.first;
        found.one_weight &= here->source == found.first->source && here->per_row == found.first->per_row;
        found.full &= here->full;
    }
    return found;
}

/* The fractions count as means, because their weight is a number unless targets are ignored. If some are, the loss
 * becomes NaN: the host cannot look at the targets without waiting for the device. */
static ctrt_status guard(ctrt_tensor **value, const struct loss_parts *parts, uint32_t terms)
{
    CTRT_AUTO(tensor) wrong = NULL, factor = NULL;
    ctrt_status status = CTRT_OK;
    for (int k = 0; k < parts->count && status == CTRT_OK; k++) {
        CTRT_AUTO(tensor) here = NULL;
        if (!(terms & TERM_FRACTION << k))
            continue;
        const double number = (double)(parts->list[k].per_row * parts->rows);
        status = ctrt_ne_scalar(&here, parts->list[k].weight, ctrt_float(number));
        if (status == CTRT_OK && wrong != NULL)
            status = ctrt_logical_or(&here, here, wrong);
        ctrt_tensor_assign(&wrong, here);
    }
    if (status == CTRT_OK)
        status = ctrt_full(&factor, CTRT_SCALAR_SHAPE, ctrt_float(1), tensor_dtype(*value), (*value)->device);
    if (status == CTRT_OK)
        status = ctrt_masked_fill(&factor, factor, wrong, ctrt_float(NAN));
    CTRT_TRY(status);
    const bool was = ctrt_set_grad_enabled(true);
    status = ctrt_mul(value, *value, factor);
    ctrt_set_grad_enabled(was);
    return status;
}

static ctrt_status terms_apply(ctrt_tensor **value, ctrt_loss_part *part, const struct loss_parts *parts,
                               uint32_t terms)
{
    const uint32_t means = TERM_FIXED | TERM_MEAN;
    const struct fraction_terms found = fractions(parts, terms);
    const int count = found.count;
    part->kind = CTRT_LOSS_MEAN;
    if ((terms & ~means) == 0)
        return CTRT_OK;
    if (terms == TERM_SUM) {
        part->kind = CTRT_LOSS_SUM;
        part->per_row = 1;
        return ctrt_div_scalar(value, *value, ctrt_float((double)MAX(parts->rows, 1)));
    }
    if (count > 0 && (terms & (means | TERM_SUM)) == 0 && found.one_weight) {
        part->kind = CTRT_LOSS_FRACTION;
        part->per_row = (double)found.first->per_row;
        part->weight = ctrt_tensor_retain(found.first->weight);
        return CTRT_OK;
    }
    if (!(terms & TERM_SUM) && found.full) {
        ctrt_status status;
        ctrt_no_grad status = guard(value, parts, terms);
        return status;
    }
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the loss adds terms that are divided by different numbers (%s%s%s%s), "
                     "which is not supported for parts of a batch; give them one divisor, by ctrt_loss_fraction with "
                     "the same weight (multiply a term that does not depend on the rows by this weight and add it to "
                     "the sum), take sums and multiply them by numbers that are known before the step, or use the "
                     "strategy single",
                     count == 0 ? "" : count == 1 ? "a fraction or cross entropy"
                                                  : "several fractions or cross entropies",
                     terms & TERM_SUM ? (count > 0 ? ", a sum" : "a sum") : "", terms & TERM_MEAN ? ", a mean" : "",
                     terms & TERM_FIXED ? ", a term that does not depend on the rows" : "");
}

/* Finds out how *value, the loss of a part, depends on the rows, and what the strategy has to do with it. `mark`:
 * number of the thread's newest graph node before the loss function ran. `output`: of the module. *value is replaced
 * where that is needed. */
static ctrt_status loss_classify(ctrt_tensor **value, ctrt_loss_part *part, ctrt_tensor *output,
                                 const struct loss_parts *parts, uint64_t mark)
{
    struct loss_search search = { .parts = parts, .output = output, .mark = mark };
    struct loss_state state;
    CTRT_TRY(grad_refresh(*value));
    struct grad_edge edge = grad_edge_to(*value);
    const ctrt_status status = edge_state(&state, &search, &edge);
    edge_release(&edge);
    host_free(search.seen.items);
    CTRT_TRY(status);
    if (state.rows && parts->rows == 1)     /* the value of one row is its mean */
        state = (struct loss_state){ .terms = TERM_MEAN };
    if (state.rows)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "it is not known how the loss is reduced over the rows; " REMEDY);
    if (state.terms == 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the op \"%s\" of the loss function makes the loss of the batch "
                         "another function of the rows than a sum over the parts; " REMEDY, state.why);
    return terms_apply(value, part, parts, state.terms);
}

/* ---- the loss of a part ---- */

static ctrt_status loss_check(const ctrt_tensor *loss)
{
    if (loss == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the loss function succeeded without a result");
    if (!dtype_floating(tensor_dtype(loss)))
        return ctrt_fail(CTRT_ERR_DTYPE, "the loss has dtype %s, expected a floating type, because integers have no "
                         "gradient", ctrt_dtype_name(tensor_dtype(loss)));
    if (ctrt_tensor_numel(loss) != 1)
        return ctrt_fail(CTRT_ERR_SHAPE, "the loss has %lld elements, expected 1; take the mean over rows",
                         (long long)ctrt_tensor_numel(loss));
    return CTRT_OK;
}

ctrt_status ctrt_part_loss(ctrt_tensor **loss, ctrt_loss_part *part, ctrt_tensor *output, ctrt_tensor *const *inputs,
                           const ctrt_strategy_batch *batch, int64_t rows)
{
    CTRT_AUTO(tensor) value = NULL;
    NULL_CHECKS("part_loss", loss, part, output, batch, inputs);
    struct loss_parts parts = { .rows = rows }, *before = thread_state.loss_parts;
    ctrt_device *outer = thread_state.loss_device;
    const bool alone = rows == batch->rows && batch->partial == 0;
    const uint64_t mark = autograd_here()->sequence;
    ctrt_tensor_release(&part->weight);
    *part = (ctrt_loss_part){ .kind = CTRT_LOSS_MEAN, .parts = 1, .per_row = 1 };
    thread_state.loss_parts = alone ? NULL : &parts;
    thread_state.loss_device = output->device;
    ctrt_status status = batch->loss(&value, output, inputs, batch->count, batch->user);
    status = ctrt_context(loss_remedy(status), "loss");
    thread_state.loss_device = outer;
    thread_state.loss_parts = before;
    if (status == CTRT_OK)
        status = loss_check(value);
    if (status == CTRT_OK && !alone)
        status = ctrt_context(loss_classify(&value, part, output, &parts, mark), "loss");
    for (int k = 0; k < parts.count; k++) {
        autograd_history_release(parts.list[k].node);
        ctrt_tensor_release(&parts.list[k].source);
        ctrt_tensor_release(&parts.list[k].weight);
    }
    if (status == CTRT_OK)
        ctrt_tensor_assign(loss, value);
    return status;
}

void ctrt_loss_part_release(ctrt_loss_part *part)
{
    if (part != NULL)
        ctrt_tensor_release(&part->weight);
}

ctrt_status ctrt_loss_part_add(ctrt_loss_part *total, ctrt_loss_part *part)
{
    ctrt_status status = CTRT_OK;
    NULL_CHECKS("loss_part_add", total, part);
    if (part->parts == 0)
        return CTRT_OK;
    if (total->parts > 0 && (total->kind != part->kind || total->per_row != part->per_row)) {
        static const char *const kinds[] = { "a mean", "a sum", "a fraction" };
        return ctrt_fail(CTRT_ERR_STATE, "the loss function has returned %s for some rows and %s for others%s",
                         kinds[total->kind], kinds[part->kind],
                         total->kind == part->kind ? ", with another number of terms per row" : "");
    }
    if (total->parts == 0 || total->weight == NULL || part->weight == NULL) {
        ctrt_tensor *weight = total->weight != NULL ? total->weight : part->weight;
        const int32_t parts = total->parts;
        *total = *part;
        total->weight = weight;
        total->parts += parts;
        part->weight = NULL;
        part->parts = 0;
        return CTRT_OK;
    }
    ctrt_no_grad {
        CTRT_AUTO(tensor) here = NULL;
        status = ctrt_to_device(&here, part->weight, ctrt_tensor_device(total->weight));
        if (status == CTRT_OK)
            status = ctrt_add(&total->weight, total->weight, here);
    }
    CTRT_TRY(status);
    total->parts += part->parts;
    ctrt_tensor_release(&part->weight);
    part->parts = 0;
    return CTRT_OK;
}
