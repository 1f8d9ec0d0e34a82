/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/engine.c: the table of the engine `nccl`: joining, leaving and aborting groups. */
#include <stdlib.h>

#include "config.h"
#include "engine.h"

static ctrt_status init(const ctrt_host *host)
{
    nccl_host = host;
    return CTRT_OK;
}

static void group_free(struct nccl_group *group)
{
    if (group == NULL)
        return;
    ctrt_tensor_release(&group->ones);
    nccl_ending_drop(group->ending);
    pthread_mutex_destroy(&group->lock);
    free(group->sends);
    free(group->receives);
    free(group);
}

static ctrt_status group_new(struct nccl_group **out, const ctrt_comm_config *config)
{
    const size_t world = (size_t)config->world;
    struct nccl_group *group = calloc(1, sizeof *group);
    if (group != NULL) {
        group->config = config;
        group->rank = config->rank;
        group->world = config->world;
        group->joining = true;
        pthread_mutex_init(&group->lock, NULL);
        group->sends = calloc(world, sizeof *group->sends);
        group->receives = calloc(world, sizeof *group->receives);
    }
    *out = group;
    return group != NULL && group->sends != NULL && group->receives != NULL
               ? nccl_ending_new(&group->ending, config->world)
               : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", config->world);
}

/* Waits until the tensor is filled, because barriers on any stream use it. Fills it on a stream of its own: the current
 * one may depend on a collective of a group that has failed and that this group replaces. */
static ctrt_status make_ones(struct nccl_group *group)
{
    CTRT_AUTO(stream) stream = NULL;
    CTRT_TRY(ctrt_stream_new(&stream, group->config->device, 0));
    ctrt_on_stream(stream) CTRT_TRY(ctrt_ones(&group->ones, CTRT_SHAPE(1), CTRT_I32, group->config->device));
    return ctrt_stream_synchronize(stream);
}

/* The group that a new one comes from, see the slot `derive`; `ranks` NULL: from none. */
struct nccl_origin {
    struct nccl_group *parent;
    const int32_t *ranks;
    int color;                              /* of ctrt_comm_split; else -1 */
};

static ctrt_status connect_links(struct nccl_group *group, const struct nccl_origin *origin)
{
    const ctrt_comm_config *config = group->config;
    bool done = false;
    if (origin->color >= 0)
        return nccl_link_split(group, origin->parent, origin->color);
    if (origin->ranks != NULL)
        CTRT_TRY(nccl_link_shrink(&done, group, origin->parent, origin->ranks));
    return done ? CTRT_OK : nccl_link_open(group, &group->all, "nccl", config->rank, config->world, config->state);
}

static ctrt_status nccl_join(void **out, const ctrt_comm_config *config, const struct nccl_origin *origin)
{
    struct nccl_group *group = NULL;
    ctrt_status status = group_new(&group, config);
    if (status == CTRT_OK && strcmp(ctrt_device_type(config->device), "cuda") != 0)
        status = ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the engine nccl connects cuda devices, but rank %d has %s; set "
                           "CTRT_DEVICE=cuda, or CTRT_COMM=host", config->rank, ctrt_device_name(config->device));
    if (status == CTRT_OK)
        status = nccl_open();
    if (status == CTRT_OK)
        status = nccl_read_params(&group->check, &group->registers);
    if (status == CTRT_OK)
        status = make_ones(group);
    if (status == CTRT_OK)
        status = connect_links(group, origin);
    if (status != CTRT_OK) {
        if (group != NULL && config->world > 1)
            nccl_publish_failure(group);
        if (group != NULL && group->all.handle != NULL)
            nccl_links_abort(group);
        if (group != NULL && group->ending != NULL)
            nccl_links_close(group);
        group_free(group);
        return status;
    }
    group->joining = false;
    *out = group;
    return CTRT_OK;
}

static ctrt_status nccl_create(void **out, const ctrt_comm_config *config)
{
    return nccl_join(out, config, &(struct nccl_origin){ .color = -1 });
}

static ctrt_status nccl_derive(void **out, const ctrt_comm_config *config, void *parent, const int32_t *ranks,
                               int32_t color)
{
    if (config == NULL)
        return nccl_link_split(NULL, parent, NCCL_NO_COLOR);
    return nccl_join(out, config, &(struct nccl_origin){ .parent = parent, .ranks = ranks, .color = color });
}

static void nccl_destroy(void *state)
{
    struct nccl_group *group = state;
    nccl_links_close(group);
    nccl_memory_end(group);
    group_free(group);
}

/* Returns false if the memory policy moves tensors, which therefore have no fixed address; nccl_run then refuses the
 * call. Tensors without elements also have no address, but need none. */
static bool nccl_reaches_device(void *state, const ctrt_comm_call *call)
{
    (void)state;
    return call->bytes == 0
           || ((call->send_tensor == NULL || call->send != NULL) && (call->receive_tensor == NULL || call->receive));
}

static const ctrt_comm_engine engine = {
    .size = sizeof(ctrt_comm_engine),
    .flags = CTRT_COMM_ENQUEUES | CTRT_COMM_CAPTURES | CTRT_COMM_DEVICE_MEMORY,
    .create = nccl_create,
    .destroy = nccl_destroy,
    .run = nccl_run,
    .abort = nccl_links_abort,
    .reaches_device = nccl_reaches_device,
    .alloc = nccl_alloc,
    .free = nccl_free,
    .poll_error = nccl_links_error,
    .derive = nccl_derive,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_COMM, .name = "nccl", .table = &engine,
      .probe = nccl_probe },
};

CTRT_PLUGIN_DEFINE("comm-nccl", PACKAGE_VERSION, "communicators: NVIDIA GPUs that NCCL connects", components, init)
