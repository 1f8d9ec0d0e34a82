/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/share.h: tensors that several processes use at the same time, and queues between processes.
 *
 *     ctrt_queue *queue = NULL;
 *     CTRT_TRY(ctrt_queue_new(&queue, 16));
 *     if (fork() == 0) {                                   // a producer
 *         ...
 *         CTRT_TRY(ctrt_queue_put(queue, &batch, 1, NULL, 0, -1));
 *         _exit(0);
 *     }
 *     int count = 1;
 *     CTRT_TRY(ctrt_queue_get(&batch, &count, NULL, NULL, queue, 10));     // the same memory, not a copy
 *
 * Memory. Shared tensors of the cpu are in files without a name (memfd), of which processes pass each other
 * descriptors. The kernel frees the memory when no process uses it any more, also if processes are killed; there is no
 * daemon and no name that could be left over. Memory that two processes write without synchronisation has the values
 * that the last stores left, as between threads. A version counter (ctrt_tensor_version) counts the writes of its own
 * process.
 *
 * Fork. The child of a fork can use the tensors and the queues of its parent. Shared tensors are the same memory in
 * both processes. All others are copies, except batches of a data loader with worker processes or pinned memory. The
 * parent's loader writes later batches to their memory, so clone (ctrt_clone) what a child needs before the fork. A
 * device other than the cpu cannot be used in the child if the parent used it before (CTRT_ERR_FORKED). */
#ifndef CTRT_SHARE_H
#define CTRT_SHARE_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

/* Moves the memory of a tensor of the cpu to memory that processes can share, as torch.Tensor.share_memory_(). The
 * values, and the views of the tensor, remain as they are, but addresses from ctrt_tensor_data are invalid afterwards.
 * No effect on memory that is shared already, and on tensors of cuda. The memory remains shared as long as it exists,
 * and is not counted by the statistics of the device. Processes that are forked from now on use the same memory. Each
 * call that moves a tensor needs one descriptor (ulimit -n) as long as the memory exists.
 *
 * No other thread may use the tensor or its views during the call. Errors, after which the tensor is unchanged:
 * CTRT_ERR_OUT_OF_MEMORY, CTRT_ERR_IO if there is no descriptor left, CTRT_ERR_NOT_SUPPORTED for other devices and for
 * pinned memory, CTRT_ERR_STATE if another library has the address (ctrt_to_dlpack). */
CTRT_API ctrt_status ctrt_tensor_share_(ctrt_tensor *tensor);
/* Returns whether processes can share the memory of the tensor: it was moved by ctrt_tensor_share_, or received from
 * another process, or the tensor has no elements, or the backend of its device can export memory (cuda). False for
 * NULL. */
CTRT_API bool ctrt_tensor_is_shared(const ctrt_tensor *tensor);
/* Moves all parameters and buffers of a module, and the gradients that exist already, like ctrt_tensor_share_, but to
 * one file, which needs one descriptor. Gradients that are created later are not shared, so processes that train one
 * module have gradients of their own. On failure nothing was moved. */
CTRT_API ctrt_status ctrt_module_share(ctrt_module *module);

/* ---- queues ---- */

/* A queue that processes share. Any number of processes and threads may put messages and get them; each message is
 * received once. A process gets a queue by fork, or by ctrt_queue_from_descriptors. If a process is killed, the queue
 * works on; a message that the process had received is lost. */
typedef struct ctrt_queue ctrt_queue;

enum {
    CTRT_QUEUE_MAX_TENSORS = 64,            /* the most tensors, */
    CTRT_QUEUE_MAX_BYTES = 4096             /* and the most bytes besides them in a message */
};

/* Creates a queue for at most `capacity` messages (>= 1) that were put and not received yet. With more than about 100
 * messages, the system's buffer for the socket may be full earlier (net.core.wmem_max). On success *out owns it. */
CTRT_API ctrt_status ctrt_queue_new(ctrt_queue **out, int capacity);
/* Closes the queue in this process, frees it, and sets *queue to NULL. Messages remain for other processes. */
CTRT_API void ctrt_queue_release(ctrt_queue **queue);

/* Puts a message of `count` tensors and `size` bytes. Tensors of the cpu that are not shared are moved first, like
 * ctrt_tensor_share_. The message refers to their memory, so the sender may release the tensors at once. Tensors of
 * cuda need CTRT_CUDA_SHARE=yes; the call waits for the work that uses them, and their memory is not reused while
 * another process uses it.
 *
 * `seconds`: how long to wait while the queue is full; negative: without limit. Errors: CTRT_ERR_COMM when that time is
 * over. CTRT_ERR_STATE if no process can receive the message any more. CTRT_ERR_AUTOGRAD for a tensor that requires
 * grad and is not a leaf (send the result of ctrt_detach). CTRT_ERR_NOT_SUPPORTED for other devices, and for received
 * tensors of cuda. Those of ctrt_tensor_share_. Thread-safe. */
CTRT_API ctrt_status ctrt_queue_put(ctrt_queue *queue, ctrt_tensor *const *tensors, int count, const void *bytes,
                                    size_t size, double seconds);
/* Receives the oldest message. In: *count and *size are the room of `tensors` and of `bytes`; out: the numbers of the
 * message. NULL `count` or `size`: no room. Each tensor follows the assignment rule, so initialise `tensors` with NULL.
 *
 * A received tensor has the dtype, shape, strides and requires_grad of the sent one, and the same memory. A tensor
 * without elements arrives as a contiguous one of the cpu. Tensors of
 * one message that shared a storage share one again.
 *
 * Errors: CTRT_ERR_COMM if no message arrives within `seconds` (negative: no limit). CTRT_ERR_STATE if the queue is
 * empty and no process can put messages any more. CTRT_ERR_INVALID_ARGUMENT if the arrays are too small: *count and
 * *size are set, and the next call of this process gets the message. CTRT_ERR_IO if the process may have no more open
 * files, and CTRT_ERR_OUT_OF_MEMORY; after these two the message is lost. Thread-safe. */
CTRT_API ctrt_status ctrt_queue_get(ctrt_tensor **tensors, int *count, void *bytes, size_t *size, ctrt_queue *queue,
                                    double seconds);
/* Declares that this process will not put messages (or get them) any more. When all processes have done so, or ended,
 * ctrt_queue_get (or ctrt_queue_put) of the others fails with CTRT_ERR_STATE, as at the end of a pipe. Call it right
 * after fork() in each process that only gets (or only puts). No other thread may use the queue during the call. */
CTRT_API ctrt_status ctrt_queue_close_put(ctrt_queue *queue);
CTRT_API ctrt_status ctrt_queue_close_get(ctrt_queue *queue);

/* For processes that are not forked: writes three descriptors of the queue, which belong to the queue and are closed by
 * exec. Pass duplicates of them to another process, by exec or through a Unix socket. Closed ends are -1. */
CTRT_API ctrt_status ctrt_queue_descriptors(int descriptors[3], const ctrt_queue *queue);
/* Creates a queue from three such descriptors. It owns them, unless the call fails. CTRT_ERR_FORMAT if they are not
 * descriptors of a queue. */
CTRT_API ctrt_status ctrt_queue_from_descriptors(ctrt_queue **out, const int descriptors[3]);

CTRT_END_DECLS

#endif
