/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: which kernels run. With CTRT_CHECK_CALLS=1 the library logs each call of a kernel, and the suite reads the
 * log. A kernels plugin whose kernels never run was not checked, although all checks may pass. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>

#include "ctrt/plugin.h"
#include "suite.h"

/* A kernel of the plugin. */
struct row {
    const ctrt_kernel *kernel;
    long runs, refusals, others;                /* others: calls in which another kernel ran */
    int score;                                  /* the largest of those */
    int number;                                 /* in the table */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* guards everything */
static struct row *rows;
static size_t row_count;
static bool has_table;                          /* the file adds kernels to the backend */
static char last[128] = "none";

/* ---- the log ---- */

static const char *const levels[] = { "error", "warning", "info", "debug" };

/* The level of CTRT_LOG, because the suite sets a higher one. */
static ctrt_log_level shown_level(void)
{
    const char *word = getenv("CTRT_LOG");
    for (int level = 0; word != NULL && level < COUNT_OF(levels); level++)
        if (strcmp(levels[level], word) == 0)
            return (ctrt_log_level)level;
    return CTRT_LOG_WARNING;
}

static bool has_dtype(const ctrt_kernel *kernel, const char *name)
{
    for (int dtype = 1; dtype < 64; dtype++)
        if (kernel->dtypes >> dtype & 1 && strcmp(ctrt_dtype_name((ctrt_dtype)dtype), name) == 0)
            return true;
    return false;
}

/* `text`: a line of contract_log (core/ops/contract.h). */
static void record_call(const char *text)
{
    char op[64], dtype[16], what[16];
    void *kernel;
    int score;
    if (sscanf(text, "%63s %15[^:]: kernel %p of score %d %15s", op, dtype, &kernel, &score, what) != 5)
        return;
    const bool runs = strcmp(what, "runs") == 0;
    pthread_mutex_lock(&lock);
    if (runs)
        snprintf(last, sizeof last, "%s %s, score %d", op, dtype, score);
    for (size_t i = 0; i < row_count; i++) {
        struct row *row = &rows[i];
        if (row->kernel == kernel)
            (*(runs ? &row->runs : &row->refusals))++;
        else if (runs && strcmp(row->kernel->op, op) == 0 && has_dtype(row->kernel, dtype))
            row->score = row->others++ == 0 || score > row->score ? score : row->score;
    }
    pthread_mutex_unlock(&lock);
}

static void on_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user;
    if (strcmp(component, "kernels") == 0)
        record_call(text);
    if (level <= shown_level())
        fprintf(stderr, "ctrt: %s: %s: %s\n", levels[level], component, text);
}

void kernels_last(char text[128])
{
    pthread_mutex_lock(&lock);
    memcpy(text, last, sizeof last);
    pthread_mutex_unlock(&lock);
}

/* ---- the plugin ---- */

/* Returns the table of the kernels that the plugin adds to the backend `type`; NULL: none. The library has initialised
 * it, so that the table is complete. */
static const ctrt_kernel_table *find_table(const char *file, const char *type)
{
    ctrt_plugin_entry entry;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL), *symbol = handle ? dlsym(handle, "ctrt_plugin_v1") : NULL;
    if (symbol == NULL)
        return NULL;
    memcpy(&entry, &symbol, sizeof entry);
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    for (size_t i = 0; plugin != NULL && i < plugin->component_count; i++) {
        const ctrt_component *component =
            (const ctrt_component *)((const char *)plugin->components + i * plugin->component_stride);
        if (component->kind == CTRT_COMPONENT_KERNELS && strcmp(component->name, type) == 0)
            return ((const ctrt_kernels *)component->table)->kernels;
    }
    return NULL;
}

bool kernels_watch(const struct run *run)
{
    ctrt_log_set_callback(on_log, NULL);
    ctrt_log_set_level(CTRT_LOG_DEBUG);
    if (run->options->file == NULL)
        return true;
    (void)ctrt_op_supported(run->device, "copy", CTRT_F32);     /* the backend and the plugin prepare their tables */
    const ctrt_kernel_table *table = find_table(run->options->file, ctrt_device_type(run->device));
    has_table = table != NULL;
    if (!has_table)
        return true;
    rows = calloc(table->count + 1, sizeof *rows);
    if (rows == NULL) {
        fprintf(stderr, "conformance: out of memory\n");
        return false;
    }
    for (size_t i = 0; i < table->count; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)table->kernels + i * table->stride);
        if (kernel->op != NULL)
            rows[row_count++] = (struct row){ .kernel = kernel, .number = (int)i };
    }
    return true;
}

/* Adds to the check why the kernel never ran, and what to do. */
static void row_fail(struct run *run, const struct row *row)
{
    const ctrt_kernel *kernel = row->kernel;
    char name[256];
    int length = snprintf(name, sizeof name, "kernel %d, %s", row->number, kernel->op);
    for (int dtype = 1; dtype < 64; dtype++)
        if (kernel->dtypes >> dtype & 1 && length < (int)sizeof name)
            length += snprintf(name + length, sizeof name - (size_t)length, " %s", ctrt_dtype_name((ctrt_dtype)dtype));
    if (!op_has_kernels(kernel->op))
        check_fail(run, "%s: there is no such op; `ctrt ops` lists them", name);
    else if (row->refusals > 0)
        check_fail(run, "%s: `accepts` refused all %ld calls; let it accept some of them", name, row->refusals);
    else if (row->others > 0)
        check_fail(run, "%s: in all %ld calls a kernel of score %d ran, and this one has %d; give it a larger score",
                   name, row->others, row->score, (int)kernel->score);
    else
        check_fail(run, "%s: no check called the op with these dtypes; `ctrt ops %s` has its dtypes", name, kernel->op);
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
}

/* Whether the library has initialised the plugin; adds to the check why not. */
static bool is_loaded(struct run *run)
{
    const char *name = base_name(run->options->file);
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (size_t k = 0; ctrt_plugin_list(&info, k) == CTRT_OK; k++) {
        if (strcmp(base_name(info.file), name) != 0)
            continue;
        if (strcmp(info.state, "loaded") == 0)
            return true;
        check_fail(run, "%s is %s: %s", name, info.state, info.reason);
        return false;
    }
    return false;
}

void check_kernels(struct run *run)
{
    const struct conformance_options *options = run->options;
    const bool all = options->tags == NULL && options->skip_tags == NULL;
    long runs = 0;
    run->family = NULL;
    run->kernel = NULL;
    if (!has_table || !check_begin(run, "suite", 0, NULL, "runs the kernels of %s", base_name(options->file)))
        return;
    for (size_t i = 0; i < row_count; i++)
        runs += rows[i].runs;
    const bool loaded = runs > 0 || is_loaded(run);
    for (size_t i = 0; i < row_count && loaded && (all || runs == 0); i++)
        if (rows[i].runs == 0 && (op_wanted(run, rows[i].kernel->op)
                                  || (runs == 0 && !op_has_kernels(rows[i].kernel->op))))
            row_fail(run, &rows[i]);
    if (runs == 0 && !run->failed)
        check_fail(run, "none of the plugin's kernels (%zu) ran, because none is of an op that was checked", row_count);
    check_end(run);
}
