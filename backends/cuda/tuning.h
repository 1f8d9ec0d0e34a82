/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/tuning.h: which algorithm was quickest, measured and remembered. */
#ifndef CUDA_TUNING_H
#define CUDA_TUNING_H

#include "cuda.h"

/* Bytes of a key and of a choice as text, the end included. */
#define TUNING_KEY 192
#define TUNING_CHOICE 192

/* What the file CTRT_CUDA_TUNING has for `key`, found on such a device with this version of `library`. False: nothing. */
bool cuda_tuning_find(struct cuda_device *device, const char *library, size_t version, const char *key, char choice[TUNING_CHOICE]);
/* Adds to it. */
void cuda_tuning_keep(struct cuda_device *device, const char *library, size_t version, const char *key, const char *choice);

/* May algorithms be timed on that stream now? Not in what is being captured. */
bool cuda_tuning_allowed(cu_stream stream);
/* Milliseconds of one of `runs` runs of `run`, after one that does not count; negative: it failed. Waits for the stream. */
double cuda_tuning_time(cu_stream stream, int runs, bool (*run)(void *argument), void *argument);

#endif
