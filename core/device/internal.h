/* SPDX-License-Identifier: Apache-2.0 */
/* device/internal.h: what the device floor's own files share. */
#ifndef CORE_DEVICE_INTERNAL_H
#define CORE_DEVICE_INTERNAL_H

#include "device/device.h"
#include "registry/registry.h"

#define MAX_DEVICES_OF_TYPE 256

/* A backend and its visible devices; made once per process, when the type is first asked for. */
struct device_type {
    struct device_type *next;
    const struct component *component;
    const ctrt_backend *backend;
    char name[32], base[32];        /* base: "", or the type whose devices these are under another name */
    const ctrt_kernel_table *kernels;       /* of such a type: over the base's; NULL: none */
    uint8_t float_default, matrix_dtype;    /* ctrt_backend has them; float_default 0: the process's */
    int present;                    /* as the backend counts */
    int count;                      /* visible */
    int *physical;                  /* the backend's index of each visible one */
    ctrt_device **open;             /* per visible one; NULL until opened */
};

void device_enter(void);
void device_leave(void);

/* types.c: loads the backend and counts; CTRT_ERR_NO_DEVICE says why there is none. count may be 0. */
ctrt_status device_type_get(struct device_type **out, const char *type);
/* CTRT_ERR_NO_DEVICE with the reason unless `index` is visible. */
ctrt_status device_type_check(const struct device_type *type, int index);
/* The value of CTRT_VISIBLE_DEVICES; NULL when unset. */
const char *device_visible_text(void);

/* auto.c: the type of the best accelerator that has a device, into type[32]; CTRT_ERR_NO_DEVICE without one. */
ctrt_status device_best_accelerator(char *type);
/* What "auto" means now: CTRT_DEVICE, else the best type; opens nothing. */
ctrt_status device_auto_spec(ctrt_device_spec *out);

/* properties.c: the type and the index of `name` ("auto" and NULL included), checked to exist; opens nothing. */
ctrt_status device_locate(struct device_type **type, int *index, const char *name);

/* current.c: the thread's index for "cuda" without index; 0 unless it chose. */
int device_current_index(const char *type);

/* close.c: opens a closed device again, in the same struct. With the lock held. */
ctrt_status device_reopen(ctrt_device *device);
/* stream.c: no queue and no event is left; and new queues for all streams. */
void stream_device_shut(ctrt_device *device);
ctrt_status stream_device_reopen(ctrt_device *device);
/* open.c: the device of that spec; opens it at first use. */
ctrt_status device_open(ctrt_device **out, const ctrt_device_spec *spec);

#endif
