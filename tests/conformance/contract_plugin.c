/* SPDX-License-Identifier: Apache-2.0 */
/* contract_plugin.c: checks of what all kinds of plugins have in common: names, probe, init. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract.h"

#include <dirent.h>
#include <sys/mman.h>

void contract_check_names(void)
{
    const char *name = contract_target.component->name, *file = strrchr(contract_target.file, '/') + 1;
    const char *word = contract_kind_word(contract_target.component->kind), *own = contract_target.plugin->name;
    const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-"), stem = strcspn(file, ".");
    char wanted[64];
    EXPECT(length > 0 && length < 32 && name[length] == '\0' && name[0] >= 'a' && name[0] <= 'z'
               && name[length - 1] != '-',
           "the component's name \"%s\" is not lower case, or has more than 31 characters", name);
    snprintf(wanted, sizeof wanted, "%s-%s.so", word, name);
    EXPECT(strcmp(file, wanted) == 0, "the file %s has the component %s, so it has to be called %s", file, name,
           wanted);
    EXPECT(strncmp(own, file, stem) == 0 && own[stem] == '\0',
           "the plugin's name, in CTRT_PLUGIN_DEFINE, is \"%s\", and the file is %s", own, file);
}

static int entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

int contract_files(void)
{
    return entries("/proc/self/fd");
}

/* It was called once already, when the file was loaded. */
void contract_check_probe(void)
{
    char reason[64];
    if (!CTRT_SLOT(contract_target.component, probe))
        contract_skip("it has no probe");
    const int threads = entries("/proc/self/task"), files = contract_files();
    for (size_t bytes = 1; bytes <= 32; bytes += 31) {
        memset(reason, 0x5a, sizeof reason);
        reason[0] = '\0';
        contract_step("probe with room for a reason of %zu bytes", bytes);
        EXPECT(contract_target.component->probe(reason, bytes) > 0, "returned yes, and no at the next call");
        EXPECT(memchr(reason, '\0', bytes) != NULL && strchr(reason, '\n') == NULL, "the reason is not one line");
        contract_expect_bytes(reason + bytes, sizeof reason - bytes, 0x5a, "after the end of the reason");
    }
    EXPECT(entries("/proc/self/task") <= threads, "it has started threads; see ctrt/probe_plugin.h");
    EXPECT(contract_files() <= files, "it has opened descriptors");
}

/* ---- init ---- */

static long failing;                            /* the call of host->alloc that fails */
static bool *reached;                           /* whether init has made it; shared with the child */

static void init_body(void)
{
    contract_step("init, while call %ld of host->alloc fails", failing);
    contract_host_fail(failing);
    const ctrt_status status = contract_target.plugin->init(&contract_host);
    *reached = contract_host_failed();
    contract_host_fail(0);
    EXPECT(status == CTRT_OK || *reached, "init failed, although the host has memory: %s", contract_failure.text);
    if (status == CTRT_OK)
        return;
    contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    CALL(contract_target.plugin->init(&contract_host), "init again, after CTRT_ERR_OUT_OF_MEMORY");
}

void contract_check_init(void)
{
    if (!CTRT_SLOT(contract_target.plugin, init))
        contract_skip("it has no init");
    reached = mmap(NULL, sizeof *reached, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(reached != MAP_FAILED, "no shared memory");
    do {
        failing++;
        contract_join(contract_fork(init_body));
    } while (*reached && failing < 30);
}
