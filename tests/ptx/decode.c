/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/decode.c: decodes the body of a function to an array of struct insn. */
#include "decode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

void decode_push(struct decoder *d, struct insn *i, uint32_t op)
{
    (void)i;
    d->operands = decode_grow(d->operands, d->operand_count, &d->operand_room, sizeof *d->operands);
    d->operands[d->operand_count++] = op;
}

static void close_scope(struct decoder *d)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < d->name_count; k++)
        if (d->names[k].depth < d->depth)
            d->names[kept++] = d->names[k];
    d->name_count = kept;
    d->depth--;
}

static void add_label(struct label **array, uint32_t *count, uint32_t *room, const char *text, uint32_t length,
                      uint32_t at)
{
    *array = decode_grow(*array, *count, room, sizeof **array);
    (*array)[(*count)++] = (struct label){ text, length, at };
}

/* An instruction that a row of the tables describes. */
static bool decode_plain(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n)
{
    uint8_t flags = 0;
    const struct opcode *row = ptx_integer_find(name);
    if (row == NULL)
        row = ptx_float_find(name);
    if (row == NULL)
        row = ptx_convert_find(name, &flags);
    if (row == NULL)
        return false;
    if (row->widths == NULL || strlen(row->widths) != n)
        decode_fail(d, "%s with %u operands", name, n);
    i->run = row->run;
    i->kind = row->kind;
    i->class = row->class;
    i->flags = flags;
    for (unsigned k = 0; k < n; k++) {
        d->may_narrow = k > 0 && row->class == CLASS_convert;
        decode_push(d, i, decode_operand(d, &a[k], row->widths[k]));
    }
    return true;
}

static void decode_call(struct decoder *d, struct insn *i)
{
    const char *p = skip_space(d->p), *words[20];
    uint32_t lengths[20], count = 0, index;
    bool has_result = *p == '(';
    for (; *p != ';' && *p != '\0'; p++) {
        if (!is_name(*p))
            continue;
        if (count == 20)
            decode_fail(d, "a call with too many arguments");
        words[count] = p;
        lengths[count] = word_length(p);
        p += lengths[count++] - 1;
    }
    d->p = p + (*p == ';');
    const uint32_t target = has_result ? 1 : 0;
    if (count <= target)
        decode_fail(d, "unknown call");
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)lengths[target], words[target]);
    i->kind = CALL;
    i->class = CLASS_branch;
    i->callee = ptx_module_find(d->function->module, name);
    if (i->callee == NULL || !i->callee->has_body)
        decode_fail(d, "a call of the unknown function %s", name);
    if (count - target - 1 != i->callee->parameter_count)
        decode_fail(d, "a call of %s with %u arguments", name, count - target - 1);
    for (uint32_t k = 0; k < count; k++) {
        if (k == target)
            continue;
        const struct name *n = decode_name(d, words[k], lengths[k], &index);
        const uint32_t wanted = k < target ? i->callee->result.bytes : i->callee->parameters[k - target - 1].bytes;
        if (n == NULL || n->width != 0 || n->space != FRAME || n->bytes != wanted)
            decode_fail(d, "an argument of %s", name);
        decode_push(d, i, n->offset);
    }
}

static void decode_insn(struct decoder *d)
{
    struct insn *i;
    d->code = decode_grow(d->code, d->length, &d->room, sizeof *d->code);
    i = &d->code[d->length];
    memset(i, 0, sizeof *i);
    i->number = d->length++;
    i->text = d->p;
    i->join = NO_INSN;
    const uint32_t first = d->operand_count;
    if (*d->p == '@') {
        const char *p = d->p + 1;
        i->guarded = 1;
        i->guard_not = *p == '!';
        p += i->guard_not;
        const uint32_t n = word_length(p);
        uint32_t index;
        const struct name *name = decode_name(d, p, n, &index);
        if (name == NULL || name->width != 'p')
            decode_fail(d, "unknown guard");
        i->guard = name->offset + 4 * index;
        d->p = skip_space(p + n);
    }
    char name[96];
    uint32_t length = 0;
    for (const char *p = d->p; !isspace((unsigned char)*p) && *p != ';'; p++) {
        if (length == sizeof name - 1)
            decode_fail(d, "too long opcode");
        name[length++] = *p == '.' || *p == ':' ? '_' : *p;
        d->p = p + 1;
    }
    name[length] = '\0';
    if (strcmp(name, "bra") == 0 || strcmp(name, "bra_uni") == 0) {
        const char *p = skip_space(d->p);
        const uint32_t n = word_length(p);
        i->kind = BRANCH;
        i->class = CLASS_branch;
        add_label(&d->jumps, &d->jump_count, &d->jump_room, p, n, i->number);
        d->p = strchr(p, ';') + 1;
    } else if (strcmp(name, "ret") == 0 || strcmp(name, "ret_uni") == 0 || strcmp(name, "exit") == 0) {
        i->kind = name[0] == 'e' || d->function->is_kernel ? EXIT : RETURN;
        i->class = CLASS_branch;
        d->p = strchr(d->p, ';') + 1;
    } else if (strcmp(name, "call") == 0 || strcmp(name, "call_uni") == 0) {
        decode_call(d, i);
    } else {
        struct argument arguments[ARGUMENTS];
        unsigned groups;
        const unsigned n = decode_arguments(d, arguments, &groups);
        d->may_narrow = strncmp(name, "st_", 3) == 0;
        if (!decode_special(d, i, name, arguments, n, groups) && !decode_plain(d, i, name, arguments, n))
            decode_fail(d, "this instruction is not implemented");
    }
    i->op = (const uint32_t *)(uintptr_t)first;
    for (uint32_t k = 0; k < d->narrow_count; k++) {
        d->code = decode_grow(d->code, d->length, &d->room, sizeof *d->code);
        i = &d->code[d->length - 1];
        i[1] = i[0];
        i[1].number = d->length++;
        *i = (struct insn){ .run = ptx_convert_find("cvt_u32_u64", &(uint8_t){ 0 })->run, .number = i->number,
                            .guard = i->guard, .guarded = i->guarded, .guard_not = i->guard_not, .text = i->text,
                            .class = CLASS_move, .join = NO_INSN,
                            .op = (const uint32_t *)(uintptr_t)d->operand_count };
        decode_push(d, i, d->narrow[k][1]);
        decode_push(d, i, d->narrow[k][0]);
    }
    d->narrow_count = 0;
}

static void decode_body(struct decoder *d)
{
    struct function *f = d->function;
    d->frame = 64;                          /* offset 0 is no register */
    f->local_base = decode_allocate(d, 'l', 1);
    if (!f->is_kernel) {
        struct parameter *list[17] = { &f->result };
        for (unsigned k = 0; k < f->parameter_count; k++)
            list[k + 1] = &f->parameters[k];
        for (unsigned k = f->result.bytes > 0 ? 0 : 1; k <= f->parameter_count; k++) {
            d->frame = (d->frame + 63) / 64 * 64;
            list[k]->offset = d->frame;
            d->frame += list[k]->bytes * LANES;
            d->names = decode_grow(d->names, d->name_count, &d->name_room, sizeof *d->names);
            d->names[d->name_count++] = (struct name){ .text = list[k]->name, .space = FRAME, .bytes = list[k]->bytes,
                                                       .length = (uint32_t)strlen(list[k]->name),
                                                       .offset = list[k]->offset };
        }
    }
    d->p = f->begin;
    for (;;) {
        d->p = skip_space(d->p);
        if (d->p >= f->end)
            break;
        if (*d->p == '{') {
            d->depth++;
            d->p++;
        } else if (*d->p == '}') {
            close_scope(d);
            d->p++;
        } else if (strncmp(d->p, ".reg", 4) == 0 || strncmp(d->p, ".param", 6) == 0
                   || strncmp(d->p, ".shared", 7) == 0 || strncmp(d->p, ".local", 6) == 0) {
            decode_declaration(d);
        } else if (*d->p == '.') {
            d->p = strchr(d->p, ';') + 1;   /* .pragma */
        } else if (*d->p == ';') {
            d->p++;
        } else {
            const uint32_t n = word_length(d->p);
            if (n > 0 && *skip_space(d->p + n) == ':') {
                add_label(&d->labels, &d->label_count, &d->label_room, d->p, n, d->length);
                d->p = skip_space(d->p + n) + 1;
            } else {
                decode_insn(d);
            }
        }
    }
    /* The end of a body is a return. */
    d->code = decode_grow(d->code, d->length, &d->room, sizeof *d->code);
    d->code[d->length] = (struct insn){ .kind = f->is_kernel ? EXIT : RETURN, .class = CLASS_branch, .join = NO_INSN,
                                        .number = d->length, .text = f->end };
    d->length++;
    for (uint32_t k = 0; k < d->jump_count; k++) {
        const struct label *jump = &d->jumps[k];
        uint32_t l = 0;
        while (l < d->label_count && (d->labels[l].length != jump->length
                                      || memcmp(d->labels[l].text, jump->text, jump->length) != 0))
            l++;
        if (l == d->label_count)
            decode_fail(d, "unknown label %.*s", (int)jump->length, jump->text);
        d->code[jump->at].target = d->labels[l].at;
    }
    for (uint32_t k = 0; k < d->length; k++)
        d->code[k].op = d->operands + (uintptr_t)d->code[k].op;
}

/* The option without=KERNEL:N: the kernel's instruction N that orders accesses does nothing. */
static void omit(struct function *f)
{
    long left = ptx_option_for(ptx_options.without, f->name);
    for (uint32_t k = 0; k < f->length && left > 0; k++) {
        struct insn *i = &f->code[k];
        if (i->kind == BARRIER || i->run == ptx_async_wait || (i->kind == WARP_SYNC && i->class == CLASS_barrier))
            left--;
        if (left == 0) {
            i->kind = PLAIN;
            i->run = ptx_integer_find("membar_cta")->run;
        }
    }
}

static void finish(struct decoder *d)
{
    struct function *f = d->function;
    f->code = d->code;
    f->length = d->length;
    f->operands = d->operands;
    f->frame_bytes = (d->frame + 63) / 64 * 64;
    f->shared_bytes = d->shared;
    f->local_bytes = (d->local + 15) / 16 * 16;
    f->constants = aligned_alloc(64, (size_t)(d->constant_count + 1) * CONSTANT_BYTES);
    for (uint32_t k = 0; k < d->constant_count; k++)
        for (unsigned l = 0; l < LANES; l++) {
            ((uint32_t *)(void *)(f->constants + (size_t)k * CONSTANT_BYTES))[l] = (uint32_t)d->constants[k];
            ((uint64_t *)(void *)(f->constants + (size_t)k * CONSTANT_BYTES + 4 * LANES))[l] = d->constants[k];
        }
    omit(f);
    ptx_find_joins(f);
}

const char *ptx_decode(struct function *f)
{
    if (f->decoded)
        return f->error;
    f->decoded = true;
    struct decoder *d = calloc(1, sizeof *d);
    d->function = f;
    if (setjmp(d->failure) == 0) {
        decode_body(d);
        finish(d);
    } else {
        const char *text = d->length > 0 ? d->code[d->length - 1].text : f->begin;
        if (asprintf(&f->error, "%s: \"%.*s\": %s", f->name, (int)strcspn(text, ";\n"), text, d->message) < 0)
            f->error = strdup("no memory");
    }
    free(d->constants), free(d->names), free(d->labels), free(d->jumps), free(d);
    uint32_t deepest = 0;
    for (uint32_t k = 0; f->error == NULL && k < f->length; k++)
        if (f->code[k].kind == CALL) {
            struct function *callee = f->code[k].callee;
            const char *error = ptx_decode(callee);
            if (error != NULL)
                f->error = strdup(error);
            if (callee->local_depth > deepest)
                deepest = callee->local_depth;
        }
    f->local_depth = f->local_bytes + deepest;
    return f->error;
}
