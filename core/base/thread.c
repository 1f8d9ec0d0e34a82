/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.c: per-thread state and its cleanup at thread exit. */
#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/base.h"

#define MAX_CLEANERS 16

__thread struct thread_state thread_state __attribute__((tls_model("initial-exec")));

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;
static _Atomic(void (*)(struct thread_state *)) cleaners[MAX_CLEANERS];

/* Runs the cleaners in reverse order of registration, because higher layers register later. A cleaner may free objects
 * and thereby register the thread again; POSIX then calls this function again. */
static void thread_end(void *state)
{
    struct thread_state *self = state;
    self->registered = false;
    for (int i = MAX_CLEANERS - 1; i >= 0; i--) {
        void (*cleaner)(struct thread_state *) = atomic_load(&cleaners[i]);
        if (cleaner != NULL)
            cleaner(self);
    }
}

int thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void make_key(void)
{
    key_made = pthread_key_create(&key, thread_end) == 0;
}

void thread_register(void)
{
    if (thread_state.registered)
        return;
    pthread_once(&key_once, make_key);
    /* Without a key the thread remains unregistered. Then it does not use free lists, so nothing leaks. */
    if (key_made && pthread_setspecific(key, &thread_state) == 0)
        thread_state.registered = true;
}

void cancel_disable(void)
{
    if (thread_state.cancel_depth++ == 0)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &thread_state.cancel_before);
}

void cancel_restore(void)
{
    if (--thread_state.cancel_depth == 0)
        pthread_setcancelstate(thread_state.cancel_before, NULL);
}

void thread_on_exit(void (*cleaner)(struct thread_state *state))
{
    for (int i = 0; i < MAX_CLEANERS; i++) {
        void (*expected)(struct thread_state *) = NULL;
        if (atomic_compare_exchange_strong(&cleaners[i], &expected, cleaner) || expected == cleaner)
            return;
    }
    log_message(CTRT_LOG_ERROR, "core", "thread_on_exit: more than %d functions", MAX_CLEANERS);
}
