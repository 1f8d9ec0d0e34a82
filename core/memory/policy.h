/* SPDX-License-Identifier: Apache-2.0 */
/* memory/policy.h: which memory policies a device gets, and how they stand on one another.
 *
 * CTRT_MEMORY is NAME[:OPTIONS], or several of these joined by '+', the upper first: "caching:max_split=64m",
 * "spill+caching". */
#ifndef CORE_MEMORY_POLICY_H
#define CORE_MEMORY_POLICY_H

#include <pthread.h>

#include "memory/pool.h"

struct policy_spec {
    char name[32];
    char options[192];                      /* "" when there are none */
};

/* Reads the grammar into `specs`, upper first; pure. CTRT_ERR_INVALID_ARGUMENT says what is wrong where. */
ctrt_status policy_parse(struct policy_spec specs[MEMORY_MAX_LAYERS], int *count, const char *text);

/* A policy at work, and itself a source for the policy above. */
struct memory_layer {
    const ctrt_memory_policy *policy;
    const char *name;                       /* of the policy; static */
    void *state;
    ctrt_memory_source source;              /* for the layer above: source.state is this layer */
    const ctrt_memory_source *below;
    bool fences;                            /* takes fences and gives them */
    /* Blocks handed to the layer above, by address, because a source's free knows addresses alone. */
    struct layer_block **blocks;
    size_t block_count, block_room;
};

/* Of an alloc that returned `status` and left `address`: success without an address is the policy's error, CTRT_ERR_PLUGIN. `address`
 * must be NULL before the call. */
ctrt_status policy_check_address(ctrt_status status, const void *address, const char *policy, size_t bytes);

/* Creates a policy over `source`. */
ctrt_status layer_create(struct memory_layer **out, const struct policy_spec *spec,
                         const ctrt_memory_source *source);
void layer_destroy(struct memory_layer *layer);

/* For plans: another layer over `source` in the same state; blocks that live are known there too. */
bool layer_copies(const struct memory_layer *layer);
ctrt_status layer_copy(struct memory_layer **out, struct memory_layer *from, const ctrt_memory_source *source);

#endif
