/* SPDX-License-Identifier: Apache-2.0 */
/* Makes every allocation of a small program fail once that trains, writes and reads files and converts a module. Each
 * failure returns a status, leaks nothing and leaves no partial change. test-alloc-failure trains other networks. */
#include <unistd.h>

#include "base/host_alloc.h"
#include "ctrt/ctrt.h"
#include "tap.h"

static ctrt_device *cpu;
static char net_path[] = "/tmp/ctrt-nn-memory-net-XXXXXX", optimizer_path[] = "/tmp/ctrt-nn-memory-optimizer-XXXXXX";

static ctrt_status cnn_new(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 2, 3, 3, NULL, true, cpu), CTRT_NEW(batch_norm2d, 2, 0, 0, true, cpu), CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &(ctrt_pool2d_options){ .kernel = { 2, 2 } }), CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(dropout, 0.5), CTRT_NEW(linear, 8, 3, true, cpu)));
}

static ctrt_status attention_new(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(embedding, 5, 4, 0, cpu), CTRT_NEW(layer_norm, CTRT_SHAPE(4), 0, true, cpu),
        CTRT_NEW(multihead_attention, 4, 2, 0.1, true, true, cpu), CTRT_NEW(gelu, true), CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, 12, 3, true, cpu)));
}

/* Creates a network, trains one step, converts the network to f64 and back, saves and loads it. */
static ctrt_status run(void)
{
    static const int64_t labels[] = { 0, 2 }, tokens[] = { 1, 0, 4, 2, 2, 3 };
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    double value;
    CTRT_TRY(ctrt_from_data(&y, labels, 2, CTRT_SHAPE(2), CTRT_I64, cpu));
    CTRT_TRY(ctrt_from_data(&x, tokens, 6, CTRT_SHAPE(2, 3), CTRT_I64, cpu));
    CTRT_TRY(attention_new(&net));
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, NULL));
    CTRT_TRY(ctrt_forward(&loss, net, x));
    CTRT_TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
    CTRT_TRY(ctrt_backward(loss));
    CTRT_TRY(ctrt_clip_grad_norm_(&value, net, 0.01));
    CTRT_TRY(ctrt_optimizer_step(optimizer));
    CTRT_TRY(ctrt_save(net, net_path));
    CTRT_TRY(ctrt_load(net, net_path));
    CTRT_TRY(ctrt_optimizer_save(optimizer, optimizer_path));
    CTRT_TRY(ctrt_optimizer_load(optimizer, optimizer_path));
    CTRT_TRY(ctrt_module_to(net, NULL, CTRT_F64));
    CTRT_TRY(ctrt_optimizer_step(optimizer));
    return ctrt_module_zero_grad(net, false);
}

static void sweep(void)
{
    group("training, files, conversion: a failure of each allocation returns a status and leaks nothing");
    if (!CHECK_OK(run()))                    /* also creates the objects that exist once per process */
        return;
    alloc_fail_at(UINT64_MAX, false);
    CHECK_OK(run());
    const uint64_t allocations = alloc_fail_at(0, false), before = ctrt_memory_allocated(cpu),
        nodes = ctrt_autograd_live_nodes();
    CHECK(allocations > 100, "only %llu allocations were seen", (unsigned long long)allocations);
    int passed = 0;
    for (uint64_t n = 1; n <= allocations; n++) {
        alloc_fail_at(n, n % 2);
        ctrt_status status = run();
        alloc_fail_at(0, false);
        passed += status == CTRT_OK;
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %llu: %s: %s", (unsigned long long)n,
              ctrt_status_string(status), ctrt_error_message());
        CHECK(status == CTRT_OK || *ctrt_error_message(), "allocation %llu: no message", (unsigned long long)n);
        CHECK(ctrt_memory_allocated(cpu) == before, "allocation %llu: %llu bytes are allocated, %llu were before",
              (unsigned long long)n, (unsigned long long)ctrt_memory_allocated(cpu), (unsigned long long)before);
        CHECK(ctrt_autograd_live_nodes() == nodes, "allocation %llu: graph nodes were not freed",
              (unsigned long long)n);
        CHECK(ctrt_grad_enabled(), "allocation %llu: grad mode is off", (unsigned long long)n);
    }
    /* A few allocations are optional: the text of a message, a list of freed blocks. */
    CHECK(passed < (int)allocations / 10, "%d of %llu failures did not cause an error", passed,
          (unsigned long long)allocations);
    CHECK_OK(run());
    printf("# %llu allocations, %d of them optional\n", (unsigned long long)allocations, passed);
}

/* A failed ctrt_module_to leaves all tensors of the module unchanged. */
static void moving(void)
{
    group("module_to is all or nothing");
    CTRT_AUTO(module) net = NULL;
    ctrt_tensor *tensor;
    CHECK_OK(attention_new(&net));
    alloc_fail_at(UINT64_MAX, false);
    CHECK_OK(ctrt_module_to(net, NULL, CTRT_F64));
    uint64_t allocations = alloc_fail_at(0, false);
    CHECK_OK(ctrt_module_to(net, NULL, CTRT_F32));
    for (uint64_t n = 1; n <= allocations; n++) {
        alloc_fail_at(n, true);
        ctrt_status status = ctrt_module_to(net, NULL, CTRT_F64);
        alloc_fail_at(0, false);
        ctrt_dtype want = status ? CTRT_F32 : CTRT_F64;
        for (size_t i = 0; ctrt_module_parameter(NULL, &tensor, net, i) == CTRT_OK; i++)
            CHECK(ctrt_tensor_dtype(tensor) == want, "allocation %llu: parameter %zu is %s, expected %s",
                  (unsigned long long)n, i,
                  ctrt_dtype_name(ctrt_tensor_dtype(tensor)), ctrt_dtype_name(want));
        CHECK_OK(ctrt_module_to(net, NULL, CTRT_F32));
    }
}

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
    CTRT_TRY(cnn_new(out));
    CTRT_TRY(ctrt_randn(&turned, CTRT_SHAPE(5, 3), CTRT_F32, cpu));
    CTRT_TRY(ctrt_t(&turned, turned));
    CTRT_TRY(ctrt_randint(&flags, 0, 2, CTRT_SHAPE(7), CTRT_BOOL, cpu));
    CTRT_TRY(ctrt_module_add_parameter(*out, "turned", turned));
    CTRT_TRY(ctrt_module_add_buffer(*out, "flags", flags, true));
    return ctrt_module_to(*out, device, CTRT_DTYPE_DEFAULT);
}

/* A failed ctrt_load leaves the module unchanged, for a failure of each allocation. `forever`: all later allocations
 * also fail. A device on which every copy fails is not tested. */
static void loading(const char *name, bool forever)
{
    group("a failed ctrt_load leaves the module unchanged, on %s", name);
    static unsigned char old[4096], new[4096], now[4096];
    CTRT_AUTO(module) net = NULL, other = NULL;
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, name)) || !CHECK_OK(mixed_new(&net, device))
        || !CHECK_OK(mixed_new(&other, device)))
        return;
    CHECK_OK(ctrt_save(other, net_path));
    const size_t size = bytes_of(old, sizeof old, net);
    CHECK(bytes_of(new, sizeof new, other) == size && memcmp(old, new, size) != 0,
          "the saved values equal the old ones");
    CHECK_OK(ctrt_load(net, net_path));             /* creates the objects that exist once */
    CHECK_OK(ctrt_save(net, optimizer_path));
    alloc_fail_at(UINT64_MAX, false);
    CHECK_OK(ctrt_load(net, net_path));
    const uint64_t allocations = alloc_fail_at(0, false);
    CHECK(allocations > 3, "only %llu allocations were seen", (unsigned long long)allocations);
    CHECK_OK(mixed_new(&net, device));
    bytes_of(old, sizeof old, net);
    CHECK_OK(ctrt_save(net, optimizer_path));
    for (uint64_t n = 1; n <= allocations; n++) {
        alloc_fail_at(n, forever);
        const ctrt_status status = ctrt_load(net, net_path);
        alloc_fail_at(0, false);
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %llu: %s", (unsigned long long)n,
              ctrt_error_message());
        bytes_of(now, sizeof now, net);
        CHECK(memcmp(now, status == CTRT_OK ? new : old, size) == 0,
              "allocation %llu of %llu: status %s, but the values are not the %s ones", (unsigned long long)n,
              (unsigned long long)allocations, ctrt_status_string(status), status == CTRT_OK ? "new" : "old");
        CHECK_OK(ctrt_load(net, optimizer_path));
    }
}

TEST_MAIN
{
    group("the cpu opens and two temporary files are created");
    int net = mkstemp(net_path), optimizer = mkstemp(optimizer_path);
    if (!CHECK_OK(ctrt_device_get(&cpu, "cpu")) || !CHECK(net >= 0 && optimizer >= 0, "no temporary files"))
        return done();
    close(net);
    close(optimizer);
    sweep();
    moving();
    loading("cpu", true);
    loading("sim:0", false);
    unlink(net_path);
    unlink(optimizer_path);
    return done();
}
