/* SPDX-License-Identifier: Apache-2.0 */
/* Tests copies between layouts, dtypes and devices (including a device whose memory the host cannot access),
 * in-place copies, and copies to and from host buffers. */
#include <math.h>

#include "base/param.h"
#include "tensors.h"
#include "toy.h"

static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16, CTRT_I8, CTRT_U8, CTRT_I16, CTRT_I32,
                                     CTRT_I64, CTRT_BOOL };
static ctrt_tensor *y;

static void layouts(void)
{
    group("contiguous and clone: strides, values and storage");
    ctrt_tensor *x = COUNTING(2, 3), *t = NULL, *e = NULL, *image = COUNTING(2, 3, 2, 2);
    CHECK_OK(ctrt_contiguous(&y, x, CTRT_CONTIGUOUS_FORMAT));
    CHECK(y == x, "a contiguous tensor was copied");
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_contiguous(&y, t, CTRT_CONTIGUOUS_FORMAT));
    STRIDES_ARE(y, 2, 1);
    VALUES_ARE(y, 0, 3, 1, 4, 2, 5);
    CHECK(!ctrt_tensor_shares_storage(y, t), "the copy shares the storage");
    CHECK_OK(ctrt_clone(&y, t));
    STRIDES_ARE(y, 1, 3);
    VALUES_ARE(y, 0, 3, 1, 4, 2, 5);
    CHECK_OK(ctrt_fill_(y, ctrt_int(8)));
    VALUES_ARE(x, 0, 1, 2, 3, 4, 5);
    CHECK_OK(ctrt_expand(&e, x, CTRT_SHAPE(2, 2, 3)));
    CHECK_OK(ctrt_clone(&y, e));
    STRIDES_ARE(y, 6, 3, 1);
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5);
    /* As in PyTorch, clone removes gaps and keeps the order of dimensions. */
    static const struct { int ndim; int64_t shape[4], strides[4], wanted[4]; } orders[] = {
        { 2, { 2, 3 }, { 1, 4 }, { 1, 2 } }, { 2, { 3, 2 }, { 1, 4 }, { 1, 3 } },
        { 3, { 2, 6, 2 }, { 0, 1, 6 }, { 12, 1, 6 } },
        { 4, { 2, 2, 2, 5 }, { 1, 2, 0, 4 }, { 1, 4, 2, 8 } }, { 3, { 2, 2, 2 }, { 8, 4, 2 }, { 4, 2, 1 } },
        { 3, { 3, 4, 1 }, { 1, 4, 4 }, { 1, 3, 3 } },
    };
    ctrt_tensor *room = COUNTING(64), *gaps = NULL;
    for (size_t i = 0; i < COUNT(orders); i++) {
        CHECK_OK(ctrt_as_strided(&gaps, room, ctrt_ints_of(orders[i].shape, orders[i].ndim),
                                 ctrt_ints_of(orders[i].strides, orders[i].ndim), 0));
        CHECK_OK(ctrt_clone(&y, gaps));
        check_strides("clone", __LINE__, y, ctrt_ints_of(orders[i].wanted, orders[i].ndim));
        double wanted[64];
        CHECK_OK(ctrt_to_host(wanted, sizeof wanted, gaps, CTRT_F64));
        check_values("clone", __LINE__, y, wanted, ctrt_tensor_numel(gaps));
    }
    ctrt_tensor_release(&room);
    ctrt_tensor_release(&gaps);
    CHECK_OK(ctrt_contiguous(&y, image, CTRT_CHANNELS_LAST));
    STRIDES_ARE(y, 12, 1, 6, 3);
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
    CHECK_OK(ctrt_clone(&image, y));
    CHECK(ctrt_tensor_is_contiguous(image, CTRT_CHANNELS_LAST), "clone did not keep channels-last");
    CHECK_OK(ctrt_contiguous(&image, image, CTRT_CONTIGUOUS_FORMAT));
    STRIDES_ARE(image, 12, 4, 2, 1);
    CHECK_FAILS(ctrt_contiguous(&y, x, CTRT_CHANNELS_LAST), CTRT_ERR_SHAPE, "4 dimensions, not shape [2, 3]");
    CHECK_FAILS(ctrt_contiguous(&y, x, CTRT_PRESERVE_FORMAT), CTRT_ERR_INVALID_ARGUMENT, "name a format");
    CHECK_FAILS(ctrt_contiguous(&y, x, (ctrt_memory_format)7), CTRT_ERR_INVALID_ARGUMENT, "7");
    CHECK_FAILS(ctrt_contiguous(&y, NULL, CTRT_CONTIGUOUS_FORMAT), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_contiguous(NULL, x, CTRT_CONTIGUOUS_FORMAT), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_clone(&y, NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_clone(NULL, x), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
    ctrt_tensor_release(&e);
    ctrt_tensor_release(&image);
}

static void casts(void)
{
    group("to: every dtype to every other");
    static const double values[4] = { 0, 1, 100, 2 };
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        ctrt_tensor *x = NULL;
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(4), dtypes[i], cpu));
        CHECK_OK(ctrt_from_host_(x, values, 4, CTRT_F64));
        for (size_t j = 0; j < COUNT(dtypes); j++) {
            CHECK_OK(ctrt_to_dtype(&y, x, dtypes[j]));
            CHECK(ctrt_tensor_dtype(y) == dtypes[j], "%s to %s gave %s", ctrt_dtype_name(dtypes[i]),
                  ctrt_dtype_name(dtypes[j]),
                  ctrt_dtype_name(ctrt_tensor_dtype(y)));
            CHECK((y == x) == (i == j), "%s to %s: the same tensor: %d", ctrt_dtype_name(dtypes[i]),
                  ctrt_dtype_name(dtypes[j]), y == x);
            if (dtypes[i] == CTRT_BOOL || dtypes[j] == CTRT_BOOL)
                VALUES_ARE(y, 0, 1, 1, 1);
            else
                VALUES_ARE(y, 0, 1, 100, 2);
        }
        ctrt_tensor_release(&x);
    }
    group("to: rounds, truncates, keeps the layout, and returns the same tensor if nothing changes");
    ctrt_tensor *x = NULL, *t = NULL;
    const float numbers[6] = { -2.9f, 2.9f, 0.5f, 65520, 1e9f, NAN };
    CHECK_OK(ctrt_from_data(&x, numbers, 6, CTRT_SHAPE(6), CTRT_F32, cpu));
    CHECK_OK(ctrt_narrow(&y, x, 0, 0, 3));
    CHECK_OK(ctrt_to_dtype(&y, y, CTRT_I32));
    VALUES_ARE(y, -2, 2, 0);
    CHECK_OK(ctrt_to_dtype(&y, x, CTRT_F16));
    VALUES_ARE(y, (double)(-2.900390625), 2.900390625, 0.5, INFINITY, INFINITY, NAN);
    CHECK_OK(ctrt_to_dtype(&y, x, CTRT_BOOL));
    VALUES_ARE(y, 1, 1, 1, 1, 1, 1);
#ifdef __x86_64__                           /* undefined in C; the values are PyTorch's */
    const float beyond[4] = { 1e30f, -1e30f, NAN, INFINITY };
    CHECK_OK(ctrt_from_data(&y, beyond, 4, CTRT_SHAPE(4), CTRT_F32, cpu));
    CHECK_OK(ctrt_to_dtype(&y, y, CTRT_I64));
    VALUES_ARE(y, -0x1p63, -0x1p63, -0x1p63, -0x1p63);
#endif
    CHECK_OK(ctrt_to(&y, x, NULL, CTRT_DTYPE_DEFAULT, false, CTRT_PRESERVE_FORMAT));
    CHECK(y == x, "nothing to change, but a copy was made");
    CHECK_OK(ctrt_to(&y, x, cpu, CTRT_F32, true, CTRT_PRESERVE_FORMAT));
    CHECK(y != x && !ctrt_tensor_shares_storage(x, y), "no copy was made although copy is true");
    CHECK_OK(ctrt_to_device(&y, x, cpu));
    CHECK(y == x, "to_device copied to the same device");
    CHECK_OK(ctrt_cpu(&y, x));
    CHECK(y == x, "ctrt_cpu copied a cpu tensor");
    CHECK_OK(ctrt_reshape(&t, x, CTRT_SHAPE(2, 3)));
    CHECK_OK(ctrt_t(&t, t));
    CHECK_OK(ctrt_to_dtype(&y, t, CTRT_F64));
    STRIDES_ARE(y, 1, 3);                       /* CTRT_PRESERVE_FORMAT keeps the strides */
    CHECK_OK(ctrt_to(&y, t, NULL, CTRT_DTYPE_DEFAULT, false, CTRT_CONTIGUOUS_FORMAT));
    STRIDES_ARE(y, 2, 1);
    CHECK_FAILS(ctrt_to(&y, t, NULL, CTRT_DTYPE_DEFAULT, false, CTRT_CHANNELS_LAST), CTRT_ERR_SHAPE, "4 dimensions");
    CHECK_FAILS(ctrt_to(&y, t, NULL, (ctrt_dtype)50, false, CTRT_PRESERVE_FORMAT), CTRT_ERR_DTYPE, "50");
    CHECK_FAILS(ctrt_to(&y, t, NULL, CTRT_F32, false, (ctrt_memory_format)-1), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(ctrt_to(&y, NULL, NULL, CTRT_F32, false, CTRT_PRESERVE_FORMAT), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_to(NULL, t, NULL, CTRT_F32, false, CTRT_PRESERVE_FORMAT), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_to_dtype(&y, NULL, CTRT_F32), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_to_dtype(&y, t, (ctrt_dtype)-3), CTRT_ERR_DTYPE, "-3");
    CHECK_FAILS(ctrt_to_device(&y, t, NULL), CTRT_ERR_INVALID_ARGUMENT, "device is NULL");
    CHECK_FAILS(ctrt_to_device(&y, NULL, cpu), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_cpu(&y, NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_cpu(NULL, t), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
}

static void in_place(void)
{
    group("copy_ broadcasts, converts, and handles overlapping memory");
    ctrt_tensor *x = COUNTING(2, 3), *row = counting_of(CTRT_SHAPE(3), CTRT_I64), *part = NULL, *other = NULL,
        *e = NULL;
    uint32_t version = ctrt_tensor_version(x);
    CHECK_OK(ctrt_copy_(x, row));
    VALUES_ARE(x, 0, 1, 2, 0, 1, 2);
    CHECK(ctrt_tensor_version(x) == version + 1, "version %u after %u", ctrt_tensor_version(x), version);
    CHECK_OK(ctrt_select(&part, x, 1, 1));
    CHECK_OK(ctrt_scalar_tensor(&other, ctrt_float(7.5), CTRT_F64, cpu));
    CHECK_OK(ctrt_copy_(part, other));
    VALUES_ARE(x, 0, 7.5, 2, 0, 7.5, 2);
    CHECK_OK(ctrt_copy_(x, x));
    VALUES_ARE(x, 0, 7.5, 2, 0, 7.5, 2);
    /* A source in the same memory is read before it is overwritten. */
    ctrt_tensor *v = COUNTING(5), *from = NULL, *to = NULL, *square = COUNTING(3, 3);
    CHECK_OK(ctrt_narrow(&from, v, 0, 0, 4));
    CHECK_OK(ctrt_narrow(&to, v, 0, 1, 4));
    CHECK_OK(ctrt_copy_(to, from));
    VALUES_ARE(v, 0, 0, 1, 2, 3);
    CHECK_OK(ctrt_t(&from, square));
    CHECK_OK(ctrt_copy_(square, from));
    VALUES_ARE(square, 0, 3, 6, 1, 4, 7, 2, 5, 8);
    CHECK_OK(ctrt_select(&from, square, 0, 1));
    CHECK_OK(ctrt_copy_(square, from));
    VALUES_ARE(square, 1, 4, 7, 1, 4, 7, 1, 4, 7);
    CHECK_OK(ctrt_expand(&e, row, CTRT_SHAPE(2, 3)));
    CHECK_FAILS(ctrt_copy_(e, x), CTRT_ERR_INVALID_ARGUMENT, "expanded");
    CHECK_FAILS(ctrt_copy_(row, x), CTRT_ERR_SHAPE, "[2, 3]");
    CHECK_FAILS(ctrt_copy_(x, v), CTRT_ERR_SHAPE, "copy_");
    CHECK_FAILS(ctrt_copy_(NULL, x), CTRT_ERR_INVALID_ARGUMENT, "self is NULL");
    CHECK_FAILS(ctrt_copy_(x, NULL), CTRT_ERR_INVALID_ARGUMENT, "source is NULL");

    group("fill_ and zero_ of every dtype, also through views");
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        CHECK_OK(ctrt_to_dtype(&y, x, dtypes[i]));
        CHECK_OK(ctrt_clone(&y, y));
        CHECK_OK(ctrt_narrow(&part, y, 1, 1, 2));
        CHECK_OK(ctrt_zero_(y));
        CHECK_OK(ctrt_fill_(part, ctrt_int(1)));
        VALUES_ARE(y, 0, 1, 1, 0, 1, 1);
        CHECK_OK(ctrt_zero_(part));
        VALUES_ARE(y, 0, 0, 0, 0, 0, 0);
        CHECK_OK(ctrt_fill_(y, ctrt_bool(true)));
        VALUES_ARE(y, 1, 1, 1, 1, 1, 1);
    }
    CHECK_OK(ctrt_to(&y, x, NULL, CTRT_I8, true, CTRT_PRESERVE_FORMAT));
    CHECK_OK(ctrt_fill_(y, ctrt_float(-3.7)));
    VALUES_ARE(y, -3, -3, -3, -3, -3, -3);
    version = ctrt_tensor_version(y);
    CHECK_FAILS(ctrt_fill_(y, ctrt_int(128)), CTRT_ERR_OVERFLOW, "fill_: 128 cannot be converted to i8");
    CHECK_FAILS(ctrt_fill_(e, ctrt_int(1)), CTRT_ERR_INVALID_ARGUMENT, "expanded");
    CHECK_FAILS(ctrt_zero_(e), CTRT_ERR_INVALID_ARGUMENT, "expanded");
    CHECK_FAILS(ctrt_fill_(NULL, ctrt_int(1)), CTRT_ERR_INVALID_ARGUMENT, "self is NULL");
    CHECK_FAILS(ctrt_zero_(NULL), CTRT_ERR_INVALID_ARGUMENT, "self is NULL");
    CHECK(ctrt_tensor_version(y) == version, "a failed call increased the version");
    ctrt_tensor *all[] = { x, row, part, other, e, v, from, to, square };
    for (size_t i = 0; i < COUNT(all); i++)
        ctrt_tensor_release(&all[i]);
}

static void host(void)
{
    group("item and item_int of every dtype");
    static const struct { double value; ctrt_dtype dtype; double item; int64_t whole; } cases[] = {
        { 2.75, CTRT_F32, 2.75, 2 }, { -2.75, CTRT_F64, -2.75, -2 }, { 0.5, CTRT_F16, 0.5, 0 }, { 3, CTRT_BF16, 3, 3 },
        { -7, CTRT_I8, -7, -7 }, { 200, CTRT_U8, 200, 200 }, { 1, CTRT_BOOL, 1, 1 },
        { -40000, CTRT_I32, -40000, -40000 },
    };
    double item = -1;
    int64_t whole = -1;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK_OK(ctrt_full(&y, CTRT_SHAPE(1, 1), ctrt_float(cases[i].value), cases[i].dtype, cpu));
        CHECK_OK(ctrt_item(&item, y));
        CHECK_OK(ctrt_item_int(&whole, y));
        CHECK(item == cases[i].item && whole == cases[i].whole, "case %zu: %g and %lld", i, item, (long long)whole);
    }
    CHECK_OK(ctrt_scalar_tensor(&y, ctrt_int(INT64_MAX), CTRT_I64, cpu));
    CHECK_OK(ctrt_item_int(&whole, y));
    CHECK(whole == INT64_MAX, "item_int gives %lld, expected INT64_MAX", (long long)whole);
    CHECK_OK(ctrt_scalar_tensor(&y, ctrt_float(NAN), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_item_int(&whole, y), CTRT_ERR_OVERFLOW, "nan");
    CHECK_OK(ctrt_scalar_tensor(&y, ctrt_float(1e19), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_item_int(&whole, y), CTRT_ERR_OVERFLOW, "64-bit");
    ctrt_tensor *two = COUNTING(2), *none = NULL;
    CHECK_OK(ctrt_empty(&none, CTRT_SHAPE(0), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_item(&item, two), CTRT_ERR_SHAPE,
                "item: expected a tensor of one element, got 2 elements of shape [2]");
    CHECK_FAILS(ctrt_item_int(&whole, none), CTRT_ERR_SHAPE, "got 0");
    CHECK_FAILS(ctrt_item(&item, NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_item(NULL, two), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_item_int(&whole, NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_item_int(NULL, two), CTRT_ERR_INVALID_ARGUMENT, "NULL");

    group("to_host and from_host_ convert dtype and layout");
    ctrt_tensor *x = COUNTING(2, 3), *t = NULL;
    CHECK_OK(ctrt_t(&t, x));
    int16_t shorts[6];
    CHECK_OK(ctrt_to_host(shorts, sizeof shorts, t, CTRT_I16));
    CHECK(shorts[1] == 3 && shorts[5] == 5, "not in row-major order: %d %d", shorts[1], shorts[5]);
    float floats[6];
    CHECK_OK(ctrt_to_host(floats, sizeof floats, t, CTRT_DTYPE_DEFAULT));
    CHECK(floats[1] == 3 && floats[2] == 1, "with the default dtype: %g %g", (double)floats[1], (double)floats[2]);
    unsigned char bytes[1 + 6 * sizeof(double)];
    CHECK_OK(ctrt_to_host(bytes + 1, 6 * sizeof(double), t, CTRT_F64));
    double at_two;
    memcpy(&at_two, bytes + 1 + 1 * sizeof(double), sizeof at_two);
    CHECK(at_two == 3, "into an unaligned buffer: %g", at_two);
    memset(bytes, 0, sizeof bytes);
    CHECK_OK(ctrt_from_host_(t, bytes + 1, 6, CTRT_F64));
    VALUES_ARE(x, 0, 0, 0, 0, 0, 0);
    const int32_t ints[6] = { 1, 2, 3, 4, 5, 6 };
    uint32_t version = ctrt_tensor_version(x);
    CHECK_OK(ctrt_from_host_(t, ints, 6, CTRT_I32));
    VALUES_ARE(x, 1, 3, 5, 2, 4, 6);
    CHECK(ctrt_tensor_version(x) == version + 1, "version %u after %u", ctrt_tensor_version(x), version);
    CHECK_OK(ctrt_to_host(NULL, 0, none, CTRT_F32));
    CHECK_OK(ctrt_from_host_(none, NULL, 0, CTRT_F32));
    CHECK_FAILS(ctrt_to_host(floats, sizeof floats - 1, x, CTRT_F32), CTRT_ERR_INVALID_ARGUMENT, "23 bytes");
    CHECK_FAILS(ctrt_to_host(floats, sizeof floats, x, CTRT_F64), CTRT_ERR_INVALID_ARGUMENT, "6 elements of 8 bytes");
    CHECK_FAILS(ctrt_to_host(NULL, 100, x, CTRT_F32), CTRT_ERR_INVALID_ARGUMENT, "buffer is NULL");
    CHECK_FAILS(ctrt_to_host(floats, sizeof floats, NULL, CTRT_F32), CTRT_ERR_INVALID_ARGUMENT, "tensor is NULL");
    CHECK_FAILS(ctrt_to_host(floats, sizeof floats, x, (ctrt_dtype)31), CTRT_ERR_DTYPE, "31");
    CHECK_FAILS(ctrt_from_host_(x, ints, 5, CTRT_I32), CTRT_ERR_SHAPE, "5 values");
    CHECK_FAILS(ctrt_from_host_(x, ints, -1, CTRT_I32), CTRT_ERR_SHAPE, "-1 values");
    CHECK_FAILS(ctrt_from_host_(x, NULL, 6, CTRT_I32), CTRT_ERR_INVALID_ARGUMENT, "buffer is NULL");
    CHECK_FAILS(ctrt_from_host_(NULL, ints, 6, CTRT_I32), CTRT_ERR_INVALID_ARGUMENT, "tensor is NULL");
    CHECK_FAILS(ctrt_from_host_(x, ints, 6, (ctrt_dtype)31), CTRT_ERR_DTYPE, "31");
    ctrt_tensor *e = NULL;
    CHECK_OK(ctrt_expand(&e, none, CTRT_SHAPE(2, 0)));
    CHECK_OK(ctrt_from_host_(e, NULL, 0, CTRT_F32));
    ctrt_tensor *all[] = { two, none, x, t, e };
    for (size_t i = 0; i < COUNT(all); i++)
        ctrt_tensor_release(&all[i]);
}

/* ---- a device whose memory the host cannot access ---- */

/* Creates an uninitialized 2 by 3 tensor in one of four layouts. */
static ctrt_status laid_out(ctrt_tensor **out, ctrt_device *device, ctrt_dtype dtype, int layout)
{
    static const struct { int64_t shape[2], strides[2], room; } layouts[] = {
        { { 2, 3 }, { 3, 1 }, 6 }, { { 2, 3 }, { 1, 2 }, 6 }, { { 2, 3 }, { 8, 2 }, 14 }, { { 2, 3 }, { 0, 1 }, 3 },
    };
    ctrt_tensor *room = NULL;
    CTRT_TRY(ctrt_empty(&room, CTRT_SHAPE(layouts[layout].room), dtype, device));
    ctrt_status status = ctrt_as_strided(out, room, ctrt_ints_of(layouts[layout].shape, 2),
                                         ctrt_ints_of(layouts[layout].strides, 2), 0);
    ctrt_tensor_release(&room);
    return status;
}

static void routes(void)
{
    static const char *const kinds[] = { "bare", "dense", "full" };
    ctrt_device *devices[4] = { NULL };
    devices[3] = cpu;
    for (int k = TOY_BARE; k <= TOY_FULL; k++) {
        group("a device without host access opens: %s", kinds[k]);
        if (!CHECK_OK(toy_open(&devices[k], k)))
            return;
    }
    group("copies between all pairs of devices, layouts and dtypes");
    static const ctrt_dtype some[] = { CTRT_F32, CTRT_I16, CTRT_F64 };
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            for (int from_layout = 0; from_layout < 4; from_layout++)
                for (int to_layout = 0; to_layout < 3; to_layout++)
                    for (size_t i = 0; i < COUNT(some); i++)
                        for (size_t j = 0; j < COUNT(some); j++) {
                            /* Within one device, a missing kernel is an error and not replaced by a copy through the
                             * host. */
                            const bool strided = from_layout != 0 || to_layout != 0;
                            if (a == b && a < TOY_FULL && (strided || (a == TOY_BARE && i != j)))
                                continue;
                            ctrt_tensor *from = NULL, *to = NULL;
                            const double row[3] = { 5, 6, 7 }, grid[6] = { 1, 2, 3, 4, 5, 6 },
                                twice[6] = { 5, 6, 7, 5, 6, 7 };
                            CHECK_OK(laid_out(&from, devices[a], some[i], from_layout));
                            if (from_layout == 3) {
                                CHECK_OK(ctrt_select(&to, from, 0, 0));
                                CHECK_OK(ctrt_from_host_(to, row, 3, CTRT_F64));
                            } else {
                                CHECK_OK(ctrt_from_host_(from, grid, 6, CTRT_F64));
                            }
                            CHECK_OK(laid_out(&to, devices[b], some[j], to_layout));
                            CHECK_OK(kernel_copy(&to->view, devices[b], &from->view, devices[a]));
                            char what[128];
                            snprintf(what, sizeof what, "%s layout %d %s to %s layout %d %s", a < 3 ? kinds[a] : "cpu",
                                     from_layout,
                                     ctrt_dtype_name(some[i]), b < 3 ? kinds[b] : "cpu", to_layout,
                                     ctrt_dtype_name(some[j]));
                            check_values(what, __LINE__, to, from_layout == 3 ? twice : grid, 6);
                            ctrt_tensor_release(&from);
                            ctrt_tensor_release(&to);
                        }

    group("a copy to a strided tensor does not change the memory between its elements");
    for (int k = TOY_BARE; k <= TOY_FULL; k++) {
        ctrt_tensor *whole = NULL, *odd = NULL, *values = COUNTING(3);
        CHECK_OK(ctrt_empty(&whole, CTRT_SHAPE(6), CTRT_F32, devices[k]));
        CHECK_OK(ctrt_from_host_(whole, (const float[6]){ 9, 9, 9, 9, 9, 9 }, 6, CTRT_F32));
        CHECK_OK(ctrt_slice(&odd, whole, 0, 1, 6, 2));
        CHECK_OK(ctrt_copy_(odd, values));
        VALUES_ARE(whole, 9, 0, 9, 1, 9, 2);
        ctrt_tensor_release(&whole);
        ctrt_tensor_release(&odd);
        ctrt_tensor_release(&values);
    }

    group("only the bytes of the elements are copied");
    ctrt_tensor *wide = NULL, *column = NULL;
    CHECK_OK(ctrt_zeros(&wide, CTRT_SHAPE(100, 100), CTRT_F32, devices[TOY_FULL]));
    CHECK_OK(ctrt_select(&column, wide, 1, 3));
    toy_bytes_to_host = 0;
    CHECK_OK(ctrt_cpu(&y, column));
    CHECK(toy_bytes_to_host == 400, "%zu bytes for a column of 100 f32", toy_bytes_to_host);
    ctrt_tensor_release(&wide);
    ctrt_tensor_release(&column);

    group("a missing kernel is an error, or runs on the cpu with CTRT_FALLBACK=cpu");
    ctrt_tensor *x = NULL, *t = NULL;
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(2, 3), CTRT_F32, devices[TOY_BARE]));
    CHECK_OK(ctrt_from_host_(x, (const float[6]){ 0, 1, 2, 3, 4, 5 }, 6, CTRT_F32));
    CHECK_OK(ctrt_t(&t, x));
    CHECK_FAILS(ctrt_contiguous(&y, t, CTRT_CONTIGUOUS_FORMAT), CTRT_ERR_NOT_SUPPORTED, "CTRT_FALLBACK=cpu");
    CHECK_FAILS(ctrt_to_dtype(&y, x, CTRT_F64), CTRT_ERR_NOT_SUPPORTED, "copy");
    CHECK_FAILS(ctrt_fill_(t, ctrt_float(1.5)), CTRT_ERR_NOT_SUPPORTED, "fill");
    CHECK_OK(ctrt_zero_(x));                    /* zero has the same bytes in all elements: no kernel is needed */
    VALUES_ARE(x, 0, 0, 0, 0, 0, 0);
    CHECK_OK(ctrt_from_host_(x, (const float[6]){ 0, 1, 2, 3, 4, 5 }, 6, CTRT_F32));
    param_forget_values();
    CHECK_OK(ctrt_param_set("CTRT_FALLBACK", "cpu"));
    const uint64_t before = ctrt_fallback_count("copy"), fills = ctrt_fallback_count("fill");
    CHECK_OK(ctrt_contiguous(&y, t, CTRT_CONTIGUOUS_FORMAT));
    VALUES_ARE(y, 0, 3, 1, 4, 2, 5);
    CHECK(ctrt_tensor_device(y) == devices[TOY_BARE], "the result is on %s", ctrt_device_name(ctrt_tensor_device(y)));
    CHECK_OK(ctrt_to_dtype(&y, t, CTRT_I32));
    VALUES_ARE(y, 0, 3, 1, 4, 2, 5);
    CHECK_OK(ctrt_select(&y, x, 1, 0));
    CHECK_OK(ctrt_fill_(y, ctrt_float(1.5)));
    VALUES_ARE(x, 1.5, 1, 2, 1.5, 4, 5);
    CHECK(ctrt_fallback_count("copy") == before + 2 && ctrt_fallback_count("fill") == fills + 1,
          "%llu copies and %llu fills fell back",
          (unsigned long long)(ctrt_fallback_count("copy") - before),
          (unsigned long long)(ctrt_fallback_count("fill") - fills));
    param_forget_values();
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);

    group("public functions copy to and from the device");
    ctrt_tensor *here = COUNTING(2, 2), *there = NULL;
    double item = 0;
    CHECK_OK(ctrt_to_device(&there, here, devices[TOY_FULL]));
    CHECK(ctrt_tensor_device(there) == devices[TOY_FULL], "on %s", ctrt_device_name(ctrt_tensor_device(there)));
    CHECK_OK(ctrt_to(&y, there, cpu, CTRT_I64, false, CTRT_PRESERVE_FORMAT));
    VALUES_ARE(y, 0, 1, 2, 3);
    CHECK_OK(ctrt_select(&y, there, 0, 1));
    CHECK_OK(ctrt_select(&y, y, 0, 1));
    CHECK_OK(ctrt_item(&item, y));
    CHECK(item == 3, "item %g", item);
    char *text = NULL;
    if (CHECK_OK(ctrt_tensor_format(&text, there)))
        CHECK(strstr(text, "tensor([[0., 1.],\n        [2., 3.]], device='toy:") == text, "printed: %s", text);
    free(text);
    CHECK_OK(ctrt_full(&y, CTRT_SHAPE(2), ctrt_float(0.1), CTRT_F32, devices[TOY_FULL]));
    VALUES_ARE(y, (double)0.1f, (double)0.1f);
    CHECK_OK(ctrt_ones_like(&y, here, CTRT_DTYPE_DEFAULT, devices[TOY_FULL]));
    VALUES_ARE(y, 1, 1, 1, 1);
    ctrt_tensor_release(&here);
    ctrt_tensor_release(&there);
}

/* Every allocation fails once: the call returns a status, leaks nothing and leaves no partial result. */
static void failing(void)
{
    group("host allocations that fail during copies");
    ctrt_device *toy = NULL;
    CHECK_OK(toy_open(&toy, TOY_FULL));
    ctrt_tensor *x = COUNTING(3, 4), *t = NULL, *there = NULL;
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_to_device(&there, x, toy));
    CHECK_OK(ctrt_t(&there, there));
    int failures = 0;
    for (uint64_t n = 1; n < 50; n++) {
        ctrt_tensor *a = NULL, *b = NULL, *c = NULL, *d = NULL;
        ctrt_tensor *both[2];
        double values[12];
        alloc_fail_at(n, false);
        ctrt_status status = ctrt_to(&a, t, toy, CTRT_F64, false, CTRT_CONTIGUOUS_FORMAT);
        if (status == CTRT_OK)
            status = ctrt_to(&b, there, cpu, CTRT_I32, false, CTRT_CONTIGUOUS_FORMAT);
        both[0] = both[1] = t;
        if (status == CTRT_OK)
            status = ctrt_stack(&c, both, 2, 0);
        if (status == CTRT_OK)
            status = ctrt_reshape(&d, t, CTRT_SHAPE(12));
        if (status == CTRT_OK)
            status = ctrt_to_host(values, sizeof values, there, CTRT_F64);
        const uint64_t counted = alloc_fail_at(0, false);
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %d: %s: %s", (int)n,
              ctrt_status_string(status),
              ctrt_error_message());
        failures += status != CTRT_OK;              /* the call may succeed after a failure: memory policies retry */
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&c);
        ctrt_tensor_release(&d);
        if (counted < n) {
            CHECK(status == CTRT_OK, "%s without a failing allocation: %s", ctrt_status_string(status),
                  ctrt_error_message());
            CHECK(n > 10, "only %d allocations", (int)counted);
            break;
        }
        CHECK(n < 49, "no attempt ran without a failing allocation");
    }
    CHECK(failures >= 5, "only %d attempts returned an error", failures);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
    ctrt_tensor_release(&there);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    layouts();
    casts();
    in_place();
    host();
    routes();
    failing();
    ctrt_tensor_release(&y);
    return done();
}
