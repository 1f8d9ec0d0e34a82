/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/replicas.c: copies of the module that are updated only where the module has changed. */
#include <stdlib.h>
#include <string.h>

#include "data_parallel.h"

#define PACKED_BYTES ((size_t)256 << 10)    /* smaller tensors are copied together */
#define PACK_BYTES   ((size_t)10 << 20)     /* most bytes of a pack */

/* ---- the lists of tensors ---- */

static ctrt_status tensor_at(const char **name, ctrt_tensor **tensor, ctrt_module *module, size_t parameters, size_t i)
{
    return i < parameters ? ctrt_module_parameter(name, tensor, module, i)
                          : ctrt_module_buffer(name, tensor, module, i - parameters);
}

static void replica_free(struct data_parallel *dp, int index)
{
    struct replica *replica = &dp->replicas[index];
    for (size_t i = 0; replica->hooks != NULL && i < dp->parameters; i++)
        if (replica->hooks[i].leaf != NULL) {
            (void)ctrt_tensor_remove_hook(replica->hooks[i].leaf, replica->hooks[i].id);
            ctrt_tensor_release(&replica->hooks[i].leaf);
        }
    if (replica->before != NULL)
        ctrt_gradients_release(replica->before, dp->parameters + 1);
    free(replica->hooks);
    free(replica->before);
    free(replica->tensors);
    free(replica->original_versions);
    free(replica->versions);
    if (index > 0)
        ctrt_module_release(&replica->module);
    memset(replica, 0, sizeof *replica);
}

void replicas_free(struct data_parallel *dp)
{
    buckets_free(dp);
    for (int i = 0; dp->replicas != NULL && i < dp->n; i++)
        replica_free(dp, i);
    for (size_t i = 0; dp->tensors != NULL && i < dp->count; i++)
        ctrt_tensor_release(&dp->tensors[i]);
    free(dp->tensors);
    free(dp->grads);
    dp->tensors = dp->grads = NULL;
    dp->parameters = dp->count = 0;
}

/* Returns whether the module has the tensors that dp->tensors lists. */
static bool is_listed(const struct data_parallel *dp)
{
    if (dp->tensors == NULL || ctrt_module_parameter_count(dp->module) != dp->parameters
        || ctrt_module_buffer_count(dp->module) != dp->count - dp->parameters)
        return false;
    for (size_t i = 0; i < dp->count; i++) {
        ctrt_tensor *tensor;
        if (tensor_at(NULL, &tensor, dp->module, dp->parameters, i) != CTRT_OK || tensor != dp->tensors[i])
            return false;
    }
    return true;
}

static ctrt_status list(struct data_parallel *dp)
{
    const size_t parameters = ctrt_module_parameter_count(dp->module);
    const size_t count = parameters + ctrt_module_buffer_count(dp->module);
    if (dp->pending)
        return ctrt_fail(CTRT_ERR_STATE, "the module has changed, but replicas have gradients of steps with no_sync");
    replicas_free(dp);
    dp->parameters = parameters;
    dp->count = count;
    dp->tensors = calloc(count + 1, sizeof *dp->tensors);
    dp->grads = calloc(parameters + 1, sizeof *dp->grads);
    if (dp->tensors == NULL || dp->grads == NULL)
        return no_memory();
    for (size_t i = 0; i < count; i++) {
        ctrt_tensor *tensor;
        CTRT_TRY(tensor_at(NULL, &tensor, dp->module, parameters, i));
        dp->tensors[i] = ctrt_tensor_retain(tensor);
    }
    return CTRT_OK;
}

static ctrt_status check_places(const struct data_parallel *dp)
{
    for (size_t i = 0; i < dp->count; i++) {
        ctrt_device *device = ctrt_tensor_device(dp->tensors[i]);
        if (device == dp->devices[0])
            continue;
        const char *name = "?";
        ctrt_tensor *tensor;
        (void)tensor_at(&name, &tensor, dp->module, dp->parameters, i);
        return ctrt_fail(CTRT_ERR_DEVICE, "the module must have its parameters and buffers on %s (devices[0]), but "
                         "\"%s\" is on %s; move it with ctrt_module_to", ctrt_device_name(dp->devices[0]), name,
                         ctrt_device_name(device));
    }
    return CTRT_OK;
}

/* ---- structure and modes ---- */

/* Returns whether the copy has the structure of the original, and gives its modules the training modes of the
 * original's. */
static bool follow(ctrt_module *copy, ctrt_module *original)
{
    const char *name, *copy_name;
    ctrt_module *child, *copy_child;
    if (strcmp(ctrt_module_kind(copy), ctrt_module_kind(original)) != 0)
        return false;
    if (ctrt_module_is_training(copy) != ctrt_module_is_training(original))
        ctrt_module_train(copy, ctrt_module_is_training(original));
    for (size_t i = 0;; i++) {
        const bool has = ctrt_module_child(&name, &child, original, i) == CTRT_OK;
        if (has != (ctrt_module_child(&copy_name, &copy_child, copy, i) == CTRT_OK))
            return false;
        if (!has)
            return true;
        if (strcmp(name, copy_name) != 0 || !follow(copy_child, child))
            return false;
    }
}

static bool same_form(ctrt_tensor *a, ctrt_tensor *b)
{
    const int ndim = ctrt_tensor_ndim(a);
    return ctrt_tensor_dtype(a) == ctrt_tensor_dtype(b) && ndim == ctrt_tensor_ndim(b)
           && memcmp(ctrt_tensor_shape(a), ctrt_tensor_shape(b), (size_t)ndim * sizeof(int64_t)) == 0;
}

/* Returns whether the replica can be updated; if not, it is created again. */
static bool is_like(const struct data_parallel *dp, int index)
{
    const struct replica *replica = &dp->replicas[index];
    if (replica->module == NULL)
        return false;
    for (size_t i = 0; i < dp->count; i++)
        if (!same_form(replica->tensors[i], dp->tensors[i]))
            return false;
    return index == 0 || follow(replica->module, dp->module);
}

static ctrt_status replica_fill(struct data_parallel *dp, int index)
{
    struct replica *replica = &dp->replicas[index];
    replica->tensors = calloc(dp->count + 1, sizeof *replica->tensors);
    replica->original_versions = calloc(dp->count + 1, sizeof(uint32_t));
    replica->versions = calloc(dp->count + 1, sizeof(uint32_t));
    replica->before = calloc(dp->parameters + 1, sizeof *replica->before);
    replica->fresh = true;
    if (replica->tensors == NULL || replica->original_versions == NULL || replica->versions == NULL
        || replica->before == NULL)
        return no_memory();
    replica->module = dp->module;
    if (index > 0) {
        replica->module = NULL;
        CTRT_TRY(ctrt_module_copy(&replica->module, dp->module, dp->devices[index]));
    }
    for (size_t i = 0; i < dp->count; i++) {
        CTRT_TRY(tensor_at(NULL, &replica->tensors[i], replica->module, dp->parameters, i));
        replica->original_versions[i] = ctrt_tensor_version(dp->tensors[i]);
        replica->versions[i] = ctrt_tensor_version(replica->tensors[i]);
    }
    replica->fresh = false;                 /* the copy has the current values */
    return CTRT_OK;
}

static ctrt_status replica_make(struct data_parallel *dp, int index)
{
    replica_free(dp, index);
    ctrt_status status = replica_fill(dp, index);
    if (status != CTRT_OK)
        replica_free(dp, index);
    return ctrt_context(status, "creating replica %d (%s)", index, ctrt_device_name(dp->devices[index]));
}

static ctrt_status follow_grad(const struct data_parallel *dp, const struct replica *replica)
{
    for (size_t i = 0; i < dp->parameters; i++) {
        const bool require = ctrt_tensor_requires_grad(dp->tensors[i]);
        if (ctrt_tensor_requires_grad(replica->tensors[i]) != require)
            CTRT_TRY(ctrt_tensor_require_grad(replica->tensors[i], require));
    }
    return CTRT_OK;
}

/* ---- values ---- */

struct update {
    struct data_parallel *dp;
    size_t *stale;                          /* indices of the tensors to copy */
    size_t count;
    size_t *pack_starts;                    /* indices in `stale`; pack p is pack_starts[p] to pack_starts[p + 1] - 1 */
    ctrt_tensor **packs;                    /* on devices[0], in one dimension; NULL: one tensor, copied directly */
    size_t pack_count;
};

static bool is_stale(const struct data_parallel *dp, int count, size_t i)
{
    for (int r = 1; r < count; r++) {
        const struct replica *replica = &dp->replicas[r];
        if (replica->original_versions[i] != ctrt_tensor_version(dp->tensors[i])
            || replica->versions[i] != ctrt_tensor_version(replica->tensors[i]))
            return true;
    }
    return false;
}

static size_t bytes_of(const ctrt_tensor *tensor)
{
    return (size_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
}

/* Sorts tensor number u->stale[u->count] into the packs. Tensors of one dtype that follow each other share a pack. */
static void pack_choose(struct update *u, size_t *bytes)
{
    ctrt_tensor *tensor = u->dp->tensors[u->stale[u->count]];
    const size_t here = bytes_of(tensor);
    const bool first = u->count == 0;
    ctrt_tensor *last = first ? NULL : u->dp->tensors[u->stale[u->count - 1]];
    const bool join = !first && *bytes > 0 && here < PACKED_BYTES && *bytes + here <= PACK_BYTES
                      && ctrt_tensor_dtype(tensor) == ctrt_tensor_dtype(last);
    if (!join) {
        u->pack_starts[u->pack_count++] = u->count;
        *bytes = here < PACKED_BYTES ? here : 0;
    } else {
        *bytes += here;
    }
    u->pack_starts[u->pack_count] = ++u->count;
}

static ctrt_status pack_make(struct update *u, size_t p)
{
    const size_t first = u->pack_starts[p], count = u->pack_starts[p + 1] - first;
    if (count == 1)
        return CTRT_OK;
    ctrt_tensor **flat = calloc(count, sizeof *flat);
    ctrt_status status = flat != NULL ? CTRT_OK : no_memory();
    for (size_t i = 0; i < count && status == CTRT_OK; i++)
        status = ctrt_reshape(&flat[i], u->dp->tensors[u->stale[first + i]], CTRT_SHAPE(-1));
    if (status == CTRT_OK)
        status = ctrt_cat(&u->packs[p], flat, (int)count, 0);
    ctrt_gradients_release(flat, flat != NULL ? count : 0);
    free(flat);
    return status;
}

static ctrt_status unpack(const struct update *u, struct replica *replica, ctrt_device *device, size_t p)
{
    CTRT_AUTO(tensor) flat = NULL;
    const size_t first = u->pack_starts[p], end = u->pack_starts[p + 1];
    int64_t offset = 0;
    if (u->packs[p] == NULL)
        return ctrt_copy_(replica->tensors[u->stale[first]], u->dp->tensors[u->stale[first]]);
    CTRT_TRY(ctrt_to_device(&flat, u->packs[p], device));
    for (size_t i = first; i < end; i++) {
        CTRT_AUTO(tensor) part = NULL;
        ctrt_tensor *to = replica->tensors[u->stale[i]];
        CTRT_TRY(ctrt_narrow(&part, flat, 0, offset, ctrt_tensor_numel(to)));
        offset += ctrt_tensor_numel(to);
        CTRT_TRY(ctrt_reshape(&part, part, ctrt_ints_of(ctrt_tensor_shape(to), ctrt_tensor_ndim(to))));
        CTRT_TRY(ctrt_copy_(to, part));
    }
    return CTRT_OK;
}

/* In the thread of the replica. */
static ctrt_status replica_copy(void *user, int index)
{
    const struct update *u = user;
    struct replica *replica = &u->dp->replicas[index];
    ctrt_status status = CTRT_OK;
    if (index == 0)
        return CTRT_OK;
    replica->fresh = true;                  /* in case it fails */
    for (size_t p = 0; p < u->pack_count && status == CTRT_OK; p++)
        ctrt_no_grad status = unpack(u, replica, u->dp->devices[index], p);
    return ctrt_context(status, "copying the module");
}

static ctrt_status values_copy(struct update *u, int count)
{
    struct data_parallel *dp = u->dp;
    ctrt_status status = CTRT_OK;
    for (size_t p = 0; p < u->pack_count && status == CTRT_OK; p++)
        ctrt_no_grad status = ctrt_context(pack_make(u, p), "copying the module");
    CTRT_TRY(status);
    CTRT_TRY(workers_run(dp->workers, replica_copy, u, count));
    for (int r = 1; r < count; r++) {
        struct replica *replica = &dp->replicas[r];
        replica->fresh = false;
        for (size_t i = 0; i < dp->count; i++) {
            replica->original_versions[i] = ctrt_tensor_version(dp->tensors[i]);
            replica->versions[i] = ctrt_tensor_version(replica->tensors[i]);
        }
    }
    return CTRT_OK;
}

static ctrt_status values_update(struct data_parallel *dp, int count)
{
    struct update u = { .dp = dp };
    bool all = false;
    size_t bytes = 0;
    for (int r = 1; r < count; r++)
        all = all || dp->replicas[r].fresh;
    size_t first = 0;
    while (first < dp->count && !all && !is_stale(dp, count, first))
        first++;
    if (first == dp->count)
        return CTRT_OK;
    u.stale = calloc(dp->count, sizeof *u.stale);
    u.pack_starts = calloc(dp->count + 1, sizeof *u.pack_starts);
    u.packs = calloc(dp->count, sizeof *u.packs);
    ctrt_status status = u.stale != NULL && u.pack_starts != NULL && u.packs != NULL ? CTRT_OK : no_memory();
    for (size_t i = first; i < dp->count && status == CTRT_OK; i++)
        if (all || is_stale(dp, count, i)) {
            u.stale[u.count] = i;
            pack_choose(&u, &bytes);
        }
    if (status == CTRT_OK)
        status = values_copy(&u, count);
    ctrt_gradients_release(u.packs, u.packs != NULL ? u.pack_count : 0);
    free(u.stale);
    free(u.pack_starts);
    free(u.packs);
    return status;
}

/* ---- together ---- */

ctrt_status replicas_update(struct data_parallel *dp, int count)
{
    bool made = false;
    if (!is_listed(dp)) {
        CTRT_TRY(list(dp));
        made = true;
    }
    CTRT_TRY(check_places(dp));
    for (int r = 0; r < count; r++) {
        if (is_like(dp, r))
            continue;
        if (dp->pending && dp->replicas[r].module != NULL)
            return ctrt_fail(CTRT_ERR_STATE, "the module has changed, but replica %d (%s) has gradients of steps with "
                             "no_sync", r, ctrt_device_name(dp->devices[r]));
        CTRT_TRY(replica_make(dp, r));
        if (r > 0)
            (void)follow(dp->replicas[r].module, dp->module);
        made = true;
    }
    if (made)
        CTRT_TRY(buckets_make(dp));
    for (int r = 1; r < count; r++)
        CTRT_TRY(follow_grad(dp, &dp->replicas[r]));
    return count > 1 ? values_update(dp, count) : CTRT_OK;
}
