/* SPDX-License-Identifier: Apache-2.0 */
/* contract_host.c: the host table of the contract checks. It counts blocks, guards their ends, keeps each thread's last
 * failure, and can make an allocation fail. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <strings.h>
#include <unistd.h>

__thread struct contract_failure contract_failure;

static ctrt_status checker_fail(ctrt_status status, const char *format, ...)
{
    char text[sizeof contract_failure.text];        /* the arguments may contain the last message */
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memcpy(contract_failure.text, text, sizeof text);
    contract_failure.status = status;
    contract_failure.count++;
    return status;
}

static void checker_log(ctrt_log_level level, const char *component, const char *format, ...)
{
    va_list list;
    if (level > CTRT_LOG_WARNING)
        return;
    flockfile(stderr);
    fprintf(stderr, "# %s: ", component);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    funlockfile(stderr);
}

static const char *checker_message(void)
{
    return contract_failure.text;
}

/* ---- memory ---- */

#define USED  0x63747274626c6f63u
#define FREED 0x6672656564u

struct header {
    uint64_t state, bytes;
};

static atomic_long blocks, fail_in;
static atomic_bool fail_hit;

long contract_host_blocks(void)
{
    return atomic_load(&blocks);
}

void contract_host_fail(long n)
{
    atomic_store(&fail_hit, false);
    atomic_store(&fail_in, n);
}

bool contract_host_failed(void)
{
    return atomic_load(&fail_hit);
}

static void *checker_alloc(size_t bytes)
{
    if (atomic_load(&fail_in) > 0 && atomic_fetch_sub(&fail_in, 1) == 1) {
        atomic_store(&fail_hit, true);
        return NULL;
    }
    struct header *header = bytes < SIZE_MAX / 2 ? malloc(sizeof *header + bytes + sizeof(uint64_t)) : NULL;
    if (header == NULL)
        return NULL;
    *header = (struct header){ USED, bytes };
    memset(header + 1, 0xa5, bytes + sizeof(uint64_t));
    atomic_fetch_add(&blocks, 1);
    return header + 1;
}

static void checker_free(void *pointer)
{
    struct header *header = pointer;
    if (header == NULL)
        return;
    header--;
    EXPECT(header->state != FREED, "host->free was called twice for one block");
    EXPECT(header->state == USED, "host->free was called for memory that host->alloc did not return");
    contract_expect_bytes((char *)pointer + header->bytes, sizeof(uint64_t), 0xa5,
                          "after the end of a block of host->alloc");
    header->state = FREED;
    atomic_fetch_sub(&blocks, 1);
    free(header);
}

/* ---- parameters ---- */

static ctrt_status param_malformed(const ctrt_param *param, const char *text)
{
    return checker_fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s is malformed", param->name, text);
}

static ctrt_status param_value(int64_t *out, const ctrt_param *param, const char *text)
{
    const char *const list = param->type == CTRT_PARAM_BOOL ? "0|1|no|yes|false|true|off|on"
                             : param->words != NULL         ? param->words
                                                            : "";
    char *end = "";
    errno = 0;
    if (param->type == CTRT_PARAM_INT || param->type == CTRT_PARAM_BYTES) {
        *out = strtoll(text, &end, 10);
        const char *unit = param->type == CTRT_PARAM_BYTES && *end != '\0' ? strchr("kKmMgGtT", *end) : NULL;
        if (unit != NULL)
            *out <<= 10 * ((unit - "kKmMgGtT") / 2 + 1), end += 1 + (strcasecmp(end + 1, "ib") == 0 ? 2 : 0);
        return end == text || *end != '\0' || errno != 0 ? param_malformed(param, text) : CTRT_OK;
    }
    int64_t position = 0;
    for (const char *at = list; param->type != CTRT_PARAM_STRING; position++) {
        const size_t length = strcspn(at, "|");
        if (strlen(text) == length && strncasecmp(at, text, length) == 0)
            break;
        if (at[length] == '\0')
            return param_malformed(param, text);
        at += length + 1;
    }
    *out = param->type == CTRT_PARAM_BOOL ? position % 2 : position;
    return CTRT_OK;
}

static ctrt_status checker_param(ctrt_param_value *out, const ctrt_param *param)
{
    const char *set = getenv(param->name), *text = set != NULL && *set != '\0' ? set : param->fallback;
    *out = (ctrt_param_value){ .text = text, .is_set = text != NULL && text == set };
    return text != NULL ? param_value(&out->integer, param, text) : CTRT_OK;
}

/* ---- the rest ---- */

/* Initialises a plugin that the plugin under test calls, from the same folder or a folder of the library. */
static const struct ctrt_backend *checker_backend(const char *name)
{
    char path[sizeof contract_target.file + 64];
    const char *slash = strrchr(contract_target.file, '/');
    void *handle = NULL;
    for (size_t k = 0; handle == NULL; k++) {
        const char *folder = k > 0 ? ctrt_plugin_folder(k - 1) : "";
        if (folder == NULL)
            return NULL;
        snprintf(path, sizeof path, "%.*s/backend-%.40s.so",
                 k > 0 ? (int)strlen(folder) : (int)(slash - contract_target.file),
                 k > 0 ? folder : contract_target.file, name);
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    ctrt_plugin_entry entry;
    void *symbol = dlsym(handle, "ctrt_plugin_v1");
    if (symbol == NULL)
        return NULL;
    memcpy(&entry, &symbol, sizeof entry);
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    if (CTRT_SLOT(plugin, init) && plugin->init(&contract_host) != CTRT_OK)
        return NULL;
    return plugin->components[0].table;
}

static bool checker_describe(char *text, size_t bytes, const void *address)
{
    (void)text, (void)bytes, (void)address;
    return false;
}

static ctrt_status checker_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    return pthread_atfork(before, in_parent, in_child) == 0 ? CTRT_OK
                                                            : checker_fail(CTRT_ERR_OUT_OF_MEMORY, "pthread_atfork");
}

static int checker_descriptor(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    const int other = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return other;
}

const ctrt_host contract_host = {
    .size = sizeof(ctrt_host), .abi_major = CTRT_PLUGIN_ABI_MAJOR, .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .fail = checker_fail, .log = checker_log, .alloc = checker_alloc, .free = checker_free, .param = checker_param,
    .backend = checker_backend, .message = checker_message, .describe = checker_describe, .at_fork = checker_at_fork,
    .descriptor = checker_descriptor,
};
