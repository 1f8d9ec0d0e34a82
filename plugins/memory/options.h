/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/options.h: reading "max_split=64m,gc=0.8". */
#ifndef CTRT_MEMORY_OPTIONS_H
#define CTRT_MEMORY_OPTIONS_H

#include "ctrt/plugin.h"

struct option_text {                            /* a part of the options */
    const char *at;
    size_t length;
};

/* One option: its name, what its value must be in words, and who reads it; false: it is none. */
struct option {
    const char *name, *wants;
    bool (*read)(void *settings, struct option_text value);
};

/* Reads all of `text` (NULL: nothing) into `settings`. Commas within brackets separate nothing. An unknown option or a bad value is an
 * error that names the policy, the known options and the nearest. */
ctrt_status options_read(const ctrt_host *host, const char *policy, const struct option *options, size_t count, void *settings,
                         const char *text);

/* "64m": bytes, or k, m, g of 1024. "0.8". "true", "on", "1" and their opposites. Whole numbers. */
bool option_bytes(size_t *out, struct option_text value);
bool option_share(double *out, struct option_text value);
bool option_bool(bool *out, struct option_text value);
bool option_number(size_t *out, struct option_text value);

#endif
