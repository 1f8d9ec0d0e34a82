/* SPDX-License-Identifier: Apache-2.0 */
/* store_check.h: opens key-value stores of every kind and reads their values, for internal tests. */
#ifndef CTRT_TESTS_STORE_CHECK_H
#define CTRT_TESTS_STORE_CHECK_H

#include "calls.h"
#include "child.h"
#include "folder.h"
#include "parallel/store/store.h"
#include "parallel/store/auth.h"

static char *folder;

/* An address for a new store of each kind; serve it, and open it again with ctrt_store_address. */
static const char *const schemes[] = { "tcp", "file", "local" };
enum { TCP, FILES, LOCAL, SCHEMES };

static inline const char *new_address(int scheme)
{
    static int number;
    static char address[256];
    if (scheme == TCP)
        return "tcp://127.0.0.1:0";
    snprintf(address, sizeof address, "%s://%s/%s-%d-%d", schemes[scheme], folder, schemes[scheme], (int)getpid(),
             ++number);
    return address;
}

static inline ctrt_store *opened(const char *address, bool serves)
{
    ctrt_store *store = NULL;
    REQUIRE(ctrt_store_open(&store, address, serves, 10) == CTRT_OK, "%s: %s", address, ctrt_error_message());
    return store;
}

static inline ctrt_store *serve(int scheme) { return opened(new_address(scheme), true); }
static inline ctrt_store *join(const char *address) { return opened(address, false); }

/* Returns the value of a key as a string, which is valid until the thread calls it again; NULL after a failure. */
static inline const char *get(ctrt_store *store, const char *key, double seconds)
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

#endif
