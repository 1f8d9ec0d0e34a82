/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack: export to a consumer and import from a producer in this file, field by field. Also tests ownership and
 * rejected tensors. */
#include <stddef.h>

#include "calls.h"
#include "core/tensor/dlpack.h"
#include "tensors.h"

static ctrt_tensor *y;

/* The struct layout is that of the specification (64-bit). */
#define AT(type, member, offset) _Static_assert(sizeof(void *) != 8 || offsetof(type, member) == offset, #member)
_Static_assert(sizeof(void *) != 8 || sizeof(DLTensor) == 48, "sizeof DLTensor");
AT(DLTensor, device, 8);
AT(DLTensor, ndim, 16);
AT(DLTensor, dtype, 20);
AT(DLTensor, shape, 24);
AT(DLTensor, strides, 32);
AT(DLTensor, byte_offset, 40);
_Static_assert(sizeof(void *) != 8 || sizeof(DLManagedTensorVersioned) == 80, "sizeof DLManagedTensorVersioned");
AT(DLManagedTensorVersioned, manager_ctx, 8);
AT(DLManagedTensorVersioned, deleter, 16);
AT(DLManagedTensorVersioned, flags, 24);
AT(DLManagedTensorVersioned, dl_tensor, 32);

TEST(test_export, NULL)
{
    static const struct { ctrt_dtype dtype; uint8_t code, bits; } cases[] = {
        { CTRT_F32, 2, 32 }, { CTRT_F64, 2, 64 }, { CTRT_F16, 2, 16 }, { CTRT_BF16, 4, 16 }, { CTRT_I8, 0, 8 },
        { CTRT_U8, 1, 8 }, { CTRT_I16, 0, 16 }, { CTRT_I32, 0, 32 }, { CTRT_I64, 0, 64 }, { CTRT_BOOL, 6, 8 },
    };
    DLManagedTensorVersioned *managed = NULL;
    group("export of every dtype");
    EACH(c, cases) {
        CTRT_AUTO(tensor) x = OP(ones, CTRT_SHAPE(2, 3), c->dtype, cpu);
        if (!CHECK_OK(ctrt_to_dlpack(&managed, x)))
            continue;
        const DLTensor *t = &managed->dl_tensor;
        CHECK_TRUE(managed->version.major == 1 && managed->flags == 0);
        CHECK_TRUE(t->dtype.code == c->code && t->dtype.bits == c->bits && t->dtype.lanes == 1);
        CHECK_TRUE(t->device.device_type == kDLCPU && t->device.device_id == 0);
        CHECK_TRUE(t->data == ctrt_tensor_data(x) && t->byte_offset == 0);
        CHECK_TRUE(t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->strides[0] == 3 && t->strides[1] == 1);
        managed->deleter(managed);
    }
    group("export of a view shares its memory and keeps the storage alive");
    ctrt_tensor *x = COUNTING(2, 3), *t = NULL;
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_select(&t, t, 0, 1));
    CHECK_OK(ctrt_to_dlpack(&managed, t));
    CHECK_OK(ctrt_from_dlpack(&y, managed));
    SHAPE_IS(y, 2);
    STRIDES_ARE(y, 3);
    VALUES_ARE(y, 1, 4);
    CHECK_OK(ctrt_fill_(x, ctrt_float(8)));
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
    VALUES_ARE(y, 8, 8);
    ctrt_tensor_release(&y);
}

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
        .dl_tensor = {
            .data = numbers, .device = { kDLCPU, 0 }, .ndim = 2, .dtype = { kDLFloat, 32, 1 }, .shape = shape,
            .strides = strides,
        },
    };
}

TEST(test_import, "import of values, strides, offsets and ownership")
{
    ctrt_tensor *part = NULL;
    DLManagedTensorVersioned managed = produced();
    DLTensor *const t = &managed.dl_tensor;
    CHECK_OK(ctrt_from_dlpack(&y, &managed));
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5);
    CHECK_TRUE(ctrt_tensor_data(y) == numbers && ctrt_tensor_device(y) == cpu);
    CHECK_OK(ctrt_select(&part, y, 0, 1));
    ctrt_tensor_release(&y);
    CHECK_EQ(deleted, 0);                                       /* the view keeps the memory */
    VALUES_ARE(part, 3, 4, 5);
    ctrt_tensor_release(&part);
    CHECK_EQ(deleted, 1);
    CHECK_TRUE(deleted_context == numbers);

    /* Changes a valid tensor, imports it and checks the values. */
#define IMPORTED(change, ...) \
    (managed = produced(), (change), CHECK_OK(ctrt_from_dlpack(&y, &managed)) ? VALUES_ARE(y, __VA_ARGS__) : (void)0)
    IMPORTED((t->strides = NULL, t->byte_offset = 4 * sizeof(float)), 4, 5, 6, 7, 8, 9);       /* NULL: row-major */
    /* Later minor versions only add fields. */
    IMPORTED((managed.version.minor = 7, managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED), 0, 1, 2, 3, 4, 5);
    /* Pinned memory is host memory. */
    IMPORTED((t->strides = (int64_t[]){ 1, 2 }, t->device.device_type = kDLCUDAHost), 0, 2, 4, 1, 3, 5);
    IMPORTED((t->ndim = 0, t->shape = t->strides = NULL, managed.deleter = NULL), 0);
    IMPORTED((t->data = (unsigned char[]){ 1, 0, 1, 1, 0, 0 }, t->dtype = (DLDataType){ kDLBool, 8, 1 }),
             1, 0, 1, 1, 0, 0);
    CHECK_EQ(ctrt_tensor_dtype(y), CTRT_BOOL);

    /* Empty tensors may have no data. Strides of their dimensions and of dimensions of size 1 may have any value. */
    static struct { int64_t shape[2], strides[2]; float *data; } any[] = {
        { { 0, 3 }, { 3, 1 }, NULL }, { { 1, 6 }, { INT64_MAX, 1 }, numbers }, { { 0, 5 }, { 1, INT64_MAX }, numbers },
    };
    EACH(c, any) {
        managed = produced();
        t->shape = c->shape, t->strides = c->strides, t->data = c->data;
        CHECK_OK(ctrt_from_dlpack(&y, &managed));
        SHAPE_IS(y, c->shape[0], c->shape[1]);
        CHECK_TRUE(ctrt_tensor_strides(y)[0] <= 6);
        CHECK_EQ(ctrt_tensor_strides(y)[1], 1);
    }
    ctrt_tensor_release(&y);
    CHECK_EQ(deleted, 8);                                       /* all but the one without a deleter */
}

TEST(test_refused, "invalid tensors are not imported, and their deleter is not called")
{
    static int64_t negative[2] = { 2, -3 }, huge[2] = { INT64_MAX, 3 }, negative_stride[2] = { -3, 1 };
    static int64_t huge_stride[2] = { INT64_MAX, INT64_MAX };
    DLManagedTensorVersioned m;
    DLTensor *t = &m.dl_tensor;
    deleted = 0;
    /* Changes a valid tensor and imports it. */
#define REFUSED(change, status, words)                                                              \
    (m = produced(), (change), CHECK_FAILS(ctrt_from_dlpack(&y, &m), status, words))
    REFUSED((m.version.major = 2, t->shape = (int64_t *)8), CTRT_ERR_NOT_SUPPORTED, "version 2.0");
    REFUSED(m.version.major = 0, CTRT_ERR_NOT_SUPPORTED, "version 0.0");
    REFUSED(m.flags = DLPACK_FLAG_BITMASK_READ_ONLY, CTRT_ERR_NOT_SUPPORTED, "read-only");
    REFUSED(t->dtype.lanes = 4, CTRT_ERR_NOT_SUPPORTED, "4 lanes");
    REFUSED(t->dtype.lanes = 0, CTRT_ERR_NOT_SUPPORTED, "0 lanes");
    REFUSED((t->dtype = (DLDataType){ 5, 64, 1 }), CTRT_ERR_NOT_SUPPORTED, "complex of 64 bits (DLPack code 5)");
    REFUSED((t->dtype = (DLDataType){ 17, 4, 1 }), CTRT_ERR_NOT_SUPPORTED, "float4_e2m1fn of 4 bits");
    REFUSED((t->dtype = (DLDataType){ 18, 8, 1 }), CTRT_ERR_NOT_SUPPORTED, "? of 8 bits (DLPack code 18)");
    REFUSED(t->dtype.bits = 8, CTRT_ERR_NOT_SUPPORTED, "float of 8 bits");
    REFUSED((t->dtype = (DLDataType){ kDLUInt, 32, 1 }), CTRT_ERR_NOT_SUPPORTED, "uint of 32 bits");
    REFUSED(t->ndim = -1, CTRT_ERR_INVALID_ARGUMENT, "-1 dimensions");
    REFUSED(t->ndim = 9, CTRT_ERR_SHAPE, "9 dimensions");
    REFUSED(t->ndim = INT32_MAX, CTRT_ERR_SHAPE, NULL);
    REFUSED(t->shape = NULL, CTRT_ERR_INVALID_ARGUMENT, "NULL");
    REFUSED(t->shape = negative, CTRT_ERR_SHAPE, "negative size");
    REFUSED(t->shape = huge, CTRT_ERR_OVERFLOW, NULL);
    REFUSED(t->strides = negative_stride, CTRT_ERR_INVALID_ARGUMENT, "negative stride");
    REFUSED(t->strides = huge_stride, CTRT_ERR_OVERFLOW, NULL);
    REFUSED(t->data = NULL, CTRT_ERR_INVALID_ARGUMENT, "data is NULL");
    REFUSED(t->data = (void *)(UINTPTR_MAX - 15), CTRT_ERR_OVERFLOW, "6 elements");
    REFUSED(t->byte_offset = 1, CTRT_ERR_NOT_SUPPORTED, "not aligned");
    REFUSED(t->byte_offset = UINT64_C(1) << 63, CTRT_ERR_OVERFLOW, "byte_offset");
    REFUSED(t->byte_offset = UINT64_MAX - 3, CTRT_ERR_OVERFLOW, "byte_offset");
    REFUSED(t->device.device_type = 77, CTRT_ERR_NOT_SUPPORTED, "77");
    REFUSED(t->device.device_id = -1, CTRT_ERR_NOT_SUPPORTED, "-1");
    REFUSED((t->device = (DLDevice){ kDLROCM, 3 }), CTRT_ERR_NO_DEVICE, "rocm");
    CHECK_EQ(deleted, 0);
    CHECK_TRUE(y == NULL);
}

CPU_TESTS_MAIN
