/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_COMM_PLUGIN_H
#define CTRT_COMM_PLUGIN_H
#include "ctrt/comm.h"
#include "ctrt/plugin.h"
CTRT_BEGIN_DECLS
typedef enum ctrt_collective {
    CTRT_COLLECTIVE_BARRIER, CTRT_COLLECTIVE_BROADCAST, CTRT_COLLECTIVE_ALL_REDUCE, CTRT_COLLECTIVE_REDUCE,
    CTRT_COLLECTIVE_ALL_GATHER, CTRT_COLLECTIVE_GATHER, CTRT_COLLECTIVE_SCATTER, CTRT_COLLECTIVE_REDUCE_SCATTER,
    CTRT_COLLECTIVE_ALL_TO_ALL, CTRT_COLLECTIVE_SEND, CTRT_COLLECTIVE_RECV,
    CTRT_COLLECTIVE_EMPTY,
    CTRT_COLLECTIVE_COUNT
} ctrt_collective;
typedef struct ctrt_comm_signature {
    uint64_t sequence;
    uint64_t count;
    uint32_t collective;
    uint32_t op;
    uint32_t dtype;
    int32_t root;
} ctrt_comm_signature;
typedef struct ctrt_comm_call {
    size_t size;
    ctrt_comm_signature signature;
    int32_t peer;
    uint32_t reserved;
    size_t bytes;
    const void *send;
    void *receive;
    ctrt_tensor *send_tensor;
    ctrt_tensor *receive_tensor;
    void *queue;
    void *state;
} ctrt_comm_call;
typedef struct ctrt_comm_config {
    size_t size;
    int32_t rank, world;
    const char *name;
    ctrt_device *device;
    ctrt_store *store;
    double timeout;
    void *state;
    ctrt_status (*poll)(void *state);
    ctrt_status (*mismatch)(void *state, const ctrt_comm_signature *signatures);
    int32_t epoch;
    int32_t elastic;
} ctrt_comm_config;
enum {
    CTRT_COMM_ENQUEUES = 1,
    CTRT_COMM_CAPTURES = 2,
    CTRT_COMM_DEVICE_MEMORY = 4
};
typedef struct ctrt_comm_engine {
    size_t size;
    uint32_t flags;
    uint32_t reserved;
    ctrt_status (*create)(void **comm, const ctrt_comm_config *config);
    void (*destroy)(void *comm);
    ctrt_status (*run)(void *comm, const ctrt_comm_call *call);
    void (*abort)(void *comm);
    bool (*reaches_device)(void *comm, const ctrt_comm_call *call);
    ctrt_status (*bootstrap)(int32_t *rank, int32_t *size, void *data, size_t bytes);
    bool (*connects)(int32_t world, int32_t hosts, int32_t processes);
    ctrt_status (*alloc)(void *comm, void **address, size_t bytes);
    void (*free)(void *comm, void *address);
    ctrt_status (*poll_error)(void *comm);
    ctrt_status (*derive)(void **comm, const ctrt_comm_config *config, void *parent, const int32_t *ranks,
                          int32_t color);
} ctrt_comm_engine;
CTRT_END_DECLS
#endif
