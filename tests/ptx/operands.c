/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/operands.c: declarations in a body, and operands of instructions. */
#include "decode.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void decode_fail(struct decoder *d, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(d->message, sizeof d->message, format, list);
    va_end(list);
    longjmp(d->failure, 1);
}

void *decode_grow(void *array, uint32_t count, uint32_t *room, size_t bytes)
{
    if (count < *room)
        return array;
    *room = 2 * *room + 64;
    array = realloc(array, *room * bytes);
    if (array == NULL)
        abort();
    return array;
}

/* ---- names ---- */

uint32_t decode_allocate(struct decoder *d, char width, uint32_t count)
{
    const uint32_t bytes = width == 'p' ? 4 : width == 'l' ? 8 * LANES : 4 * LANES;
    if (width != 'p')
        d->frame = (d->frame + 63) / 64 * 64;
    const uint32_t offset = d->frame;
    d->frame += bytes * count;
    return offset;
}

static struct name *add_name(struct decoder *d, const char *text, uint32_t length)
{
    d->names = decode_grow(d->names, d->name_count, &d->name_room, sizeof *d->names);
    struct name *n = &d->names[d->name_count++];
    *n = (struct name){ .text = text, .length = length, .depth = d->depth, .count = 1 };
    return n;
}

struct name *decode_name(struct decoder *d, const char *text, uint32_t length, uint32_t *index)
{
    *index = 0;
    for (uint32_t k = d->name_count; k-- > 0;) {
        struct name *n = &d->names[k];
        if (length < n->length || memcmp(text, n->text, n->length) != 0)
            continue;
        if (length == n->length && !n->is_range)
            return n;
        if (!n->is_range || length == n->length || !isdigit((unsigned char)text[n->length]))
            continue;
        uint32_t number = 0, at = n->length;
        while (at < length && isdigit((unsigned char)text[at]))
            number = 10 * number + (uint32_t)(text[at++] - '0');
        if (at == length && number < n->count) {
            *index = number;
            return n;
        }
    }
    return NULL;
}

static char width_of_type(const char *type, uint32_t length)
{
    if (length == 4 && memcmp(type, "pred", 4) == 0)
        return 'p';
    return length == 3 && type[1] == '6' && type[2] == '4' ? 'l' : 'w';
}

void decode_declaration(struct decoder *d)
{
    const char *p = d->p + 1;
    const uint8_t space = *p == 'r' ? GENERIC : *p == 'p' ? FRAME : *p == 's' ? SHARED : LOCAL;
    uint32_t align = 0, element = 1;
    char width = 'w';
    p = skip_space(p + word_length(p));
    while (*p == '.') {
        p++;
        const uint32_t n = word_length(p);
        if (n == 5 && memcmp(p, "align", 5) == 0) {
            align = (uint32_t)strtoul(p + 5, (char **)&p, 10);
        } else {
            width = width_of_type(p, n);
            element = (uint32_t)atoi(p + 1) / 8;
            p += n;
        }
        p = skip_space(p);
    }
    for (;;) {
        const uint32_t length = word_length(p);
        struct name *n = add_name(d, p, length);
        if (length == 0)
            decode_fail(d, "unknown declaration: %.40s", d->p);
        p = skip_space(p + length);
        if (space == GENERIC) {
            n->width = width;
            if (*p == '<') {
                n->is_range = true;
                n->count = (uint32_t)strtoul(p + 1, (char **)&p, 10);
                p = skip_space(p) + 1;
            }
            n->offset = decode_allocate(d, width, n->count);
        } else {
            n->space = space;
            n->bytes = element;
            if (*p == '[') {
                n->bytes = element * (uint32_t)strtoul(p + 1, (char **)&p, 10);
                p = skip_space(p) + 1;
            }
            align = align == 0 ? element : align;
            if (space == FRAME) {
                d->frame = (d->frame + 63) / 64 * 64;
                n->offset = d->frame;
                d->frame += n->bytes * LANES;
            } else if (space == SHARED) {
                d->shared = (d->shared + align - 1) / align * align;
                n->offset = d->shared;
                d->shared += n->bytes;
            } else {
                d->local = (d->local + align - 1) / align * align;
                n->offset = d->local;
                d->local += (n->bytes + 7) / 8 * 8;
            }
        }
        p = skip_space(p);
        if (*p != ',')
            break;
        p = skip_space(p + 1);
    }
    d->p = p + (*p == ';');
}

/* ---- operands ---- */

uint32_t decode_constant(struct decoder *d, uint64_t value, char width)
{
    if (width == 'p')
        value = value != 0 ? ALL_LANES : 0;
    uint32_t k = 0;
    while (k < d->constant_count && d->constants[k] != value)
        k++;
    if (k == d->constant_count) {
        d->constants = decode_grow(d->constants, k, &d->constant_room, sizeof *d->constants);
        d->constants[d->constant_count++] = value;
    }
    return (k * CONSTANT_BYTES + (width == 'l' ? 4 * LANES : 0)) | IN_CONSTANTS;
}

static const struct { const char *name; int special; } specials[] = {
    { "%tid.x", TID_X }, { "%tid.y", TID_Y }, { "%tid.z", TID_Z }, { "%ntid.x", NTID_X }, { "%ntid.y", NTID_Y },
    { "%ntid.z", NTID_Z }, { "%ctaid.x", CTAID_X }, { "%ctaid.y", CTAID_Y }, { "%ctaid.z", CTAID_Z },
    { "%nctaid.x", NCTAID_X }, { "%nctaid.y", NCTAID_Y }, { "%nctaid.z", NCTAID_Z }, { "%laneid", LANEID },
    { "%warpid", WARPID }, { "%nwarpid", NWARPID }, { "%smid", SMID }, { "%lanemask_eq", LANEMASK_EQ },
    { "%lanemask_le", LANEMASK_LE }, { "%lanemask_lt", LANEMASK_LT }, { "%lanemask_ge", LANEMASK_GE },
    { "%lanemask_gt", LANEMASK_GT }, { "%clock", CLOCK }, { "_", SINK },
};

/* Reads a register or symbol as the value of *a. */
static const char *read_symbol(struct decoder *d, const char *p, struct argument *a)
{
    uint32_t n = word_length(p), index;
    if (*p == '%' && p[n] == '.')
        n += 1 + word_length(p + n + 1);
    for (size_t k = 0; k < sizeof specials / sizeof specials[0]; k++)
        if (strlen(specials[k].name) == n && memcmp(specials[k].name, p, n) == 0) {
            *a = (struct argument){ .kind = REGISTER, .width = specials[k].special == SINK ? '*' : 'w',
                                    .op = (uint32_t)specials[k].special * SPECIAL_BYTES | IN_SPECIAL };
            return p + n;
        }
    const struct name *name = decode_name(d, p, n, &index);
    if (name != NULL && name->width != 0) {
        const uint32_t bytes = name->width == 'p' ? 4 : name->width == 'l' ? 8 * LANES : 4 * LANES;
        *a = (struct argument){ .kind = REGISTER, .width = name->width, .op = name->offset + bytes * index };
        return p + n;
    }
    *a = (struct argument){ .kind = SYMBOL, .width = 'l' };
    if (name != NULL && name->space == FRAME) {
        a->space = FRAME;
        a->op = name->offset;
        a->stride = name->bytes;
        return p + n;
    }
    if (name != NULL && name->space == SHARED) {
        a->kind = IMMEDIATE;
        a->value = name->offset;
        return p + n;
    }
    if (name != NULL) {
        if (name->offset != 0)
            decode_fail(d, "more than one local variable");
        *a = (struct argument){ .kind = REGISTER, .width = 'l', .op = d->function->local_base };
        return p + n;
    }
    struct function *f = d->function;
    for (unsigned k = 0; k < f->parameter_count; k++)
        if (strlen(f->parameters[k].name) == n && memcmp(f->parameters[k].name, p, n) == 0) {
            a->op = PARAM_BASE * SPECIAL_BYTES | IN_SPECIAL;
            a->value = f->parameters[k].offset;
            return p + n;
        }
    for (struct variable *v = f->module->variables; v != NULL; v = v->next)
        if (strlen(v->name) == n && memcmp(v->name, p, n) == 0) {
            if (v->memory != NULL) {
                a->kind = IMMEDIATE;
                a->value = (uintptr_t)v->memory;
            } else if (v->is_extern) {
                *a = (struct argument){ .kind = REGISTER, .width = '*',
                                        .op = DYNAMIC_SHARED * SPECIAL_BYTES | IN_SPECIAL };
            } else {
                /* A shared variable of the module gets its place in each function that uses it. */
                struct name *shared = add_name(d, p, n);
                d->shared = (d->shared + v->align - 1) / v->align * v->align;
                *shared = (struct name){ .text = shared->text, .length = n, .space = SHARED, .offset = d->shared,
                                         .bytes = v->bytes };
                d->shared += v->bytes;
                a->kind = IMMEDIATE;
                a->value = shared->offset;
            }
            return p + n;
        }
    decode_fail(d, "unknown name %.*s", (int)n, p);
}

static const char *read_number(const char *p, uint64_t *value)
{
    char *end;
    if (p[0] == '0' && (p[1] == 'f' || p[1] == 'F' || p[1] == 'd' || p[1] == 'D') && isxdigit((unsigned char)p[2])) {
        *value = strtoull(p + 2, &end, 16);
        return end;
    }
    const bool negative = *p == '-';
    *value = strtoull(p + negative, &end, 0);
    if (negative)
        *value = 0 - *value;
    return end + (*end == 'U');
}

static const char *read_argument(struct decoder *d, const char *p, struct argument *a)
{
    p = skip_space(p);
    if (*p == '!') {
        p = read_symbol(d, skip_space(p + 1), a);
        a->negated = true;
        return p;
    }
    if (*p == '[') {
        p = skip_space(p + 1);
        if (isdigit((unsigned char)*p)) {
            *a = (struct argument){ .kind = IMMEDIATE, .width = 'l' };
        } else {
            p = read_symbol(d, p, a);
        }
        if (a->kind == IMMEDIATE) {
            a->op = decode_constant(d, a->value, 'l');
            a->value = 0;
        }
        a->kind = ADDRESS;
        a->width = a->width == '*' ? 'l' : a->width;
        p = skip_space(p);
        if (isdigit((unsigned char)*p) || *p == '+' || *p == '-') {
            uint64_t offset;
            if (*p == '+')
                p = skip_space(p + 1);
            p = skip_space(read_number(p, &offset));
            a->value += offset;
        }
        return *p == ']' ? p + 1 : NULL;
    }
    if (isdigit((unsigned char)*p) || *p == '-') {
        *a = (struct argument){ .kind = IMMEDIATE };
        return read_number(p, &a->value);
    }
    return read_symbol(d, p, a);
}

unsigned decode_arguments(struct decoder *d, struct argument *out, unsigned *groups)
{
    const char *p = skip_space(d->p);
    unsigned n = 0, group = 0;
    bool in_vector = false;
    while (*p != ';' && *p != '\0') {
        if (*p == '{') {
            in_vector = true;
            p = skip_space(p + 1);
            continue;
        }
        if (n == ARGUMENTS)
            decode_fail(d, "too many operands");
        p = read_argument(d, p, &out[n]);
        if (p == NULL)
            decode_fail(d, "unknown operand");
        out[n++].group = (uint8_t)group;
        p = skip_space(p);
        if (*p == '}') {
            in_vector = false;
            p = skip_space(p + 1);
        }
        if (*p == ',' || *p == '|') {
            group += !in_vector && *p == ',';
            p = skip_space(p + 1);
        } else if (*p != ';') {
            decode_fail(d, "unknown operand at %.30s", p);
        }
    }
    *groups = n > 0 ? group + 1 : 0;
    d->p = p + (*p == ';');
    return n;
}

uint32_t decode_operand(struct decoder *d, const struct argument *a, char width)
{
    if (a->negated)
        decode_fail(d, "a negated predicate");
    switch (a->kind) {
    case IMMEDIATE:
        return decode_constant(d, a->value, width);
    case REGISTER:
        if (a->width == '*')
            return width == 'p' ? SINK_PREDICATE * SPECIAL_BYTES | IN_SPECIAL
                   : a->op == (DYNAMIC_SHARED * SPECIAL_BYTES | IN_SPECIAL) && width == 'w'
                       ? DYNAMIC_SHARED_32 * SPECIAL_BYTES | IN_SPECIAL
                       : a->op;
        if (a->width == 'l' && width == 'w' && d->may_narrow && d->narrow_count < 8) {
            uint32_t *pair = d->narrow[d->narrow_count++];
            pair[0] = a->op;
            pair[1] = decode_allocate(d, 'w', 1);
            return pair[1];
        }
        if (a->width != width)
            decode_fail(d, "a register of the wrong width");
        return a->op;
    case SYMBOL:
        if (a->space != FRAME && width == 'l' && a->value == 0)
            return a->op;                   /* the address of the kernel's first parameter */
        /* fall through */
    default:
        decode_fail(d, "an operand that is no value");
    }
}
