/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/step.c: the step of an optimizer.
 *
 * Parameters of the same group, device, dtype and step number are a batch. If the device has a kernel for the step
 * (struct optim_kind), one call of that kernel updates the whole batch. Otherwise each parameter is updated with tensor
 * ops: the new values of the parameter and of its state are computed first and then copied, so that a failed allocation
 * changes nothing. Adam's formulas contain the number of steps. Therefore a parameter whose first gradient comes later
 * than that of the others remains in another batch. */
#include "nn/optim/optim.h"

#include "graph/capture.h"
#include "memory/label.h"
#include "tensor/tensor.h"
#include "tensor/scope.h"

/* ---- for the formulas of a step ---- */

ctrt_status optim_gradient(ctrt_tensor **out, const struct optim_update *u, bool maximize, double weight_decay)
{
    CTRT_AUTO(tensor) penalty = NULL;
    if (maximize)
        CTRT_TRY(ctrt_mul_scalar(out, u->gradient, ctrt_float(-1)));
    else
        ctrt_tensor_assign(out, u->gradient);
    if (weight_decay == 0)
        return CTRT_OK;
    CTRT_TRY(ctrt_mul_scalar(&penalty, u->parameter, ctrt_float(weight_decay)));
    return ctrt_add(out, *out, penalty);
}

ctrt_status optim_mix(ctrt_tensor **out, double a, ctrt_tensor *x, double b, ctrt_tensor *y)
{
    CTRT_AUTO(tensor) ax = ctrt_tensor_retain(x), by = ctrt_tensor_retain(y);
    if (a != 1)
        CTRT_TRY(ctrt_mul_scalar(&ax, x, ctrt_float(a)));
    if (b != 1)
        CTRT_TRY(ctrt_mul_scalar(&by, y, ctrt_float(b)));
    return ctrt_add(out, ax, by);
}

ctrt_status optim_scale(ctrt_tensor **out, ctrt_tensor *x, const struct optim_coefficient *c)
{
    return c->tensor != NULL ? ctrt_mul(out, x, c->tensor) : ctrt_mul_scalar(out, x, ctrt_float(c->value));
}

ctrt_status optim_descend(struct optim_update *u, const struct optim_coefficient *decay,
                          const struct optim_coefficient *rate, ctrt_tensor *x)
{
    static const struct optim_coefficient minus = { .value = -1 };
    CTRT_AUTO(tensor) p = ctrt_tensor_retain(u->parameter), change = NULL;
    if (decay != NULL)
        CTRT_TRY(optim_scale(&p, p, decay));
    /* x + -1 * y and not x - y, so that a device needs only the kernels of add and mul for SGD. */
    CTRT_TRY(optim_scale(&change, x, rate));
    CTRT_TRY(optim_scale(&change, change, &minus));
    return ctrt_add(&u->next_parameter, p, change);
}

/* ---- state ---- */

static ctrt_status state_new(ctrt_tensor **out, ctrt_optimizer *optimizer, const struct optim_slot *slot, int i)
{
    const struct optim_kind *kind = optimizer->kind;
    ctrt_tensor *parameter = slot->parameter;
    const double value = kind->initial ? kind->initial(optim_slot_options(optimizer, slot), i) : 0;
    const ctrt_ints shape = kind->states[i].scalar
        ? CTRT_SCALAR_SHAPE : ctrt_ints_of(ctrt_tensor_shape(parameter), ctrt_tensor_ndim(parameter));
    ctrt_device *device = ctrt_tensor_device(parameter);
    CTRT_TRY(capture_refuse(device,
                            "the optimizer has no state yet, so every replay would initialise it again; take a step "
                            "before the capture"));
    CTRT_TRY(optim_prepare(optimizer, device));
    if (value == 0)
        return ctrt_zeros(out, shape, optim_state_dtype(parameter), device);
    return ctrt_full(out, shape, ctrt_float(value), optim_state_dtype(parameter), device);
}

/* A strategy may have replaced the parameter by a part of it. */
static ctrt_status state_shape_check(const struct optim_slot *slot, int i, const struct optim_kind *kind)
{
    const ctrt_tensor *state = slot->state[i];
    char ours[SHAPE_TEXT_BYTES], theirs[SHAPE_TEXT_BYTES];
    if (likely(kind->states[i].scalar || state->view.numel == slot->parameter->view.numel))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the state %s has the shape %s, but the parameter %s: it was divided after steps "
                     "of the optimizer; create the optimizer from the module or net of ctrt_parallel_new",
                     kind->states[i].name, shape_text(ours, state->view.shape, state->view.ndim),
                     shape_text(theirs, slot->parameter->view.shape, slot->parameter->view.ndim));
}

ctrt_status optim_state_ready(ctrt_optimizer *optimizer, struct optim_slot *slot)
{
    ctrt_tensor *parameter = slot->parameter;
    const unsigned needs = optimizer->kind->needs(optim_slot_options(optimizer, slot));
    for (int i = 0; i < OPTIM_STATES; i++) {
        ctrt_tensor **state = &slot->state[i];
        if (!(needs >> i & 1))
            continue;
        if (*state == NULL)
            CTRT_TRY(state_new(state, optimizer, slot, i));
        CTRT_TRY(state_shape_check(slot, i, optimizer->kind));
        if (unlikely(ctrt_tensor_device(*state) != ctrt_tensor_device(parameter)
                          || ctrt_tensor_dtype(*state) != optim_state_dtype(parameter)))
            CTRT_TRY(optim_convert(optimizer, slot, i));
    }
    return CTRT_OK;
}

/* ---- one slot ---- */

/* Prepares a slot with a gradient for the step. slot->target and slot->grad become the parameter and its gradient, or
 * contiguous copies if these are not contiguous. */
static ctrt_status slot_prepare(ctrt_optimizer *optimizer, struct optim_slot *slot)
{
    ctrt_tensor *grad = ctrt_tensor_grad(slot->parameter);
    if (grad == NULL)
        return CTRT_OK;
    CTRT_TRY(optim_state_ready(optimizer, slot));
    CTRT_TRY(ctrt_contiguous(&slot->target, slot->parameter, CTRT_CONTIGUOUS_FORMAT));
    return ctrt_contiguous(&slot->grad, grad, CTRT_CONTIGUOUS_FORMAT);
}

/* Counts the step of a slot and releases what slot_prepare created. */
static void slot_count(struct optim_slot *slot)
{
    if (likely(!dry_run_on(slot->parameter->device) && capture_here(slot->parameter->device) == NULL))
        slot->steps++;
    ctrt_tensor_release(&slot->grad);
    ctrt_tensor_release(&slot->target);
}

/* Returns the number of the next step, for the functions of optim_kind. */
static int64_t slot_step(const ctrt_optimizer *optimizer, const struct optim_slot *slot)
{
    return optimizer->kind->by_step ? slot->steps + 1 : 1 + (slot->steps > 0);
}

/* Returns whether `slot` can be in the same batch as `first`. */
static bool slot_fits(const ctrt_optimizer *optimizer, const struct optim_slot *slot, const struct optim_slot *first)
{
    return slot->grad != NULL && slot->target->device == first->target->device && slot->group == first->group
           && slot->target->view.dtype == first->target->view.dtype
           && slot_step(optimizer, slot) == slot_step(optimizer, first);
}

/* ---- captured steps ---- */

/* A batch of a captured step. Owns a reference to the optimizer. */
struct captured_step {
    ctrt_optimizer *optimizer;
    bool guarded;
    uint32_t skip_generation;           /* if guarded: that of the optimizer at the capture */
    size_t count, slots[];              /* indices into optimizer->slots, because that array may move */
};

static void count_steps(const struct captured_step *step, int64_t more)
{
    for (size_t i = 0; i < step->count; i++)
        step->optimizer->slots[step->slots[i]].steps += more;
    if (step->guarded)
        step->optimizer->unsettled += more;
}

/* CTRT_ERR_STATE if skipped steps of the slots of this batch are counted in another way now. */
static ctrt_status step_guard_check(const struct captured_step *step)
{
    const ctrt_optimizer *optimizer = step->optimizer;
    if (likely(step->guarded ? step->skip_generation == optimizer->skip_generation : optimizer->unsettled == 0))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "%s: since the capture, steps %s; capture the step again", optimizer->kind->name,
                     step->guarded ? "of a gradient scaler have updated other parameters"
                                   : "were made with a gradient scaler, which may have skipped some");
}

/* Before a replay: counts the step and computes the coefficients; of a guarded step also the learning rate and the
 * step's number. CTRT_ERR_STATE if the parameters no longer have the same coefficients. */
static ctrt_status step_again(void *state, void *numbers)
{
    const struct captured_step *step = state;
    ctrt_optimizer *optimizer = step->optimizer;
    const struct optim_slot *slots = optimizer->slots, *first = &slots[step->slots[0]];
    for (size_t i = 1; i < step->count; i++)
        if (unlikely(slot_step(optimizer, &slots[step->slots[i]]) != slot_step(optimizer, first)))
            return ctrt_fail(CTRT_ERR_STATE,
        "%s: %s has taken %lld steps and %s %lld, but the captured step has one step count for both; capture it again",
                             optimizer->kind->name, first->name, (long long)first->steps, slots[step->slots[i]].name,
                             (long long)slots[step->slots[i]].steps);
    CTRT_TRY(step_guard_check(step));
    optimizer->kind->coefficients(numbers, optim_slot_options(optimizer, first), slot_step(optimizer, first));
    if (step->guarded) {
        double *more = (double *)numbers + optimizer->kind->coefficient_count;
        more[0] = optim_option_get(optim_slot_options(optimizer, first), &optimizer->kind->options[0]);
        more[1] = (double)slot_step(optimizer, first);
    }
    count_steps(step, 1);
    return CTRT_OK;
}

static void step_undo(void *state)
{
    count_steps(state, -1);
}

static void step_release(void *state)
{
    struct captured_step *step = state;
    ctrt_optimizer_release(&step->optimizer);
    host_free(step);
}

static const struct graph_param_source step_source = { .fill = step_again, .undo = step_undo, .release = step_release };

/* Registers a batch with the capture of the current stream. *numbers: the device memory where each replay stores the
 * coefficients, or NULL if no capture runs. */
static ctrt_status step_captured(const double **numbers, ctrt_optimizer *optimizer, size_t n)
{
    struct optim_slot *const *batch = optimizer->batch;
    struct capture *capture = capture_here(batch[0]->target->device);
    *numbers = NULL;
    if (likely(capture == NULL))
        return CTRT_OK;
    const size_t bytes = sizeof(struct captured_step) + n * sizeof(size_t);
    struct captured_step *step = host_alloc(bytes);
    ALLOC_CHECK(step, bytes, "a captured step");
    atomic_fetch_add(&optimizer->refs, 1);
    step->optimizer = optimizer;
    step->guarded = optimizer->guarded;
    step->skip_generation = optimizer->skip_generation;
    step->count = n;
    for (size_t i = 0; i < n; i++)
        step->slots[i] = (size_t)(batch[i] - optimizer->slots);
    const size_t values = (size_t)optimizer->kind->coefficient_count + (optimizer->guarded ? 2 : 0);
    return capture_params((const void **)numbers, capture, values * sizeof(double), &step_source, step);
}

/* ---- the step with tensor ops ---- */

/* Sets *out to a 0-dim tensor with the value that device memory has at `number` at each replay. */
static ctrt_status number_tensor(ctrt_tensor **out, const double *number, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_view view = { .data = (void *)(uintptr_t)number, .numel = 1, .dtype = CTRT_F64 };
    view_refresh(&view);
    CTRT_TRY(tensor_new(out, NULL, 0, dtype, device));
    return kernel_copy(&(*out)->view, device, &view, device);
}

/* Replaces the coefficients that depend on the number of steps by those of the steps that were not skipped. */
static ctrt_status coefficients_guarded(struct optim_coefficient *out, const struct optim_kind *kind,
                                        const struct optim_update *u, const double *numbers,
                                        const struct optim_place *place, ctrt_dtype dtype)
{
    CTRT_AUTO(tensor) step = NULL, rate = NULL;
    struct optim_coefficient lr = { .value = optim_option_get(u->options, &kind->options[0]) };
    if (numbers == NULL) {
        CTRT_TRY(ctrt_add_scalar(&step, place->skipped, ctrt_float((double)u->step)));
    } else {
        CTRT_TRY(number_tensor(&rate, &numbers[kind->coefficient_count], CTRT_F64, place->device));
        CTRT_TRY(number_tensor(&step, &numbers[kind->coefficient_count + 1], CTRT_F64, place->device));
        CTRT_TRY(ctrt_add(&step, step, place->skipped));
        lr.tensor = rate;
    }
    CTRT_TRY(kind->coefficients_at(out, u->options, step, &lr));
    for (int i = 0; i < kind->coefficient_count; i++)
        if (out[i].tensor != NULL)
            CTRT_TRY(ctrt_to_dtype(&out[i].tensor, out[i].tensor, dtype));
    return CTRT_OK;
}

/* Sets the coefficients of a step. `numbers`: see step_captured. `place`: of a guarded step, else NULL. */
static ctrt_status coefficients_set(struct optim_coefficient *out, const struct optim_kind *kind,
                                    const struct optim_update *u, const double *numbers, const ctrt_tensor *parameter,
                                    const struct optim_place *place)
{
    double values[OPTIM_COEFFICIENTS];
    kind->coefficients(values, u->options, u->step);
    for (int i = 0; i < kind->coefficient_count; i++) {
        out[i].value = values[i];
        if (unlikely(numbers != NULL))
            CTRT_TRY(number_tensor(&out[i].tensor, &numbers[i], optim_state_dtype(parameter), parameter->device));
    }
    return place != NULL && kind->by_step
               ? coefficients_guarded(out, kind, u, numbers, place, optim_state_dtype(parameter)) : CTRT_OK;
}

static inline ctrt_status slot_copy(struct optim_place *place, ctrt_tensor *old, ctrt_tensor *next)
{
    return likely(place == NULL) ? ctrt_copy_(old, next) : optim_guarded_copy(place, old, next);
}

/* Computes the new values of a slot and copies them. `place`: of a guarded step, else NULL. */
static ctrt_status slot_update(const struct optim_kind *kind, struct optim_slot *slot, struct optim_update *u,
                               struct optim_place *place)
{
    const ctrt_dtype dtype = optim_state_dtype(slot->parameter);
    CTRT_TRY(ctrt_to_dtype(&u->parameter, slot->parameter, dtype));
    CTRT_TRY(ctrt_to_dtype(&u->gradient, slot->grad, dtype));
    memcpy(u->state, slot->state, sizeof u->state);
    CTRT_TRY(kind->update(u));
    for (int i = 0; i < OPTIM_STATES; i++)
        if (u->next_state[i] != NULL)
            CTRT_TRY(slot_copy(place, slot->state[i], u->next_state[i]));
    return slot_copy(place, slot->parameter, u->next_parameter);
}

static ctrt_status composed_step(ctrt_optimizer *optimizer, size_t n, const double *numbers)
{
    struct optim_slot *const *batch = optimizer->batch;
    struct optim_update u = { .options = optim_slot_options(optimizer, batch[0]),
                              .step = slot_step(optimizer, batch[0]) };
    struct optim_place *place = optim_slot_place(optimizer, batch[0]);
    ctrt_status status = coefficients_set(u.coefficient, optimizer->kind, &u, numbers, batch[0]->parameter, place);
    for (size_t i = 0; i < n && status == CTRT_OK; i++) {
        status = ctrt_context(slot_update(optimizer->kind, batch[i], &u, place), "%s", batch[i]->name);
        ctrt_tensor_release(&u.parameter);
        ctrt_tensor_release(&u.gradient);
        ctrt_tensor_release(&u.next_parameter);
        for (int s = 0; s < OPTIM_STATES; s++)
            ctrt_tensor_release(&u.next_state[s]);
        if (status == CTRT_OK)
            slot_count(batch[i]);
    }
    for (int i = 0; i < OPTIM_COEFFICIENTS; i++)
        ctrt_tensor_release(&u.coefficient[i].tensor);
    return status;
}

/* ---- the step with the optimizer's kernel ---- */

/* Sets the attributes of the optimizer's kernel for a batch. `numbers`: see step_captured. Returns false if the
 * optimizer has no such kernel, or the kernel does not have these options. */
static bool fused_attributes(union optim_attributes *attributes, const ctrt_optimizer *optimizer, const double *numbers)
{
    const struct optim_kind *kind = optimizer->kind;
    const struct optim_slot *first = optimizer->batch[0];
    return kind->fused_attributes != NULL
           && kind->fused_attributes(attributes, optim_slot_options(optimizer, first), slot_step(optimizer, first),
                                     numbers);
}

/* Returns a call of the optimizer's kernel for the first `n` slots of the batch: the inputs are n parameters, n
 * gradients, then n tensors of each state; the outputs are n parameters, then n tensors of each state. A guarded step
 * has two more inputs. */
static struct op_call fused_call(ctrt_optimizer *optimizer, size_t n, const union optim_attributes *attributes)
{
    const struct optim_kind *kind = optimizer->kind;
    struct optim_slot *const *batch = optimizer->batch;
    const ctrt_view **inputs = optimizer->views, **outputs = optimizer->views + n * (2 + OPTIM_STATES) + OPTIM_GUARDS;
    const unsigned needs = kind->needs(optim_slot_options(optimizer, batch[0]));
    size_t states = 0;
    for (size_t i = 0; i < n; i++) {
        inputs[i] = outputs[i] = &batch[i]->target->view;
        inputs[n + i] = &batch[i]->grad->view;
    }
    for (int s = 0; s < OPTIM_STATES; s++) {
        if (!(needs >> s & 1))
            continue;
        for (size_t i = 0; i < n; i++)
            inputs[(2 + states) * n + i] = outputs[(1 + states) * n + i] = &batch[i]->state[s]->view;
        states++;
    }
    size_t guards = 0;
    const struct optim_place *place = optim_slot_place(optimizer, batch[0]);
    if (place != NULL) {
        inputs[(2 + states) * n + guards++] = &place->found->view;
        inputs[(2 + states) * n + guards++] = &place->skipped->view;
    }
    return (struct op_call){ kind->fused, tensor_dtype(batch[0]->target), batch[0]->target->device,
                             .inputs = inputs, .n_inputs = (int)(n * (2 + states) + guards),
                             .outputs = outputs, .n_outputs = (int)(n * (1 + states)), .attributes = attributes };
}

/* Returns whether all kernels of the entry can skip the step. */
static bool guards_supported(const struct dispatch_entry *entry)
{
    for (int i = 0; entry != NULL && i < entry->count; i++)
        if (!(entry->kernels[i]->flags & CTRT_KERNEL_FOUND_INF))
            return false;
    return entry != NULL;
}

/* Returns whether the device has a kernel for this optimizer with its options. */
static bool fused_available(ctrt_optimizer *optimizer)
{
    union optim_attributes attributes;
    const ctrt_tensor *target = optimizer->batch[0]->target;
    if (!fused_attributes(&attributes, optimizer, NULL))
        return false;
    const struct dispatch_entry *entry = dispatch_find(target->device, optimizer->kind->fused, tensor_dtype(target));
    if (unlikely(optimizer->guarded && !guards_supported(entry)))
        return false;
    if (likely(entry != NULL && entry->run != NULL))
        return true;                            /* this kernel accepts every call */
    const struct op_call call = fused_call(optimizer, 1, &attributes);
    return kernel_available(&call);
}

static ctrt_status fused_step(ctrt_optimizer *optimizer, size_t n, const double *numbers)
{
    union optim_attributes attributes;
    fused_attributes(&attributes, optimizer, numbers);
    const struct op_call call = fused_call(optimizer, n, &attributes);
    ctrt_status status = kernel_call(&call);
    for (size_t i = 0; i < n && status == CTRT_OK; i++) {
        struct optim_slot *slot = optimizer->batch[i];
        if (unlikely(slot->target != slot->parameter))
            status = ctrt_copy_(slot->parameter, slot->target);     /* increments the version itself */
        else
            tensor_bump_version(slot->parameter);
        slot_count(slot);
    }
    return status;
}

/* ---- all slots ---- */

/* Updates the parameter of the slot at `begin` and those of all later slots of the same batch. */
static ctrt_status batch_step(ctrt_optimizer *optimizer, size_t begin)
{
    struct optim_slot *first = &optimizer->slots[begin];
    const double *numbers;
    size_t n = 0;
    for (size_t i = begin; i < optimizer->count; i++)
        if (slot_fits(optimizer, &optimizer->slots[i], first))
            optimizer->batch[n++] = &optimizer->slots[i];
    CTRT_TRY(step_captured(&numbers, optimizer, n));
    return fused_available(optimizer) ? fused_step(optimizer, n, numbers) : composed_step(optimizer, n, numbers);
}

static ctrt_status optimizer_step_all(ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        ctrt_status status = slot_prepare(optimizer, &optimizer->slots[i]);
        if (status)
            return ctrt_context(status, "%s", optimizer->slots[i].name);
    }
    if (unlikely(optimizer->guarded))
        CTRT_TRY(optim_guard_begin(optimizer));
    else if (unlikely(optimizer->unsettled > 0))
        CTRT_TRY(optim_settle(optimizer));
    for (size_t i = 0; i < optimizer->count; i++)
        if (optimizer->slots[i].grad != NULL)
            CTRT_TRY(batch_step(optimizer, i));
    return unlikely(optimizer->guarded) ? optim_guard_end(optimizer) : CTRT_OK;
}

ctrt_status optim_step(ctrt_optimizer *optimizer, enum optim_guard guard)
{
    ctrt_status status = CTRT_OK;
    optimizer->guarded = guard == OPTIM_GUARDED;
    struct memory_label label;
    const bool labelled = label_enter_watched(&label, "optimizer");
    struct scope *scope = scope_pause();                /* state tensors must outlive the program's scope */
    ctrt_no_grad {
        status = module_event(optimizer->module, CTRT_MODULE_STEP_BEGIN, optimizer);
        if (status == CTRT_OK)
            status = module_event_end(guard != OPTIM_SKIPPED ? optimizer_step_all(optimizer) : CTRT_OK,
                                      optimizer->module, CTRT_MODULE_STEP_END, optimizer);
    }
    optimizer->guarded = false;
    scope_resume(scope);
    if (labelled)
        label_leave(&label);
    if (status == CTRT_OK)
        return CTRT_OK;
    for (size_t i = 0; i < optimizer->count; i++) {
        ctrt_tensor_release(&optimizer->slots[i].grad);
        ctrt_tensor_release(&optimizer->slots[i].target);
    }
    return ctrt_context(status, "step of %s", optimizer->kind->name);
}

ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer)
{
    return optimizer != NULL ? optim_step(optimizer, OPTIM_PLAIN) : fail_null("optimizer_step", "optimizer");
}
