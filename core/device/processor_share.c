/* SPDX-License-Identifier: Apache-2.0 */
/* device/processor_share.c: how many ranks share the processors that this process may use (CTRT_LOCAL_RANKS).
 *
 * mpirun and torchrun start several ranks per machine. A launcher that binds its ranks has divided the processors;
 * otherwise each rank may use all of them, and the ranks have to divide them. A rank is bound if it may use fewer
 * processors than its launcher, which is the nearest ancestor process that does not have the variable for the rank:
 * processes between the two, such as a shell, have it too. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "device/launcher.h"
#include "registry/registry.h"

#define MOST_ANCESTORS    32
#define ENVIRONMENT_BYTES ((size_t)1 << 18)     /* the rest of a longer environment is not searched */

/* Reads a file of /proc to `out`, ends it with NUL and returns its length; -1 if it cannot be read. */
static ssize_t read_proc(char *out, size_t bytes, pid_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    const int fd = fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
    size_t length = 0;
    for (ssize_t n = 1; fd >= 0 && n > 0 && length + 1 < bytes; length += n > 0 ? (size_t)n : 0)
        n = read(fd, out + length, bytes - 1 - length);
    if (fd >= 0)
        close(fd);
    out[length] = '\0';
    return fd >= 0 ? (ssize_t)length : -1;
}

/* Returns the parent of a process, 0 if it is unknown. In the file, a name in parentheses precedes state and parent. */
static pid_t parent_of(pid_t pid)
{
    char text[512];
    if (read_proc(text, sizeof text, pid, "stat") <= 0)
        return 0;
    const char *end = strrchr(text, ')');
    return end != NULL && strlen(end) > 4 ? atoi(end + 4) : 0;
}

/* Whether the process was started with the variable. */
static bool has_variable(pid_t pid, const char *name)
{
    char *text = host_alloc(ENVIRONMENT_BYTES);
    const size_t length = strlen(name);
    const ssize_t bytes = text != NULL ? read_proc(text, ENVIRONMENT_BYTES, pid, "environ") : -1;
    bool found = false;
    for (ssize_t at = 0; at < bytes && !found; at += (ssize_t)strlen(text + at) + 1)
        found = strncmp(text + at, name, length) == 0 && text[at + (ssize_t)length] == '=';
    host_free(text);
    return found;
}

static int32_t processors_of(pid_t pid)
{
    cpu_set_t set;
    return sched_getaffinity(pid, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

/* Returns the number of processors that the launcher may use; 0 if it is unknown. Slurm's daemon may use the whole
 * machine, of which the job has a part. */
static int32_t launcher_processors(const char *rank_variable)
{
    const char *job = launcher_variable("SLURM_CPUS_ON_NODE");
    pid_t pid = getppid();
    for (int i = 0; i < MOST_ANCESTORS && pid > 1 && has_variable(pid, rank_variable); i++)
        pid = parent_of(pid);
    const int32_t all = pid > 0 ? processors_of(pid) : 0;
    return job != NULL && atoi(job) > 0 ? MIN(all, atoi(job)) : all;
}

/* Of the ranks on this machine, returns how many share the processors of this process. */
static int32_t ranks_sharing(void)
{
    struct rank_environment environment;
    if (launcher_read(&environment) != CTRT_OK || environment.local_size <= 1)
        return 1;
    const int32_t own = processors_of(0), all = launcher_processors(environment.rank_variable);
    if (own < 1 || all <= own)
        return environment.local_size;
    return (int32_t)(((int64_t)environment.local_size * own + all - 1) / all);
}

static void param_default(ctrt_param_value *out, const char *name)
{
    if (strcmp(name, "CTRT_LOCAL_RANKS") == 0)
        out->integer = ranks_sharing();
}

__attribute__((constructor)) static void processor_share_start(void)
{
    registry_param_default = param_default;
}
