/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/driver.c: initialization of libcuda.so.1, lookup of entry points, error names, and the control
 * table. */
#define _GNU_SOURCE
#include "order.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXTRA = 128 };                       /* functions of the other libraries */

/* Only the addresses of the functions are used here, so their prototypes need not be correct. */
#define ENTRY(name, version, symbol) extern void at_##name##version(void) __asm__(#symbol);
#include "entry.def"
#undef ENTRY

static const struct row {
    const char *name, *symbol;
    int version;
    void (*function)(void);
} rows[] = {
#define ENTRY(name, version, symbol) { #name, #symbol, version, at_##name##version },
#include "entry.def"
#undef ENTRY
};

static atomic_llong counters[COUNT_OF(rows) + EXTRA];
static const char *extras[EXTRA];
static atomic_int n_extras;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialised, forked, over;
__thread bool driver_in_callback;

atomic_llong *driver_counter(const char *symbol)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].symbol, symbol) == 0)
            return &counters[i];
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < n_extras && strcmp(extras[at], symbol) != 0)
        at++;
    if (at == n_extras && n_extras < EXTRA)
        extras[n_extras++] = strdup(symbol);
    pthread_mutex_unlock(&lock);
    return &counters[COUNT_OF(rows) + (size_t)(at < EXTRA ? at : EXTRA - 1)];
}

result driver_enter(const char *symbol, atomic_llong *calls, int needs)
{
    const long long call = atomic_fetch_add(calls, 1) + 1;
    if (over)
        return CUDA_ERROR_DEINITIALIZED;
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (driver_in_callback && (needs & ENTER_INIT))
        return CUDA_ERROR_NOT_PERMITTED;
    const result injected = fault_of(symbol, call);
    if (injected != CUDA_SUCCESS)
        return injected;
    if ((needs & ENTER_INIT) && !initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (needs & ENTER_CONTEXT) {
        struct device *device = device_current();
        if (device == NULL)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (device->retained == 0)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if ((needs & ENTER_WELL) && device->error != CUDA_SUCCESS)
            return device->error;
    }
    return CUDA_SUCCESS;
}

/* Called by the fake libraries for cuBLAS, cuDNN and NVML. */
EXPORT result softcuda_enter(const char *symbol)
{
    return driver_enter(symbol, driver_counter(symbol), 0);
}

static void forget_in_child(void)
{
    forked = initialised;                   /* a context cannot be used after fork */
    pthread_mutex_init(&lock, NULL);
}

EXPORT result cuInit(unsigned flags)
{
    CALL(cuInit, 0);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    result made = CUDA_SUCCESS;
    if (!initialised) {
        char why[256];
        if (!options_read(getenv("SOFTCUDA"), why, sizeof why)) {
            fprintf(stderr, "softcuda: SOFTCUDA=%s: %s\n", getenv("SOFTCUDA"), why);
            made = CUDA_ERROR_INVALID_VALUE;
        } else {
            devices_start();
            if (n_devices == 0)
                made = CUDA_ERROR_NO_DEVICE;
            else if (!space_open(n_devices, options.memory) || !order_open())
                made = CUDA_ERROR_OUT_OF_MEMORY;
            else
                initialised = true;
        }
        if (initialised)
            pthread_atfork(NULL, NULL, forget_in_child);
    }
    pthread_mutex_unlock(&lock);
    return made;
}

/* Some options are used before cuInit. */
__attribute__((constructor)) static void read_options(void)
{
    char why[256];
    options_read(getenv("SOFTCUDA"), why, sizeof why);
}

/* At exit, waits for running operations before the libraries that they use are unloaded. */
__attribute__((destructor)) static void end(void)
{
    if (initialised && !forked) {
        streams_wait_all();
        over = true;
    }
}

EXPORT result cuDriverGetVersion(int *version)
{
    CALL(cuDriverGetVersion, 0);
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = options.version;
    return CUDA_SUCCESS;
}

/* ---- entry points by name ---- */

EXPORT result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    CALL(cuGetProcAddress_v2, 0);
    enum { FOUND = 0, NO_SYMBOL = 1, TOO_OLD = 2 };
    int found = NO_SYMBOL;
    if (name == NULL || function == NULL || status == NULL || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0) {
            if (rows[i].version <= version && rows[i].version <= options.version) {
                *(void (**)(void))function = rows[i].function;
                found = FOUND;
            } else if (found == NO_SYMBOL) {
                found = TOO_OLD;
            }
        }
    *status = found;                        /* a missing symbol is reported there and not as an error */
    return CUDA_SUCCESS;
}

/* ---- error names ---- */

static const struct words { int number; const char *name, *text; } words[] = {
#define ROW(name, number, text) { number, "CUDA_" #name, text },
    RESULTS(ROW)
#undef ROW
};

static const struct words *words_of(result error)
{
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (words[i].number == error)
            return &words[i];
    return NULL;
}

EXPORT result cuGetErrorName(result error, const char **text)
{
    CALL(cuGetErrorName, 0);
    const struct words *found = words_of(error);
    *text = found != NULL ? found->name : NULL;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuGetErrorString(result error, const char **text)
{
    CALL(cuGetErrorString, 0);
    const struct words *found = words_of(error);
    *text = found != NULL ? found->text : NULL;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- the control table ---- */

static int64_t calls_of(const char *name)
{
    int64_t sum = -1;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool again = false;                     /* several rows of entry.def may have the same symbol */
        for (size_t j = 0; j < i; j++)
            again |= strcmp(rows[j].symbol, rows[i].symbol) == 0;
        if (!again && (strcmp(rows[i].name, name) == 0 || strcmp(rows[i].symbol, name) == 0))
            sum = (sum < 0 ? 0 : sum) + atomic_load(&counters[i]);
    }
    for (int i = 0; i < n_extras; i++)
        if (strcmp(extras[i], name) == 0)
            sum = (sum < 0 ? 0 : sum) + atomic_load(&counters[COUNT_OF(rows) + (size_t)i]);
    return sum;
}

static const char *name_of(int number)
{
    if (number < 0 || (size_t)number >= COUNT_OF(rows) + (size_t)n_extras)
        return NULL;
    return (size_t)number < COUNT_OF(rows) ? rows[number].symbol : extras[(size_t)number - COUNT_OF(rows)];
}

static uint64_t live_bytes(int device)
{
    return device >= 0 && device < n_devices ? devices[device].live : 0;
}

static uint64_t live_blocks(int device)
{
    return device >= 0 && device < n_devices ? devices[device].live_blocks : 0;
}

static bool context_active(int device)
{
    return device >= 0 && device < n_devices && devices[device].retained > 0;
}

static uint64_t live_handles(const char *kind)
{
    static const char *const kinds[HANDLE_KINDS] = { "stream", "event", "library", "kernel", "graph",
                                                     "graph_exec", "allocation", "pool" };
    for (int i = 0; i < HANDLE_KINDS; i++)
        if (strcmp(kinds[i], kind) == 0)
            return handle_count((enum handle)i);
    return 0;
}

static bool peek(address from, void *to, size_t bytes)
{
    if (!space_usable(from, bytes))
        return false;
    space_copy(to, (const void *)(uintptr_t)from, bytes);
    return true;
}

static atomic_ullong faults_seen;
static char last_fault[512];

static uint64_t faults(void)
{
    return faults_seen;
}

static const char *fault_text(void)
{
    return last_fault;
}

void fault_report(const char *text)
{
    pthread_mutex_lock(&lock);
    faults_seen++;
    snprintf(last_fault, sizeof last_fault, "%s", text);
    if (!options.quiet)
        fprintf(stderr, "softcuda: %s\n", text);
    pthread_mutex_unlock(&lock);
}

static void report(bool on)
{
    options.quiet = !on;
}

static bool inject(const char *name, int64_t at, int error, bool on)
{
    return fault_add(name, at, error, on, true);
}

static void inject_clear(void)
{
    fault_clear(true);
}

EXPORT struct softcuda_control softcuda_control = {
    .calls = calls_of, .inject = inject, .inject_clear = inject_clear, .name = name_of, .live_bytes = live_bytes,
    .live_blocks = live_blocks, .live_handles = live_handles, .context_active = context_active,
    .launches = function_launches, .peek = peek, .inject_kernel = fault_inject_kernel, .faults = faults,
    .fault_text = fault_text, .tell = report,
};
