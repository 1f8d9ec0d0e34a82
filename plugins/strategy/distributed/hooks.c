/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/hooks.c: the hooks f16 and bf16, and the choice of a hook by CTRT_DISTRIBUTED_HOOK. */
#include <string.h>

#include "distributed.h"

const ctrt_param hook_params[] = {
    [HOOK_NAME] = {
        .size = sizeof(ctrt_param), .name = "CTRT_DISTRIBUTED_HOOK", .type = CTRT_PARAM_STRING,
        .help = "distributed: how f32 and f64 gradients are sent: f16, bf16, powersgd (default: as they are)",
    },
    [HOOK_RANK] = {
        .size = sizeof(ctrt_param), .name = "CTRT_POWERSGD_RANK", .type = CTRT_PARAM_INT, .fallback = "1",
        .help = "distributed: rank of the matrices with which the hook powersgd approximates gradients",
    },
    [HOOK_START] = {
        .size = sizeof(ctrt_param), .name = "CTRT_POWERSGD_START", .type = CTRT_PARAM_INT, .fallback = "1000",
        .help = "distributed: number of reductions before the hook powersgd begins to compress",
    },
};

bool hook_compresses(const ctrt_gradient_bucket *bucket)
{
    const ctrt_dtype dtype = ctrt_tensor_dtype(bucket->flat);
    return dtype == CTRT_F32 || dtype == CTRT_F64;
}

/* ---- f16 and bf16 ---- */

/* The gradients are multiplied by the rank's weight before, so that they are rounded only once. */
static ctrt_status half_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, struct distributed *d,
                             ctrt_dtype dtype)
{
    ctrt_tensor **sent = &d->buckets[bucket->index].sent;
    if (!hook_compresses(bucket))
        return stage == 0 ? ctrt_comm_all_reduce(work, bucket->comm, bucket->flat, CTRT_COMM_SUM) : CTRT_OK;
    if (stage == 0) {
        CTRT_TRY(ctrt_to_dtype(sent, bucket->flat, dtype));
        return ctrt_comm_all_reduce(work, bucket->comm, *sent, CTRT_COMM_SUM);
    }
    const ctrt_status status = ctrt_copy_(bucket->flat, *sent);
    ctrt_tensor_release(sent);
    return status;
}

static ctrt_status f16_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
{
    return half_hook(work, bucket, stage, user, CTRT_F16);
}

static ctrt_status bf16_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
{
    return half_hook(work, bucket, stage, user, CTRT_BF16);
}

/* ---- the choice ---- */

static const struct { const char *name; ctrt_comm_hook hook; } known_hooks[] = {
    { "f16", f16_hook }, { "bf16", bf16_hook }, { "powersgd", powersgd_hook },
};
enum { HOOKS = sizeof known_hooks / sizeof known_hooks[0] };

ctrt_status hook_choose(struct distributed *d)
{
    ctrt_param_value name;
    int64_t rank, start;
    CTRT_TRY(strategy_host->param(&name, &hook_params[HOOK_NAME]));
    CTRT_TRY(strategy_integer(&rank, &hook_params[HOOK_RANK], 1, INT64_MAX, "at least 1"));
    CTRT_TRY(strategy_integer(&start, &hook_params[HOOK_START], 0, INT64_MAX, "at least 0"));
    if (name.text == NULL || name.text[0] == '\0')
        return CTRT_OK;
    if (d->r.canonical > 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_DISTRIBUTED_HOOK=%s: canonical mode adds gradients in a fixed "
                         "order, without hooks", name.text);
    size_t k = 0;
    while (k < HOOKS && strcmp(name.text, known_hooks[k].name) != 0)
        k++;
    if (k == HOOKS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_DISTRIBUTED_HOOK=%s: expected f16, bf16 or powersgd",
                         name.text);
    if (known_hooks[k].hook == powersgd_hook)
        CTRT_TRY(powersgd_new(&d->powersgd, rank, start));
    d->hook = known_hooks[k].hook;
    d->hook_name = known_hooks[k].name;
    d->hook_user = d->powersgd != NULL ? (void *)d->powersgd : d;
    return CTRT_OK;
}

void hook_text(const struct distributed *d, FILE *file)
{
    ctrt_param_value rank, start;
    fprintf(file, "CTRT_DISTRIBUTED_HOOK=%s\n", d->hook_name);
    if (d->powersgd != NULL && strategy_host->param(&rank, &hook_params[HOOK_RANK]) == CTRT_OK
        && strategy_host->param(&start, &hook_params[HOOK_START]) == CTRT_OK)
        fprintf(file, "CTRT_POWERSGD_RANK=%lld, CTRT_POWERSGD_START=%lld\n", (long long)rank.integer,
                (long long)start.integer);
}

void hook_free(struct distributed *d)
{
    powersgd_free(d->powersgd);
    d->powersgd = NULL;
    d->hook = NULL;
    d->hook_user = NULL;
    d->hook_name = "";
}
