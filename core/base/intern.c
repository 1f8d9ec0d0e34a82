/* SPDX-License-Identifier: Apache-2.0 */
/* base/intern.c: interned strings. */
#include "base/intern.h"

#include <stdarg.h>

#include "base/hash.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/ptr_map.h"

struct interned {
    struct interned *next;              /* with the same hash */
    char text[];
};

struct chain {
    const void *hash;
    struct interned *first;
};

LOCK_DEFINE(intern_lock, LOCK_INTERN);
static struct ptr_map chains;

/* The FNV-1a hash, as a key of the table. */
static const void *hash(const char *text)
{
    return (const void *)(uintptr_t)(hash_bytes(HASH_START, text, strlen(text)) | 1);
}

static const char *intern_add(struct chain *chain, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    struct interned *fresh = host_alloc(sizeof *fresh + bytes);
    if (fresh == NULL)
        return NULL;
    fresh->next = chain->first;
    chain->first = fresh;
    return memcpy(fresh->text, text, bytes);
}

const char *intern_string(const char *text)
{
    if (text == NULL)
        return NULL;
    lock_enter(&intern_lock);
    struct chain *chain = ptr_map_add(&chains, hash(text), sizeof *chain);
    const struct interned *found = chain != NULL ? chain->first : NULL;
    while (found != NULL && strcmp(found->text, text) != 0)
        found = found->next;
    const char *kept = found != NULL ? found->text : chain != NULL ? intern_add(chain, text) : NULL;
    lock_leave(&intern_lock);
    return kept;
}

const char *intern_format(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *kept = intern_string(text);
    return kept != NULL ? kept : "(out of memory)";
}
