/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack: export to a consumer and import from a producer in this file, field by field. Also tests ownership and
 * rejected tensors. */
#include <stddef.h>

#include "core/tensor/dlpack.h"
#include "tensors.h"

static ctrt_tensor *y;

static void layout(void)
{
    group("the struct layout is that of the specification (64-bit)");
    static const struct { const char *what; size_t got, wanted; } cases[] = {
        { "sizeof DLTensor", sizeof(DLTensor), 48 }, { "DLTensor.device", offsetof(DLTensor, device), 8 },
        { "DLTensor.ndim", offsetof(DLTensor, ndim), 16 }, { "DLTensor.dtype", offsetof(DLTensor, dtype), 20 },
        { "DLTensor.shape", offsetof(DLTensor, shape), 24 }, { "DLTensor.strides", offsetof(DLTensor, strides), 32 },
        { "DLTensor.byte_offset", offsetof(DLTensor, byte_offset), 40 }, { "sizeof versioned", sizeof(DLManagedTensorVersioned), 80 },
        { "manager_ctx", offsetof(DLManagedTensorVersioned, manager_ctx), 8 }, { "deleter", offsetof(DLManagedTensorVersioned, deleter), 16 },
        { "flags", offsetof(DLManagedTensorVersioned, flags), 24 }, { "dl_tensor", offsetof(DLManagedTensorVersioned, dl_tensor), 32 },
    };
    if (sizeof(void *) != 8) {
        CHECK(true, "other offsets on %zu-byte pointers", sizeof(void *));
        return;
    }
    for (size_t i = 0; i < COUNT(cases); i++)
        CHECK(cases[i].got == cases[i].wanted, "%s: %zu, expected %zu", cases[i].what, cases[i].got, cases[i].wanted);
}

static void out(void)
{
    static const struct { ctrt_dtype dtype; uint8_t code, bits; } cases[] = {
        { CTRT_F32, 2, 32 }, { CTRT_F64, 2, 64 }, { CTRT_F16, 2, 16 }, { CTRT_BF16, 4, 16 }, { CTRT_I8, 0, 8 }, { CTRT_U8, 1, 8 },
        { CTRT_I16, 0, 16 }, { CTRT_I32, 0, 32 }, { CTRT_I64, 0, 64 }, { CTRT_BOOL, 6, 8 },
    };
    group("export of every dtype");
    for (size_t i = 0; i < COUNT(cases); i++) {
        ctrt_tensor *x = NULL;
        DLManagedTensorVersioned *managed = NULL;
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(2, 3), cases[i].dtype, cpu));
        if (!CHECK_OK(ctrt_to_dlpack(&managed, x)))
            continue;
        const DLTensor *t = &managed->dl_tensor;
        CHECK(managed->version.major == 1 && managed->flags == 0 && managed->deleter != NULL, "version %u, flags %llu",
              managed->version.major, (unsigned long long)managed->flags);
        CHECK(t->dtype.code == cases[i].code && t->dtype.bits == cases[i].bits && t->dtype.lanes == 1, "%s: code %u, %u bits, %u lanes",
              ctrt_dtype_name(cases[i].dtype), t->dtype.code, t->dtype.bits, t->dtype.lanes);
        CHECK(t->device.device_type == kDLCPU && t->device.device_id == 0, "the exported device is %d:%d",
              t->device.device_type, t->device.device_id);
        CHECK(t->data == ctrt_tensor_data(x) && t->byte_offset == 0, "the data pointer or the byte offset is wrong");
        CHECK(t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->strides[0] == 3 && t->strides[1] == 1,
              "the shape or the strides are wrong");
        managed->deleter(managed);
        ctrt_tensor_release(&x);
    }
    group("export of views keeps the storage alive; invalid exports are errors");
    ctrt_tensor *x = COUNTING(2, 3), *t = NULL;
    DLManagedTensorVersioned *managed = NULL;
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_select(&t, t, 0, 1));
    CHECK_OK(ctrt_to_dlpack(&managed, t));
    ctrt_tensor_release(&x);                    /* the export holds a reference to the storage */
    ctrt_tensor_release(&t);
    const float *data = managed->dl_tensor.data;
    CHECK(managed->dl_tensor.strides[0] == 3 && data[0] == 1 && data[3] == 4, "a strided view: %g %g", (double)data[0], (double)data[3]);
    managed->deleter(managed);
    managed = NULL;
    x = COUNTING(2);
    CHECK_FAILS(ctrt_to_dlpack(NULL, x), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_to_dlpack(&managed, NULL), CTRT_ERR_INVALID_ARGUMENT, "tensor is NULL");
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_FAILS(ctrt_to_dlpack(&managed, x), CTRT_ERR_AUTOGRAD, "ctrt_detach");
    CHECK(managed == NULL, "a failed call set the output");
    ctrt_tensor *plain = NULL;
    CHECK_OK(ctrt_detach(&plain, x));
    if (CHECK_OK(ctrt_to_dlpack(&managed, plain)))
        managed->deleter(managed);
    ctrt_tensor_release(&plain);
    ctrt_tensor_release(&x);

    group("an exported tensor can be imported");
    x = COUNTING(2, 3);
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_to_dlpack(&managed, t));
    CHECK_OK(ctrt_from_dlpack(&y, managed));
    SHAPE_IS(y, 3, 2);
    STRIDES_ARE(y, 1, 3);
    VALUES_ARE(y, 0, 3, 1, 4, 2, 5);
    CHECK_OK(ctrt_fill_(y, ctrt_float(8)));
    VALUES_ARE(x, 8, 8, 8, 8, 8, 8);            /* shared memory */
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
    VALUES_ARE(y, 8, 8, 8, 8, 8, 8);
    ctrt_tensor_release(&y);
}

/* ---- a producer ---- */

static int deleted;
static void *deleted_context;

static void count_deletion(DLManagedTensorVersioned *self)
{
    deleted++;
    deleted_context = self->manager_ctx;
}

static float numbers[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
static int64_t shape[9] = { 2, 3, 1, 1, 1, 1, 1, 1, 1 }, strides[9] = { 3, 1, 1, 1, 1, 1, 1, 1, 1 };

/* A valid f32 tensor [2, 3]. */
static DLManagedTensorVersioned produced(void)
{
    return (DLManagedTensorVersioned){
        .version = { 1, 0 }, .manager_ctx = numbers, .deleter = count_deletion,
        .dl_tensor = { .data = numbers, .device = { kDLCPU, 0 }, .ndim = 2, .dtype = { kDLFloat, 32, 1 }, .shape = shape, .strides = strides },
    };
}

static void in(void)
{
    group("import of values, strides, offsets and ownership");
    ctrt_tensor *part = NULL;
    DLManagedTensorVersioned managed = produced();
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5);
    CHECK(ctrt_tensor_data(y) == numbers && ctrt_tensor_device(y) == cpu,
          "the import copied the data or has another device");
    CHECK_OK(ctrt_select(&part, y, 0, 1));
    ctrt_tensor_release(&y);
    CHECK(deleted == 0, "the deleter ran while a view existed");
    VALUES_ARE(part, 3, 4, 5);
    ctrt_tensor_release(&part);
    CHECK(deleted == 1 && deleted_context == numbers, "deleted %d times, expected 1", deleted);

    managed = produced();
    managed.dl_tensor.strides = NULL;                           /* NULL: row-major */
    managed.dl_tensor.byte_offset = 4 * sizeof(float);
    managed.version.minor = 7;                                  /* later minor versions only add fields */
    managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED;
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    VALUES_ARE(y, 4, 5, 6, 7, 8, 9);
    ctrt_tensor_release(&y);

    managed = produced();
    int64_t transposed[2] = { 1, 2 };
    managed.dl_tensor.strides = transposed;
    managed.dl_tensor.device = (DLDevice){ kDLCUDAHost, 0 };    /* pinned memory is host memory */
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    VALUES_ARE(y, 0, 2, 4, 1, 3, 5);
    ctrt_tensor_release(&y);

    managed = produced();
    managed.dl_tensor.ndim = 0;
    managed.dl_tensor.shape = managed.dl_tensor.strides = NULL;
    managed.deleter = NULL;                                     /* no deleter to call */
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    VALUES_ARE(y, 0);
    ctrt_tensor_release(&y);

    managed = produced();
    int64_t none[2] = { 0, 3 };
    managed.dl_tensor.shape = none;
    managed.dl_tensor.data = NULL;
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    SHAPE_IS(y, 0, 3);
    ctrt_tensor_release(&y);

    /* Strides of dimensions of size 1 and of empty tensors may have any value. */
    static const struct {
        int64_t shape[2], strides[2];
    } any[] = { { { 1, 6 }, { INT64_MAX, 1 } }, { { 0, 5 }, { 1, INT64_MAX } } };
    for (size_t i = 0; i < COUNT(any); i++) {
        managed = produced();
        managed.dl_tensor.shape = (int64_t *)(uintptr_t)any[i].shape;
        managed.dl_tensor.strides = (int64_t *)(uintptr_t)any[i].strides;
        CHECK_OK(ctrt_from_dlpack(&y, &managed));
        SHAPE_IS(y, any[i].shape[0], any[i].shape[1]);
        CHECK(ctrt_tensor_strides(y)[0] <= 6 && ctrt_tensor_strides(y)[1] == 1,
              "the imported strides are %lld and %lld", (long long)ctrt_tensor_strides(y)[0],
              (long long)ctrt_tensor_strides(y)[1]);
        ctrt_tensor_release(&y);
    }

    managed = produced();
    unsigned char flags[6] = { 1, 0, 1, 1, 0, 0 };
    managed.dl_tensor.data = flags;
    managed.dl_tensor.dtype = (DLDataType){ kDLBool, 8, 1 };
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    CHECK(ctrt_tensor_dtype(y) == CTRT_BOOL, "the imported dtype is %s, expected bool",
          ctrt_dtype_name(ctrt_tensor_dtype(y)));
    VALUES_ARE(y, 1, 0, 1, 1, 0, 0);
    ctrt_tensor_release(&y);
    CHECK(deleted == 7, "deleted %d times, expected 7", deleted);
}

static void version_2(DLManagedTensorVersioned *m) { m->version.major = 2; m->dl_tensor.shape = (int64_t *)8; }
static void version_0(DLManagedTensorVersioned *m) { m->version.major = 0; }
static void read_only(DLManagedTensorVersioned *m) { m->flags = DLPACK_FLAG_BITMASK_READ_ONLY; }
static void four_lanes(DLManagedTensorVersioned *m) { m->dl_tensor.dtype.lanes = 4; }
static void no_lanes(DLManagedTensorVersioned *m) { m->dl_tensor.dtype.lanes = 0; }
static void complex_type(DLManagedTensorVersioned *m) { m->dl_tensor.dtype = (DLDataType){ 5, 64, 1 }; }
static void odd_bits(DLManagedTensorVersioned *m) { m->dl_tensor.dtype.bits = 8; }
static void unsigned_32(DLManagedTensorVersioned *m) { m->dl_tensor.dtype = (DLDataType){ kDLUInt, 32, 1 }; }
static void negative_ndim(DLManagedTensorVersioned *m) { m->dl_tensor.ndim = -1; }
static void nine_dims(DLManagedTensorVersioned *m) { m->dl_tensor.ndim = 9; }
static void huge_ndim(DLManagedTensorVersioned *m) { m->dl_tensor.ndim = INT32_MAX; }
static void no_shape(DLManagedTensorVersioned *m) { m->dl_tensor.shape = NULL; }
static void negative_size(DLManagedTensorVersioned *m) { static int64_t s[2] = { 2, -3 }; m->dl_tensor.shape = s; }
static void huge_size(DLManagedTensorVersioned *m) { static int64_t s[2] = { INT64_MAX, 3 }; m->dl_tensor.shape = s; }
static void negative_stride(DLManagedTensorVersioned *m) { static int64_t s[2] = { -3, 1 }; m->dl_tensor.strides = s; }
static void huge_stride(DLManagedTensorVersioned *m) { static int64_t s[2] = { INT64_MAX, INT64_MAX }; m->dl_tensor.strides = s; }
static void no_data(DLManagedTensorVersioned *m) { m->dl_tensor.data = NULL; }
static void off_by_one(DLManagedTensorVersioned *m) { m->dl_tensor.byte_offset = 1; }
static void far_offset(DLManagedTensorVersioned *m) { m->dl_tensor.byte_offset = UINT64_MAX - 3; }
static void half_offset(DLManagedTensorVersioned *m) { m->dl_tensor.byte_offset = UINT64_C(1) << 63; }
static void high_data(DLManagedTensorVersioned *m) { m->dl_tensor.data = (void *)(UINTPTR_MAX - 15); }
static void unknown_device(DLManagedTensorVersioned *m) { m->dl_tensor.device.device_type = 77; }
static void negative_device(DLManagedTensorVersioned *m) { m->dl_tensor.device.device_id = -1; }
static void absent_device(DLManagedTensorVersioned *m) { m->dl_tensor.device = (DLDevice){ kDLROCM, 3 }; }

static void refused(void)
{
    static const struct { const char *what; void (*spoil)(DLManagedTensorVersioned *); ctrt_status status; const char *words; } cases[] = {
        { "version 2", version_2, CTRT_ERR_NOT_SUPPORTED, "version 2.0" }, { "version 0", version_0, CTRT_ERR_NOT_SUPPORTED, "version 0.0" },
        { "read-only", read_only, CTRT_ERR_NOT_SUPPORTED, "read-only" }, { "lanes 4", four_lanes, CTRT_ERR_NOT_SUPPORTED, "4 lanes" },
        { "lanes 0", no_lanes, CTRT_ERR_NOT_SUPPORTED, "0 lanes" }, { "complex", complex_type, CTRT_ERR_NOT_SUPPORTED, "code 5" },
        { "float of 8 bits", odd_bits, CTRT_ERR_NOT_SUPPORTED, "8 bits" }, { "u32", unsigned_32, CTRT_ERR_NOT_SUPPORTED, "32 bits" },
        { "ndim -1", negative_ndim, CTRT_ERR_INVALID_ARGUMENT, "-1 dimensions" }, { "ndim 9", nine_dims, CTRT_ERR_SHAPE, "9 dimensions" },
        { "ndim 2^31-1", huge_ndim, CTRT_ERR_SHAPE, NULL }, { "shape NULL", no_shape, CTRT_ERR_INVALID_ARGUMENT, "NULL" },
        { "size -3", negative_size, CTRT_ERR_SHAPE, "negative size" }, { "sizes overflow", huge_size, CTRT_ERR_OVERFLOW, NULL },
        { "stride -3", negative_stride, CTRT_ERR_INVALID_ARGUMENT, "negative stride" }, { "strides overflow", huge_stride, CTRT_ERR_OVERFLOW, NULL },
        { "data NULL", no_data, CTRT_ERR_INVALID_ARGUMENT, "data is NULL" }, { "byte_offset 1", off_by_one, CTRT_ERR_NOT_SUPPORTED, "not aligned" },
        { "byte_offset 2^63", half_offset, CTRT_ERR_OVERFLOW, "byte_offset" },
        { "data at the end", high_data, CTRT_ERR_OVERFLOW, "6 elements" },
        { "byte_offset 2^64", far_offset, CTRT_ERR_OVERFLOW, "byte_offset" }, { "device type 77", unknown_device, CTRT_ERR_NOT_SUPPORTED, "77" },
        { "device -1", negative_device, CTRT_ERR_NOT_SUPPORTED, "-1" }, { "absent device", absent_device, CTRT_ERR_NO_DEVICE, "rocm" },
    };
    deleted = 0;
    for (size_t i = 0; i < COUNT(cases); i++) {
        group("import rejects: %s", cases[i].what);
        DLManagedTensorVersioned managed = produced();
        cases[i].spoil(&managed);
        CHECK_FAILS(ctrt_from_dlpack(&y, &managed), cases[i].status, cases[i].words);
        CHECK(y == NULL && deleted == 0, "a rejected tensor was imported or deleted");
    }
    group("import rejects: NULL");
    DLManagedTensorVersioned managed = produced();
    CHECK_FAILS(ctrt_from_dlpack(NULL, &managed), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_from_dlpack(&y, NULL), CTRT_ERR_INVALID_ARGUMENT, "managed is NULL");
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    layout();
    out();
    in();
    refused();
    return done();
}
