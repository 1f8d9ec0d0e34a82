/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/redistribute.c: memory of the members, and changes of layouts.
 *
 * In a collective, the members' calls run at the same time, in one thread for each member (workers.c). */
#include "multi.h"

#include <stdio.h>

/* Returns from the calling function after a failure of `member`. */
#define TRY_MEMBER(device, member, expression)                             \
    do {                                                                   \
        const ctrt_status member_status_ = (expression);                   \
        if (member_status_ != CTRT_OK)                                     \
            return multi_member_fails(device, member, member_status_);     \
    } while (0)

/* ---- memory of the members ---- */

void multi_data_release(struct multi_data *data)
{
    for (int m = 0; m < MULTI_MEMBERS && data->parts[m] != NULL; m++)
        ctrt_tensor_release(&data->parts[m]);
    data->state = MULTI_EMPTY;
}

ctrt_status multi_data_lost(const char *what)
{
    return multi_host->fail(CTRT_ERR_STATE, "%s: the tensor was a partial sum and was lost when its all_reduce failed; "
                            "compute it again, or overwrite all of it", what);
}

ctrt_status multi_data_alloc(struct multi_device *device, struct multi_data *data, size_t block_bytes)
{
    const int64_t size = multi_dtype_bytes(data->dtype);
    for (int m = 0; m < device->count; m++) {
        const int64_t bytes = data->state == MULTI_SHARDED ? multi_part_bytes(data, device->count, m)
                                                           : (int64_t)block_bytes;
        const ctrt_status status = ctrt_op_buffer(&data->parts[m], (bytes + size - 1) / size, data->dtype,
                                                  device->members[m]);
        if (status != CTRT_OK) {
            data->parts[m] = NULL;
            multi_member_fails(device, m, status);
            multi_data_release(data);
            return status;
        }
    }
    return CTRT_OK;
}

ctrt_status multi_run(const struct multi_device *device, int member, const ctrt_op_call *call)
{
    const ctrt_status status = ctrt_op_run(call);
    return status == CTRT_OK ? CTRT_OK : multi_member_fails(device, member, status);
}

ctrt_status multi_copy_runs(const struct multi_device *device, int member, struct multi_runs to, struct multi_runs from,
                            int64_t outer, int64_t count_bytes, ctrt_dtype dtype)
{
    const int64_t size = multi_dtype_bytes(dtype);
    if (outer == 0 || count_bytes == 0)
        return CTRT_OK;
    ctrt_operand in = { .tensor = from.tensor, .offset = from.offset }, out = { .tensor = to.tensor,
                                                                               .offset = to.offset };
    in.view = (ctrt_view){ .dtype = (uint8_t)dtype, .ndim = 2, .shape = { outer, count_bytes / size },
                           .strides = { from.outer_stride / size, 1 } };
    out.view = in.view;
    out.view.strides[0] = to.outer_stride / size;
    ctrt_operand *inputs = &in, *outputs = &out;
    return multi_run(device, member, &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = "copy", .key = dtype,
                                                      .device = device->members[member], .inputs = &inputs,
                                                      .outputs = &outputs, .n_inputs = 1, .n_outputs = 1 });
}

/* Sets the first `bytes` bytes of a part to the value. */
static ctrt_status fill_part(const struct multi_device *device, int member, ctrt_tensor *part, ctrt_dtype dtype,
                             int64_t bytes, ctrt_scalar value)
{
    const int64_t count = bytes / multi_dtype_bytes(dtype);
    if (count == 0)
        return CTRT_OK;
    ctrt_operand out = { .tensor = part, .view = { .dtype = (uint8_t)dtype, .ndim = 1, .shape = { count },
                                                   .strides = { 1 } } };
    ctrt_operand *outputs = &out;
    const ctrt_range_attributes attributes = { .size = sizeof attributes, .lo = value, .has_lo = true };
    return multi_run(device, member, &(ctrt_op_call){ .size = sizeof(ctrt_op_call), .op = "fill", .key = dtype,
                                                      .device = device->members[member], .outputs = &outputs,
                                                      .n_outputs = 1, .attributes = &attributes });
}

ctrt_status multi_data_materialize(struct multi_device *device, struct multi_data *data, const struct multi_data *like,
                                   size_t block_bytes)
{
    struct multi_data fresh = *like;
    const bool constant = data->state == MULTI_CONSTANT;
    memset(fresh.parts, 0, sizeof fresh.parts);
    CTRT_TRY(multi_data_alloc(device, &fresh, block_bytes));
    for (int m = 0; m < device->count && constant; m++) {
        const int64_t bytes = fresh.state == MULTI_SHARDED ? multi_part_bytes(&fresh, device->count, m) : data->bytes;
        const ctrt_status status = fill_part(device, m, fresh.parts[m], data->dtype, bytes, data->value);
        if (status != CTRT_OK) {
            multi_data_release(&fresh);
            return status;
        }
    }
    *data = fresh;
    return CTRT_OK;
}

/* ---- collectives ---- */

void multi_comms_release(struct multi_device *device)
{
    multi_workers_end(device->workers);
    device->workers = NULL;
    for (int m = 0; m < device->count; m++)
        ctrt_comm_release(&device->comms[m]);
}

/* Creates the communicators and their threads if there are none. If NCCL is not installed, GPUs use the engine host,
 * whose collectives go through host memory. */
static ctrt_status comms_ready(struct multi_device *device)
{
    if (device->workers != NULL)
        return CTRT_OK;
    ctrt_comm_options options = { .size = sizeof options, .engine = multi_kind.engine, .name = device->name };
    ctrt_status status = ctrt_comm_new_local(device->comms, device->members, device->count, &options);
    if (status == CTRT_ERR_NOT_FOUND && strcmp(multi_kind.engine, "host") != 0) {
        multi_host->log(CTRT_LOG_WARNING, device->name, "the engine host connects the members, because %s",
                        multi_host->message());
        options.engine = "host";
        status = ctrt_comm_new_local(device->comms, device->members, device->count, &options);
    }
    if (status == CTRT_OK)
        status = multi_workers_new(&device->workers, device);
    if (status != CTRT_OK) {
        char message[1024];
        snprintf(message, sizeof message, "%s", multi_host->message());
        multi_comms_release(device);
        return multi_host->fail(status, "%s", message);
    }
    return CTRT_OK;
}

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL };

struct collective_call {
    struct multi_device *device;
    enum collective collective;
    ctrt_tensor *const *out, *const *in;    /* of the members; `in` is not used by ALL_REDUCE */
};

static ctrt_status call_collective(const struct collective_call *call, int m)
{
    ctrt_comm *comm = call->device->comms[m];
    switch (call->collective) {
    case ALL_REDUCE: return ctrt_comm_all_reduce(NULL, comm, call->out[m], CTRT_COMM_SUM);
    case ALL_GATHER: return ctrt_comm_all_gather(NULL, comm, call->out[m], call->in[m]);
    case REDUCE_SCATTER: return ctrt_comm_reduce_scatter(NULL, comm, call->out[m], call->in[m], CTRT_COMM_SUM);
    default: return ctrt_comm_all_to_all(NULL, comm, call->out[m], call->in[m]);
    }
}

/* Makes the call of one member. If it fails, aborts the communicator, because the other members would wait for it. */
static ctrt_status member_collective(void *argument, int member)
{
    const struct collective_call *call = argument;
    const ctrt_status status = call_collective(call, member);
    char message[1024];
    if (status == CTRT_OK)
        return CTRT_OK;
    snprintf(message, sizeof message, "%s", multi_host->message());
    ctrt_comm_abort(call->device->comms[member], message);
    return multi_host->fail(status, "%s", message);
}

/* Runs the collective on the tensors of all members. After a failure the communicators are unusable, so they are
 * released. */
static ctrt_status redistribute_collect(struct multi_device *device, enum collective collective,
                                        ctrt_tensor *const *out, ctrt_tensor *const *in)
{
    char message[1024];
    CTRT_TRY(comms_ready(device));
    struct collective_call call = { device, collective, out, in };
    const ctrt_status status = multi_workers_run(device->workers, member_collective, &call);
    if (status == CTRT_OK)
        return CTRT_OK;
    snprintf(message, sizeof message, "%s", multi_host->message());
    multi_comms_release(device);
    return multi_host->fail(status, "%s", message);
}

/* Sets views[m] to the first `bytes` bytes of parts[m]. */
static ctrt_status heads(ctrt_tensor **views, ctrt_tensor *const *parts, int count, int64_t bytes, ctrt_dtype dtype)
{
    for (int m = 0; m < count; m++)
        CTRT_TRY(ctrt_narrow(&views[m], parts[m], 0, 0, bytes / multi_dtype_bytes(dtype)));
    return CTRT_OK;
}

static void release_all(ctrt_tensor **tensors)
{
    for (int m = 0; m < MULTI_MEMBERS; m++)
        ctrt_tensor_release(&tensors[m]);
}

/* The chunks of a layout in one array [members, outer, chunk, inner], as collectives need them: all chunks have the
 * size of the first one. */
struct chunks {
    int64_t outer, period, run, bytes;      /* sizes in bytes: period of extent * inner, run of one chunk, bytes of all
                                             * chunks of one member; outer: number of periods */
    bool plain;                             /* replicated data has the order of this array already */
};

static struct chunks chunks_of(const struct multi_data *layout, int members)
{
    struct chunks c = { .period = layout->extent * layout->inner };
    c.outer = layout->bytes / c.period;
    c.run = multi_chunk(layout->extent, members, 0).count * layout->inner;
    c.bytes = c.outer * c.run;
    c.plain = c.outer == 1 && layout->extent % members == 0;
    return c;
}

static ctrt_status buffers(ctrt_tensor **out, const struct multi_device *device, int64_t bytes, ctrt_dtype dtype)
{
    for (int m = 0; m < device->count; m++)
        TRY_MEMBER(device, m, ctrt_op_buffer(&out[m], bytes / multi_dtype_bytes(dtype), dtype,
                                             device->members[m]));
    return CTRT_OK;
}

/* Copies, on `member`, the chunks of rank `rank` between the array of chunks and replicated data, in the direction that
 * `to_whole` gives. */
static ctrt_status move_chunk(const struct multi_device *device, int member, const struct multi_data *layout,
                              const struct chunks *c, int rank, ctrt_tensor *array, ctrt_tensor *whole, bool to_whole)
{
    const struct multi_range range = multi_chunk(layout->extent, device->count, rank);
    const struct multi_runs in_array = { array, rank * c->bytes, c->run };
    const struct multi_runs in_whole = { whole, range.start * layout->inner, c->period };
    return multi_copy_runs(device, member, to_whole ? in_whole : in_array, to_whole ? in_array : in_whole, c->outer,
                           range.count * layout->inner, layout->dtype);
}

/* Copies, on `member`, between its part and an array that has only its own chunks, in the direction that `to_part`
 * gives. */
static ctrt_status move_part(const struct multi_device *device, int member, const struct multi_data *layout,
                             const struct chunks *c, ctrt_tensor *array, ctrt_tensor *part, bool to_part)
{
    const int64_t run = multi_chunk(layout->extent, device->count, member).count * layout->inner;
    const struct multi_runs in_array = { array, 0, c->run }, in_part = { part, 0, run };
    return multi_copy_runs(device, member, to_part ? in_part : in_array, to_part ? in_array : in_part, c->outer, run,
                           layout->dtype);
}

/* ---- changes of layouts ---- */

/* Sharded to replicated, by all_gather. `small` and `large`, here and below: [MULTI_MEMBERS], receive temporary tensors
 * of the members, which the caller releases. */
static ctrt_status gather(struct multi_device *device, struct multi_data *to, const struct multi_data *from,
                          ctrt_tensor **small, ctrt_tensor **large)
{
    const int n = device->count;
    const struct chunks c = chunks_of(from, n);
    if (c.plain) {
        CTRT_TRY(heads(large, to->parts, n, from->bytes, from->dtype));
        return redistribute_collect(device, ALL_GATHER, large, from->parts);
    }
    CTRT_TRY(buffers(small, device, c.bytes, from->dtype));
    CTRT_TRY(buffers(large, device, c.bytes * n, from->dtype));
    for (int m = 0; m < n; m++)
        CTRT_TRY(move_part(device, m, from, &c, small[m], from->parts[m], false));
    CTRT_TRY(redistribute_collect(device, ALL_GATHER, large, small));
    for (int m = 0; m < n; m++)
        for (int rank = 0; rank < n; rank++)
            CTRT_TRY(move_chunk(device, m, from, &c, rank, large[m], to->parts[m], true));
    return CTRT_OK;
}

/* Partial to sharded, by reduce_scatter. */
static ctrt_status scatter_sums(struct multi_device *device, struct multi_data *to, const struct multi_data *from,
                                ctrt_tensor **small, ctrt_tensor **large)
{
    const int n = device->count;
    const struct chunks c = chunks_of(to, n);
    if (c.plain) {
        CTRT_TRY(heads(large, from->parts, n, to->bytes, to->dtype));
        return redistribute_collect(device, REDUCE_SCATTER, to->parts, large);
    }
    CTRT_TRY(buffers(small, device, c.bytes, to->dtype));
    CTRT_TRY(buffers(large, device, c.bytes * n, to->dtype));
    for (int m = 0; m < n; m++)
        for (int rank = 0; rank < n; rank++)
            CTRT_TRY(move_chunk(device, m, to, &c, rank, large[m], from->parts[m], false));
    CTRT_TRY(redistribute_collect(device, REDUCE_SCATTER, small, large));
    for (int m = 0; m < n; m++)
        CTRT_TRY(move_part(device, m, to, &c, small[m], to->parts[m], true));
    return CTRT_OK;
}

/* Replicated to sharded: each member copies its part from its own replica. */
static ctrt_status redistribute_cut(const struct multi_device *device, struct multi_data *to,
                                    const struct multi_data *from)
{
    const int64_t period = to->extent * to->inner;
    for (int m = 0; m < device->count; m++) {
        const struct multi_range range = multi_chunk(to->extent, device->count, m);
        const int64_t run = range.count * to->inner;
        CTRT_TRY(multi_copy_runs(device, m, (struct multi_runs){ to->parts[m], 0, run },
                                 (struct multi_runs){ from->parts[m], range.start * to->inner, period },
                                 to->bytes / period, run, to->dtype));
    }
    return CTRT_OK;
}

ctrt_status multi_write_back(struct multi_device *device, struct multi_data *to, const struct multi_data *from)
{
    device->counts.local++;
    return redistribute_cut(device, to, from);
}

/* Returns whether all_to_all can change the layout `from` into `to`: one of them cuts the outermost dimension and the
 * other one a dimension inside of it, and both dimensions are divided evenly. Other changes between sharded layouts go
 * through replicated data. */
static bool exchanges(const struct multi_data *from, const struct multi_data *to, int n)
{
    const struct multi_data *outer = from->inner > to->inner ? from : to, *inner = outer == from ? to : from;
    return from->bytes == to->bytes && outer->extent % n == 0 && inner->extent % n == 0
           && outer->bytes == outer->extent * outer->inner && outer->inner % (inner->extent * inner->inner) == 0;
}

/* Sharded to sharded in another dimension, by all_to_all. Member m sends to member r the elements of its part that
 * belong to part r of the new layout. The bytes of the array are [n, a, b, n, c]. A part is [a, b, n, c] in one of the
 * two layouts and [n, a, b, c] in the other one. */
static ctrt_status exchange(struct multi_device *device, struct multi_data *to, const struct multi_data *from,
                            ctrt_tensor **small, ctrt_tensor **large)
{
    const int n = device->count;
    const bool outward = to->inner > from->inner;       /* `to` cuts the outer dimension */
    const struct multi_data *inner = outward ? from : to;
    const int64_t run = inner->extent / n * inner->inner, rows = from->bytes / n / n / run;
    CTRT_TRY(buffers(small, device, from->bytes / n, from->dtype));
    CTRT_TRY(buffers(large, device, from->bytes / n, from->dtype));
    for (int m = 0; m < n && !outward; m++)
        for (int r = 0; r < n; r++)         /* from [rows, n, run] to [n, rows, run] */
            CTRT_TRY(multi_copy_runs(device, m, (struct multi_runs){ small[m], r * rows * run, run },
                                     (struct multi_runs){ from->parts[m], r * run, n * run }, rows, run, from->dtype));
    if (!outward)
        return redistribute_collect(device, ALL_TO_ALL, to->parts, small);
    CTRT_TRY(redistribute_collect(device, ALL_TO_ALL, large, from->parts));
    for (int m = 0; m < n; m++)
        for (int r = 0; r < n; r++)
            CTRT_TRY(multi_copy_runs(device, m, (struct multi_runs){ to->parts[m], r * run, n * run },
                                     (struct multi_runs){ large[m], r * rows * run, run }, rows, run, from->dtype));
    return CTRT_OK;
}

static ctrt_status redistribute(struct multi_device *device, struct multi_data *to, struct multi_data *from,
                                size_t block_bytes, ctrt_tensor **small, ctrt_tensor **large)
{
    if (from->state == MULTI_PARTIAL && to->state == MULTI_SHARDED) {
        device->counts.reduce_scatter++;
        return scatter_sums(device, to, from, small, large);
    }
    if (from->state == MULTI_SHARDED && to->state == MULTI_REPLICATED) {
        device->counts.all_gather++;
        return gather(device, to, from, small, large);
    }
    if (from->state == MULTI_REPLICATED && to->state == MULTI_SHARDED) {
        device->counts.local++;
        return redistribute_cut(device, to, from);
    }
    if (from->state == MULTI_SHARDED && exchanges(from, to, device->count)) {
        device->counts.all_to_all++;
        return exchange(device, to, from, small, large);
    }
    if (from->state != MULTI_SHARDED || to->state != MULTI_SHARDED)
        return multi_host->fail(CTRT_ERR_INTERNAL, "%s: a redistribution from state %d to %d", multi_kind.name,
                                (int)from->state, (int)to->state);
    struct multi_data whole = { .state = MULTI_REPLICATED, .dtype = from->dtype, .bytes = from->bytes };
    CTRT_TRY(multi_data_alloc(device, &whole, block_bytes));
    device->counts.all_gather++;
    ctrt_status status = gather(device, &whole, from, small, large);
    if (status == CTRT_OK)
        status = redistribute_cut(device, to, &whole);
    multi_data_release(&whole);
    return status;
}

ctrt_status multi_data_to(struct multi_device *device, struct multi_data *to, struct multi_data *from,
                          const struct multi_data *like, size_t block_bytes)
{
    ctrt_tensor *small[MULTI_MEMBERS] = { NULL }, *large[MULTI_MEMBERS] = { NULL };
    if (from->state == MULTI_LOST)
        return multi_data_lost(multi_kind.name);
    *to = *like;
    memset(to->parts, 0, sizeof to->parts);
    to->dtype = from->dtype;
    to->bytes = like->state == MULTI_SHARDED ? like->bytes : from->bytes;
    CTRT_TRY(multi_data_alloc(device, to, block_bytes));
    const ctrt_status status = redistribute(device, to, from, block_bytes, small, large);
    release_all(small);
    release_all(large);
    if (status != CTRT_OK)
        multi_data_release(to);
    return status;
}

/* Partial to replicated, by all_reduce in place. If it fails, some members may have the sum already and others their
 * addend, so the values are lost. They are kept if the communicators cannot be created. */
static ctrt_status redistribute_add_up(struct multi_device *device, struct multi_data *data)
{
    if (device->count > 1) {
        CTRT_TRY(comms_ready(device));
        device->counts.all_reduce++;
        const ctrt_status status = redistribute_collect(device, ALL_REDUCE, data->parts, NULL);
        if (status != CTRT_OK) {
            multi_data_release(data);
            data->state = MULTI_LOST;
            return status;
        }
    }
    data->state = MULTI_REPLICATED;
    return CTRT_OK;
}

ctrt_status multi_replicate(struct multi_device *device, struct multi_block *block)
{
    struct multi_data *data = &block->data;
    if (data->state == MULTI_REPLICATED)
        return CTRT_OK;
    const struct multi_data like = { .state = MULTI_REPLICATED, .dtype = data->dtype != 0 ? data->dtype : CTRT_U8,
                                     .bytes = data->state == MULTI_EMPTY ? 0 : data->bytes };
    if (data->state == MULTI_EMPTY || data->state == MULTI_CONSTANT)
        return multi_data_materialize(device, data, &like, block->bytes);
    if (data->state == MULTI_LOST)
        return multi_data_lost(multi_kind.name);
    if (data->state == MULTI_PARTIAL)
        return redistribute_add_up(device, data);
    struct multi_data to;
    CTRT_TRY(multi_data_to(device, &to, data, &like, block->bytes));
    multi_data_release(data);
    *data = to;
    return CTRT_OK;
}
