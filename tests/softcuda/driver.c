/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/driver.c: initialization of libcuda.so.1, lookup of entry points, injected failures, error names,
 * valid handles, and the control table. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXTRA = 128 };                       /* functions of the other libraries */

/* Only the addresses of the functions are used here, so their prototypes need not be correct. */
#define ENTRY(name, version, suffix) extern void at_##name##version(void) __asm__(#name #suffix);
#include "entry.def"
#undef ENTRY

enum {
    OWN = 0
#define ENTRY(name, version, suffix) +1
#include "entry.def"
#undef ENTRY
};

static struct entry {
    const char *name, *symbol;
    int version;
    void (*function)(void);
    atomic_llong calls;
} entries[OWN + EXTRA] = {
#define ENTRY(name, version, suffix) { #name, #name #suffix, version, at_##name##version, 0 },
#include "entry.def"
#undef ENTRY
};
static atomic_int n_entries = OWN;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialised, forked, over;
__thread bool driver_in_callback;

/* ---- injected failures ---- */

struct fault {
    struct fault *next;
    char name[64];                      /* of a function */
    int64_t at;                         /* number of the call */
    int error;
    bool on;
};
static _Atomic(struct fault *) faults;

static void inject(const char *name, int64_t at, int error, bool on)
{
    struct fault *fault = allocated(malloc(sizeof *fault));
    LOCKED(&lock);
    *fault = (struct fault){ .next = faults, .at = at, .error = error, .on = on };
    snprintf(fault->name, sizeof fault->name, "%s", name);
    faults = fault;
}

static void inject_clear(void)
{
    LOCKED(&lock);
    for (struct fault *fault; (fault = faults) != NULL; free(fault))
        faults = fault->next;
}

/* "cuMemAlloc" also matches cuMemAlloc_v2. */
static bool matches(const char *name, const char *symbol)
{
    const size_t n = strlen(name);
    return strncmp(name, symbol, n) == 0
           && (symbol[n] == '\0' || (strncmp(&symbol[n], "_v", 2) == 0 && symbol[n + 3] == '\0'));
}

/* Returns the injected result of call number `call` of `symbol`. CUDA_SUCCESS: none. */
static result fault_of(const char *symbol, long long call)
{
    RETURN_IF(faults == NULL, CUDA_SUCCESS);
    LOCKED(&lock);
    for (const struct fault *f = faults; f != NULL; f = f->next)
        RETURN_IF(matches(f->name, symbol) && (call == f->at || (f->on && call > f->at)), f->error);
    return CUDA_SUCCESS;
}

/* ---- calls of entry points ---- */

static struct entry *entry_of(const char *symbol)
{
    for (struct entry *e = entries; e < &entries[n_entries]; e++)
        RETURN_IF(strcmp(e->symbol, symbol) == 0, e);
    return NULL;
}

/* Adds the function of another library. If there are too many, the last one stands for all others. */
static struct entry *new_entry(const char *symbol)
{
    LOCKED(&lock);
    struct entry *e = entry_of(symbol);
    RETURN_IF(e != NULL || n_entries == OWN + EXTRA, e != NULL ? e : &entries[OWN + EXTRA - 1]);
    e = &entries[n_entries];
    e->name = e->symbol = strdup(symbol);
    n_entries++;
    return e;
}

result driver_enter(const char *symbol, int needs)
{
    struct entry *e = entry_of(symbol);
    if (e == NULL)
        e = new_entry(symbol);
    const long long call = atomic_fetch_add(&e->calls, 1) + 1;
    RETURN_IF(over, CUDA_ERROR_DEINITIALIZED);
    RETURN_IF(forked, CUDA_ERROR_NOT_INITIALIZED);
    RETURN_IF(driver_in_callback && (needs & ENTER_INIT), CUDA_ERROR_NOT_PERMITTED);
    TRY(fault_of(symbol, call));
    RETURN_IF((needs & ENTER_INIT) && !initialised, CUDA_ERROR_NOT_INITIALIZED);
    RETURN_IF(!(needs & ENTER_CONTEXT), CUDA_SUCCESS);
    const struct device *device = device_current();
    RETURN_IF(device == NULL, CUDA_ERROR_INVALID_CONTEXT);
    RETURN_IF(device->retained == 0, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return needs & ENTER_WELL ? device->error : CUDA_SUCCESS;
}

/* Called by the fake libraries for cuBLAS, cuDNN and NVML. */
EXPORT result softcuda_enter(const char *symbol)
{
    return driver_enter(symbol, 0);
}

static void forget_in_child(void)
{
    forked = initialised;                   /* a context cannot be used after fork */
    pthread_mutex_init(&lock, NULL);
}

EXPORT result cuInit(unsigned flags)
{
    CHECKED_CALL(cuInit, 0, flags != 0);
    LOCKED(&lock);
    RETURN_IF(initialised, CUDA_SUCCESS);
    RETURN_IF(!options_read(), CUDA_ERROR_INVALID_VALUE);
    devices_start();
    RETURN_IF(n_devices == 0, CUDA_ERROR_NO_DEVICE);
    RETURN_IF(!space_open(n_devices, options.memory) || !order_open(), CUDA_ERROR_OUT_OF_MEMORY);
    initialised = true;
    pthread_atfork(NULL, NULL, forget_in_child);
    return CUDA_SUCCESS;
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
    CHECKED_CALL(cuDriverGetVersion, 0, version == NULL);
    *version = options.version;
    return CUDA_SUCCESS;
}

/* ---- entry points by name ---- */

EXPORT result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    CHECKED_CALL(cuGetProcAddress_v2, 0, name == NULL || function == NULL || status == NULL || flags > 2);
    enum { FOUND = 0, NO_SYMBOL = 1, TOO_OLD = 2 };
    *status = NO_SYMBOL;                    /* a missing symbol is reported there and not as an error */
    *function = NULL;
    for (const struct entry *e = entries; e < &entries[OWN]; e++)
        if (strcmp(e->name, name) == 0) {
            if (e->version <= version && e->version <= options.version) {
                *(void (**)(void))function = e->function;
                *status = FOUND;
            } else if (*status == NO_SYMBOL) {
                *status = TOO_OLD;
            }
        }
    return CUDA_SUCCESS;
}

/* ---- error names ---- */

static const struct { int number; const char *name; } names[] = {
#define ROW(name, number) { number, "CUDA_" #name },
    RESULTS(ROW)
#undef ROW
};

static result name_of_error(result error, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < COUNT_OF(names) && *text == NULL; i++)
        *text = names[i].number == error ? names[i].name : NULL;
    return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuGetErrorName(result error, const char **text)
{
    CALL(cuGetErrorName, 0);
    return name_of_error(error, text);
}

/* The name is also the description. */
EXPORT result cuGetErrorString(result error, const char **text)
{
    CALL(cuGetErrorString, 0);
    return name_of_error(error, text);
}

/* ---- valid handles, so that the use of a stale handle returns an error instead of crashing ---- */

struct valid {
    struct valid *next;
    const void *handle;
    enum handle kind;
};

static struct valid *buckets[1024];
static atomic_ullong counts[HANDLE_KINDS];

/* Returns the link to the entry, or the bucket's last link, which is NULL. */
static struct valid **place_of(enum handle kind, const void *handle)
{
    struct valid **place = &buckets[((uintptr_t)handle >> 4) % COUNT_OF(buckets)];
    while (*place != NULL && ((*place)->handle != handle || (*place)->kind != kind))
        place = &(*place)->next;
    return place;
}

void handle_add(enum handle kind, const void *handle)
{
    struct valid *valid = allocated(malloc(sizeof *valid));
    *valid = (struct valid){ .handle = handle, .kind = kind };
    LOCKED(&lock);
    *place_of(kind, handle) = valid;
    counts[kind]++;
}

bool handle_is(enum handle kind, const void *handle)
{
    LOCKED(&lock);
    return *place_of(kind, handle) != NULL;
}

bool handle_remove(enum handle kind, const void *handle)
{
    LOCKED(&lock);
    struct valid **place = place_of(kind, handle), *valid = *place;
    RETURN_IF(valid == NULL, false);
    *place = valid->next;
    counts[kind]--;
    free(valid);
    return true;
}

/* ---- the control table ---- */

static int64_t calls_of(const char *name)
{
    int64_t sum = -1;
    for (const struct entry *e = entries; e < &entries[n_entries]; e++)
        if (strcmp(e->name, name) == 0 || strcmp(e->symbol, name) == 0)
            sum = (sum < 0 ? 0 : sum) + atomic_load(&e->calls);
    return sum;
}

static const char *name_of(int number)
{
    return number >= 0 && number < n_entries ? entries[number].symbol : NULL;
}

static uint64_t live_bytes(int device)
{
    return device_of(device) != NULL ? devices[device].live : 0;
}

static bool context_active(int device)
{
    return device_of(device) != NULL && devices[device].retained > 0;
}

static uint64_t live_handles(const char *kind)
{
    static const char *const kinds[HANDLE_KINDS] = { "stream", "event", "library", "kernel", "graph",
                                                     "graph_exec", "allocation", "pool" };
    for (int i = 0; i < HANDLE_KINDS; i++)
        if (strcmp(kinds[i], kind) == 0)
            return counts[i];
    return 0;
}

static atomic_ullong faults_seen;
static char last_fault[512];

static uint64_t fault_count(void)
{
    return faults_seen;
}

static const char *fault_text(void)
{
    return last_fault;
}

void fault_report(const char *text)
{
    LOCKED(&lock);
    faults_seen++;
    snprintf(last_fault, sizeof last_fault, "%s", text);
    if (!options.quiet)
        fprintf(stderr, "softcuda: %s\n", text);
}

EXPORT void softcuda_report(const char *text)
{
    fault_report(text);
}

EXPORT struct softcuda_control softcuda_control = {
    .calls = calls_of, .inject = inject, .inject_clear = inject_clear, .name = name_of, .live_bytes = live_bytes,
    .live_handles = live_handles, .context_active = context_active,
    .launches = function_launches, .inject_kernel = inject_kernel, .faults = fault_count, .fault_text = fault_text,
};
