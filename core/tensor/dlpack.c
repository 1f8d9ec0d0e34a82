/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/dlpack.c: exchanges tensors with other libraries without copying, through DLPack 1.x. */
#include "tensor/dlpack.h"

#include "base/host_alloc.h"
#include "device/device.h"
#include "registry/registry.h"
#include "tensor/create.h"
#include "tensor/scope.h"

/* Device types that have a DLPack code. Pinned host memory is CPU memory. */
static const struct { int32_t code; const char *type; } device_codes[] = {
    { kDLCPU, CPU_TYPE }, { kDLCUDA, "cuda" }, { kDLROCM, "rocm" }, { kDLCUDAHost, CPU_TYPE },
    { kDLROCMHost, CPU_TYPE },
};

/* ---- export ---- */

/* An exported tensor: one allocation, freed by the deleter. */
struct exported {
    DLManagedTensorVersioned managed;
    ctrt_tensor *tensor;
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
};

static void exported_delete(DLManagedTensorVersioned *managed)
{
    struct exported *exported = managed->manager_ctx;
    tensor_release(exported->tensor);
    host_free(exported);
}

ctrt_status ctrt_to_dlpack(struct DLManagedTensorVersioned **out, ctrt_tensor *tensor)
{
    NULL_CHECK("to_dlpack", out);
    NULL_CHECK("to_dlpack", tensor);
    if (tensor_requires_grad(tensor))
        return fail_from(CTRT_ERR_AUTOGRAD, "to_dlpack",
                         "the tensor requires grad, which DLPack cannot express; export the result of "
                         "ctrt_detach");
    int32_t code = 0;
    for (size_t i = 0; i < COUNT_OF(device_codes) && code == 0; i++)
        if (strcmp(device_codes[i].type, tensor->device->type) == 0)
            code = device_codes[i].code;
    if (code == 0)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "to_dlpack",
                         "DLPack has no code for devices of type %s; copy the tensor with ctrt_cpu first",
                         tensor->device->type);
    if (unlikely(tensor->storage->moves))
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "to_dlpack",
                         "the memory policy %s of %s moves tensors, so another library cannot use their "
                         "addresses; copy the tensor with ctrt_cpu first", tensor->device->memory->policy_name,
                         tensor->device->name);
    CTRT_TRY(ctrt_context(storage_present(tensor->storage), "to_dlpack"));
    CTRT_TRY(ctrt_context(ctrt_device_synchronize(tensor->device), "to_dlpack"));

    struct exported *exported = host_calloc(sizeof *exported);
    ALLOC_CHECK(exported, sizeof *exported, "to_dlpack");
    const ctrt_view *view = &tensor->view;
    const struct dtype_info *dtype = &dtype_table[view->dtype];
    for (int d = 0; d < view->ndim; d++) {
        exported->shape[d] = view->shape[d];
        exported->strides[d] = view->strides[d];
    }
    scope_keep(tensor);
    tensor_retain(tensor);
    tensor->flags |= TENSOR_EXPORTED;
    exported->tensor = tensor;
    exported->managed = (DLManagedTensorVersioned){
        .version = { 1, 0 },
        .manager_ctx = exported,
        .deleter = exported_delete,
        .dl_tensor = { .data = view->data, .device = { code, tensor->device->physical }, .ndim = view->ndim,
                       .dtype = { dtype->dlpack_code, (uint8_t)(8 * dtype->bytes), 1 }, .shape = exported->shape,
                       .strides = exported->strides },
    };
    *out = &exported->managed;
    return CTRT_OK;
}

/* ---- import ---- */

/* Names of DLPack's type codes. The first seven come in several sizes; the others have one. */
static const char *const code_names[] = {
    "int", "uint", "float", "handle", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn",
    "float6_e3m2fn", "float4_e2m1fn",
};

static ctrt_status imported_dtype(ctrt_dtype *out, DLDataType type)
{
    if (type.lanes != 1)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "from_dlpack",
                         "elements have %d lanes; only 1 is supported", type.lanes);
    for (int d = 1; d < DTYPE_COUNT; d++) {
        if (dtype_table[d].dlpack_code == type.code && 8 * dtype_table[d].bytes == type.bits) {
            *out = (ctrt_dtype)d;
            return CTRT_OK;
        }
    }
    return fail_from(CTRT_ERR_NOT_SUPPORTED, "from_dlpack",
                     "ctrt does not have the dtype %s of %d bits (DLPack code %d); known:"
#define DTYPE(id, value, size, kind, text, dlpack, safetensors, torch) " " torch
#include "ctrt/dtype.def"
#undef DTYPE
                     , type.code < COUNT_OF(code_names) ? code_names[type.code] : "?", type.bits, type.code);
}

struct dlpack_wanted {
    const char *type;
    int physical;
    ctrt_device *found;
};

static void find_physical(ctrt_device *device, void *argument)
{
    struct dlpack_wanted *wanted = argument;
    if (strcmp(device->type, wanted->type) == 0 && device->physical == wanted->physical)
        wanted->found = device;
}

static ctrt_status imported_device(ctrt_device **out, DLDevice device)
{
    const char *type = NULL;
    for (size_t i = 0; i < COUNT_OF(device_codes) && type == NULL; i++)
        if (device_codes[i].code == device.device_type)
            type = device_codes[i].type;
    if (type == NULL || device.device_id < 0)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "from_dlpack",
                         "device %d of DLPack's type %d is not supported; export from the cpu",
                         (int)device.device_id, (int)device.device_type);
    if (type_is_cpu(type))
        return ctrt_context(device_cpu(out), "from_dlpack");
    /* DLPack's device id is the backend's index, which CTRT_VISIBLE_DEVICES does not renumber. */
    struct dlpack_wanted wanted = { type, device.device_id, NULL };
    device_for_each(find_physical, &wanted);
    for (int i = 0; wanted.found == NULL && i < ctrt_device_count(type); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s:%d", type, i);
        ctrt_device *candidate = NULL;
        CTRT_TRY(ctrt_context(ctrt_device_get(&candidate, name), "from_dlpack"));
        find_physical(candidate, &wanted);
    }
    if (wanted.found == NULL)
        return fail_from(CTRT_ERR_NO_DEVICE, "from_dlpack",
                         "device %d of type %s is not visible here; export from the cpu",
                         (int)device.device_id, type);
    *out = wanted.found;
    return CTRT_OK;
}

static void imported_release(struct storage *storage)
{
    DLManagedTensorVersioned *managed = storage->user[0];
    if (managed->deleter != NULL)
        managed->deleter(managed);
}

ctrt_status ctrt_from_dlpack(ctrt_tensor **out, struct DLManagedTensorVersioned *managed)
{
    NULL_CHECK("from_dlpack", out);
    NULL_CHECK("from_dlpack", managed);
    if (managed->version.major != 1)            /* another major version: the layout of the rest is unknown */
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "from_dlpack", "DLPack version %u.%u; this library supports 1.x",
                         (unsigned)managed->version.major, (unsigned)managed->version.minor);
    if (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "from_dlpack",
                         "the tensor is read-only, which ctrt does not support; export a copy");

    const DLTensor *tensor = &managed->dl_tensor;
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    CTRT_TRY(imported_dtype(&dtype, tensor->dtype));
    if (tensor->ndim < 0)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "from_dlpack", "a tensor of %d dimensions", (int)tensor->ndim);
    const ctrt_ints shape = ctrt_ints_of(tensor->shape, tensor->ndim);
    CTRT_TRY(shape_check("from_dlpack", shape, dtype));
    int64_t strides[CTRT_MAX_DIMS], elements;
    CTRT_TRY(strides_import(strides, &elements, "from_dlpack", shape.values, tensor->strides, shape.count, dtype));
    if (tensor->data == NULL && elements > 0)
        return fail_null("from_dlpack", "data");
    /* No object is larger than PTRDIFF_MAX bytes, so no valid offset is, and the end of the object must be a valid
     * address. */
    uintptr_t address, end;
    if (tensor->byte_offset > PTRDIFF_MAX
        || __builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, &address)
        || __builtin_add_overflow(address, (uintptr_t)elements * dtype_bytes(dtype), &end))
        return fail_from(CTRT_ERR_OVERFLOW, "from_dlpack",
                         "data %p, byte_offset %llu and %lld elements exceed the address space",
                         tensor->data, (unsigned long long)tensor->byte_offset, (long long)elements);
    if (address % dtype_bytes(dtype) != 0)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "from_dlpack",
                         "the first element is not aligned to the %zu bytes of %s; export a copy",
                         dtype_bytes(dtype), ctrt_dtype_name(dtype));
    ctrt_device *device = NULL;
    CTRT_TRY(imported_device(&device, tensor->device));

    ctrt_tensor *fresh = NULL;
    void *data = tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset;
    CTRT_TRY(tensor_new_foreign(&fresh, data, (size_t)elements * dtype_bytes(dtype), shape.values, strides, shape.count,
                                dtype, device, imported_release, managed, NULL));
    tensor_move(out, fresh);
    return CTRT_OK;
}
