/* SPDX-License-Identifier: Apache-2.0 */
/* base/backtrace.c: call stacks of allocations. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/backtrace.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/json.h"

/* Some C libraries do not have it (musl). */
extern int backtrace(void **addresses, int most) __attribute__((weak));

#define BUCKETS 4096
#define SKIPPED 2                           /* backtrace_here and its caller */

atomic_bool backtrace_wanted;

LOCK_DEFINE_MUTEX(backtrace_lock);
static struct backtrace *buckets[BUCKETS];
static uint32_t stacks;

void backtrace_prepare(void)
{
    void *few[2];
    if (backtrace != NULL)
        (void)backtrace(few, 2);
}

static struct backtrace *find(struct backtrace *bucket, void *const *at, int count)
{
    while (bucket != NULL && (bucket->count != count || memcmp(bucket->at, at, (size_t)count * sizeof *at) != 0))
        bucket = bucket->next;
    return bucket;
}

/* Uses malloc directly, because locks of policies may be held here. */
static struct backtrace *backtrace_keep(struct backtrace **bucket, void *const *at, int count)
{
    struct backtrace *fresh = stacks < FRAMES_STACKS ? malloc(sizeof *fresh + (size_t)count * sizeof *at) : NULL;
    if (fresh == NULL)
        return NULL;
    *fresh = (struct backtrace){ *bucket, ++stacks, count };
    memcpy(fresh->at, at, (size_t)count * sizeof *at);
    return *bucket = fresh;                 /* last, so that the child of a fork sees the complete entry or none */
}

__attribute__((noinline)) const struct backtrace *backtrace_here(void)
{
    void *all[SKIPPED + FRAMES_DEPTH];
    uint64_t hash = 0;
    int count = backtrace != NULL ? backtrace(all, SKIPPED + FRAMES_DEPTH) - SKIPPED : 0;
    if (count <= 0)
        return NULL;
    void *const *at = all + SKIPPED;
    for (int i = 0; i < count; i++)
        hash = (hash ^ (uintptr_t)at[i]) * 0x9e3779b97f4a7c15u;
    struct backtrace **bucket = &buckets[(hash >> 32) % BUCKETS];
    pthread_mutex_lock(&backtrace_lock);
    struct backtrace *found = find(*bucket, at, count);
    if (found == NULL)
        found = backtrace_keep(bucket, at, count);
    pthread_mutex_unlock(&backtrace_lock);
    return found;
}

void backtrace_place(char *text, size_t bytes, const struct backtrace *backtrace)
{
    Dl_info own = { 0 }, about;
    *text = '\0';
    if (dladdr(&stacks, &own) == 0)
        return;
    for (int i = 0; i < backtrace->count; i++) {
        const char *address = (const char *)backtrace->at[i] - 1;
        if (dladdr(address, &about) == 0 || about.dli_fbase == own.dli_fbase)
            continue;
        const char *file = about.dli_fname != NULL ? about.dli_fname : "?", *slash = strrchr(file, '/');
        const void *base = about.dli_sname != NULL ? about.dli_saddr : about.dli_fbase;
        snprintf(text, bytes, "%s(%s+0x%llx)", slash != NULL ? slash + 1 : file,
                 about.dli_sname != NULL ? about.dli_sname : "",
                 (unsigned long long)((uintptr_t)address - (uintptr_t)base));
        return;
    }
}

void backtrace_json(struct json *json, const char *key, const struct backtrace *backtrace)
{
    json_begin(json, key, '[');
    for (int i = 0; i < backtrace->count; i++) {
        const char *address = backtrace->at[i];
        Dl_info about = { 0 };
        /* The return address is the address after the call instruction, so look up the byte before it. */
        bool known = dladdr(address - 1, &about) != 0;
        json_begin(json, NULL, '{');
        json_add_string(json, "name", known && about.dli_sname != NULL ? about.dli_sname : "");
        json_add_string(json, "filename", known && about.dli_fname != NULL ? about.dli_fname : "");
        json_add_uint(json, "line", 0);
        json_add_uint(json, "offset", (uintptr_t)address - 1 - (known ? (uintptr_t)about.dli_fbase : 0));
        json_end(json, '}');
    }
    json_end(json, ']');
}
