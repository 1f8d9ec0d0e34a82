/* SPDX-License-Identifier: Apache-2.0 */
/* base/slot.h: checks what the slots of plugins' tables return (the rules are at the beginning of ctrt/plugin.h).
 *
 * SLOT_CALL(type, slot, call) evaluates the call of a slot of the backend `type` and returns its status. A failure
 * without a message, and a value that is no status, become errors that name the backend and the slot. SLOT_MADE does
 * the same for a slot that writes a pointer, which must not be NULL after CTRT_OK. `what` names it: "a handle". */
#ifndef CORE_BASE_SLOT_H
#define CORE_BASE_SLOT_H

#include "base/base.h"
#include "base/thread.h"

#define SLOT_CALL(type, slot, call)                                                         \
    ({                                                                                      \
        const uint32_t failures_ = thread_state.failures;                                   \
        const ctrt_status status_ = (call);                                                 \
        likely(status_ == CTRT_OK) ? CTRT_OK : slot_failed(status_, failures_, "backend", type, slot); \
    })
#define SLOT_MADE(type, slot, what, pointer, call)                                          \
    ({                                                                                      \
        const ctrt_status made_ = SLOT_CALL(type, slot, call);                              \
        unlikely(made_ == CTRT_OK && (pointer) == NULL) ? slot_made_nothing(type, slot, what) : made_; \
    })

/* Returns the error for a slot that returned `status`, which is not CTRT_OK; `failures`: thread_state.failures from
 * before the call; `kind` and `name`: "backend", "cuda". */
ctrt_status slot_failed(ctrt_status status, uint32_t failures, const char *kind, const char *name,
                        const char *slot) __attribute__((cold));
ctrt_status slot_made_nothing(const char *type, const char *slot, const char *what) __attribute__((cold));
/* Returns CTRT_OK, or the error for a number that `slot` must not write: one below 0, or above `most`. `what` names the
 * number. */
ctrt_status slot_check_number(const char *type, const char *slot, const char *what, int64_t number, int64_t most);

#endif
