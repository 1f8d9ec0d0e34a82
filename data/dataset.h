/* SPDX-License-Identifier: Apache-2.0 */
/* data/dataset.h: the representation of a dataset. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include <stdatomic.h>

#include "ctrt/data.h"

struct ctrt_dataset {
    atomic_int refs;
    ctrt_dataset_functions functions;   /* its strings and fields belong to the dataset */
    void *state;
    int64_t length;                     /* -1: a stream */
    bool varying;                       /* a field has a varying dimension */
    size_t bytes[CTRT_MAX_FIELDS];      /* of a sample's field */
    int64_t shapes[CTRT_MAX_FIELDS][CTRT_MAX_DIMS];     /* the fields' shapes, for samples */
    ctrt_dataset_opener open;           /* NULL: created by ctrt_dataset_new only */
    void *arguments;
    size_t argument_bytes;
};

static inline bool dataset_is_stream(const ctrt_dataset *dataset)
{
    return dataset->length < 0;
}

/* After the item or next function: checks the sizes that it set in fields with varying dimensions. */
ctrt_status dataset_check_shapes(const ctrt_dataset *dataset, int64_t (*shapes)[CTRT_MAX_DIMS]);

#endif
