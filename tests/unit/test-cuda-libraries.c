/* SPDX-License-Identifier: Apache-2.0 */
/* Tests when the cuda backend opens NVIDIA's libraries and how much workspace they get, with the CUDA driver
 * in software (tests/softcuda). */
#include "soft_begin.h"

#include <sys/resource.h>

#include "child.h"
#include "ctrt/capture.h"
#include "tensors.h"

#define MIB ((int64_t)1 << 18)          /* floats */

static const struct softcuda_control *soft;
static ctrt_device *gpu;

static bool open_device(void)
{
    if (!CHECK_OK(ctrt_device_get(&gpu, "cuda:0")))
        return false;
    soft = soft_control();
    return CHECK(soft != NULL, "the CUDA driver in software is not loaded");
}

static int64_t calls(const char *name)
{
    return soft->calls(name) > 0 ? soft->calls(name) : 0;
}

/* Creates the operands ones[1,4,6,6] and ones[4,4,3,3] of a convolution whose result is 36 everywhere. */
static void operands(ctrt_tensor **x, ctrt_tensor **w)
{
    CHECK_OK(ctrt_ones(x, CTRT_SHAPE(1, 4, 6, 6), CTRT_F32, gpu));
    CHECK_OK(ctrt_ones(w, CTRT_SHAPE(4, 4, 3, 3), CTRT_F32, gpu));
}

static void check_sum(ctrt_tensor *y, double want, const char *what)
{
    double got = 0;
    CTRT_AUTO(tensor) sum = NULL;
    if (CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS)) && CHECK_OK(ctrt_item(&got, sum)))
        CHECK(got == want, "%s: the sum is %g, expected %g", what, got, want);
}

#define CONVOLVED (36.0 * 4 * 4 * 4)

/* ---- captures ---- */

static void test_captures(void)
{
    group("a capture without convolutions does not open cuDNN");
    IN_CHILD("SOFTCUDA=devices=1") {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        ctrt_graph *graph = NULL;
        if (open_device()) {
            CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(8, 8), CTRT_F32, gpu));
            CHECK_OK(ctrt_capture_begin(gpu));
            CHECK_OK(ctrt_matmul(&y, x, x));
            CHECK_OK(ctrt_capture_end(&graph, gpu));
            CHECK_OK(ctrt_capture_replay(graph));
            check_sum(y, 512, "the product");
            CHECK(calls("cudnnCreate") == 0, "cudnnCreate was called %d times", (int)calls("cudnnCreate"));
            ctrt_graph_release(&graph);
        }
    }
    CHILD_END;

    group("cuDNN opens during a capture; if it cannot, the capture uses other kernels and later convolutions cuDNN");
    for (int refused = 0; refused < 2; refused++)
        IN_CHILD("SOFTCUDA=devices=1", "CTRT_LOG=error") {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL;
            ctrt_graph *graph = NULL;
            if (open_device()) {
                operands(&x, &w);
                if (refused) {
                    void *library = dlopen("libcudnn.so.9", RTLD_NOW);      /* inject() needs the library loaded */
                    CHECK(library != NULL && soft->inject("cudnnCreate", 1, 1001, false),
                          "libcudnn.so.9 did not load, or the fault was not injected");
                }
                CHECK_OK(ctrt_capture_begin(gpu));
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
                CHECK_OK(ctrt_capture_end(&graph, gpu));
                CHECK(calls("cudnnCreate") == 1 && calls("cudnnConvolutionForward") == (refused ? 0 : 2),
                      "cudnnCreate was called %d times, cudnnConvolutionForward %d times",
                      (int)calls("cudnnCreate"), (int)calls("cudnnConvolutionForward"));
                for (int i = 1; i < 3; i++) {
                    CHECK_OK(ctrt_fill_(w, ctrt_float(i)));
                    CHECK_OK(ctrt_capture_replay(graph));
                    check_sum(y, i * CONVOLVED, "a replay");
                }
                ctrt_graph_release(&graph);
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
                check_sum(y, 2 * CONVOLVED, "after the capture");
                CHECK(calls("cudnnCreate") == 1 + refused && calls("cudnnConvolutionForward") == (refused ? 1 : 3),
                      "after the capture: cudnnCreate was called %d times, cudnnConvolutionForward %d times",
                      (int)calls("cudnnCreate"), (int)calls("cudnnConvolutionForward"));
            }
        }
        CHILD_END;
}

/* ---- workspaces ---- */

static void count_report(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)device, (void)bytes, (void)report;
    ++*(int *)user;
}

static void test_workspace(void)
{
    static const struct { const char *what, *soft, *dnn, *set; int64_t held, workspace; } cases[] = {
        { "100 MiB requested, less than an eighth of the device", "SOFTCUDA=devices=1,memory=1g",
          "SOFTCUDA_DNN=workspace=100", NULL, 0, 100 },
        { "100 MiB requested, more than an eighth of the device", "SOFTCUDA=devices=1,memory=512m",
          "SOFTCUDA_DNN=workspace=100", NULL, 0, 0 },
        { "1100 MiB requested on a large device", "SOFTCUDA=devices=1,memory=16g", "SOFTCUDA_DNN=workspace=1100", NULL,
          0, 0 },
        { "100 MiB requested, 64 allowed", "SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100",
          "CTRT_CUDA_WORKSPACE=64m", 0, 0 },
        { "100 MiB requested, 200 allowed", "SOFTCUDA=devices=1,memory=512m", "SOFTCUDA_DNN=workspace=100",
          "CTRT_CUDA_WORKSPACE=200m", 0, 100 },
        { "100 MiB requested, 60 free", "SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100", NULL, 964, 0 },
    };
    group("convolution workspaces: at most 1 GiB, an eighth of the device, or CTRT_CUDA_WORKSPACE; with less "
          "free memory, an algorithm that needs less");
    for (size_t i = 0; i < COUNT(cases); i++)
        IN_CHILD(cases[i].soft, cases[i].dnn, "CTRT_MEMORY=direct", cases[i].set) {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, held = NULL;
            if (open_device()) {
                int reports = 0;
                operands(&x, &w);
                if (cases[i].held > 0)
                    CHECK_OK(ctrt_empty(&held, CTRT_SHAPE(cases[i].held * MIB), CTRT_F32, gpu));
                ctrt_memory_reset_peak(gpu);
                const uint64_t before = ctrt_memory_allocated(gpu);
                ctrt_memory_set_oom_callback(count_report, &reports);
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
                const int64_t used = (int64_t)(ctrt_memory_max_allocated(gpu) - before) >> 20;
                CHECK(used == cases[i].workspace, "%s: %lld MiB were used, expected %lld", cases[i].what, (long long)used, (long long)cases[i].workspace);
                CHECK(calls("cudnnConvolutionForward") == 1, "%s: the convolution did not run in cuDNN", cases[i].what);
                check_sum(y, CONVOLVED, cases[i].what);
                CHECK(reports == 0, "%s: %d out-of-memory callbacks, expected 0", cases[i].what, reports);
            }
        }
        CHILD_END;

    group("a capture continues when the workspace of the first algorithm does not fit");
    IN_CHILD("SOFTCUDA=devices=1,memory=1g", "SOFTCUDA_DNN=workspace=100") {
        CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, held = NULL;
        ctrt_graph *graph = NULL;
        if (open_device()) {
            int reports = 0;
            operands(&x, &w);
            CHECK_OK(ctrt_empty(&held, CTRT_SHAPE(940 * MIB), CTRT_F32, gpu));
            ctrt_memory_set_oom_callback(count_report, &reports);
            CHECK_OK(ctrt_capture_begin(gpu));
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            CHECK_OK(ctrt_capture_end(&graph, gpu));
            CHECK_OK(ctrt_capture_replay(graph));
            check_sum(y, CONVOLVED, "the replay");
            CHECK(reports == 0, "%d out-of-memory callbacks, expected 0", reports);
            ctrt_graph_release(&graph);
        }
    }
    CHILD_END;
}

/* ---- transient failures ---- */

static void test_transient(void)
{
    group("libraries that could not be opened for lack of file descriptors are used once descriptors are available");
    IN_CHILD("SOFTCUDA=devices=1", "CTRT_LOG=error") {
        CTRT_AUTO(tensor) x = NULL, w = NULL, a = NULL, y = NULL;
        struct rlimit limit;
        if (open_device() && CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit failed")) {
            operands(&x, &w);
            CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(8, 8), CTRT_F32, gpu));
            check_sum(a, 64, "ones before the limit is set");
            for (int given = 0; given < 2; given++) {
                CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ given ? limit.rlim_cur : 0, limit.rlim_max }) == 0, "cannot set the limit");
                CHECK_OK(ctrt_matmul(&y, a, a));
                check_sum(y, 512, "the product");
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
                check_sum(y, CONVOLVED, "the convolution");
                CHECK(calls("cublasLtMatmul") == given && calls("cudnnConvolutionForward") == given, "with%s descriptors: %d products by cuBLASLt, %d "
                      "convolutions by cuDNN", given ? "" : "out", (int)calls("cublasLtMatmul"), (int)calls("cudnnConvolutionForward"));
            }
        }
    }
    CHILD_END;
}

TEST_MAIN
{
    if (getenv("CTRT_TEST_GPU") != NULL) {
        printf("1..0 # SKIP requires the CUDA driver in software\n");
        return 0;
    }
    soft_begin(argv);
    test_captures();
    test_workspace();
    test_transient();
    return done();
}
