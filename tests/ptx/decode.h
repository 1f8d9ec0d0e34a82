/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/decode.h: shared by module.c, which reads modules, and decode.c and operands.c, which decode bodies. */
#ifndef PTX_DECODE_H
#define PTX_DECODE_H

#include "machine.h"

/* A name of a body: a register or a range of registers, a parameter of a call, or a shared or local variable. */
struct name {
    const char *text;
    uint32_t length;
    bool is_range;                          /* text is followed by a number below count */
    char width;                             /* of a register: 'w', 'l', 'p'; 0: a variable */
    uint8_t space;                          /* of a variable: FRAME, SHARED, LOCAL */
    uint32_t count, offset, bytes;
    unsigned depth;                         /* of the scope */
};

struct label {
    const char *text;
    uint32_t length, at;
};

struct decoder {
    struct function *function;
    const char *p;                          /* the next character */
    struct insn *code;
    uint32_t length, room;
    uint32_t *operands, operand_count, operand_room;    /* insn.op is an index until the end */
    uint64_t *constants;
    uint32_t constant_count, constant_room;
    struct name *names;
    uint32_t name_count, name_room;
    struct label *labels, *jumps;           /* jumps: the label that instruction `at` names */
    uint32_t label_count, label_room, jump_count, jump_room;
    uint32_t frame, shared, local;
    /* A source register of st and cvt may be wider than their type: an instruction before them copies its low part. */
    bool may_narrow;
    uint32_t narrow[8][2], narrow_count;    /* register and copy */
    unsigned depth;
    jmp_buf failure;
    char message[256];
};

/* An operand as written. */
enum argument_kind { REGISTER, IMMEDIATE, ADDRESS, SYMBOL };
struct argument {
    uint8_t kind, group;                    /* group: number of the operand that it is a part of */
    char width;                             /* of a register, or of an address's base */
    bool negated;
    uint32_t op;                            /* of a register, or of an address's base */
    uint64_t value;                         /* of an immediate; offset of an address */
    uint8_t space;                          /* of an address in the frame: FRAME */
    uint32_t stride;
};
#define ARGUMENTS 32

void decode_fail(struct decoder *d, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void *decode_grow(void *array, uint32_t count, uint32_t *room, size_t bytes);
const char *skip_space(const char *p);
bool is_name(char c);
/* Reads a word of letters, digits, "_", "$", "%" and ".". */
uint32_t word_length(const char *p);

/* ---- operands.c ---- */

uint32_t decode_allocate(struct decoder *d, char width, uint32_t count);
uint32_t decode_constant(struct decoder *d, uint64_t value, char width);
/* Reads the operands up to ";". Returns their number; *groups: the number of operands with vectors counted once. */
unsigned decode_arguments(struct decoder *d, struct argument *out, unsigned *groups);
/* The encoded operand of the wanted width. */
uint32_t decode_operand(struct decoder *d, const struct argument *a, char width);
struct name *decode_name(struct decoder *d, const char *text, uint32_t length, uint32_t *index);
/* .reg, .param, .shared, .local in a body */
void decode_declaration(struct decoder *d);

/* ---- special.c: instructions that are not described by a row of a table ---- */

/* Returns false if the instruction is none of them. */
bool decode_special(struct decoder *d, struct insn *i, const char *name, struct argument *a, unsigned n,
                    unsigned groups);
void decode_push(struct decoder *d, struct insn *i, uint32_t op);

#endif
