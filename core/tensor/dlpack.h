/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/dlpack.h: the structs of DLPack 1.x, with the layout of its specification (dmlc.github.io/dlpack).
 *
 * Not installed: programs that exchange tensors include the DLPack project's own dlpack.h, which defines the same
 * names. */
#ifndef CORE_TENSOR_DLPACK_H
#define CORE_TENSOR_DLPACK_H

#include <stdint.h>

typedef struct {
    uint32_t major;             /* if it differs, only version, manager_ctx and deleter have the same offsets */
    uint32_t minor;
} DLPackVersion;

enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLROCM = 10, kDLROCMHost = 11 };

typedef struct {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;             /* more than 1: a vector type */
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;           /* in elements; NULL: row major */
    uint64_t byte_offset;       /* offset of the first element from data */
} DLTensor;

#define DLPACK_FLAG_BITMASK_READ_ONLY UINT64_C(1)
#define DLPACK_FLAG_BITMASK_IS_COPIED UINT64_C(2)

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#endif
