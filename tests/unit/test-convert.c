/* SPDX-License-Identifier: Apache-2.0 */
/* Tests copies between layouts, dtypes and devices (including a device whose memory the host cannot access),
 * in-place copies, and copies to and from host buffers. */
#include "base/param.h"
#include "calls.h"
#include "memory/pool.h"
#include "ops/dispatch.h"
#include "tensors.h"

static ctrt_tensor *y;          /* receives every result, by the assignment rule */

TEST(layouts, "contiguous and clone: strides, values and storage")
{
    CTRT_AUTO(tensor) x = COUNTING(2, 3), storage = COUNTING(64), gaps = NULL;
    CHECK_OK(ctrt_contiguous(&y, x, CTRT_CONTIGUOUS_FORMAT));
    CHECK_TRUE(y == x);
    /* As in PyTorch, clone removes gaps and keeps the order of dimensions. */
    static const struct { int ndim; int64_t shape[4], strides[4], wanted[4]; } orders[] = {
        { 2, { 2, 3 }, { 1, 4 }, { 1, 2 } }, { 2, { 3, 2 }, { 1, 4 }, { 1, 3 } },
        { 3, { 2, 6, 2 }, { 0, 1, 6 }, { 12, 1, 6 } }, { 3, { 2, 2, 3 }, { 0, 3, 1 }, { 6, 3, 1 } },
        { 4, { 2, 2, 2, 5 }, { 1, 2, 0, 4 }, { 1, 4, 2, 8 } }, { 3, { 2, 2, 2 }, { 8, 4, 2 }, { 4, 2, 1 } },
        { 3, { 3, 4, 1 }, { 1, 4, 4 }, { 1, 3, 3 } },
    };
    EACH(c, orders) {
        double wanted[64];
        CHECK_OK(ctrt_as_strided(&gaps, storage, ctrt_ints_of(c->shape, c->ndim), ctrt_ints_of(c->strides, c->ndim),
                                 0));
        CHECK_OK(ctrt_clone(&y, gaps));
        check_strides("clone", __LINE__, y, ctrt_ints_of(c->wanted, c->ndim));
        CHECK_TRUE(!ctrt_tensor_shares_storage(y, gaps));
        CHECK_OK(ctrt_to_host(wanted, sizeof wanted, gaps, CTRT_F64));
        check_values("clone", __LINE__, y, wanted, ctrt_tensor_numel(gaps));
    }
    CHECK_FAILS(ctrt_contiguous(&y, x, CTRT_CHANNELS_LAST), CTRT_ERR_SHAPE, "4 dimensions, not shape [2, 3]");
    CHECK_FAILS(ctrt_contiguous(&y, x, CTRT_PRESERVE_FORMAT), CTRT_ERR_INVALID_ARGUMENT, "name a format");
}

TEST(casts, "to: keeps the layout, and returns the same tensor if nothing changes")
{
    CTRT_AUTO(tensor) x = COUNTING(6), t = NULL;
#ifdef __x86_64__                           /* undefined in C; the values are PyTorch's */
    const float beyond[4] = { 1e30f, -1e30f, NAN, INFINITY };
    CHECK_OK(ctrt_from_data(&y, beyond, 4, CTRT_SHAPE(4), CTRT_F32, cpu));
    GIVES(ctrt_to_dtype(&y, y, CTRT_I64), -0x1p63, -0x1p63, -0x1p63, -0x1p63);
#endif
    for (int dtype = 1; dtype < DTYPE_END; dtype++) {
        CHECK_OK(ctrt_zeros(&t, CTRT_SHAPE(2), (ctrt_dtype)dtype, cpu));
        CHECK_OK(ctrt_to_dtype(&y, t, (ctrt_dtype)dtype));
        CHECK(y == t, "a copy of %s was made", ctrt_dtype_name((ctrt_dtype)dtype));
    }
    CHECK_TRUE(ctrt_to(&y, x, NULL, CTRT_DTYPE_DEFAULT, false, CTRT_PRESERVE_FORMAT) == CTRT_OK && y == x);
    CHECK_TRUE(ctrt_to_device(&y, x, cpu) == CTRT_OK && y == x);
    CHECK_TRUE(ctrt_cpu(&y, x) == CTRT_OK && y == x);
    CHECK_OK(ctrt_reshape(&t, x, CTRT_SHAPE(2, 3)));
    CHECK_OK(ctrt_t(&t, t));
    CHECK_OK(ctrt_to_dtype(&y, t, CTRT_F64));
    STRIDES_ARE(y, 1, 3);                       /* CTRT_PRESERVE_FORMAT keeps the strides */
    GIVES_STRIDES(ctrt_to(&y, t, NULL, CTRT_DTYPE_DEFAULT, false, CTRT_CONTIGUOUS_FORMAT), 2, 1);
    CHECK_FAILS(ctrt_to(&y, t, NULL, CTRT_DTYPE_DEFAULT, false, CTRT_CHANNELS_LAST), CTRT_ERR_SHAPE, "4 dimensions");
    CHECK_FAILS(ctrt_to_dtype(&y, t, (ctrt_dtype)-3), CTRT_ERR_DTYPE, "-3");
    CHECK_FAILS(ctrt_to_device(&y, t, NULL), CTRT_ERR_INVALID_ARGUMENT, "device is NULL");
}

TEST(in_place, "copy_ handles overlapping memory")
{
    CTRT_AUTO(tensor) x = COUNTING(2, 3), v = COUNTING(5), from = NULL, to = NULL, square = COUNTING(3, 3), e = NULL;
    CHECK_OK(ctrt_copy_(x, x));
    VALUES_ARE(x, 0, 1, 2, 3, 4, 5);
    /* A source in the same memory is read before it is overwritten. */
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
    CHECK_OK(ctrt_select(&e, x, 0, 0));
    CHECK_OK(ctrt_expand(&e, e, CTRT_SHAPE(2, 3)));
    CHECK_FAILS(ctrt_copy_(e, x), CTRT_ERR_INVALID_ARGUMENT, "expanded");

    group("fill_ and zero_ convert the number and reject expanded tensors");
    CHECK_OK(ctrt_to_dtype(&y, x, CTRT_I8));
    CHECK_OK(ctrt_fill_(y, ctrt_float(-3.7)));
    VALUES_ARE(y, -3, -3, -3, -3, -3, -3);
    const uint32_t version = ctrt_tensor_version(y);
    CHECK_FAILS(ctrt_fill_(y, ctrt_int(128)), CTRT_ERR_OVERFLOW, "fill_: 128 cannot be converted to i8");
    CHECK_EQ(ctrt_tensor_version(y), version);
    CHECK_FAILS(ctrt_fill_(e, ctrt_int(1)), CTRT_ERR_INVALID_ARGUMENT, "expanded");
    CHECK_FAILS(ctrt_zero_(e), CTRT_ERR_INVALID_ARGUMENT, "expanded");
    CHECK_FAILS(ctrt_add_scalar_(e, ctrt_float(1)), CTRT_ERR_INVALID_ARGUMENT, "share memory");
    CHECK_OK(ctrt_fill_(y, ctrt_bool(true)));
    VALUES_ARE(y, 1, 1, 1, 1, 1, 1);
}

TEST(exact, "item_scalar returns the exact value with the category of the dtype")
{
    static const struct { ctrt_scalar value; ctrt_dtype dtype; ctrt_scalar_kind kind; int64_t i; double f; } cases[] = {
        { { CTRT_SCALAR_INT, ((int64_t)1 << 53) + 1, 0, 0 }, CTRT_I64, CTRT_SCALAR_INT, ((int64_t)1 << 53) + 1, 0 },
        { { CTRT_SCALAR_INT, -128, 0, 0 }, CTRT_I8, CTRT_SCALAR_INT, -128, 0 },
        { { CTRT_SCALAR_INT, 2, 0, 0 }, CTRT_BOOL, CTRT_SCALAR_BOOL, 1, 0 },
        { { CTRT_SCALAR_INT, 3, 0, 0 }, CTRT_BF16, CTRT_SCALAR_FLOAT, 0, 3 },
        { { CTRT_SCALAR_FLOAT, 0, 0.1, 0 }, CTRT_F64, CTRT_SCALAR_FLOAT, 0, 0.1 },
    };
    CTRT_AUTO(tensor) y = NULL;
    EACH(c, cases) {
        ctrt_scalar got;
        memset(&got, 0xaa, sizeof got);
        CHECK_OK(ctrt_scalar_tensor(&y, c->value, c->dtype, cpu));
        CHECK_OK(ctrt_item_scalar(&got, y));
        CHECK_TRUE(got.kind == c->kind && got.i == c->i && got.f == c->f && got.imaginary == 0);
    }
}

TEST(host, "item and item_int truncate, and reject what they cannot return")
{
    CTRT_AUTO(tensor) two = COUNTING(2), none = NULL, x = COUNTING(2, 3), t = NULL, e = NULL;
    double item = -1;
    int64_t whole = -1;
    CHECK_OK(ctrt_full(&y, CTRT_SHAPE(1, 1), ctrt_float(-2.75), CTRT_F64, cpu));
    CHECK_OK(ctrt_item(&item, y));
    CHECK_OK(ctrt_item_int(&whole, y));
    CHECK_TRUE(item == -2.75 && whole == -2);
    CHECK_OK(ctrt_scalar_tensor(&y, ctrt_int(INT64_MAX), CTRT_I64, cpu));
    CHECK_OK(ctrt_item_int(&whole, y));
    CHECK_EQ(whole, INT64_MAX);
    CHECK_OK(ctrt_scalar_tensor(&y, ctrt_float(NAN), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_item_int(&whole, y), CTRT_ERR_OVERFLOW, "nan");
    CHECK_OK(ctrt_scalar_tensor(&y, ctrt_float(1e19), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_item_int(&whole, y), CTRT_ERR_OVERFLOW, "64-bit");
    CHECK_FAILS(ctrt_item(&item, two), CTRT_ERR_SHAPE,
                "item: expected a tensor of one element, got 2 elements of shape [2]");

    group("to_host and from_host_ of unaligned and of empty buffers");
    float floats[6];
    double at_two;
    unsigned char bytes[1 + 6 * sizeof(double)] = { 0 };
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_to_host(floats, sizeof floats, t, CTRT_DTYPE_DEFAULT));
    CHECK_TRUE(floats[1] == 3 && floats[2] == 1);
    CHECK_OK(ctrt_from_host_(t, bytes + 1, 6, CTRT_F64));           /* an unaligned buffer */
    VALUES_ARE(x, 0, 0, 0, 0, 0, 0);
    const int32_t ints[6] = { 1, 2, 3, 4, 5, 6 };
    const uint32_t version = ctrt_tensor_version(x);
    CHECK_OK(ctrt_from_host_(t, ints, 6, CTRT_I32));
    VALUES_ARE(x, 1, 3, 5, 2, 4, 6);
    CHECK_EQ(ctrt_tensor_version(x), version + 1);
    CHECK_OK(ctrt_to_host(bytes + 1, 6 * sizeof(double), t, CTRT_F64));
    memcpy(&at_two, bytes + 1 + 1 * sizeof(double), sizeof at_two);
    CHECK_EQ(at_two, 2);
    CHECK_OK(ctrt_empty(&none, CTRT_SHAPE(0), CTRT_F32, cpu));
    CHECK_OK(ctrt_to_host(NULL, 0, none, CTRT_F32));
    CHECK_OK(ctrt_from_host_(none, NULL, 0, CTRT_F32));
    CHECK_OK(ctrt_expand(&e, none, CTRT_SHAPE(2, 0)));
    CHECK_OK(ctrt_from_host_(e, NULL, 0, CTRT_F32));
}

/* ---- devices whose memory the host cannot access, and which lack kernels ---- */

/* A device address is a host address plus TOY_MOVED, so that a host access faults. */
#define TOY_MOVED ((uintptr_t)1 << 45)

enum toy_kind {
    TOY_BARE,               /* no kernels, only the memory table */
    TOY_DENSE,              /* a copy kernel for contiguous operands only */
    TOY_FULL                /* a copy kernel for any strides */
};

static size_t toy_bytes_to_host;

static void *toy_real(const void *address)
{
    return (void *)((uintptr_t)address - TOY_MOVED);
}

static ctrt_status toy_alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    void *real = aligned_alloc(64, (bytes + 63) / 64 * 64);
    *address = (void *)((uintptr_t)real + TOY_MOVED);
    return real != NULL ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

static void toy_free(void *device, void *address, size_t bytes)
{
    (void)device, (void)bytes;
    free(toy_real(address));
}

static ctrt_status toy_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    (void)device, (void)queue;
    if (kind == CTRT_COPY_TO_HOST)
        toy_bytes_to_host += bytes;
    memcpy(kind == CTRT_COPY_TO_HOST ? to : toy_real(to), kind == CTRT_COPY_TO_DEVICE ? from : toy_real(from), bytes);
    return CTRT_OK;
}

static ctrt_status toy_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    (void)device, (void)queue;
    memset(toy_real(address), byte, bytes);
    return CTRT_OK;
}

static char *toy_element(const ctrt_view *view, int64_t i)
{
    int64_t offset = 0;
    for (int d = view->ndim - 1; d >= 0; d--) {
        offset += i % view->shape[d] * view->strides[d];
        i /= view->shape[d];
    }
    const char *data = view->flags & CTRT_VIEW_HOST_SCALAR ? view->data : toy_real(view->data);
    return (char *)(uintptr_t)data + offset * (int64_t)dtype_bytes(view->dtype);
}

static ctrt_status toy_run_copy(const ctrt_call *call)
{
    const ctrt_view *from = call->inputs[0], *to = call->outputs[0];
    for (int64_t i = 0; i < to->numel; i++)
        dtype_store(toy_element(to, i), to->dtype, dtype_load(toy_element(from, i), from->dtype));
    return CTRT_OK;
}

/* Fails if the core passes strided operands, which a kernel without CTRT_KERNEL_STRIDED must not get. */
static ctrt_status toy_run_dense_copy(const ctrt_call *call)
{
    if (!(call->inputs[0]->flags & call->outputs[0]->flags & CTRT_VIEW_CONTIGUOUS))
        return ctrt_fail(CTRT_ERR_INTERNAL, "a dense copy kernel got strided operands");
    return toy_run_copy(call);
}

#define TOY_ALL_DTYPES (CTRT_DTYPE_BIT(DTYPE_END) - 2)
#define TOY_COPY(its_flags, function) \
    { .size = sizeof(ctrt_kernel), .op = "copy", .dtypes = TOY_ALL_DTYPES, .flags = its_flags, .run = function }
#define TOY_TABLE(list, n)                                                                                 \
    { .size = sizeof(ctrt_kernel_table), .kernels = list, .count = n, .stride = sizeof(ctrt_kernel) }
#define TOY_BACKEND(kind) { .size = sizeof(ctrt_backend), .memory = &toy_memory, .kernels = &toy_kernels[kind] }

static const ctrt_kernel toy_dense = TOY_COPY(0, toy_run_dense_copy);
static const ctrt_kernel toy_full = TOY_COPY(CTRT_KERNEL_STRIDED, toy_run_copy);
static const ctrt_kernel_table toy_kernels[] = {
    [TOY_BARE] = TOY_TABLE(NULL, 0), [TOY_DENSE] = TOY_TABLE(&toy_dense, 1), [TOY_FULL] = TOY_TABLE(&toy_full, 1),
};
static const ctrt_memory_table toy_memory = {
    .size = sizeof toy_memory, .alloc = toy_alloc, .free = toy_free, .copy = toy_copy, .fill = toy_fill
};
static const ctrt_backend toy_backends[] = { TOY_BACKEND(TOY_BARE), TOY_BACKEND(TOY_DENSE), TOY_BACKEND(TOY_FULL) };

static ctrt_status toy_open(ctrt_device **out, enum toy_kind kind)
{
    static ctrt_device devices[TOY_FULL + 1];   /* never closed, as real devices */
    ctrt_device *device = *out = &devices[kind];
    device->home = device;
    device->launch = &launch_direct;
    device->ordinal = kind;
    snprintf(device->name, sizeof device->name, "toy:%d", kind);
    snprintf(device->type, sizeof device->type, "toy");
    device->backend = &toy_backends[kind];
    device->owner = device_process;
    pthread_mutex_init(&device->generator_lock, NULL);
    return device_memory_create(device);
}

/* Creates an uninitialized 2 by 3 tensor in one of four layouts. */
static ctrt_status laid_out(ctrt_tensor **out, ctrt_device *device, ctrt_dtype dtype, int layout)
{
    static const struct { int64_t shape[2], strides[2], elements; } layouts[] = {
        { { 2, 3 }, { 3, 1 }, 6 }, { { 2, 3 }, { 1, 2 }, 6 }, { { 2, 3 }, { 8, 2 }, 14 }, { { 2, 3 }, { 0, 1 }, 3 },
    };
    CTRT_AUTO(tensor) storage = NULL;
    CTRT_TRY(ctrt_empty(&storage, CTRT_SHAPE(layouts[layout].elements), dtype, device));
    return ctrt_as_strided(out, storage, ctrt_ints_of(layouts[layout].shape, 2),
                           ctrt_ints_of(layouts[layout].strides, 2), 0);
}

static const char *const kinds[] = { "bare", "dense", "full", "cpu" };
static ctrt_device *devices[4];         /* TOY_BARE, TOY_DENSE, TOY_FULL, and the cpu */

/* Copies six values, or in layout 3 two times a row of three. */
static void one_copy(int a, int b, int from_layout, int to_layout, ctrt_dtype from_dtype, ctrt_dtype to_dtype)
{
    static const double row[3] = { 5, 6, 7 }, grid[6] = { 1, 2, 3, 4, 5, 6 }, twice[6] = { 5, 6, 7, 5, 6, 7 };
    CTRT_AUTO(tensor) from = NULL, to = NULL, part = NULL;
    char what[128];
    CHECK_OK(laid_out(&from, devices[a], from_dtype, from_layout));
    if (from_layout == 3) {
        CHECK_OK(ctrt_select(&part, from, 0, 0));
        CHECK_OK(ctrt_from_host_(part, row, 3, CTRT_F64));
    } else {
        CHECK_OK(ctrt_from_host_(from, grid, 6, CTRT_F64));
    }
    CHECK_OK(laid_out(&to, devices[b], to_dtype, to_layout));
    CHECK_OK(kernel_copy(&to->view, devices[b], &from->view, devices[a]));
    snprintf(what, sizeof what, "%s layout %d %s to %s layout %d %s", kinds[a], from_layout,
             ctrt_dtype_name(from_dtype), kinds[b], to_layout, ctrt_dtype_name(to_dtype));
    check_values(what, __LINE__, to, from_layout == 3 ? twice : grid, 6);
}

TEST(routes, "copies between all pairs of devices, layouts and dtypes")
{
    static const ctrt_dtype some[] = { CTRT_F32, CTRT_I16, CTRT_F64 };
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            for (int from_layout = 0; from_layout < 4; from_layout++)
                for (int to_layout = 0; to_layout < 3; to_layout++)
                    for (size_t i = 0; i < COUNT(some) * COUNT(some); i++) {
                        const ctrt_dtype from = some[i / COUNT(some)], to = some[i % COUNT(some)];
                        /* Within one device a missing kernel is an error, not replaced by a copy through the host. */
                        const bool strided = from_layout != 0 || to_layout != 0;
                        if (a != b || a >= TOY_FULL || (!strided && (a != TOY_BARE || from == to)))
                            one_copy(a, b, from_layout, to_layout, from, to);
                    }

    group("a copy to a strided tensor does not change the memory between its elements");
    for (int k = TOY_BARE; k <= TOY_FULL; k++) {
        CTRT_AUTO(tensor) whole = NULL, odd = NULL, values = COUNTING(3);
        CHECK_OK(ctrt_empty(&whole, CTRT_SHAPE(6), CTRT_F32, devices[k]));
        CHECK_OK(ctrt_from_host_(whole, (const float[6]){ 9, 9, 9, 9, 9, 9 }, 6, CTRT_F32));
        CHECK_OK(ctrt_slice(&odd, whole, 0, 1, 6, 2));
        CHECK_OK(ctrt_copy_(odd, values));
        VALUES_ARE(whole, 9, 0, 9, 1, 9, 2);
    }

    group("only the bytes of the elements are copied");
    CTRT_AUTO(tensor) wide = NULL, column = NULL;
    CHECK_OK(ctrt_zeros(&wide, CTRT_SHAPE(100, 100), CTRT_F32, devices[TOY_FULL]));
    CHECK_OK(ctrt_select(&column, wide, 1, 3));
    toy_bytes_to_host = 0;
    CHECK_OK(ctrt_cpu(&y, column));
    CHECK_EQ(toy_bytes_to_host, 400);
}

TEST(missing_kernels, "a missing kernel is an error, or runs on the cpu with CTRT_FALLBACK=cpu")
{
    CTRT_AUTO(tensor) x = NULL, t = NULL;
    const float values[6] = { 0, 1, 2, 3, 4, 5 };
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(2, 3), CTRT_F32, devices[TOY_BARE]));
    CHECK_OK(ctrt_from_host_(x, values, 6, CTRT_F32));
    CHECK_OK(ctrt_t(&t, x));
    CHECK_FAILS(ctrt_contiguous(&y, t, CTRT_CONTIGUOUS_FORMAT), CTRT_ERR_NOT_SUPPORTED, "CTRT_FALLBACK=cpu");
    CHECK_FAILS(ctrt_to_dtype(&y, x, CTRT_F64), CTRT_ERR_NOT_SUPPORTED, "copy");
    CHECK_FAILS(ctrt_fill_(t, ctrt_float(1.5)), CTRT_ERR_NOT_SUPPORTED, "fill");
    CHECK_OK(ctrt_zero_(x));                    /* zero has the same bytes in all elements: no kernel is needed */
    VALUES_ARE(x, 0, 0, 0, 0, 0, 0);
    CHECK_OK(ctrt_from_host_(x, values, 6, CTRT_F32));
    param_forget_values();
    CHECK_OK(ctrt_param_set("CTRT_FALLBACK", "cpu"));
    const uint64_t copies = ctrt_fallback_count("copy"), fills = ctrt_fallback_count("fill");
    GIVES(ctrt_contiguous(&y, t, CTRT_CONTIGUOUS_FORMAT), 0, 3, 1, 4, 2, 5);
    CHECK_TRUE(ctrt_tensor_device(y) == devices[TOY_BARE]);
    GIVES(ctrt_to_dtype(&y, t, CTRT_I32), 0, 3, 1, 4, 2, 5);
    CHECK_OK(ctrt_select(&y, x, 1, 0));
    CHECK_OK(ctrt_fill_(y, ctrt_float(1.5)));
    VALUES_ARE(x, 1.5, 1, 2, 1.5, 4, 5);
    CHECK_EQ(ctrt_fallback_count("copy"), copies + 2);
    CHECK_EQ(ctrt_fallback_count("fill"), fills + 1);
    CHECK_OK(ctrt_add_(x, x));
    CHECK_OK(ctrt_mul_scalar_(x, ctrt_float(2)));        /* in place, and with a number */
    VALUES_ARE(x, 6, 4, 8, 6, 16, 20);
    ctrt_tensor_release(&y);                /* LeakSanitizer does not see that y has the memory of x */
    param_forget_values();
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    devices[3] = cpu;
    for (int k = TOY_BARE; k <= TOY_FULL; k++)
        if (!CHECK_OK(toy_open(&devices[k], k)))
            return done();
    return run_tests();
}
