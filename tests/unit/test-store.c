/* SPDX-License-Identifier: Apache-2.0 */
/* Key-value stores of every kind. test-store-clients.c: clients that disturb a server. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include "base/host_alloc.h"
#include "base/param.h"
#include "store_check.h"

/* ---- all kinds ---- */

static void test_values(int scheme, ctrt_store *a, ctrt_store *b)
{
    static const char *const no_numbers[] = { "", "-", "1x", " 1", "9223372036854775808" };
    static const struct { const char *expected, *desired, *after; } swaps[] = {
        { "x", "no", NULL }, { NULL, "first", "first" }, { NULL, "no", "first" }, { "firs", "no", "first" },
        { "first", "second", "second" }, { "second", "", "" }, { "", "third", "third" },
    };
    void *value = NULL;
    size_t bytes = 9;
    int64_t sum = -1;
    bool existed[2] = { false, true };
    group("%s: set, get, add, compare_set and delete", schemes[scheme]);
    SET(a, "k", "one");
    CHECK_STR(get(b, "k", 5), "one");
    SET(b, "k", "");
    CHECK_STR(get(a, "k", 0), "");
    CHECK_OK(ctrt_store_set(a, "binary", "a\0b", 3));
    CHECK_OK(ctrt_store_get(b, "binary", &value, &bytes, 5));
    CHECK_TRUE(bytes == 3 && memcmp(value, "a\0b", 4) == 0);
    free(value);
    CHECK_OK(ctrt_store_get(b, "binary", NULL, NULL, 5));
    CHECK_OK(ctrt_store_delete(a, "k", &existed[0]));
    CHECK_OK(ctrt_store_delete(b, "k", &existed[1]));
    CHECK_OK(ctrt_store_delete(b, "k", NULL));
    CHECK_TRUE(existed[0] && !existed[1]);

    static const struct { int64_t amount, sum; } additions[] = { { 5, 5 }, { -7, -2 }, { INT64_MIN + 2, INT64_MIN } };
    EACH(c, additions) {
        CHECK_OK(ctrt_store_add((c - additions) % 2 ? a : b, "n", c->amount, &sum));
        CHECK_EQ(sum, c->sum);
    }
    CHECK_STR(get(a, "n", 5), "-9223372036854775808");
    CHECK_FAILS(ctrt_store_add(b, "n", -1, &sum), CTRT_ERR_OVERFLOW, "key n");
    CHECK_EQ(sum, INT64_MIN);
    EACH(c, no_numbers) {
        SET(a, "n", *c);
        CHECK_FAILS(ctrt_store_add(b, "n", 1, NULL), CTRT_ERR_STATE, "not a number");
    }
    EACH(c, swaps) {
        const size_t expected = c->expected != NULL ? strlen(c->expected) : 0;
        CHECK_OK(ctrt_store_compare_set((c - swaps) % 2 ? a : b, "c", c->expected, expected, c->desired,
                                        strlen(c->desired), &value, &bytes));
        CHECK(c->after == NULL ? value == NULL && bytes == 0 : value != NULL && strcmp(value, c->after) == 0,
              "compare_set gives %s, expected %s", value != NULL ? (char *)value : "NULL", c->after);
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
    const int64_t start = store_now();
    CHECK_FAILS(ctrt_store_get(b, "missing", &value, &bytes, 0.05), CTRT_ERR_NOT_FOUND, "key missing was not set");
    CHECK_TRUE(store_now() - start > 50000000 && store_now() - start < 2000000000);
    CHECK_FAILS(ctrt_store_get(b, "missing", &value, &bytes, 0), CTRT_ERR_NOT_FOUND, "within 0 s");
    SET(a, "missing", "now");
    CHECK_STR(get(b, "missing", 0), "now");
}

enum { WORKERS = 6 };

/* Worker number `number` adds to a counter and sets its key, and waits for the key of the next one. All but the first
 * wait before they set their own. */
static void work(ctrt_store *store, int number)
{
    char mine[16], next[16];
    snprintf(mine, sizeof mine, "t%d", number);
    snprintf(next, sizeof next, "t%d", (number + 1) % WORKERS);
    for (int i = 0; i < 20; i++)
        CHECK_OK(ctrt_store_add(store, "total", 1, NULL));
    if (number != 0)
        CHECK_STR(get(store, next, 10), next);
    SET(store, mine, mine);
    CHECK_STR(get(store, next, 10), next);
}

struct worker {
    ctrt_store *store;
    int number;
    pthread_t thread;
};

static void *work_in_thread(void *worker)
{
    work(((struct worker *)worker)->store, ((struct worker *)worker)->number);
    return NULL;
}

static void test_threads(int scheme, ctrt_store *a, ctrt_store *b)
{
    struct worker workers[WORKERS];
    group("%s: a thread that waits does not block others with the same store", schemes[scheme]);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker) { i % 3 ? a : b, i, 0 };
        pthread_create(&workers[i].thread, NULL, work_in_thread, &workers[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    CHECK_STR(get(a, "total", 5), "120");
}

static void *wait_for_last(void *store)
{
    CHECK_STR(get(store, "t3", 10), "t3");
    return NULL;
}

static void test_processes(int scheme)
{
    pid_t children[WORKERS];
    pthread_t thread;
    group("%s: processes find each other, and a child does not disturb its parent", schemes[scheme]);
    CTRT_AUTO(store) store = serve(scheme);
    pthread_create(&thread, NULL, wait_for_last, store);
    for (int i = 0; i < WORKERS; i++) {
        children[i] = child_start((const char *const[]){ NULL });
        if (children[i] != 0)
            continue;
        CHECK_FAILS(ctrt_store_set(store, "bad", "", 0), CTRT_ERR_FORKED, ctrt_store_address(store));
        ctrt_store *own = join(ctrt_store_address(store));
        ctrt_store_release(&store);
        work(own, i);
        ctrt_store_release(&own);
        child_end(_exit);
    }
    for (int i = 0; i < WORKERS; i++)
        child_join(children[i], __FILE__, __LINE__);
    pthread_join(thread, NULL);
    CHECK_STR(get(store, "total", 0), "120");
    CHECK_TRUE(get(store, "bad", 0) == NULL);
}

static ctrt_status use_new_store(ctrt_store **store, int scheme)
{
    bool supported;
    TRY(ctrt_store_open(store, new_address(scheme), true, 0.1));
    TRY(store_set_at_disconnect(&supported, *store, "gone", "", 0));
    TRY(ctrt_store_set(*store, "k", "v", 1));
    return ctrt_store_get(*store, "k", NULL, NULL, 0.1);
}

/* Each allocation fails once. */
static void test_alloc_failures(int scheme)
{
    int failures = 0;
    group("%s: errors without memory", schemes[scheme]);
#ifdef __SANITIZE_THREAD__
    if (scheme == TCP) {
        skip_group("alloc_fail_at is not for programs with other threads that allocate");
        return;
    }
#endif
    for (uint64_t n = 1; n < 40; n++) {
        CTRT_AUTO(store) store = NULL;
        alloc_fail_at(n, false);
        const ctrt_status status = use_new_store(&store, scheme);
        alloc_fail_at(0, false);
        failures += status != CTRT_OK;
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_ERR_COMM, "%d: %s", (int)status,
              ctrt_error_message());
    }
    CHECK(failures > 3, "only %d calls failed", failures);
}

static void test_all_kinds(void)
{
    for (int scheme = 0; scheme < SCHEMES; scheme++) {
        CTRT_AUTO(store) a = serve(scheme), b = join(ctrt_store_address(a)), c = ctrt_store_retain(a);
        bool supported;
        test_values(scheme, a, b);
        test_limits(scheme, a, b);
        test_threads(scheme, a, b);
        group("%s: disconnects are detected by servers only; an old store is replaced", schemes[scheme]);
        CHECK_OK(store_set_at_disconnect(&supported, b, "gone", "x", 1));
        CHECK_EQ(supported, scheme == TCP);
        CHECK_OK(ctrt_store_open(&b, ctrt_store_address(a), false, 10));
        CHECK_TRUE(get(b, "gone", 0) == NULL);
        ctrt_store_release(&c);
        SET(a, "last", "1");
        ctrt_store_release(&a);
        CHECK_TRUE(a == NULL);
        CHECK_EQ(ctrt_store_set(b, "last", "2", 1), scheme == LOCAL ? CTRT_OK : CTRT_ERR_COMM);
        test_alloc_failures(scheme);
        if (scheme != LOCAL)
            test_processes(scheme);
    }
    CTRT_AUTO(store) a = serve(LOCAL), b = join(ctrt_store_address(a));
    char address[256];
    snprintf(address, sizeof address, "%s", ctrt_store_address(a));
    SET(a, "k", "v");
    ctrt_store_release(&a);
    ctrt_store_release(&b);
    b = join(address);
    CHECK_TRUE(get(b, "k", 0) == NULL);
}

static void test_addresses(void)
{
    static const struct { const char *address, *words; bool serve; } malformed[] = {
        { "", "not an address", true }, { "tcp:/127.0.0.1:1", "not an address", true },
        { "udp://127.0.0.1:1", "unknown kind", true }, { "tcp://", "incomplete", true },
        { "tcp://127.0.0.1", "HOST:PORT", true }, { "tcp://:80", "HOST:PORT", true }, { "tcp://h:", "port", true },
        { "tcp://h:65536", "port", true }, { "tcp://h:1x", "port", true }, { "tcp://::1:80", "brackets", true },
        { "tcp://127.0.0.1:0", "port 0", false },
    }, absent[] = {
        { "tcp://127.0.0.1:1", "tcp://127.0.0.1:1: no connection", false },
        { "tcp://192.0.2.1:0", "cannot listen", true }, { "file:///nonexistent/store", "open", true },
        { "file:///nonexistent/store", "no process has created", false }, { "file:///tmp", "open", true },
    };
    CTRT_AUTO(store) store = NULL, second = NULL;
    group("addresses that are malformed or without a store");
    EACH(c, malformed) {
        CHECK_FAILS(ctrt_store_open(&store, c->address, c->serve, 0.02), CTRT_ERR_INVALID_ARGUMENT, c->words);
        CHECK_HAS(ctrt_error_message(), c->address);
    }
    EACH(c, absent) {
        CHECK_FAILS(ctrt_store_open(&store, c->address, c->serve, 0.02), CTRT_ERR_COMM, c->words);
        CHECK_HAS(ctrt_error_message(), c->address);
    }
    CHECK_TRUE(store == NULL);
    store = serve(TCP);
    CHECK_FAILS(ctrt_store_open(&second, ctrt_store_address(store), true, 1), CTRT_ERR_STATE, "cannot listen");
}

/* ---- files ---- */

static void test_files(void)
{
    static const struct { const char *name, *words; bool serve; } refused[] = {
        { "old", "left over from an earlier run", true }, { "old", "left over from an earlier run", false },
        { "link", "open", true },
    };
    CTRT_AUTO(store) store = NULL, second = NULL;
    char address[256];
    group("file: files of earlier runs and other files are refused");
    folder_text(folder, "old", "something that is here already");
    folder_text(folder, "empty", "");
    CHECK_TRUE(symlink("old", folder_join(folder, "link")) == 0);
    EACH(c, refused) {
        snprintf(address, sizeof address, "file://%s/%s", folder, c->name);
        CHECK_FAILS(ctrt_store_open(&store, address, c->serve, 1), CTRT_ERR_COMM, c->words);
    }
    snprintf(address, sizeof address, "file://%s/empty", folder);
    store = opened(address, true);
    CHECK_FAILS(ctrt_store_open(&second, address, true, 1), CTRT_ERR_STATE, "another process serves");
    group("file: a message that was written in part is removed, and a damaged file is an error");
    second = join(address);
    SET(store, "a", "1");
    const int fd = open(folder_join(folder, "empty"), O_WRONLY | O_APPEND);
    const struct store_message message = { .op = STORE_SET, .key = "b", .key_bytes = 1,
                                           .value = "22", .value_bytes = 2 };
    unsigned char bytes[64];
    CHECK_EQ(write(fd, bytes, store_message_write(bytes, &message) - 1), 18);
    CHECK_STR(get(second, "a", 0), "1");
    CHECK_TRUE(get(second, "b", 0) == NULL);
    SET(second, "b", "3");
    CHECK_STR(get(store, "b", 0), "3");
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
    CTRT_AUTO(store) store = join(address);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, wait_for_never, store);
    usleep(20000);
    kill_child(child);
    const int64_t killed = store_now();
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_FAILS(ctrt_store_set(store, "k", "", 0), CTRT_ERR_COMM, address + strlen(schemes[scheme]) + 3);
    CHECK_TRUE(store_now() - killed < 1000000000);
    unlink(address + 7);
}

/* The ways in which a client ends that has asked the server to set keys at its end. */
enum ending { KILLED, EXITS, KILLED_BESIDE_CHILD, RELEASES };

static void end_client(const char *address, enum ending ending)
{
    ctrt_store *own = join(address);
    bool supported;
    store_set_at_disconnect(&supported, own, "gone", "old", 3);
    store_set_at_disconnect(&supported, own, "gone", "rank 3", 6);
    store_set_at_disconnect(&supported, own, "other", "", 0);
    store_set_at_disconnect(&supported, own, "other", NULL, 0);
    const pid_t child = ending == KILLED_BESIDE_CHILD ? fork() : -1;
    if (child == 0)
        pause();
    CHECK_OK(ctrt_store_add(own, "child", child, NULL));
    CHECK_OK(ctrt_store_set(own, "ready", "1", 1));
    if (ending == RELEASES)
        ctrt_store_release(&own);
    else if (ending != EXITS)
        pause();
    _exit(0);
}

static void test_disconnect(void)
{
    static const char *const endings[] = {
        "was killed", "ended without release", "was killed while a child of it lives", "ended after release",
    };
    for (int ending = KILLED; ending <= RELEASES; ending++) {
        CTRT_AUTO(store) store = serve(TCP);
        group("tcp: the server sets a key of a process that %s", endings[ending]);
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0)
            end_client(ctrt_store_address(store), (enum ending)ending);
        CHECK_STR(get(store, "ready", 10), "1");
        if (ending == KILLED || ending == KILLED_BESIDE_CHILD)
            kill_child(child);
        else
            waitpid(child, NULL, 0);
        if (ending == RELEASES)
            CHECK_TRUE(get(store, "gone", 0.05) == NULL);
        else
            CHECK_STR(get(store, "gone", 1), "rank 3");
        CHECK_TRUE(get(store, "other", 0) == NULL);
        if (ending == KILLED_BESIDE_CHILD)
            kill(atoi(get(store, "child", 1)), SIGKILL);
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
    EACH(c, cases) {
        const pid_t server = serve_in_child(address, TCP, c->server);
        IN_FORK {
            ctrt_store *store = NULL;
            param_forget_values();
            if (c->client != NULL)
                setenv("CTRT_STORE_SECRET", c->client, 1);
            CHECK_FAILS(ctrt_store_open(&store, address, false, 5), c->words ? CTRT_ERR_COMM : CTRT_OK, c->words);
            CHECK_TRUE(strstr(ctrt_error_message(), "apple") == NULL);
        }
        kill_child(server);
    }
    group("the secret is not listed, and not in messages");
    IN_FORK {
        ctrt_param_info info = CTRT_PARAM_INFO;
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

TEST_MAIN
{
    folder = folder_new();
    test_secrets();
    test_server_ends(TCP);
    test_server_ends(FILES);
    test_addresses();
    test_all_kinds();
    test_files();
    test_disconnect();
    folder_remove(folder);
    return done();
}
