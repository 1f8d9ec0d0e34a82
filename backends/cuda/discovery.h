/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/discovery.h: what is known of the GPUs without a context on any, and often without the driver.
 *
 * A process in which cuInit was called cannot give CUDA to the children that it forks afterwards. So devices are counted and described
 * through NVML, which is no part of CUDA, until one of them is opened; without NVML through the driver. The order is: that of
 * CUDA_VISIBLE_DEVICES where it is set, else nvidia-smi's. Devices of NVML and of the driver are told apart by their UUIDs. */
#ifndef CUDA_DISCOVERY_H
#define CUDA_DISCOVERY_H

#include "cuda.h"

struct cuda_gpu {
    ctrt_device_info facts;
    int ordinal;                                /* the driver's; -1: not asked yet */
    unsigned mig;                               /* 0: whole; 1: split into instances; 2: set to be split, and no instance is made */
    bool joining;                               /* not yet part of the fabric of its NVSwitches, so perhaps not of use */
};

/* ---- files ---- */

/* Put before the path of every file of /proc, /sys and /dev that is looked at here; "" but in tests, which have recorded trees. */
extern const char *cuda_root;
bool cuda_read_file(const char *path, char *text, size_t bytes);

/* ---- visible.c ---- */

enum cuda_list_kind { CUDA_LIST_ALL, CUDA_LIST_NUMBERS, CUDA_LIST_UUIDS, CUDA_LIST_MIG };
enum cuda_list_kind cuda_visible_kind(const char *text);
/* Positions in `gpus`, in the order in which the driver will show them for CUDA_VISIBLE_DEVICES=text (NULL: unset), at most `max`; returns
 * how many. Not for CUDA_LIST_MIG. *twice: none, because one was named twice. */
int cuda_visible(int *ids, int max, const char *text, const struct cuda_gpu *gpus, int count, bool *twice);

/* ---- nvml.c ---- */

/* All GPUs of the machine that this process may see, in the order of nvidia-smi, whatever the environment says. False: NVML does not work
 * (*result: its code; -1: it cannot be loaded). */
bool cuda_nvml_list(struct cuda_gpu *gpus, int max, int *count, int *result);
ctrt_status cuda_nvml_usage(const struct cuda_gpu *gpu, ctrt_device_usage *usage, const char *name);
/* Fills what NVML knows of the way between two GPUs. */
void cuda_nvml_link(const struct cuda_gpu *gpu, const struct cuda_gpu *peer, ctrt_device_link *link);
/* One call at a time; taken by those above. Held through forks, so that no child finds it taken. */
void cuda_nvml_before_fork(void);
void cuda_nvml_after_fork(bool in_child);

/* ---- discovery.c ---- */

ctrt_status cuda_discovery_init(void);
ctrt_status cuda_count(int32_t *count);
ctrt_status cuda_describe(int32_t index, ctrt_device_info *info);
ctrt_status cuda_usage(int32_t index, ctrt_device_usage *usage);
ctrt_status cuda_link(int32_t index, int32_t peer, ctrt_device_link *link);
/* Initialises the driver; the number by which it knows our device `index`. */
ctrt_status cuda_ordinal_of(cu_device *ordinal, int32_t index);

/* ---- reason.c ---- */

/* Does something stand against CUDA that NVML does not see: a node of the driver that is missing or closed to this process? Not a verdict. */
bool cuda_reason_suspects(void);
/* Does the loader's message tell of a shortage of the moment, such as too many open files? */
bool cuda_transient(const char *told);
/* Where CUDA_VISIBLE_DEVICES leaves none of `present` GPUs. */
void cuda_reason_hidden(char *text, size_t bytes, const char *visible, int present, bool twice);
void cuda_reason_mig(char *text, size_t bytes, const char *name, const char *pci);
void cuda_reason_old(char *text, size_t bytes, int version);

#endif
