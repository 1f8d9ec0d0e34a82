/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/comm.h: process groups: communicators, collectives, key-value stores.
 *
 * A communicator (ctrt_comm) is one rank's membership in a group of ranks. A rank is a process, or a thread of a
 * process, and has one device. All ranks of a group call the same collectives in the same order. The transport is a
 * plugin of kind `comm`, the engine: `host` for threads and processes of one machine, `mpi` for clusters, `nccl` for
 * NVIDIA GPUs.
 *
 *     CTRT_TRY(ctrt_comm_new(&comm, NULL));               // rank, size and engine from the environment
 *     CTRT_TRY(ctrt_comm_all_reduce(NULL, comm, tensor, CTRT_COMM_SUM));
 *
 * Collectives. A tensor is on the communicator's device and contiguous (CTRT_ERR_DEVICE, CTRT_ERR_SHAPE). `in` and
 * `out` must not overlap (CTRT_ERR_INVALID_ARGUMENT). Collectives are not recorded by autograd; they change the tensors
 * that they write in place (ctrt_tensor_version). On an asynchronous device a collective is ordered with other work on
 * its tensors as an op on the current stream is. The first argument, `work`, may be NULL: the call returns when the
 * collective is done (on an asynchronous device: when it is enqueued). Otherwise the collective runs concurrently,
 * *work receives its handle by the assignment rule, and the tensors must not be used before ctrt_work_wait.
 *
 * Failures. Every collective carries its number, kind, reduction, dtype, count and root; if they differ between ranks,
 * the collective fails with CTRT_ERR_STATE on all ranks, with a message that lists them. If a rank does not arrive
 * within the timeout or its process has ended, the collective fails on all other ranks with CTRT_ERR_COMM and a report
 * (ctrt_comm_report) that names the rank. After a failure every call on the communicator returns that error. With an
 * engine that only enqueues collectives (`nccl`), a failure is detected after the call has returned. Then the failure
 * also becomes the error of the streams on which collectives are incomplete (ctrt_stream_reset), and if the ranks call
 * different collectives, these fail at the timeout.
 *
 * In the child of a fork, calls on the parent's communicators and works return CTRT_ERR_FORKED; they can be released.
 *
 * In a capture (ctrt_capture_begin) collectives and messages are recorded. Each replay calls them again, with new
 * numbers, so all ranks must replay the same collectives. ctrt_work_wait is also recorded; a replay waits at its end
 * for works without a recorded ctrt_work_wait. The graph owns references to the communicator and the tensors, whose
 * memory is not reused within the captured step. If the communicator has failed, replays return its error. Wait for
 * works from before a capture before it begins. ctrt_comm_barrier, ctrt_comm_empty and ctrt_comm_split fail with
 * CTRT_ERR_STATE, and so does the capture. With the engine `nccl` collectives are part of the device's graph. Then all
 * ranks must replay their graphs in the same order, and release them before the communicator.
 *
 * A communicator must not be used by two threads at the same time, except ctrt_comm_abort, ctrt_comm_report and
 * functions that only read properties. */
#ifndef CTRT_COMM_H
#define CTRT_COMM_H

#include "ctrt/stream.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_comm ctrt_comm;
typedef struct ctrt_work ctrt_work;
typedef struct ctrt_store ctrt_store;

#define CTRT_DEFAULT_SECONDS -1.0

/* ---- key-value stores --------------------------------------------------------------------------------------------
 *
 * Ranks find each other through a store: a map from keys to byte strings that all of them can access. Keys are text of
 * 1 to 256 bytes, values have at most 16 MiB (CTRT_ERR_INVALID_ARGUMENT); a store has at most 1 GiB of values and
 * 1,048,576 keys (CTRT_ERR_OUT_OF_MEMORY). All functions are thread-safe, and a thread that waits does not block others
 * with the same store. `seconds` is how long a call waits; 0: not at all; negative (CTRT_DEFAULT_SECONDS): 300. Calls
 * without it use that of ctrt_store_open.
 *
 * Errors: CTRT_ERR_COMM if the store cannot be reached or does not answer within that time, and at once if the process
 * that serves has ended or released it. CTRT_ERR_FORKED in the child of a fork for stores that the parent has opened;
 * the child can open them again. */

/* Opens the store `address`:
 *
 *   tcp://HOST:PORT   a server on HOST ([HOST] for an IPv6 address). If `serve`, this process runs the server, in a
 *                     thread; it listens on the address HOST only, and PORT 0 lets the system choose one
 *                     (ctrt_store_address). Clients retry until the server answers. With a shared secret
 *                     (parameter CTRT_STORE_SECRET), server and clients authenticate each other, and others are
 *                     rejected; the data is not encrypted. Without a secret any process that can connect can use the
 *                     store. ctrt_comm_new checks in addition that the store is that of its job.
 *   file://PATH       a file on a file system that all ranks share and that supports locks. The process with `serve`
 *                     creates it, and removes it when it releases the store; others wait for that. It must not exist
 *                     before, or be empty.
 *   local://NAME      in this process, for ranks that are threads. `serve` has no effect.
 *
 * On success *out owns one reference. CTRT_ERR_STATE if another store is served at this address already. */
CTRT_API ctrt_status ctrt_store_open(ctrt_store **out, const char *address, bool serve, double seconds);
CTRT_API ctrt_store *ctrt_store_retain(ctrt_store *store);
/* Releases the reference in *store and sets *store to NULL. The last one stops the server that it runs. */
CTRT_API void ctrt_store_release(ctrt_store **store);
/* Returns the address with which other processes open the store; NULL for NULL. Valid as long as the store. */
CTRT_API const char *ctrt_store_address(const ctrt_store *store);
/* Sets a key, replacing its value. */
CTRT_API ctrt_status ctrt_store_set(ctrt_store *store, const char *key, const void *value, size_t bytes);
/* Waits until the key is set and writes its value to *value[*bytes], followed by a NUL byte that is not counted; the
 * caller frees it with free(). `value` and `bytes` may be NULL. CTRT_ERR_NOT_FOUND, with a message that names the key,
 * if the store answers that the key was not set in time. */
CTRT_API ctrt_status ctrt_store_get(ctrt_store *store, const char *key, void **value, size_t *bytes, double seconds);
/* Adds `amount` to the number that the key holds as decimal text (0 if it is not set) and writes the sum to *sum, which
 * may be NULL. Atomic. CTRT_ERR_STATE if the value is not a number, CTRT_ERR_OVERFLOW if the sum is not an int64_t. */
CTRT_API ctrt_status ctrt_store_add(ctrt_store *store, const char *key, int64_t amount, int64_t *sum);
/* Sets the key to `desired` if its value is `expected` (NULL: if it is not set), and writes the value that it has
 * afterwards, like ctrt_store_get; *value is NULL if the key is not set. Atomic. */
CTRT_API ctrt_status ctrt_store_compare_set(ctrt_store *store, const char *key, const void *expected,
                                            size_t expected_bytes, const void *desired, size_t desired_bytes,
                                            void **value, size_t *bytes);
/* Removes the key; *existed, which may be NULL, receives whether it was set. */
CTRT_API ctrt_status ctrt_store_delete(ctrt_store *store, const char *key, bool *existed);

/* ---- communicators ----------------------------------------------------------------------------------------------- */

/* 0 and NULL select the defaults in brackets. */
typedef struct ctrt_comm_options {
    size_t size;
    const char *engine;                 /* [parameter CTRT_COMM, else `mpi` under mpirun and srun, else `host`] */
    ctrt_device *device;                /* [the device of type CTRT_DEVICE whose index is the local rank, modulo their
                                         * number; a warning names ranks that share one, unless it is the cpu] */
    ctrt_store *store;                  /* [the store that the environment names, see ctrt_comm_new] */
    int rank, world_size;               /* world_size 0: [both from the environment] */
    double timeout;                     /* seconds for one collective [parameter CTRT_COMM_TIMEOUT, 600] */
    const char *name;                   /* of the group, for messages; the same on all ranks ["world"] */
} ctrt_comm_options;
#define CTRT_COMM_OPTIONS CTRT_SIZED_(ctrt_comm_options)

/* Joins a group; waits until all ranks have joined. `options` NULL: all defaults. The environment gives rank, size,
 * local rank and local size in one of these forms: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and
 * MASTER_ADDR and MASTER_PORT of the store), Open MPI's, MPICH's (PMI) or Slurm's variables; without any of them rank 0
 * of 1. CTRT_STORE names a store by its address instead.
 *
 * With CTRT_JOIN=yes the process joins the group of this name that exists already and has CTRT_ON_FAILURE=shrink; rank
 * and size are then those that its ranks have decided when they admitted it (ctrt_comm_shrink).
 *
 * Errors: CTRT_ERR_COMM if ranks are missing after the timeout, with their numbers. CTRT_ERR_STATE if another process
 * has joined with this rank, if the store belongs to another job (CTRT_JOB), or if its address is in use.
 * CTRT_ERR_NOT_FOUND for an engine that does not exist. CTRT_ERR_INVALID_ARGUMENT for malformed variables, which the
 * message names. */
CTRT_API ctrt_status ctrt_comm_new(ctrt_comm **out, const ctrt_comm_options *options);
/* Creates a group of `n` ranks in this process, one per element of `devices`, and writes their communicators to out[n].
 * Use each in a thread of its own. Of `options` only engine [host], timeout and name are used. */
CTRT_API ctrt_status ctrt_comm_new_local(ctrt_comm **out, ctrt_device *const *devices, int n,
                                         const ctrt_comm_options *options);
/* Creates the groups of the ranks that pass the same `color`, ordered by `key`, then by rank in `comm`. Collective. A
 * rank with a negative color joins no group; its *out becomes NULL. If the engine creates the groups from the
 * connections of `comm` (`nccl`), `comm` fails as well if one of them fails. */
CTRT_API ctrt_status ctrt_comm_split(ctrt_comm **out, ctrt_comm *comm, int color, int key);
CTRT_API ctrt_comm *ctrt_comm_retain(ctrt_comm *comm);
/* Releases the reference in *comm and sets *comm to NULL. The last one waits for this rank's collectives that still
 * run, and leaves the group. The other ranks need not leave it. */
CTRT_API void ctrt_comm_release(ctrt_comm **comm);

/* Properties; -1, 0 or NULL for NULL. The strings are valid as long as the communicator. */
CTRT_API int ctrt_comm_rank(const ctrt_comm *comm);
CTRT_API int ctrt_comm_size(const ctrt_comm *comm);
CTRT_API ctrt_device *ctrt_comm_device(const ctrt_comm *comm);
CTRT_API const char *ctrt_comm_engine_name(const ctrt_comm *comm);
CTRT_API const char *ctrt_comm_name(const ctrt_comm *comm);

/* Rank, size, local rank and local size that the environment gives (see ctrt_comm_new). Any pointer may be NULL.
 * Without variables for local rank and size, all ranks count as ranks of one machine. */
CTRT_API ctrt_status ctrt_comm_environment(int *rank, int *size, int *local_rank, int *local_size);

/* Ends the communicator on all ranks: running and later collectives fail with CTRT_ERR_COMM and a message that contains
 * `reason`. For programs that cannot go on. From any thread. */
CTRT_API void ctrt_comm_abort(ctrt_comm *comm, const char *reason);
/* Returns the communicator's error without waiting; CTRT_OK if it has none. Between the failure and the end of its
 * report: CTRT_ERR_COMM with a message that says so. */
CTRT_API ctrt_status ctrt_comm_error(ctrt_comm *comm);
/* Writes the state of the group as a JSON text: ranks with host, process and last completed collective, the collective
 * that failed, who arrived and who did not, and this rank's last 1,024 collectives (the flight record). The caller
 * frees *json with free(). At the first failure the same text is written to the file that CTRT_COMM_REPORT names, if it
 * is set ("report-%r.json": %r is the rank). From any thread. */
CTRT_API ctrt_status ctrt_comm_report(char **json, ctrt_comm *comm);

/* ---- ranks that are lost, and ranks that join ----------------------------------------------------------------------
 *
 * After the failure of a communicator the ranks that are left can form a new one. Its epoch is higher by 1, its name
 * and the names of its keys in the store contain the epoch ("world~1"), and nothing of an older epoch reaches it. */

/* Forms the group of the ranks that are left, in their old order, and of the processes that wait to join, which come
 * last. Every rank that goes on calls it, on the communicator that has failed. A communicator that has not failed ends
 * on all ranks, as by ctrt_comm_abort. Rank and size of *out differ from those of `comm`, which the caller releases.
 *
 * The ranks agree through the store of `comm`. A rank is lost if its process has ended, if it has released `comm`, or
 * if its process is stopped (5 s). It is also lost if it does not call the function within the timeout of the group (at
 * most 5 s if it has exceeded that in a collective). If further ranks are lost meanwhile, the agreement begins again
 * with another epoch.
 *
 * Errors: CTRT_ERR_COMM if the store has ended, because its server was one of the lost ranks, and if the other ranks
 * have gone on without this one, which did not answer in time. Then `comm` can only be released.
 * CTRT_ERR_OUT_OF_MEMORY, after which the function can be called again, unless it has begun to connect the ranks.
 * CTRT_ERR_NOT_SUPPORTED if the engine cannot connect the ranks that are left. CTRT_ERR_STATE if this rank has left
 * `comm` by an earlier call, or does so in another thread. */
CTRT_API ctrt_status ctrt_comm_shrink(ctrt_comm **out, ctrt_comm *comm);
/* Returns how often the group was rebuilt, 0 at first; -1 for NULL. */
CTRT_API int ctrt_comm_epoch(const ctrt_comm *comm);
/* Returns the rank in the epoch before of rank `rank` of `comm`; -1 if it has joined since, or for a wrong argument. */
CTRT_API int ctrt_comm_previous_rank(const ctrt_comm *comm, int rank);
/* Writes the number of processes that wait to join, which the next ctrt_comm_shrink admits: processes with the
 * parameter CTRT_JOIN=yes in ctrt_comm_new, of groups of ctrt_comm_new with CTRT_ON_FAILURE=shrink. Only rank 0 asks
 * the store, at most every 0.2 s; the others return 0. Errors: CTRT_ERR_COMM if the store does not answer. */
CTRT_API ctrt_status ctrt_comm_joining(int *count, ctrt_comm *comm);

/* ---- tensors in shared memory ------------------------------------------------------------------------------------ */

/* Creates an uninitialised contiguous tensor on the communicator's device, in memory that all ranks can access.
 * Collectives read and write it without copies through other memory. The engines `host` and `mpi` have such memory for
 * processes of one machine, on the cpu, and the engine `nccl` with CTRT_NCCL_REGISTER=yes. With other engines and
 * devices, or if there is not enough such memory (logged as a warning), the tensor is an ordinary one. Collective: all
 * ranks pass the same number of elements and the same dtype, otherwise CTRT_ERR_STATE on all of them. A collective is
 * faster only if all tensors that it reads, on all ranks, were created by this function for its communicator.
 *
 * On success *out owns one reference. The memory belongs to this rank. It is freed with the last tensor that uses it,
 * without waiting for other ranks, in any order, and also after the communicator was released. The address range of all
 * ranks' tensors stays mapped in all processes until all of them are freed. The memory is not part of the device's
 * memory statistics, and the child of a fork shares it with its parent.
 *
 * With CTRT_NCCL_REGISTER=yes the tensors that a collective reads and writes must be of this function on all ranks,
 * with the same offsets, or on none; otherwise the collective is undefined. The end of a tensor waits for its
 * collectives. */
CTRT_API ctrt_status ctrt_comm_empty(ctrt_tensor **out, ctrt_comm *comm, ctrt_ints shape, ctrt_dtype dtype);

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* How elements are combined. AVERAGE is the sum divided by the size, for floating dtypes. For bool, SUM and MAX are
 * logical or, PRODUCT and MIN logical and. f16 and bf16 are added in f32. Sums are in the order of ranks on every rank,
 * so all ranks get the same bits, unless the engine documents otherwise. */
typedef enum ctrt_comm_op {
    CTRT_COMM_SUM, CTRT_COMM_PRODUCT, CTRT_COMM_MIN, CTRT_COMM_MAX, CTRT_COMM_AVERAGE
} ctrt_comm_op;

/* Copies rank `root`'s tensor to all ranks. */
CTRT_API ctrt_status ctrt_comm_broadcast(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int root);
/* Replaces the tensor by the reduction over all ranks, on all ranks or, ctrt_comm_reduce, on rank `root`; elsewhere it
 * keeps its values. */
CTRT_API ctrt_status ctrt_comm_all_reduce(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, ctrt_comm_op op);
CTRT_API ctrt_status ctrt_comm_reduce(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, ctrt_comm_op op,
                                      int root);
/* Writes the tensors of all ranks, one after the other, to `out`, on all ranks or on rank `root` (elsewhere `out` is
 * NULL). `out` has `size` times the elements of `in`, in any shape. */
CTRT_API ctrt_status ctrt_comm_all_gather(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in);
CTRT_API ctrt_status ctrt_comm_gather(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in, int root);
/* Cuts the tensor `in` into `size` equal parts and writes part r to `out` of rank r: of rank root's tensor (elsewhere
 * `in` is NULL), or, ctrt_comm_reduce_scatter, of the reduction over all ranks. */
CTRT_API ctrt_status ctrt_comm_scatter(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in, int root);
CTRT_API ctrt_status ctrt_comm_reduce_scatter(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in,
                                              ctrt_comm_op op);
/* Part r of `in` becomes the part of this rank in rank r's `out`; both have `size` equal parts. */
CTRT_API ctrt_status ctrt_comm_all_to_all(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *out, ctrt_tensor *in);
/* Copy a tensor from one rank to another. Calls between two ranks match in order. Sends, receives and collectives do
 * not wait for each other; two ranks that send to each other at the same time need `work` for one of the two calls. */
CTRT_API ctrt_status ctrt_comm_send(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int to);
CTRT_API ctrt_status ctrt_comm_recv(ctrt_work **work, ctrt_comm *comm, ctrt_tensor *tensor, int from);
/* Returns when all ranks have called it, and when this rank's work before it is done. */
CTRT_API ctrt_status ctrt_comm_barrier(ctrt_comm *comm);

/* Waits for the collective and returns its error: on a synchronous device until it is done, else the calling thread's
 * current stream waits, as for an event. */
CTRT_API ctrt_status ctrt_work_wait(ctrt_work *work);
/* Sets *done to whether the collective has ended. Does not wait. Returns its error, if it has one. */
CTRT_API ctrt_status ctrt_work_query(ctrt_work *work, bool *done);
/* Releases the reference in *work and sets *work to NULL. The collective continues. */
CTRT_API void ctrt_work_release(ctrt_work **work);

CTRT_END_DECLS

#endif
