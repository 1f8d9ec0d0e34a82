/* SPDX-License-Identifier: Apache-2.0 */
/* ops/layout.c: the functions of ctrt/layout.h for tensors; they check arguments and call the backend's layout
 * table. */
#include "ctrt/layout.h"

#include "memory/pool.h"
#include "ops/op_common.h"

static const ctrt_layout_table *table_of(const ctrt_device *device)
{
    return device_distributes(device) ? device->backend->layout : NULL;
}

ctrt_status ctrt_tensor_layout(ctrt_layout *layout, ctrt_tensor *tensor)
{
    NULL_CHECK("tensor_layout", layout);
    NULL_CHECK("tensor_layout", tensor);
    const ctrt_layout_table *table = table_of(tensor->device);
    *layout = (ctrt_layout){ .kind = CTRT_LAYOUT_REPLICATED };
    if (table == NULL || tensor->view.numel == 0 || dry_run_on(tensor->device))
        return CTRT_OK;
    CTRT_TRY(device_check(tensor->device));
    return ctrt_context(table->get(tensor->device->handle, &tensor->view, layout), "tensor_layout");
}

ctrt_status ctrt_tensor_distribute(ctrt_tensor *tensor, const ctrt_layout *layout)
{
    static const char who[] = "tensor_distribute";
    NULL_CHECK(who, tensor);
    NULL_CHECK(who, layout);
    const ctrt_view *view = &tensor->view;
    char shape[SHAPE_TEXT_BYTES];
    ctrt_layout wanted = *layout;
    if ((int)layout->kind < 0 || layout->kind > CTRT_LAYOUT_PARTIAL)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "unknown kind of layout %d", (int)layout->kind);
    if (layout->kind == CTRT_LAYOUT_PARTIAL)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, who, "only ops create partial sums");
    if (layout->kind == CTRT_LAYOUT_SHARDED) {
        int dim;
        CTRT_TRY(shape_dim(&dim, who, layout->dim, view->ndim));
        wanted.dim = dim;
        wanted.groups = layout->groups == 0 ? 1 : layout->groups;
        if (view->ndim == 0)
            return fail_from(CTRT_ERR_SHAPE, who, "a tensor without dimensions cannot be sharded");
        if (wanted.groups < 1 || view->shape[dim] % wanted.groups != 0)
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "dimension %d of shape %s cannot be divided into %lld "
                             "equal groups", dim, shape_text(shape, view->shape, view->ndim),
                             (long long)layout->groups);
    }
    CTRT_TRY(device_check(tensor->device));
    const ctrt_layout_table *table = table_of(tensor->device);
    if (table == NULL && layout->kind != CTRT_LAYOUT_REPLICATED)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, who, "%s is one device; devices with several members are, for "
                         "example, sim-multi and nccl-multi", tensor->device->name);
    if (view->numel == 0)
        return CTRT_OK;
    if (!(view->flags & CTRT_VIEW_CONTIGUOUS) || tensor_offset(tensor) != 0
        || tensor->storage->bytes != (size_t)view->numel * dtype_bytes(tensor_dtype(tensor)))
        return fail_from(CTRT_ERR_SHAPE, who, "the tensor of shape %s is a view of a part of its storage, or not "
                         "contiguous; distribute its base, or a clone",
                         shape_text(shape, view->shape, view->ndim));
    if (table == NULL || dry_run_on(tensor->device))
        return CTRT_OK;
    return ctrt_context(table->set(tensor->device->handle, view, &wanted), "%s", who);
}

ctrt_status ctrt_tensor_distribute_like(ctrt_tensor *tensor, ctrt_tensor *like)
{
    static const char who[] = "tensor_distribute_like";
    ctrt_layout layout;
    NULL_CHECK(who, tensor);
    NULL_CHECK(who, like);
    const ctrt_view *view = &tensor->view;
    if (!shape_equal(view->shape, view->ndim, like->view.shape, like->view.ndim)) {
        char shape[SHAPE_TEXT_BYTES], other[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, who, "the shapes %s and %s differ",
                         shape_text(shape, view->shape, view->ndim),
                         shape_text(other, like->view.shape, like->view.ndim));
    }
    CTRT_TRY(ctrt_tensor_layout(&layout, like));
    if (layout.kind != CTRT_LAYOUT_SHARDED || !device_distributes(tensor->device)
        || !(view->flags & CTRT_VIEW_CONTIGUOUS))
        return CTRT_OK;
    return ctrt_context(ctrt_tensor_distribute(tensor, &layout), "%s", who);
}

ctrt_status ctrt_device_member(ctrt_device **out, ctrt_device *device, int index)
{
    NULL_CHECK("device_member", out);
    CTRT_TRY(device_or_default(&device, device));
    const ctrt_layout_table *table = table_of(device);
    const char *name = index == 0 ? device->name : NULL;
    CTRT_TRY(device_check(device));
    if (table != NULL && CTRT_SLOT(table, member))
        name = table->member(device->handle, index);
    if (name == NULL)
        return fail_from(CTRT_ERR_NOT_FOUND, "device_member", "%s has no member %d", device->name, index);
    return ctrt_device_get(out, name);
}

ctrt_status ctrt_layout_count(ctrt_layout_counts *counts, ctrt_device *device)
{
    NULL_CHECK("layout_count", counts);
    CTRT_TRY(device_or_default(&device, device));
    ctrt_layout_counts own = CTRT_LAYOUT_COUNTS;
    const ctrt_layout_table *table = table_of(device);
    CTRT_TRY(device_check(device));
    if (table != NULL)
        CTRT_TRY(table->counts(device->handle, &own));
    return struct_write(counts, &own, sizeof own, "layout_count", "counts");
}
