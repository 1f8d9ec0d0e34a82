/* SPDX-License-Identifier: Apache-2.0 */
/* share/message.c: the messages of queues. */
#include "share/message.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "ctrt/autograd.h"
#include "device/device.h"
#include "tensor/create.h"

#define MAGIC 0x71747263u                   /* "crtq" */

void message_close(struct message *message)
{
    for (uint32_t i = 0; i < message->head.files; i++)
        if (message->files[i] >= 0 && !message->borrowed[i])
            close(message->files[i]);
    message->head.files = 0;
}

/* ---- sending ---- */

/* Returns the index of a descriptor in the message, adding it if necessary. */
static uint32_t message_add_file(struct message *message, int fd, bool borrowed)
{
    uint32_t i = 0;
    while (i < message->head.files && message->files[i] != fd)
        i++;
    message->files[i] = fd;
    message->borrowed[i] = borrowed;
    message->head.files = MAX(message->head.files, i + 1);
    return i;
}

static ctrt_status add_device_memory(struct message *message, struct record *record, ctrt_tensor *tensor)
{
    int memory = -1, lease = -1;
    CTRT_TRY(device_export(&record->segment, &record->place, &memory, &lease, tensor));
    record->kind = RECORD_DEVICE;
    record->file = message_add_file(message, memory, false);
    record->lease = message_add_file(message, lease, true);
    return CTRT_OK;
}

static ctrt_status message_add_tensor(struct message *message, ctrt_tensor *tensor, int index)
{
    char who[32];
    snprintf(who, sizeof who, "queue_put: tensor %d", index);
    if (tensor == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s is NULL", who);
    if (tensor->device->owner == DEVICE_ENDED)
        return ctrt_context(device_fail_forked(tensor->device), "%s", who);
    if (tensor_requires_grad(tensor) && !ctrt_tensor_is_leaf(tensor))
        return ctrt_fail(CTRT_ERR_AUTOGRAD, "%s is a non-leaf tensor that requires grad, and its graph cannot be sent "
                         "to another process; send the result of ctrt_detach", who);
    CTRT_TRY(tensor_share(who, tensor));
    const struct storage *storage = tensor->storage;
    const struct shared_segment *segment = shared_storage_segment(storage);
    struct record *record = &message->records[message->head.count++];
    *record = (struct record){ .dtype = tensor->view.dtype, .ndim = tensor->view.ndim, .bytes = storage->bytes,
                               .requires_grad = tensor_requires_grad(tensor) };
    if (segment != NULL) {
        record->kind = RECORD_HOST;
        record->file = message_add_file(message, segment->fd, true);
        record->place = (uint64_t)((const char *)storage->block.address - segment->address);
    } else if (storage->bytes > 0) {
        CTRT_TRY(ctrt_context(add_device_memory(message, record, tensor), "%s", who));
    }
    if (record->kind != RECORD_EMPTY)
        record->start = (uint64_t)((const char *)tensor->view.data - (const char *)storage->block.address);
    memcpy(record->shape, tensor->view.shape, tensor->view.ndim * sizeof record->shape[0]);
    memcpy(record->strides, tensor->view.strides, tensor->view.ndim * sizeof record->strides[0]);
    return CTRT_OK;
}

ctrt_status message_fill(struct message *message, ctrt_tensor *const *tensors, int count, const void *bytes,
                         size_t size)
{
    message->head = (struct message_head){ .magic = MAGIC, .size = (uint32_t)size };
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < count && status == CTRT_OK; i++)
        status = message_add_tensor(message, tensors[i], i);
    if (status != CTRT_OK)
        message_close(message);
    else if (size > 0)
        memcpy(message->bytes, bytes, size);
    return status;
}

/* Room for the descriptors of a message. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(MESSAGE_MAX_FILES * sizeof(int))];
};

int message_send(int socket, const struct message *message)
{
    union control control;
    const size_t files = message->head.files * sizeof(int);
    struct iovec parts[] = {
        { (void *)&message->head, sizeof message->head },
        { (void *)message->records, message->head.count * sizeof message->records[0] },
        { (void *)message->bytes, message->head.size },
    };
    struct msghdr header = { .msg_iov = parts, .msg_iovlen = COUNT_OF(parts) };
    if (files > 0) {
        memset(&control, 0, sizeof control);
        header.msg_control = &control;
        header.msg_controllen = CMSG_SPACE(files);
        control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(files), .cmsg_level = SOL_SOCKET,
                                           .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(&control.header), message->files, files);
    }
    return sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

/* ---- receiving ---- */

static ctrt_status fail_format(const char *what)
{
    return ctrt_fail(CTRT_ERR_FORMAT, "queue_get: %s in a message; was it put by another version of ctrt?", what);
}

/* Takes over the descriptors that arrived, which message_close closes. Returns their number. A descriptor that cannot
 * be moved above 2 is lost, as if the limit of open files had been reached before. */
static uint32_t take_files(struct message *message, struct msghdr *header)
{
    uint32_t files = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part != NULL; part = CMSG_NXTHDR(header, part)) {
        const bool rights = part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS;
        const uint32_t arrived = rights ? (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
        for (uint32_t i = 0; i < arrived; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if ((fd = fd_above_stdio(fd)) >= 0)
                message->files[files++] = fd;
            else
                header->msg_flags |= MSG_CTRUNC;
        }
    }
    memset(message->borrowed, 0, sizeof message->borrowed);
    return files;
}

/* Takes over the descriptors, moves the bytes behind `count` records to their place, and checks the sizes. */
static ctrt_status message_parse(struct message *message, struct msghdr *header, size_t received)
{
    const struct message_head sent = message->head;
    struct rlimit limit = { 0 };
    const uint32_t files = message->head.files = take_files(message, header);
    if (received < sizeof sent || sent.magic != MAGIC || sent.count > CTRT_QUEUE_MAX_TENSORS
        || sent.size > CTRT_QUEUE_MAX_BYTES
        || received != sizeof sent + sent.count * sizeof(struct record) + sent.size)
        return fail_format("wrong sizes");
    getrlimit(RLIMIT_NOFILE, &limit);
    if ((header->msg_flags & MSG_CTRUNC) && files < sent.files)
        return ctrt_fail(CTRT_ERR_IO, "queue_get: a message of %u tensors is lost, because the process may have %llu "
                         "open files (ulimit -n), and each shared storage needs one. Raise the limit, or release "
                         "tensors", sent.count, (unsigned long long)limit.rlim_cur);
    if (files != sent.files)
        return fail_format("wrong descriptors");
    memmove(message->bytes, (char *)message->records + sent.count * sizeof(struct record), sent.size);
    return CTRT_OK;
}

/* Whether a receive of 0 bytes means that no process can send any more. A packet of a peer may have 0 bytes too. */
static bool at_end(int socket, const struct msghdr *header)
{
    struct pollfd wanted = { .fd = socket };
    int waiting = 0;
    return header->msg_controllen == 0 && poll(&wanted, 1, 0) > 0 && (wanted.revents & POLLHUP)
           && ioctl(socket, FIONREAD, &waiting) == 0 && waiting == 0;
}

ctrt_status message_receive(struct message *message, int *error, int socket)
{
    union control control;
    struct iovec whole = { message, offsetof(struct message, files) };
    struct msghdr header = { .msg_iov = &whole, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control };
    message->head = (struct message_head){ 0 };
    const ssize_t received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *error = received < 0 ? errno : received == 0 && at_end(socket, &header) ? EPIPE : 0;
    if (*error != 0) {
        message->head.files = 0;
        return CTRT_OK;
    }
    ctrt_status status = message_parse(message, &header, (size_t)received);
    if (status != CTRT_OK)
        message_close(message);
    return status;
}

/* ---- creating the tensors ---- */

/* Checks that the tensor is within its storage. */
static ctrt_status message_check(const struct record *record, uint32_t files)
{
    int64_t strides[CTRT_MAX_DIMS], elements;
    ctrt_dtype dtype = (ctrt_dtype)record->dtype;
    const ctrt_ints shape = { record->shape, record->ndim };
    if (record->dtype == CTRT_DTYPE_DEFAULT || record->dtype >= DTYPE_COUNT || record->ndim > CTRT_MAX_DIMS
        || record->kind > RECORD_DEVICE || (record->kind != RECORD_EMPTY && record->file >= files)
        || (record->kind == RECORD_DEVICE && record->lease >= files)
        || (record->kind == RECORD_EMPTY) != (record->bytes == 0))
        return fail_format("a wrong tensor");
    CTRT_TRY(dtype_resolve(&dtype, "queue_get", dtype));
    CTRT_TRY(shape_check("queue_get", shape, dtype));
    CTRT_TRY(strides_import(strides, &elements, "queue_get", record->shape, record->strides, record->ndim, dtype));
    const uint64_t size = dtype_bytes(dtype), needed = (uint64_t)elements * size;
    if (record->start % size != 0 || record->start > record->bytes || needed > record->bytes - record->start)
        return fail_format("a tensor outside of its memory");
    return CTRT_OK;
}

/* Creates a tensor of a storage in a segment of host memory, which `*opened` is, or is opened from `fd` (then it
 * becomes -1). */
static ctrt_status host_import(ctrt_tensor **out, const struct record *record, struct shared_segment **opened, int *fd)
{
    ctrt_device *cpu;
    if (*opened == NULL) {
        const int file = *fd;
        *fd = -1;
        CTRT_TRY(shared_segment_open(opened, file));
    }
    struct shared_segment *segment = *opened;
    if (record->place % SHARED_ALIGN != 0 || record->place > segment->bytes
        || record->bytes > segment->bytes - record->place)
        return fail_format("a storage outside of its file");
    CTRT_TRY(device_cpu(&cpu));
    shared_segment_retain(segment);
    ctrt_status status = tensor_new_foreign(out, segment->address + record->place, record->bytes, record->shape,
                                            record->strides, record->ndim, (ctrt_dtype)record->dtype, cpu,
                                            shared_storage_free, segment, NULL);
    if (status != CTRT_OK)
        shared_segment_release(segment);
    return status;
}

static ctrt_status tensor_open(ctrt_tensor **tensors, struct message *message, uint32_t index,
                               struct shared_segment **segments)
{
    const struct record *record = &message->records[index];
    const ctrt_dtype dtype = (ctrt_dtype)record->dtype;
    ctrt_device *cpu;
    ctrt_status status;
    CTRT_TRY(message_check(record, message->head.files));
    for (uint32_t i = 0; i < index && record->kind != RECORD_EMPTY; i++) {
        const struct record *other = &message->records[i];
        if (other->kind == record->kind && other->bytes == record->bytes && other->place == record->place
            && other->dtype == record->dtype && memcmp(&other->segment, &record->segment, sizeof record->segment) == 0
            && (record->kind == RECORD_DEVICE || other->file == record->file))
            return tensor_new_view(&tensors[index], tensors[i], record->shape, record->strides, record->ndim,
                                   (int64_t)(record->start / dtype_bytes(dtype)));
    }
    if (record->kind == RECORD_EMPTY) {
        CTRT_TRY(device_cpu(&cpu));
        return tensor_new(&tensors[index], record->shape, record->ndim, dtype, cpu);
    }
    if (record->kind == RECORD_HOST)
        status = host_import(&tensors[index], record, &segments[record->file], &message->files[record->file]);
    else
        status = device_import(&tensors[index], &record->segment, record->place, record->bytes,
                               message->files[record->file], message->files[record->lease], record->shape,
                               record->strides, record->ndim, dtype);
    if (status == CTRT_OK)
        tensors[index]->view.data = (char *)tensors[index]->view.data + record->start;
    return ctrt_context(status, "queue_get");
}

ctrt_status message_open(ctrt_tensor **tensors, struct message *message)
{
    struct shared_segment *segments[MESSAGE_MAX_FILES] = { NULL };
    const uint32_t files = message->head.files;
    ctrt_status status = CTRT_OK;
    uint32_t created = 0;
    for (; created < message->head.count && status == CTRT_OK; created++) {
        tensors[created] = NULL;
        status = tensor_open(tensors, message, created, segments);
        if (status == CTRT_OK && message->records[created].requires_grad)
            status = ctrt_tensor_require_grad(tensors[created], true);
    }
    for (uint32_t i = 0; i < files; i++)
        if (segments[i] != NULL)
            shared_segment_release(segments[i]);
    message_close(message);
    for (uint32_t i = 0; status != CTRT_OK && i < created; i++)
        ctrt_tensor_release(&tensors[i]);
    return status;
}
