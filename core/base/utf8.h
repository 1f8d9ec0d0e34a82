/* SPDX-License-Identifier: Apache-2.0 */
/* base/utf8.h: validates UTF-8. Uses nothing of the library, because the command `ctrt` and the conformance suite also
 * include this file, their only header that is not public. */
#ifndef CORE_BASE_UTF8_H
#define CORE_BASE_UTF8_H

#include <stddef.h>

/* Returns the length in bytes of the UTF-8 sequence at `s`, or 0 if the bytes are not valid UTF-8 (RFC 3629: no
 * surrogates, no overlong forms, at most U+10FFFF). Reads at most `left` bytes, and none after a '\0'. */
static inline size_t utf8_sequence_length(const unsigned char *s, size_t left)
{
    if (left == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    const size_t length = s[0] >= 0xf0 && s[0] <= 0xf4   ? 4
                          : s[0] >= 0xe0 && s[0] <= 0xef ? 3
                          : s[0] >= 0xc2 && s[0] <= 0xdf ? 2
                                                         : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90)
        || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

#endif
