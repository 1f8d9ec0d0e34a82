/* SPDX-License-Identifier: Apache-2.0 */
/* device/visible.h: lists of visible devices. Pure; nothing is asked of any device. */
#ifndef CORE_DEVICE_VISIBLE_H
#define CORE_DEVICE_VISIBLE_H

#include "ctrt/base.h"

/* Reads a list by the rules of CUDA_VISIBLE_DEVICES ("0,2", or prefixes of UUIDs "GPU-8932f937,GPU-4a"):
 * writes at most `max` indices and returns how many. The list ends at the first entry that names no device;
 * an entry that names a device again makes the whole list empty. Numbers may have a sign and be followed by
 * anything; UUID prefixes must be unambiguous. `count`: how many devices there are, -1 when numbers are not
 * to be limited; `uuids`: count of them, or NULL. NULL text means all. */
int visible_parse(int *ids, int max, const char *text, int count, const char *const *uuids);

/* The same for one type of device, with lists that name types too: "cuda:0,cuda:2", "sim" (all of them),
 * mixed with UUIDs. Entries of other types are skipped, so a type that is not named has no visible device.
 * CTRT_ERR_INVALID_ARGUMENT when such an entry is malformed. */
ctrt_status visible_select(int *ids, int max, int *selected, const char *text, const char *type, int count,
                           const char *const *uuids);

#endif
