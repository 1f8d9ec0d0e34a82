/* SPDX-License-Identifier: Apache-2.0 */
/* device/get.c: returns devices by name; why a device cannot be used in this process. */
#include <unistd.h>

#include "base/base.h"
#include "base/lock.h"
#include "device/internal.h"

pid_t device_process;

static _Atomic(ctrt_device *) the_cpu;

static void note_process(void)
{
    device_process = getpid();
}

__attribute__((constructor)) static void device_start(void)
{
    note_process();
    (void)lock_at_fork(NULL, NULL, note_process);
}

ctrt_status device_fail_forked(const ctrt_device *device)
{
    if (device->owner == DEVICE_ENDED)
        return ctrt_fail(CTRT_ERR_STATE,
                         "the tensor was made in a scope that has ended (ctrt_scope_end) and was not exported with "
                         "ctrt_scope_export");
    if (device->owner == 0)
        return ctrt_fail(CTRT_ERR_STATE, "%s was closed by ctrt_shutdown; ctrt_device_get opens it again",
                         device->name);
    return ctrt_fail(
        CTRT_ERR_FORKED,
        "%s was opened by process %d before it forked this process (%d), and devices cannot be used after a fork. Fork "
        "before the first use of a device, or start the child with exec",
        device->name, (int)device->owner, (int)device_process);
}

ctrt_status ctrt_device_get(ctrt_device **out, const char *name)
{
    ctrt_device_spec spec;
    NULL_CHECK("device_get", out);
    if (name == NULL || strcmp(name, "auto") == 0)
        return ctrt_device_auto(out);
    CTRT_TRY(ctrt_device_parse(&spec, name));
    return device_open(out, &spec);
}

ctrt_status device_cpu(ctrt_device **out)
{
    ctrt_device *cpu = atomic_load_explicit(&the_cpu, memory_order_acquire);
    if (unlikely(cpu == NULL)) {
        const ctrt_device_spec spec = { CPU_TYPE, 0 };
        CTRT_TRY(device_open(&cpu, &spec));
        atomic_store_explicit(&the_cpu, cpu, memory_order_release);
    }
    *out = cpu;
    return CTRT_OK;
}
