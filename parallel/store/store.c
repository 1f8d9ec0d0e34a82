/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/store.c: the public functions of key-value stores: arguments, results, references, fork. */
#include "parallel/store/store.h"
#include "parallel/store/job.h"

#include <math.h>
#include <poll.h>

#include "base/clock.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/thread.h"

static const struct store_kind *const kinds[] = { &store_tcp_kind, &store_file_kind, &store_local_kind };

/* How long a server may take, in addition to the time limit of ctrt_store_get, to say that the key is not set. */
static const double GET_PATIENCE = 1;

/* ---- all stores of the process, for fork ---- */

static pthread_mutex_t stores_lock = PTHREAD_MUTEX_INITIALIZER;
static ctrt_store *stores;

static void stores_fork(enum store_fork when)
{
    for (ctrt_store *store = stores; store != NULL; store = store->next) {
        if (store->kind->at_fork != NULL && !store->forked)
            store->kind->at_fork(store, when);
        if (when == STORE_IN_CHILD)             /* threads of the parent read it */
            store->forked = true;
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&stores_lock);
    stores_fork(STORE_BEFORE_FORK);
}

static void after_fork_in_parent(void)
{
    stores_fork(STORE_IN_PARENT);
    pthread_mutex_unlock(&stores_lock);
}

static void after_fork_in_child(void)
{
    stores_fork(STORE_IN_CHILD);
    pthread_mutex_unlock(&stores_lock);
}

__attribute__((constructor)) static void store_start(void)
{
    (void)lock_at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void stores_add(ctrt_store *store)
{
    pthread_mutex_lock(&stores_lock);
    store->next = stores;
    if (stores != NULL)
        stores->previous = store;
    stores = store;
    pthread_mutex_unlock(&stores_lock);
}

static void stores_remove(ctrt_store *store)
{
    pthread_mutex_lock(&stores_lock);
    *(store->previous != NULL ? &store->previous->next : &stores) = store->next;
    if (store->next != NULL)
        store->next->previous = store->previous;
    pthread_mutex_unlock(&stores_lock);
}

/* ---- time ---- */

int64_t store_now(void)
{
    return clock_now(CLOCK_MONOTONIC);
}

int64_t store_deadline(double seconds)
{
    return store_now() + (int64_t)(fmin(seconds, 1e9) * 1e9);
}

int store_poll_timeout(int64_t deadline)
{
    const int64_t left = (deadline - store_now() + 999999) / 1000000;
    return (int)MAX(0, MIN(left, 1000000));
}

struct timespec store_timespec(int64_t time)
{
    return (struct timespec) { .tv_sec = time / 1000000000, .tv_nsec = time % 1000000000 };
}

bool store_sleep(int64_t *pause, int64_t most, int64_t deadline)
{
    const int64_t now = store_now();
    if (now >= deadline)
        return false;
    const struct timespec time = store_timespec(MIN(*pause, deadline - now));
    nanosleep(&time, NULL);
    *pause = MIN(2 * *pause, most);
    return true;
}

void store_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Sets *out to the value of a `seconds` argument. */
static ctrt_status read_seconds(double *out, const char *function, double seconds, double otherwise)
{
    const double value = seconds < 0 ? otherwise : seconds;
    if (!(value >= 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: seconds is %g, expected a number", function, seconds);
    *out = value;
    return CTRT_OK;
}

/* ---- open and release ---- */

static ctrt_status fail_address(const char *address, const char *why)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                     "store_open: \"%s\": %s; expected tcp://HOST:PORT, file://PATH or local://NAME", address, why);
}

/* Opens a store of the kind. `rest`: the part of the address after the scheme. */
static ctrt_status store_create(ctrt_store **out, const struct store_kind *kind, const char *address, const char *rest,
                                bool serve, double seconds)
{
    ctrt_store *store = host_calloc(kind->bytes);
    const size_t bytes = strlen(address) + sizeof "65535";
    CANCEL_DISABLED;
    ALLOC_CHECK(store, kind->bytes, "a store");
    store->kind = kind;
    store->seconds = seconds;
    store->serves = serve;
    atomic_init(&store->references, 1);
    store->address = host_alloc(bytes);
    ctrt_status status = CTRT_OK;
    if (store->address == NULL) {
        status = out_of_memory(bytes, "a store's address");
    } else {
        snprintf(store->address, bytes, "%s", address);
        status = kind->open(store, store->address + (rest - address), store_deadline(seconds));
    }
    if (status != CTRT_OK) {
        host_free(store->address);
        host_free(store);
        return ctrt_context(status, "store_open: %s", address);
    }
    stores_add(store);
    store_move(out, &store);
    return CTRT_OK;
}

ctrt_status store_open(ctrt_store **out, const char *address, bool serve, double seconds)
{
    NULL_CHECK("store_open", address);
    CTRT_TRY(read_seconds(&seconds, "store_open", seconds, 300));
    const char *end = strstr(address, "://");
    if (end == NULL)
        return fail_address(address, "not an address");
    if (end[3] == '\0')
        return fail_address(address, "incomplete");
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const size_t length = strlen(kinds[i]->scheme);
        if (length == (size_t)(end - address) && strncmp(address, kinds[i]->scheme, length) == 0)
            return store_create(out, kinds[i], address, end + 3, serve, seconds);
    }
    return fail_address(address, "unknown kind of store");
}

ctrt_status ctrt_store_open(ctrt_store **out, const char *address, bool serve, double seconds)
{
    CTRT_AUTO(store) store = NULL;
    NULL_CHECK("store_open", out);
    CTRT_TRY(store_open(&store, address, serve, seconds));
    if (serve)
        CTRT_TRY(store_job_serve(store, NULL));
    store_move(out, &store);
    return CTRT_OK;
}

void store_move(ctrt_store **out, ctrt_store **fresh)
{
    ctrt_store_release(out);
    *out = *fresh;
    *fresh = NULL;
}

ctrt_store *ctrt_store_retain(ctrt_store *store)
{
    if (store != NULL)
        atomic_fetch_add_explicit(&store->references, 1, memory_order_relaxed);
    return store;
}

void ctrt_store_release(ctrt_store **store)
{
    if (store == NULL || *store == NULL)
        return;
    ctrt_store *mine = *store;
    *store = NULL;
    if (atomic_fetch_sub_explicit(&mine->references, 1, memory_order_acq_rel) > 1)
        return;
    CANCEL_DISABLED;
    if (!mine->forked)
        store_job_leave(mine);
    stores_remove(mine);
    /* After a fork, threads of the parent may have left the store's members in the middle of a change. The child does
     * not free them. */
    if (!mine->forked)
        mine->kind->close(mine);
    host_free(mine->address);
    host_free(mine);
}

const char *ctrt_store_address(const ctrt_store *store)
{
    return store != NULL ? store->address : NULL;
}

ctrt_status store_parse_host(char *host, int *port, const char *rest)
{
    const char *colon = strrchr(rest, ':'), *first = rest, *last = colon;
    if (colon != NULL && rest[0] == '[' && colon > rest && colon[-1] == ']')
        first++, last--;
    else if (colon != NULL && memchr(rest, ':', (size_t)(colon - rest)) != NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "an IPv6 address must be in brackets");
    if (colon == NULL || last <= first || last - first > 255)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "expected HOST:PORT");
    const size_t digits = strspn(colon + 1, "0123456789");
    *port = digits > 0 && digits < 6 ? atoi(colon + 1) : -1;
    if (colon[1 + digits] != '\0' || *port < 0 || *port > 65535)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the port \"%s\" is not a number from 0 to 65535", colon + 1);
    snprintf(host, 256, "%.*s", (int)(last - first), first);
    return CTRT_OK;
}

int store_resolve(struct addrinfo **out, const char *host, int port, bool serve)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (serve ? AI_PASSIVE : 0),
    };
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    return getaddrinfo(host, service, &hints, out);
}

/* ---- requests ---- */

static ctrt_status check_request(const char *function, ctrt_store *store, const struct store_message *message)
{
    if (store == NULL || message->key == NULL)
        return fail_null(function, store == NULL ? "store" : "key");
    if (message->key_bytes == 0 || message->key_bytes > STORE_KEY_BYTES)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: the key \"%.40s%s\" has %zu bytes, expected 1 to %d", function,
                         message->key, message->key_bytes > 40 ? "..." : "", message->key_bytes, STORE_KEY_BYTES);
    const bool other = message->value_bytes <= STORE_VALUE_BYTES;
    const size_t bytes = other ? message->other_bytes : message->value_bytes;
    if (bytes > STORE_VALUE_BYTES)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: a value of key %s has %zu bytes; a store takes at most %zu",
                         function, message->key, bytes, STORE_VALUE_BYTES);
    if ((message->value == NULL && message->value_bytes > 0) || (message->other == NULL && message->other_bytes > 0))
        return fail_null(function, "value");
    if (store->forked)
        return ctrt_fail(CTRT_ERR_FORKED,
                         "%s: this process was forked after the store %s had been opened; open it again in this "
                         "process", function, store->address);
    return CTRT_OK;
}

static ctrt_status fail_result(enum store_result result, const char *function, const ctrt_store *store,
                               const char *key)
{
    switch (result) {
    case STORE_NOT_NUMBER:
        return ctrt_fail(CTRT_ERR_STATE, "%s: the value of key %s in %s is not a number", function, key,
                         store->address);
    case STORE_OVERFLOW:
        return ctrt_fail(CTRT_ERR_OVERFLOW, "%s: the sum for key %s in %s does not fit 64 bits", function, key,
                         store->address);
    case STORE_FULL:
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY,
                         "%s: key %s: %s has reached its limit of 1 GiB of values, 1,048,576 keys, or requests that "
                         "wait", function, key, store->address);
    default:
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "%s: key %s: out of memory in %s", function, key, store->address);
    }
}

/* Checks and executes a request. *unset: whether the result is STORE_UNSET. The caller releases *value. `seconds` 0:
 * the store's, except for STORE_GET. */
static ctrt_status request(bool *unset, struct store_value **value, const char *function, ctrt_store *store,
                           const struct store_message *message, double seconds, int64_t patience)
{
    enum store_result result = STORE_OK;
    CTRT_TRY(check_request(function, store, message));
    CANCEL_DISABLED;
    const double limit = seconds > 0 || message->op == STORE_GET ? seconds : store->seconds;
    const ctrt_status status = store->kind->request(&result, value, store, message, store_deadline(limit), patience);
    if (status != CTRT_OK)
        return ctrt_context(status, "%s: key %s", function, message->key);
    *unset = result == STORE_UNSET;
    return result == STORE_OK || result == STORE_UNSET ? CTRT_OK : fail_result(result, function, store, message->key);
}

/* Copies the value to memory that the caller of the public function frees with free(), and releases the value. */
static ctrt_status give_value(void **out, size_t *out_bytes, struct store_value *value)
{
    const size_t bytes = value != NULL ? value->bytes : 0;
    char *copy = out != NULL && value != NULL ? host_alloc(bytes + 1) : NULL;
    const bool complete = copy != NULL || out == NULL || value == NULL;
    if (copy != NULL)
        memcpy(copy, value->data, bytes), copy[bytes] = '\0';
    if (complete && out != NULL)
        *out = copy;
    if (complete && out_bytes != NULL)
        *out_bytes = bytes;
    store_value_release(value);
    return complete ? CTRT_OK : out_of_memory(bytes + 1, "a store's value");
}

static struct store_message message_of(enum store_op op, const char *key, const void *value, size_t bytes)
{
    return (struct store_message) { .op = (uint8_t)op, .key = key, .key_bytes = key != NULL ? strlen(key) : 0,
                                    .value = value, .value_bytes = bytes };
}

/* A request whose value is not used. */
static ctrt_status store_run(bool *unset, const char *function, ctrt_store *store, const struct store_message *message,
                             double seconds)
{
    struct store_value *value = NULL;
    const ctrt_status status = request(unset, &value, function, store, message, seconds, STORE_ANSWER_TIME);
    store_value_release(value);
    return status;
}

ctrt_status store_set_within(ctrt_store *store, const char *key, const void *value, size_t bytes, double seconds)
{
    const struct store_message message = message_of(STORE_SET, key, value, bytes);
    bool unset;
    return store_run(&unset, "store_set", store, &message, seconds);
}

ctrt_status ctrt_store_set(ctrt_store *store, const char *key, const void *value, size_t bytes)
{
    return store_set_within(store, key, value, bytes, 0);
}

ctrt_status store_get_within(bool *unset, void **value, size_t *bytes, ctrt_store *store, const char *key,
                             double seconds, double patience)
{
    const struct store_message message = message_of(STORE_GET, key, NULL, 0);
    struct store_value *found = NULL;
    CTRT_TRY(request(unset, &found, "store_get", store, &message, seconds, (int64_t)(patience * 1e9)));
    return *unset ? CTRT_OK : give_value(value, bytes, found);
}

ctrt_status ctrt_store_get(ctrt_store *store, const char *key, void **value, size_t *bytes, double seconds)
{
    bool unset = false;
    CTRT_TRY(read_seconds(&seconds, "store_get", seconds, 300));
    CTRT_TRY(store_get_within(&unset, value, bytes, store, key, seconds, GET_PATIENCE));
    if (unset)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "store_get: key %s was not set in %s within %g s", key, store->address,
                         seconds);
    return CTRT_OK;
}

ctrt_status store_await(ctrt_store *store, const char *key, void **value, size_t *bytes, double seconds)
{
    const ctrt_status status = ctrt_store_get(store, key, value, bytes, seconds);
    return status == CTRT_ERR_NOT_FOUND ? ctrt_fail(CTRT_ERR_COMM, "%s", ctrt_error_message()) : status;
}

void store_interrupt(ctrt_store *store, const char *key)
{
    if (store->kind->interrupt != NULL && !store->forked)
        store->kind->interrupt(store, key);
}

ctrt_status store_add_within(ctrt_store *store, const char *key, int64_t amount, int64_t *sum, double seconds)
{
    const struct store_message message = message_of(STORE_ADD, key, &amount, sizeof amount);
    struct store_value *value = NULL;
    char text[24] = "";
    bool unset;
    CTRT_TRY(request(&unset, &value, "store_add", store, &message, seconds, STORE_ANSWER_TIME));
    if (value == NULL || value->bytes >= sizeof text) {
        store_value_release(value);
        return ctrt_fail(CTRT_ERR_COMM, "store_add: key %s: malformed answer of %s", key, store->address);
    }
    memcpy(text, value->data, value->bytes);
    store_value_release(value);
    if (sum != NULL)
        *sum = strtoll(text, NULL, 10);
    return CTRT_OK;
}

ctrt_status ctrt_store_add(ctrt_store *store, const char *key, int64_t amount, int64_t *sum)
{
    return store_add_within(store, key, amount, sum, 0);
}

ctrt_status store_compare_set_within(ctrt_store *store, const char *key, const void *expected, size_t expected_bytes,
                                     const void *desired, size_t desired_bytes, void **value, size_t *bytes,
                                     double seconds)
{
    struct store_message message = message_of(STORE_COMPARE_SET, key, desired, desired_bytes);
    struct store_value *now = NULL;
    bool unset;
    message.flags = expected != NULL ? STORE_EXPECTED : 0;
    message.other = expected;
    message.other_bytes = expected_bytes;
    CTRT_TRY(request(&unset, &now, "store_compare_set", store, &message, seconds, STORE_ANSWER_TIME));
    return give_value(value, bytes, now);
}

ctrt_status ctrt_store_compare_set(ctrt_store *store, const char *key, const void *expected, size_t expected_bytes,
                                   const void *desired, size_t desired_bytes, void **value, size_t *bytes)
{
    return store_compare_set_within(store, key, expected, expected_bytes, desired, desired_bytes, value, bytes, 0);
}

ctrt_status ctrt_store_delete(ctrt_store *store, const char *key, bool *existed)
{
    const struct store_message message = message_of(STORE_DELETE, key, NULL, 0);
    bool unset;
    CTRT_TRY(store_run(&unset, "store_delete", store, &message, 0));
    if (existed != NULL)
        *existed = !unset;
    return CTRT_OK;
}

ctrt_status store_set_at_disconnect(bool *supported, ctrt_store *store, const char *key, const void *value,
                                    size_t bytes)
{
    const struct store_message message = message_of(value != NULL ? STORE_AT_DISCONNECT : STORE_NOT_AT_DISCONNECT,
                                                    key, value, bytes);
    bool unset;
    *supported = store != NULL && store->kind->detects_disconnect;
    if (store != NULL && !*supported)
        return CTRT_OK;
    if (bytes > STORE_DISCONNECT_BYTES)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "store_set_at_disconnect: the value of key %s has %zu bytes; at most %d are possible",
                         key != NULL ? key : "(NULL)", bytes, STORE_DISCONNECT_BYTES);
    /* A process that leaves does not wait for long. */
    return store_run(&unset, "store_set_at_disconnect", store, &message, value != NULL ? 0 : STORE_ANSWER_TIME / 1e9);
}
