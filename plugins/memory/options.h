/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/options.h: parses option strings such as "max_split=64m,gc=0.8". */
#ifndef CTRT_MEMORY_OPTIONS_H
#define CTRT_MEMORY_OPTIONS_H

#include "ctrt/plugin.h"

struct option_text {                            /* a part of the option string */
    const char *at;
    size_t length;
};

/* One option: its name, a description of valid values for messages, and where its value is in the settings: a size_t, a
 * double (above 0 and below 1) or a bool. OPTION_OTHER: `read` writes the value, and returns false if it is invalid. */
struct option {
    const char *name, *wants;
    enum { OPTION_BYTES, OPTION_SHARE, OPTION_BOOL, OPTION_OTHER } kind;
    size_t offset;
    size_t least, most, unit;                   /* of OPTION_BYTES; 0: any. unit: the value is a multiple of it */
    bool (*read)(void *settings, struct option_text value);
};

/* Parses all of `text` (NULL: no options) into `settings`. Commas within brackets do not separate options. Fails for an
 * unknown option or an invalid value; the message names the policy, the known options and the most similar one. Bytes
 * may have a factor k, m, g (powers of 1024): "64m"; a share is "0.8", a bool "true", "on", "1" or their opposites. */
ctrt_status options_read(const char *policy, const struct option *options, size_t count, void *settings,
                         const char *text);
/* Parses a whole number; false if it is invalid. */
bool option_number(size_t *out, struct option_text value);

#endif
