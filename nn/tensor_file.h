/* SPDX-License-Identifier: Apache-2.0 */
/* nn/tensor_file.h: an open safetensors file. */
#ifndef NN_TENSOR_FILE_H
#define NN_TENSOR_FILE_H

#include "ctrt/checkpoint.h"
#include "nn/safetensors.h"

struct ctrt_tensor_file {
    struct safetensors_header header;
    int fd;
};

/* A list of names for a message: "a, b and 3 more". Zero-initialise it. */
struct name_list {
    char text[400];
    size_t length, named, total;
};
void name_list_add(struct name_list *list, const char *format, ...) CTRT_PRINTF(2, 3);
/* Completes the list and returns its text, which is "" if nothing was added. */
const char *name_list_end(struct name_list *list);

/* Returns whether `entry` has the shape of `tensor`. */
bool tensor_file_fits(const struct safetensors_entry *entry, const ctrt_tensor *tensor);
/* Reads `count` elements of the entry, beginning with element `from`, into host memory aligned for the dtype.
 * CTRT_ERR_IO on read errors and if the file has been truncated. */
ctrt_status tensor_file_values(void *to, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                               int64_t from, int64_t count);

#endif
