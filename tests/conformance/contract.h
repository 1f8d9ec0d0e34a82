/* SPDX-License-Identifier: Apache-2.0 */
/* contract.h: checks that a plugin keeps the contract of the plugin ABI (ctrt/plugin.h).
 *
 * The checks call the tables of the plugin directly, with a host table of their own (contract_host.c), so they see what
 * the library would hide. Each check runs in a child process, with a time limit: a check whose child crashes, exits or
 * does not end has failed. The child loads and initialises the plugin, the parent never does. A check is a function
 * that returns if the contract holds; contract_fail and contract_skip end the child. To add a check, add a row to the
 * table of its kind; to add a kind of component, add its struct contract_kind to contract.c. */
#ifndef CTRT_CONTRACT_H
#define CTRT_CONTRACT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "ctrt/ctrt.h"
#include "ctrt/plugin.h"

struct contract_options {
    const char *target;             /* a plugin file, or a device ("sim:1"), whose backend's file is checked */
    const char *device;             /* for the ranks of an engine ("cuda"); NULL: the cpu */
    const char *pattern;            /* only checks whose name matches one of these shell patterns, by commas */
    const char *memory_options;     /* of a memory policy, as in CTRT_MEMORY; NULL: none */
    double seconds;                 /* time limit of a check */
    bool list;                      /* print the names of the checks with what they check, run none */
    const char *junit;              /* a file for the results as JUnit XML as well; NULL: none */
};

/* Runs the checks and prints TAP. Returns 0 if nothing failed; 1 if a check failed or all were skipped; 2 if the plugin
 * could not be found (reported on stderr). */
int contract_run(const struct contract_options *options);

/* ---- checks ---- */

/* The check calls init itself: it is not called before it, nor `prepare`, and launched ranks do not run the check. The
 * other bits belong to the kinds. */
#define NEEDS_NO_INIT (1u << 31)

struct contract_check {
    const char *name;               /* "queue.order" */
    void (*run)(void);
    unsigned needs;                 /* passed to `prepare` of the kind, unless NEEDS_NO_INIT */
    const char *sentence;           /* what the contract says */
};

struct contract_kind {
    ctrt_component_kind kind;
    const char *word;               /* "backend"; the beginning of the file's name */
    const struct contract_check *checks[4];     /* tables, each of which ends with a row without a name; then NULL */
    /* Runs in the child before each check, after init. Skips the check if the plugin lacks what it needs. */
    void (*prepare)(const void *table, unsigned needs);
};

extern const struct contract_kind contract_backend, contract_memory, contract_image, contract_comm, contract_strategy;

/* The plugin under test, in the child. */
struct contract_target {
    char file[4096];
    int32_t device;                 /* index of the device to check */
    bool calls_library;             /* it is linked with libctrt */
    const char *options;            /* of a memory policy; of a decoder, a file of its format */
    const char *rank_device;        /* "cpu", or the type of the ranks' devices */
    bool uninitialised;             /* init is not called before the check */
    int rank, ranks;                /* this process is one of `ranks`, which a launcher has started; 0: none has */
    const ctrt_plugin *plugin;
    const ctrt_component *component;
};
extern struct contract_target contract_target;
/* Opens the file and finds the component of that kind; fails the check if it cannot be used. */
void contract_load(ctrt_component_kind kind);
/* The command that runs the checks of an engine whose launcher has to start the ranks. */
const char *contract_launcher(void);

/* End the check: as failed, or as skipped. */
_Noreturn void contract_fail(const char *format, ...) CTRT_PRINTF(1, 2);
_Noreturn void contract_skip(const char *format, ...) CTRT_PRINTF(1, 2);
/* Records what the check does next; the beginning of the message if it fails, crashes or does not end. */
void contract_step(const char *format, ...) CTRT_PRINTF(1, 2);
/* Fails the check unless `status` is CTRT_OK. */
void contract_ok(ctrt_status status);
/* Fails the check unless `status` is a failure that was passed to host->fail. `wanted`: the status; CTRT_OK: any. */
void contract_refused(ctrt_status status, ctrt_status wanted);

/* The first checks of every kind, contract_plugin.c. `needs`: nothing. */
void contract_check_names(void);
void contract_check_probe(void);
void contract_check_init(void);
#define CONTRACT_COMMON(needs)                                                                                       \
    { "names", contract_check_names, needs,                                                                          \
      "the name is lower case and has at most 31 characters; the file is KIND-NAME.so" },                            \
    { "probe", contract_check_probe, needs,                                                                          \
      "probe writes one line of at most reason_bytes, answers the same again, starts no threads, opens nothing" },   \
    { "init", contract_check_init, (needs) | NEEDS_NO_INIT,                                                          \
      "init may be called again after CTRT_ERR_OUT_OF_MEMORY" }
/* "backend": the beginning of the name of a file of that kind. */
const char *contract_kind_word(ctrt_component_kind kind);
/* The number of descriptors of this process. */
int contract_files(void);

#define CALL(call, ...)          (contract_step(__VA_ARGS__), contract_ok(call))
#define REFUSES(call, wanted, ...) (contract_step(__VA_ARGS__), contract_refused(call, wanted))
#define EXPECT(condition, ...)   ((condition) ? (void)0 : contract_fail(__VA_ARGS__))

/* contract_fork runs `body` in a child of this process and returns its id. contract_join waits for the child, whose
 * failure is that of the check. */
int contract_fork(void (*body)(void));
void contract_join(int child);
/* Whether the child has ended. A child that was killed by SIGKILL is no failure if `killed`. */
bool contract_ended(int child, bool killed);
/* Runs `body` in `count` threads with the arguments 0, 1, ... and joins them. */
void contract_in_threads(void (*body)(int number), int count);
/* Forks children that run `child`, one after another, while three threads call `work` with the arguments 1, 2, 3 again
 * and again. */
void contract_fork_among(void (*child)(void), void (*work)(int number));
void contract_sleep(int milliseconds);
/* Writes the path of a file of this process, which is removed at the latest when the check has ended. */
void contract_path(char path[256], int number);

/* ---- bytes ---- */

/* Fills memory with bytes that depend on `seed`; a generator without state. */
void contract_pattern(void *memory, size_t bytes, unsigned seed);
/* Fails the check unless the memory has that pattern, or that byte. `what` names the memory. */
void contract_expect_pattern(const void *memory, size_t bytes, unsigned seed, const char *what);
void contract_expect_bytes(const void *memory, size_t bytes, int byte, const char *what);
void *contract_alloc(size_t bytes);                     /* never NULL; aligned to 64 bytes */
/* Bytes of address space of this process. */
size_t contract_space(void);

/* ---- the host table, contract_host.c ---- */

extern const ctrt_host contract_host;
/* The calling thread's last failure; `count` is the number of its calls of host->fail. */
struct contract_failure { ctrt_status status; uint64_t count; char text[1024]; };
extern __thread struct contract_failure contract_failure;
/* Blocks of host->alloc that are not freed. */
long contract_host_blocks(void);
/* Makes the n-th call of host->alloc from now on fail, and only that; 0: none. */
void contract_host_fail(long n);
/* Whether that call was made. */
bool contract_host_failed(void);

/* ---- the backend under test, contract_backend.c ---- */

enum { NEEDS_OPEN = 1, NEEDS_QUEUES = 2, NEEDS_KERNEL = 4 };

struct contract_backend {
    const ctrt_backend *table;
    const ctrt_device_table *device;
    const ctrt_memory_table *memory;
    const ctrt_queue_table *queue;  /* NULL on a synchronous device */
    ctrt_device_info info;
    void *handle;
    void *stream;                   /* a queue; NULL on a synchronous device */
};
extern struct contract_backend contract_dev;

void dev_open(void);
void *dev_alloc(size_t bytes);
void dev_free(void *address, size_t bytes);
void dev_copy(void *queue, void *to, const void *from, size_t bytes, int kind);
void dev_fill(void *queue, void *address, int byte, size_t bytes);
void dev_wait(void *queue);
void dev_upload(void *to, const void *from, size_t bytes);      /* both on contract_dev.stream, and wait */
void dev_download(void *to, const void *from, size_t bytes);
void dev_expect_bytes(const void *address, size_t bytes, int byte, const char *what);
void *dev_queue(void);
/* A kernel of `op` for f32, or NULL. */
const ctrt_kernel *dev_kernel(const char *op);

/* An elementwise call in memory of the device: out = x op y, or op x. */
struct dev_call {
    const ctrt_kernel *kernel;
    float (*reference)(float x, float y);
    int64_t n;
    bool scalar;                    /* the last call was SCALAR */
    float *x, *y, *out, *host;      /* on the device; host: 3 n elements */
};
void dev_call_new(struct dev_call *call, int64_t n, unsigned seed);
/* Runs the kernel on the queue. What the call points to is overwritten after the kernel has returned. IN_PLACE: the
 * output is x. IN_PLACE_TWICE: y is x, too. SCALAR: operand y is a number, the first element of y, if the kernel has
 * two inputs. */
enum dev_form { PLAIN, SCALAR, IN_PLACE, IN_PLACE_TWICE };
void dev_call_run(struct dev_call *call, void *queue, enum dev_form form);
/* Compares the output with the reference, for PLAIN and SCALAR. */
void dev_call_check(struct dev_call *call, void *queue);

extern const struct contract_check contract_kernel_checks[], contract_queue_checks[];

#endif
