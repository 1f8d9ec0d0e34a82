/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_SHARE_H
#define CTRT_SHARE_H
#include "ctrt/nn.h"
CTRT_BEGIN_DECLS
CTRT_API ctrt_status ctrt_tensor_share_(ctrt_tensor *tensor);
CTRT_API bool ctrt_tensor_is_shared(const ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_module_share(ctrt_module *module);
typedef struct ctrt_queue ctrt_queue;
enum {
    CTRT_QUEUE_MAX_TENSORS = 64,
    CTRT_QUEUE_MAX_BYTES = 4096
};
CTRT_API ctrt_status ctrt_queue_new(ctrt_queue **out, int capacity);
CTRT_API void ctrt_queue_release(ctrt_queue **queue);
CTRT_API ctrt_status ctrt_queue_put(ctrt_queue *queue, ctrt_tensor *const *tensors, int count, const void *bytes,
                                    size_t size, double seconds);
CTRT_API ctrt_status ctrt_queue_get(ctrt_tensor **tensors, int *count, void *bytes, size_t *size, ctrt_queue *queue,
                                    double seconds);
CTRT_API ctrt_status ctrt_queue_close_put(ctrt_queue *queue);
CTRT_API ctrt_status ctrt_queue_close_get(ctrt_queue *queue);
CTRT_API ctrt_status ctrt_queue_descriptors(int descriptors[3], const ctrt_queue *queue);
CTRT_API ctrt_status ctrt_queue_from_descriptors(ctrt_queue **out, const int descriptors[3]);
CTRT_END_DECLS
#endif
