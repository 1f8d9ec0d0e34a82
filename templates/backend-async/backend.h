/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the backend `template`: an asynchronous device whose memory consists of opaque buffers.
 *
 *   plugin.c    the device, the tables, the plugin
 *   buffers.c   memory: buffers, and the addresses that stand for them
 *   queue.c     queues and events; a queue is a thread that runs commands
 *   kernels.c   kernels
 *
 * It simulates hardware: with a vendor's library, buffers.c allocates its buffers, queue.c uses its queues and events,
 * and the functions in kernels.c become its programs. */
#ifndef TEMPLATE_H
#define TEMPLATE_H

#include <ctrt/plugin.h>
#include <pthread.h>
#include <sys/types.h>

#define TOTAL_MEMORY ((size_t)1 << 30)

extern const ctrt_host *host;           /* the library's functions for plugins; set by init */

struct queue;

/* A buffer: the simulated vendor's handle. Only commands that run on a queue may use `contents`. */
struct buffer {
    size_t start, bytes;                /* the addresses that stand for it: offsets from device->addresses */
    char *contents;
};

struct device {
    int32_t index;
    pid_t process;                      /* that has opened the device */
    pthread_mutex_t lock;               /* for all of the following */
    pthread_cond_t changed;             /* a command is done or was added, or a queue ends */
    char *addresses;                    /* a range without memory: using an address on the host faults */
    struct buffer *buffers;             /* in order of addresses */
    size_t buffer_count, buffer_room, used;
    struct queue *queues;
    uint64_t next;                      /* number of the next command */
};

/* Fails with CTRT_ERR_FORKED in the child of a fork: it has no threads of queues. */
ctrt_status device_usable(const struct device *device);

/* ---- buffers.c ---- */

ctrt_status addresses_reserve(struct device *device);
void buffers_close(struct device *device);
extern const ctrt_memory_table memory_table;

/* Writes where the contents of [address, address + bytes) are, for commands. An address outside of all buffers is an
 * error that names `what`. */
ctrt_status contents_of(char **contents, struct device *device, const void *address, size_t bytes, const char *what);

/* ---- queue.c ---- */

/* A command. `run` is called by the queue's thread, with `arguments`; after a failure, which it describes in `why`, the
 * queue drops later commands. */
struct command {
    struct command *next;
    uint64_t number;                    /* among the device's commands */
    ctrt_status (*run)(void *arguments, char *why, size_t why_bytes);
    bool always;                        /* also after a failure of the queue */
    uint64_t sequence;                  /* ctrt_call.sequence, or 0 */
    _Alignas(16) char arguments[];
};

/* Returns a command with room for `bytes` of arguments; NULL after host->fail. */
struct command *command_new(ctrt_status (*run)(void *arguments, char *why, size_t why_bytes), size_t bytes);
/* Adds the command to the queue, which frees it. */
ctrt_status command_put(struct device *device, struct queue *queue, struct command *command);
void queues_close(struct device *device);
extern const ctrt_queue_table queue_table;

/* ---- kernels.c ---- */

extern const ctrt_kernel_table kernel_table;

#endif
