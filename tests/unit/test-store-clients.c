/* SPDX-License-Identifier: Apache-2.0 */
/* Servers of key-value stores under hostile, slow and many clients. */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "store_check.h"

static int raw_connect(const ctrt_store *store)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    to.sin_port = htons((uint16_t)atoi(strrchr(ctrt_store_address(store), ':') + 1));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "cannot connect");
    return fd;
}

static void raw_send(int fd, const void *data, size_t bytes)
{
    CHECK_EQ(send(fd, data, bytes, MSG_NOSIGNAL), (long)bytes);
}

/* Connects and authenticates without a secret. */
static int raw_join(const ctrt_store *store)
{
    const int fd = raw_connect(store);
    struct store_hello hello;
    struct store_answer answer;
    struct store_verdict verdict;
    CHECK_EQ(recv(fd, &hello, sizeof hello, MSG_WAITALL), (long)sizeof hello);
    CHECK_OK(store_hello_check(&answer, &hello, NULL));
    raw_send(fd, &answer, sizeof answer);
    CHECK_EQ(recv(fd, &verdict, sizeof verdict, MSG_WAITALL), (long)sizeof verdict);
    CHECK_OK(store_verdict_check(&verdict, &answer, &hello, NULL));
    return fd;
}

static void raw_message(int fd, enum store_op op, uint32_t id, size_t bytes_of_it)
{
    const struct store_message message = { .id = id, .op = (uint8_t)op, .key = "big", .key_bytes = 3,
                                           .value = "12345678", .value_bytes = op == STORE_SET ? 8 : 0 };
    unsigned char bytes[64];
    const size_t all = store_message_write(bytes, &message);
    raw_send(fd, bytes, bytes_of_it < all ? bytes_of_it : all);
}

/* Returns whether the server closes the connection. */
static bool raw_closed(int fd)
{
    char bytes[256];
    ssize_t n;
    const struct timeval limit = { .tv_sec = 5 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    do
        n = recv(fd, bytes, sizeof bytes, 0);
    while (n > 0);
    const bool closed = n == 0 || errno == ECONNRESET;
    close(fd);
    return closed;
}

static void test_hostile_clients(void)
{
    enum { IDLE = 40, READS = 3000 };
    CTRT_AUTO(store) store = serve(TCP);
    unsigned char garbage[200];
    int idle[IDLE];
    group("tcp: garbage ends a connection, and half messages do not disturb others");
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (unsigned char)(i * 37 + 1);
    for (size_t bytes = 80; bytes <= 200; bytes += 60) {
        int fd = raw_connect(store);
        raw_send(fd, garbage, bytes);
        CHECK_TRUE(raw_closed(fd));
        fd = raw_join(store);
        raw_send(fd, garbage, bytes);
        CHECK_TRUE(raw_closed(fd));
    }
    const struct store_header bad[] = {
        { 1, STORE_SET, 0, 3, STORE_VALUE_BYTES + 1, 0 }, { 1, STORE_SET, 0, 300, 0, 0 }, { 1, STORE_SET, 0, 0, 1, 0 },
        { 1, STORE_GET, 0, 3, 1, 0 }, { 1, STORE_ADD, 0, 3, 7, 0 }, { 1, STORE_COMPARE_SET, 0, 3, 0, 1 },
        { 1, STORE_SET, 1, 3, 0, 0 }, { 1, STORE_REPLY, 0, 0, 0, 0 }, { 1, STORE_OPS, 0, 0, 0, 0 },
        { 1, 0, 0, 0, 0, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const int fd = raw_join(store);
        raw_send(fd, &bad[i], sizeof bad[i]);
        CHECK(raw_closed(fd), "the server accepts the invalid header %zu", i);
    }
    for (int i = 0; i < IDLE; i++) {
        idle[i] = i % 2 ? raw_connect(store) : raw_join(store);
        raw_message(idle[i], STORE_SET, 1, (size_t)i % 26);
    }
    SET(store, "k", "v");
    CHECK_STR(get(store, "k", 1), "v");

    group("tcp: a client that does not read its replies does not disturb others");
    char *large = calloc(1, 1 << 20);
    CHECK_OK(ctrt_store_set(store, "big", large, 1 << 20));
    free(large);
    const int slow = raw_join(store);
    const struct timeval limit = { .tv_usec = 100000 };
    setsockopt(slow, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    for (int i = 0; i < READS; i++)
        raw_message(slow, STORE_GET, 1, 64);
    const int64_t start = store_now();
    for (int i = 0; i < 20; i++)
        CHECK_OK(ctrt_store_add(store, "n", 1, NULL));
    CHECK_TRUE(store_now() - start < 1000000000);
    struct store_header header;
    CHECK_EQ(recv(slow, &header, sizeof header, MSG_WAITALL), (long)sizeof header);
    CHECK_EQ(header.value_bytes, 1 << 20);
    close(slow);
    for (int i = 0; i < IDLE; i++)
        close(idle[i]);
    CHECK_STR(get(store, "n", 1), "20");
}

/* Clients, and more connections without authentication than the server allows, of which the oldest end. */
static void test_many_clients(void)
{
    enum { CLIENTS = 200, PENDING = 600 };
    static ctrt_store *clients[CLIENTS];
    static int idle[PENDING];
    struct rlimit limit;
    group("tcp: %d clients; connections that do not authenticate do not keep others out", CLIENTS);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 2 * (CLIENTS + PENDING) + 50) {
        skip_group("too few file descriptors are allowed");
        return;
    }
    CTRT_AUTO(store) store = serve(TCP);
    const int64_t start = store_now();
    for (int i = 0; i < CLIENTS / 2; i++)
        clients[i] = join(ctrt_store_address(store));
    for (int i = 0; i < PENDING; i++)
        idle[i] = raw_connect(store);
    for (int i = CLIENTS / 2; i < CLIENTS; i++)
        clients[i] = join(ctrt_store_address(store));
    CHECK_TRUE(raw_closed(idle[0]));
    for (int i = 0; i < CLIENTS; i++)
        CHECK_OK(ctrt_store_add(clients[i], "n", 1, NULL));
    CHECK_STR(get(store, "n", 1), "200");
    CHECK_TRUE(store_now() - start < INT64_C(10000000000));
    for (int i = 0; i < CLIENTS; i++)
        ctrt_store_release(&clients[i]);
    for (int i = 1; i < PENDING; i++)
        close(idle[i]);
}

TEST_MAIN
{
    folder = folder_new();
    test_hostile_clients();
    test_many_clients();
    folder_remove(folder);
    return done();
}
