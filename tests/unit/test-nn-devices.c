/* SPDX-License-Identifier: Apache-2.0 */
/* Tests modules, optimizers and checkpoints on two simulated devices, whose memory the host cannot access. */
#include "calls.h"
#include "folder.h"
#include "small_net.h"

static ctrt_device *first, *second;

/* Trains two equal networks. One moves between devices, and both must stay equal. */
static void travelling(bool adamw)
{
    group("a network that moves between devices trains as one that does not, %s", adamw ? "AdamW" : "SGD");
    CTRT_AUTO(module) home = NULL, away = NULL;
    CTRT_AUTO(optimizer) home_optimizer = NULL, away_optimizer = NULL;
    ctrt_device *const route[] = { cpu, first, first, second, cpu }, *device = NULL;
    ctrt_tensor *weight, *state;
    CHECK_OK(small_net_new(&home));
    CHECK_OK(ctrt_module_copy(&away, home, NULL));
    CHECK_OK(small_net_optimizer(&home_optimizer, home, adamw));
    CHECK_OK(small_net_optimizer(&away_optimizer, away, adamw));
    CHECK_OK(ctrt_module_tensor(&weight, away, "0.weight"));
    for (int turn = 0; turn < 5; turn++) {
        CHECK_OK(ctrt_module_to(away, route[turn], CTRT_DTYPE_DEFAULT));
        CHECK_OK(ctrt_module_device(&device, away));
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
    CHECK_OK(small_net_new(&net));
    CHECK_OK(ctrt_module_child(NULL, &child, net, 3));
    CHECK_OK(ctrt_module_to(child, first, CTRT_DTYPE_DEFAULT));
    CHECK_FAILS(ctrt_module_device(&device, net), CTRT_ERR_DEVICE, "0.weight on cpu, 3.weight on sim:0");
    CHECK(device == NULL, "a failed call set the device");
    CTRT_AUTO(tensor) x = OP(ones, CTRT_SHAPE(2, 3), CTRT_F32, cpu);
    CHECK_FAILS(ctrt_forward(&x, net, x), CTRT_ERR_DEVICE, "Sequential: 3: Linear: ");

    /* One norm of all gradients, on several devices. */
    ctrt_tensor *bias, *last;
    CHECK_OK(ctrt_module_tensor(&bias, net, "0.bias"));
    CHECK_OK(ctrt_module_tensor(&last, net, "3.weight"));
    for (int i = 0; i < 2; i++) {
        CTRT_AUTO(tensor) grad = OP(full_like, i ? last : bias, ctrt_float(i ? 4 : 3), CTRT_DTYPE_DEFAULT, NULL);
        CHECK_OK(ctrt_tensor_set_grad(i ? last : bias, grad));
    }
    double norm, got[8];
    CHECK_OK(ctrt_clip_grad_norm_(&norm, net, 1));
    CHECK_NEAR(norm, sqrt(4 * 9 + 8 * 16), 1e-5);
    CHECK_OK(ctrt_to_host(got, sizeof got, ctrt_tensor_grad(last), CTRT_F64));
    CHECK_NEAR(got[0], 4 / norm, 1e-5);
}

TEST(checkpoints, "checkpoints from and to a device")
{
    static unsigned char from_cpu[8192], from_sim[8192];
    const char *folder = folder_new(), *path = folder_join(folder, "net");
    CTRT_AUTO(module) a = NULL, b = NULL;
    CTRT_AUTO(tensor) t = NULL;
    CTRT_AUTO(tensor_file) file = NULL;
    CHECK_OK(small_net_new(&a));
    CHECK_OK(small_net_new(&b));
    CHECK_OK(ctrt_save(a, path));
    size_t size = folder_read(from_cpu, sizeof from_cpu, path);
    CHECK_OK(ctrt_module_to(a, first, CTRT_DTYPE_DEFAULT));
    CHECK_OK(ctrt_save(a, path));
    CHECK(size > 100 && folder_read(from_sim, sizeof from_sim, path) == size && memcmp(from_cpu, from_sim, size) == 0,
          "the checkpoint of the device differs from that of the cpu");
    CHECK_OK(ctrt_module_to(b, second, CTRT_DTYPE_DEFAULT));
    CHECK_OK(ctrt_load(b, path));
    CHECK(same_modules(a, b), "the module loaded on another device differs");
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    CHECK_OK(ctrt_tensor_file_read(&t, file, "0.weight", first));
    CHECK_STR(ctrt_device_name(ctrt_tensor_device(t)), ctrt_device_name(first));
}

TEST_MAIN
{
    setenv("CTRT_SIM", "devices=2", 1);
    group("the devices open");
    if (!CHECK_OK(ctrt_device_get(&cpu, "cpu")) || !CHECK_OK(ctrt_device_get(&first, "sim:0"))
        || !CHECK_OK(ctrt_device_get(&second, "sim:1")))
        return done();
    travelling(false);
    travelling(true);
    return run_tests();
}
