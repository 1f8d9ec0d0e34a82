/* SPDX-License-Identifier: Apache-2.0 */
/* comm-old.c: a communication engine for ABI 1.0, for barrier, broadcast and the sums and averages of f32 of
 * all_reduce: each rank sets its data as a value of the store and reads the others'. */
#include <ctrt/comm_plugin.h>
#include <ctrt/ctrt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ctrt_host *host;

static ctrt_status old_create(void **comm, const ctrt_comm_config *config)
{
    *comm = (void *)(uintptr_t)config;              /* the config outlives the communicator */
    return CTRT_OK;
}

static void old_destroy(void *comm)
{
    (void)comm;
}

/* Reads the value of another rank. The caller frees it. */
static ctrt_status value_of(void **value, const ctrt_comm_config *config, const ctrt_comm_call *call, int rank)
{
    char key[128];
    size_t bytes = 0;
    *value = NULL;
    snprintf(key, sizeof key, "%s/%llu/%d", config->name, (unsigned long long)call->signature.sequence, rank);
    ctrt_status status = CTRT_ERR_NOT_FOUND;
    while (status == CTRT_ERR_NOT_FOUND) {
        CTRT_TRY(config->poll(call->state));
        status = ctrt_store_get(config->store, key, value, &bytes, 0.01);
    }
    if (status == CTRT_OK && bytes < sizeof call->signature) {
        free(*value);
        return host->fail(CTRT_ERR_COMM, "old: a value of %zu bytes", bytes);
    }
    return status;
}

static void reduce(const ctrt_comm_call *call, const float *data, int rank, int world)
{
    float *out = call->receive;
    for (uint64_t i = 0; i < call->signature.count; i++) {
        out[i] = rank == 0 ? data[i] : out[i] + data[i];
        if (rank == world - 1 && call->signature.op == CTRT_COMM_AVERAGE)
            out[i] /= (float)world;
    }
}

static ctrt_status old_run(void *comm, const ctrt_comm_call *call)
{
    const ctrt_comm_config *config = comm;
    const ctrt_comm_signature *own = &call->signature;
    const bool reduces = own->collective == CTRT_COLLECTIVE_ALL_REDUCE;
    if (own->collective > CTRT_COLLECTIVE_ALL_REDUCE
        || (reduces && (own->dtype != CTRT_F32 || (own->op != CTRT_COMM_SUM && own->op != CTRT_COMM_AVERAGE))))
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "old: collective %u of dtype %u", own->collective, own->dtype);
    const bool sends = reduces || own->root == config->rank;
    char key[128];
    char *value = malloc(sizeof *own + call->bytes);
    if (value == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "old: no memory");
    memcpy(value, own, sizeof *own);
    if (sends && call->bytes > 0)
        memcpy(value + sizeof *own, reduces ? call->send : call->receive, call->bytes);   /* as broadcast has it */
    snprintf(key, sizeof key, "%s/%llu/%d", config->name, (unsigned long long)own->sequence, config->rank);
    ctrt_status status = ctrt_store_set(config->store, key, value, sizeof *own + (sends ? call->bytes : 0));
    free(value);
    for (int rank = 0; rank < config->world && status == CTRT_OK; rank++) {
        void *other;
        status = value_of(&other, config, call, rank);
        const char *data = (char *)other + sizeof *own;
        if (status == CTRT_OK && memcmp(other, own, sizeof *own) != 0)
            status = host->fail(CTRT_ERR_COMM, "old: rank %d calls another collective", rank);
        else if (status == CTRT_OK && reduces)
            reduce(call, (const float *)(const void *)data, rank, config->world);
        else if (status == CTRT_OK && call->bytes > 0 && rank == own->root)
            memcpy(call->receive, data, call->bytes);
        free(other);
    }
    return status;
}

static const ctrt_comm_engine engine = {
    .size = sizeof(ctrt_comm_engine), .create = old_create, .destroy = old_destroy, .run = old_run,
};

static ctrt_status init(const ctrt_host *the_host)
{
    host = the_host;
    return CTRT_OK;
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_COMM, .name = "old", .table = &engine },
};
CTRT_PLUGIN_DEFINE("comm-old", "1.0", "a communication engine for ABI 1.0", components, init)
