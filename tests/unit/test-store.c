/* SPDX-License-Identifier: Apache-2.0 */
/* Key-value stores of every kind, and the environment of ranks. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/host_alloc.h"
#include "base/param.h"
#include "child.h"
#include "folder.h"
#include "parallel/environment.h"
#include "parallel/own_address.h"
#include "parallel/store.h"
#include "parallel/store_auth.h"

static char *folder;

/* An address for a new store of each kind; serve it, and open it again with ctrt_store_address. */
static const char *const schemes[] = { "tcp", "file", "local" };
enum { TCP, FILES, LOCAL, SCHEMES };

static const char *new_address(int scheme)
{
    static int number;
    static char address[256];
    if (scheme == TCP)
        return "tcp://127.0.0.1:0";
    snprintf(address, sizeof address, "%s://%s/%s-%d-%d", schemes[scheme], folder, schemes[scheme], (int)getpid(),
             ++number);
    return address;
}

static ctrt_store *serve_at(const char *address)
{
    ctrt_store *store = NULL;
    REQUIRE(ctrt_store_open(&store, address, true, 10) == CTRT_OK, "%s: %s", address, ctrt_error_message());
    return store;
}

static ctrt_store *serve(int scheme)
{
    return serve_at(new_address(scheme));
}

static ctrt_store *join(const char *address)
{
    ctrt_store *store = NULL;
    REQUIRE(ctrt_store_open(&store, address, false, 10) == CTRT_OK, "%s: %s", address, ctrt_error_message());
    return store;
}

/* Returns the value of a key as a string, which is valid until the thread calls it again; NULL after a failure. */
static const char *get(ctrt_store *store, const char *key, double seconds)
{
    static __thread char text[64];
    void *value = NULL;
    size_t bytes = 0;
    if (ctrt_store_get(store, key, &value, &bytes, seconds) != CTRT_OK)
        return NULL;
    snprintf(text, sizeof text, "%s", bytes == strlen(value) ? (char *)value : "(wrong size)");
    free(value);
    return text;
}

#define SET(store, key, text) CHECK_OK(ctrt_store_set(store, key, text, strlen(text)))

static void nap(int ms)
{
    usleep((useconds_t)ms * 1000);
}

/* ---- all kinds ---- */

static void test_values(int scheme, ctrt_store *a, ctrt_store *b)
{
    void *value = NULL;
    size_t bytes = 9;
    int64_t sum = -1;
    bool existed = true;
    group("%s: set, get, add, compare_set and delete", schemes[scheme]);
    SET(a, "k", "one");
    CHECK_STR(get(b, "k", 5), "one");
    SET(b, "k", "");
    CHECK_STR(get(a, "k", CTRT_ZERO), "");
    CHECK_OK(ctrt_store_set(a, "binary", "a\0b", 3));
    CHECK_OK(ctrt_store_get(b, "binary", &value, &bytes, 5));
    CHECK_TRUE(bytes == 3 && memcmp(value, "a\0b", 4) == 0);
    free(value);
    CHECK_OK(ctrt_store_get(b, "binary", NULL, NULL, 5));
    CHECK_OK(ctrt_store_delete(a, "k", &existed));
    CHECK_TRUE(existed);
    CHECK_OK(ctrt_store_delete(b, "k", &existed));
    CHECK_TRUE(!existed);
    CHECK_OK(ctrt_store_delete(b, "k", NULL));

    CHECK_OK(ctrt_store_add(a, "n", 5, &sum));
    CHECK_EQ(sum, 5);
    CHECK_OK(ctrt_store_add(b, "n", -7, &sum));
    CHECK_EQ(sum, -2);
    CHECK_STR(get(a, "n", 5), "-2");
    SET(a, "n", "-9223372036854775808");
    CHECK_OK(ctrt_store_add(b, "n", 0, &sum));
    CHECK_EQ(sum, INT64_MIN);
    CHECK_FAILS(ctrt_store_add(b, "n", -1, &sum), CTRT_ERR_OVERFLOW, "key n");
    CHECK_EQ(sum, INT64_MIN);
    static const char *const numberless[] = { "", "-", "1x", " 1", "9223372036854775808" };
    for (size_t i = 0; i < COUNT_OF(numberless); i++) {
        SET(a, "n", numberless[i]);
        CHECK_FAILS(ctrt_store_add(b, "n", 1, NULL), CTRT_ERR_STATE, "not a number");
    }

    static const struct { const char *expected, *desired, *after; } cases[] = {
        { "x", "no", NULL }, { NULL, "first", "first" }, { NULL, "no", "first" }, { "firs", "no", "first" },
        { "first", "second", "second" }, { "second", "", "" }, { "", "third", "third" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *expected = cases[i].expected, *after = cases[i].after;
        CHECK_OK(ctrt_store_compare_set(i % 2 ? a : b, "c", expected, expected != NULL ? strlen(expected) : 0,
                                        cases[i].desired, strlen(cases[i].desired), &value, &bytes));
        CHECK(after == NULL ? value == NULL && bytes == 0 : value != NULL && strcmp(value, after) == 0,
              "compare_set %zu gives %s, expected %s", i, value != NULL ? (char *)value : "NULL", after);
        free(value);
    }
}

static void test_limits(int scheme, ctrt_store *a, ctrt_store *b)
{
    char key[STORE_KEY_BYTES + 2];
    char *large = malloc(STORE_VALUE_BYTES + 1);
    void *value = NULL;
    size_t bytes = 0;
    group("%s: limits of keys, values and times", schemes[scheme]);
    memset(large, 'v', STORE_VALUE_BYTES + 1);
    memset(key, 'k', sizeof key);
    key[STORE_KEY_BYTES + 1] = '\0';
    CHECK_FAILS(ctrt_store_set(a, key, "v", 1), CTRT_ERR_INVALID_ARGUMENT, "has 257 bytes");
    CHECK_FAILS(ctrt_store_set(a, "", "v", 1), CTRT_ERR_INVALID_ARGUMENT, "has 0 bytes");
    key[STORE_KEY_BYTES] = '\0';
    CHECK_OK(ctrt_store_set(a, key, large, STORE_VALUE_BYTES));
    CHECK_OK(ctrt_store_get(b, key, &value, &bytes, 10));
    CHECK_TRUE(bytes == STORE_VALUE_BYTES && memcmp(value, large, bytes) == 0);
    free(value);
    CHECK_OK(ctrt_store_delete(b, key, NULL));
    CHECK_FAILS(ctrt_store_set(a, "k", large, STORE_VALUE_BYTES + 1), CTRT_ERR_INVALID_ARGUMENT, "16777217 bytes");
    CHECK_FAILS(ctrt_store_compare_set(a, "k", large, STORE_VALUE_BYTES + 1, "", 0, NULL, NULL),
                CTRT_ERR_INVALID_ARGUMENT, "16777217 bytes");
    free(large);
    CHECK_FAILS(ctrt_store_set(a, "k", NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "value is NULL");
    CHECK_FAILS(ctrt_store_set(a, NULL, "", 0), CTRT_ERR_INVALID_ARGUMENT, "key is NULL");
    CHECK_FAILS(ctrt_store_set(NULL, "k", "", 0), CTRT_ERR_INVALID_ARGUMENT, "store is NULL");
    CHECK_FAILS(ctrt_store_get(a, "k", &value, &bytes, -1), CTRT_ERR_INVALID_ARGUMENT, "seconds");

    const int64_t start = store_now();
    CHECK_FAILS(ctrt_store_get(b, "missing", &value, &bytes, 0.05), CTRT_ERR_COMM, "key missing was not set");
    CHECK_TRUE(store_now() - start > 50000000 && store_now() - start < 2000000000);
    CHECK_FAILS(ctrt_store_get(b, "missing", &value, &bytes, CTRT_ZERO), CTRT_ERR_COMM, "within 0 s");
    SET(a, "missing", "now");
    CHECK_STR(get(b, "missing", CTRT_ZERO), "now");
}

struct worker {
    ctrt_store *store;
    int number;
    pthread_t thread;
};

#define WORKERS 6

/* Adds to a counter, waits for the key of the next worker, which that one sets after it has waited for the counter. */
static void *work(void *argument)
{
    const struct worker *worker = argument;
    char mine[16], next[16];
    int64_t sum = 0;
    snprintf(mine, sizeof mine, "t%d", worker->number);
    snprintf(next, sizeof next, "t%d", (worker->number + 1) % WORKERS);
    for (int i = 0; i < 20; i++)
        CHECK_OK(ctrt_store_add(worker->store, "total", 1, &sum));
    if (worker->number != 0)
        CHECK_STR(get(worker->store, next, 10), next);
    SET(worker->store, mine, mine);
    CHECK_STR(get(worker->store, next, 10), next);
    return NULL;
}

static void test_threads(int scheme, ctrt_store *a, ctrt_store *b)
{
    struct worker workers[WORKERS];
    group("%s: a thread that waits does not block others with the same store", schemes[scheme]);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker) { i % 3 ? a : b, i, 0 };
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    CHECK_STR(get(a, "total", 5), "120");
}

static void *wait_for_last(void *store)
{
    CHECK_STR(get(store, "p3", 10), "p3");
    return NULL;
}

static void test_processes(int scheme)
{
    enum { COUNT = 4 };
    pid_t children[COUNT];
    char key[16];
    group("%s: processes find each other, and a child does not disturb its parent", schemes[scheme]);
    ctrt_store *store = serve(scheme);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_last, store);
    for (int i = 0; i < COUNT; i++) {
        children[i] = child_start((const char *const[]){ NULL });
        if (children[i] != 0)
            continue;
        CHECK_FAILS(ctrt_store_set(store, "bad", "", 0), CTRT_ERR_FORKED, ctrt_store_address(store));
        ctrt_store *own = join(ctrt_store_address(store));
        ctrt_store_release(&store);
        snprintf(key, sizeof key, "p%d", i);
        SET(own, key, key);
        snprintf(key, sizeof key, "p%d", (i + 1) % COUNT);
        CHECK_STR(get(own, key, 10), key);
        CHECK_OK(ctrt_store_add(own, "done", 1, NULL));
        ctrt_store_release(&own);
        child_end(_exit);
    }
    for (int i = 0; i < COUNT; i++)
        child_join(children[i], __FILE__, __LINE__);
    pthread_join(thread, NULL);
    CHECK_STR(get(store, "done", CTRT_ZERO), "4");
    CHECK_TRUE(get(store, "bad", CTRT_ZERO) == NULL);
    ctrt_store_release(&store);
}

/* Each allocation fails once. */
static void test_alloc_failures(int scheme)
{
    int failures = 0;
    bool supported;
    group("%s: errors without memory", schemes[scheme]);
#ifdef __SANITIZE_THREAD__
    if (scheme == TCP) {
        skip_group("alloc_fail_at is not for programs with other threads that allocate");
        return;
    }
#endif
    for (uint64_t n = 1; n < 40; n++) {
        ctrt_store *store = NULL;
        alloc_fail_at(n, false);
        ctrt_status status = ctrt_store_open(&store, new_address(scheme), true, 0.1);
        if (status == CTRT_OK)
            status = store_set_at_disconnect(&supported, store, "gone", "", 0);
        if (status == CTRT_OK)
            status = ctrt_store_set(store, "k", "v", 1);
        if (status == CTRT_OK)
            status = ctrt_store_get(store, "k", NULL, NULL, 0.1);
        alloc_fail_at(0, false);
        failures += status != CTRT_OK;
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_ERR_COMM, "%d: %s", (int)status,
              ctrt_error_message());
        ctrt_store_release(&store);
    }
    CHECK(failures > 3, "only %d calls failed", failures);
}

static void test_all_kinds(void)
{
    for (int scheme = 0; scheme < SCHEMES; scheme++) {
        ctrt_store *a = serve(scheme), *b = join(ctrt_store_address(a)), *c = ctrt_store_retain(a);
        bool supported;
        test_values(scheme, a, b);
        test_limits(scheme, a, b);
        test_threads(scheme, a, b);
        group("%s: disconnects are detected by servers only; an old store is replaced", schemes[scheme]);
        CHECK_OK(store_set_at_disconnect(&supported, b, "gone", "x", 1));
        CHECK_EQ(supported, scheme == TCP);
        CHECK_OK(ctrt_store_open(&b, ctrt_store_address(a), false, 10));
        CHECK_TRUE(get(b, "gone", CTRT_ZERO) == NULL);
        ctrt_store_release(&c);
        SET(a, "last", "1");
        ctrt_store_release(&a);
        CHECK_TRUE(a == NULL);
        CHECK_EQ(ctrt_store_set(b, "last", "2", 1), scheme == LOCAL ? CTRT_OK : CTRT_ERR_COMM);
        ctrt_store_release(&b);
        test_alloc_failures(scheme);
        if (scheme != LOCAL)
            test_processes(scheme);
    }
    ctrt_store *a = serve(LOCAL), *b = join(ctrt_store_address(a));
    char address[256];
    snprintf(address, sizeof address, "%s", ctrt_store_address(a));
    SET(a, "k", "v");
    ctrt_store_release(&a);
    ctrt_store_release(&b);
    b = join(address);
    CHECK_TRUE(get(b, "k", CTRT_ZERO) == NULL);
    ctrt_store_release(&b);
}

static void test_addresses(void)
{
    static const struct { const char *address, *words; bool serve; ctrt_status status; } cases[] = {
        { "", "not an address", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp:/127.0.0.1:1", "not an address", true, CTRT_ERR_INVALID_ARGUMENT },
        { "udp://127.0.0.1:1", "unknown kind", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://", "incomplete", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://127.0.0.1", "HOST:PORT", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://:80", "HOST:PORT", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://h:", "port", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://h:65536", "port", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://h:1x", "port", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://::1:80", "brackets", true, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://127.0.0.1:0", "port 0", false, CTRT_ERR_INVALID_ARGUMENT },
        { "tcp://127.0.0.1:1", "tcp://127.0.0.1:1: no connection", false, CTRT_ERR_COMM },
        { "tcp://192.0.2.1:0", "cannot listen", true, CTRT_ERR_COMM },
        { "file:///nonexistent/store", "open", true, CTRT_ERR_COMM },
        { "file:///nonexistent/store", "no process has created", false, CTRT_ERR_COMM },
        { "file:///tmp", "open", true, CTRT_ERR_COMM },
    };
    group("addresses that are malformed or without a store");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ctrt_store *store = NULL;
        CHECK_FAILS(ctrt_store_open(&store, cases[i].address, cases[i].serve, 0.02), cases[i].status, cases[i].words);
        CHECK_HAS(ctrt_error_message(), cases[i].address);
        CHECK_TRUE(store == NULL);
    }
    ctrt_store *store = NULL;
    CHECK_FAILS(ctrt_store_open(NULL, "local://x", true, 0), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_store_open(&store, NULL, true, 0), CTRT_ERR_INVALID_ARGUMENT, "address");
    CHECK_FAILS(ctrt_store_open(&store, "local://x", true, -1), CTRT_ERR_INVALID_ARGUMENT, "seconds");
    CHECK_TRUE(ctrt_store_address(NULL) == NULL && ctrt_store_retain(NULL) == NULL);
    ctrt_store_release(NULL);
    ctrt_store_release(&store);
    store = serve(TCP);
    ctrt_store *second = NULL;
    CHECK_FAILS(ctrt_store_open(&second, ctrt_store_address(store), true, 1), CTRT_ERR_STATE, "cannot listen");
    ctrt_store_release(&store);
}

/* ---- files ---- */

static void test_files(void)
{
    ctrt_store *store = NULL;
    char address[256];
    group("file: files of earlier runs and other files are refused");
    folder_text(folder, "old", "something that is here already");
    snprintf(address, sizeof address, "file://%s/old", folder);
    CHECK_FAILS(ctrt_store_open(&store, address, true, 1), CTRT_ERR_COMM, "left over from an earlier run");
    CHECK_FAILS(ctrt_store_open(&store, address, false, 1), CTRT_ERR_COMM, "left over from an earlier run");
    CHECK_TRUE(symlink("old", folder_join(folder, "link")) == 0);
    snprintf(address, sizeof address, "file://%s/link", folder);
    CHECK_FAILS(ctrt_store_open(&store, address, true, 1), CTRT_ERR_COMM, "open");
    folder_text(folder, "empty", "");
    snprintf(address, sizeof address, "file://%s/empty", folder);
    CHECK_OK(ctrt_store_open(&store, address, true, 1));
    ctrt_store *second = NULL;
    CHECK_FAILS(ctrt_store_open(&second, address, true, 1), CTRT_ERR_STATE, "another process serves");
    group("file: a message that was written in part is removed, and a damaged file is an error");
    second = join(address);
    SET(store, "a", "1");
    const int fd = open(folder_join(folder, "empty"), O_WRONLY | O_APPEND);
    const struct store_message message = { .op = STORE_SET, .key = "b", .key_bytes = 1,
                                           .value = "22", .value_bytes = 2 };
    unsigned char bytes[64];
    CHECK_EQ(write(fd, bytes, store_message_write(bytes, &message) - 1), 18);
    CHECK_STR(get(second, "a", CTRT_ZERO), "1");
    CHECK_TRUE(get(second, "b", CTRT_ZERO) == NULL);
    SET(second, "b", "3");
    CHECK_STR(get(store, "b", CTRT_ZERO), "3");
    memset(bytes, 0xff, sizeof bytes);
    CHECK_EQ(write(fd, bytes, sizeof bytes), 64);
    close(fd);
    CHECK_FAILS(ctrt_store_set(store, "c", "", 0), CTRT_ERR_COMM, "damaged at byte");
    ctrt_store_release(&second);
    ctrt_store_release(&store);
    CHECK_TRUE(access(folder_join(folder, "empty"), F_OK) != 0);
}

/* ---- processes that end ---- */

/* Starts a process that serves a store, with CTRT_STORE_SECRET in its environment if it is not NULL. It runs until it
 * is killed. The calling process must not have threads (ThreadSanitizer). */
static pid_t serve_in_child(char address[256], int scheme, const char *secret)
{
    int ends[2];
    address[0] = '\0';
    REQUIRE_EQ(pipe(ends), 0);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        param_forget_values();
        if (secret != NULL)
            setenv("CTRT_STORE_SECRET", secret, 1);
        ctrt_store *store = serve(scheme);
        if (write(ends[1], ctrt_store_address(store), strlen(ctrt_store_address(store)) + 1) > 0)
            for (;;)
                pause();
        _exit(1);
    }
    close(ends[1]);
    REQUIRE_TRUE(child > 0 && read(ends[0], address, 256) > 0);
    close(ends[0]);
    return child;
}

static void kill_child(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void *wait_for_never(void *store)
{
    CHECK_FAILS(ctrt_store_get(store, "never", NULL, NULL, 20), CTRT_ERR_COMM, "has ended");
    return NULL;
}

static void test_server_ends(int scheme)
{
    char address[256];
    pthread_t threads[2];
    group("%s: when the serving process is killed, waiting and later calls fail at once", schemes[scheme]);
    const pid_t child = serve_in_child(address, scheme, NULL);
    ctrt_store *store = join(address);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, wait_for_never, store);
    nap(20);
    kill_child(child);
    const int64_t killed = store_now();
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_FAILS(ctrt_store_set(store, "k", "", 0), CTRT_ERR_COMM, address + strlen(schemes[scheme]) + 3);
    CHECK_TRUE(store_now() - killed < 1000000000);
    ctrt_store_release(&store);
    unlink(address + 7);
}

static void test_disconnect(void)
{
    static const struct { const char *name; bool killed, released, forked; } cases[] = {
        { "was killed", true, false, false },
        { "ended without release", false, false, false },
        { "was killed while a child of it lives", true, false, true },
        { "ended after release", false, true, false },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ctrt_store *store = serve(TCP);
        bool supported;
        group("tcp: the server sets a key of a process that %s", cases[i].name);
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            ctrt_store *own = join(ctrt_store_address(store));
            store_set_at_disconnect(&supported, own, "gone", "old", 3);
            store_set_at_disconnect(&supported, own, "gone", "rank 3", 6);
            store_set_at_disconnect(&supported, own, "other", "", 0);
            store_set_at_disconnect(&supported, own, "other", NULL, 0);
            const pid_t grandchild = cases[i].forked ? fork() : -1;
            if (grandchild == 0)
                pause();
            CHECK_OK(ctrt_store_add(own, "grandchild", grandchild, NULL));
            SET(own, "ready", "1");
            if (cases[i].killed)
                pause();
            if (cases[i].released)
                ctrt_store_release(&own);
            _exit(0);
        }
        CHECK_STR(get(store, "ready", 10), "1");
        if (cases[i].killed)
            kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (cases[i].released)
            CHECK_TRUE(get(store, "gone", 0.05) == NULL);
        else
            CHECK_STR(get(store, "gone", 1), "rank 3");
        CHECK_TRUE(get(store, "other", CTRT_ZERO) == NULL);
        if (cases[i].forked)
            kill(atoi(get(store, "grandchild", 1)), SIGKILL);
        ctrt_store_release(&store);
    }
}

/* ---- secrets ---- */

static void test_secrets(void)
{
    static const struct { const char *server, *client, *words; } cases[] = {
        { NULL, NULL, NULL },
        { "apple", "apple", NULL },
        { "apple", "pear", "its CTRT_STORE_SECRET is another one" },
        { "apple", NULL, "the server requires a secret; set CTRT_STORE_SECRET" },
        { NULL, "apple", "the server has no secret" },
    };
    char address[256];
    group("tcp: server and clients must have the same secret");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const pid_t server = serve_in_child(address, TCP, cases[i].server);
        IN_FORK {
            ctrt_store *store = NULL;
            param_forget_values();
            if (cases[i].client != NULL)
                setenv("CTRT_STORE_SECRET", cases[i].client, 1);
            const ctrt_status status = ctrt_store_open(&store, address, false, 5);
            if (cases[i].words == NULL)
                CHECK_EQ(status, CTRT_OK);
            else
                CHECK_FAILS(status, CTRT_ERR_COMM, cases[i].words);
            CHECK_TRUE(strstr(ctrt_error_message(), "apple") == NULL);
        }
        kill_child(server);
    }
    group("the secret is not listed, and not in messages");
    IN_FORK {
        ctrt_param_info info;
        const char *secret = NULL;
        param_forget_values();
        setenv("CTRT_STORE_SECRET", "apple", 1);
        for (int read = 0; read < 2; read++) {
            for (size_t i = 0; ctrt_param_get_info(&info, i) == CTRT_OK; i++)
                if (strcmp(info.name, "CTRT_STORE_SECRET") == 0)
                    CHECK_STR(info.value, "set");
            CHECK_OK(store_secret(&secret));
            CHECK_STR(secret, "apple");
        }
        CHECK_FAILS(ctrt_param_set("CTRT_STORE_SECRET", "pear"), CTRT_ERR_STATE, "in use as \"set\"");
    }
    group("a server that does not know the secret is refused");
    struct store_hello hello;
    struct store_answer answer;
    struct store_verdict verdict;
    bool garbage;
    CHECK_TRUE(store_hello_write(&hello, "apple"));
    CHECK_OK(store_hello_check(&answer, &hello, "apple"));
    CHECK_TRUE(store_answer_check(&verdict, &garbage, &answer, &hello, "apple"));
    CHECK_OK(store_verdict_check(&verdict, &answer, &hello, "apple"));
    CHECK_FAILS(store_verdict_check(&verdict, &answer, &hello, "pear"), CTRT_ERR_COMM, "does not know");
    memcpy(verdict.mac, answer.mac, sizeof verdict.mac);
    CHECK_FAILS(store_verdict_check(&verdict, &answer, &hello, "apple"), CTRT_ERR_COMM, "does not know");
    hello.nonce[0] ^= 1;
    CHECK_TRUE(!store_answer_check(&verdict, &garbage, &answer, &hello, "apple"));
    CHECK_TRUE(!garbage);
}

/* ---- hostile clients ---- */

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
    ctrt_store *store = serve(TCP);
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
    ctrt_store_release(&store);
}

static void test_many_clients(void)
{
    enum { CLIENTS = 200 };
    static ctrt_store *clients[CLIENTS];
    group("tcp: %d clients", CLIENTS);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 3 * CLIENTS + 50) {
        skip_group("too few file descriptors are allowed");
        return;
    }
    ctrt_store *store = serve(TCP);
    const int64_t start = store_now();
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = join(ctrt_store_address(store));
    for (int i = 0; i < CLIENTS; i++)
        CHECK_OK(ctrt_store_add(clients[i], "n", 1, NULL));
    CHECK_STR(get(store, "n", 1), "200");
    for (int i = 0; i < CLIENTS; i++)
        ctrt_store_release(&clients[i]);
    CHECK_TRUE(store_now() - start < INT64_C(10000000000));
    ctrt_store_release(&store);
}

/* More connections without authentication than the server allows: the oldest end. */
static void test_pending_clients(void)
{
    enum { PENDING = 600 };
    static int idle[PENDING];
    struct rlimit limit;
    group("tcp: connections that do not authenticate do not keep others out");
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 2 * PENDING + 50) {
        skip_group("too few file descriptors are allowed");
        return;
    }
    ctrt_store *store = serve(TCP);
    for (int i = 0; i < PENDING; i++)
        idle[i] = raw_connect(store);
    ctrt_store *second = join(ctrt_store_address(store));
    SET(second, "k", "v");
    CHECK_STR(get(store, "k", 1), "v");
    CHECK_TRUE(raw_closed(idle[0]));
    for (int i = 1; i < PENDING; i++)
        close(idle[i]);
    ctrt_store_release(&second);
    ctrt_store_release(&store);
}

/* ---- the environment of ranks ---- */

/* A host name that is an address of the loopback interface. failures.sh has such a machine beside another one. */
static void test_own_address(void)
{
    static const char *const names[] = { "127.0.1.1", "localhost" };
    char first[OWN_ADDRESS_BYTES] = "";
    group("the machine's address for other machines");
    EACH(name, names) {
        char own[OWN_ADDRESS_BYTES], address[OWN_ADDRESS_BYTES + 16];
        unsigned char bytes[16];
        own_address(own, *name);
        if (first[0] == '\0')
            memcpy(first, own, sizeof own);
        CHECK_STR(own, first);
        const bool v6 = inet_pton(AF_INET6, own, bytes) == 1;
        CHECK(v6 || inet_pton(AF_INET, own, bytes) == 1, "\"%s\" is not a numeric address", own);
        snprintf(address, sizeof address, v6 ? "tcp://[%s]:0" : "tcp://%s:0", own);
        CTRT_AUTO(store) server = serve_at(address), client = join(ctrt_store_address(server));
        CHECK_OK(ctrt_store_set(client, "a", "b", 1));
        CHECK_STR(get(server, "a", 0), "b");
    }
}

static void test_environment(void)
{
    static const struct {
        const char *settings[8], *launcher, *words;
        int rank, size, local_rank, local_size;
    } cases[] = {
        { { "X=1" }, "none", NULL, 0, 1, 0, 1 },
        { { "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4" }, "torchrun", NULL, 5, 8, 1, 4 },
        { { "RANK=5", "WORLD_SIZE=8", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2" }, "torchrun", NULL, 5, 8, 5, 8 },
        { { "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1" }, "torchrun", NULL, 5, 8, 1, 8 },
        { { "RANK=", "WORLD_SIZE=" }, "none", NULL, 0, 1, 0, 1 },
        { { "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
            "OMPI_COMM_WORLD_LOCAL_SIZE=2" }, "Open MPI", NULL, 3, 4, 1, 2 },
        { { "PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2" }, "MPICH", NULL, 3, 4, 1, 2 },
        { { "PMI_RANK=3", "PMI_SIZE=4", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=2" }, "MPICH", NULL, 3, 4, 1, 2 },
        { { "SLURM_PROCID=9", "SLURM_STEP_NUM_TASKS=11", "SLURM_LOCALID=2", "SLURM_NODEID=2",
            "SLURM_STEP_TASKS_PER_NODE=4(x2),3" }, "Slurm", NULL, 9, 11, 2, 3 },
        { { "SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=11", "SLURM_LOCALID=1", "SLURM_NODEID=1",
            "SLURM_STEP_TASKS_PER_NODE=4(x2),3" }, "Slurm", NULL, 5, 11, 1, 4 },
        { { "SLURM_PROCID=0", "SLURM_NTASKS=8" }, "none", NULL, 0, 1, 0, 1 },           /* a batch script */
        { { "RANK=x", "WORLD_SIZE=8" }, NULL, "RANK is \"x\"", 0, 0, 0, 0 },
        { { "RANK=-1", "WORLD_SIZE=8" }, NULL, "RANK is \"-1\"", 0, 0, 0, 0 },
        { { "RANK=1", "WORLD_SIZE=8 " }, NULL, "WORLD_SIZE is \"8 \"", 0, 0, 0, 0 },
        { { "RANK=1", "WORLD_SIZE=99999999999" }, NULL, "WORLD_SIZE is", 0, 0, 0, 0 },
        { { "RANK=1" }, NULL, "RANK is set, but WORLD_SIZE is not", 0, 0, 0, 0 },
        { { "PMI_SIZE=1" }, NULL, "PMI_SIZE is set, but PMI_RANK is not", 0, 0, 0, 0 },
        { { "RANK=8", "WORLD_SIZE=8" }, NULL, "RANK is 8, expected less than WORLD_SIZE", 0, 0, 0, 0 },
        { { "RANK=0", "WORLD_SIZE=0" }, NULL, "RANK is 0, expected less than WORLD_SIZE", 0, 0, 0, 0 },
        { { "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4" }, NULL,
          "LOCAL_RANK is 4, expected less than LOCAL_WORLD_SIZE", 0, 0, 0, 0 },
        { { "SLURM_PROCID=9", "SLURM_STEP_NUM_TASKS=11", "SLURM_LOCALID=2", "SLURM_NODEID=3",
            "SLURM_STEP_TASKS_PER_NODE=4(x2),3" }, NULL, "SLURM_STEP_TASKS_PER_NODE is", 0, 0, 0, 0 },
        { { "SLURM_PROCID=9", "SLURM_STEP_NUM_TASKS=11", "SLURM_LOCALID=2", "SLURM_NODEID=3",
            "SLURM_STEP_TASKS_PER_NODE=4(x2" }, NULL, "SLURM_STEP_TASKS_PER_NODE is", 0, 0, 0, 0 },
    };
    group("rank and size from the variables of launchers");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHILD_LOOP(child, cases[i].settings, _exit) {
            struct rank_environment found;
            int rank = -1, size = -1, local_rank = -1, local_size = -1;
            const ctrt_status status = ctrt_comm_environment(&rank, &size, &local_rank, &local_size);
            if (cases[i].words != NULL) {
                CHECK_FAILS(status, CTRT_ERR_INVALID_ARGUMENT, cases[i].words);
            } else {
                CHECK_EQ(status, CTRT_OK);
                CHECK(rank == cases[i].rank && size == cases[i].size && local_rank == cases[i].local_rank
                      && local_size == cases[i].local_size, "%s...: %d of %d, %d of %d", cases[i].settings[0], rank,
                      size, local_rank, local_size);
                CHECK_OK(environment_read(&found));
                CHECK_STR(found.launcher != NULL ? found.launcher : "none", cases[i].launcher);
                CHECK_OK(ctrt_comm_environment(NULL, NULL, NULL, NULL));
            }
        }
    }

    static const struct { const char *settings[4], *address, *words; } stores[] = {
        { { "X=1" }, "", NULL },
        { { "MASTER_ADDR=node1", "MASTER_PORT=29500" }, "tcp://node1:29500", NULL },
        { { "MASTER_ADDR=node1", "MASTER_PORT=29500", "TORCHELASTIC_USE_AGENT_STORE=True" }, "tcp://node1:29501",
          NULL },
        { { "MASTER_ADDR=fe80::1", "MASTER_PORT=1" }, "tcp://[fe80::1]:1", NULL },
        { { "MASTER_ADDR=node1", "MASTER_PORT=1", "CTRT_STORE=file:///x" }, "file:///x", NULL },
        { { "MASTER_ADDR=node1" }, NULL, "MASTER_ADDR is set, but MASTER_PORT is not" },
        { { "MASTER_ADDR=node1", "MASTER_PORT=0" }, NULL, "MASTER_PORT is \"0\"" },
    };
    group("the address of the store from the environment");
    for (size_t i = 0; i < COUNT_OF(stores); i++) {
        CHILD_LOOP(child, stores[i].settings, _exit) {
            char address[ENVIRONMENT_STORE_BYTES];
            if (stores[i].words != NULL)
                CHECK_FAILS(environment_store(address), CTRT_ERR_INVALID_ARGUMENT, stores[i].words);
            else if (CHECK_OK(environment_store(address)))
                CHECK_STR(address, stores[i].address);
        }
    }
    IN_FORK {
        ctrt_store *first = NULL, *second = NULL;
        char address[256];
        snprintf(address, sizeof address, "file://%s/environment", folder);
        CHECK_OK(environment_open_store(&first, address, 0, 5));
        SET(first, "k", "v");
        ctrt_store_release(&first);
        CHECK_OK(environment_open_store(&second, address, 0, 5));
        CHECK_STR(get(second, "k", CTRT_ZERO), "v");
        snprintf(address, sizeof address, "file://%s/other", folder);
        first = serve_at(address);
        CHECK_OK(environment_open_store(&second, address, 0, 5));        /* as a client, because this process serves */
        CHECK_TRUE(get(second, "k", CTRT_ZERO) == NULL);
        ctrt_store_release(&second);
        ctrt_store_release(&first);
    }
}

TEST_MAIN
{
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
        "TORCHELASTIC_USE_AGENT_STORE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unsetenv(names[i]);
    folder = folder_new();
    test_environment();
    test_own_address();
    test_secrets();
    test_server_ends(TCP);
    test_server_ends(FILES);
    test_addresses();
    test_all_kinds();
    test_files();
    test_disconnect();
    test_hostile_clients();
    test_many_clients();
    test_pending_clients();
    folder_remove(folder);
    return done();
}
