/* SPDX-License-Identifier: Apache-2.0 */
/* bad-share.c: bad input to sharing tensors and to queues. */
#include "bad-input.h"

void bad_share(void)
{
    ctrt_queue *queue = NULL, *none = NULL;
    ctrt_tensor *one = p.x;
    int ends[3], count = 1;
    size_t size = 1;
    BAD(INVALID_ARGUMENT, ctrt_tensor_share_(NULL));
    BAD(INVALID_ARGUMENT, ctrt_module_share(NULL));
    BAD(INVALID_ARGUMENT, ctrt_queue_new(NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_queue_new(&queue, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_new(&queue, -3));
    FINE(!ctrt_tensor_is_shared(NULL));
    FINE(queue == NULL);
    FINE(ctrt_queue_new(&queue, 1) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_queue_put(NULL, &one, 1, NULL, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_put(queue, NULL, 1, NULL, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_put(queue, (ctrt_tensor *[]){ NULL }, 1, NULL, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_put(queue, &one, -1, NULL, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_put(queue, &one, CTRT_QUEUE_MAX_TENSORS + 1, NULL, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_put(queue, NULL, 0, NULL, 1, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_put(queue, NULL, 0, "", CTRT_QUEUE_MAX_BYTES + 1, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_get(&out, &count, NULL, NULL, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_get(NULL, &count, NULL, NULL, queue, 0));
    BAD(INVALID_ARGUMENT, ctrt_queue_get(&out, &count, NULL, &size, queue, 0));
    BAD(COMM, ctrt_queue_get(&out, &count, NULL, NULL, queue, 0));
    NULL_IN2(ctrt_queue_descriptors, ends, queue);
    BAD(INVALID_ARGUMENT, ctrt_queue_from_descriptors(NULL, ends));
    BAD(INVALID_ARGUMENT, ctrt_queue_from_descriptors(&none, NULL));
    BAD(FORMAT, ctrt_queue_from_descriptors(&none, (int[]){ 0, 0, 0 }));
    BAD(FORMAT, ctrt_queue_from_descriptors(&none, (int[]){ -1, -1, 0 }));
    BAD(FORMAT, ctrt_queue_from_descriptors(&none, (int[]){ -1, -1, -1 }));
    BAD(INVALID_ARGUMENT, ctrt_queue_close_put(NULL));
    BAD(INVALID_ARGUMENT, ctrt_queue_close_get(NULL));
    FINE(ctrt_queue_close_put(queue) == CTRT_OK && ctrt_queue_close_put(queue) == CTRT_OK);
    FINE(ctrt_queue_close_get(queue) == CTRT_OK);
    BAD(STATE, ctrt_queue_put(queue, &one, 1, NULL, 0, 0));
    BAD(STATE, ctrt_queue_get(&out, &count, NULL, NULL, queue, 0));
    FINE((ctrt_queue_release(NULL), ctrt_queue_release(&none), true));
    ctrt_queue_release(&queue);

    ctrt_tensor *ended = NULL;
    FINE(ctrt_scope_begin() == CTRT_OK);
    FINE(ctrt_clone(&ended, p.x) == CTRT_OK);
    FINE(ctrt_scope_end() == CTRT_OK);
    FINE(ctrt_queue_new(&queue, 1) == CTRT_OK);
    BAD(STATE, ctrt_tensor_share_(ended));
    BAD(STATE, ctrt_queue_put(queue, &ended, 1, NULL, 0, 0));
    ctrt_tensor_release(&ended);
    ctrt_queue_release(&queue);
}
