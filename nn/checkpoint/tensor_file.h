/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/tensor_file.h: an open safetensors file. */
#ifndef NN_TENSOR_FILE_H
#define NN_TENSOR_FILE_H

#include <limits.h>

#include "ctrt/checkpoint.h"
#include "nn/checkpoint/safetensors.h"

struct ctrt_tensor_file {
    struct safetensors_header header;   /* with the divided tensors of all parts */
    int fd;
    ctrt_tensor_file **parts;           /* of a checkpoint in parts; owned */
    size_t part_count;
};

/* Opens one file and reads its header, without its parts. */
ctrt_status tensor_file_open_one(ctrt_tensor_file **out, const char *path);

/* Opens the tensors of `file`, which has no parts, whose names begin with `prefix` and a dot, as a file in which they
 * have the names without these. Uses strings of `file`, so release it first. */
ctrt_status tensor_file_section(ctrt_tensor_file **out, const ctrt_tensor_file *file, const char *prefix);

/* A list of names for a message: "a, b and 3 more". Zero-initialise it. */
struct name_list {
    char text[400];
    size_t length, named, total;
};
void name_list_add(struct name_list *list, const char *format, ...) CTRT_PRINTF(2, 3);
/* Completes the list and returns its text, which is "" if nothing was added. */
const char *name_list_end(struct name_list *list);

/* Returns whether `entry` has the shape of the whole tensor. */
bool place_fits(const struct safetensors_entry *entry, const ctrt_module_place *place);
/* Reads `count` elements of the entry, beginning with element `from`, into host memory aligned for the dtype.
 * CTRT_ERR_IO on read errors and if the file has been truncated. */
ctrt_status tensor_file_values(void *to, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                               int64_t from, int64_t count);
/* Creates a tensor on `device` with the values of the entry, beginning with element `from`. */
ctrt_status tensor_file_part(ctrt_tensor **out, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                             int64_t from, ctrt_ints shape, ctrt_device *device);

/* ---- tensor_parts.c: checkpoints in parts ----
 *
 * The file of the checkpoint, the index, has the tensors that are not divided. Each part is a file next to it with some
 * rows of each divided tensor; the rows of a tensor in all parts, one after the other, are the whole tensor. The number
 * of the save is in all of the files, so that those of different saves are not mixed up. Its lowest bit is in the names
 * of the parts. A new save uses the names that the present checkpoint does not use, and the index is replaced last, so
 * that an interrupted save leaves the checkpoint intact. */

#define PARTS_KEY "ctrt.parts"          /* metadata of index and parts: the number of parts */
#define SAVE_KEY  "ctrt.save"           /* of index and parts: the number of the save, 16 hexadecimal digits */
#define PART_KEY  "ctrt.part"           /* of parts: the number of the part, from 0 */

struct parts_header {
    uint64_t save;
    int part, count;                    /* part -1: the index */
};
/* Reads the metadata. Returns false if the file neither is a part nor has parts; *out is then 0. */
bool parts_header_read(struct parts_header *out, const ctrt_tensor_file *file);
/* Writes the path of a part. `common`: the path of the index, without links. CTRT_ERR_IO if it is too long. */
ctrt_status parts_path(char out[PATH_MAX], const char *common, uint64_t save, int part, int count);
/* Fails with CTRT_ERR_STATE if the file is a part. */
ctrt_status parts_refuse(const ctrt_tensor_file *file);
/* Opens the parts of the open index `file`, if it has some, and adds the divided tensors to its header. */
ctrt_status parts_open(ctrt_tensor_file *file, const char *path);

#endif
