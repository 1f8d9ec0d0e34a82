/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/replicas.c: copies of the module, updated only where the module has changed. */
#include "data_parallel.h"

/* ---- the lists of tensors ---- */

static void replica_free(struct data_parallel *dp, int index)
{
    struct replica *replica = &dp->replicas[index];
    hooks_free(dp, index);
    ctrt_tensors_release(replica->before, dp->parameters + 1);
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
    ctrt_tensors_release(dp->tensors, dp->count);
    free(dp->tensors);
    free(dp->grads);
    dp->tensors = dp->grads = NULL;
    dp->parameters = dp->count = 0;
}

void replicas_drop_predicted(struct data_parallel *dp)
{
    for (int i = 1; i < dp->n; i++)
        if (dp->replicas[i].predicted)
            replica_free(dp, i);
}

static ctrt_status list(struct data_parallel *dp)
{
    if (dp->pending)
        return ctrt_fail(CTRT_ERR_STATE, "the module has changed, but replicas have gradients of steps with no_sync");
    replicas_free(dp);
    ctrt_status status = strategy_tensors_list(&dp->tensors, &dp->parameters, &dp->count, dp->module);
    if (status == CTRT_OK)
        status = ALLOCATE(dp->grads, dp->parameters + 2);
    if (status != CTRT_OK)
        replicas_free(dp);
    return status;
}

static ctrt_status check_places(const struct data_parallel *dp)
{
    for (size_t i = 0; i < dp->count; i++) {
        ctrt_device *device = ctrt_tensor_device(dp->tensors[i]);
        if (device == dp->devices[0])
            continue;
        const char *name = "?";
        (void)strategy_tensor_at(&name, NULL, dp->module, dp->parameters, i);
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
    replica->fresh = true;
    CTRT_TRY(ALLOCATE(replica->tensors, dp->count));
    CTRT_TRY(ALLOCATE(replica->original_versions, dp->count));
    CTRT_TRY(ALLOCATE(replica->versions, dp->count));
    CTRT_TRY(ALLOCATE(replica->before, dp->parameters + 1));
    replica->module = dp->module;
    if (index > 0) {
        replica->module = NULL;
        CTRT_TRY(ctrt_module_copy(&replica->module, dp->module, dp->devices[index]));
    }
    for (size_t i = 0; i < dp->count; i++) {
        CTRT_TRY(strategy_tensor_at(NULL, &replica->tensors[i], replica->module, dp->parameters, i));
        replica->original_versions[i] = ctrt_tensor_version(dp->tensors[i]);
        replica->versions[i] = ctrt_tensor_version(replica->tensors[i]);
    }
    replica->predicted = index > 0 && ctrt_dry_run_active(dp->devices[index]);
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

/* Gives a replica the layouts that the program has set in the module. */
static ctrt_status follow_layouts(const struct data_parallel *dp, const struct replica *replica)
{
    for (size_t i = 0; i < dp->count; i++)
        CTRT_TRY(ctrt_tensor_distribute_like(replica->tensors[i], dp->tensors[i]));
    return CTRT_OK;
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

/* The last half of `count` tensors is copied on the last stream, the quarter before it on the one before, and so on. */
static int stream_of(size_t i, size_t count)
{
    int stream = STREAMS - 1;
    for (size_t end = count / 2; i < end && stream > STREAM_VALUES; end /= 2)
        stream--;
    return stream;
}

static ctrt_status tensor_copy(const struct data_parallel *dp, int index, size_t i, int stream)
{
    ON_STREAM(dp, index, stream);
    return ctrt_copy_(dp->replicas[index].tensors[i], dp->tensors[i]);
}

/* Copies one by one: to join small tensors for the transfer would take as many kernels to take them apart again. */
static ctrt_status tensors_copy(const struct update *u, int index)
{
    for (size_t i = 0; i < u->count; i++)
        CTRT_TRY(tensor_copy(u->dp, index, u->stale[i], stream_of(i, u->count)));
    return CTRT_OK;
}

/* In the thread of the replica. */
static ctrt_status replica_copy(void *user, int index)
{
    const struct update *u = user;
    struct replica *replica = &u->dp->replicas[index];
    ctrt_status status;
    if (index == 0)
        return CTRT_OK;
    replica->fresh = true;                  /* in case it fails */
    ctrt_no_grad status = tensors_copy(u, index);
    return ctrt_context(status, "copying the module");
}

static ctrt_status values_copy(struct update *u, int count)
{
    struct data_parallel *dp = u->dp;
    CTRT_TRY(streams_find(dp, count));
    CTRT_TRY(workers_run(dp->workers, replica_copy, u, count));
    for (int r = 1; r < count; r++) {
        struct replica *replica = &dp->replicas[r];
        replica->fresh = ctrt_dry_run_active(dp->devices[r]);           /* a dry run copies nothing */
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
    for (int r = 1; r < count; r++)
        all = all || dp->replicas[r].fresh;
    size_t first = 0;
    while (first < dp->count && !all && !is_stale(dp, count, first))
        first++;
    if (first == dp->count)
        return CTRT_OK;
    SCRATCH size_t *stale = NULL;
    CTRT_TRY(ALLOCATE(stale, dp->count));
    u.stale = stale;
    for (size_t i = first; i < dp->count; i++)
        if (all || is_stale(dp, count, i))
            stale[u.count++] = i;
    return values_copy(&u, count);
}

/* ---- together ---- */

ctrt_status replicas_update(struct data_parallel *dp, int count)
{
    bool made = false;
    if (!strategy_tensors_same(dp->tensors, dp->parameters, dp->count, dp->module)) {
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
    if (made || !buckets_fit(dp))
        CTRT_TRY(buckets_make(dp));
    for (int r = 1; r < count; r++) {
        CTRT_TRY(follow_layouts(dp, &dp->replicas[r]));
        CTRT_TRY(follow_grad(dp, &dp->replicas[r]));
    }
    return count > 1 ? values_update(dp, count) : CTRT_OK;
}
