/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/message.c: send and recv.
 *
 * A rank sends one message at a time, so each has one outbox. The sender describes the message there and sets the word
 * `posted`: its lower 12 bits are the receiver, the upper bits a number. The receiver that is meant reads the message,
 * from the sender's memory or in pieces, and sets `finished` to the same value. If the signatures differ, it sets
 * `refused` before. */
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

#define RECEIVER (HOST_RANKS - 1u)

ctrt_status host_message_mismatch(const ctrt_comm_config *config, const ctrt_comm_call *call,
                                  const ctrt_comm_signature *sent, const ctrt_comm_signature *received)
{
    ctrt_comm_signature *signatures = calloc((size_t)config->world, sizeof *signatures);
    const bool sends = call->receive_tensor == NULL;
    if (signatures == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the message differs from the one that the receiver expects");
    signatures[sends ? config->rank : call->peer] = *sent;
    signatures[sends ? call->peer : config->rank] = *received;
    ctrt_status status = config->mismatch(call->state, signatures);
    free(signatures);
    return status;
}

/* ---- send ---- */

static ctrt_status send_pieces(struct host_comm *comm, const ctrt_comm_call *call, struct host_outbox *box)
{
    for (size_t offset = 0; offset < call->bytes; offset += HOST_MESSAGE) {
        const uint32_t filled = atomic_load_explicit(&box->filled.value, memory_order_relaxed);
        const size_t left = call->bytes - offset;
        while (filled - atomic_load_explicit(&box->drained.value, memory_order_acquire) >= 2
               && !atomic_load(&box->refused))
            CTRT_TRY(host_wait(comm, call->state, &box->drained, filled - 2));
        if (atomic_load(&box->refused))
            return CTRT_OK;
        memcpy(host_message(comm, comm->rank, filled), (const char *)call->send + offset,
               left < HOST_MESSAGE ? left : HOST_MESSAGE);
        host_word_set(&box->filled, filled + 1);
    }
    return CTRT_OK;
}

static ctrt_status post(struct host_comm *comm, const ctrt_comm_call *call, struct host_outbox *box)
{
    const uint32_t before = atomic_load_explicit(&box->finished.value, memory_order_acquire);
    const uint32_t posted = ++comm->messages * HOST_RANKS + (uint32_t)call->peer;
    box->signature = call->signature;
    box->address = comm->mode == HOST_DIRECT ? call->send : NULL;
    if (comm->mode == HOST_DEVICES) {
        box->tensor = call->send_tensor;
        CTRT_TRY(ctrt_event_record(box->event, NULL));
    }
    host_word_set(&box->posted, posted);
    if (comm->mode == HOST_PROCESSES)
        CTRT_TRY(send_pieces(comm, call, box));
    CTRT_TRY(host_wait(comm, call->state, &box->finished, before));
    if (atomic_load(&box->refused))
        return host_dead(comm, host_message_mismatch(comm->config, call, &call->signature, &box->answer));
    return CTRT_OK;
}

ctrt_status host_send(struct host_comm *comm, const ctrt_comm_call *call)
{
    struct host_outbox *box = &comm->header->ranks[comm->rank].outbox;
    ctrt_status status = post(comm, call, box);
    ctrt_event *received = atomic_exchange(&box->received, NULL);
    if (status == CTRT_OK && received != NULL)
        status = host_stream_wait(comm->config->device, received);
    ctrt_event_release(&received);
    return status;
}

/* ---- recv ---- */

static ctrt_status receive_pieces(struct host_comm *comm, const ctrt_comm_call *call, struct host_outbox *box)
{
    for (size_t offset = 0; offset < call->bytes; offset += HOST_MESSAGE) {
        const uint32_t drained = atomic_load_explicit(&box->drained.value, memory_order_relaxed);
        const size_t left = call->bytes - offset;
        CTRT_TRY(host_wait(comm, call->state, &box->filled, drained));
        memcpy((char *)call->receive + offset, host_message(comm, call->peer, drained),
               left < HOST_MESSAGE ? left : HOST_MESSAGE);
        host_word_set(&box->drained, drained + 1);
    }
    return CTRT_OK;
}

/* Copies the tensor by the device's current stream. */
static ctrt_status receive_tensor(struct host_comm *comm, const ctrt_comm_call *call, struct host_outbox *box)
{
    CTRT_AUTO(event) done = NULL;
    CTRT_TRY(ctrt_event_new(&done, comm->config->device, false));
    CTRT_TRY(host_stream_wait(comm->config->device, box->event));
    CTRT_TRY(host_stream_wait(ctrt_tensor_device(box->tensor), box->event));
    CTRT_TRY(host_copy_tensor(call->receive_tensor, box->tensor));
    CTRT_TRY(ctrt_event_record(done, NULL));
    atomic_store(&box->received, done);
    done = NULL;
    return CTRT_OK;
}

static ctrt_status host_message_receive(struct host_comm *comm, const ctrt_comm_call *call, struct host_outbox *box)
{
    if (comm->mode == HOST_PROCESSES)
        return receive_pieces(comm, call, box);
    CTRT_TRY(host_use_begin(comm, call->state));
    ctrt_status status = CTRT_OK;
    if (comm->mode == HOST_DEVICES)
        status = receive_tensor(comm, call, box);
    else if (call->bytes > 0)
        memcpy(call->receive, box->address, call->bytes);
    host_use_end(comm);
    return status == CTRT_OK ? CTRT_OK : host_dead(comm, status);
}

ctrt_status host_recv(struct host_comm *comm, const ctrt_comm_call *call)
{
    struct host_outbox *box = &comm->header->ranks[call->peer].outbox;
    uint32_t posted;
    for (;;) {
        posted = atomic_load_explicit(&box->posted.value, memory_order_acquire);
        if ((posted & RECEIVER) == (uint32_t)comm->rank
            && posted != atomic_load_explicit(&box->finished.value, memory_order_acquire))
            break;
        CTRT_TRY(host_wait(comm, call->state, &box->posted, posted));
    }
    const ctrt_comm_signature sent = box->signature;
    const bool equal = memcmp(&sent, &call->signature, sizeof sent) == 0;
    if (equal) {
        CTRT_TRY(host_message_receive(comm, call, box));
    } else {
        box->answer = call->signature;
        atomic_store(&box->refused, true);
        host_word_set(&box->drained, atomic_load(&box->drained.value) + 1);
    }
    host_word_set(&box->finished, posted);
    return equal ? CTRT_OK
                 : host_dead(comm, host_message_mismatch(comm->config, call, &sent, &call->signature));
}
