/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/api.h: the part of NCCL that this engine uses, declared here so that the engine builds without
 * nccl.h.
 *
 * Values and layouts are those of nccl.h since version 2.18. tests/softcuda/test-softcuda-facts.c compares them with
 * nccl.h if it is installed. */
#ifndef COMM_NCCL_API_H
#define COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>

typedef int nccl_result;                        /* ncclResult_t */
typedef struct ncclComm *nccl_handle;           /* ncclComm_t */
typedef struct { char bytes[128]; } nccl_id;    /* ncclUniqueId */

enum {                                          /* ncclResult_t */
    NCCL_OK = 0, NCCL_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2, NCCL_INTERNAL_ERROR = 3, NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7
};
enum {                                          /* ncclDataType_t */
    NCCL_I8 = 0, NCCL_U8 = 1, NCCL_I32 = 2, NCCL_I64 = 4, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9
};
enum { NCCL_SUM = 0, NCCL_PRODUCT = 1, NCCL_MAX = 2, NCCL_MIN = 3, NCCL_AVERAGE = 4 };      /* ncclRedOp_t */

/* ncclConfig_t of version 2.18. Later versions have more members, and accept this one by its size and version. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} nccl_config;

#define NCCL_UNSET INT_MIN                      /* NCCL_CONFIG_UNDEF_INT */
#define NCCL_OLDEST 21800                       /* version 2.18.0 */
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_NO_COLOR (-1)                      /* NCCL_SPLIT_NOCOLOR */
#define NCCL_SHRINK_PLAIN 0                     /* NCCL_SHRINK_DEFAULT */
#define NCCL_REVOKE_PLAIN 0                     /* NCCL_REVOKE_DEFAULT */

/* NCCL(member, name without "nccl", type of the result, parameters): functions that every supported version has. */
#define NCCL_FUNCTIONS(NCCL)                                                                                          \
    NCCL(version, GetVersion, nccl_result, (int *version))                                                            \
    NCCL(error_string, GetErrorString, const char *, (nccl_result result))                                            \
    NCCL(last_error, GetLastError, const char *, (nccl_handle comm))                                                  \
    NCCL(unique_id, GetUniqueId, nccl_result, (nccl_id *id))                                                          \
    NCCL(init, CommInitRankConfig, nccl_result,                                                                       \
         (nccl_handle *comm, int ranks, nccl_id id, int rank, nccl_config *config))                                   \
    NCCL(split, CommSplit, nccl_result,                                                                               \
         (nccl_handle comm, int color, int key, nccl_handle *child, nccl_config *config))                             \
    NCCL(finalize, CommFinalize, nccl_result, (nccl_handle comm))                                                     \
    NCCL(destroy, CommDestroy, nccl_result, (nccl_handle comm))                                                       \
    NCCL(abort, CommAbort, nccl_result, (nccl_handle comm))                                                           \
    NCCL(async_error, CommGetAsyncError, nccl_result, (nccl_handle comm, nccl_result *error))                         \
    NCCL(group_start, GroupStart, nccl_result, (void))                                                                \
    NCCL(group_end, GroupEnd, nccl_result, (void))                                                                    \
    NCCL(broadcast, Broadcast, nccl_result,                                                                           \
         (const void *send, void *receive, size_t count, int type, int root, nccl_handle comm, void *stream))         \
    NCCL(all_reduce, AllReduce, nccl_result,                                                                          \
         (const void *send, void *receive, size_t count, int type, int op, nccl_handle comm, void *stream))           \
    NCCL(reduce, Reduce, nccl_result,                                                                                 \
         (const void *send, void *receive, size_t count, int type, int op, int root, nccl_handle comm, void *stream)) \
    NCCL(all_gather, AllGather, nccl_result,                                                                          \
         (const void *send, void *receive, size_t count, int type, nccl_handle comm, void *stream))                   \
    NCCL(reduce_scatter, ReduceScatter, nccl_result,                                                                  \
         (const void *send, void *receive, size_t count, int type, int op, nccl_handle comm, void *stream))           \
    NCCL(send, Send, nccl_result,                                                                                     \
         (const void *data, size_t count, int type, int peer, nccl_handle comm, void *stream))                        \
    NCCL(receive, Recv, nccl_result, (void *data, size_t count, int type, int peer, nccl_handle comm, void *stream))

/* NCCL(member, name, type of the result, parameters, first version): functions that only later versions have. The
 * member is NULL if the library is older. */
#define NCCL_OPTIONAL_FUNCTIONS(NCCL)                                                                                 \
    NCCL(all_to_all, AlltoAll, nccl_result,                                                                           \
         (const void *send, void *receive, size_t count, int type, nccl_handle comm, void *stream), 22803)            \
    NCCL(mem_alloc, MemAlloc, nccl_result, (void **address, size_t bytes), 21901)                                     \
    NCCL(mem_free, MemFree, nccl_result, (void *address), 21901)                                                      \
    NCCL(register_buffer, CommRegister, nccl_result,                                                                  \
         (nccl_handle comm, void *address, size_t bytes, void **handle), 21901)                                       \
    NCCL(deregister_buffer, CommDeregister, nccl_result, (nccl_handle comm, void *handle), 21901)                     \
    NCCL(shrink, CommShrink, nccl_result,                                                                             \
         (nccl_handle comm, int *excluded, int count, nccl_handle *child, nccl_config *config, int flags), 22703)     \
    NCCL(revoke, CommRevoke, nccl_result, (nccl_handle comm, int flags), 22807)

struct nccl_library {
#define NCCL(member, name, result, parameters, ...) result (*member) parameters;
    NCCL_FUNCTIONS(NCCL)
    NCCL_OPTIONAL_FUNCTIONS(NCCL)
#undef NCCL
};

#endif
