/* SPDX-License-Identifier: Apache-2.0 */
/* Makes every host allocation fail of autograd work and of a small program that trains, writes and reads files and
 * converts a module. Each failure returns a status, leaks nothing and leaves no partial change. test-alloc-failure
 * trains other networks. */
#include <unistd.h>

#include "calls.h"
#include "autograd_check.h"
#include "base/host_alloc.h"
#include "small_net.h"

static char net_path[] = "/tmp/ctrt-nn-memory-net-XXXXXX", optimizer_path[] = "/tmp/ctrt-nn-memory-optimizer-XXXXXX";

static ctrt_status attention_new(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(embedding, 5, 4, 0, cpu), CTRT_NEW(layer_norm, CTRT_SHAPE(4), 0, true, cpu),
        CTRT_NEW(multihead_attention, 4, 2, 0.1, true, true, cpu), CTRT_NEW(gelu, true), CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, 12, 3, true, cpu)));
}

/* Creates a network, trains one step, converts the network to f64 and back, saves and loads it. */
static ctrt_status training(void)
{
    static const int64_t labels[] = { 0, 2 }, tokens[] = { 1, 0, 4, 2, 2, 3 };
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    double value;
    TRY(ctrt_from_data(&y, labels, 2, CTRT_SHAPE(2), CTRT_I64, cpu),
        ctrt_from_data(&x, tokens, 6, CTRT_SHAPE(2, 3), CTRT_I64, cpu), attention_new(&net),
        ctrt_adamw_new(&optimizer, net, NULL), ctrt_forward(&loss, net, x), ctrt_cross_entropy(&loss, loss, y, NULL),
        ctrt_backward(loss), ctrt_clip_grad_norm_(&value, net, 0.01), ctrt_optimizer_step(optimizer),
        ctrt_save(net, net_path), ctrt_load(net, net_path), ctrt_optimizer_save(optimizer, optimizer_path));
    TRY(ctrt_optimizer_load(optimizer, optimizer_path), ctrt_module_to(net, NULL, CTRT_F64),
        ctrt_optimizer_step(optimizer));
    return ctrt_module_zero_grad(net, false);
}

static ctrt_status double_gradient(void *user, ctrt_tensor **grad)
{
    (void)user;
    return ctrt_mul_scalar(grad, *grad, ctrt_float(2));
}

FORWARD(twice_forward)
{
    TRY(ctrt_mul(&out[0], in[0], in[0]), ctrt_function_save(context, in[0]));
    return ctrt_function_save(context, out[0]);
}

BACKWARD(twice_backward)
{
    ctrt_tensor *x, *y;
    TRY(ctrt_function_saved(&x, context, 0), ctrt_function_saved(&y, context, 1),
        ctrt_mul_scalar(&dx[0], x, ctrt_float(2)));
    return ctrt_mul(&dx[0], dx[0], dy[0]);
}
static const ctrt_function twice = { sizeof twice, "twice", twice_forward, twice_backward, NULL };

static ctrt_status layers(void)
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, b = NULL, h = NULL, u = NULL, y = NULL;
    ctrt_tensor *pieces[3] = { NULL };
    int n;
    TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F64, NULL), ctrt_ones(&w, CTRT_SHAPE(3, 3), CTRT_F64, NULL),
        ctrt_ones(&b, CTRT_SHAPE(3), CTRT_F64, NULL), ctrt_tensor_require_grad(w, true),
        ctrt_tensor_require_grad(b, true), ctrt_linear(&h, x, w, b), ctrt_tanh(&h, h),
        ctrt_tensor_add_hook(h, double_gradient, NULL, NULL), ctrt_tensor_retain_grad(h),
        ctrt_layer_norm(&u, h, CTRT_SHAPE(3), b, b, 1e-5), ctrt_softmax(&u, u, 1), ctrt_mul(&u, u, h));
    CTRT_TRY(ctrt_chunk(pieces, &n, u, 3, 1));
    ctrt_status status = ctrt_cat(&y, pieces, 3, 0);
    tensors_release(pieces, 3);
    TRY(status, ctrt_function_apply(&twice, NULL, &y, 1, &y, 1), ctrt_mean(&y, y, CTRT_ALL_DIMS),
        ctrt_backward_with(y, NULL, true, false));
    return ctrt_backward(y);
}

static ctrt_status in_place(void)
{
    CTRT_AUTO(tensor) x = NULL, base = NULL, a = NULL, b = NULL, y = NULL, d = NULL;
    TRY(ctrt_ones(&x, CTRT_SHAPE(3, 4), CTRT_F64, NULL), ctrt_tensor_require_grad(x, true),
        ctrt_mul_scalar(&base, x, ctrt_float(2)), ctrt_transpose(&b, base, 0, 1), ctrt_select(&a, base, 0, 1),
        ctrt_mul_(a, a), ctrt_sigmoid_(a), ctrt_sum(&y, b, CTRT_ALL_DIMS),
        ctrt_grad(&d, y, &x, 1, NULL, false, true, false), ctrt_sum(&d, d, CTRT_ALL_DIMS));
    return ctrt_backward(d);
}

static void every_allocation(const char *name, ctrt_status (*body)(void), bool forever)
{
    group("%s: %s", name, forever ? "all allocations from the n-th on fail" : "the n-th allocation fails");
    if (!CHECK_OK(body()) || !CHECK_OK(body()))             /* the first call also creates what exists once */
        return;
    const uint64_t before = ctrt_memory_allocated(cpu);
    int n, passed = 0;
    for (n = 1; n < 10000; n++) {
        alloc_fail_at((uint64_t)n, forever);
        const ctrt_status status = body();
        if (alloc_fail_at(0, false) < (uint64_t)n)
            break;
        passed += status == CTRT_OK;
        CHECK(status == CTRT_OK || (status == CTRT_ERR_OUT_OF_MEMORY && *ctrt_error_message()), "allocation %d: %s: %s",
              n, ctrt_status_string(status), ctrt_error_message());
        CHECK(ctrt_memory_allocated(cpu) == before && ctrt_autograd_live_nodes() == 0
              && ctrt_autograd_saved_bytes() == 0 && ctrt_grad_enabled(),
              "allocation %d: %lld bytes, %d nodes and %d saved bytes are left, grad mode is %d", n,
              (long long)(ctrt_memory_allocated(cpu) - before), (int)ctrt_autograd_live_nodes(),
              (int)ctrt_autograd_saved_bytes(), ctrt_grad_enabled());
    }
    /* A few allocations are optional: the text of a message, a list of freed blocks. */
    CHECK(n > 20 && n < 10000 && passed < n / 10, "%d allocations failed, %d without an error", n - 1, passed);
    CHECK_OK(body());
}

/* ---- a failed change of a module leaves the module unchanged ---- */

/* Copies the bytes of all parameters and buffers to `to`. Returns their number. */
static size_t bytes_of(unsigned char *to, size_t capacity, ctrt_module *net)
{
    ctrt_tensor *tensor;
    size_t used = 0;
    for (int buffers = 0; buffers < 2; buffers++)
        for (size_t i = 0; (buffers ? ctrt_module_buffer : ctrt_module_parameter)(NULL, &tensor, net, i) == CTRT_OK;
             i++) {
            CHECK_OK(ctrt_to_host(to + used, capacity - used, tensor, ctrt_tensor_dtype(tensor)));
            used += (size_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
        }
    return used;
}

/* Creates a module with a parameter that is not contiguous and a buffer of bools. */
static ctrt_status mixed_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) turned = NULL, flags = NULL;
    TRY(small_net_new(out), ctrt_randn(&turned, CTRT_SHAPE(5, 3), CTRT_F32, cpu), ctrt_t(&turned, turned),
        ctrt_randint(&flags, 0, 2, CTRT_SHAPE(7), CTRT_BOOL, cpu), ctrt_module_add_parameter(*out, "turned", turned),
        ctrt_module_add_buffer(*out, "flags", flags, true));
    return ctrt_module_to(*out, device, CTRT_DTYPE_DEFAULT);
}

static ctrt_status load_new(ctrt_module *net) { return ctrt_load(net, net_path); }
static ctrt_status load_old(ctrt_module *net) { return ctrt_load(net, optimizer_path); }
static ctrt_status to_f64(ctrt_module *net) { return ctrt_module_to(net, NULL, CTRT_F64); }
static ctrt_status to_f32(ctrt_module *net) { return ctrt_module_to(net, NULL, CTRT_F32); }

/* `forever`: all later allocations fail too. A device on which every copy fails is not tested. */
static void all_or_nothing(const char *name, ctrt_status (*change)(ctrt_module *), ctrt_status (*undo)(ctrt_module *),
                           const char *device_name, bool forever)
{
    static unsigned char old[4096], new[4096], now[4096];
    group("a failed %s leaves the module unchanged, on %s", name, device_name);
    CTRT_AUTO(module) net = NULL, other = NULL;
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, device_name)) || !CHECK_OK(mixed_new(&net, device))
        || !CHECK_OK(mixed_new(&other, device)) || !CHECK_OK(ctrt_save(other, net_path))
        || !CHECK_OK(ctrt_save(net, optimizer_path)))
        return;
    const size_t old_size = bytes_of(old, sizeof old, net);
    CHECK_OK(change(net));                      /* creates the objects that exist once */
    const size_t new_size = bytes_of(new, sizeof new, net);
    CHECK(new_size != old_size || memcmp(old, new, old_size) != 0, "the change changes nothing");
    CHECK_OK(undo(net));
    int n;
    for (n = 1; n < 10000; n++) {
        alloc_fail_at((uint64_t)n, forever);
        const ctrt_status status = change(net);
        if (alloc_fail_at(0, false) < (uint64_t)n)
            break;
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %d: %s", n, ctrt_error_message());
        const size_t size = status == CTRT_OK ? new_size : old_size;
        CHECK(bytes_of(now, sizeof now, net) == size && memcmp(now, status == CTRT_OK ? new : old, size) == 0,
              "allocation %d: status %s, but the values are not the %s ones", n, ctrt_status_string(status),
              status == CTRT_OK ? "new" : "old");
        CHECK_OK(undo(net));
    }
    CHECK(n > 3 && n < 10000, "%d allocations failed", n - 1);
}

TEST_MAIN
{
    static const struct { const char *name; ctrt_status (*body)(void); } bodies[] = {
        { "training, files, conversion", training }, { "layers", layers }, { "changes in place", in_place },
    };
    const int net = mkstemp(net_path), optimizer = mkstemp(optimizer_path);
    if (!cpu_opened() || !CHECK(net >= 0 && optimizer >= 0, "no temporary files"))
        return done();
    close(net);
    close(optimizer);
    for (size_t i = 0; i < 2 * COUNT(bodies); i++)
        every_allocation(bodies[i / 2].name, bodies[i / 2].body, i % 2);
    all_or_nothing("ctrt_module_to", to_f64, to_f32, "cpu", true);
    all_or_nothing("ctrt_load", load_new, load_old, "cpu", true);
    all_or_nothing("ctrt_load", load_new, load_old, "sim:0", false);
    unlink(net_path);
    unlink(optimizer_path);
    return done();
}
