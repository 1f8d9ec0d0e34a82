/* SPDX-License-Identifier: Apache-2.0 */
/* memory-snapshot.c FILE BLOCKS [frames]: writes a memory snapshot with the history of BLOCKS blocks, for memory.sh. */
#include <stdio.h>
#include <stdlib.h>

#include "ctrt/ctrt.h"
#include "ctrt/memory.h"

#define LIVE 40

static ctrt_tensor *live[LIVE];

static ctrt_status churn(const char *path, long blocks, ctrt_memory_watch watch)
{
    static const char *const labels[] = { "encoder/attention", "decoder", "a \"strange\" </script> <!-- label" };
    ctrt_device *device = NULL;
    CTRT_TRY(ctrt_memory_set_watch(watch, 200000));
    CTRT_TRY(ctrt_device_get(&device, "cpu"));
    for (long i = 0; i < blocks; i++) {
        if (i % (blocks / 4 + 1) == 0)
            CTRT_TRY(ctrt_memory_annotate(device, "a quarter"));
        CTRT_TRY(ctrt_memory_label_push(labels[i % 3]));
        CTRT_TRY(ctrt_empty(&live[(i * 7) % LIVE], CTRT_SHAPE(1 + i * 31 % 5000), CTRT_F32, device));
        CTRT_TRY(ctrt_memory_label_pop());
    }
    return ctrt_memory_snapshot_write(path, device);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        return 2;
    const ctrt_status status = churn(argv[1], atol(argv[2]),
                                     argc == 4 ? CTRT_MEMORY_WATCH_FRAMES : CTRT_MEMORY_WATCH_ALL);
    for (int i = 0; i < LIVE; i++)
        ctrt_tensor_release(&live[i]);
    if (status != CTRT_OK)
        fprintf(stderr, "%s\n", ctrt_error_message());
    return status != CTRT_OK;
}
