/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and modules in memory that processes share, and queues between processes: what is shared, what is refused,
 * and the use of descriptors. Kills are in test-share-kill.c. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../options.h"
#include "calls.h"
#include "child.h"
#include "core/tensor/dlpack.h"
#include "share_check.h"
#include "small_net.h"

static ctrt_tensor *filled(double value, ctrt_ints shape)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_full(&x, shape, ctrt_float(value), CTRT_F32, cpu));
    return x;
}

/* ---- sharing in place ---- */

TEST(test_place, "share_ moves the memory in place: values, views, saved tensors and gradients see it")
{
    CTRT_AUTO(tensor) x = COUNTING(4, 6);
    CTRT_AUTO(tensor) row = NULL, column = NULL, product = NULL, w = filled(2, CTRT_SHAPE(6));
    CHECK_OK(ctrt_select(&row, x, 0, 1));
    CHECK_OK(ctrt_select(&column, row, 0, 2));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_mul(&product, row, w));
    CHECK_OK(ctrt_sum(&product, product, CTRT_ALL_DIMS));
    const void *before = ctrt_tensor_data(x);
    CHECK_TRUE(!ctrt_tensor_is_shared(x) && inode_of(before) == 0);
    CHECK_OK(ctrt_tensor_share_(column));                     /* a view of a view moves the whole storage */
    const void *after = ctrt_tensor_data(x);
    CHECK_TRUE(ctrt_tensor_is_shared(x) && ctrt_tensor_is_shared(row) && after != before);
    CHECK_TRUE(inode_of(after) != 0 && inode_of(ctrt_tensor_data(column)) == inode_of(after));
    CHECK_EQ(ctrt_tensor_offset(row), 6);
    CHECK_EQ(ctrt_tensor_offset(column), 8);
    CHECK_EQ(ctrt_tensor_storage_use_count(x), 3);
    CHECK_OK(ctrt_tensor_share_(x));
    CHECK_OK(ctrt_backward(product));                  /* no effect; reads the saved row */
    CHECK_TRUE(ctrt_tensor_data(x) == after);
    VALUES_ARE(ctrt_tensor_grad(w), 6, 7, 8, 9, 10, 11);
    CHECK_OK(ctrt_fill_(column, ctrt_float(50)));
    VALUES_ARE(row, 6, 7, 50, 9, 10, 11);
    IN_FORK {
        CHECK_OK(ctrt_fill_(column, ctrt_float(70)));
    }
    VALUES_ARE(row, 6, 7, 70, 9, 10, 11);
}

static void free_blob(void *calls, void *data)
{
    ++*(int *)calls;
    free(data);
}

TEST(test_foreign, "memory of the program is freed when it has been moved; exported and pinned memory is refused")
{
    struct DLManagedTensorVersioned *managed = NULL;
    CTRT_AUTO(tensor) x = NULL, y = filled(1, CTRT_SHAPE(3)), none = NULL, view = NULL;
    int calls = 0;
    CHECK_OK(ctrt_from_blob(&x, calloc(8, 4), CTRT_SHAPE(8), CTRT_SCALAR_SHAPE, CTRT_F32, free_blob, &calls));
    CHECK_OK(ctrt_tensor_share_(x));
    CHECK_OK(ctrt_to_dlpack(&managed, y));
    CHECK_EQ(calls, 1);
    VALUES_ARE(x, 0, 0, 0, 0, 0, 0, 0, 0);
    CHECK_FAILS(ctrt_tensor_share_(y), CTRT_ERR_STATE, "exported with ctrt_to_dlpack");
    CHECK_OK(ctrt_slice(&view, y, 0, 0, 2, 1));
    CHECK_FAILS(ctrt_tensor_share_(view), CTRT_ERR_STATE, "ctrt_clone");
    CHECK_OK(ctrt_empty(&none, CTRT_SHAPE(0, 3), CTRT_F32, cpu));
    CHECK_TRUE(ctrt_tensor_share_(none) == CTRT_OK && ctrt_tensor_is_shared(none) && !ctrt_tensor_is_shared(NULL));
    managed->deleter(managed);
    if (ctrt_device_count("sim") > 0) {
        ctrt_device *sim = NULL;
        CHECK_OK(ctrt_device_get(&sim, "sim:0"));
        CHECK_OK(ctrt_to_device(&x, y, sim));
        CHECK_FAILS(ctrt_tensor_share_(x), CTRT_ERR_NOT_SUPPORTED, "ctrt_cpu");
        CHECK_OK(ctrt_pin_memory(&y, y, sim));
        CHECK_FAILS(ctrt_tensor_share_(y), CTRT_ERR_NOT_SUPPORTED, "pinned");
    }
}

TEST(test_limits, "too little memory and too few descriptors give errors with numbers")
{
    const struct { int limit; rlim_t value; ctrt_status status; const char *words; } cases[] = {
        { RLIMIT_FSIZE, 4096, CTRT_ERR_OUT_OF_MEMORY, "400000 bytes" },     /* not SIGXFSZ */
        { RLIMIT_NOFILE, 3, CTRT_ERR_IO, "may have 3 open files" },
    };
    EACH(c, cases) {
        IN_FORK {
            CTRT_AUTO(tensor) x = filled(3, CTRT_SHAPE(100, 1000));
            const void *before = ctrt_tensor_data(x);
            REQUIRE_EQ(setrlimit(c->limit, &(struct rlimit){ c->value, c->value }), 0);
            CHECK_FAILS(ctrt_tensor_share_(x), c->status, c->words);
            CHECK_TRUE(ctrt_tensor_data(x) == before && !ctrt_tensor_is_shared(x));
        }
    }
}

TEST(test_module, "modules: parameters, buffers and existing gradients, in one file")
{
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *weight = NULL, *mean = NULL, *count = NULL;
    CHECK_OK(small_net_new(&net));
    CHECK_OK(small_net_optimizer(&optimizer, net, false));
    CHECK_OK(ctrt_module_tensor(&weight, net, "0.weight"));
    CHECK_OK(ctrt_module_tensor(&mean, net, "1.running_mean"));
    CHECK_OK(ctrt_module_tensor(&count, net, "1.num_batches_tracked"));
    const int descriptors = open_files();
    CHECK_OK(ctrt_module_share(net));
    CHECK_OK(ctrt_module_share(net));
    CHECK_EQ(open_files(), descriptors + 1);
    const unsigned long file = inode_of(ctrt_tensor_data(weight));
    CHECK_TRUE(file != 0 && inode_of(ctrt_tensor_data(mean)) == file && inode_of(ctrt_tensor_data(count)) == file);
    CHECK_OK(small_net_step(net, optimizer, cpu, 1));
    CHECK(!ctrt_tensor_is_shared(ctrt_tensor_grad(weight)), "a gradient that did not exist was shared");
    CHECK_OK(ctrt_module_share(net));
    CHECK(ctrt_tensor_is_shared(ctrt_tensor_grad(weight)), "a gradient that existed was not shared");
    double before = 0, after = 0;
    CTRT_AUTO(tensor) first = NULL;
    ctrt_tensor *last = NULL;           /* the gradients of layers before a batch norm of two samples are nearly 0 */
    CHECK_OK(ctrt_module_tensor(&last, net, "3.weight"));
    CHECK_OK(ctrt_select(&first, last, 0, 0));
    CHECK_OK(ctrt_select(&first, first, 0, 0));
    CHECK_OK(ctrt_item(&before, first));
    IN_FORK {                                           /* trains, with the parallel kernels of the cpu */
        CHECK_OK(small_net_step(net, optimizer, cpu, 2));
        CHECK_OK(small_net_step(net, optimizer, cpu, 3));
    }
    CHECK_OK(ctrt_item(&after, first));
    CHECK(before != after, "the steps of the child are not visible");

    CTRT_AUTO(module) other = NULL;
    struct DLManagedTensorVersioned *managed = NULL;
    CHECK_OK(small_net_new(&other));
    CHECK_OK(ctrt_module_tensor(&weight, other, "0.weight"));
    CHECK_OK(ctrt_module_tensor(&mean, other, "1.running_mean"));
    CHECK_OK(ctrt_to_dlpack(&managed, mean));
    CHECK_FAILS(ctrt_module_share(other), CTRT_ERR_STATE, "1.running_mean: module_share: the memory was exported");
    CHECK(!ctrt_tensor_is_shared(weight), "a module was shared in part");
    managed->deleter(managed);
}

/* ---- queues ---- */

TEST(test_messages, "a queue keeps dtypes, shapes, strides, offsets, requires_grad, and the sharing of a storage")
{
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16, CTRT_I64, CTRT_I32, CTRT_U8,
                                         CTRT_BOOL };
    CTRT_AUTO(queue) queue = NULL;
    CHECK_OK(ctrt_queue_new(&queue, 4));
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        ctrt_tensor *sent[5] = { NULL }, *got[5] = { NULL };
        char bytes[16] = "";
        int count = 5;
        size_t size = sizeof bytes;
        CTRT_AUTO(tensor) x = COUNTING(3, 4);
        const bool floating = ctrt_dtype_is_floating(dtypes[i]);
        CHECK_OK(ctrt_to_dtype(&sent[0], x, dtypes[i]));
        CHECK_OK(ctrt_t(&sent[1], sent[0]));
        CHECK_OK(ctrt_slice(&sent[2], sent[1], 0, 1, 4, 2));
        CHECK_OK(ctrt_empty(&sent[3], CTRT_SHAPE(0, 2), dtypes[i], cpu));
        CHECK_OK(ctrt_zeros(&sent[4], CTRT_SCALAR_SHAPE, dtypes[i], cpu));
        CHECK_OK(ctrt_tensor_require_grad(sent[4], floating));
        CHECK_OK(ctrt_queue_put(queue, sent, 5, "label", 6, 0));
        CHECK_OK(ctrt_queue_get(got, &count, bytes, &size, queue, 1));
        CHECK_EQ(count, 5);
        CHECK_EQ(size, 6);
        CHECK_EQ(ctrt_tensor_requires_grad(got[4]), floating);
        CHECK_STR(bytes, "label");
        for (int t = 0; t < count; t++) {
            const ctrt_ints shape = { ctrt_tensor_shape(sent[t]), ctrt_tensor_ndim(sent[t]) };
            check_shape("received", __LINE__, got[t], shape);
            check_strides("received", __LINE__, got[t], (ctrt_ints){ ctrt_tensor_strides(sent[t]), shape.count });
            CHECK_EQ(ctrt_tensor_dtype(got[t]), dtypes[i]);
            CHECK_EQ(ctrt_tensor_offset(got[t]), ctrt_tensor_offset(sent[t]));
            CHECK(ctrt_tensor_data(got[t]) == ctrt_tensor_data(sent[t]), "the memory is mapped twice");
        }
        CHECK_TRUE(ctrt_tensor_shares_storage(got[0], got[2]) && !ctrt_tensor_shares_storage(got[0], got[4]));
        for (int t = 0; t < 5; t++) {
            ctrt_tensor_release(&sent[t]);
            ctrt_tensor_release(&got[t]);
        }
    }
}

TEST(test_same_pages, "a process that does not know the memory maps the same pages, and its writes are visible")
{
    CTRT_AUTO(queue) queue = NULL, back = NULL;
    CHECK_OK(ctrt_queue_new(&queue, 2));
    CHECK_OK(ctrt_queue_new(&back, 2));
    const pid_t child = child_start((const char *const[]){ NULL });
    if (child == 0) {                       /* forked before the memory is shared */
        ctrt_tensor *x = NULL;
        int count = 1;
        CHECK_OK(ctrt_queue_get(&x, &count, NULL, NULL, queue, 20));
        unsigned long inode = inode_of(ctrt_tensor_data(x));
        CHECK_OK(ctrt_fill_(x, ctrt_float(9)));
        CHECK_OK(ctrt_queue_put(back, &x, 1, &inode, sizeof inode, 1));     /* sends it back */
        ctrt_tensor_release(&x);
        CHECK_EQ(mappings(), 2);            /* the states of the queues */
        child_end(_exit);
    }
    CTRT_AUTO(tensor) x = filled(1, CTRT_SHAPE(3)), again = NULL;
    unsigned long inode = 0;
    int count = 1;
    size_t size = sizeof inode;
    CHECK_OK(ctrt_queue_put(queue, &x, 1, NULL, 0, 1));
    CHECK_OK(ctrt_queue_get(&again, &count, &inode, &size, back, 20));
    CHECK_EQ(inode, inode_of(ctrt_tensor_data(x)));
    VALUES_ARE(x, 9, 9, 9);
    CHECK_TRUE(ctrt_tensor_data(again) == ctrt_tensor_data(x));
    child_join(child, __FILE__, __LINE__);
}

TEST(test_refused, "full, empty, closed, too little room, and tensors that cannot be sent")
{
    CTRT_AUTO(queue) queue = NULL, copy = NULL;
    CTRT_AUTO(tensor) x = filled(1, CTRT_SHAPE(2)), y = NULL;
    ctrt_tensor *got[2] = { NULL };
    int count = 0, ends[3], copies[3];
    size_t size = 0;
    CHECK_OK(ctrt_queue_new(&queue, 2));
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_FAILS(ctrt_queue_put(queue, &y, 1, NULL, 0, 0), CTRT_ERR_AUTOGRAD, "non-leaf tensor that requires grad");
    CHECK_FAILS(ctrt_queue_put(queue, &y, 1, NULL, 0, 0), CTRT_ERR_AUTOGRAD, "ctrt_detach");
    CHECK_OK(ctrt_detach(&y, y));
    CHECK_OK(ctrt_queue_put(queue, (ctrt_tensor *[]){ x, y }, 2, "ab", 2, 0));
    CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0));
    const double begin = clock_seconds();
    CHECK_FAILS(ctrt_queue_put(queue, &y, 1, NULL, 0, 0.12), CTRT_ERR_COMM, "2 messages is full for 0.12 seconds");
    CHECK_TRUE(clock_seconds() - begin >= 0.119);
    CHECK_FAILS(ctrt_queue_get(NULL, &count, NULL, &size, queue, 0), CTRT_ERR_INVALID_ARGUMENT,
                "2 tensors and 2 bytes");
    CHECK_EQ(count, 2);
    CHECK_EQ(size, 2);
    char bytes[2];
    CHECK_OK(ctrt_queue_get(got, &count, bytes, &size, queue, 0));      /* the same message */
    VALUES_ARE(got[1], 2.7182817459106445, 2.7182817459106445);
    CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0));
    CHECK_FAILS(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0.01), CTRT_ERR_COMM, "within 0.01 seconds");

    CHECK_OK(ctrt_queue_descriptors(ends, queue));
    for (int i = 0; i < 3; i++)
        copies[i] = dup(ends[i]);
    CHECK_FAILS(ctrt_queue_from_descriptors(&copy, (int[]){ copies[2], copies[1], copies[0] }), CTRT_ERR_FORMAT,
                "not a socket");
    CHECK_OK(ctrt_queue_from_descriptors(&copy, copies));
    CHECK_OK(ctrt_queue_put(copy, NULL, 0, NULL, 0, 0));
    CHECK_OK(ctrt_queue_close_put(queue));
    CHECK_FAILS(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0), CTRT_ERR_STATE, "ctrt_queue_close_put");
    ctrt_queue_release(&copy);                          /* the last end for putting */
    CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0));
    CHECK_FAILS(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, -1), CTRT_ERR_STATE, "no process can put messages");
    CHECK_OK(ctrt_queue_new(&queue, 1));
    CHECK_OK(ctrt_queue_close_get(queue));
    CHECK_FAILS(ctrt_queue_put(queue, &y, 1, NULL, 0, -1), CTRT_ERR_STATE, "no process can get messages");
    ctrt_tensor_release(&got[0]);
    ctrt_tensor_release(&got[1]);
}

/* Puts messages whose bytes are a number, with a tensor of that value. */
static void put_numbers(ctrt_queue *queue, int from, int to)
{
    for (int i = from; i < to; i++) {
        CTRT_AUTO(tensor) x = filled(i, CTRT_SHAPE(5));
        CHECK_OK(ctrt_queue_put(queue, &x, 1, &i, sizeof i, 20));
    }
}

enum { PRODUCERS = 3, CONSUMERS = 2, EACH_PUTS = FEWER_SANITIZED(200) };

TEST(test_many, "three producers and two consumers: each message is received once")
{
    CTRT_AUTO(queue) queue = NULL, sums = NULL;
    pid_t children[PRODUCERS + CONSUMERS];
    CHECK_OK(ctrt_queue_new(&queue, 3));
    CHECK_OK(ctrt_queue_new(&sums, PRODUCERS * EACH_PUTS));
    for (int c = 0; c < PRODUCERS + CONSUMERS; c++) {
        children[c] = child_start((const char *const[]){ NULL });
        if (children[c] != 0)
            continue;
        CHECK_OK((c < PRODUCERS ? ctrt_queue_close_get : ctrt_queue_close_put)(queue));
        if (c < PRODUCERS)
            put_numbers(queue, c * EACH_PUTS, (c + 1) * EACH_PUTS);
        for (ctrt_status status = CTRT_OK; c >= PRODUCERS && status == CTRT_OK;) {
            CTRT_AUTO(tensor) x = NULL;
            int number, count = 1;
            size_t size = sizeof number;
            double value = -1;
            status = ctrt_queue_get(&x, &count, &number, &size, queue, 20);
            if (status != CTRT_OK)
                CHECK_EQ(status, CTRT_ERR_STATE);       /* all producers have ended */
            else {
                CHECK_OK(ctrt_mean(&x, x, CTRT_ALL_DIMS));
                CHECK_OK(ctrt_item(&value, x));
                CHECK_OK(ctrt_queue_put(sums, NULL, 0, &number, sizeof number, 20));
            }
            CHECK(status != CTRT_OK || value == number, "message %d has the value %g", number, value);
        }
        child_end(_exit);
    }
    CHECK_OK(ctrt_queue_close_put(queue));
    CHECK_OK(ctrt_queue_close_get(queue));
    for (int c = 0; c < PRODUCERS + CONSUMERS; c++)
        child_join(children[c], __FILE__, __LINE__);
    char seen[PRODUCERS * EACH_PUTS] = { 0 };
    for (int i = 0, number; i < PRODUCERS * EACH_PUTS; i++) {
        size_t size = sizeof number;
        CHECK_OK(ctrt_queue_get(NULL, NULL, &number, &size, sums, 0));
        CHECK(!seen[number]++, "message %d was received twice", number);
    }
}

TEST(test_descriptors, "10000 messages with 64 open files: descriptors and mappings stay constant")
{
    IN_FORK {
        CTRT_AUTO(queue) queue = NULL;
        ctrt_tensor *x = NULL, *y = NULL;
        int maps = 0, files = 0;
        REQUIRE_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, 64 }), 0);
        CHECK_OK(ctrt_queue_new(&queue, 8));
        for (int i = 0; i < FEWER_SANITIZED(10000); i++) {
            int count = 1;
            x = filled(i, CTRT_SHAPE(16));
            if (!CHECK_OK(ctrt_queue_put(queue, &x, 1, NULL, 0, 0)))
                break;
            ctrt_tensor_release(&x);
            CHECK_OK(ctrt_queue_get(&y, &count, NULL, NULL, queue, 0));
            if (i == 10)
                maps = mappings(), files = open_files();
        }
        CHECK_EQ(mappings(), maps);
        CHECK_EQ(open_files(), files);

        /* Too many at a time: the sender gets an error, and works again once it has released one. */
        ctrt_tensor *kept[64] = { NULL };
        int n = 0;
        while (n < 64 && ctrt_tensor_share_(kept[n] = filled(n, CTRT_SHAPE(4))) == CTRT_OK)
            n++;
        CHECK(n > 40 && n < 64, "%d tensors were shared", n);
        CHECK_FAILS(ctrt_queue_put(queue, &kept[n], 1, NULL, 0, 0), CTRT_ERR_IO, "64 open files");
        CHECK_OK(ctrt_queue_put(queue, &kept[0], 1, NULL, 0, 0));
        int count = 1;
        x = filled(5, CTRT_SHAPE(4));
        ctrt_tensor_release(&kept[1]);
        CHECK_OK(ctrt_tensor_share_(x));                      /* uses the last descriptor */
        CHECK_FAILS(ctrt_queue_get(&y, &count, NULL, NULL, queue, 0), CTRT_ERR_IO, "1 tensors is lost");
        ctrt_tensor_release(&kept[2]);
        CHECK_OK(ctrt_queue_put(queue, &x, 1, NULL, 0, 0));
        CHECK_OK(ctrt_queue_get(&y, &count, NULL, NULL, queue, 0));
        VALUES_ARE(y, 5, 5, 5, 5);
        for (int i = 0; i < 64; i++)
            ctrt_tensor_release(&kept[i]);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
    }
}

/* A message as the kernel has it. */
struct raw {
    char bytes[32768];
    ssize_t size;
    struct msghdr header;
    struct iovec part;
    _Alignas(struct cmsghdr) char control[256];
    size_t control_bytes;
};

static void raw_call(struct raw *raw, int socket, ssize_t (*call)(int, struct msghdr *))
{
    raw->part = (struct iovec){ raw->bytes, (size_t)raw->size };
    raw->header = (struct msghdr){ .msg_iov = &raw->part, .msg_iovlen = 1, .msg_control = raw->control,
                                   .msg_controllen = raw->control_bytes };
    raw->size = call(socket, &raw->header);
    raw->control_bytes = raw->header.msg_controllen;
}

static ssize_t raw_receive(int socket, struct msghdr *header)
{
    return recvmsg(socket, header, MSG_DONTWAIT);
}

static ssize_t raw_send(int socket, struct msghdr *header)
{
    return sendmsg(socket, header, MSG_DONTWAIT);
}

/* Whether all elements of a tensor are within the first `bytes` bytes of its storage. */
static bool within(const ctrt_tensor *x, int64_t bytes)
{
    int64_t last = ctrt_tensor_offset(x);
    for (int d = 0; d < ctrt_tensor_ndim(x); d++)
        last += (ctrt_tensor_size(x, d) - 1) * ctrt_tensor_strides(x)[d];
    return ctrt_tensor_numel(x) == 0
           || (last >= 0 && (last + 1) * (int64_t)ctrt_dtype_size(ctrt_tensor_dtype(x)) <= bytes);
}

TEST(test_hostile, "messages with changed bytes or missing ends give errors, or tensors within their memory")
{
    static struct raw good, bad;
    CTRT_AUTO(queue) queue = NULL;
    CTRT_AUTO(tensor) x = filled(1, CTRT_SHAPE(32, 32)), y = NULL;
    int ends[3], refused = 0;
    CHECK_OK(ctrt_queue_new(&queue, 1));
    CHECK_OK(ctrt_queue_descriptors(ends, queue));
    CHECK_OK(ctrt_t(&y, x));
    CHECK_OK(ctrt_queue_put(queue, (ctrt_tensor *[]){ x, y }, 2, "label", 6, 0));
    good.size = sizeof good.bytes;
    good.control_bytes = sizeof good.control;
    raw_call(&good, ends[1], raw_receive);
    REQUIRE_TRUE(good.size > 0 && good.control_bytes > 0);
    const int files = open_files();
    srand(5);
    for (int i = 0; i < FEWER_SANITIZED(4000); i++) {
        ctrt_tensor *got[4] = { NULL };
        char bytes[CTRT_QUEUE_MAX_BYTES];
        size_t size = sizeof bytes;
        int count = 4;
        bad = good;
        for (int n = rand() % 4; n >= 0; n--)
            bad.bytes[rand() % (n == 0 ? good.size : 100)] ^= (char)(1 << rand() % 8);
        bad.size -= i % 5 == 0 ? rand() % good.size : 0;
        raw_call(&bad, ends[0], raw_send);
        const ctrt_status status = ctrt_queue_get(got, &count, bytes, &size, queue, 0);
        refused += status != CTRT_OK;
        for (int t = 0; status == CTRT_OK && t < count; t++) {
            CTRT_AUTO(tensor) copy = NULL;
            CHECK(within(got[t], 4096), "message %d gives a tensor outside of its file", i);
            if (ctrt_tensor_numel(got[t]) < 1000000)    /* a stride of 0 allows any size */
                CHECK_OK(ctrt_clone(&copy, got[t]));
        }
        if (status == CTRT_ERR_INVALID_ARGUMENT) {      /* more tensors than there is room for: kept */
            ctrt_queue_release(&queue);
            CHECK_OK(ctrt_queue_new(&queue, 1));
            CHECK_OK(ctrt_queue_descriptors(ends, queue));
        }
        for (int t = 0; t < 4; t++)
            ctrt_tensor_release(&got[t]);
    }
    CHECK(refused > FEWER_SANITIZED(4000) / 4, "only %d messages were refused", refused);
    CHECK_EQ(open_files(), files);
    ctrt_queue_release(&queue);
    CHECK_OK(ctrt_queue_new(&queue, 1));
    CHECK_OK(ctrt_queue_descriptors(ends, queue));
    for (int with_files = 0; with_files < 2; with_files++) {        /* 0 bytes are not the end of the queue */
        bad = good;
        bad.size = 0;
        bad.control_bytes = with_files ? good.control_bytes : 0;
        raw_call(&bad, ends[0], raw_send);
        CHECK_FAILS(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0), CTRT_ERR_FORMAT, "wrong sizes in a message");
        CHECK_EQ(open_files(), files);
        CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0));
        CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0));
    }
    bad.size = 0;
    bad.control_bytes = 0;
    raw_call(&bad, ends[0], raw_send);              /* before a message and the end */
    CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0));
    CHECK_OK(ctrt_queue_close_put(queue));
    CHECK_FAILS(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0), CTRT_ERR_FORMAT, "wrong sizes in a message");
    CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0));
    CHECK_FAILS(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0), CTRT_ERR_STATE,
                "no process can put messages any more");
}

TEST(test_lost, "messages that killed processes did not send, or took and did not count, do not fill the queue")
{
    static struct raw taken = { .size = sizeof taken.bytes };
    enum { CAPACITY = 3, RESERVED = 3 };                    /* RESERVED: share/queue.c, struct queue_state */
    CTRT_AUTO(queue) queue = NULL;
    int ends[3];
    CHECK_OK(ctrt_queue_new(&queue, CAPACITY));
    CHECK_OK(ctrt_queue_descriptors(ends, queue));
    uint32_t *state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ends[2], 0);
    CHECK_TRUE(state != MAP_FAILED);
    state[RESERVED] += CAPACITY;
    CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 20));
    CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0));
    for (int lost = 1; lost <= CAPACITY; lost++) {
        for (int i = 0; i < lost; i++)
            CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0));
        for (int i = 0; i < lost; i++)
            raw_call(&taken, ends[1], raw_receive);
        for (int i = 0; i < CAPACITY; i++)
            CHECK_OK(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0));
        CHECK_FAILS(ctrt_queue_put(queue, NULL, 0, NULL, 0, 0.2), CTRT_ERR_COMM, "the queue of 3 messages is full");
        for (int i = 0; i < CAPACITY; i++)
            CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0));
        CHECK_FAILS(ctrt_queue_get(NULL, NULL, NULL, NULL, queue, 0), CTRT_ERR_COMM, NULL);
    }
    munmap(state, 4096);
}

struct threads {
    ctrt_queue *queue;
    atomic_int received;
};

static void *put_and_get(void *argument)
{
    struct threads *t = argument;
    for (int i = 0; i < 50; i++) {
        CTRT_AUTO(tensor) x = filled(i, CTRT_SHAPE(8)), y = NULL, view = NULL;
        int count = 1;
        CHECK_OK(ctrt_select(&view, x, 0, 1));
        CHECK_OK(ctrt_queue_put(t->queue, &x, 1, &i, sizeof i, 20));
        CHECK_OK(ctrt_queue_get(&y, &count, &(int){ 0 }, &(size_t){ sizeof i }, t->queue, 20));
        atomic_fetch_add(&t->received, count);
        VALUES_ARE(view, i);
    }
    return NULL;
}

TEST(test_threads, "threads share tensors with views, put and get at the same time")
{
    struct threads t = { 0 };
    pthread_t threads[4];
    CHECK_OK(ctrt_queue_new(&t.queue, 3));
    for (int i = 0; i < 4; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, put_and_get, &t), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(t.received, 200);
    ctrt_queue_release(&t.queue);
}

/* ---- Hogwild ---- */

TEST(test_increments, "4 processes x 1000 increments of one shared tensor, under a lock of the program: 4000")
{
    enum { TURNS = FEWER_SANITIZED(1000) };
    CTRT_AUTO(queue) lock = NULL;                       /* a queue of one message is a lock between processes */
    CTRT_AUTO(tensor) x = filled(0, CTRT_SHAPE(2));
    pid_t children[4];
    CHECK_OK(ctrt_tensor_share_(x));
    CHECK_OK(ctrt_queue_new(&lock, 1));
    CHECK_OK(ctrt_queue_put(lock, NULL, 0, NULL, 0, 0));
    for (int c = 0; c < 4; c++) {
        children[c] = child_start((const char *const[]){ NULL });
        if (children[c] != 0)
            continue;
        for (int i = 0; i < TURNS; i++) {
            CHECK_OK(ctrt_queue_get(NULL, NULL, NULL, NULL, lock, 20));
            CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
            CHECK_OK(ctrt_queue_put(lock, NULL, 0, NULL, 0, 20));
        }
        child_end(_exit);
    }
    for (int c = 0; c < 4; c++)
        child_join(children[c], __FILE__, __LINE__);
    VALUES_ARE(x, 4 * TURNS, 4 * TURNS);
}

static double loss_of(ctrt_module *net)
{
    CTRT_AUTO(tensor) x = COUNTING(8, 3), y = NULL;
    double loss = -1;
    CHECK_OK(ctrt_mul_scalar(&x, x, ctrt_float(0.1)));
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(ctrt_sub_scalar(&y, y, ctrt_float(1)));
    CHECK_OK(ctrt_square(&y, y));
    CHECK_OK(ctrt_mean(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&loss, y));
    return loss;
}

static void hogwild(ctrt_module *net)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.01)));
    for (int step = 0; step < 1000; step++) {
        CTRT_AUTO(tensor) x = COUNTING(8, 3), y = NULL;
        CHECK_OK(ctrt_mul_scalar(&x, x, ctrt_float(0.1)));
        CHECK_OK(ctrt_forward(&y, net, x));
        CHECK_OK(ctrt_sub_scalar(&y, y, ctrt_float(1)));
        CHECK_OK(ctrt_square(&y, y));
        CHECK_OK(ctrt_mean(&y, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_backward(y));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        if (SANITIZED && step == 100)
            break;
    }
}

TEST(test_hogwild, "4 processes train one model without locks, and its loss falls")
{
    CTRT_AUTO(module) net = NULL;
    pid_t children[4];
    ctrt_manual_seed(1);
    CHECK_OK(ctrt_linear_new(&net, 3, 2, true, cpu));
    CHECK_OK(ctrt_module_share(net));
    const double before = loss_of(net);
    for (int c = 0; c < 4; c++) {
        children[c] = child_start((const char *const[]){ NULL });
        if (children[c] == 0) {
            hogwild(net);
            child_end(_exit);
        }
    }
    for (int c = 0; c < 4; c++)
        child_join(children[c], __FILE__, __LINE__);
    const double after = loss_of(net);
    CHECK(after < before / (SANITIZED ? 4 : 10), "the loss was %g and is %g", before, after);
}

/* ---- fork ---- */

TEST(test_fork, "a device that was used before the fork is refused with the process that opened it")
{
    char pid[32];
    ctrt_device *sim = NULL;
    if (ctrt_device_count("sim") == 0) {
        skip_group("no sim devices");
        return;
    }
    CTRT_AUTO(tensor) x = filled(1, CTRT_SHAPE(2)), y = NULL;
    CHECK_OK(ctrt_tensor_share_(x));
    CHECK_OK(ctrt_device_get(&sim, "sim:0"));
    CHECK_OK(ctrt_to_device(&y, x, sim));
    snprintf(pid, sizeof pid, "opened by process %d", (int)getpid());
    IN_FORK {
        CHECK_FAILS(ctrt_exp(&y, y), CTRT_ERR_FORKED, pid);
        CHECK_FAILS(ctrt_to_device(&y, x, sim), CTRT_ERR_FORKED, pid);
        CHECK_OK(ctrt_exp_(x));                               /* shared tensors of the cpu work */
    }
    VALUES_ARE(x, 2.7182817459106445, 2.7182817459106445);
}

TEST_MAIN
{
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    return run_tests();
}
