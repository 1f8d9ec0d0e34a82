/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/onednn_api.h: the used part of oneDNN's C API, the differences between 2.x and 3.x, and the
 * primitive cache. For onednn*.c. */
#ifndef CTRT_CPU_ONEDNN_API_H
#define CTRT_CPU_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blocked.h"

#define ONEDNN_COMMON(F)                                                                                          \
    F(dnnl_engine_create) F(dnnl_stream_create) F(dnnl_stream_destroy) F(dnnl_memory_create)                      \
    F(dnnl_memory_destroy) F(dnnl_memory_set_data_handle) F(dnnl_memory_desc_get_size) F(dnnl_memory_desc_equal)  \
    F(dnnl_primitive_attr_create) F(dnnl_primitive_attr_destroy) F(dnnl_primitive_attr_set_scratchpad_mode)       \
    F(dnnl_primitive_create) F(dnnl_primitive_destroy) F(dnnl_primitive_execute) F(dnnl_primitive_desc_destroy)   \
    F(dnnl_primitive_desc_query) F(dnnl_primitive_desc_query_md) F(dnnl_reorder_primitive_desc_create)

/* In 2.x a memory descriptor is a struct and a primitive descriptor is created in two steps; in 3.x a memory descriptor
 * is a handle. */
#if CTRT_ONEDNN_MAJOR == 2
#define ONEDNN_OWN(F)                                                                                             \
    F(dnnl_memory_desc_init_by_strides) F(dnnl_memory_desc_init_by_tag) F(dnnl_primitive_desc_create)             \
    F(dnnl_matmul_desc_init) F(dnnl_dilated_convolution_forward_desc_init)                                        \
    F(dnnl_dilated_convolution_backward_data_desc_init) F(dnnl_dilated_convolution_backward_weights_desc_init)
typedef dnnl_memory_desc_t onednn_desc;
typedef const dnnl_memory_desc_t *onednn_desc_ref;
#define ONEDNN_REF(desc) (&(desc))
#else
#define ONEDNN_OWN(F)                                                                                             \
    F(dnnl_memory_desc_create_with_strides) F(dnnl_memory_desc_create_with_tag) F(dnnl_memory_desc_destroy)       \
    F(dnnl_matmul_primitive_desc_create) F(dnnl_convolution_forward_primitive_desc_create)                        \
    F(dnnl_convolution_backward_data_primitive_desc_create)                                                       \
    F(dnnl_convolution_backward_weights_primitive_desc_create)
typedef dnnl_memory_desc_t onednn_desc;
typedef const_dnnl_memory_desc_t onednn_desc_ref;
#define ONEDNN_REF(desc) (desc)
#endif

struct onednn {
#define F(name) __typeof__(&name) name;
    ONEDNN_COMMON(F) ONEDNN_OWN(F)
#undef F
    dnnl_engine_t engine;
};

/* Returns NULL if oneDNN cannot be used; logs the reason once. */
const struct onednn *cpu_onednn(void);

/* ---- memory descriptors ---- */

dnnl_status_t onednn_strided(onednn_desc *desc, int ndims, const int64_t *dims, dnnl_data_type_t type,
                             const int64_t *strides);
/* `tag`: a layout, or dnnl_format_tag_any, for which the primitive chooses one. */
dnnl_status_t onednn_tagged(onednn_desc *desc, int ndims, const int64_t *dims, dnnl_data_type_t type,
                            dnnl_format_tag_t tag);
void onednn_drop(onednn_desc *desc, bool made);

/* ---- primitive cache ---- */

enum { ONEDNN_KEY = 24, ONEDNN_OPERANDS = 4 };

/* Identifies a primitive. Unused words must be 0. */
struct onednn_key {
    int64_t words[ONEDNN_KEY];
};

struct onednn_operand {
    int argument;                       /* DNNL_ARG_... */
    bool output;
    dnnl_memory_t user;                 /* the tensor's own memory and layout */
    dnnl_memory_t memory;               /* memory in the primitive's layout: `user`, or a copy in scratch memory */
    dnnl_primitive_t reorder;           /* between `user` and `memory`, or NULL */
    struct cpu_blocked blocked;         /* if block is not 0, how to copy without a reorder primitive */
    size_t offset;                      /* of the copy in scratch memory */
};

struct onednn_entry {
    struct onednn_key key;
    bool used;
    bool has_run;                       /* the primitive was executed at least once */
    bool no_memory;                     /* a call that creates the primitive failed because of lack of memory */
    uint64_t last_use;
    dnnl_primitive_t primitive;         /* NULL: declined, oneDNN has no fast implementation for this key */
    struct onednn_operand operands[ONEDNN_OPERANDS];
    int count;
    dnnl_memory_t scratchpad;           /* may be NULL */
    size_t scratch_bytes;               /* size of the scratchpad and the copies */
};

/* Returns the thread's entry for `key`, or NULL if there is no memory. If *fresh is true, the caller creates the
 * primitive and then calls onednn_settle, also after an error. */
struct onednn_entry *onednn_find(const struct onednn_key *key, bool *fresh);
/* Returns whether a call that creates a part of the entry succeeded, and records in the entry that memory ran out. */
static inline bool onednn_succeeded(struct onednn_entry *entry, dnnl_status_t status)
{
    entry->no_memory |= status == dnnl_out_of_memory;
    return status == dnnl_success;
}
/* A contiguous tensor [N,C,H,W] of f16 or bf16 for which the primitive may require blocks of channels, of type `to`. */
struct onednn_images {
    const int64_t *dims;                /* NULL: another tensor */
    dnnl_data_type_t from, to;
};
/* Creates the primitive of `pd` and destroys `pd` in all cases. users[i] is the layout of operand i's tensor. `images`:
 * for each operand, or NULL. */
void onednn_fill(struct onednn_entry *entry, dnnl_primitive_desc_t pd, int count, const int *arguments,
                 const bool *outputs, const onednn_desc_ref *users, const dnnl_query_t *queries,
                 const int *indices, const struct onednn_images *images);
/* If the entry has no primitive, makes it declined, or removes it if the reason was lack of memory, so that the next
 * call tries again. */
void onednn_settle(struct onednn_entry *entry);
/* Executes the primitive; `addresses` are the tensors' addresses in the order of the operands. */
bool onednn_run(struct onednn_entry *entry, void *const *addresses);

#endif
