/* SPDX-License-Identifier: Apache-2.0 */
/* ops/autocast.h: how op functions convert their operands under autocast (ctrt/amp.h).
 *
 * An op function whose row in ctrt/ops.def has a policy other than SAME begins with OP_AUTOCAST_1 to OP_AUTOCAST_4. In
 * a region the macro replaces the function's operands by converted ones, recorded for autograd. They are released when
 * the function returns. Until then autocast is off in this thread, because the ops of which the function composes its
 * result must not convert again. Outside of all regions the macro costs one comparison. */
#ifndef CORE_OPS_AUTOCAST_H
#define CORE_OPS_AUTOCAST_H

#include "base/thread.h"
#include "ctrt/amp.h"
#include "ops/op.h"
#include "tensor/tensor.h"

#define AUTOCAST_OPERANDS 4

struct autocast_operands {
    bool converted;
    /* If `converted`: */
    struct autocast_region *region;         /* thread_state.autocast before; NULL: none */
    ctrt_tensor *tensor[AUTOCAST_OPERANDS]; /* owned */
};

/* Converts tensors[count] by the policy of the op (NULL stays NULL), and on a device with a default dtype of its own
 * (cuda-fp16) also the operands of products that have several floating dtypes, to that dtype. On failure nothing is
 * held. */
ctrt_status autocast_convert(struct autocast_operands *out, enum op op, ctrt_tensor *const *tensors, int count);
/* Releases the operands and turns autocast on again. */
void autocast_restore(struct autocast_operands *operands);

static inline void autocast_leave(struct autocast_operands *operands)
{
    if (unlikely(operands->converted))
        autocast_restore(operands);
}

#define OP_AUTOCAST_(op, needed, count, ...)                                                        \
    __attribute__((cleanup(autocast_leave))) struct autocast_operands autocast_;                    \
    autocast_.converted = false;                                                                    \
    if (unlikely(needed))                                                                           \
        CTRT_TRY(autocast_convert(&autocast_, op, (ctrt_tensor *const[]){ __VA_ARGS__ }, count));   \
    if (unlikely(autocast_.converted))
#define OP_AUTOCAST_NEEDED(a) (thread_state.autocast != NULL || (a)->device->float_default != 0)

#define OP_AUTOCAST_1(op, a)                            \
    OP_AUTOCAST_(op, thread_state.autocast != NULL, 1, a)   \
        a = autocast_.tensor[0]
#define OP_AUTOCAST_2(op, a, b)                         \
    OP_AUTOCAST_(op, OP_AUTOCAST_NEEDED(a), 2, a, b)    \
        a = autocast_.tensor[0], b = autocast_.tensor[1]
#define OP_AUTOCAST_3(op, a, b, c)                      \
    OP_AUTOCAST_(op, OP_AUTOCAST_NEEDED(a), 3, a, b, c) \
        a = autocast_.tensor[0], b = autocast_.tensor[1], c = autocast_.tensor[2]
#define OP_AUTOCAST_4(op, a, b, c, d)                   \
    OP_AUTOCAST_(op, OP_AUTOCAST_NEEDED(a), 4, a, b, c, d)  \
        a = autocast_.tensor[0], b = autocast_.tensor[1], c = autocast_.tensor[2], d = autocast_.tensor[3]

/* Turns autocast off in this thread. Returns what autocast_resume needs to turn it on again. */
static inline struct autocast_region *autocast_pause(void)
{
    struct autocast_region *was = thread_state.autocast;
    thread_state.autocast = NULL;
    return was;
}
static inline void autocast_resume(struct autocast_region *was)
{
    thread_state.autocast = was;
}

/* The state before a call of functions of the program, which may not end the regions that they begin. */
struct autocast_mark {
    struct autocast_region *current, *innermost;
};
static inline struct autocast_mark autocast_mark(void)
{
    return (struct autocast_mark){ thread_state.autocast, thread_state.autocast_regions };
}
/* Ends the regions that were begun since `mark` and restores its state. If the functions have also ended the region
 * that was innermost then, the state stays as they left it. */
void autocast_return(struct autocast_mark mark);

/* Sets *out to a copy of the thread's settings, to be freed with host_free; NULL outside of all regions. */
ctrt_status autocast_save(ctrt_autocast_settings **out);
/* Sets *out to the tensor in `dtype`, recorded, if autocast is on for its device and it is floating but not f64; else
 * to the tensor itself. The caller owns *out. */
ctrt_status autocast_tensor(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_dtype dtype);

#endif
