/* SPDX-License-Identifier: Apache-2.0 */
/* memory/policy.h: parses CTRT_MEMORY and creates the stack of memory policies of a device.
 *
 * CTRT_MEMORY is NAME[:OPTIONS], or several of these joined by '+', the uppermost policy first:
 * "caching:max_split=64m", "spill+caching". */
#ifndef CORE_MEMORY_POLICY_H
#define CORE_MEMORY_POLICY_H

#include "base/base.h"
#include "base/ptr_map.h"
#include "ctrt/plugin.h"

#define MEMORY_MAX_POLICIES 4               /* in one stack */

/* The policies that the library chooses itself: PLAIN_POLICY where the backend names none, POOL_POLICY for the memory
 * of a captured graph. */
#define PLAIN_POLICY "direct"
#define POOL_POLICY  "caching"

struct policy_spec {
    char name[32];
    char options[192];                      /* "": no options */
};

/* Parses `text` into `specs`, uppermost policy first. Has no side effects. CTRT_ERR_INVALID_ARGUMENT: the message
 * describes the error. */
ctrt_status policy_parse(struct policy_spec specs[MEMORY_MAX_POLICIES], int *count, const char *text);

/* An instance of a policy, which also serves as the memory source of the policy above it in the stack. */
struct policy_layer {
    const ctrt_memory_policy *policy;
    const char *name;                       /* the policy's name; static */
    void *state;
    ctrt_memory_source source;              /* for the layer above; source.state points to this layer */
    const ctrt_memory_source *below;
    bool fences;                            /* the policy accepts fences in free and returns them from alloc */
    struct ptr_map blocks;                  /* items: ctrt_block, by address: the blocks that the layer above has
                                             * allocated. ctrt_memory_source.free passes only an address. */
};

/* Checks the result of a policy's or source's alloc: `status` and the `address` that it set, which must have been NULL
 * before the call. Returns CTRT_ERR_PLUGIN for CTRT_OK without an address, else `status`. */
ctrt_status policy_check_address(ctrt_status status, const void *address, const char *policy, size_t bytes);

/* Creates the policy that `spec` names over `source`, which must outlive the layer. The caller owns the layer. */
ctrt_status layer_create(struct policy_layer **out, const struct policy_spec *spec,
                         const ctrt_memory_source *source);
void layer_destroy(struct policy_layer *layer);

/* For dry runs. layer_copies: whether the policy can be cloned. layer_copy: clones the layer `from`, in its present
 * state and with its allocated blocks, over `source`. */
bool layer_copies(const struct policy_layer *layer);
ctrt_status layer_copy(struct policy_layer **out, struct policy_layer *from, const ctrt_memory_source *source);

/* The policy's CTRT_MEMORY_* flags; 0 if its table is too short to have any. */
static inline uint32_t policy_flags(const ctrt_memory_policy *policy)
{
    const size_t end = offsetof(ctrt_memory_policy, flags) + sizeof policy->flags;
    return policy->size >= end ? policy->flags : 0;
}

#endif
