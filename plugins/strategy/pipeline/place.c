/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/place.c: which children form a stage, and the move of their tensors to its device. */
#include "pipeline.h"

#include <stdio.h>

/* ---- the tensors of the children ---- */

static const char *tensor_name(const struct pipeline *p, size_t i)
{
    const char *name = "?";
    (void)strategy_tensor_at(&name, NULL, p->module, p->parameters, i);
    return name;
}

static void tensors_free(struct pipeline *p)
{
    ctrt_tensors_release(p->tensors, p->count);
    free(p->tensors);
    free(p->before);
    free(p->grads);
    p->tensors = p->before = p->grads = NULL;
    p->parameters = p->count = 0;
}

static ctrt_status tensors_list(struct pipeline *p)
{
    tensors_free(p);
    CTRT_TRY(strategy_tensors_list(&p->tensors, &p->parameters, &p->count, p->module));
    CTRT_TRY(ALLOCATE(p->before, p->parameters));
    return ALLOCATE(p->grads, p->parameters);
}

static ctrt_status children_list(struct pipeline *p)
{
    ctrt_module *child;
    size_t count = 0;
    if (strcmp(ctrt_module_kind(p->module), "Sequential") != 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the module is a %s, but only the children of a Sequential can be "
                         "divided into stages; put its layers into a Sequential (ctrt_sequential_new), or choose "
                         "another strategy", ctrt_module_kind(p->module));
    while (ctrt_module_child(NULL, &child, p->module, count) == CTRT_OK)
        count++;
    if (count == 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the Sequential has no children");
    CTRT_TRY(ALLOCATE(p->children, count));
    for (p->child_count = 0; p->child_count < count; p->child_count++)
        CTRT_TRY(ctrt_module_child(NULL, &p->children[p->child_count], p->module, p->child_count));
    return CTRT_OK;
}

/* Writes owners[p->count], which the caller frees, also if it fails. */
static ctrt_status owners_find(struct owner **out, const struct pipeline *p)
{
    CTRT_TRY(ALLOCATE(*out, p->count));
    struct owner *owners = *out;
    for (size_t i = 0; i < p->count; i++)
        owners[i].first = p->child_count;
    for (size_t c = 0; c < p->child_count; c++) {
        size_t parameters, count;
        ctrt_tensor *tensor;
        CTRT_TRY(strategy_tensors_count(&parameters, &count, p->children[c]));
        size_t next = 0;                    /* the children's tensors have the order of the module's */
        for (size_t k = 0; k < count; k++) {
            CTRT_TRY(strategy_tensor_at(NULL, &tensor, p->children[c], parameters, k));
            for (size_t tries = 0; tries < p->count && p->tensors[next] != tensor; tries++)
                next = next + 1 < p->count ? next + 1 : 0;
            if (owners[next].first == p->child_count)
                owners[next].first = c;
            owners[next].last = c;
        }
    }
    return CTRT_OK;
}

/* ---- stages ---- */

int stage_of(const struct pipeline *p, size_t child)
{
    int s = 0;
    while (child >= p->stages[s].end)
        s++;
    return s;
}

/* Writes the lists of tensors of the stages. */
static ctrt_status stages_fill(struct pipeline *p, const struct owner *owners)
{
    for (int s = 0; s < p->stage_count; s++) {
        struct stage *stage = &p->stages[s];
        free(stage->parameters);
        free(stage->buffers);
        stage->parameters = stage->buffers = NULL;
        stage->parameter_count = stage->buffer_count = 0;
        CTRT_TRY(ALLOCATE(stage->parameters, p->parameters));
        CTRT_TRY(ALLOCATE(stage->buffers, p->count - p->parameters));
    }
    for (size_t i = 0; i < p->count; i++) {
        if (owners[i].first == p->child_count)
            continue;
        const int s = stage_of(p, owners[i].first), last = stage_of(p, owners[i].last);
        struct stage *stage = &p->stages[s];
        if (s != last)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the children %zu and %zu share \"%s\", but are in the stages %d "
                             "and %d; choose a split (CTRT_PIPELINE_SPLIT) with both in one stage", owners[i].first,
                             owners[i].last, tensor_name(p, i), s, last);
        if (i < p->parameters)
            stage->parameters[stage->parameter_count++] = i;
        else
            stage->buffers[stage->buffer_count++] = i;
    }
    return CTRT_OK;
}

static ctrt_status split_read(struct pipeline *p, const char *split)
{
    const char *at = split;
    size_t first = 0;
    p->stage_count = 1;
    for (bool more = true; more;) {
        char *end;
        const unsigned long child = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || (*end != ',' && *end != '\0') || child <= first || child >= p->child_count)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_PIPELINE_SPLIT=%s: expected increasing numbers of "
                             "children from 1 to %zu: 3,5", split, p->child_count - 1);
        if (p->stage_count == p->n)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_PIPELINE_SPLIT=%s: more stages than devices (%d)", split,
                             p->n);
        p->stages[p->stage_count - 1].end = first = child;
        p->stages[p->stage_count++].first = child;
        more = *end == ',';
        at = end + 1;
    }
    p->stages[p->stage_count - 1].end = p->child_count;
    return CTRT_OK;
}

/* ---- moving ---- */

static ctrt_device *child_device(ctrt_module *child)
{
    ctrt_tensor *tensor;
    return strategy_tensor_at(NULL, &tensor, child, ctrt_module_parameter_count(child), 0) == CTRT_OK
               ? ctrt_tensor_device(tensor) : NULL;
}

static ctrt_status children_to_stages(struct pipeline *p)
{
    SCRATCH ctrt_device **places = NULL;
    ctrt_status status = ALLOCATE(places, p->child_count);
    size_t c = 0;
    for (; c < p->child_count && status == CTRT_OK; c++) {
        const int s = stage_of(p, c);
        places[c] = child_device(p->children[c]);
        status = ctrt_context(ctrt_module_to(p->children[c], p->stages[s].device, CTRT_DTYPE_DEFAULT),
                              "moving child %zu to stage %d (%s)", c, s, ctrt_device_name(p->stages[s].device));
    }
    if (status != CTRT_OK && c > 0)
        for (c--; c-- > 0;)
            if (places[c] != NULL)
                (void)ctrt_module_to(p->children[c], places[c], CTRT_DTYPE_DEFAULT);
    return status;
}

/* ---- together ---- */

void pipeline_unplace(struct pipeline *p)
{
    for (int s = 0; p->stages != NULL && s < p->n; s++) {
        free(p->stages[s].parameters);
        free(p->stages[s].buffers);
    }
    tensors_free(p);
    free(p->stages);
    free(p->children);
}

ctrt_status pipeline_place(struct pipeline *p, const char *split)
{
    const struct demand demand = { .memory = NULL };
    SCRATCH struct owner *owners = NULL;
    CTRT_TRY(children_list(p));
    CTRT_TRY(tensors_list(p));
    CTRT_TRY(ALLOCATE(p->stages, (size_t)p->n));
    for (int s = 0; s < p->n; s++)
        p->stages[s].device = p->devices[s];
    p->settled = split != NULL && *split != '\0';
    CTRT_TRY(owners_find(&owners, p));
    CTRT_TRY(p->settled ? split_read(p, split) : pipeline_divide(p, owners, &demand));
    CTRT_TRY(stages_fill(p, owners));
    if (p->settled)
        CTRT_TRY(pipeline_check(p, owners, &demand));
    return children_to_stages(p);
}

/* Moves the children to the stages that they have now. `old`: the `count` stages where they are. */
static ctrt_status children_move(struct pipeline *p, const struct owner *owners, const struct stage *old, int count)
{
    bool same = p->stage_count == count;
    for (int s = 0; s < p->stage_count; s++)
        same = same && p->stages[s].first == old[s].first && p->stages[s].end == old[s].end;
    if (same)
        return CTRT_OK;
    CTRT_TRY(stages_fill(p, owners));
    ctrt_status status = children_to_stages(p);
    if (status != CTRT_ERR_OUT_OF_MEMORY)
        return status;
    /* Two devices may be too full to exchange children, so the children that move leave their devices first. */
    ctrt_device *cpu;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    for (size_t c = 0; c < p->child_count; c++)
        if (c < old[stage_of(p, c)].first || c >= old[stage_of(p, c)].end)
            CTRT_TRY(ctrt_module_to(p->children[c], cpu, CTRT_DTYPE_DEFAULT));
    return children_to_stages(p);
}

static ctrt_status place_measured(struct pipeline *p, const struct demand *demand)
{
    SCRATCH struct owner *owners = NULL;
    SCRATCH struct stage *old = NULL;
    const int count = p->stage_count;
    CTRT_TRY(ALLOCATE(old, (size_t)p->n));
    memcpy(old, p->stages, (size_t)p->n * sizeof *old);
    CTRT_TRY(owners_find(&owners, p));
    ctrt_status status = pipeline_divide(p, owners, demand);
    if (status == CTRT_OK)
        status = children_move(p, owners, old, count);
    if (status != CTRT_OK) {
        char message[1536];
        snprintf(message, sizeof message, "%s", ctrt_error_message());
        p->stage_count = count;
        for (int s = 0; s < p->n; s++) {
            p->stages[s].first = old[s].first;
            p->stages[s].end = old[s].end;
            p->stages[s].bytes = old[s].bytes;
        }
        ctrt_status back = stages_fill(p, owners);
        if (back == CTRT_OK)
            back = children_to_stages(p);
        p->moved = back != CTRT_OK;
        status = back == CTRT_OK ? ctrt_fail(status, "%s", message)
                                 : ctrt_fail(status, "%s; and the children could not be moved back to their devices, "
                                             "which the next step tries again", message);
    }
    return status;
}

ctrt_status pipeline_place_batch(struct pipeline *p, const ctrt_strategy_batch *batch)
{
    struct demand demand = { .memory = NULL };
    char text[1024] = "";
    if (p->settled || p->stage_count == 1)
        return CTRT_OK;
    for (int s = 0; s < p->stage_count; s++)
        if (ctrt_dry_run_active(p->stages[s].device))
            return CTRT_OK;                 /* parameters must not move in a dry run of the program */
    SCRATCH struct child_memory *memory = NULL;
    CTRT_TRY(ALLOCATE(memory, p->child_count + 1));
    ctrt_status status = pipeline_measure(memory, &demand.micro, demand.copies, p, batch);
    if (status != CTRT_OK) {
        /* A module that cannot be copied, and a loss function that uses its parameters without ctrt_loss_parameter, are
         * not measured again. After another error the step may also fail, and the next step measures again. */
        p->settled = status == CTRT_ERR_NOT_SUPPORTED || status == CTRT_ERR_DEVICE;
        strategy_host->log(p->settled ? CTRT_LOG_INFO : CTRT_LOG_DEBUG, "parallel", "pipeline: the memory of a step is "
                           "unknown, so the stages remain as they are: %s", ctrt_error_message());
        return CTRT_OK;
    }
    demand.memory = memory;
    CTRT_TRY(place_measured(p, &demand));
    p->settled = true;
    pipeline_describe(p, text, sizeof text);
    strategy_host->log(CTRT_LOG_INFO, "parallel", "pipeline %s", text);
    return CTRT_OK;
}

static ctrt_status check_places(const struct pipeline *p)
{
    for (int s = 0; s < p->stage_count; s++) {
        const struct stage *stage = &p->stages[s];
        for (size_t k = 0; k < stage->parameter_count + stage->buffer_count; k++) {
            const size_t i = k < stage->parameter_count ? stage->parameters[k]
                                                        : stage->buffers[k - stage->parameter_count];
            ctrt_device *device = ctrt_tensor_device(p->tensors[i]);
            if (device != stage->device)
                return ctrt_fail(CTRT_ERR_DEVICE, "stage %d must have its parameters and buffers on %s, but \"%s\" is "
                                 "on %s; the module must not be moved", s, ctrt_device_name(stage->device),
                                 tensor_name(p, i), ctrt_device_name(device));
        }
    }
    return CTRT_OK;
}

ctrt_status pipeline_refresh(struct pipeline *p)
{
    SCRATCH struct owner *owners = NULL;
    ctrt_module *child;
    size_t count = 0;
    if (p->moved)
        CTRT_TRY(children_to_stages(p));
    p->moved = false;
    while (ctrt_module_child(NULL, &child, p->module, count) == CTRT_OK
           && count < p->child_count && child == p->children[count])
        count++;
    if (count < p->child_count || ctrt_module_child(NULL, &child, p->module, count) == CTRT_OK)
        return ctrt_fail(CTRT_ERR_STATE, "the children of the Sequential are not those of ctrt_parallel_new, which "
                         "divided %zu children into stages; call it again", p->child_count);
    if (p->before == NULL || p->grads == NULL
        || !strategy_tensors_same(p->tensors, p->parameters, p->count, p->module)) {
        ctrt_status status = tensors_list(p);
        if (status == CTRT_OK)
            status = owners_find(&owners, p);
        if (status == CTRT_OK)
            status = stages_fill(p, owners);
        if (status != CTRT_OK) {
            tensors_free(p);                /* listed again at the next call */
            return status;
        }
    }
    return check_places(p);
}
