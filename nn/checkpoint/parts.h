/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/parts.h: saves a module or an optimizer in parts: each process writes the rows that it has to a file of
 * its own (format: nn/checkpoint/tensor_file.h). */
#ifndef NN_CHECKPOINT_PARTS_H
#define NN_CHECKPOINT_PARTS_H

#include <sys/types.h>

#include "nn/checkpoint/tensor_file.h"

struct parts_save {
    const char *path;                   /* of the program; borrowed */
    ctrt_module *module;                /* borrowed */
    ctrt_module_parts parts;
    uint64_t save;                      /* number of this save */
    struct parts_header before;         /* of the checkpoint that is replaced; count 0: it has no parts */
    char common[PATH_MAX];              /* `path` without links */
    mode_t mode;                        /* permissions of the file that is replaced; 0: there is none */
};

/* Asks the classes of the module whether they save it in parts. If p->parts.count is not 0 afterwards, the caller must
 * call parts_write, also if this function fails. */
ctrt_status parts_begin(struct parts_save *p, ctrt_module *module, ctrt_optimizer *optimizer, const char *path);
/* Writes this process's part of the items and, in the process of part 0, the index with the whole items and
 * `metadata`. `status`: whether this process has succeeded until now. Succeeds if all processes do. If it fails, the
 * checkpoint from before is intact; if it fails with CTRT_ERR_COMM or the error of the index, the new one may be
 * complete. Collective. */
ctrt_status parts_write(struct parts_save *p, ctrt_status status, const struct safetensors_item *items, size_t count,
                        const ctrt_metadata *metadata, size_t metadata_count);

/* Writes the places of the tensors places[count].tensor: those of undivided ones are at 0 of the same shape. */
ctrt_status places_find(ctrt_module *module, ctrt_module_place *places, size_t count);

#endif
