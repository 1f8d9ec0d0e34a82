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

/* A list of names for a message: "a, b and 3 more". */
struct name_list {
    char text[400];
    size_t length, named, total;
};
void name_list_add(struct name_list *list, const char *format, ...) CTRT_PRINTF(2, 3);
/* Ends the list; "" when nothing was added. */
const char *name_list_end(struct name_list *list);

/* Does `entry` have the tensor's shape? */
bool tensor_file_fits(const struct safetensors_entry *entry, const ctrt_tensor *tensor);
/* Reads `count` of the entry's elements, from the `from`-th on, into host memory that is aligned for them. CTRT_ERR_IO
 * where the file has become shorter. */
ctrt_status tensor_file_values(void *to, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                               int64_t from, int64_t count);

#endif
