/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/cleanup.c: the list of objects that release tensors at the end of a dry run. */
#include "dryrun/cleanup.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "dryrun/memory.h"

struct dryrun_cleanup {
    void (*cleanup)(void *object);
    void *object;
    struct dryrun_cleanup *next, **at;      /* at: the pointer in the list that points to this handle */
};

/* Guarded by dryrun_enter. `cursor`: the handle that dryrun_cleanup_run visits next. */
static struct dryrun_cleanup *list, *cursor;

ctrt_status dryrun_cleanup_add(struct dryrun_cleanup **handle, void (*cleanup)(void *object), void *object)
{
    ctrt_status status = CTRT_OK;
    dryrun_enter();
    struct dryrun_cleanup *fresh = *handle == NULL ? host_alloc(sizeof *fresh) : NULL;
    if (fresh != NULL) {
        *fresh = (struct dryrun_cleanup){ .cleanup = cleanup, .object = object, .next = list, .at = &list };
        if (list != NULL)
            list->at = &fresh->next;
        list = *handle = fresh;
    } else if (*handle == NULL) {
        status = out_of_memory(sizeof *fresh, "the end of a dry run");
    }
    dryrun_leave();
    return status;
}

void dryrun_cleanup_remove(struct dryrun_cleanup *handle)
{
    if (handle == NULL)
        return;
    dryrun_enter();
    *handle->at = handle->next;
    if (handle->next != NULL)
        handle->next->at = handle->at;
    if (cursor == handle)                   /* a cleanup function releases a tensor that has a handle itself */
        cursor = handle->next;
    dryrun_leave();
    host_free(handle);
}

void dryrun_cleanup_run(void)
{
    struct dryrun_cleanup *handle = list;
    while (handle != NULL) {
        cursor = handle->next;
        handle->cleanup(handle->object);
        handle = cursor;
    }
}

void dryrun_drop(ctrt_tensor **tensor)
{
    if (*tensor != NULL && dryrun_ending_made(*tensor))
        ctrt_tensor_release(tensor);
}
