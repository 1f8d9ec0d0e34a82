/* SPDX-License-Identifier: Apache-2.0 */
/* base/slot.c: errors for what slots of plugins' tables return. */
#include "base/slot.h"

ctrt_status slot_failed(ctrt_status status, uint32_t failures, const char *kind, const char *name,
                        const char *slot)
{
    if (status > 0)
        return ctrt_fail(CTRT_ERR_PLUGIN, "%s %s: %s returned %d, which is not a status. It has to return CTRT_OK, "
                         "or what host->fail returns", kind, name, slot, (int)status);
    if (thread_state.failures != failures)
        return status;
    return ctrt_fail(status, "%s %s: %s returned %d (%s) without a message. It has to call host->fail before it "
                     "returns a failure", kind, name, slot, (int)status, ctrt_status_string(status));
}

ctrt_status slot_made_nothing(const char *type, const char *slot, const char *what)
{
    return ctrt_fail(CTRT_ERR_PLUGIN, "backend %s: %s returned CTRT_OK and NULL. It has to write %s that is not NULL, "
                     "or return what host->fail returns", type, slot, what);
}

ctrt_status slot_check_number(const char *type, const char *slot, const char *what, int64_t number, int64_t most)
{
    if (number < 0)
        return ctrt_fail(CTRT_ERR_PLUGIN, "backend %s: %s returned CTRT_OK and %lld as %s. It has to write 0 or "
                         "more, or return what host->fail returns", type, slot, (long long)number, what);
    if (number > most)
        return ctrt_fail(CTRT_ERR_PLUGIN, "backend %s: %s returned CTRT_OK and %lld as %s, which is at most %lld", type,
                         slot, (long long)number, what, (long long)most);
    return CTRT_OK;
}
