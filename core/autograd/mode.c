/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/mode.c: the thread's grad mode. */
#include "base/thread.h"
#include "ctrt/autograd.h"

bool ctrt_set_grad_enabled(bool enabled)
{
    bool was = !thread_state.grad_disabled;
    thread_state.grad_disabled = !enabled;
    return was;
}

bool ctrt_grad_enabled(void)
{
    return !thread_state.grad_disabled;
}
