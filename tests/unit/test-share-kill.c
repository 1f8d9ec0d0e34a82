/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that share tensors are killed with SIGKILL at random moments, 100 times on each side: the other side reads
 * no garbage, no message, descriptor or mapping is left, and the queue works on. */
#include <errno.h>
#include <signal.h>

#include "calls.h"
#include "child.h"
#include "share_check.h"
#include "tensors.h"

enum { KILLS = FEWER_SANITIZED(100), BYTES = 1 << 20, CAPACITY = 3 };

static uint32_t random_below(uint32_t n)
{
    static uint64_t state = 20261124;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* Puts a tensor whose elements are all `number` modulo 256. */
static ctrt_status put_number(ctrt_queue *queue, int32_t number, double seconds)
{
    CTRT_AUTO(tensor) x = NULL;
    TRY(ctrt_empty(&x, CTRT_SHAPE(BYTES), CTRT_U8, cpu));
    TRY(ctrt_tensor_share_(x));
    memset(ctrt_tensor_data(x), number & 255, BYTES);
    return ctrt_queue_put(queue, &x, 1, &number, sizeof number, seconds);
}

static bool is_filled(const ctrt_tensor *x, int32_t number)
{
    const unsigned char *values = ctrt_tensor_data(x);
    return values[0] == (number & 255) && memcmp(values, values + 1, BYTES - 1) == 0;
}

/* Gets a tensor and reports whether all its elements are the number of the message. */
static ctrt_status get_number(bool *intact, ctrt_tensor **x, ctrt_queue *queue, double seconds)
{
    int32_t number = -1;
    int count = 1;
    size_t size = sizeof number;
    TRY(ctrt_queue_get(x, &count, &number, &size, queue, seconds));
    *intact = ctrt_tensor_numel(*x) == BYTES && is_filled(*x, number);
    return CTRT_OK;
}

static void kill_and_join(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    CHECK_TRUE(waitpid(child, &status, 0) == child);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "the child found garbage");
}

/* All children have ended and the queue is empty, so the kernel keeps no memory that is not listed here. */
static void check_rest(int maps, int files)
{
    CHECK_EQ(mappings(), maps);
    CHECK_EQ(open_files(), files);
}

TEST(test_consumers, "consumers are killed: nothing is left, and the queue keeps its capacity")
{
    CTRT_AUTO(queue) queue = NULL;
    CHECK_OK(ctrt_queue_new(&queue, CAPACITY));
    const int maps = mappings(), files = open_files();
    int received = 0;
    for (int i = 0; i < KILLS; i++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            CTRT_AUTO(tensor) x = NULL;
            bool intact = true;
            while (intact && get_number(&intact, &x, queue, 20) == CTRT_OK)
                ;
            _exit(1);
        }
        for (int n = 2 + (int)random_below(3); n > 0; n--)
            received += put_number(queue, i * 10 + n, 0.02) == CTRT_OK;
        usleep(random_below(4000));
        kill_and_join(child);
    }
    CHECK(received > KILLS, "only %d messages were put", received);
    for (bool intact = true; intact;) {
        CTRT_AUTO(tensor) x = NULL;
        const ctrt_status status = get_number(&intact, &x, queue, 0);
        CHECK_TRUE(intact && (status == CTRT_OK || status == CTRT_ERR_COMM));
        if (status != CTRT_OK)
            break;
    }
    for (int i = 0; i < CAPACITY; i++)
        CHECK_OK(put_number(queue, i, 1));
    CHECK_EQ(put_number(queue, 0, 0.2), CTRT_ERR_COMM);
    for (int i = 0; i < CAPACITY; i++) {
        CTRT_AUTO(tensor) x = NULL;
        bool intact = false;
        CHECK_TRUE(get_number(&intact, &x, queue, 1) == CTRT_OK && intact);
    }
    check_rest(maps, files);
}

TEST(test_producers, "producers are killed: received tensors stay intact, and the consumer gets an error at the end")
{
    const int maps = mappings(), files = open_files();
    int received = 0;
    for (int i = 0; i < KILLS; i++) {
        CTRT_AUTO(queue) queue = NULL;
        ctrt_tensor *kept = NULL, *x = NULL;
        CHECK_OK(ctrt_queue_new(&queue, CAPACITY));
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            for (int n = 0;; n++)
                if (put_number(queue, i * 1000 + n, 20) != CTRT_OK)
                    _exit(1);
        }
        bool intact = true;
        CHECK_OK(ctrt_queue_close_put(queue));
        CHECK_TRUE(get_number(&intact, &kept, queue, 20) == CTRT_OK && intact);
        usleep(random_below(4000));
        kill_and_join(child);
        ctrt_status status;
        while ((status = get_number(&intact, &x, queue, 20)) == CTRT_OK && intact)
            received++;
        CHECK(intact, "garbage after %d messages", received);
        CHECK_FAILS(status, CTRT_ERR_STATE, "no process can put messages any more");
        CHECK_TRUE(is_filled(kept, i * 1000));
        ctrt_tensor_release(&kept);
        ctrt_tensor_release(&x);
    }
    CHECK(received > KILLS / 4, "only %d messages were received", received);
    check_rest(maps, files);
}

TEST_MAIN
{
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    return run_tests();
}
