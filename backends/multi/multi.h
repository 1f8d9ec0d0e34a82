/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/multi.h: internal declarations of the backends sim-multi and nccl-multi: logical devices, each
 * of which distributes its tensors over several devices of another backend, its members.
 *
 *   plugin.c        the component; compiled once for each of the two backends
 *   list.c          which devices are the members of each logical device
 *   device.c        opening and closing
 *   blocks.c        logical addresses
 *   layout.c        arithmetic of layouts: which dimension of a view is the sharded one, and the members' views
 *   redistribute.c  changes of layouts, with communicators
 *   rules.c         which dimensions of an op's operands may be sharded
 *   plan.c          chooses the layout in which a call runs
 *   kernel.c        runs a call on the members
 *   workers.c       threads for the members' calls of collectives
 *   memory.c        copies of bytes: between a block and the host, on a device, and between two logical devices
 *
 * A block of a logical device is a range of logical addresses, at which no memory is mapped. Its bytes are in tensors
 * of the members, `parts`, which are allocated when the block is first written. Layouts are described in bytes, so they
 * do not depend on the views of the block. */
#ifndef CTRT_MULTI_H
#define CTRT_MULTI_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "ctrt/comm.h"
#include "ctrt/layout.h"
#include "ctrt/op_plugin.h"
#include "ctrt/plugin.h"

#define MULTI_DEVICES  16               /* most logical devices */
#define MULTI_MEMBERS  16               /* most members of a device */
#define MULTI_OPERANDS 16               /* most operands of one call, except steps of optimizers */

/* What distinguishes the two backends; defined in plugin.c. */
struct multi_kind {
    const char *name, *base, *engine;   /* "sim-multi", "sim", "host" */
    const ctrt_param *members;          /* CTRT_SIM_MULTI */
};
extern const struct multi_kind multi_kind;
extern const ctrt_host *multi_host;

/* ---- data of blocks ---- */

enum multi_state {
    MULTI_EMPTY,                        /* no values; no parts */
    MULTI_CONSTANT,                     /* every element is `value`; no parts */
    MULTI_REPLICATED, MULTI_SHARDED, MULTI_PARTIAL,
    MULTI_LOST                          /* an all_reduce of the addends failed; no parts */
};

/* Bytes that are distributed over the members. SHARDED: the bytes are a contiguous array [outer, extent, inner bytes],
 * and the index along `extent` is cut into chunks of ceil(extent / members). Part m is [outer, its chunk, inner]. */
struct multi_data {
    enum multi_state state;
    ctrt_dtype dtype;                   /* of the parts and of `value` */
    int64_t bytes;                      /* the block was written at most up to here; SHARDED: the parts have only
                                         * these bytes */
    int64_t extent, inner;
    ctrt_scalar value;
    ctrt_tensor *parts[MULTI_MEMBERS];
};

struct multi_block {
    char *address;
    size_t bytes;
    bool kept;                          /* the program has set the layout, so ops must not change it */
    struct multi_data data;
};

struct multi_device {
    char name[64];                      /* "sim-multi:0" */
    int index;
    int count;                          /* members */
    char names[MULTI_MEMBERS][64];
    ctrt_device *members[MULTI_MEMBERS];
    atomic_bool open;                   /* the members are open */
    ctrt_comm *comms[MULTI_MEMBERS];    /* created when first needed, with `workers` */
    struct multi_workers *workers;
    pthread_mutex_t lock;               /* held while a call runs; guards the data of all blocks, and `counts` */
    ctrt_layout_counts counts;
    const char *logged[128];            /* ops whose fallbacks have been logged */
};

/* Lock and unlock device->lock. The thread cannot be cancelled while it holds the lock. multi_enter returns the cancel
 * state that multi_leave restores. */
int multi_enter(struct multi_device *device);
void multi_leave(struct multi_device *device, int cancel_state);

extern const ctrt_device_table multi_device_table;
extern const ctrt_memory_table multi_memory_table;
extern const ctrt_queue_table multi_queue_table;
extern const ctrt_layout_table multi_layout_table;
extern ctrt_kernel_table multi_kernel_table;

/* Opens the members if they are not open yet. Thread-safe; takes the lock. */
ctrt_status multi_members_open(struct multi_device *device);
/* Adds "member 1 (sim:1)" to the thread's error message and returns `status`. */
ctrt_status multi_member_fails(const struct multi_device *device, int member, ctrt_status status);

/* ---- list.c ---- */

struct multi_list {
    int count;                          /* logical devices */
    struct multi_members {
        int count;
        char names[MULTI_MEMBERS][64];
    } devices[MULTI_DEVICES];
};
/* Reads the members of all logical devices. CTRT_ERR_INVALID_ARGUMENT for a malformed list; it is not checked that the
 * members exist. */
ctrt_status multi_list_read(struct multi_list *list);

/* ---- blocks.c ---- */

ctrt_status multi_alloc(void *device, void **address, size_t bytes);
void multi_free(void *device, void *address, size_t bytes);
/* Returns the block that contains the address, or NULL. Thread-safe, without a lock. */
struct multi_block *multi_block_of(const void *address);

/* ---- layout.c ---- */

extern uint8_t multi_sizes[256];        /* bytes of an element, by dtype; 0: unknown */
static inline int64_t multi_dtype_bytes(uint32_t dtype)
{
    return multi_sizes[dtype & 255];
}

/* A dimension of size n that is sharded: `groups` equal groups, each cut into chunks. */
struct multi_split {
    int64_t n, groups;
};

/* A range of indices. */
struct multi_range {
    int64_t start, count;
};
/* Returns the range of the n indices of a dimension that the member has. */
struct multi_range multi_chunk(int64_t n, int members, int member);
/* Size of a split dimension on a member. */
static inline int64_t multi_split_count(struct multi_split split, int members, int member)
{
    return split.groups * multi_chunk(split.n / split.groups, members, member).count;
}

/* Bytes of part `member` of the data. */
int64_t multi_part_bytes(const struct multi_data *data, int members, int member);
/* Returns the dimension of the view along which SHARDED data is cut, or -1 if the view has no such dimension. *split
 * receives how the dimension is cut. `offset`: bytes from the beginning of the data to the view. */
int multi_match(struct multi_split *split, const struct multi_data *data, const ctrt_view *view, int64_t offset,
                int members);
/* Returns whether the view contains each written byte of the block exactly once, and is large enough to be the whole
 * tensor for which the block was allocated. */
bool multi_covers(const struct multi_data *data, const ctrt_view *view, int64_t offset, size_t block_bytes);
/* Records a write to the view: increases data->bytes to the end of the view if it is smaller. */
void multi_note_write(struct multi_data *data, const ctrt_view *view, int64_t offset);
/* Sets data->bytes, extent and inner so that dimension `dim` of the view is sharded. Returns false, with the data
 * unchanged, if that is impossible. It is possible only for a dense view of the whole block, or for CONSTANT data. */
bool multi_describe(struct multi_data *data, const ctrt_view *view, int64_t offset, size_t block_bytes, int dim,
                    struct multi_split split, int members);
/* Writes the member's view of the data to `out`: its tensor, offset, shape and strides. `dim`: the dimension that is
 * cut, as `split` describes; -1: none. If the data is SHARDED, `dim` must be the result of multi_match. */
void multi_local(ctrt_operand *out, const struct multi_data *data, const ctrt_view *view, int64_t offset, int dim,
                 struct multi_split split, int members, int member);

/* ---- redistribute.c ---- */

/* Releases the parts; the data is EMPTY then. */
void multi_data_release(struct multi_data *data);
/* Allocates the parts for data->state, dtype, bytes, extent and inner. A part of REPLICATED or PARTIAL data has
 * `block_bytes` bytes. On failure the data has no parts. */
ctrt_status multi_data_alloc(struct multi_device *device, struct multi_data *data, size_t block_bytes);
/* Allocates parts for EMPTY or CONSTANT data and fills them with the constant. The data gets state, dtype, bytes,
 * extent and inner of `like`. On failure the data is unchanged. */
ctrt_status multi_data_materialize(struct multi_device *device, struct multi_data *data, const struct multi_data *like,
                                   size_t block_bytes);
/* Redistributes `from` into the new data `to`, which is REPLICATED, or SHARDED with the layout of `like`. On failure
 * `to` has no parts. */
ctrt_status multi_data_to(struct multi_device *device, struct multi_data *to, struct multi_data *from,
                          const struct multi_data *like, size_t block_bytes);
/* Releases the communicators and ends their threads; the next collective creates them again. */
void multi_comms_release(struct multi_device *device);
/* Makes the block replicated. Its values stay the same. Partial sums are added in place, so they are lost if their
 * all_reduce fails on a member (MULTI_LOST). */
ctrt_status multi_replicate(struct multi_device *device, struct multi_block *block);
/* Reports that the data is LOST. `what`: the op or copy that requires it. */
ctrt_status multi_data_lost(const char *what);
/* Copies the elements of REPLICATED data `from` to SHARDED data `to`. */
ctrt_status multi_write_back(struct multi_device *device, struct multi_data *to, const struct multi_data *from);
/* Runs an op on the member; adds the member to the message of an error. */
ctrt_status multi_run(const struct multi_device *device, int member, const ctrt_op_call *call);
/* Runs of adjacent bytes in a tensor of a member. */
struct multi_runs {
    ctrt_tensor *tensor;
    int64_t offset, outer_stride;       /* bytes: to the first run; from one run to the next one */
};
/* Copies `outer` runs of `count_bytes` bytes between two tensors of the member. */
ctrt_status multi_copy_runs(const struct multi_device *device, int member, struct multi_runs to, struct multi_runs from,
                            int64_t outer, int64_t count_bytes, ctrt_dtype dtype);

/* ---- workers.c ---- */

/* Starts a thread for each member but the first. On success *out owns them. */
ctrt_status multi_workers_new(struct multi_workers **out, struct multi_device *device);
/* Ends the threads. NULL is allowed. */
void multi_workers_end(struct multi_workers *workers);
/* Calls the function for all members at the same time, each on the caller's current stream of the member, and waits
 * until all calls have returned. If calls fail, returns the error that names the member with the original failure; the
 * other calls may have failed only because of it. */
ctrt_status multi_workers_run(struct multi_workers *workers, ctrt_status (*function)(void *argument, int member),
                              void *argument);

/* ---- rules.c ---- */

enum {                                  /* multi_rule.flags */
    MULTI_BY_DIM = 1,                   /* dimension d of every operand has one letter; `operands` is NULL */
    MULTI_REDUCES = 2,                  /* the op is a reduction; its attributes have the reduced dimensions */
    MULTI_SUMS = 4,                     /* a dimension that an output lacks is summed over */
    MULTI_BIAS = 8,                     /* input 2 is added on one member only, so that the sum contains it once */
    MULTI_LINEAR = 16,                  /* partial inputs (mul, div: one, and host scalars) give a partial output */
    MULTI_MEAN = 32,                    /* partial results are weighted by the members' numbers of elements */
    MULTI_STEP = 64,                    /* an optimizer's step: lists of tensors */
    MULTI_DROPOUT = 128,                /* the members' random numbers continue each other */
    MULTI_CONV = 256,                   /* letter o only without groups */
    MULTI_FILL = 512,
    MULTI_SCALES = 1024,                /* with MULTI_LINEAR: one partial input, multiplied by numbers */
    MULTI_DIVIDES = 2048                /* with MULTI_SCALES: input 0 is not the number */
};

/* Which dimensions of an op's operands may be sharded: those whose names in the op's contract (ctrt/contracts.def) are
 * in `letters`. Dimensions with equal names correspond, as in Einstein sums. */
struct multi_rule {
    const char *op, *const *operands, *letters;
    uint32_t flags;
};
/* Returns the rule of an op. For an op without a rule, returns one without letters; never NULL. */
const struct multi_rule *multi_rule_of(const char *op);

/* ---- plan.c ---- */

struct multi_operand {
    const ctrt_view *view;              /* NULL: absent */
    struct multi_block *block;          /* NULL: a host scalar, or a view without elements */
    int64_t offset;                     /* bytes from the beginning of the block */
    char letters[CTRT_MAX_DIMS + 1];    /* names of the dimensions, lower-case if the dimension may be sharded */
    bool output;
    int same;                           /* index of the input that is the same view; -1: none */
    bool fresh;                         /* output: the op overwrites the block's data, or the block has no parts */
    const ctrt_tensor *matched;         /* of a SHARDED block: part 0 when `match` was computed */
    int match;                          /* the result of multi_match, with match_split */
    struct multi_split match_split;
    char described;                     /* fresh output: the letter for which `layout` and layout_split were computed */
    struct multi_split layout_split;
    struct { int64_t bytes, extent, inner; } layout;
    /* Set by multi_plan_make: */
    int dim;                            /* the dimension that is cut; -1: none */
    struct multi_data *data;            /* that the op uses: of the block, or `temporary` */
    bool write_back;                    /* write the temporary to the block afterwards */
    struct multi_data temporary;        /* valid if `data` points to it */
};

struct multi_plan {
    struct multi_device *device;
    const char *op;
    int number;                         /* of the op, as in ctrt_op_call */
    ctrt_dtype key;
    const struct multi_rule *rule;
    const void *attributes;
    int n_inputs, n_outputs, count;     /* count: of all operands; inputs first */
    struct multi_operand *operands;
    char letter;                        /* along which the call is divided; 0: none */
    struct multi_split split;           /* of the letter's dimension */
    bool linear;                        /* partial inputs stay partial, and so does the output */
    uint32_t reduced;                   /* bit mask of the dimensions that a reduction reduces */
};

/* Completes a plan whose operands have views: finds blocks, chooses the layout, redistributes the inputs and allocates
 * the outputs. The caller calls multi_plan_end in any case. */
ctrt_status multi_plan_make(struct multi_plan *plan);
/* Writes temporaries back if `status` is CTRT_OK, and frees them. Returns `status`, or the error of a write. */
ctrt_status multi_plan_end(struct multi_plan *plan, ctrt_status status);

/* ---- kernel.c ---- */

/* Fills multi_kernel_table for the ops that the members support. */
ctrt_status multi_kernels_prepare(void *device);
/* Runs an op on views of the device. Takes the lock. */
ctrt_status multi_call(struct multi_device *device, const char *op, ctrt_dtype key, const ctrt_view *const *inputs,
                       int n_inputs, const ctrt_view *const *outputs, int n_outputs, const void *attributes);

#endif
