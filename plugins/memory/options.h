/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/options.h: parses option strings such as "max_split=64m,gc=0.8". */
#ifndef CTRT_MEMORY_OPTIONS_H
#define CTRT_MEMORY_OPTIONS_H

#include "ctrt/plugin.h"

struct option_text {                            /* a part of the option string */
    const char *at;
    size_t length;
};

/* One option: its name, a description of valid values for messages, and its parser, which returns false if the value is
 * invalid. */
struct option {
    const char *name, *wants;
    bool (*read)(void *settings, struct option_text value);
};

/* Parses all of `text` (NULL: no options) into `settings`. Commas within brackets do not separate options. Fails for an
 * unknown option or an invalid value; the message names the policy, the known options and the most similar one. */
ctrt_status options_read(const ctrt_host *host, const char *policy, const struct option *options, size_t count,
                         void *settings, const char *text);

/* Parse one value; false if it is invalid. option_bytes: "64m", bytes with an optional factor k, m, g (powers of 1024).
 * option_share: "0.8". option_bool: "true", "on", "1" and their opposites. option_number: a whole number. */
bool option_bytes(size_t *out, struct option_text value);
bool option_share(double *out, struct option_text value);
bool option_bool(bool *out, struct option_text value);
bool option_number(size_t *out, struct option_text value);

#endif
