/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-kernels.c: softcuda runs correct kernels as CUDA does, and detects the errors of faulty
 * ones. */
#include "bed.h"

enum { N = 10000, WORDS = 512 };

static float *numbers(int n)
{
    float *list = malloc(sizeof *list * (size_t)n);
    for (int i = 0; i < n; i++)
        list[i] = (float)(i % 97) * 0.25f;
    return list;
}

static address device_copy(const void *from, size_t bytes)
{
    address out = 0;
    OK(cuMemAlloc_v2(&out, bytes));
    OK(cuMemcpyHtoD_v2(out, from, bytes));
    return out;
}

/* A small integer as f16 or bf16. */
static uint16_t half_of(int x, bool bf16)
{
    float number = (float)x;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    const uint32_t exponent = bits >> 23 & 255;
    if (bf16 || x == 0)
        return (uint16_t)(bits >> 16);
    return (uint16_t)((bits >> 31) << 15 | (exponent - 112) << 10 | (bits >> 13 & 1023));
}

/* All sums are exact, so the order of addition does not matter. */
static void run_matrices(void)
{
    group("products of a warp: ldmatrix and mma");
    for (int way = 0; way < 4; way++) {
        const bool turned = way & 1, bf16 = way & 2;
        int left[16][16], right[16][8];
        uint16_t a[256], b[128];
        float got[16][8];
        for (int i = 0; i < 16; i++) {
            for (int k = 0; k < 16; k++)
                a[i * 16 + k] = half_of(left[i][k] = (i * 7 + k * 5) % 13 - 6, bf16);
            for (int j = 0; j < 8; j++)
                b[turned ? j * 16 + i : i * 8 + j] = half_of(right[i][j] = (i * 3 + j * 11) % 17 - 8, bf16);
        }
        address out = 0;
        OK(cuMemAlloc_v2(&out, sizeof got));
        const struct matrix_args args = { (float *)(uintptr_t)out,
                                          (const uint16_t *)(uintptr_t)device_copy(a, sizeof a),
                                          (const uint16_t *)(uintptr_t)device_copy(b, sizeof b), turned, bf16 };
        OK(launch("matrix_product", 1, 32, 0, stream, &args));
        OK(cuMemcpyDtoHAsync_v2(got, out, sizeof got, stream));
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                int wanted = 0;
                for (int k = 0; k < 16; k++)
                    wanted += left[i][k] * right[k][j];
                CHECK(got[i][j] == (float)wanted, "variant %d: element [%d][%d] is %g, expected %d", way, i, j,
                      (double)got[i][j], wanted);
            }
    }
}

static void run_vectors(void)
{
    float *x = numbers(N), *got = malloc(sizeof *got * N);
    const address a = device_copy(x, N * 4), b = device_copy(x, N * 4);
    address out = 0;
    OK(cuMemAlloc_v2(&out, N * 4));
    struct vector_args args = { (float *)(uintptr_t)out, (float *)(uintptr_t)a, (float *)(uintptr_t)b, N };
    group("a kernel without barriers");
    OK(launch("vector_add", 7, 100, 0, stream, &args));
    memset(&args, 0, sizeof args);                          /* arguments are copied at the launch */
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(got, out, N * 4));
    for (int i = 0; i < N; i++)
        CHECK(got[i] == 2 * x[i], "element %d is %g, expected %g", i, (double)got[i], (double)(2 * x[i]));

    double wanted = 0;
    for (int i = 0; i < N; i++)
        wanted += (double)x[i];
    group("reductions with shared memory and with shuffles");
    args = (struct vector_args){ (float *)(uintptr_t)out, (float *)(uintptr_t)a, NULL, N };
    OK(launch("sum_shared", 4, 256, 0, stream, &args));
    OK(cuMemcpyDtoHAsync_v2(got, out, 16, stream));
    CHECK(got[0] + got[1] + got[2] + got[3] == (float)wanted, "shared memory: %g, expected %g",
          (double)(got[0] + got[1] + got[2] + got[3]), wanted);
    for (unsigned block = 1; block <= 1024; block = block * 3 + 1) {
        const float zero = 0;
        OK(cuMemcpyHtoD_v2(out, &zero, 4));
        OK(launch("sum_warp", 3, block, 0, stream, &args));
        OK(cuMemcpyDtoHAsync_v2(got, out, 4, stream));
        if (block % 32 == 0 || block < 32)
            CHECK(block < 32 || got[0] == (float)wanted, "blocks of %u: %g, expected %g", block, (double)got[0],
                  wanted);
    }
    OK(cuMemcpyHtoD_v2(out, &(float){ 0 }, 4));
    OK(launch("sum_warp", 3, 1024, 0, stream, &args));
    OK(cuMemcpyDtoHAsync_v2(got, out, 4, stream));
    CHECK(got[0] == (float)wanted, "blocks of 1024: %g, expected %g", (double)got[0], wanted);

    group("dynamic shared memory");
    OK(launch("dynamic_shared", 1, 200, 800, stream, &args));
    OK(cuMemcpyDtoHAsync_v2(got, out, 800, stream));
    for (int i = 0; i < 200; i++)
        CHECK(got[i] == x[199 - i], "element %d is %g", i, (double)got[i]);
    GIVES(launch("dynamic_shared", 1, 200, 50000, stream, &args), CUDA_ERROR_INVALID_VALUE);
    OK(cuKernelSetAttribute(FUNCTION_MAX_DYNAMIC, 50000, kernel("dynamic_shared"), 0));
    OK(launch("dynamic_shared", 1, 200, 50000, stream, &args));
    OK(cuStreamSynchronize(stream));
    GIVES(launch("dynamic_shared", 1, 257, 4 * 257, stream, &args), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    GIVES(launch("vector_add", 1, 1025, 0, stream, &args), CUDA_ERROR_INVALID_VALUE);
    GIVES(launch("vector_add", 0, 32, 0, stream, &args), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    OK(cuMemFree_v2(out));
    free(x);
    free(got);
}

static void check_lanes(const uint64_t *got, const char *what, uint64_t (*wanted)(unsigned lane), unsigned from,
                        unsigned to)
{
    for (unsigned lane = from; lane < to; lane++)
        CHECK(got[lane] == wanted(lane), "%s: lane %u has %llu, expected %llu", what, lane,
              (unsigned long long)got[lane], (unsigned long long)wanted(lane));
}

static uint64_t want_index(unsigned lane) { return (void)lane, 50; }
static uint64_t want_up(unsigned lane) { return lane < 3 ? lane : lane - 3; }
static uint64_t want_down(unsigned lane) { return lane > 28 ? lane : lane + 3; }
static uint64_t want_xor(unsigned lane) { return lane ^ 9; }
static uint64_t want_index8(unsigned lane) { return (lane & ~7u) + 2; }
static uint64_t want_down8(unsigned lane) { return (lane & 7) > 4 ? lane : lane + 3; }
static uint64_t want_ballot(unsigned lane) { return (void)lane, 0x49249249; }
static uint64_t want_votes(unsigned lane) { return (void)lane, 3; }
static uint64_t want_add(unsigned lane) { return (void)lane, 496; }
static uint64_t want_min(unsigned lane) { return (void)lane, (uint32_t)-16; }
static uint64_t want_match(unsigned lane) { return (uint64_t)0xf << (lane / 4 * 4); }
static uint64_t want_double(unsigned lane) { return lane ^ 1; }
static uint64_t want_half_low(unsigned lane) { return (void)lane, 120; }
static uint64_t want_half_high(unsigned lane) { return (void)lane, 0xaaaa0000; }
static uint64_t want_left(unsigned lane) { return (void)lane, 0x000fffff; }
static uint64_t want_gone(unsigned lane) { return (void)lane, 0xffffffff; }

static void run_warps(void)
{
    uint64_t got[WORDS];
    address out = 0;
    OK(cuMemAlloc_v2(&out, sizeof got));
    const struct number_args args = { (uint64_t *)(uintptr_t)out, 0, 0 };
    static const struct { const char *what; uint64_t (*wanted)(unsigned); unsigned from, to; int row; } rows[] = {
        { "__shfl_sync", want_index, 0, 32, 0 }, { "__shfl_up_sync", want_up, 0, 32, 1 },
        { "__shfl_down_sync", want_down, 0, 32, 2 },
        { "__shfl_xor_sync", want_xor, 0, 32, 3 }, { "__shfl_sync of 8", want_index8, 0, 32, 4 },
        { "__shfl_down_sync of 8", want_down8, 0, 32, 5 },
        { "__ballot_sync", want_ballot, 0, 32, 6 }, { "votes", want_votes, 0, 32, 7 },
        { "__reduce_add_sync", want_add, 0, 32, 8 },
        { "__reduce_min_sync", want_min, 0, 32, 9 }, { "__match_any_sync", want_match, 0, 32, 10 },
        { "double", want_double, 0, 32, 11 },
        { "lower half", want_half_low, 0, 16, 12 }, { "upper half", want_half_high, 16, 32, 12 },
        { "lanes that are left", want_left, 0, 20, 13 }, { "a lane that is gone", want_gone, 0, 20, 14 },
    };
    group("warp operations");
    OK(launch("warp_operations", 1, 32, 0, stream, &args));
    OK(cuMemcpyDtoHAsync_v2(got, out, sizeof got, stream));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_lanes(&got[32 * rows[i].row], rows[i].what, rows[i].wanted, rows[i].from, rows[i].to);

    group("barriers that count a predicate");
    OK(launch("count_block", 1, 100, 0, stream, &args));
    OK(cuMemcpyDtoHAsync_v2(got, out, sizeof got, stream));
    for (int i = 0; i < 100; i++)
        CHECK(got[i] == 3410, "thread %d has %llu", i, (unsigned long long)got[i]);

    group("thread indices in three dimensions");
    void *list[] = { (void *)(uintptr_t)&args, NULL };
    OK(cuLaunchKernel(kernel("places"), 2, 3, 2, 4, 3, 2, 0, stream, list, NULL));
    OK(cuMemcpyDtoHAsync_v2(got, out, sizeof got, stream));
    for (uint64_t i = 0; i < 288; i++)
        CHECK(got[i] == ((i / 24) << 32 | i % 24), "thread %llu has %llx", (unsigned long long)i,
              (unsigned long long)got[i]);

    group("atomic operations on two streams");
    void *other;
    OK(cuStreamCreateWithPriority(&other, STREAM_NON_BLOCKING, 0));
    memset(got, 0, sizeof got);
    got[2] = ~(uint64_t)0;
    OK(cuMemcpyHtoD_v2(out, got, sizeof got));
    OK(launch("atomics", 20, 256, 0, stream, &args));
    OK(launch("atomics", 20, 256, 0, other, &args));
    OK(cuStreamSynchronize(other));
    OK(cuMemcpyDtoHAsync_v2(got, out, sizeof got, stream));
    double sum;
    float sum_f;
    memcpy(&sum, &got[3], 8);
    memcpy(&sum_f, &got[4], 4);
    CHECK(got[0] == 10240 && got[1] == 5119 && got[2] == 0, "add %llu, max %llu, min %llu", (unsigned long long)got[0],
          (unsigned long long)got[1], (unsigned long long)got[2]);
    CHECK(sum == 5120.0 && sum_f == 2560.0f, "double %g, float %g", sum, (double)sum_f);
    CHECK(got[5] == ~(uint64_t)0 && got[6] >= 1 && got[6] <= 5120, "or %llx, compare %llu", (unsigned long long)got[5],
          (unsigned long long)got[6]);
    OK(cuStreamDestroy_v2(other));

    group("accesses of lanes ordered by __syncwarp are not a race");
    OK(launch("warp_neighbours", 1, 64, 0, stream, &args));
    OK(cuMemcpyDtoHAsync_v2(got, out, sizeof got, stream));
    for (uint64_t i = 0; i < 64; i++)
        CHECK(got[i] == (i ^ 1), "thread %llu has %llu", (unsigned long long)i, (unsigned long long)got[i]);
    OK(cuMemFree_v2(out));
}

static address fresh(size_t bytes)
{
    address out = 0;
    OK(cuMemAlloc_v2(&out, bytes));
    return out;
}

static void run_bad(void)
{
    softcuda_control.tell(false);
    group("a barrier that not all threads reach");
    struct number_args numbers_args = { (uint64_t *)(uintptr_t)fresh(4096), 0, 2 };
    goes_wrong("bad_barrier", 64, &numbers_args, CUDA_ERROR_LAUNCH_FAILED, "test-kernels.cu:");
    numbers_args.out = (uint64_t *)(uintptr_t)fresh(4096);
    goes_wrong("bad_two_barriers", 64, &numbers_args, CUDA_ERROR_LAUNCH_FAILED, "diverges");
    numbers_args.out = (uint64_t *)(uintptr_t)fresh(4096);
    goes_wrong("bad_mask", 32, &numbers_args, CUDA_ERROR_LAUNCH_FAILED, "lane 16 itself is not");

    struct matrix_args matrix = { .out = (float *)(uintptr_t)fresh(4096) };
    goes_wrong("bad_matrix", 32, &matrix, CUDA_ERROR_LAUNCH_FAILED, "mma by the lanes ffffffdf of a warp alone");

    group("accesses outside the kernel's memory");
    struct vector_args args = { .out = (float *)(uintptr_t)fresh(40), .n = 10 };
    goes_wrong("bad_overrun", 64, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "byte 40 of a block of 40 bytes of device 0");
    args.out = (float *)(uintptr_t)fresh(256);
    goes_wrong("bad_index", 64, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "is not in the array");
    const address gone = fresh(1000);
    OK(cuMemFree_v2(gone));
    args = (struct vector_args){ .out = (float *)(uintptr_t)gone, .n = 10 };
    goes_wrong("bad_overrun", 64, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "that was freed");
    float pageable[4] = { 0 };
    args = (struct vector_args){ .out = (float *)(uintptr_t)fresh(16), .a = pageable };
    goes_wrong("bad_host", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "neither device memory nor pinned");
    const address both = fresh(64);
    args = (struct vector_args){ .out = (float *)(uintptr_t)both, .a = (float *)(uintptr_t)both };
    goes_wrong("bad_alignment", 1, &args, CUDA_ERROR_MISALIGNED_ADDRESS, "no multiple of 16");

    group("a race in shared memory");
    args = (struct vector_args){ .out = (float *)(uintptr_t)fresh(256) };
    goes_wrong("bad_race", 64, &args, CUDA_ERROR_LAUNCH_FAILED, "without a barrier between");
    softcuda_control.tell(true);

    group("new shared memory is not zero");
    uint64_t got = 0;
    numbers_args = (struct number_args){ (uint64_t *)(uintptr_t)fresh(8), 0, 2 };
    OK(launch("bad_zeros", 1, 1, 0, stream, &numbers_args));
    OK(cuMemcpyDtoHAsync_v2(&got, (uintptr_t)numbers_args.out, 8, stream));
    CHECK(got == 0xffffffff, "it contained %llx", (unsigned long long)got);
}

TEST_MAIN
{
    group("initialization");
    open_bed();
    run_vectors();
    run_matrices();
    run_warps();
    run_bad();
    CHECK(softcuda_control.launches("vector_add") == 1, "vector_add was launched %llu times",
          (unsigned long long)softcuda_control.launches("vector_add"));
    return done();
}
