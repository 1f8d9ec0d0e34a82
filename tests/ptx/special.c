/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/special.c: decodes the instructions that no row of a table describes: accesses of memory, barriers, moves
 * of vectors, and those that the lanes of a warp execute together. */
#include "decode.h"

#include <stdio.h>
#include <stdlib.h>

static bool starts(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The parts of a name, which are separated by "_". */
static bool has_part(const char *name, const char *part)
{
    const size_t n = strlen(part);
    for (const char *p = strchr(name, '_'); p != NULL; p = strchr(p, '_')) {
        p++;
        if (strncmp(p, part, n) == 0 && (p[n] == '_' || p[n] == '\0'))
            return true;
    }
    return false;
}

static void set_address(struct decoder *d, struct insn *i, const struct argument *a)
{
    if (a->kind != ADDRESS)
        decode_fail(d, "an address is missing");
    i->imm = (int64_t)a->value;
    i->wide_address = a->width == 'l';
    i->stride = (uint16_t)a->stride;
    if (a->space == FRAME)
        i->space = FRAME;
    decode_push(d, i, a->op);
}

/* The type at the end of a name: its bytes, and whether it is signed or a floating-point type. */
static const char *last_part(const char *name)
{
    const char *last = strrchr(name, '_');
    return last == NULL ? name : last + 1;
}

static void set_type(struct decoder *d, struct insn *i, const char *type)
{
    const char *digits = type + strcspn(type, "0123456789");
    i->bytes = (uint8_t)(atoi(digits) / 8);
    if (i->bytes != 1 && i->bytes != 2 && i->bytes != 4 && i->bytes != 8)
        decode_fail(d, "unknown type %s", type);
    i->is_signed = type[0] == 's';
}

static void set_space(struct insn *i, const char *name)
{
    static const struct { const char *name; uint8_t space, class; } spaces[] = {
        { "global", GLOBAL, CLASS_global }, { "shared", SHARED, CLASS_shared }, { "local", LOCAL, CLASS_local },
        { "param", PARAM, CLASS_param }, { "const", GLOBAL, CLASS_global },
    };
    i->space = GENERIC;
    i->class = CLASS_global;
    for (size_t k = 0; k < sizeof spaces / sizeof spaces[0]; k++)
        if (has_part(name, spaces[k].name)) {
            i->space = spaces[k].space;
            i->class = spaces[k].class;
        }
}

static bool decode_memory(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n)
{
    const bool load = starts(name, "ld_");
    if (!load && !starts(name, "st_"))
        return false;
    const unsigned vector = has_part(name, "v2") ? 2 : has_part(name, "v4") ? 4 : has_part(name, "v8") ? 8 : 1;
    if (n != vector + 1)
        decode_fail(d, "%u operands", n);
    set_space(i, name);
    set_type(d, i, last_part(name));
    i->count = (uint8_t)vector;
    i->run = load ? ptx_load : ptx_store;
    const char want = i->bytes == 8 ? 'l' : 'w';
    if (!load)
        set_address(d, i, &a[0]);
    for (unsigned k = 0; k < vector; k++) {
        const struct argument *x = &a[load ? k : k + 1];
        const bool wide = load && x->kind == REGISTER && x->width == 'l';
        i->flags |= wide && want == 'w';
        decode_push(d, i, decode_operand(d, x, wide ? 'l' : want));
    }
    if (load)
        set_address(d, i, &a[n - 1]);
    if (!i->is_signed || i->bytes == 8)
        i->is_signed = false;
    return true;
}

static bool decode_atomic(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n)
{
    static const char *const ops[] = { "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec" };
    const bool reduce = starts(name, "red_");
    if (!reduce && !starts(name, "atom_"))
        return false;
    unsigned op = 0;
    while (op < sizeof ops / sizeof ops[0] && !has_part(name, ops[op]))
        op++;
    if (op == sizeof ops / sizeof ops[0] || n != (reduce ? 2u : op == ATOM_CAS ? 4u : 3u))
        decode_fail(d, "an atomic operation that is not implemented");
    set_space(i, name);
    const char *type = last_part(name);
    const bool pair = strcmp(type, "f16x2") == 0 || strcmp(type, "bf16x2") == 0;
    set_type(d, i, pair ? "b32" : type);
    i->flags = type[0] == 'f' && i->bytes >= 4 && !pair ? TYPE_FLOAT
               : starts(type, "f16")                    ? TYPE_F16X2
               : starts(type, "bf16")                   ? TYPE_BF16X2
                                                        : TYPE_INTEGER;
    i->run = ptx_atomic;
    i->class = CLASS_atomic;
    i->target = op;
    i->count = 1;
    const char width = i->bytes == 8 ? 'l' : 'w';
    decode_push(d, i, reduce ? SINK * SPECIAL_BYTES | IN_SPECIAL : decode_operand(d, &a[0], width));
    set_address(d, i, &a[reduce ? 0 : 1]);
    decode_push(d, i, decode_operand(d, &a[reduce ? 1 : 2], width));
    decode_push(d, i, op == ATOM_CAS ? decode_operand(d, &a[3], width) : d->operands[d->operand_count - 1]);
    return true;
}

static bool decode_async(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n)
{
    i->class = CLASS_async;
    if (strcmp(name, "cp_async_commit_group") == 0) {
        i->run = ptx_async_commit;
    } else if (strcmp(name, "cp_async_wait_all") == 0) {
        i->run = ptx_async_wait;
        i->imm = -1;
    } else if (strcmp(name, "cp_async_wait_group") == 0 && n == 1 && a[0].kind == IMMEDIATE) {
        i->run = ptx_async_wait;
        i->imm = (int64_t)a[0].value;
    } else if ((starts(name, "cp_async_cg_shared") || starts(name, "cp_async_ca_shared")) && n >= 3 && n <= 4
               && a[2].kind == IMMEDIATE) {
        const int64_t to = (int64_t)a[0].value;
        if (a[0].width != 'w' && a[0].width != 'l')
            decode_fail(d, "no address");
        i->run = ptx_copy_async;
        i->bytes = (uint8_t)a[2].value;
        set_address(d, i, &a[0]);
        set_address(d, i, &a[1]);
        i->target = (uint32_t)a[1].value;
        i->imm = to;
        i->wide_address = a[0].width == 'l';
        decode_push(d, i, decode_operand(d, &a[n - 1], 'w'));
    } else {
        return false;
    }
    return true;
}

/* Instructions that all lanes of a mask execute together. The widths of their operands end with the mask's, or "": all
 * lanes of the warp. */
static bool decode_together(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n,
                            unsigned groups)
{
    if (starts(name, "ldmatrix_sync_aligned_m8n8_x")) {
        i->count = (uint8_t)(name[28] - '0');
        i->run = ptx_ldmatrix;
        i->class = CLASS_ldmatrix;
        i->flags = has_part(name, "trans");
        i->space = has_part(name, "shared") ? SHARED : GENERIC;
        if (n != i->count + 1u)
            decode_fail(d, "%u operands", n);
        for (unsigned k = 0; k < i->count; k++)
            decode_push(d, i, decode_operand(d, &a[k], 'w'));
        set_address(d, i, &a[n - 1]);
        i->kind = WARP_SYNC;
        i->target = NO_INSN;
        return true;
    }
    const struct opcode *row = ptx_warp_find(name);
    if (row == NULL)
        return false;
    i->run = row->run;
    i->class = row->class;
    i->kind = row->kind;
    /* A destination predicate that is not written, as in shfl.sync.idx.b32 %r, ... */
    const bool lacks_predicate = strlen(row->widths) == n + 1 && n == groups && row->widths[1] == 'p';
    if (!lacks_predicate && strlen(row->widths) != n)
        decode_fail(d, "%u operands", n);
    for (unsigned k = 0, from = 0; row->widths[k] != '\0'; k++) {
        if (k == 1 && lacks_predicate) {
            decode_push(d, i, SINK_PREDICATE * SPECIAL_BYTES | IN_SPECIAL);
            continue;
        }
        if (a[from].negated) {
            a[from].negated = false;
            i->flags = 1;
        }
        decode_push(d, i, decode_operand(d, &a[from++], row->widths[k]));
    }
    i->target = row->class == CLASS_mma ? NO_INSN : (uint32_t)strlen(row->widths) - 1;
    return true;
}

static bool decode_barrier(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n)
{
    if (strcmp(name, "bar_sync") != 0 && strcmp(name, "barrier_sync") != 0 && strcmp(name, "barrier_sync_aligned") != 0
        && strcmp(name, "bar_cta_sync") != 0)
        return false;
    if (n < 1 || n > 2 || a[0].kind != IMMEDIATE)
        decode_fail(d, "a barrier that is not implemented");
    i->kind = BARRIER;
    i->class = CLASS_barrier;
    i->imm = (int64_t)a[0].value;
    i->count = n == 2;
    if (n == 2)
        decode_push(d, i, decode_operand(d, &a[1], 'w'));
    return true;
}

static bool decode_vector_move(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n)
{
    if (!starts(name, "mov_b") || n < 3)
        return false;
    const bool pack = a[0].group != a[1].group;
    const unsigned parts = n - 1, bits = (unsigned)atoi(name + 5);
    char found[40];
    snprintf(found, sizeof found, "%s_%ux%u", pack ? "pack" : "unpack", parts, bits / parts);
    const struct opcode *row = ptx_integer_find(found);
    if (row == NULL)
        decode_fail(d, "a move of %u parts of %u bits", parts, bits);
    i->run = row->run;
    i->class = CLASS_move;
    for (unsigned k = 0; k < n; k++)
        decode_push(d, i, decode_operand(d, &a[k], row->widths[k]));
    return true;
}

bool decode_special(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n,
                    unsigned groups)
{
    if (starts(name, "prefetch_") || starts(name, "prefetchu_") || starts(name, "nanosleep_")) {
        i->run = ptx_integer_find("membar_cta")->run;
        i->class = CLASS_move;
        return true;
    }
    return decode_memory(d, i, name, a, n) || decode_atomic(d, i, name, a, n)
           || (starts(name, "cp_async") && decode_async(d, i, name, a, n))
           || decode_together(d, i, name, a, n, groups) || decode_barrier(d, i, name, a, n)
           || decode_vector_move(d, i, name, a, n);
}
