/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/pipeline.c: the table of the strategy: parameters, creation, description. */
#include "config.h"
#include "pipeline.h"

#include <stdio.h>

static const ctrt_param split_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_PIPELINE_SPLIT", .type = CTRT_PARAM_STRING,
    .help = "pipeline: the first child of each further stage: 3,5 (default: by the memory of the first step)",
};
static const ctrt_param micro_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_PIPELINE_MICRO", .type = CTRT_PARAM_INT, .fallback = "0",
    .help = "pipeline: number of micro-batches, at most one per row (0: 4 per stage)",
};
static const ctrt_param states_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_PIPELINE_STATES", .type = CTRT_PARAM_INT, .fallback = "-1",
    .help = "pipeline: tensors per parameter that the optimizer will keep: 2 for Adam (-1: 2 if they fit, else 0)",
};
static const ctrt_param schedule_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_PIPELINE_SCHEDULE", .type = CTRT_PARAM_STRING, .fallback = "1f1b",
    .help = "pipeline: 1f1b, which keeps the activations of few micro-batches, or gpipe",
};

static ctrt_status parameters_read(struct pipeline *p)
{
    ctrt_param_value schedule;
    CTRT_TRY(strategy_integer(&p->micro, &micro_param, 0, 65536, "0 (4 per stage) or a number of micro-batches up to "
                              "65536"));
    CTRT_TRY(strategy_integer(&p->states, &states_param, -1, 16, "-1 (unknown) or a number of tensors per parameter up "
                              "to 16"));
    CTRT_TRY(strategy_host->param(&schedule, &schedule_param));
    p->gpipe = strcmp(schedule.text, "gpipe") == 0;
    if (!p->gpipe && strcmp(schedule.text, "1f1b") != 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_PIPELINE_SCHEDULE=%s: expected 1f1b or gpipe", schedule.text);
    return CTRT_OK;
}

static void destroy(void *self)
{
    struct pipeline *p = self;
    streams_free(p);
    pipeline_unplace(p);
    free(p);
}

static ctrt_status create(void **out, const ctrt_strategy_config *config)
{
    ctrt_param_value split;
    CTRT_TRY(strategy_host->param(&split, &split_param));
    struct pipeline *p;
    CTRT_TRY(ALLOCATE(p, 1));
    p->module = config->module;
    p->devices = config->devices;
    p->n = config->count;
    p->canonical = config->canonical;
    ctrt_status status = parameters_read(p);
    if (status == CTRT_OK)
        status = pipeline_place(p, split.text);
    return strategy_created(out, p, status, destroy);
}

void pipeline_describe(void *self, char *text, size_t bytes)
{
    const struct pipeline *p = self;
    size_t used = (size_t)snprintf(text, bytes, "on");
    for (int s = 0; s < p->stage_count && used < bytes; s++) {
        const struct stage *stage = &p->stages[s];
        used += (size_t)snprintf(text + used, bytes - used, "%s %s: %zu-%zu", s > 0 ? "," : "",
                                 ctrt_device_name(stage->device), stage->first, stage->end - 1);
        if (stage->bytes > 0 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " (%.2f MiB)", (double)stage->bytes / 1048576);
    }
    if (used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, "; %s", p->gpipe ? "gpipe" : "1f1b");
    if (used < bytes && p->micro > 0 && p->canonical == 0)
        snprintf(text + used, bytes - used, ", %lld micro-batches", (long long)p->micro);
}

/* What a device needs depends on the stages, which are not known yet. */
static ctrt_status pipeline_estimate(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                                     const ctrt_strategy_facts *facts)
{
    (void)facts;
    const bool divisible = strcmp(ctrt_module_kind(config->module), "Sequential") == 0;
    estimate->applies = divisible && config->count > 1;
    estimate->places = true;
    estimate->preference = 300;
    if (!divisible && config->count > 1)
        snprintf(estimate->reason, sizeof estimate->reason, "only a Sequential can be divided");
    return CTRT_OK;
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .create = create, .destroy = destroy, .forward = pipeline_forward,
    .step = pipeline_step, .describe = pipeline_describe, .estimate = pipeline_estimate,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "pipeline", .table = &strategy },
};

static ctrt_status init(const ctrt_host *host)
{
    static const ctrt_param *const params[] = { &split_param, &micro_param, &states_param, &schedule_param, NULL };
    return strategy_register(host, params);
}

CTRT_PLUGIN_DEFINE("strategy-pipeline", PACKAGE_VERSION,
                   "the children of a Sequential in stages, one stage on each device", components, init)
