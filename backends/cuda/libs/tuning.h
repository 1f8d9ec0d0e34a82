/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/tuning.h: times algorithms and stores the fastest in the file CTRT_CUDA_TUNING. */
#ifndef CUDA_TUNING_H
#define CUDA_TUNING_H

#include "host/cuda.h"

/* Size of the text of a key and of a choice, including the terminating NUL. */
#define TUNING_KEY 192
#define TUNING_CHOICE 192

/* Looks up `key` in the file, for this type of device and this version of `library`. Returns false if it has no entry.
 * Thread-safe. */
bool cuda_tuning_find(struct cuda_device *device, const char *library, size_t version, const char *key,
                      char choice[TUNING_CHOICE]);
/* Adds an entry to the file. Failures are logged. Thread-safe. */
void cuda_tuning_keep(struct cuda_device *device, const char *library, size_t version, const char *key,
                      const char *choice);

/* Returns true if algorithms can be timed on the stream, which must not be in a capture. */
bool cuda_tuning_allowed(cu_stream stream);
/* Calls `run` once to warm up and then `runs` times (at most 16), and returns the shortest time in milliseconds, or a
 * negative number if a call failed. Waits for the stream. */
double cuda_tuning_time(cu_stream stream, int runs, bool (*run)(void *argument), void *argument);

#endif
