/* SPDX-License-Identifier: Apache-2.0 */
/* Tests every kind of redistribution on nccl-multi:0, a device with several GPUs as members, by software
 * implementations of the driver and of NCCL (tests/softcuda), and by the engine host if NCCL is not installed. */
#include "ctrt/layout.h"
#include "soft_begin.h"

#define SOFT "SOFTCUDA=devices=3,memory=512m,streams=error"
#define SHARDED(d) (&(ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .dim = (d) })

static ctrt_device *multi;

/* Sums, products and norms of tensors in layouts that need each redistribution. */
static void results_on(ctrt_tensor **results, ctrt_device *device, bool distribute)
{
    float values[72];
    for (int i = 0; i < 72; i++)
        values[i] = (float)(i * 7 % 23 - 11) / 4;
    CTRT_AUTO(tensor) a = NULL, b = NULL, grad = NULL;
    CHECK_OK(ctrt_from_data(&a, values, 72, CTRT_SHAPE(6, 12), CTRT_F32, device));
    CHECK_OK(ctrt_from_data(&b, values, 72, CTRT_SHAPE(12, 6), CTRT_F32, device));
    if (distribute) {
        CHECK_OK(ctrt_tensor_distribute(a, SHARDED(1)));
        CHECK_OK(ctrt_tensor_distribute(b, SHARDED(0)));
    }
    CHECK_OK(ctrt_matmul(&results[0], a, b));                   /* partial, then all_reduce */
    CHECK_OK(ctrt_relu(&results[0], results[0]));
    CHECK_OK(ctrt_softmax(&results[1], a, 1));                  /* all_gather */
    CHECK_OK(ctrt_matmul(&grad, a, b));
    CHECK_OK(ctrt_clone(&results[2], grad));
    if (distribute) {
        CHECK_OK(ctrt_tensor_distribute(a, SHARDED(0)));        /* all_to_all */
        CHECK_OK(ctrt_tensor_distribute(results[2], SHARDED(0)));       /* reduce_scatter */
    }
    CHECK_OK(ctrt_exp(&results[3], a));
}

static void compare(const char *all_reduce)
{
    ctrt_tensor *want[4] = { NULL }, *got[4] = { NULL };
    ctrt_layout_counts counts = CTRT_LAYOUT_COUNTS;
    results_on(want, gpu, false);
    results_on(got, multi, true);
    for (int i = 0; i < 4; i++) {
        NEAR(got[i], want[i], 1e-5);
        ctrt_tensor_release(&want[i]);
        ctrt_tensor_release(&got[i]);
    }
    CHECK_OK(ctrt_layout_count(&counts, multi));
    CHECK_TRUE(counts.all_reduce > 0 && counts.all_gather > 0 && counts.reduce_scatter > 0 && counts.all_to_all > 0);
    CHECK((calls("ncclAllReduce") > 0) == (all_reduce != NULL), "%lld calls of ncclAllReduce",
          (long long)calls("ncclAllReduce"));
    CHECK(soft->faults() == 0, "%s", soft->fault_text());
    CHECK_OK(ctrt_shutdown());
}

TEST_MAIN
{
    soft_begin(argv);
    group("all GPUs, by NCCL");
    IN_CUDA_CHILD(SOFT) {
        if (CHECK_OK(ctrt_device_get(&multi, "nccl-multi:0")))
            compare("ncclAllReduce");
    }
    group("two of three GPUs");
    IN_CUDA_CHILD(SOFT, "CTRT_NCCL_MULTI=cuda:2,cuda:0") {
        if (CHECK_OK(ctrt_device_get(&multi, "nccl-multi:0")))
            compare("ncclAllReduce");
    }
    group("without NCCL, by the engine host");
    IN_CUDA_CHILD(SOFT, "CTRT_NCCL_LIBRARY=/nowhere/libnccl.so.2", "CTRT_LOG=error") {
        if (CHECK_OK(ctrt_device_get(&multi, "nccl-multi:0")))
            compare(NULL);
    }
    return done();
}
