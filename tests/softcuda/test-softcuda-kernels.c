/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-kernels.c: softcuda runs warp operations as CUDA does, and detects the errors of faulty
 * kernels. That correct kernels run correctly is shown by the conformance suite on cuda:0. */
#include "fixture.h"

static address new_memory(size_t bytes)
{
    address out = 0;
    OK(cuda.memory_alloc(&out, bytes));
    return out;
}

static float *floats(size_t bytes)
{
    return (float *)(uintptr_t)new_memory(bytes);
}

static uint64_t *numbers(size_t bytes)
{
    return (uint64_t *)(uintptr_t)new_memory(bytes);
}

static void run_limits(void)
{
    const struct vector_args args = { .n = 0 };
    cu_kernel add = kernel("vector_add");
    group("limits of a launch");
    OK(launch("vector_add", 1, 1024, 4096, stream, &args));
    CHECK_EQ(launch("vector_add", 1, 1025, 0, stream, &args), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(launch("vector_add", 0, 32, 0, stream, &args), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(launch("bad_race", 1, 65, 0, stream, &args), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    CHECK_EQ(launch("vector_add", 1, 200, 50000, stream, &args), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.kernel_set(FUNCTION_MAX_DYNAMIC, 50000, add, 0));
    OK(launch("vector_add", 1, 200, 50000, stream, &args));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(softcuda_control.launches("vector_add"), 2);
}

static uint64_t want_up(unsigned lane) { return lane < 3 ? lane : lane - 3; }
static uint64_t want_xor(unsigned lane) { return lane ^ 9; }
static uint64_t want_any(unsigned lane) { return (void)lane, 1; }
static uint64_t want_match(unsigned lane) { return (uint64_t)0xf << (lane / 4 * 4); }
static uint64_t want_neighbour(unsigned lane) { return lane ^ 1; }
static uint64_t want_parity(unsigned lane) { return lane & 1 ? 0xaaaa0000 : 0x55550000; }
static uint64_t want_running(unsigned lane) { return (void)lane, 0x000fffff; }
static uint64_t want_exited(unsigned lane) { return lane < 4 || lane >= 16 ? lane ^ 16 : 0xffffffff; }

static void run_warps(void)
{
    static const struct warp_case { const char *what; uint64_t (*want)(unsigned); unsigned from, to, row; } cases[] = {
        { "__shfl_up_sync", want_up, 0, 32, 0 },
        { "__shfl_xor_sync of a double", want_xor, 0, 32, 1 },
        { "__any_sync", want_any, 0, 32, 2 },
        { "__match_any_sync", want_match, 0, 32, 3 },
        { "lower half", want_neighbour, 0, 16, 4 },
        { "upper half", want_parity, 16, 32, 4 },
        { "running lanes", want_running, 0, 20, 5 },
        { "value of an exited lane", want_exited, 0, 20, 6 },
    };
    uint64_t got[256];
    const struct number_args args = { numbers(sizeof got), 0 };
    group("warp operations");
    OK(launch("warp_operations", 1, 32, 0, stream, &args));
    OK(cuda.copy_to_host(got, (uintptr_t)args.out, sizeof got, stream));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (unsigned lane = cases[i].from; lane < cases[i].to; lane++)
            CHECK(got[32 * cases[i].row + lane] == cases[i].want(lane), "%s: lane %u has %llu, expected %llu",
                  cases[i].what, lane, (unsigned long long)got[32 * cases[i].row + lane],
                  (unsigned long long)cases[i].want(lane));

    group("accesses of lanes ordered by __syncwarp are not a race");
    OK(launch("warp_neighbours", 1, 64, 0, stream, &args));
    OK(cuda.copy_to_host(got, (uintptr_t)args.out, sizeof got, stream));
    for (uint64_t i = 0; i < 64; i++)
        CHECK_EQ(got[i], i ^ 1);
}

static void run_faults(void)
{
    float pageable[4] = { 0 };
    const struct number_args barrier = { numbers(4096), 0 };
    group("a barrier or a warp operation that not all threads reach");
    softcuda_control.print_faults(false);
    check_fault("bad_barrier", 64, &barrier, CUDA_ERROR_LAUNCH_FAILED, "test-kernels.cu:");
    const struct number_args barriers = { numbers(4096), 0 };
    check_fault("bad_two_barriers", 64, &barriers, CUDA_ERROR_LAUNCH_FAILED, "diverges");
    const struct number_args mask = { numbers(4096), 0 };
    check_fault("bad_mask", 32, &mask, CUDA_ERROR_LAUNCH_FAILED, "lane 16 itself is not");
    struct vector_args args = { .out = floats(4096) };
    check_fault("bad_matrix", 32, &args, CUDA_ERROR_LAUNCH_FAILED, "mma by the lanes ffffffdf of a warp alone");

    group("accesses outside the kernel's memory");
    args = (struct vector_args){ .out = floats(40), .n = 10 };
    check_fault("bad_overrun", 64, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "byte 40 of a block of 40 bytes of device 0");
    args.out = floats(256);
    check_fault("bad_index", 64, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "is not in the array");
    args.out = floats(1000);
    OK(cuda.memory_free((uintptr_t)args.out));
    check_fault("bad_overrun", 64, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "that was freed");
    args = (struct vector_args){ .out = floats(16), .a = pageable };
    check_fault("bad_host", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "neither device memory nor pinned");
    args.out = floats(64);
    args.a = args.out;
    check_fault("bad_alignment", 1, &args, CUDA_ERROR_MISALIGNED_ADDRESS, "no multiple of 16");

    group("a race in shared memory");
    args = (struct vector_args){ .out = floats(256), .n = -1 };
    check_fault("bad_race", 64, &args, CUDA_ERROR_LAUNCH_FAILED, "thread (1,0,0) reads what thread (0,0,0) wrote in");
    args = (struct vector_args){ .out = floats(256), .n = 1 };
    check_fault("bad_race", 64, &args, CUDA_ERROR_LAUNCH_FAILED, "thread (1,0,0) writes what thread (0,0,0) read in");
    softcuda_control.print_faults(true);

    group("new shared memory is not zero");
    const struct number_args zeros = { numbers(8), 2 };
    OK(launch("bad_zeros", 1, 1, 0, stream, &zeros));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(read_number((uintptr_t)zeros.out), 0xffffffff);
}

TEST_MAIN
{
    start();
    run_limits();
    run_warps();
    run_faults();
    return done();
}
