/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/module.c: reads the functions and variables of a module's text. Bodies are decoded at their first use
 * (decode.c), because a module has up to six megabytes of text and a process uses few of its kernels. */
#include "decode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

const char *skip_space(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

uint32_t word_length(const char *p)
{
    uint32_t n = 0;
    while (is_name(p[n]))
        n++;
    return n;
}

/* Overwrites comments with spaces. */
static void blank_comments(char *p)
{
    while ((p = strchr(p, '/')) != NULL) {
        if (p[1] == '/') {
            while (*p != '\0' && *p != '\n')
                *p++ = ' ';
        } else if (p[1] == '*') {
            while (*p != '\0' && !(p[0] == '*' && p[1] == '/'))
                *p++ = ' ';
            if (*p != '\0')
                p[0] = p[1] = ' ';
        } else {
            p++;
        }
    }
}

static bool at_word(const char *p, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(p, word, n) == 0 && !is_name(p[n]) && p[n] != '.';
}

static uint32_t type_bytes(const char *p)
{
    if (at_word(p, ".pred"))
        return 1;
    const char *digits = p + 2;
    return (uint32_t)atoi(digits) / 8;
}

/* Reads ".align N .type name[size]" at p; returns what follows. */
static const char *read_variable(const char *p, char **name, uint32_t *bytes, uint32_t *align, bool *sized)
{
    *align = 0;
    *bytes = 1;
    *sized = true;
    for (p = skip_space(p); *p == '.'; p = skip_space(p)) {
        if (at_word(p, ".align")) {
            *align = (uint32_t)strtoul(p + 6, (char **)&p, 10);
        } else if (at_word(p, ".ptr") || at_word(p, ".global") || at_word(p, ".const") || at_word(p, ".shared")) {
            p += 1 + word_length(p + 1);
        } else {
            *bytes = type_bytes(p);
            p += 1 + word_length(p + 1);
        }
    }
    const uint32_t n = word_length(p);
    *name = strndup(p, n);
    p = skip_space(p + n);
    if (*align == 0)
        *align = *bytes;
    if (*p == '[') {
        char *end;
        const unsigned long count = strtoul(p + 1, &end, 10);
        *sized = end != p + 1;
        *bytes *= (uint32_t)count;
        p = skip_space(end);
        p += *p == ']';
    }
    return skip_space(p);
}

static const char *matching_brace(const char *p)
{
    unsigned depth = 0;
    for (; *p != '\0'; p++) {
        depth += *p == '{';
        if (*p == '}' && --depth == 0)
            return p;
    }
    return NULL;
}

/* Reads "(.param ..., .param ...)". */
static const char *read_parameters(const char *p, struct parameter *out, unsigned room, unsigned *count)
{
    uint32_t offset = 0;
    *count = 0;
    p = skip_space(p + 1);
    while (*p != ')' && *p != '\0' && *count < room) {
        struct parameter *q = &out[(*count)++];
        bool sized;
        if (at_word(p, ".param"))
            p += 6;
        p = read_variable(p, &q->name, &q->bytes, &q->align, &sized);
        offset = (offset + q->align - 1) / q->align * q->align;
        q->offset = offset;
        offset += q->bytes;
        if (*p == ',')
            p = skip_space(p + 1);
    }
    return *p == ')' ? skip_space(p + 1) : NULL;
}

static const char *read_function(struct module *m, const char *p, bool is_kernel)
{
    struct function *f = calloc(1, sizeof *f);
    unsigned count = 0;
    f->module = m;
    f->is_kernel = is_kernel;
    p = skip_space(p);
    if (!is_kernel && *p == '(')
        p = read_parameters(p, &f->result, 1, &count);
    if (p == NULL)
        return NULL;
    const uint32_t n = word_length(p);
    f->name = strndup(p, n);
    p = skip_space(p + n);
    if (*p == '(' && (p = read_parameters(p, f->parameters, 16, &f->parameter_count)) == NULL)
        return NULL;
    for (; *p != '{' && *p != ';' && *p != '\0'; p++)
        if (at_word(p, ".maxntid")) {
            unsigned x = 1, y = 1, z = 1;
            (void)sscanf(p + 8, "%u , %u , %u", &x, &y, &z);
            f->max_threads = x * y * z;
        }
    if (*p == '{') {
        f->has_body = true;
        f->begin = p + 1;
        f->end = p = matching_brace(p);
        if (p == NULL)
            return NULL;
    }
    f->next = m->functions;
    m->functions = f;
    return p + 1;
}

static const char *read_module_variable(struct module *m, const char *p, bool is_shared, bool is_extern)
{
    struct variable *v = calloc(1, sizeof *v);
    bool sized;
    p = read_variable(p, &v->name, &v->bytes, &v->align, &sized);
    v->is_extern = is_extern;
    if (!is_shared) {
        v->memory = aligned_alloc(64, (v->bytes + 63) / 64 * 64);
        memset(v->memory, 0, v->bytes);
        if (*p == '=') {
            p = skip_space(p + 1);
            unsigned char *to = v->memory;
            if (*p == '{') {
                /* The elements of arrays are bytes in all modules that nvcc makes. */
                for (p++; *p != '}' && *p != '\0';) {
                    char *end;
                    const unsigned long long x = strtoull(skip_space(p), &end, 0);
                    if (end == p)
                        return NULL;
                    if (to < (unsigned char *)v->memory + v->bytes)
                        *to++ = (unsigned char)x;
                    p = skip_space(end);
                    p += *p == ',';
                }
            } else {
                const unsigned long long x = strtoull(p, NULL, 0);
                memcpy(to, &x, v->bytes < 8 ? v->bytes : 8);
            }
        }
        ptx_range_add(v->memory, v->bytes);
    }
    v->next = m->variables;
    m->variables = v;
    p = strchr(p, ';');
    return p == NULL ? NULL : p + 1;
}

struct module *ptx_module_new(char *text, char *why, size_t bytes)
{
    struct module *m = calloc(1, sizeof *m);
    m->text = text;
    pthread_mutex_init(&m->lock, NULL);
    blank_comments(text);
    bool is_extern = false;
    for (const char *p = skip_space(text); *p != '\0'; p = skip_space(p)) {
        const char *at = p;
        if (at_word(p, ".version") || at_word(p, ".target") || at_word(p, ".address_size")) {
            p += strcspn(p, "\n");
        } else if (at_word(p, ".visible") || at_word(p, ".weak") || at_word(p, ".extern")) {
            is_extern |= p[1] == 'e';
            p += 1 + word_length(p + 1);
        } else if (at_word(p, ".entry") || at_word(p, ".func")) {
            p = read_function(m, p + 1 + word_length(p + 1), p[1] == 'e');
            is_extern = false;
        } else if (at_word(p, ".global") || at_word(p, ".const") || at_word(p, ".shared")) {
            p = read_module_variable(m, p + 1 + word_length(p + 1), p[1] == 's', is_extern);
            is_extern = false;
        } else {
            p = NULL;
        }
        if (p == NULL) {
            snprintf(why, bytes, "unknown PTX: %.60s", at);
            return NULL;
        }
    }
    return m;
}

struct function *ptx_module_find(struct module *module, const char *name)
{
    struct function *found = NULL;
    for (struct function *f = module->functions; f != NULL; f = f->next)
        if (strcmp(f->name, name) == 0 && (found == NULL || f->has_body))
            found = f;
    return found;
}

const struct opcode *ptx_table_find(const struct opcode *table, size_t count, const char *name)
{
    for (size_t k = 0; k < count; k++)
        if (table[k].name[0] == name[0] && strcmp(table[k].name, name) == 0)
            return &table[k];
    return NULL;
}
