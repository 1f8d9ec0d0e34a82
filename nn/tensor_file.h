/* SPDX-License-Identifier: Apache-2.0 */
/* nn/tensor_file.h: an open safetensors file. */
#ifndef NN_TENSOR_FILE_H
#define NN_TENSOR_FILE_H

#include "ctrt/checkpoint.h"
#include "nn/safetensors.h"

struct ctrt_tensor_file {
    struct safetensors_header header;
    unsigned char *bytes;               /* the mapping */
    size_t size;
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
/* Writes the entry's values into `tensor`, which it fits in shape. In place, without recording. */
ctrt_status tensor_file_fill(ctrt_tensor *tensor, const ctrt_tensor_file *file, const struct safetensors_entry *entry);

#endif
