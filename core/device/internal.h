/* SPDX-License-Identifier: Apache-2.0 */
/* device/internal.h: declarations shared by the files of core/device. */
#ifndef CORE_DEVICE_INTERNAL_H
#define CORE_DEVICE_INTERNAL_H

#include "device/device.h"
#include "registry/registry.h"
#include "upcalls.h"

#define MAX_DEVICES_OF_TYPE 256

/* A backend and its visible devices; created once per process, at the first use of the type. */
struct device_type {
    struct device_type *next;
    const struct component *component;
    const ctrt_backend *backend;
    char name[32], base[32];        /* base: the type that this type's devices are aliases for; "": none */
    const ctrt_kernel_table *kernels;       /* of an alias type: kernels preferred to the base's; NULL: none */
    uint8_t float_default, matrix_dtype;    /* from ctrt_backend; float_default 0: the process default */
    int present;                    /* number of devices that the backend reports */
    int count;                      /* number of visible devices */
    int *physical;                  /* the backend's index of each visible device */
    ctrt_device **open;             /* one for each visible device; NULL until opened */
};

/* types.c: acquire and release the device lock, which guards device types and the opening of devices. */
void device_enter(void);
void device_leave(void);

/* types.c: returns the type; loads the backend and counts its devices on first use. CTRT_ERR_NO_DEVICE with the reason
 * if the backend is not usable. count may be 0. */
ctrt_status device_type_get(struct device_type **out, const char *type);
/* Fails with CTRT_ERR_NO_DEVICE and the reason unless `index` is a visible device. */
ctrt_status device_type_check(const struct device_type *type, int index);
/* The value of CTRT_VISIBLE_DEVICES; NULL when unset. */
const char *device_visible_text(void);

/* auto.c: writes the type of the best accelerator that has a device into type[32]; CTRT_ERR_NO_DEVICE without one. */
ctrt_status device_best_accelerator(char *type);
/* Resolves "auto": the device of CTRT_DEVICE if set, otherwise the best type. In a process that a launcher has started,
 * a type without an index becomes the device of the local rank. Opens no device. */
ctrt_status device_auto_spec(ctrt_device_spec *out);

/* properties.c: resolves `name` ("auto" and NULL included) to a type and an index, and checks that the device exists.
 * Opens no device. */
ctrt_status device_locate(struct device_type **type, int *index, const char *name);

/* slots.c: call slots of a backend, and check what they return. CTRT_ERR_PLUGIN for values that are not possible.
 * `type`: the name of the backend. *info is initialised by the caller. */
ctrt_status slot_describe(ctrt_device_info *info, const ctrt_backend *backend, const char *type, int index);

/* current.c: the thread's current index of `type`, for names without an index such as "cuda"; 0 if none was set. */
int device_current_index(const char *type);

#endif
