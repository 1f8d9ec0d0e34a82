/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/onednn_api.h: what of oneDNN's C API is used, what differs between 2.x and 3.x, and the cache of
 * primitives. For onednn*.c. */
#ifndef CTRT_CPU_ONEDNN_API_H
#define CTRT_CPU_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ONEDNN_COMMON(F)                                                                                                \
    F(dnnl_engine_create) F(dnnl_stream_create) F(dnnl_stream_destroy) F(dnnl_memory_create) F(dnnl_memory_destroy)     \
    F(dnnl_memory_set_data_handle) F(dnnl_memory_desc_get_size) F(dnnl_memory_desc_equal) F(dnnl_primitive_attr_create) \
    F(dnnl_primitive_attr_destroy) F(dnnl_primitive_attr_set_scratchpad_mode) F(dnnl_primitive_create)                  \
    F(dnnl_primitive_destroy) F(dnnl_primitive_execute) F(dnnl_primitive_desc_destroy) F(dnnl_primitive_desc_query)     \
    F(dnnl_primitive_desc_query_md) F(dnnl_reorder_primitive_desc_create)

/* A memory descriptor is a struct in 2.x and a handle in 3.x; primitives are described in two steps in 2.x. */
#if CTRT_ONEDNN_MAJOR == 2
#define ONEDNN_OWN(F)                                                                                                   \
    F(dnnl_memory_desc_init_by_strides) F(dnnl_memory_desc_init_by_tag) F(dnnl_primitive_desc_create)                   \
    F(dnnl_matmul_desc_init) F(dnnl_dilated_convolution_forward_desc_init)                                              \
    F(dnnl_dilated_convolution_backward_data_desc_init) F(dnnl_dilated_convolution_backward_weights_desc_init)
typedef dnnl_memory_desc_t onednn_desc;
typedef const dnnl_memory_desc_t *onednn_desc_ref;
#define ONEDNN_REF(desc) (&(desc))
#else
#define ONEDNN_OWN(F) \
    F(dnnl_memory_desc_create_with_strides) \
    F(dnnl_memory_desc_create_with_tag) F(dnnl_memory_desc_destroy) F(dnnl_matmul_primitive_desc_create) \
        F(dnnl_convolution_forward_primitive_desc_create) \
            F(dnnl_convolution_backward_data_primitive_desc_create) \
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

/* NULL when oneDNN cannot be used; the reason was logged once. */
const struct onednn *cpu_onednn(void);

/* ---- descriptors ---- */

bool onednn_strided(onednn_desc *desc, int ndims, const int64_t *dims, dnnl_data_type_t type,
                    const int64_t *strides);
/* The layout is the primitive's choice. */
bool onednn_any(onednn_desc *desc, int ndims, const int64_t *dims, dnnl_data_type_t type);
void onednn_drop(onednn_desc *desc, bool made);

/* ---- the cache ---- */

enum { ONEDNN_KEY = 24, ONEDNN_OPERANDS = 4 };

/* Filled with 0 first; what identifies a primitive. */
struct onednn_key {
    int64_t words[ONEDNN_KEY];
};

struct onednn_operand {
    int argument;                       /* DNNL_ARG_... */
    bool output;
    dnnl_memory_t user;                 /* the tensor as it lies */
    dnnl_memory_t memory;               /* as the primitive sees it: `user`, or a copy in scratch */
    dnnl_primitive_t reorder;           /* between them, or NULL */
    size_t offset;                      /* of the copy in scratch */
};

struct onednn_entry {
    struct onednn_key key;
    bool used;
    bool has_run;                       /* its code has run once */
    bool no_memory;                     /* it could not be made for that reason */
    uint64_t last_use;
    dnnl_primitive_t primitive;         /* NULL: oneDNN has nothing good for this key */
    struct onednn_operand operands[ONEDNN_OPERANDS];
    int count;
    dnnl_memory_t scratchpad;           /* or NULL */
    size_t scratch_bytes;               /* scratchpad and copies */
};

/* The entry of `key` in this thread; *fresh says that it has to be filled, by onednn_fill or by leaving it
 * declined. NULL: no memory. */
struct onednn_entry *onednn_find(const struct onednn_key *key, bool *fresh);
/* Makes the primitive of `pd` (destroyed in any case) for operands that lie as users[i] says; false leaves the
 * entry declined. */
bool onednn_fill(struct onednn_entry *entry, dnnl_primitive_desc_t pd, int count, const int *arguments,
                 const bool *outputs, const onednn_desc_ref *users, const dnnl_query_t *queries,
                 const int *indices);
/* Runs it on these addresses, in the order of the operands. */
bool onednn_run(struct onednn_entry *entry, void *const *addresses);

#endif
