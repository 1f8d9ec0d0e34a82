/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/cleanup.h: objects of the library that keep tensors which were made in a dry run, for example an optimizer
 * whose states are created by its first step. At the end of the dry run they release these tensors, which have no
 * values, so that the object continues as if the dry run had not been. */
#ifndef CORE_DRYRUN_CLEANUP_H
#define CORE_DRYRUN_CLEANUP_H

#include "ctrt/tensor.h"

struct dryrun_cleanup;

/* Calls cleanup(object) at the end of every dry run from now on. *handle: NULL, or the handle of an earlier call, which
 * stays as it is. The object calls dryrun_cleanup_remove before it is freed. Thread-safe. The caller holds no lock of
 * the library. */
ctrt_status dryrun_cleanup_add(struct dryrun_cleanup **handle, void (*cleanup)(void *object), void *object);
/* Frees the handle; NULL: no effect. */
void dryrun_cleanup_remove(struct dryrun_cleanup *handle);

/* For a cleanup function: releases *tensor (may be NULL) and sets it to NULL if it was made in the dry run that is
 * ending. */
void dryrun_drop(ctrt_tensor **tensor);

/* Calls all cleanup functions. The caller holds the lock of dry runs (dryrun_enter). */
void dryrun_cleanup_run(void);

#endif
