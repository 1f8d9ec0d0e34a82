/* SPDX-License-Identifier: Apache-2.0 */
/* Tests when the cuda backend opens NVIDIA's libraries and how much workspace they get, with the software driver. */
#include <sys/resource.h>

#include "ctrt/capture.h"
#include "soft_begin.h"

/* Creates the operands ones[1,4,6,6] and ones[4,4,3,3] of a convolution whose result is 36 everywhere. */
static void operands(ctrt_tensor **x, ctrt_tensor **w)
{
    OK(ctrt_ones(x, CTRT_SHAPE(1, 4, 6, 6), CTRT_F32, gpu), ctrt_ones(w, CTRT_SHAPE(4, 4, 3, 3), CTRT_F32, gpu));
}

static void check_sum(ctrt_tensor *y, double want, const char *what)
{
    double got = 0;
    CTRT_AUTO(tensor) sum = NULL;
    if (CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS)) && CHECK_OK(ctrt_item(&got, sum)))
        CHECK(got == want, "%s: the sum is %g, expected %g", what, got, want);
}

#define CONVOLVED (36.0 * 4 * 4 * 4)
#define CREATE    "cudnnCreate"
#define FORWARD   "cudnnConvolutionForward"

static void test_captures(void)
{
    group("a capture without convolutions does not open cuDNN");
    IN_CUDA_CHILD("SOFTCUDA=devices=1") {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        CTRT_AUTO(graph) graph = NULL;
        OK(ctrt_ones(&x, CTRT_SHAPE(8, 8), CTRT_F32, gpu), ctrt_capture_begin(gpu), ctrt_matmul(&y, x, x),
           ctrt_capture_end(&graph, gpu), ctrt_capture_replay(graph));
        check_sum(y, 512, "the product");
        CHECK_EQ(calls(CREATE), 0);
    }

    group("cuDNN opens during a capture; if it cannot, the capture uses other kernels and later convolutions cuDNN");
    for (int refused = 0; refused < 2; refused++)
        IN_CUDA_CHILD("SOFTCUDA=devices=1", "CTRT_LOG=error") {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL;
            CTRT_AUTO(graph) graph = NULL;
            operands(&x, &w);
            if (refused) {
                void *library = dlopen("libcudnn.so.9", RTLD_NOW);      /* inject() needs the library loaded */
                CHECK_TRUE(library != NULL && soft->inject(CREATE, 1, 1001, false));
            }
            OK(ctrt_capture_begin(gpu), ctrt_conv2d(&y, x, w, NULL, NULL), ctrt_conv2d(&y, x, w, NULL, NULL),
               ctrt_capture_end(&graph, gpu));
            EQUALS((calls(CREATE), 1), (calls(FORWARD), refused ? 0 : 2));
            for (int i = 1; i < 3; i++) {
                OK(ctrt_fill_(w, ctrt_float(i)), ctrt_capture_replay(graph));
                check_sum(y, i * CONVOLVED, "a replay");
            }
            ctrt_graph_release(&graph);
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            check_sum(y, 2 * CONVOLVED, "after the capture");
            EQUALS((calls(CREATE), 1 + refused), (calls(FORWARD), refused ? 1 : 3));
        }
}

static void count_report(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)device, (void)bytes, (void)report;
    ++*(int *)user;
}

static void test_workspace(void)
{
    /* MiB that cuDNN requests and that other tensors hold, and the workspace it gets. */
    static const struct { const char *what, *soft, *dnn, *set; int64_t held, workspace; bool capture; } cases[] = {
        { "less than an eighth of the device", "SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100", NULL, 0,
          100, false },
        { "more than an eighth of the device", "SOFTCUDA=devices=1,memory=512m", "SOFTCUDA_DNN=workspace=100", NULL, 0,
          0, false },
        { "more than 1 GiB", "SOFTCUDA=devices=1,memory=16g", "SOFTCUDA_DNN=workspace=1100", NULL, 0, 0, false },
        { "64 MiB allowed", "SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100", "CTRT_CUDA_WORKSPACE=64m", 0,
          0, false },
        { "200 MiB allowed", "SOFTCUDA=devices=1,memory=512m", "SOFTCUDA_DNN=workspace=100",
          "CTRT_CUDA_WORKSPACE=200m", 0, 100, false },
        { "60 MiB free", "SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100", NULL, 964, 0, false },
        { "84 MiB free in a capture", "SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100",
          "CTRT_MEMORY=caching", 940, -1, true },
    };
    group("convolution workspaces: at most 1 GiB, an eighth of the device, or CTRT_CUDA_WORKSPACE; with less free "
          "memory, an algorithm that needs less");
    for (size_t i = 0; i < COUNT(cases); i++)
        IN_CUDA_CHILD(cases[i].soft, cases[i].dnn, "CTRT_MEMORY=direct", cases[i].set) {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, held = NULL;
            CTRT_AUTO(graph) graph = NULL;
            int reports = 0;
            operands(&x, &w);
            if (cases[i].held > 0)
                CHECK_OK(ctrt_empty(&held, CTRT_SHAPE(cases[i].held * MIB), CTRT_F32, gpu));
            ctrt_memory_reset_peak(gpu);
            const uint64_t before = ctrt_memory_allocated(gpu);
            ctrt_memory_set_oom_callback(count_report, &reports);
            if (cases[i].capture)
                CHECK_OK(ctrt_capture_begin(gpu));
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            if (cases[i].capture) {
                OK(ctrt_capture_end(&graph, gpu), ctrt_capture_replay(graph));
            }
            const int64_t used = (int64_t)(ctrt_memory_max_allocated(gpu) - before) >> 20;
            CHECK(cases[i].capture || used == cases[i].workspace, "%s: %lld MiB, expected %lld", cases[i].what,
                  (long long)used,
                  (long long)cases[i].workspace);
            CHECK(calls(FORWARD) == 1, "%s: the convolution did not run in cuDNN", cases[i].what);
            check_sum(y, CONVOLVED, cases[i].what);
            CHECK(reports == 0, "%s: %d out-of-memory callbacks, expected 0", cases[i].what, reports);
        }
}

static void test_transient(void)
{
    group("libraries that could not be opened for lack of file descriptors are used once descriptors are available");
    IN_CUDA_CHILD("SOFTCUDA=devices=1", "CTRT_LOG=error") {
        CTRT_AUTO(tensor) x = NULL, w = NULL, a = NULL, y = NULL;
        struct rlimit limit;
        CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
        operands(&x, &w);
        CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(8, 8), CTRT_F32, gpu));
        check_sum(a, 64, "ones before the limit is set");
        for (int given = 0; given < 2; given++) {
            CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ given ? limit.rlim_cur : 0, limit.rlim_max }), 0);
            CHECK_OK(ctrt_matmul(&y, a, a));
            check_sum(y, 512, "the product");
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            check_sum(y, CONVOLVED, "the convolution");
            EQUALS((calls("cublasLtMatmul"), given), (calls(FORWARD), given));
        }
    }
}

TEST_MAIN
{
    if (getenv("CTRT_TEST_GPU") != NULL)
        return skip_rest("requires the software driver");
    soft_begin(argv);
    RUN_ALL(test_captures, test_workspace, test_transient);
    return done();
}
