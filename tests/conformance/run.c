/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: runs the checks of all families and prints TAP. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include "guard.h"
#include "suite.h"

static const struct family *const families[] = {
    &unary_family, &binary_family, &reduce_family, &matmul_family, &conv_family,   &softmax_family,
    &attention_family, &norm_family,  &index_family,  &view_family,   &copy_family,   &random_family, &optim_family,
};
enum { FAMILIES = COUNT_OF(families) };

/* ---- one check ---- */

/* Returns whether `list` ("a,b") contains one of the words of `words` ("a b"). */
static bool has_word(const char *list, const char *words)
{
    for (const char *word = words; *word; word += strcspn(word, " "), word += *word == ' ') {
        size_t length = strcspn(word, " ");
        for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
            if (strcspn(at, ",") == length && !strncmp(at, word, length))
                return true;
    }
    return false;
}

/* Returns whether the check has to run, because it has not begun before a crash. */
static bool progress_begin(struct run *run, struct guard_progress *progress)
{
    if (run->begun++ < progress->skip)
        return false;
    progress->begun = run->begun;
    snprintf(progress->check, sizeof progress->check, "%s", run->check);
    return true;
}

static void progress_end(const struct run *run, struct guard_progress *progress)
{
    fflush(run->out);                           /* the next check may crash */
    progress->number = run->number;
    progress->kernels = run->kernels;
    progress->result = run->result;
}

bool check_begin(struct run *run, const char *op, ctrt_dtype dtype, const char *tags, const char *what, ...)
{
    const struct conformance_options *options = run->options;
    char words[128], text[96];
    va_list list;
    va_start(list, what);
    vsnprintf(text, sizeof text, what, list);
    va_end(list);
    const char *dtype_name = dtype ? ctrt_dtype_name(dtype) : "";
    snprintf(words, sizeof words, "%s %s %s", run->family ? run->family->tag : "", dtype_name, tags ? tags : "");
    snprintf(run->check, sizeof run->check, "%s%s%s%s%s", op, *dtype_name ? " " : "", dtype_name,
             *text ? " " : "", text);
    run->failed = run->skipped = false;
    run->dtype = dtype;
    run->variant = "";
    run->fallbacks = run->kernel ? ctrt_fallback_count(run->kernel) : 0;
    run->details[0] = run->reason[0] = '\0';
    if ((options->fail_fast && run->result.failed > 0)
        || (tags && ((options->tags && !has_word(options->tags, words))
                     || (options->skip_tags && has_word(options->skip_tags, words)))))
        return false;
    if (options->list) {
        fprintf(run->out, "%s\n", run->check);
        return false;
    }
    if (options->progress != NULL && !progress_begin(run, options->progress))
        return false;
    const char *reason;
    if (expected_of(run->check, &reason) == EXPECT_UNSUPPORTED) {
        check_skip(run, "%s", reason);
        check_end(run);
        return false;
    }
    watch_begin(run);
    return true;
}

void check_fail(struct run *run, const char *format, ...)
{
    char line[512];
    const int start = snprintf(line, sizeof line, "%s%s", run->variant, *run->variant ? ": " : "");
    va_list list;
    va_start(list, format);
    vsnprintf(line + start, sizeof line - (size_t)start, format, list);
    va_end(list);
    run->failed = true;
    size_t used = strlen(run->details), left = sizeof run->details - used;
    if (left > sizeof line + 8) {
        strcpy(run->details + used, "#   ");
        used += 4;
        for (const char *c = line; *c; c++)
            run->details[used++] = *c == '\n' ? ' ' : *c;
        strcpy(run->details + used, "\n");
    }
}

void check_skip(struct run *run, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(run->reason, sizeof run->reason, format, list);
    va_end(list);
    run->skipped = true;
}

/* Returns whether the device has a kernel for the checked op and dtype, or the op needs none. */
static bool kernel_present(const struct run *run)
{
    bool present = run->kernel == NULL || !op_has_kernels(run->kernel);
    for (int dtype = 1; dtype < 64 && !present; dtype++)
        present = (run->dtype == 0 || (int)run->dtype == dtype)
                  && ctrt_op_supported(run->device, run->kernel, (ctrt_dtype)dtype);
    return present;
}

/* Adds the check to the file of --junit. */
static void record(struct run *run, enum junit_outcome outcome, const char *text)
{
    char group[64];
    const char *family = run->family ? run->family->tag : "suite";
    snprintf(group, sizeof group, "ctrt.%s.%s", ctrt_device_name(run->device), family);
    junit_case(&run->junit, group, run->check, outcome, text);
}

static void print_result(struct run *run)
{
    const char *reason = "";
    /* The result is right, but it was computed by the cpu and not by the checked backend. */
    if (!run->failed && !run->skipped && run->kernel && ctrt_fallback_count(run->kernel) != run->fallbacks)
        check_skip(run, "%s has no kernel for %s and used the cpu", ctrt_device_name(run->device), run->kernel);
    bool foreseen = expected_of(run->check, &reason) == EXPECT_FAILURE;
    run->number++;
    run->kernels += !run->skipped && kernel_present(run);
    if (run->failed && foreseen) {
        fprintf(run->out, "not ok %d - %s # TODO %s\n", run->number, run->check, reason);
        run->result.expected++;
        record(run, JUNIT_SKIPPED, reason);
    } else if (run->failed) {
        fprintf(run->out, "not ok %d - %s\n%s", run->number, run->check, run->details);
        run->result.failed++;
        record(run, JUNIT_FAILED, run->details + strspn(run->details, "# "));
    } else if (run->skipped) {
        fprintf(run->out, "ok %d - %s # SKIP %s\n", run->number, run->check, run->reason);
        run->result.skipped++;
        record(run, JUNIT_SKIPPED, run->reason);
    } else if (foreseen) {
        fprintf(run->out, "not ok %d - %s\n#   passes, although it is listed as failing: %s\n", run->number,
                run->check, reason);
        run->result.failed++;
        record(run, JUNIT_FAILED, "passes, although it is listed as failing");
    } else {
        fprintf(run->out, "ok %d - %s\n", run->number, run->check);
        run->result.passed++;
        record(run, JUNIT_PASSED, "");
    }
    if (run->options->progress != NULL)
        progress_end(run, run->options->progress);
}

void check_end(struct run *run)
{
    watch_end();
    print_result(run);
    scratch_reset();
}

bool check_ok(struct run *run, ctrt_status status, const char *what)
{
    if (status == CTRT_OK)
        return true;
    /* A kernel that the op calls is missing, as the copy that makes an operand contiguous. */
    if (status == CTRT_ERR_NOT_SUPPORTED && strstr(ctrt_error_message(), "has no kernel for "))
        check_skip(run, "%s", ctrt_error_message());
    else
        check_fail(run, "%s: failed with '%s': %s", what, ctrt_status_string(status), ctrt_error_message());
    return false;
}

bool check_call(struct run *run, ctrt_status status, ctrt_dtype dtype, const char *what)
{
    if (status != CTRT_ERR_NOT_SUPPORTED || ctrt_op_supported(run->device, run->kernel, dtype))
        return check_ok(run, status, what);
    check_skip(run, "%s", ctrt_error_message());
    return false;
}

bool upload(struct run *run, ctrt_tensor **out, const struct array *a, bool grad)
{
    return check_ok(run, array_upload(out, a, run->device), "placing")
           && (!grad || check_ok(run, ctrt_tensor_require_grad(*out, true), "requiring grad"));
}

bool download(struct run *run, struct array *out, ctrt_tensor *tensor)
{
    return check_ok(run, array_download(out, tensor), "reading");
}

/* ---- all checks ---- */

static void set_kernel(struct run *run, const char *kernel, unsigned flags)
{
    run->kernel = kernel;
    run->lowered = (flags & MATRICES) && run->matrices != CTRT_F32 ? epsilon_of(run->matrices) : 0;
}

static void run_op(struct run *run, const struct check_op *op)
{
    set_kernel(run, op->kernel, op->flags);
    for (int dtype = 1; op->dtypes >> dtype; dtype++) {
        if (!(op->dtypes >> dtype & 1))
            continue;
        check_forward(run, op, (ctrt_dtype)dtype);
        check_scalar_form(run, op, (ctrt_dtype)dtype);
        check_inplace(run, op, (ctrt_dtype)dtype);
        if ((op->flags & GRAD) && dtype != CTRT_F64 && is_floating((ctrt_dtype)dtype))
            check_gradient_dtype(run, op, (ctrt_dtype)dtype);
    }
    if (op->flags & GRAD)
        check_gradient(run, op);
}

static void run_special(struct run *run, const struct check_special *special)
{
    set_kernel(run, special->kernel ? special->kernel : special->name, special->flags);
    run->data = special->data;
    const unsigned dtypes = special->dtypes ? special->dtypes : 1;
    for (int dtype = 0; dtypes >> dtype; dtype++)
        if (dtypes >> dtype & 1
            && check_begin(run, special->name, (ctrt_dtype)dtype, special->tags, "%s", special->what)) {
            special->run(run);
            check_end(run);
        }
}

bool op_wanted(const struct run *run, const char *name)
{
    return run->options->op == NULL || fnmatch(run->options->op, name, 0) == 0;
}

static void run_family(struct run *run, const struct family *family)
{
    run->family = family;
    for (int k = 0; k < family->count; k++)
        if (op_wanted(run, family->ops[k].name)) {
            struct check_op op = family->ops[k];
            op_complete(&op);
            run_op(run, &op);
        }
    for (int k = 0; k < family->special_count; k++)
        if (op_wanted(run, family->specials[k].name))
            run_special(run, &family->specials[k]);
}

/* ---- coverage: every op of the library must have a check ---- */

/* Kernels that only backward passes call; the checks of derivatives cover them. User-defined functions have no kernel;
 * the unit tests of autograd cover them. */
static const char *const elsewhere[] = {
    "relu_backward",          "sigmoid_backward",    "tanh_backward",       "gelu_backward",
    "silu_backward",          "conv2d_input_grad",   "conv2d_weight_grad",  "max_pool2d_backward",
    "softmax_backward",       "log_softmax_backward", "cross_entropy_backward", "attention_backward",
    "layer_norm_backward",    "batch_norm_backward", "index_add",           "scatter_add",
    "function",
};

static bool is_covered(const char *name)
{
    for (int k = 0; k < COUNT_OF(elsewhere); k++)
        if (!strcmp(elsewhere[k], name))
            return true;
    for (int f = 0; f < FAMILIES; f++) {
        for (int k = 0; k < families[f]->count; k++) {
            const struct check_op *op = &families[f]->ops[k];
            if (!strcmp(op->name, name) || (op->kernel && !strcmp(op->kernel, name)))
                return true;
        }
        for (int k = 0; k < families[f]->special_count; k++)
            if (!strcmp(families[f]->specials[k].name, name))
                return true;
    }
    return false;
}

static void check_coverage(struct run *run)
{
    const char *name;
    run->family = NULL;
    run->kernel = NULL;
    if (!check_begin(run, "suite", 0, "suite", "has a check for every op of the library"))
        return;
    size_t count = 0;
    for (; ctrt_op_name(&name, count) == CTRT_OK; count++)
        if (!is_covered(name))
            check_fail(run, "no check for op '%s'", name);
    if (count == 0)
        check_fail(run, "the library lists no op: %s", ctrt_error_message());
    check_end(run);
}

static void print_fallbacks(struct run *run)
{
    uint64_t total = ctrt_fallback_count(NULL);
    if (total == 0 || run->options->list)
        return;
    fprintf(run->out, "# ops for which %s used the cpu:", ctrt_device_name(run->device));
    const char *name;
    for (size_t k = 0; ctrt_op_name(&name, k) == CTRT_OK; k++)
        if (ctrt_fallback_count(name))
            fprintf(run->out, " %s", name);
    fprintf(run->out, "\n");
}

/* Returns the file of the backend of the device. */
static const char *backend_file(const ctrt_device *device)
{
    const char *name = ctrt_device_name(device);
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (size_t k = 0; ctrt_plugin_list(&info, k) == CTRT_OK; k++)
        if (strcmp(info.kind, "backend") == 0 && strcmp(info.state, "loaded") == 0
            && strlen(info.component) == strcspn(name, ":")
            && strncmp(info.component, name, strlen(info.component)) == 0)
            return info.file;
    return "no file";
}

/* Ends the output. Returns the exit status of the suite. */
static int finish(struct run *run)
{
    const struct conformance_options *options = run->options;
    if (options->progress == NULL)
        print_fallbacks(run);
    if (!options->list && options->progress == NULL) {
        fprintf(run->out, "1..%d\n", run->number);
        fprintf(run->out, "# %d passed, %d failed, %d skipped, %d failed as expected\n", run->result.passed,
                run->result.failed, run->result.skipped, run->result.expected);
        if (run->number == 0)
            fprintf(run->out, "# nothing was checked: no check has these names and tags; --list prints all checks\n");
        else if (run->kernels == 0)
            fprintf(run->out, "# nothing was checked: %s has no kernels for these checks. Its file is %s; "
                    "CTRT_PLUGIN_PATH=FOLDER, an absolute path, uses the plugins of another folder\n",
                    ctrt_device_name(run->device), backend_file(run->device));
    }
    fflush(run->out);
    if (!junit_close(&run->junit, "ctrt check"))
        return 2;
    return run->result.failed || (!options->list && run->kernels == 0) ? 1 : 0;
}

/* In the thread of watch.c, while the check still runs. */
void check_ends_badly(struct run *run, int number, const void *address)
{
    char call[128];
    if (run->options->progress != NULL) {
        run->options->progress->expired = true;
        _exit(1);
    }
    kernels_last(call);
    run->skipped = false;
    if (number != 0)
        check_fail(run, "crashed with signal %d, %s, at address %p; the last call of a kernel: %s", number,
                   strsignal(number), address, call);
    else
        check_fail(run, "did not end within %g s; the last call of a kernel: %s", run->options->seconds, call);
    run->variant = "";
    if (number == SIGSEGV && (uintptr_t)address < 4096)
        check_fail(run, "it has used " GUARD_NULL);
    check_fail(run, "the next checks were not run; run this op alone in a debugger, or with %s",
               number != 0 ? "--guard" : "more time, --timeout");
    print_result(run);
    const int status = finish(run);
    if (number == 0)
        _exit(status);
}

int conformance_run(const struct conformance_options *options, struct conformance_result *result)
{
    struct run run = { .options = options, .out = options->out ? options->out : stdout };
    if (options->expect_file && !expected_load(options->expect_file))
        return 2;
    if (options->progress != NULL) {
        run.number = options->progress->number;
        run.kernels = options->progress->kernels;
        run.result = options->progress->result;
    }
    if (ctrt_device_get(&run.device, options->device ? options->device : "cpu") != CTRT_OK) {
        fprintf(stderr, "conformance: %s\n", ctrt_error_message());
        return 2;
    }
    if (!junit_open(&run.junit, options->junit))
        return 2;
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    run.matrices = ctrt_device_get_properties(&properties, ctrt_device_name(run.device)) == CTRT_OK
    ? properties.matrix_dtype : CTRT_F32;
    if (!options->list && run.number == 0)
        fprintf(run.out, "# conformance of %s (%s), seed %llu\n", ctrt_device_name(run.device),
                backend_file(run.device), (unsigned long long)options->seed);
    if ((options->progress == NULL && !kernels_watch(&run)) || !watch_start(&run))
        return 2;
    for (int f = 0; f < FAMILIES; f++)
        run_family(&run, families[f]);
    if (op_wanted(&run, "suite"))
        check_coverage(&run);
    check_kernels(&run);
    if (result)
        *result = run.result;
    return finish(&run);
}
