/* SPDX-License-Identifier: Apache-2.0 */
/* registry/child.c: with CTRT_PROBE=child, opens and initialises a plugin first in a child process, so that a plugin
 * that crashes there or does not return is refused with a reason, and the process goes on. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "ctrt/probe_plugin.h"
#include "registry/internal.h"

static const ctrt_param probe_param = {
    sizeof probe_param, "CTRT_PROBE", CTRT_PARAM_ENUM, "here", "here|child",
    "where plugins are opened first: child opens each in a child process before, which may crash",
};
CORE_PARAM(probe_param);

static const ctrt_param timeout_param = {
    sizeof timeout_param, "CTRT_PROBE_TIMEOUT", CTRT_PARAM_INT, "20", NULL,
    "seconds after which a plugin that is opened in a child process is refused",
};
CORE_PARAM(timeout_param);

/* What the child does: a static string, in a page that both processes share. */
static const char *nothing;
static const char **step = &nothing;

void child_step(const char *words)
{
    *step = words;
}

struct child_task {
    void (*function)(struct plugin_file *file);
    struct plugin_file *file;
};

static void no_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level, (void)component, (void)text;
}

static void child_body(void *argument)
{
    const struct child_task *task = argument;
    ctrt_log_set_callback(no_log, NULL);        /* the parent repeats what the child does */
    task->function(task->file);
}

ctrt_status child_survives(bool *out, void (*function)(struct plugin_file *), struct plugin_file *file, char *reason,
                           size_t bytes)
{
    ctrt_param_value where, seconds;
    struct child_task task = { function, file };
    char text[128];
    *out = true;
    CTRT_TRY(param_read(&where, &probe_param, "core"));
    CTRT_TRY(param_read(&seconds, &timeout_param, "core"));
    if (where.integer == 0 || file->builtin != NULL)
        return CTRT_OK;
    if (seconds.integer < 1 || seconds.integer > 86400)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_PROBE_TIMEOUT=%s: expected 1 to 86400 seconds", seconds.text);
    void *page = mmap(NULL, sizeof *step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return out_of_memory(sizeof *step, "a page that a child process shares");
    step = page;
    child_step("while it was loaded");
    *out = ctrt_call_in_child(child_body, &task, sizeof task, (int)seconds.integer * 1000, text, sizeof text);
    if (!*out)
        snprintf(reason, bytes, "%s %s", text, *step);
    step = &nothing;
    munmap(page, sizeof *step);
    return CTRT_OK;
}
