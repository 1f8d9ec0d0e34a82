/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/discovery.h: enumerates the GPUs without creating a context and, where possible, without the
 * driver.
 *
 * After cuInit, children that a process forks cannot use CUDA. Therefore devices are counted and described through
 * NVML, which is not part of CUDA, until one of them is opened. If NVML is not available, the driver is used. Devices
 * are ordered as in CUDA_VISIBLE_DEVICES if it is set, else as in nvidia-smi. UUIDs identify a device in both NVML and
 * the driver. */
#ifndef CUDA_DISCOVERY_H
#define CUDA_DISCOVERY_H

#include "cuda.h"

struct cuda_gpu {
    ctrt_device_info facts;
    int ordinal;                                /* the driver's; -1: not looked up yet */
    unsigned mig;                               /* MIG mode: 0: off; 1: on, with instances; 2: on, without instances */
    bool joining;                               /* NVSwitch fabric not registered yet, so CUDA may not work */
};

/* ---- files ---- */

/* Prefix of the paths of files in /proc, /sys and /dev that diagnose.c and discovery.c read. "", except in tests, which
 * use recorded trees. */
extern const char *cuda_root;
/* Reads at most bytes - 1 bytes of a file into `text` and terminates it. Returns false if nothing could be read. */
bool cuda_read_file(const char *path, char *text, size_t bytes);

/* ---- visible.c ---- */

enum cuda_list_kind { CUDA_LIST_ALL, CUDA_LIST_NUMBERS, CUDA_LIST_UUIDS, CUDA_LIST_MIG };
enum cuda_list_kind cuda_visible_kind(const char *text);
/* Predicts which devices the driver shows for CUDA_VISIBLE_DEVICES=text (NULL: unset), without calling the driver.
 * Writes at most `max` positions in `gpus` to `ids`, in the driver's order, and returns their number. Not for
 * CUDA_LIST_MIG. *twice: the result is 0 because the list names a device twice. */
int cuda_visible(int *ids, int max, const char *text, const struct cuda_gpu *gpus, int count, bool *twice);

/* ---- nvml.c ---- */

/* Lists all GPUs that this process may access, in the order of nvidia-smi; ignores CUDA_VISIBLE_DEVICES. Returns false
 * if NVML does not work. *result: NVML's error code; -1: the library cannot be loaded. */
bool cuda_nvml_list(struct cuda_gpu *gpus, int max, int *count, int *result);
/* Fills *usage with the GPU's current load. `name`: the device, for error messages. */
ctrt_status cuda_nvml_usage(const struct cuda_gpu *gpu, ctrt_device_usage *usage, const char *name);
/* Fills the members of *link that NVML can determine for the connection between two GPUs; leaves the others
 * unchanged. */
void cuda_nvml_link(const struct cuda_gpu *gpu, const struct cuda_gpu *peer, ctrt_device_link *link);
/* Lock and unlock, around fork(), the mutex that the functions above hold, so that it is never locked in a child. */
void cuda_nvml_before_fork(void);
void cuda_nvml_after_fork(bool in_child);

/* ---- discovery.c ---- */

ctrt_status cuda_discovery_init(void);
ctrt_status cuda_count(int32_t *count);
ctrt_status cuda_describe(int32_t index, ctrt_device_info *info);
ctrt_status cuda_usage(int32_t index, ctrt_device_usage *usage);
ctrt_status cuda_link(int32_t index, int32_t peer, ctrt_device_link *link);
/* Initialises the driver. *ordinal: the driver's handle of device `index`. */
ctrt_status cuda_ordinal_of(cu_device *ordinal, int32_t index);

/* ---- diagnose.c ---- */

/* Returns true if a device node of the driver is missing or not accessible to this process. In that case CUDA may fail
 * although NVML works; only a call of the driver can determine whether it fails. */
bool cuda_reason_node_missing(void);
/* Returns true if the loader's message reports a temporary shortage, such as too many open files. */
bool cuda_transient(const char *dl_error);
/* These write into `text` why there is no usable device: CUDA_VISIBLE_DEVICES hides all of `present` GPUs; a GPU is in
 * MIG mode without an instance; the driver only supports CUDA `version` (12040: 12.4). */
void cuda_reason_hidden(char *text, size_t bytes, const char *visible, int present, bool twice);
void cuda_reason_mig(char *text, size_t bytes, const char *name, const char *pci);
void cuda_reason_old(char *text, size_t bytes, int version);

#endif
