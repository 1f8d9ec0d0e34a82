/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/inf_watch.c: finds the module whose output, or the gradient of whose output, is the first that is inf or
 * NaN.
 *
 * Hooks check each output and gradient on the device. The checks of a pass have numbers; the result of a module is a
 * 0-dim tensor with the number of its first check that failed. The host reads these results for a report only. */
#include <math.h>

#include "base/array.h"
#include "ctrt/amp.h"
#include "dryrun/cleanup.h"
#include "nn/module/module.h"
#include "tensor/scope.h"

enum { OUTPUT, GRADIENT, RESULTS };

struct watched {
    ctrt_inf_watch *watch;
    ctrt_module *module;
    char *name;
    uint64_t hooks;                     /* id of the forward hooks */
    ctrt_tensor *failed[RESULTS];       /* f32, 0-dim: first check of the pass that failed, or inf; NULL: no check */
};

struct ctrt_inf_watch {
    struct watched **list;              /* list[0]: the module of ctrt_inf_watch_new */
    size_t count, capacity;
    uint64_t checks;                    /* number of checks in this pass */
    struct dryrun_cleanup *cleanup;     /* NULL: no result was made in a dry run */
};

/* ---- hooks ---- */

static void watch_cleanup(void *object)
{
    ctrt_inf_watch *watch = object;
    for (size_t i = 0; i < watch->count; i++)
        for (int which = 0; which < RESULTS; which++)
            dryrun_drop(&watch->list[i]->failed[which]);
}

static ctrt_status finite_note(struct watched *w, int which, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) result = NULL;
    if (!ctrt_dtype_is_floating(ctrt_tensor_dtype(x)))
        return CTRT_OK;
    if (dry_run_on(x->device))
        CTRT_TRY(dryrun_cleanup_add(&w->watch->cleanup, watch_cleanup, w->watch));
    CTRT_TRY(ctrt_isfinite(&result, x));
    CTRT_TRY(ctrt_all(&result, result, CTRT_ALL_DIMS, false));
    CTRT_TRY(ctrt_logical_not(&result, result));
    CTRT_TRY(ctrt_to_dtype(&result, result, CTRT_F32));
    /* The number of the check divided by 1, or by 0 if x is finite. */
    CTRT_TRY(ctrt_rdiv_scalar(&result, result, ctrt_float((double)++w->watch->checks)));
    if (w->failed[which] != NULL)       /* a module that is used several times in a pass */
        return ctrt_minimum(&w->failed[which], w->failed[which], result);
    ctrt_tensor_assign(&w->failed[which], result);
    return CTRT_OK;
}

static ctrt_status note(struct watched *w, int which, ctrt_tensor *x)
{
    struct scope *scope = scope_pause();            /* the result must outlive the program's scope */
    ctrt_status status;
    ctrt_no_grad status = finite_note(w, which, x);
    scope_resume(scope);
    return ctrt_context(status, "the inf watch of %s", w->name);
}

static ctrt_status gradient_check(void *user, ctrt_tensor **grad)
{
    return note(user, GRADIENT, *grad);
}

static void results_clear(ctrt_inf_watch *watch)
{
    for (size_t i = 0; i < watch->count; i++)
        for (int which = 0; which < RESULTS; which++)
            ctrt_tensor_release(&watch->list[i]->failed[which]);
    watch->checks = 0;
}

/* Before a module: a pass of the whole begins. */
static ctrt_status pass_begin(void *user, ctrt_module *module)
{
    struct watched *w = user;
    (void)module;
    if (w == w->watch->list[0])
        results_clear(w->watch);
    return CTRT_OK;
}

static ctrt_status output_check(void *user, ctrt_module *module, ctrt_tensor *output)
{
    struct watched *w = user;
    (void)module;
    CTRT_TRY(note(w, OUTPUT, output));
    return ctrt_tensor_requires_grad(output) ? ctrt_tensor_add_hook(output, gradient_check, w, NULL) : CTRT_OK;
}

static const ctrt_forward_hooks hooks = { .size = sizeof hooks, .before = pass_begin, .after = output_check };

/* ---- creation ---- */

static void watched_free(struct watched *w)
{
    if (w->hooks != 0)
        (void)ctrt_module_remove_forward_hooks(w->module, w->hooks);
    for (int which = 0; which < RESULTS; which++)
        ctrt_tensor_release(&w->failed[which]);
    ctrt_module_release(&w->module);
    host_free(w->name);
    host_free(w);
}

void ctrt_inf_watch_release(ctrt_inf_watch **watch)
{
    if (watch == NULL || *watch == NULL)
        return;
    ctrt_inf_watch *gone = *watch;
    *watch = NULL;
    dryrun_cleanup_remove(gone->cleanup);
    for (size_t i = 0; i < gone->count; i++)
        watched_free(gone->list[i]);
    host_free(gone->list);
    host_free(gone);
}

static bool is_watched(const ctrt_inf_watch *watch, const ctrt_module *module)
{
    for (size_t i = 0; i < watch->count; i++)
        if (watch->list[i]->module == module)
            return true;
    return false;
}

/* Adds a module and all below it. `prefix`: its name, "" for the first one. */
static ctrt_status modules_watch(ctrt_inf_watch *watch, ctrt_module *module, const char *prefix)
{
    const char *name;
    ctrt_module *child = NULL;
    if (is_watched(watch, module))
        return CTRT_OK;
    CTRT_TRY(ARRAY_RESERVE(watch->list, watch->capacity, watch->count, "an inf watch"));
    struct watched *w = host_calloc(sizeof *w);
    ALLOC_CHECK(w, sizeof *w, "an inf watch");
    watch->list[watch->count++] = w;
    w->watch = watch;
    w->module = ctrt_module_retain(module);
    w->name = host_strdup(prefix[0] != '\0' ? prefix : "the module");
    ALLOC_CHECK(w->name, strlen(prefix) + 1, "a name");
    CTRT_TRY(ctrt_module_add_forward_hooks(module, &hooks, w, &w->hooks));
    for (size_t i = 0; i < module->children.count; i++) {
        char full[512];
        CTRT_TRY(ctrt_module_child(&name, &child, module, i));
        snprintf(full, sizeof full, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", name);
        CTRT_TRY(modules_watch(watch, child, full));
    }
    return CTRT_OK;
}

ctrt_status ctrt_inf_watch_new(ctrt_inf_watch **out, ctrt_module *module)
{
    NULL_CHECK("inf_watch_new", out);
    NULL_CHECK("inf_watch_new", module);
    CTRT_AUTO(inf_watch) fresh = host_calloc(sizeof *fresh);
    ALLOC_CHECK(fresh, sizeof *fresh, "an inf watch");
    CTRT_TRY(modules_watch(fresh, module, ""));
    ctrt_inf_watch *old = *out;
    *out = fresh;
    fresh = old;
    return CTRT_OK;
}

/* ---- the report ---- */

/* Sets *out to the module with the first check that found inf or NaN; NULL: there is none. */
static ctrt_status first_find(const struct watched **out, const ctrt_inf_watch *watch, int which)
{
    double least = INFINITY;
    *out = NULL;
    for (size_t i = 0; i < watch->count; i++) {
        const struct watched *w = watch->list[i];
        double number = INFINITY;
        if (w->failed[which] != NULL)
            CTRT_TRY(ctrt_item(&number, w->failed[which]));
        if (number < least) {
            least = number;
            *out = w;
        }
    }
    return CTRT_OK;
}

ctrt_status ctrt_inf_watch_report(char *text, size_t bytes, ctrt_inf_watch *watch)
{
    static const char *const what[RESULTS] = { "the output of", "in the backward pass, the gradient of the output of" };
    const struct watched *first = NULL;
    if (text == NULL || bytes == 0)
        return fail_null("inf_watch_report", "text");
    NULL_CHECK("inf_watch_report", watch);
    text[0] = '\0';
    for (int which = 0; which < RESULTS && first == NULL; which++) {
        CTRT_TRY(ctrt_context(first_find(&first, watch, which), "inf_watch_report"));
        if (first != NULL)
            snprintf(text, bytes, "%s %s (%s) is inf or NaN", what[which], first->name,
                     ctrt_module_kind(first->module));
    }
    return CTRT_OK;
}
