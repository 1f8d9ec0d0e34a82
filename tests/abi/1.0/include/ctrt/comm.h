/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_COMM_H
#define CTRT_COMM_H
#include "ctrt/stream.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_comm ctrt_comm;
typedef struct ctrt_work ctrt_work;
typedef struct ctrt_store ctrt_store;
#define CTRT_DEFAULT_SECONDS -1.0
CTRT_API ctrt_status ctrt_store_open(ctrt_store **out, const char *address, bool serve, double seconds);
CTRT_API ctrt_store *ctrt_store_retain(ctrt_store *store);
CTRT_API void ctrt_store_release(ctrt_store **store);
CTRT_API const char *ctrt_store_address(const ctrt_store *store);
CTRT_API ctrt_status ctrt_store_set(ctrt_store *store, const char *key, const void *value, size_t bytes);
CTRT_API ctrt_status ctrt_store_get(ctrt_store *store, const char *key, void **value, size_t *bytes, double seconds);
CTRT_API ctrt_status ctrt_store_add(ctrt_store *store, const char *key, int64_t amount, int64_t *sum);
CTRT_API ctrt_status ctrt_store_compare_set(ctrt_store *store, const char *key, const void *expected,
                                            size_t expected_bytes, const void *desired, size_t desired_bytes,
                                            void **value, size_t *bytes);
CTRT_API ctrt_status ctrt_store_delete(ctrt_store *store, const char *key, bool *existed);
typedef struct ctrt_comm_options {
    size_t size;
    const char *engine;
    ctrt_device *device;
    ctrt_store *store;
    int rank, world_size;
    double timeout;
    const char *name;
} ctrt_comm_options;
#define CTRT_COMM_OPTIONS CTRT_SIZED_(ctrt_comm_options)
CTRT_API ctrt_status ctrt_comm_new(ctrt_comm **out, const ctrt_comm_options *options);
CTRT_API ctrt_status ctrt_comm_new_local(ctrt_comm **out, ctrt_device *const *devices, int n,
                                         const ctrt_comm_options *options);
CTRT_API ctrt_status ctrt_comm_split(ctrt_comm **out, ctrt_comm *comm, int color, int key);
CTRT_API ctrt_comm *ctrt_comm_retain(ctrt_comm *comm);
CTRT_API void ctrt_comm_release(ctrt_comm **comm);
CTRT_API int ctrt_comm_rank(const ctrt_comm *comm);
CTRT_API int ctrt_comm_size(const ctrt_comm *comm);
CTRT_API ctrt_device *ctrt_comm_device(const ctrt_comm *comm);
CTRT_API const char *ctrt_comm_engine_name(const ctrt_comm *comm);
CTRT_API const char *ctrt_comm_name(const ctrt_comm *comm);
CTRT_API ctrt_status ctrt_comm_environment(int *rank, int *size, int *local_rank, int *local_size);
CTRT_API void ctrt_comm_abort(ctrt_comm *comm, const char *reason);
CTRT_API ctrt_status ctrt_comm_error(ctrt_comm *comm);
CTRT_API ctrt_status ctrt_comm_report(char **json, ctrt_comm *comm);
CTRT_API ctrt_status ctrt_comm_shrink(ctrt_comm **out, ctrt_comm *comm);
CTRT_API int ctrt_comm_epoch(const ctrt_comm *comm);
CTRT_API int ctrt_comm_previous_rank(const ctrt_comm *comm, int rank);
CTRT_API ctrt_status ctrt_comm_joining(int *count, ctrt_comm *comm);
CTRT_API ctrt_status ctrt_comm_empty(ctrt_tensor **out, ctrt_comm *comm, ctrt_ints shape, ctrt_dtype dtype);
typedef enum ctrt_comm_op {
    CTRT_COMM_SUM, CTRT_COMM_PRODUCT, CTRT_COMM_MIN, CTRT_COMM_MAX, CTRT_COMM_AVERAGE
} ctrt_comm_op;
CTRT_API ctrt_status ctrt_comm_broadcast(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int root);
CTRT_API ctrt_status ctrt_comm_all_reduce(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, ctrt_comm_op op);
CTRT_API ctrt_status ctrt_comm_reduce(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, ctrt_comm_op op,
                                      int root);
CTRT_API ctrt_status ctrt_comm_all_gather(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in);
CTRT_API ctrt_status ctrt_comm_gather(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in, int root);
CTRT_API ctrt_status ctrt_comm_scatter(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in, int root);
CTRT_API ctrt_status ctrt_comm_reduce_scatter(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in,
                                              ctrt_comm_op op);
CTRT_API ctrt_status ctrt_comm_all_to_all(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in);
CTRT_API ctrt_status ctrt_comm_send(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int to);
CTRT_API ctrt_status ctrt_comm_recv(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int from);
CTRT_API ctrt_status ctrt_comm_barrier(ctrt_comm *comm);
CTRT_API ctrt_status ctrt_work_wait(ctrt_work *work);
CTRT_API ctrt_status ctrt_work_query(ctrt_work *work, bool *done);
CTRT_API void ctrt_work_release(ctrt_work **work);
CTRT_END_DECLS
#endif
