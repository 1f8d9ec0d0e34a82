/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/pipeline/divide.c: chooses the children of each stage. Of the divisions that fit on the devices, it
 * takes the one whose largest stage is smallest.
 *
 * The size of a stage is the number of bytes of its parameters, its buffers and the outputs of its children for one
 * micro-batch. A pass reads or writes each of these about once, so the size stands for the time of a pass. Real times
 * are unknown before the children have run. They also differ between runs, and then the division would differ as well.
 * The peak of a stage, unlike its size, depends on the stage's place, because the first stages keep the activations of
 * more micro-batches. */
#include "pipeline.h"

#include <stdio.h>

#define ASSUMED_STATES 2                    /* tensors per parameter that an optimizer keeps, as Adam's do */

struct division {
    const struct pipeline *p;
    const struct demand *demand;
    int64_t states;                         /* tensors per parameter that are planned for the optimizer */
    uint64_t *fixed, *grads;                /* bytes of each child: parameters, buffers and states; gradients */
    double *sizes;                          /* [c]: size of the children before c */
    size_t *cuts, groups;                   /* cuts[j]: the j-th child that may begin a stage, because no child before
                                             * it shares a tensor with it or with a later child; cuts[groups]: the
                                             * number of children. Group j: the children cuts[j]..cuts[j+1]-1 */
    double *best;                           /* [stage][j]: the largest stage, with groups 0..j-1 in stages 0..stage;
                                             * negative: no division fits */
    size_t *from;                           /* [stage][j]: the first group of `stage` in that division */
    uint64_t *needs;                        /* [j]: peak of a stage whose last child is j - 1: see stage_needs */
    double *capacity;                       /* of each device: its memory, or its limit */
    uint64_t *budget;                       /* of each stage: what is available on its device; UINT64_MAX: unknown */
};

/* ---- the memory of a stage ---- */

static void tensor_count(struct division *d, size_t i, size_t child)
{
    const struct pipeline *p = d->p;
    const ctrt_tensor *tensor = p->tensors[i], *grad = ctrt_tensor_grad(tensor);
    const bool measured = d->demand->memory != NULL;
    const uint64_t bytes = strategy_tensor_bytes(tensor);
    d->fixed[child] += bytes;
    d->sizes[child + 1] += (double)bytes;
    if (i >= p->parameters) {
        d->fixed[child] += measured && p->canonical > 0 ? 2 * bytes : 0;    /* from before a step, and after it */
        return;
    }
    if (grad != NULL && measured)
        d->fixed[child] += strategy_tensor_bytes(grad);      /* the step adds to it at its end */
    if (!ctrt_tensor_requires_grad(tensor))
        return;
    const ctrt_dtype dtype = ctrt_tensor_dtype(tensor);
    d->grads[child] += bytes;
    d->fixed[child] += (uint64_t)d->states * (dtype == CTRT_F16 || dtype == CTRT_BF16 ? 2 * bytes : bytes);
}

static void tensors_count(struct division *d, const struct owner *owners)
{
    const size_t children = d->p->child_count;
    memset(d->fixed, 0, children * sizeof *d->fixed);
    memset(d->grads, 0, children * sizeof *d->grads);
    memset(d->sizes, 0, (children + 1) * sizeof *d->sizes);
    for (size_t i = 0; i < d->p->count; i++)
        if (owners[i].first < children)
            tensor_count(d, i, owners[i].first);
    for (size_t c = 0; c < children; c++)
        d->sizes[c + 1] += d->sizes[c] + (d->demand->memory != NULL ? (double)d->demand->memory[c + 1].input : 0);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* One stage, with the children that were added to it so far. */
struct filling {
    int64_t flight;                         /* micro-batches whose activations it keeps, including one in a pass */
    int64_t level;                          /* activations of the micro-batch in a pass, after the last child */
    int64_t forward;                        /* peak of the forward pass of a micro-batch */
    int64_t backward[2];                    /* as in child_memory; [0] without the gradients of the stage */
    int64_t fixed, grads;
};

/* Returns the peak of the stage. `held`: bytes of the activations of each other micro-batch in flight; `early`: bytes
 * that arrive before the pass that uses them; `late`: bytes that are released only after the next backward pass.
 *
 * Outside canonical mode the gradients exist from the second backward pass on. In canonical mode each backward pass
 * creates gradients, and after m micro-batches the sum tree holds one list of gradients for each bit that is 1 in m. */
static int64_t filling_peak(const struct division *d, const struct filling *f, const int64_t backward[2], int64_t held,
                            int64_t early, int64_t late)
{
    const int64_t micro = d->demand->micro, flight = f->flight;
    const bool canonical = d->p->canonical > 0;
    int64_t peak = f->forward + (flight - 1) * held, sums = 0;
    peak += flight < micro ? f->grads + late + (flight + 1 < micro ? early : 0) : 0;
    for (int64_t m = 0; m < micro && (canonical || m < 2); m = 2 * m + 1) {
        const int64_t others = (flight < micro - m ? flight : micro - m) - 1;
        const int64_t grads = canonical || m == 0 ? backward[0] + sums * f->grads : backward[1] + f->grads;
        peak = larger(peak, others * held + grads + (m > 0 ? late : 0) + (flight < micro - m ? early : 0));
        sums++;
    }
    return f->fixed + peak;
}

/* Writes needs[j], the peak of stage s in a step with the children first..j-1, for all j.
 *
 * The input of a stage is a copy, except in the first stage. Under 1f1b one input arrives early. An input, its
 * gradient and the gradient of the output are released after the backward pass of the next micro-batch (stage.c). */
static void stage_needs(struct division *d, int s, size_t first)
{
    const struct pipeline *p = d->p;
    const struct child_memory *memory = d->demand->memory;
    const int64_t ahead = p->gpipe ? d->demand->micro : p->stage_count - s;
    struct filling f = { .flight = ahead < d->demand->micro ? ahead : d->demand->micro };
    f.fixed = s == 0 ? (int64_t)d->demand->copies[0] : 0;
    const int64_t input = memory != NULL && (s > 0 || p->canonical > 0) ? memory[first].input : 0;
    f.level = f.forward = input + (memory != NULL && s > 0 ? memory[first].freed : 0);
    for (size_t c = first; c < p->child_count; c++) {
        int64_t peaks[2], early = s > 0 ? input : 0, late = 2 * early, held;
        f.fixed += (int64_t)d->fixed[c];
        f.grads += (int64_t)d->grads[c];
        if (memory == NULL) {
            d->needs[c + 1] = (uint64_t)(f.fixed + f.grads);
            continue;
        }
        const struct child_memory *child = &memory[c], *next = &memory[c + 1];
        f.forward = larger(f.forward, f.level + child->forward);
        f.backward[0] += (int64_t)d->grads[c];
        held = f.level + child->kept;
        if (c + 1 < p->child_count) {
            late += next->input;
            for (int i = 0; i < 2; i++)     /* the output and its gradient are held until the end */
                peaks[i] = larger(f.backward[i] + 2 * next->input, f.level + child->backward_last[i]);
        } else {                            /* the loss; its inputs are copied to the last device */
            const int64_t rows = p->stages[s].device != p->stages[0].device ? memory[0].input : 0;
            f.fixed += (int64_t)d->demand->copies[1];
            f.forward = larger(f.forward, held + rows + next->forward);
            for (int i = 0; i < 2; i++)
                peaks[i] = larger(larger(f.backward[i], f.level + child->backward[i]), held + next->backward[i]);
            held += next->kept;
        }
        d->needs[c + 1] = (uint64_t)larger(filling_peak(d, &f, peaks, held, early, late), 0);
        for (int i = 0; i < 2; i++)
            f.backward[i] = larger(f.backward[i], f.level + child->backward[i]);
        f.level += child->kept;
    }
}

/* ---- choosing ---- */

/* Divides the groups into stages. With `must_fit`, each stage must fit in its budget, and the largest stage, relative
 * to the capacity of its device, is as small as possible. Without `must_fit`, the largest peak, relative to the budget
 * of its stage, is as small as possible. Of equal divisions it takes the one whose stages begin latest, so that layers
 * without parameters stay with the layer before. Returns false if no division fits. */
static bool choose(struct division *d, struct pipeline *p, bool must_fit)
{
    const size_t width = p->child_count + 1;
    for (size_t i = 0; i < width * (size_t)p->stage_count; i++)
        d->best[i] = -1;
    for (int s = 0; s < p->stage_count; s++) {
        for (size_t k = (size_t)s; k < d->groups && (s > 0 || k == 0); k++) {
            const double before = s > 0 ? d->best[(size_t)(s - 1) * width + k] : 0;
            if (before < 0)
                continue;
            stage_needs(d, s, d->cuts[k]);
            for (size_t j = k + 1; j <= d->groups; j++) {
                const uint64_t need = d->needs[d->cuts[j]];
                const double size = (d->sizes[d->cuts[j]] - d->sizes[d->cuts[k]]) / d->capacity[s];
                const double here = must_fit ? size : (double)need / ((double)d->budget[s] + 1);
                const double largest = here > before ? here : before;
                double *best = &d->best[(size_t)s * width + j];
                if ((must_fit && need > d->budget[s]) || (*best >= 0 && largest > *best))
                    continue;
                *best = largest;
                d->from[(size_t)s * width + j] = k;
            }
        }
    }
    if (d->best[(size_t)(p->stage_count - 1) * width + d->groups] < 0)
        return false;
    size_t end = d->groups;
    for (int s = p->stage_count; s-- > 0;) {
        p->stages[s].end = d->cuts[end];
        end = d->from[(size_t)s * width + end];
        p->stages[s].first = d->cuts[end];
    }
    return true;
}

/* ---- devices ---- */

static int times_listed(const struct pipeline *p, const ctrt_device *device)
{
    int times = 0;
    for (int s = 0; s < p->stage_count; s++)
        times += p->stages[s].device == device;
    return times;
}

/* Reads the capacity and the budget of each stage. If a device has several stages, each gets an equal part. The
 * capacity, unlike the budget, does not depend on other programs, so a division that fits is the same in every run. */
static void devices_read(struct division *d)
{
    const struct pipeline *p = d->p;
    bool known = true;
    for (int s = 0; s < p->stage_count; s++) {
        ctrt_device *device = p->stages[s].device;
        const int times = times_listed(p, device);
        uint64_t left, total = 0;
        const uint64_t limit = ctrt_memory_limit(device);
        if (ctrt_device_memory_info(device, &left, &total) != CTRT_OK || total == 0)
            total = UINT64_MAX;
        total = limit < total ? limit : total;
        known = known && total != UINT64_MAX;
        d->capacity[s] = (double)total / times;
        d->budget[s] = ctrt_module_memory_budget(&left, p->module, device) == CTRT_OK ? left / (uint64_t)times
                                                                                       : UINT64_MAX;
    }
    for (int s = 0; s < p->stage_count && !known; s++)
        d->capacity[s] = 1;
}

/* Sets the bytes of the stages. CTRT_ERR_OUT_OF_MEMORY if they exceed what a device has available. */
static ctrt_status stages_check(struct division *d, struct pipeline *p)
{
    char text[1024] = "";
    size_t used = 0;
    bool fits = true;
    for (int s = 0; s < p->stage_count; s++) {
        stage_needs(d, s, p->stages[s].first);
        p->stages[s].bytes = d->needs[p->stages[s].end];
    }
    for (int s = 0; s < p->stage_count; s++) {
        const struct stage *stage = &p->stages[s];
        uint64_t here = 0, left = 0;
        for (int k = 0; k < p->stage_count; k++)
            here += p->stages[k].device == stage->device ? p->stages[k].bytes : 0;
        const bool known = ctrt_module_memory_budget(&left, p->module, stage->device) == CTRT_OK,
                   lacks = known && here > left;
        fits = fits && !lacks;
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s stage %d, children %zu-%zu, %.1f MiB on %s",
                                     s > 0 ? ";" : "", s, stage->first, stage->end - 1,
                                     (double)stage->bytes / 1048576, ctrt_device_name(stage->device));
        if (known && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, " (%.1f MiB available)", (double)left / 1048576);
        if (lacks && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, ", which lacks %llu bytes",
                                     (unsigned long long)(here - left));
    }
    for (int s = 0; s < p->stage_count && d->demand->memory == NULL; s++)
        p->stages[s].bytes = 0;             /* without activations it is not the peak of a step */
    if (fits)
        return CTRT_OK;
    if (d->demand->memory == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the parameters, gradients and buffers of the stages do not fit:%s; "
                         "use more devices or another CTRT_PIPELINE_SPLIT", text);
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the parameters, gradients, buffers and activations of the stages do not "
                     "fit:%s; use more devices, fewer rows or %s, or set CTRT_PIPELINE_SPLIT to omit this check",
                     text, p->gpipe ? "CTRT_PIPELINE_SCHEDULE=1f1b" : "more micro-batches (CTRT_PIPELINE_MICRO)");
}

/* ---- together ---- */

static void division_free(struct division *d)
{
    free(d->fixed);
    free(d->grads);
    free(d->sizes);
    free(d->cuts);
    free(d->best);
    free(d->from);
    free(d->needs);
    free(d->capacity);
    free(d->budget);
}

/* The caller calls division_free, also on error. */
static ctrt_status division_begin(struct division *d, const struct owner *owners)
{
    const struct pipeline *p = d->p;
    const size_t most = p->child_count + 1, stages = (size_t)p->n;
    SCRATCH bool *tied = NULL;
    CTRT_TRY(ALLOCATE(d->fixed, most));
    CTRT_TRY(ALLOCATE(d->grads, most));
    CTRT_TRY(ALLOCATE(d->sizes, most));
    CTRT_TRY(ALLOCATE(d->cuts, most));
    CTRT_TRY(ALLOCATE(d->best, most * stages));
    CTRT_TRY(ALLOCATE(d->from, most * stages));
    CTRT_TRY(ALLOCATE(d->needs, most));
    CTRT_TRY(ALLOCATE(d->capacity, stages));
    CTRT_TRY(ALLOCATE(d->budget, stages));
    CTRT_TRY(ALLOCATE(tied, most));
    for (size_t i = 0; i < p->count; i++)
        for (size_t c = owners[i].first + 1; owners[i].first < p->child_count && c <= owners[i].last; c++)
            tied[c] = true;
    for (size_t c = 0; c < p->child_count; c++)
        if (!tied[c])
            d->cuts[d->groups++] = c;
    d->cuts[d->groups] = p->child_count;
    return CTRT_OK;
}

ctrt_status pipeline_divide(struct pipeline *p, const struct owner *owners, const struct demand *demand)
{
    struct division d = { .p = p, .demand = demand };
    ctrt_status status = division_begin(&d, owners);
    if (status == CTRT_OK) {
        p->stage_count = (size_t)p->n < d.groups ? p->n : (int)d.groups;
        devices_read(&d);
        d.states = demand->memory == NULL ? 0 : p->states >= 0 ? p->states : ASSUMED_STATES;
        tensors_count(&d, owners);
        bool found = choose(&d, p, true);
        if (!found && d.states > 0 && p->states < 0) {      /* the optimizer may have none */
            d.states = 0;
            tensors_count(&d, owners);
            found = choose(&d, p, true);
        }
        if (!found)                         /* stages of one device may fit together, but not in equal parts of it */
            (void)choose(&d, p, false);
        status = stages_check(&d, p);
    }
    division_free(&d);
    return status;
}

ctrt_status pipeline_check(struct pipeline *p, const struct owner *owners, const struct demand *demand)
{
    struct division d = { .p = p, .demand = demand };
    ctrt_status status = division_begin(&d, owners);
    if (status == CTRT_OK) {
        tensors_count(&d, owners);
        status = stages_check(&d, p);
    }
    division_free(&d);
    return status;
}
