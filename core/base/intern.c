/* SPDX-License-Identifier: Apache-2.0 */
/* base/intern.c: interned strings in a hash table with separate chaining. */
#include "base/intern.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "base/host_alloc.h"

struct kept {
    struct kept *next;
    char text[];
};

LOCK_DEFINE(intern_lock, LOCK_KEEP);
static struct kept *chains[64];

static unsigned hash(const char *text)
{
    unsigned h = 2166136261u;           /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h % 64;
}

const char *intern_string(const char *text)
{
    if (text == NULL)
        return NULL;
    lock_enter(&intern_lock);
    struct kept **chain = &chains[hash(text)], *found = *chain;
    while (found != NULL && strcmp(found->text, text) != 0)
        found = found->next;
    if (found == NULL) {
        size_t bytes = strlen(text) + 1;
        found = host_alloc(sizeof *found + bytes);
        if (found != NULL) {
            memcpy(found->text, text, bytes);
            found->next = *chain;
            *chain = found;
        }
    }
    lock_leave(&intern_lock);
    return found != NULL ? found->text : NULL;
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
