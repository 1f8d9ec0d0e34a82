/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/place.c: which children form a stage, and the move of their tensors to its device. */
#include "pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tensors of the children ---- */

static ctrt_status tensor_at(const char **name, ctrt_tensor **tensor, ctrt_module *module, size_t parameters, size_t i)
{
    return i < parameters ? ctrt_module_parameter(name, tensor, module, i)
                          : ctrt_module_buffer(name, tensor, module, i - parameters);
}

static const char *tensor_name(const struct pipeline *p, size_t i)
{
    const char *name = "?";
    (void)tensor_at(&name, NULL, p->module, p->parameters, i);
    return name;
}

static uint64_t tensor_bytes(const ctrt_tensor *tensor)
{
    return (uint64_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
}

static void tensors_free(struct pipeline *p)
{
    ctrt_gradients_release(p->tensors, p->tensors != NULL ? p->count : 0);
    free(p->tensors);
    free(p->before);
    free(p->grads);
    p->tensors = p->before = p->grads = NULL;
    p->parameters = p->count = 0;
}

/* Writes the number of parameters, and of parameters and buffers. */
static ctrt_status tensors_count(size_t *parameters, size_t *count, ctrt_module *module)
{
    ctrt_tensor *any;
    for (int buffers = 0; buffers < 2; buffers++) {     /* if the host is out of memory, the numbers would be 0 */
        const ctrt_status status = (buffers ? ctrt_module_buffer : ctrt_module_parameter)(NULL, &any, module, 0);
        if (status != CTRT_OK && status != CTRT_ERR_NOT_FOUND)
            return status;
    }
    *parameters = ctrt_module_parameter_count(module);
    *count = *parameters + ctrt_module_buffer_count(module);
    return CTRT_OK;
}

static ctrt_status tensors_list(struct pipeline *p)
{
    size_t parameters, count;
    CTRT_TRY(tensors_count(&parameters, &count, p->module));
    tensors_free(p);
    p->tensors = calloc(count + 1, sizeof *p->tensors);
    p->before = calloc(parameters + 1, sizeof *p->before);
    p->grads = calloc(parameters + 1, sizeof *p->grads);
    if (p->tensors == NULL || p->before == NULL || p->grads == NULL)
        return no_memory();
    p->parameters = parameters;
    p->count = count;
    for (size_t i = 0; i < count; i++) {
        ctrt_tensor *tensor;
        CTRT_TRY(tensor_at(NULL, &tensor, p->module, parameters, i));
        p->tensors[i] = ctrt_tensor_retain(tensor);
    }
    return CTRT_OK;
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
    p->children = calloc(count, sizeof *p->children);
    if (p->children == NULL)
        return no_memory();
    for (p->child_count = 0; p->child_count < count; p->child_count++)
        CTRT_TRY(ctrt_module_child(NULL, &p->children[p->child_count], p->module, p->child_count));
    return CTRT_OK;
}

struct owner {                              /* the children that have a tensor */
    size_t first, last;                     /* first > last: none */
};

static ctrt_status owners_find(struct owner **out, const struct pipeline *p)
{
    struct owner *owners = calloc(p->count + 1, sizeof *owners);
    if (owners == NULL)
        return no_memory();
    for (size_t i = 0; i < p->count; i++)
        owners[i].first = p->child_count;
    for (size_t c = 0; c < p->child_count; c++) {
        size_t parameters, count;
        ctrt_tensor *tensor;
        const ctrt_status status = tensors_count(&parameters, &count, p->children[c]);
        if (status != CTRT_OK) {
            free(owners);
            return status;
        }
        size_t next = 0;                    /* the children's tensors have the order of the module's */
        for (size_t k = 0; k < count && tensor_at(NULL, &tensor, p->children[c], parameters, k) == CTRT_OK; k++) {
            for (size_t tries = 0; tries < p->count && p->tensors[next] != tensor; tries++)
                next = next + 1 < p->count ? next + 1 : 0;
            if (owners[next].first == p->child_count)
                owners[next].first = c;
            owners[next].last = c;
        }
    }
    *out = owners;
    return CTRT_OK;
}

/* ---- stages ---- */

static int stage_of(const struct pipeline *p, size_t child)
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
        stage->parameters = calloc(p->parameters + 1, sizeof *stage->parameters);
        stage->buffers = calloc(p->count - p->parameters + 1, sizeof *stage->buffers);
        stage->parameter_count = stage->buffer_count = 0;
        if (stage->parameters == NULL || stage->buffers == NULL)
            return no_memory();
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

/* Where stages may begin: cuts[j] is the j-th child that may begin one, because no child before it shares a tensor with
 * it or with a later child. cuts[groups] is the number of children. */
struct balance {
    size_t *cuts, groups;
    double *sums;                           /* bytes of the parameters and buffers of the groups before j */
    double *best;                           /* [stage][j]: the fullest stage, with groups 0..j-1 in stages 0..stage */
    size_t *from;                           /* [stage][j]: the first group of `stage` then */
};

static ctrt_status balance_begin(struct balance *b, const struct pipeline *p, const struct owner *owners)
{
    const size_t most = p->child_count + 1;
    b->cuts = calloc(most, sizeof *b->cuts);
    b->sums = calloc(most, sizeof *b->sums);
    b->best = calloc(most * (size_t)p->n, sizeof *b->best);
    b->from = calloc(most * (size_t)p->n, sizeof *b->from);
    double *bytes = calloc(most, sizeof *bytes);
    bool *tied = calloc(most, sizeof *tied);
    const bool memory = b->cuts != NULL && b->sums != NULL && b->best != NULL && b->from != NULL && bytes != NULL
                        && tied != NULL;
    for (size_t i = 0; memory && i < p->count; i++) {
        if (owners[i].first == p->child_count)
            continue;
        bytes[owners[i].first] += (double)tensor_bytes(p->tensors[i]);
        for (size_t c = owners[i].first + 1; c <= owners[i].last; c++)
            tied[c] = true;
    }
    for (size_t c = 0; memory && c < p->child_count; c++) {
        if (!tied[c])
            b->cuts[b->groups++] = c;
        b->sums[b->groups] = (c > 0 && tied[c] ? b->sums[b->groups] : b->sums[b->groups - 1]) + bytes[c];
    }
    if (memory)
        b->cuts[b->groups] = p->child_count;
    free(bytes);
    free(tied);
    return memory ? CTRT_OK : no_memory();
}

/* Total memory of each device, so that a larger device gets more; 1 for all if one does not report it. */
static ctrt_status capacities(double **out, const struct pipeline *p)
{
    double *capacity = calloc((size_t)p->n, sizeof *capacity);
    bool known = capacity != NULL;
    for (int s = 0; known && s < p->n; s++) {
        uint64_t left, total = 0;
        known = ctrt_device_memory_info(p->devices[s], &left, &total) == CTRT_OK && total > 0;
        capacity[s] = (double)total;
    }
    for (int s = 0; capacity != NULL && !known && s < p->n; s++)
        capacity[s] = 1;
    *out = capacity;
    return capacity != NULL ? CTRT_OK : no_memory();
}

/* Divides the groups so that the fullest stage, relative to its device, is as small as possible. Of equal divisions it
 * takes those whose stages begin late, so that layers without parameters stay with the layer before. */
static void balance_choose(struct balance *b, struct pipeline *p, const double *capacity)
{
    const size_t width = p->child_count + 1;
    p->stage_count = (size_t)p->n < b->groups ? p->n : (int)b->groups;
    for (int s = 0; s < p->stage_count; s++)
        for (size_t j = (size_t)s + 1; j <= b->groups; j++) {
            double *best = &b->best[(size_t)s * width + j];
            *best = -1;
            for (size_t k = (size_t)s; k < j && (s > 0 || k == 0); k++) {
                const double here = (b->sums[j] - b->sums[k]) / capacity[s];
                const double before = s > 0 ? b->best[(size_t)(s - 1) * width + k] : 0;
                const double fullest = here > before ? here : before;
                if (*best < 0 || fullest <= *best) {
                    *best = fullest;
                    b->from[(size_t)s * width + j] = k;
                }
            }
        }
    size_t end = b->groups;
    for (int s = p->stage_count; s-- > 0;) {
        p->stages[s].end = b->cuts[end];
        end = b->from[(size_t)s * width + end];
        p->stages[s].first = b->cuts[end];
    }
}

static ctrt_status balance(struct pipeline *p, const struct owner *owners)
{
    struct balance b = { .groups = 0 };
    double *capacity = NULL;
    ctrt_status status = balance_begin(&b, p, owners);
    if (status == CTRT_OK)
        status = capacities(&capacity, p);
    if (status == CTRT_OK)
        balance_choose(&b, p, capacity);
    free(capacity);
    free(b.cuts);
    free(b.sums);
    free(b.best);
    free(b.from);
    return status;
}

/* ---- memory ---- */

/* Parameters, their gradients, and buffers. */
static uint64_t stage_bytes(const struct pipeline *p, const struct stage *stage)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < stage->parameter_count; i++) {
        const ctrt_tensor *parameter = p->tensors[stage->parameters[i]];
        bytes += (ctrt_tensor_requires_grad(parameter) ? 2 : 1) * tensor_bytes(parameter);
    }
    for (size_t i = 0; i < stage->buffer_count; i++)
        bytes += tensor_bytes(p->tensors[stage->buffers[i]]);
    return bytes;
}

static ctrt_status memory_check(const struct pipeline *p)
{
    char text[1024] = "";
    size_t used = 0;
    bool fits = true;
    for (int s = 0; s < p->stage_count; s++) {
        const struct stage *stage = &p->stages[s];
        uint64_t here = 0, left = 0;
        for (int k = 0; k < p->stage_count; k++)        /* a device may have several stages */
            here += p->stages[k].device == stage->device ? stage_bytes(p, &p->stages[k]) : 0;
        const bool known = ctrt_module_memory_budget(&left, p->module, stage->device) == CTRT_OK;
        fits = fits && (!known || here <= left);
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s stage %d, children %zu-%zu, %.1f MiB on %s",
                                     s > 0 ? ";" : "", s, stage->first, stage->end - 1,
                                     (double)stage_bytes(p, stage) / 1048576, ctrt_device_name(stage->device));
        if (known && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, " (%.1f MiB available)", (double)left / 1048576);
    }
    return fits ? CTRT_OK : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the parameters, gradients and buffers of the stages do "
                                      "not fit:%s; use more devices or another CTRT_PIPELINE_SPLIT", text);
}

/* ---- moving ---- */

static ctrt_device *child_device(ctrt_module *child)
{
    ctrt_tensor *tensor;
    return tensor_at(NULL, &tensor, child, ctrt_module_parameter_count(child), 0) == CTRT_OK
               ? ctrt_tensor_device(tensor) : NULL;
}

static ctrt_status children_move(struct pipeline *p)
{
    ctrt_device **places = calloc(p->child_count, sizeof(ctrt_device *));
    ctrt_status status = places != NULL ? CTRT_OK : no_memory();
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
    free(places);
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
    struct owner *owners = NULL;
    CTRT_TRY(children_list(p));
    CTRT_TRY(tensors_list(p));
    p->stages = calloc((size_t)p->n, sizeof *p->stages);
    if (p->stages == NULL)
        return no_memory();
    for (int s = 0; s < p->n; s++)
        p->stages[s].device = p->devices[s];
    ctrt_status status = owners_find(&owners, p);
    if (status == CTRT_OK)
        status = split != NULL && *split != '\0' ? split_read(p, split) : balance(p, owners);
    if (status == CTRT_OK)
        status = stages_fill(p, owners);
    if (status == CTRT_OK)
        status = memory_check(p);
    free(owners);
    return status == CTRT_OK ? children_move(p) : status;
}

static bool tensors_same(const struct pipeline *p)
{
    size_t parameters, count;
    if (p->tensors == NULL || p->before == NULL || p->grads == NULL
        || tensors_count(&parameters, &count, p->module) != CTRT_OK || parameters != p->parameters
        || count != p->count)
        return false;
    for (size_t i = 0; i < p->count; i++) {
        ctrt_tensor *tensor;
        if (tensor_at(NULL, &tensor, p->module, p->parameters, i) != CTRT_OK || tensor != p->tensors[i])
            return false;
    }
    return true;
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
    struct owner *owners = NULL;
    ctrt_module *child;
    size_t count = 0;
    while (ctrt_module_child(NULL, &child, p->module, count) == CTRT_OK
           && count < p->child_count && child == p->children[count])
        count++;
    if (count < p->child_count || ctrt_module_child(NULL, &child, p->module, count) == CTRT_OK)
        return ctrt_fail(CTRT_ERR_STATE, "the children of the Sequential are not those of ctrt_parallel_new, which "
                         "divided %zu children into stages; call it again", p->child_count);
    if (!tensors_same(p)) {
        ctrt_status status = tensors_list(p);
        if (status == CTRT_OK)
            status = owners_find(&owners, p);
        if (status == CTRT_OK)
            status = stages_fill(p, owners);
        free(owners);
        if (status != CTRT_OK) {
            tensors_free(p);                /* listed again at the next call */
            return status;
        }
    }
    return check_places(p);
}
