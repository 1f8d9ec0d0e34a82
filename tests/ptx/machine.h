/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/machine.h: an interpreter of PTX (NVIDIA's "PTX ISA", version 9.0). parse.c decodes the text of a module,
 * flow.c finds where diverged lanes meet again, run.c executes blocks, and the other files have the instructions.
 *
 * A register holds the values of all 32 lanes of a warp: uint32_t[32] for types of 8 to 32 bits (zero-extended),
 * uint64_t[32] for 64 bits, and one uint32_t with a bit per lane for predicates. An instruction is executed for all
 * lanes of a mask at once. */
#ifndef PTX_MACHINE_H
#define PTX_MACHINE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 32
#define ALL_LANES 0xffffffffu
#define NO_INSN 0xffffffffu

/* Windows of the generic address space. Global addresses are addresses of the host. */
#define SHARED_WINDOW (1ull << 60)
#define LOCAL_WINDOW  (2ull << 60)
#define WINDOW_MASK   (15ull << 60)

enum space { GENERIC, GLOBAL, SHARED, LOCAL, PARAM, FRAME };    /* FRAME: parameters of a function, in its frame */
enum kind { PLAIN, BRANCH, CALL, RETURN, EXIT, BARRIER, WARP_SYNC };

/* Classes of instructions in the counts. */
#define CLASSES(X) X(integer) X(f32) X(f64) X(half) X(convert) X(approximate) X(predicate) X(move) X(branch) X(global) \
    X(shared) X(local) X(param) X(atomic) X(async) X(shuffle) X(barrier) X(ldmatrix) X(mma)
enum insn_class {
#define CLASS(name) CLASS_##name,
    CLASSES(CLASS)
#undef CLASS
    CLASS_COUNT
};

struct warp;
struct insn;
typedef void handler(struct warp *w, const struct insn *i, uint32_t mask);

/* Operands are offsets of registers; the two lowest bits select the base: the frame, the constants of the function, or
 * the special registers of the warp. */
enum { IN_FRAME, IN_CONSTANTS, IN_SPECIAL };

struct insn {
    handler *run;
    const uint32_t *op;
    int64_t imm;                            /* offset of an address, number of a barrier, table of a prmt */
    uint32_t guard, target, join;           /* predicate operand; jump target; where the branch's paths meet */
    uint8_t guarded, guard_not, kind, class, leader;
    uint8_t bytes, count, space, wide_address, is_signed, flags;
    uint16_t stride;                        /* bytes of a lane's copy of a parameter in a frame */
    uint32_t number;                        /* index in the function */
    const char *text;                       /* in the module's text, for messages */
    struct function *callee;
};

struct parameter {
    char *name;
    uint32_t bytes, align, offset;          /* offset: in the kernel's parameters, or in the frame */
};

struct function {
    char *name;
    struct module *module;
    const char *begin, *end;                /* the body's text */
    bool is_kernel, has_body, decoded;
    struct parameter parameters[16];
    unsigned parameter_count;
    struct parameter result;                /* of a function; bytes 0: none */
    uint32_t max_threads, dynamic_allowed;
    /* Filled by decoding. */
    struct insn *code;
    uint32_t length;
    uint32_t *operands;                     /* pool of insn.op */
    unsigned char *constants;
    uint32_t frame_bytes, shared_bytes, shared_align, local_bytes;
    uint32_t local_base;                    /* register with the offset of the function's local variables */
    uint32_t local_depth;                   /* bytes of local memory of the function and of those that it calls */
    char *error;                            /* why the body cannot be executed */
    /* Statistics. */
    atomic_ullong launches, counts[CLASS_COUNT], lanes;
    struct function *next;
};

struct variable {
    char *name;
    uint32_t bytes, align;
    void *memory;                           /* NULL: a shared variable of the module */
    bool is_extern;
    struct variable *next;
};

struct module {
    char *text;
    struct function *functions;
    struct variable *variables;
    pthread_mutex_t lock;
    struct module *next;
};

/* Special registers, per warp. A register has room for 32 values of 64 bits. */
enum special {
    TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, LANEID,
    WARPID, NWARPID, SMID, LANEMASK_EQ, LANEMASK_LE, LANEMASK_LT, LANEMASK_GE, LANEMASK_GT, CLOCK,
    PARAM_BASE, DYNAMIC_SHARED, DYNAMIC_SHARED_32,     SINK, SINK_PREDICATE, SPECIAL_COUNT
};
#define SPECIAL_BYTES (LANES * 8)
#define CONSTANT_BYTES (LANES * 12)         /* as uint32_t[32], then as uint64_t[32] */

/* A call of a function: registers, and where it returns to. */
struct frame {
    unsigned char *registers;
    struct frame *caller;
    const struct insn *call;
    struct function *function;
    uint32_t local;                         /* offset of its local variables */
};

/* Where diverged lanes meet. Lanes that arrive wait until all expected lanes have arrived. */
struct join {
    uint32_t expected, arrived, pc;
    bool is_call;
    struct frame *frame;                    /* of the code at pc */
    struct frame *callee;                   /* is_call: freed when all lanes have returned */
    struct join *parent;
};

enum split_state { FREE, READY, AT_BARRIER, AT_WARP_SYNC };

/* Lanes of a warp that execute together. */
struct split {
    uint32_t mask, pc;
    uint8_t state;
    uint32_t members;                       /* AT_WARP_SYNC: the lanes that it waits for */
    int64_t barrier;                        /* AT_BARRIER: its number and its count of threads; 0: all */
    uint32_t barrier_threads;
    struct frame *frame;
    struct join *join;
};

struct async_copy {
    uint8_t lane, bytes, source_bytes;
    uint32_t group;
    uint64_t to, from;
};

struct range_cache { uint64_t begin, end; };

struct warp {
    unsigned char *base[3];
    struct block *block;
    unsigned number;
    uint32_t live;                          /* lanes that have not exited */
    uint32_t waiting;                       /* lanes of splits that are AT_WARP_SYNC */
    struct split splits[LANES + 1];
    unsigned split_count;                   /* used elements; some may be FREE */
    struct split *current;
    unsigned char *special;
    unsigned char *local;
    uint32_t local_bytes;                   /* per lane */
    struct frame *root;
    struct join *free_joins;
    struct async_copy *async;
    unsigned async_count, async_room;
    uint32_t async_group[LANES];
    bool carry[LANES];                      /* the condition code of add.cc */
    uint32_t syncs;                         /* executed bar.warp.sync */
    unsigned long long counts[CLASS_COUNT], lanes;
};

#define RANGE_CACHE 256

/* A thread that executes blocks, one at a time. */
struct block {
    struct launch *launch;
    struct warp *warps;
    unsigned warp_count, warp_room;
    unsigned char *shared;
    uint32_t shared_bytes, shared_room;
    struct access_record *records;          /* of shared memory, with the option races */
    uint32_t epoch, first_epoch;            /* increases at every barrier of all threads; its value at the beginning */
    unsigned char *memory;                  /* frames and local memory of all warps */
    size_t memory_room;
    struct range_cache ranges[RANGE_CACHE];
    unsigned long long ranges_epoch;
    jmp_buf failure;
};

struct launch {
    struct function *function;
    unsigned grid[3], threads[3];
    uint32_t shared_dynamic;
    unsigned char *parameters;
    uint32_t parameter_bytes;
    atomic_ullong next_block;
    atomic_int error;                       /* CUresult of the first failure */
    char message[512];
};

/* ---- options, from the environment; see README.md ---- */

extern struct options {
    bool reverse, single, races;
    int threads, ulp, devices, clocked;
    const char *counts, *without, *blocks;
    size_t memory;
} ptx_options;
void ptx_options_read(void);
/* The number N if the option has the value KERNEL:N for this kernel, else 0. */
long ptx_option_for(const char *value, const char *kernel);

/* ---- parse.c, flow.c ---- */

/* Reads the functions and variables of a module; bodies are decoded at their first use. Returns NULL, with a message in
 * `why`, if the text is not PTX. Takes ownership of `text`. */
struct module *ptx_module_new(char *text, char *why, size_t bytes);
struct function *ptx_module_find(struct module *module, const char *name);
/* Decodes the body and those of the functions that it calls. Returns NULL or an error message. */
const char *ptx_decode(struct function *function);
void ptx_find_joins(struct function *function);

/* How an opcode is decoded: its handler and the widths of its operands: 'w' 32 bits or less, 'l' 64 bits, 'p' a
 * predicate. */
struct opcode {
    const char *name;
    handler *run;
    const char *widths;
    uint8_t class, kind;
};
/* The tables of the files with instructions. */
const struct opcode *ptx_integer_find(const char *name);
const struct opcode *ptx_float_find(const char *name);
const struct opcode *ptx_convert_find(const char *name, uint8_t *flags);
const struct opcode *ptx_warp_find(const char *name);
const struct opcode *ptx_table_find(const struct opcode *table, size_t count, const char *name);

/* ---- races.c ---- */

enum shared_access { READS, WRITES, UPDATES, BEGINS_COPY, ENDS_COPY };     /* UPDATES: atomic; copies: by cp.async */
struct access_record *ptx_records_new(size_t bytes);
/* Records an access of shared memory, and fails if another thread's access is not ordered with it. Does nothing if the
 * address is not in shared memory, or without the option races. */
void ptx_record(struct warp *w, const struct insn *i, unsigned lane, const unsigned char *at, unsigned bytes,
                enum shared_access access);
/* Record the access of lane l of mask at at[l]; only with the option races. */
void ptx_record_reads(struct warp *w, const struct insn *i, uint32_t mask, unsigned char *const *at, unsigned bytes);
void ptx_record_writes(struct warp *w, const struct insn *i, uint32_t mask, unsigned char *const *at, unsigned bytes);

/* ---- memory.c ---- */

handler ptx_load, ptx_store, ptx_atomic, ptx_copy_async, ptx_async_commit, ptx_async_wait, ptx_ldmatrix;
enum atomic_op { ATOM_ADD, ATOM_MIN, ATOM_MAX, ATOM_AND, ATOM_OR, ATOM_XOR, ATOM_EXCH, ATOM_CAS, ATOM_INC, ATOM_DEC };
/* What an address of memory type names in an atomic or a vector element: flags of insn. */
enum { TYPE_INTEGER, TYPE_FLOAT, TYPE_F16X2, TYPE_BF16X2 };

/* Ranges of global memory that kernels may access. */
void ptx_range_add(const void *begin, size_t bytes);
void ptx_range_remove(const void *begin);
bool ptx_range_find(uint64_t address, uint64_t bytes, struct range_cache *out);
extern atomic_ullong ptx_ranges_epoch;

/* ---- run.c ---- */

/* Executes a launch with ptx_options.threads threads. Returns 0 or a CUresult, with a message in launch->message. */
int ptx_run(struct launch *launch);
/* Ends the block with an error of the CUDA driver, such as 700 (illegal address). */
void ptx_fail(struct warp *w, const struct insn *i, int error, const char *format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
void ptx_counts_write(void);

/* ---- helpers ---- */

static inline void *operand(struct warp *w, const struct insn *i, unsigned k)
{
    return w->base[i->op[k] & 3] + (i->op[k] & ~3u);
}

/* Executes the statement for every lane l of mask. */
#define EACH_LANE(...)                                                                                               \
    do {                                                                                                             \
        if (mask == ALL_LANES) {                                                                                     \
            _Pragma("GCC ivdep") for (unsigned l = 0; l < LANES; l++) { __VA_ARGS__; }                               \
        } else {                                                                                                     \
            for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {                                                \
                const unsigned l = (unsigned)__builtin_ctz(rest);                                                    \
                __VA_ARGS__;                                                                                         \
            }                                                                                                        \
        }                                                                                                            \
    } while (0)

#endif
