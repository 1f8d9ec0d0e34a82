/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/driver.h: a CUDA driver on the interpreter: the entry points that the cuda backend looks up. Types and
 * values are those of NVIDIA's CUDA Driver API reference, version 12.0.
 *
 * One thread executes all work of all streams, in the order in which it was enqueued. Any such order respects streams
 * and events. */
#ifndef PTX_DRIVER_H
#define PTX_DRIVER_H

#include "machine.h"

typedef int result;                         /* CUresult */
typedef unsigned long long address;         /* CUdeviceptr */

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    NO_BINARY = 209, INVALID_PTX = 218, PEER_UNSUPPORTED = 217, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
    OUT_OF_RESOURCES = 701, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907,
};

struct timing {
    atomic_int references;
    double when;                            /* milliseconds */
};

/* Work of a stream. */
struct work {
    enum { COPY, FILL, LAUNCH, CALL_HOST, RECORD, FREE_MEMORY, RUN_GRAPH } kind;
    void *to;
    const void *from;
    void *staging;                          /* freed afterwards */
    size_t bytes;
    unsigned char value;
    void (*function)(void *);
    void *argument;
    struct launch launch;
    struct timing *timing;
    struct graph *graph;
    struct work *next;
};

struct graph {
    atomic_int references;
    int mode;                               /* of the capture */
    bool invalid;
    unsigned long long id;
    struct stream *origin;
    struct work *first, **last;
    size_t count;
};

struct stream {
    unsigned long long ticket;              /* of its last work */
    struct graph *capture;
    bool unjoined;                          /* captured work for which the capture's origin has not waited */
    size_t captured;                        /* the capture's number of works when it was last recorded by an event */
    struct stream *next;
};

struct event {
    unsigned long long ticket;
    struct timing *timing;
    unsigned long long capture;             /* id of the capture in which it was last recorded; 0: none */
    struct stream *stream;                  /* that it recorded */
    bool times;
};

/* ---- stream.c ---- */

/* Enqueues the work, or adds it to the stream's capture. Takes the contents of *work. */
result driver_enqueue(struct stream *s, const struct work *work);
/* Waits until the work with this ticket, or all work, has been done. Returns the context's error. */
result driver_wait(unsigned long long ticket);
result driver_wait_all(void);
bool driver_done(unsigned long long ticket);
result driver_error(void);                  /* the sticky error of the context; 0: none */
/* CAPTURE_UNSUPPORTED, and the captures are invalid, if a capture forbids calls such as cuMemAlloc. */
result driver_unsafe(void);

result stream_create(struct stream **out, unsigned flags, int priority);
result stream_destroy(struct stream *s);
result stream_synchronize(struct stream *s);
result stream_query(struct stream *s);
result stream_wait(struct stream *s, struct event *e, unsigned flags);
result launch_host(struct stream *s, void (*function)(void *), void *argument);
result event_create(struct event **out, unsigned flags);
result event_destroy(struct event *e);
result event_record(struct event *e, struct stream *s);
result event_query(struct event *e);
result event_synchronize(struct event *e);
result event_elapsed(float *milliseconds, struct event *from, struct event *to);
result context_synchronize(void);

/* ---- graph.c ---- */

struct work *graph_append(struct graph *g, const struct work *work);
void graph_release(struct graph *g);
void graph_run(struct graph *g, void (*run)(struct work *));
/* Held, until the end of the scope, by every access of stream.capture and of the graph there: several threads may use
 * a stream. */
#define CAPTURES_LOCKED __attribute__((cleanup(captures_leave), unused)) const int locked_ = captures_enter()
int captures_enter(void);
void captures_leave(const int *unused);
bool capture_active(int least_mode);
void capture_invalidate_all(void);
struct graph *capture_find(unsigned long long id);
bool stream_leave_capture(struct graph *g);
result capture_begin(struct stream *s, int mode);
result capture_end(struct stream *s, struct graph **out);
result capture_state(struct stream *s, int *state);
result capture_info(struct stream *s, int *state, unsigned long long *id, struct graph **graph, const void **nodes,
                    size_t *count);
result graph_instantiate(struct graph **out, struct graph *g, unsigned long long flags);
result graph_launch(struct graph *g, struct stream *s);
result graph_exec_destroy(struct graph *g);
result graph_destroy(struct graph *g);
result graph_nodes(struct graph *g, void **nodes, size_t *count);

/* ---- allocate.c ---- */

struct location { int type, id; };
struct allocation_properties {
    int type, handle_types;
    struct location location;
    void *win32;
    unsigned char flags[8];
};
struct access { struct location location; int flags; };
struct pool_properties {
    int type, handle_types;
    struct location location;
    void *win32;
    unsigned char reserved[64];
};

bool host_memory_is_pinned(const void *memory, size_t bytes);
void driver_release(void *memory);          /* frees device memory; called by the thread that executes work */
result memory_info(size_t *free_bytes, size_t *total);
result memory_alloc(address *out, size_t bytes);
result memory_free(address memory);
result host_alloc(void **out, size_t bytes, unsigned flags);
result host_free(void *memory);
result host_register(void *memory, size_t bytes, unsigned flags);
result host_unregister(void *memory);
result host_device_address(address *out, void *memory, unsigned flags);
result copy_to_device(address to, const void *from, size_t bytes, struct stream *s);
result copy_to_host(void *to, address from, size_t bytes, struct stream *s);
result copy_on_device(address to, address from, size_t bytes, struct stream *s);
result copy_peer(address to, void *to_context, address from, void *from_context, size_t bytes, struct stream *s);
result fill_bytes(address to, unsigned char value, size_t bytes, struct stream *s);
result address_reserve(address *out, size_t bytes, size_t alignment, address wish, unsigned long long flags);
result address_free(address memory, size_t bytes);
result allocation_create(unsigned long long *out, size_t bytes, const struct allocation_properties *properties,
                         unsigned long long flags);
result allocation_release(unsigned long long allocation);
result allocation_granularity(size_t *bytes, const struct allocation_properties *properties, int option);
result allocation_export(void *handle, unsigned long long allocation, int type, unsigned long long flags);
result allocation_import(unsigned long long *out, void *handle, int type);
result map(address at, size_t bytes, size_t offset, unsigned long long allocation, unsigned long long flags);
result unmap(address at, size_t bytes);
result set_access(address at, size_t bytes, const struct access *access, size_t count);
result pool_create(void **pool, const struct pool_properties *properties);
result pool_destroy(void *pool);
result pool_set(void *pool, int attribute, void *value);
result pool_trim(void *pool, size_t kept);
result alloc_from_pool(address *out, size_t bytes, void *pool, struct stream *s);
result free_async(address memory, struct stream *s);

/* ---- kernel.c ---- */

extern struct module *driver_modules;
result library_load(struct module **out, const void *image, void *jit, void **jit_values, unsigned n_jit, void *options,
                    void **values, unsigned n);
result library_kernel(struct function **out, struct module *library, const char *name);
result kernel_set(int attribute, int value, struct function *kernel, int device);
result launch_kernel(struct function *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, unsigned shared, struct stream *s, void **parameters,
                     void **extra);

#endif
