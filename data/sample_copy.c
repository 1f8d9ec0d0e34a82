/* SPDX-License-Identifier: Apache-2.0 */
/* data/sample_copy.c: a memcpy whose writes bypass the processor's caches. */
#include <string.h>

#include "ctrt/data.h"

#if defined(__SSE2__)
#include <emmintrin.h>

/* Smaller samples stay in the caches, where the consumer of a small batch finds them. */
#define LARGE ((size_t)256 << 10)
#define LINE  64                        /* bytes of a cache line */

/* An ordinary store reads the line from memory first. A streaming store of a whole line does not, which saves a third
 * of the traffic of a copy. */
static void stream_lines(char *to, const char *from, size_t lines)
{
    for (; lines > 0; lines--, to += LINE, from += LINE)
        for (int i = 0; i < LINE; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    /* Streaming stores are not ordered with later stores, such as the one that hands the batch over. */
    _mm_sfence();
}
#endif

void ctrt_sample_copy(void *to, const void *from, size_t bytes)
{
#if defined(__SSE2__)
    if (bytes >= LARGE) {
        const size_t head = -(size_t)to % LINE, body = (bytes - head) / LINE * LINE;
        memcpy(to, from, head);
        stream_lines((char *)to + head, (const char *)from + head, body / LINE);
        to = (char *)to + head + body;
        from = (const char *)from + head + body;
        bytes -= head + body;
    }
#endif
    if (bytes > 0)
        memcpy(to, from, bytes);
}
