/* SPDX-License-Identifier: Apache-2.0 */
/* memory-snapshot.c FILE BLOCKS [frames]: writes a memory snapshot with the history of BLOCKS blocks, for memory.sh. */
#include <stdio.h>
#include <stdlib.h>

#include "ctrt/ctrt.h"
#include "ctrt/memory.h"

#define LIVE 40

static ctrt_tensor *live[LIVE];

static ctrt_status churn(ctrt_device *device, long blocks)
{
    static const char *const labels[] = { "encoder/attention", "decoder", "a \"strange\" </script> <!-- label" };
    for (long i = 0; i < blocks; i++) {
        if (i % (blocks / 4 + 1) == 0)
            CTRT_TRY(ctrt_memory_annotate(device, "a quarter"));
        CTRT_TRY(ctrt_memory_label_push(labels[i % 3]));
        CTRT_TRY(ctrt_empty(&live[(i * 7) % LIVE], CTRT_SHAPE(1 + i * 31 % 5000), CTRT_F32, device));
        CTRT_TRY(ctrt_memory_label_pop());
    }
    return CTRT_OK;
}

int main(int argc, char **argv)
{
    ctrt_device *device = NULL;
    if (argc != 3 && argc != 4)
        return 2;
    ctrt_status status = ctrt_memory_set_watch(argc == 4 ? CTRT_MEMORY_WATCH_FRAMES : CTRT_MEMORY_WATCH_ALL, 200000);
    if (status == CTRT_OK)
        status = ctrt_device_get(&device, "cpu");
    if (status == CTRT_OK)
        status = churn(device, atol(argv[2]));
    if (status == CTRT_OK)
        status = ctrt_memory_snapshot_write(argv[1], device);
    for (int i = 0; i < LIVE; i++)
        ctrt_tensor_release(&live[i]);
    if (status != CTRT_OK)
        fprintf(stderr, "%s\n", ctrt_error_message());
    return status != CTRT_OK;
}
