/* SPDX-License-Identifier: Apache-2.0 */
/* device/visible.h: parses lists of visible devices. These functions have no state and use no device. */
#ifndef CORE_DEVICE_VISIBLE_H
#define CORE_DEVICE_VISIBLE_H

#include "ctrt/base.h"

/* Parses a list by the rules of CUDA_VISIBLE_DEVICES ("0,2", or prefixes of UUIDs "GPU-8932f937,GPU-4a"). Writes at
 * most `max` indices and returns how many. The list ends at the first entry that names no device; an entry that repeats
 * a device makes the whole list empty. Numbers may have a sign and may be followed by any text; UUID prefixes must be
 * unambiguous. `count`: number of existing devices, or -1 for no limit on the numbers. `uuids`: `count` strings, or
 * NULL. If `text` is NULL, all devices are visible. */
int visible_parse(int *ids, int max, const char *text, int count, const char *const *uuids);

/* Like visible_parse for the devices of one type, with the number of indices in *selected. Also accepts lists with
 * types: "cuda:0,cuda:2", "sim" (all of them), mixed with UUIDs. Entries of other types are skipped, so a type that is
 * not in the list has no visible device. CTRT_ERR_INVALID_ARGUMENT when an entry with a type is malformed. */
ctrt_status visible_select(int *ids, int max, int *selected, const char *text, const char *type, int count,
                           const char *const *uuids);

#endif
