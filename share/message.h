/* SPDX-License-Identifier: Apache-2.0 */
/* share/message.h: the messages of queues: tensors as descriptors of their memory, and bytes. */
#ifndef SHARE_MESSAGE_H
#define SHARE_MESSAGE_H

#include "ctrt/share.h"
#include "share/device_memory.h"
#include "share/share.h"

enum record_kind {
    RECORD_EMPTY,                           /* a storage without bytes */
    RECORD_HOST,                            /* memory/shared.h */
    RECORD_DEVICE                           /* share/device_memory.h */
};

/* One tensor of a message. */
struct record {
    uint8_t dtype, ndim, requires_grad, kind;
    uint32_t file, lease;                   /* indices of descriptors; `lease`: of a RECORD_DEVICE */
    uint32_t unused;                        /* 0 */
    uint64_t place, bytes;                  /* the storage's place in its segment, and its size */
    uint64_t start;                         /* of the first element, in bytes of the storage */
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    struct segment_name segment;            /* of a RECORD_DEVICE */
};
#define MESSAGE_MAX_FILES (2 * CTRT_QUEUE_MAX_TENSORS)

/* What a message consists of: the head, `count` records, `size` bytes; and `files` descriptors. */
struct message_head {
    uint32_t magic;
    uint32_t number;                        /* of the message, for the queue */
    uint32_t count, files, size;
    uint32_t unused;                        /* 0 */
};

struct message {
    struct message_head head;
    struct record records[CTRT_QUEUE_MAX_TENSORS];
    unsigned char bytes[CTRT_QUEUE_MAX_BYTES];
    int files[MESSAGE_MAX_FILES];
    bool borrowed[MESSAGE_MAX_FILES];       /* the descriptor is not the message's */
};

/* Makes a message of tensors and bytes, moving tensors that are not shared. On success the caller closes it after it
 * was sent (message_close). */
ctrt_status message_fill(struct message *message, ctrt_tensor *const *tensors, int count, const void *bytes,
                         size_t size);
/* Creates the tensors of a message and writes new references to tensors[head.count]. Consumes the descriptors, also on
 * failure. Every number in the message is checked, because it comes from another process. */
ctrt_status message_open(ctrt_tensor **tensors, struct message *message);

/* Sends a message without waiting. Returns an errno: EAGAIN if the buffer of the socket is full. */
int message_send(int socket, const struct message *message);
/* Receives a message without waiting. *error: an errno, EAGAIN if there is none, or 0; then the result says whether the
 * message is complete and well-formed, and the caller owns its descriptors. EPIPE: the other end is closed. */
ctrt_status message_receive(struct message *message, int *error, int socket);
/* Closes the descriptors of a message that it owns. */
void message_close(struct message *message);

#endif
