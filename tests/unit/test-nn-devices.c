/* SPDX-License-Identifier: Apache-2.0 */
/* Tests modules, optimizers and checkpoints on a toy device whose memory the host cannot access. Missing kernels of
 * the device fall back to the cpu.
 *
 * The optimizers' kernels do not fall back: without them an optimizer computes its step with tensor ops, whose
 * results differ in the last bits. The toy devices have these two kernels, so that their results equal the cpu's. */
#include "calls.h"
#include "folder.h"
#include "small_net.h"
#include "toy.h"

static ctrt_device *toy, *second;

/* Runs the cpu's kernel of the same op on the operands' real addresses. */
static ctrt_status run_on_cpu(const ctrt_call *call)
{
    const ctrt_view *pointers[64];
    ctrt_view views[64];
    const uint32_t count = call->n_inputs + call->n_outputs;
    struct dispatch_entry *entries;
    CTRT_TRY(dispatch_table(&entries, cpu));
    if (count > 64)
        return ctrt_fail(CTRT_ERR_INTERNAL, "%u operands", count);
    for (uint32_t i = 0; i < count; i++) {
        const ctrt_view *view = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        views[i] = *view;
        views[i].data = toy_real(view->data);
        pointers[i] = &views[i];
    }
    ctrt_call moved = *call;
    moved.inputs = pointers;
    moved.outputs = pointers + call->n_inputs;
    const enum op op = strcmp(call->kernel->op, "sgd_step") == 0 ? OP_sgd_step : OP_adam_step;
    return entries[(int)op * CTRT_DTYPE_COUNT + call->inputs[0]->dtype].run(&moved);
}

#define KERNEL(name)                                                                                                \
    { .size = sizeof(ctrt_kernel), .op = name, .dtypes = TOY_ALL_DTYPES, .flags = CTRT_KERNEL_INPLACE,               \
      .run = run_on_cpu }
static const ctrt_kernel optimizer_kernel_list[] = { KERNEL("sgd_step"), KERNEL("adam_step") };
static const ctrt_kernel_table optimizer_kernels = { .size = sizeof optimizer_kernels, .kernels = optimizer_kernel_list,
                                                     .count = 2, .stride = sizeof(ctrt_kernel) };

static void copy_of(ctrt_module *to, ctrt_module *from)
{
    const char *name;
    ctrt_tensor *x, *y;
    for (size_t i = 0; ctrt_module_parameter(&name, &x, from, i) == CTRT_OK; i++) {
        CHECK_OK(ctrt_module_tensor(&y, to, name));
        ctrt_no_grad CHECK_OK(ctrt_copy_(y, x));
    }
}

/* Trains two equal networks. One moves between devices, and both must stay equal. */
static void travelling(bool adamw)
{
    group("a network that moves between devices trains as one that does not, %s", adamw ? "AdamW" : "SGD");
    CTRT_AUTO(module) home = NULL, away = NULL;
    CTRT_AUTO(optimizer) home_optimizer = NULL, away_optimizer = NULL;
    ctrt_device *const route[] = { cpu, toy, toy, second, cpu }, *device = NULL;
    ctrt_tensor *weight, *state;
    OK(small_net_new(&home), small_net_new(&away));
    copy_of(away, home);
    OK(small_net_optimizer(&home_optimizer, home, adamw), small_net_optimizer(&away_optimizer, away, adamw),
       ctrt_module_tensor(&weight, away, "0.weight"));
    for (int turn = 0; turn < 5; turn++) {
        OK(ctrt_module_to(away, route[turn], CTRT_DTYPE_DEFAULT), ctrt_module_device(&device, away));
        CHECK_STR(ctrt_device_name(device), ctrt_device_name(route[turn]));
        CHECK(ctrt_tensor_device(weight) == route[turn] && ctrt_tensor_requires_grad(weight),
              "turn %d: the weight is on another device or does not require grad", turn);
        CHECK(turn == 0 || ctrt_tensor_device(ctrt_tensor_grad(weight)) == route[turn],
              "turn %d: the gradient is on another device", turn);
        if (!CHECK_OK(small_net_step(home, home_optimizer, cpu, turn))
            || !CHECK_OK(small_net_step(away, away_optimizer, route[turn], turn)))
            return;
        CHECK(same_modules(home, away), "turn %d: the moved network differs", turn);
        CHECK_OK(ctrt_optimizer_state(&state, away_optimizer, 0, adamw ? "exp_avg" : "momentum_buffer"));
        CHECK(ctrt_tensor_device(state) == route[turn], "turn %d: the optimizer's state is on %s", turn,
              ctrt_device_name(ctrt_tensor_device(state)));
    }
}

TEST(mixed, "a module on two devices")
{
    CTRT_AUTO(module) net = NULL;
    ctrt_module *child = NULL;
    ctrt_device *device = NULL;
    OK(small_net_new(&net), ctrt_module_child(NULL, &child, net, 3), ctrt_module_to(child, toy, CTRT_DTYPE_DEFAULT));
    CHECK_FAILS(ctrt_module_device(&device, net), CTRT_ERR_DEVICE, "0.weight on cpu, 3.weight on toy:");
    CHECK(device == NULL, "a failed call set the device");
    CTRT_AUTO(tensor) x = OP(ones, CTRT_SHAPE(2, 3), CTRT_F32, cpu);
    CHECK_FAILS(ctrt_forward(&x, net, x), CTRT_ERR_DEVICE, "Sequential: 3: Linear: ");

    /* One norm of all gradients, on several devices. */
    ctrt_tensor *first, *last;
    OK(ctrt_module_tensor(&first, net, "0.bias"), ctrt_module_tensor(&last, net, "3.weight"));
    for (int i = 0; i < 2; i++) {
        CTRT_AUTO(tensor) grad = OP(full_like, i ? last : first, ctrt_float(i ? 4 : 3), CTRT_DTYPE_DEFAULT, NULL);
        CHECK_OK(ctrt_tensor_set_grad(i ? last : first, grad));
    }
    double norm, got[8];
    CHECK_OK(ctrt_clip_grad_norm_(&norm, net, 1));
    CHECK_NEAR(norm, sqrt(4 * 9 + 8 * 16), 1e-5);
    CHECK_OK(ctrt_to_host(got, sizeof got, ctrt_tensor_grad(last), CTRT_F64));
    CHECK_NEAR(got[0], 4 / norm, 1e-5);
}

TEST(checkpoints, "checkpoints from and to a device")
{
    static unsigned char from_cpu[8192], from_toy[8192];
    const char *folder = folder_new(), *path = folder_join(folder, "net");
    CTRT_AUTO(module) a = NULL, b = NULL;
    CTRT_AUTO(tensor) t = NULL;
    CTRT_AUTO(tensor_file) file = NULL;
    OK(small_net_new(&a), small_net_new(&b), ctrt_save(a, path));
    size_t size = folder_read(from_cpu, sizeof from_cpu, path);
    OK(ctrt_module_to(a, toy, CTRT_DTYPE_DEFAULT), ctrt_save(a, path));
    CHECK(size > 100 && folder_read(from_toy, sizeof from_toy, path) == size && memcmp(from_cpu, from_toy, size) == 0,
          "the checkpoint of the device differs from that of the cpu");
    OK(ctrt_module_to(b, second, CTRT_DTYPE_DEFAULT), ctrt_load(b, path));
    CHECK(same_modules(a, b), "the module loaded on another device differs");
    OK(ctrt_tensor_file_open(&file, path), ctrt_tensor_file_read(&t, file, "0.weight", toy));
    CHECK_STR(ctrt_device_name(ctrt_tensor_device(t)), ctrt_device_name(toy));
}

TEST_MAIN
{
    group("the devices open");
    if (!CHECK_OK(ctrt_param_set("CTRT_FALLBACK", "cpu")) || !CHECK_OK(ctrt_device_get(&cpu, "cpu"))
        || !CHECK_OK(toy_open(&toy, TOY_FULL)) || !CHECK_OK(toy_open(&second, TOY_FULL)))
        return done();
    toy->overlays[0] = second->overlays[0] = &optimizer_kernels;
    ctrt_log_set_level(CTRT_LOG_ERROR);             /* hides the warnings about fallbacks */
    travelling(false);
    travelling(true);
    return run_tests();
}
