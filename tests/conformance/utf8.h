/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h: validates UTF-8, for output in JSON and XML. */
#ifndef CONFORMANCE_UTF8_H
#define CONFORMANCE_UTF8_H

/* Returns the length of the UTF-8 sequence at `s`, or 0 if it is not valid (RFC 3629: no surrogates, no overlong forms,
 * at most U+10FFFF). */
static inline int utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    int length = s[0] >= 0xf0 && s[0] <= 0xf4   ? 4
                 : s[0] >= 0xe0 && s[0] <= 0xef ? 3
                 : s[0] >= 0xc2 && s[0] <= 0xdf ? 2
                                                : 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90)
        || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

#endif
