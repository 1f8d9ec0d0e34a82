/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's copies to and from oneDNN's blocked layouts against plain loops. */
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/host/cpu.h"
#include "backends/cpu/libs/blocked.h"
#include "tap.h"

enum { N = 2, C = 33, S = 35, MOST = N * 48 * S };

static uint16_t images[N * C * S], back[N * C * S + 1];
static uint32_t blocked[MOST + 1];                      /* also used as 2 * MOST numbers of 2 bytes */

/* In two ranges, as two threads would. */
void cpu_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end),
                      void *argument)
{
    (void)grain;
    body(argument, 0, count / 2);
    body(argument, count / 2, count);
}

/* Returns the number of wrong elements of the blocked images, channels that do not exist included. */
static int wrong_blocked(const struct cpu_blocked *b)
{
    const uint16_t *halves = (const uint16_t *)(const void *)blocked;
    const int64_t groups = (b->channels + b->block - 1) / b->block;
    int wrong = 0;
    for (int64_t i = 0; i < b->n * groups * b->size * b->block; i++) {
        const int64_t inside = i % b->block, s = i / b->block % b->size, group = i / b->block / b->size;
        const int64_t n = group / groups, c = group % groups * b->block + inside;
        const uint16_t want = c < b->channels ? images[(n * b->channels + c) * b->size + s] : 0;
        wrong += b->wide ? blocked[i] != (uint32_t)want << 16 : halves[i] != want;
    }
    return wrong;
}

static void check_copies(const struct cpu_blocked *b)
{
    const int64_t count = b->n * b->channels * b->size,
                  elements = b->n * ((b->channels + b->block - 1) / b->block) * b->size * b->block;
    memset(blocked, 0xee, sizeof blocked);
    cpu_blocked_from_images(b, blocked, images);
    const int wrong = wrong_blocked(b);
    const bool beyond = ((const unsigned char *)blocked)[elements * (b->wide ? 4 : 2)] != 0xee;
    CHECK(wrong == 0 && !beyond, "%d channels of %d in blocks of %d%s: %d wrong%s", (int)b->channels, (int)b->size,
          (int)b->block, b->wide ? ", wide" : "", wrong, beyond ? ", and written beyond the end" : "");
    if (b->wide)
        return;
    memset(back, 0xee, sizeof back);
    cpu_blocked_to_images(b, back, blocked);
    CHECK(memcmp(back, images, (size_t)count * sizeof *back) == 0 && back[count] == 0xeeee,
          "%d channels of %d from blocks of %d differ", (int)b->channels, (int)b->size, (int)b->block);
}

TEST(copies, "images in blocks of 8 and 16 channels, as they are and as f32, and back")
{
    static const int64_t channels[] = { 1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33 };
    for (int i = 0; i < N * C * S; i++)
        images[i] = (uint16_t)((unsigned)i * 2654435761u >> 16);
    EACH(c, channels)
        for (int64_t size = 1; size <= S; size++)
            for (int k = 0; k < 4; k++)
                check_copies(&(struct cpu_blocked){ N, *c, size, k & 1 ? 8 : 16, k >= 2 });
}

TEST_MAIN
{
    return run_tests();
}
