/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of CUDA devices that processes share, on the software driver: segments are exported whole and opened once, a
 * block is not reused while another process uses it, and both sides may be killed. CUDA cannot be used after a fork, so
 * a process that has not opened the device forks the others. */
#include <pthread.h>
#include <signal.h>

#include "calls.h"
#include "share_check.h"
#include "soft_begin.h"

#define SHARE "SOFTCUDA=devices=1,memory=256m", "CTRT_CUDA_SHARE=yes", "CTRT_MEMORY=caching"

enum { KILLS = FEWER_SANITIZED(25), QUEUED = 3, ELEMENTS = 1 << 14 };

static uint64_t allocated(void)
{
    ctrt_memory_stats stats = CTRT_MEMORY_STATS;
    CHECK_OK(ctrt_memory_empty_cache(gpu));
    CHECK_OK(ctrt_memory_get_stats(&stats, gpu));
    return stats.allocated_bytes[CTRT_POOL_ALL].current;
}

static ctrt_status put_number(ctrt_queue *queue, int number, double seconds)
{
    CTRT_AUTO(tensor) x = NULL;
    TRY(ctrt_full(&x, CTRT_SHAPE(ELEMENTS), ctrt_float(number), CTRT_F32, gpu));
    return ctrt_queue_put(queue, &x, 1, &number, sizeof number, seconds);
}

/* Gets a tensor and reports whether all its elements are the number of the message. */
static ctrt_status get_number(bool *intact, ctrt_tensor **x, ctrt_queue *queue, double seconds)
{
    static float values[ELEMENTS];
    int number = -1, count = 1;
    size_t size = sizeof number;
    TRY(ctrt_queue_get(x, &count, &number, &size, queue, seconds));
    TRY(ctrt_to_host(values, sizeof values, *x, CTRT_F32));
    *intact = values[0] == (float)number && memcmp(values, values + 1, sizeof values - sizeof values[0]) == 0;
    return CTRT_OK;
}

/* Messages between the two processes of a test: `there` has tensors, `back` tells that a step is done. */
static ctrt_queue *there, *back;

static void step(ctrt_queue *queue)
{
    CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 20));
}

static void wait_step(ctrt_queue *queue)
{
    CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 20));
}

static void receiver(void)
{
    ctrt_tensor *got[3] = { NULL };
    CTRT_AUTO(tensor) sum = NULL, more = NULL;
    int count = 3, one = 1;
    double value = 0;
    if (!soft_open("cuda:0") || !CHECK_OK(ctrt_queue_get(got, &count, NULL, NULL, there, 20)))
        return;
    CHECK_EQ(count, 3);
    CHECK_EQ(ctrt_tensor_offset(got[1]), 100);
    CHECK_EQ(ctrt_tensor_requires_grad(got[2]), true);
    VALUES_ARE(got[1], 100, 101);
    CHECK_TRUE(ctrt_tensor_shares_storage(got[0], got[1]) && ctrt_tensor_device(got[0]) == gpu);
    CHECK_EQ(calls("cuMemImportFromShareableHandle"), 1);       /* all tensors are in one segment */
    CHECK_FAILS(ctrt_queue_put(back, got, 1, NULL, 0, 0), CTRT_ERR_NOT_SUPPORTED, "share a result of ctrt_clone");
    CHECK_OK(ctrt_sum(&sum, got[0], CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&value, sum));
    CHECK_OK(ctrt_fill_(got[1], ctrt_float(-1)));
    CHECK_OK(ctrt_device_synchronize(gpu));
    CHECK_EQ(value, 300 * 299 / 2);
    step(back);
    CHECK_OK(ctrt_queue_get(&more, &one, NULL, NULL, there, 20));
    CHECK_EQ(calls("cuMemImportFromShareableHandle"), 1);       /* the same segment again */
    ctrt_tensor_release(&more);
    wait_step(there);                       /* the sender has released its tensors */
    CHECK_OK(ctrt_sum(&sum, got[0], CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&value, sum));
    CHECK_EQ(value, 300 * 299 / 2 - 203);
    ctrt_tensor_release(&got[0]);
    ctrt_tensor_release(&got[1]);
    ctrt_tensor_release(&got[2]);
    step(back);
}

static void sender(void)
{
    CTRT_AUTO(tensor) x = NULL, part = NULL, leaf = NULL, other = NULL;
    CTRT_AUTO(queue) own = NULL;
    double values[2];
    if (!soft_open("cuda:0"))
        return;
    CHECK_OK(ctrt_arange(&x, ctrt_int(0), ctrt_int(300), ctrt_int(1), CTRT_F32, gpu));
    CHECK_OK(ctrt_slice(&part, x, 0, 100, 102, 1));
    CHECK_OK(ctrt_ones(&leaf, CTRT_SHAPE(2), CTRT_F32, gpu));
    CHECK_OK(ctrt_tensor_require_grad(leaf, true));
    CHECK_OK(ctrt_tensor_share_(x));
    CHECK_TRUE(ctrt_tensor_is_shared(x));
    CHECK_OK(ctrt_queue_put(there, (ctrt_tensor *[]){ x, part, leaf }, 3, NULL, 0, 20));
    wait_step(back);
    CHECK_OK(ctrt_to_host(values, sizeof values, part, CTRT_F64));
    CHECK(values[0] == -1 && values[1] == -1, "the receiver's write is not visible");
    CHECK_OK(ctrt_queue_new(&own, 1));
    const int files = open_files();
    for (int i = 0; i < 100; i++) {         /* descriptors do not accumulate */
        int one = 1;
        CHECK_OK(ctrt_queue_put(own, &leaf, 1, NULL, 0, 0));
        CHECK_OK(ctrt_queue_get(&other, &one, NULL, NULL, own, 0));
    }
    ctrt_tensor_release(&other);
    CHECK_EQ(open_files(), files);
    CHECK_OK(ctrt_queue_put(there, &leaf, 1, NULL, 0, 0));
    const uint64_t before = allocated();
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&part);
    ctrt_tensor_release(&leaf);
    CHECK(allocated() == before, "a block was freed that the receiver uses");
    CHECK_OK(ctrt_zeros(&x, CTRT_SHAPE(300), CTRT_F32, gpu));  /* does not get the block */
    ctrt_tensor_release(&x);
    step(there);
    wait_step(back);
    CHECK_EQ(allocated(), 0);
}

TEST(test_share, "a segment is opened once; the receiver writes it; a block is kept while the receiver uses it")
{
    IN_CHILD(SHARE) {
        CHECK_OK(ctrt_queue_new(&there, 2));
        CHECK_OK(ctrt_queue_new(&back, 2));
        const pid_t child = child_start((const char *const[]){ NULL });
        if (child == 0) {
            receiver();
            child_end(_exit);
        }
        sender();
        child_join(child, __FILE__, __LINE__);
        IN_FORK {                           /* after the first use of the device */
            CTRT_AUTO(tensor) x = NULL;
            CHECK_FAILS(ctrt_zeros(&x, CTRT_SHAPE(2), CTRT_F32, gpu), CTRT_ERR_FORKED, "opened by process");
        }
    }
}

static void *put_often(void *x)
{
    for (int i = 0; i < 100; i++)
        CHECK_OK(ctrt_queue_put(there, (ctrt_tensor *[]){ x }, 1, NULL, 0, 20));
    return NULL;
}

TEST(test_threads, "two threads send the same tensor, a third receives it")
{
    IN_CHILD(SHARE) {
        CTRT_AUTO(tensor) x = NULL, got = NULL;
        CTRT_AUTO(queue) queue = NULL;
        pthread_t threads[2];
        int one = 1;
        CHECK_OK(ctrt_queue_new(&queue, 4));
        there = queue;
        if (!soft_open("cuda:0"))
            continue;
        CHECK_OK(ctrt_arange(&x, ctrt_int(0), ctrt_int(2), ctrt_int(1), CTRT_F32, gpu));
        CHECK_OK(ctrt_device_synchronize(gpu));
        for (int t = 0; t < 2; t++)
            REQUIRE_TRUE(pthread_create(&threads[t], NULL, put_often, x) == 0);
        for (int i = 0; i < 200; i++) {
            CHECK_OK(ctrt_queue_get(&got, &one, NULL, NULL, queue, 20));
            VALUES_ARE(got, 0, 1);
        }
        for (int t = 0; t < 2; t++)
            pthread_join(threads[t], NULL);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&got);
        CHECK_EQ(allocated(), 0);
    }
}

TEST(test_refused, "memory not allocated for sharing, segments that grow, and policies that move memory")
{
    static const struct { const char *settings[3], *words; } cases[] = {
        { { "CTRT_MEMORY=caching" }, "set CTRT_CUDA_SHARE=yes" },
        { { "CTRT_CUDA_SHARE=yes", "CTRT_MEMORY=caching:expandable=true" }, "expandable" },
        { { "CTRT_CUDA_SHARE=yes", "CTRT_MEMORY=spill+caching" }, "moved by the memory policy" },
    };
    EACH(c, cases) {
        IN_CHILD("SOFTCUDA=devices=1,memory=256m", c->settings[0], c->settings[1]) {
            CTRT_AUTO(queue) queue = NULL;
            const int files = soft_open("cuda:0") ? open_files() : 0;
            CHECK_OK(ctrt_queue_new(&queue, 2));
            CHECK_FAILS(put_number(queue, 1, 0), CTRT_ERR_NOT_SUPPORTED, c->words);
            ctrt_queue_release(&queue);
            CHECK_TRUE(open_files() <= files + 1 && allocated() == 0);
        }
    }
}

/* ---- kills ---- */

/* Forks and kills processes that run `body`, one after the other, in a process that does not open the device. Every
 * fifth may be killed while it opens the device, the others are killed after `body` has written a byte to `ready`. */
static pid_t kill_many(void (*body)(ctrt_queue *queue, int ready), ctrt_queue *queue)
{
    const pid_t server = child_start((const char *const[]){ NULL });
    unsigned int seed = 11;
    for (int i = 0; server == 0 && i < KILLS; i++) {
        int status, ready[2];
        char byte;
        REQUIRE_TRUE(pipe(ready) == 0);
        const pid_t child = fork();
        if (child == 0) {
            if (soft_open("cuda:0"))
                body(queue, ready[1]);
            _exit(1);
        }
        close(ready[1]);
        if (i % 5 != 0)
            CHECK_EQ(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        usleep(5000 + (useconds_t)rand_r(&seed) % 60000);
        kill(child, SIGKILL);
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "process %d found garbage", i);
    }
    if (server == 0)
        child_end(_exit);
    return server;
}

static bool tell(int ready)
{
    return write(ready, "", 1) == 1;
}

static void consume(ctrt_queue *queue, int ready)
{
    CTRT_AUTO(tensor) x = NULL;
    bool intact = true;
    for (int i = 0; intact && get_number(&intact, &x, queue, 20) == CTRT_OK && (i > 0 || tell(ready)); i++)
        ;
}

/* After one message more than the queue holds, the consumer has received one of this process. */
static void produce(ctrt_queue *queue, int ready)
{
    for (int i = 0; put_number(queue, i, 20) == CTRT_OK && (i != QUEUED || tell(ready)); i++)
        ;
}

TEST(test_consumers, "consumers are killed: the producer gets its memory back")
{
    IN_CHILD(SHARE) {
        CTRT_AUTO(queue) queue = NULL;
        CTRT_AUTO(tensor) x = NULL;
        bool intact = true;
        int number = 0, status;
        CHECK_OK(ctrt_queue_new(&queue, QUEUED));
        const pid_t server = kill_many(consume, queue);
        if (!soft_open("cuda:0"))
            continue;
        const int files = open_files();
        while (waitpid(server, &status, WNOHANG) == 0)
            number += put_number(queue, number, 0.02) == CTRT_OK;
        CHECK(status == 0 && number >= KILLS, "status %d after %d messages", status, number);
        while (get_number(&intact, &x, queue, 0) == CTRT_OK)
            CHECK_TRUE(intact);
        ctrt_tensor_release(&x);
        CHECK_EQ(allocated(), 0);
        CHECK_EQ(open_files(), files);
    }
}

TEST(test_producers, "producers are killed: received tensors stay intact, and the consumer gets an error at the end")
{
    IN_CHILD(SHARE) {
        CTRT_AUTO(queue) queue = NULL;
        CTRT_AUTO(tensor) x = NULL;
        ctrt_tensor *kept[4] = { NULL };
        bool intact = true;
        int number = 0, status;
        double first = -1;
        CHECK_OK(ctrt_queue_new(&queue, QUEUED));
        const pid_t server = kill_many(produce, queue);
        CHECK_OK(ctrt_queue_close_put(queue));
        ctrt_status got = soft_open("cuda:0") ? get_number(&intact, &x, queue, 20) : CTRT_ERR_INTERNAL;
        ctrt_tensor_release(&x);
        const int files = open_files();     /* after the first use of the device */
        for (; got == CTRT_OK && (got = get_number(&intact, &x, queue, 20)) == CTRT_OK; number++) {
            CHECK_TRUE(intact);
            if (number % 16 == 0 && number / 16 < 4)
                kept[number / 16] = ctrt_tensor_retain(x);
        }
        CHECK_EQ(got, CTRT_ERR_STATE);
        CHECK_EQ(waitpid(server, &status, 0), server);
        CHECK_EQ(status, 0);
        CHECK(number >= KILLS / 2, "%d messages", number);
        for (int i = 0; i < 4 && kept[i] != NULL; i++) {
            CTRT_AUTO(tensor) least = NULL, most = NULL;
            double last = -1;
            CHECK_OK(ctrt_amin(&least, kept[i], CTRT_ALL_DIMS, false));
            CHECK_OK(ctrt_amax(&most, kept[i], CTRT_ALL_DIMS, false));
            CHECK_OK(ctrt_item(&first, least));
            CHECK_OK(ctrt_item(&last, most));
            CHECK_TRUE(first == last && first >= 0);
            ctrt_tensor_release(&kept[i]);
        }
        ctrt_tensor_release(&x);
        CHECK_EQ(allocated(), 0);
        CHECK_EQ(open_files(), files);
    }
}

TEST_MAIN
{
    soft_begin(argv);
    return run_tests();
}
