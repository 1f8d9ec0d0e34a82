/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/memory.c: accesses of memory: ld, st, atom, red, cp.async, ldmatrix (PTX ISA, 9.7.9, 9.7.13, 9.7.15). Every
 * access is checked: it lies in one allocation, in the block's shared memory, or in the lane's local variables, and its
 * address is a multiple of its size. */
#include "half.h"
#include "machine.h"

#include <stdlib.h>

/* ---- ranges of global memory ---- */

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range_cache *ranges;          /* sorted, disjoint */
static size_t range_count, range_room;
atomic_ullong ptx_ranges_epoch;             /* changes whenever a range is removed */

/* Index of the first range that ends after the address. */
static size_t find(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void ptx_range_add(const void *begin, size_t bytes)
{
    pthread_rwlock_wrlock(&lock);
    if (range_count == range_room) {
        range_room = 2 * range_room + 64;
        ranges = realloc(ranges, range_room * sizeof *ranges);
        if (ranges == NULL)
            abort();
    }
    const size_t k = find((uintptr_t)begin);
    memmove(&ranges[k + 1], &ranges[k], (range_count++ - k) * sizeof *ranges);
    ranges[k] = (struct range_cache){ (uintptr_t)begin, (uintptr_t)begin + bytes };
    pthread_rwlock_unlock(&lock);
}

void ptx_range_remove(const void *begin)
{
    pthread_rwlock_wrlock(&lock);
    const size_t k = find((uintptr_t)begin);
    if (k < range_count && ranges[k].begin == (uintptr_t)begin) {
        memmove(&ranges[k], &ranges[k + 1], (--range_count - k) * sizeof *ranges);
        atomic_fetch_add(&ptx_ranges_epoch, 1);
    }
    pthread_rwlock_unlock(&lock);
}

bool ptx_range_find(uint64_t address, uint64_t bytes, struct range_cache *out)
{
    pthread_rwlock_rdlock(&lock);
    const size_t k = find(address);
    const bool found = k < range_count && ranges[k].begin <= address && address <= ranges[k].end
                       && ranges[k].end - address >= bytes;
    if (found)
        *out = ranges[k];
    pthread_rwlock_unlock(&lock);
    return found;
}

/* ---- addresses ---- */

static const char *const space_names[] = { "generic", "global", "shared", "local", "param", "param" };

static __attribute__((noinline, noreturn)) void illegal(struct warp *w, const struct insn *i, unsigned lane,
                                                        uint64_t address, unsigned bytes, unsigned space)
{
    struct range_cache range;
    if (address % bytes == 0 || space == FRAME)
        ptx_fail(w, i, 700, "lane %u accesses %u bytes at %s address 0x%llx, which %s", lane, bytes, space_names[space],
                 (unsigned long long)address,
                 (space == GLOBAL || space == GENERIC) && ptx_range_find(address, 1, &range)
                     ? "reach over the end of an allocation" : "are in no allocation");
    ptx_fail(w, i, 716, "lane %u accesses %u bytes at the misaligned %s address 0x%llx", lane, bytes,
             space_names[space], (unsigned long long)address);
}

/* Whether `bytes` bytes at each address from `first` to `last` are in [begin, end). */
static inline bool within(uint64_t first, uint64_t last, uint64_t bytes, uint64_t begin, uint64_t end)
{
    return first >= begin && last <= end && end - last >= bytes;
}

/* The host's address of `bytes` bytes at an address of the lane. */
static inline unsigned char *resolve(struct warp *w, const struct insn *i, unsigned lane, uint64_t address,
                                     unsigned bytes, unsigned space)
{
    uint64_t offset = address;
    if (space == GENERIC) {
        space = (address & WINDOW_MASK) == SHARED_WINDOW ? SHARED : (address & WINDOW_MASK) == LOCAL_WINDOW ? LOCAL
                                                                                                       : GLOBAL;
        offset = space == GLOBAL ? address : address & ~WINDOW_MASK;
    }
    if (__builtin_expect((address & (bytes - 1)) != 0, 0))
        illegal(w, i, lane, address, bytes, space);
    if (space == GLOBAL) {
        struct range_cache *cache = &w->block->ranges[i->number % RANGE_CACHE];
        if (__builtin_expect(!within(offset, offset, bytes, cache->begin, cache->end), 0)
            && !ptx_range_find(offset, bytes, cache)) {
            const struct launch *launch = w->block->launch;
            const uint64_t begin = (uintptr_t)launch->parameters;       /* cvta.param */
            if (!within(offset, offset, bytes, begin, begin + launch->parameter_bytes))
                illegal(w, i, lane, address, bytes, space);
        }
        return (unsigned char *)(uintptr_t)offset;
    }
    if (space == SHARED) {
        if (__builtin_expect(!within(offset, offset, bytes, 0, w->block->shared_bytes), 0))
            illegal(w, i, lane, address, bytes, space);
        return w->block->shared + offset;
    }
    if (space == LOCAL) {
        if (__builtin_expect(!within(offset, offset, bytes, 0, w->local_bytes), 0))
            illegal(w, i, lane, address, bytes, space);
        return w->local + (size_t)lane * w->local_bytes + offset;
    }
    const struct launch *launch = w->block->launch;
    const uint64_t begin = (uintptr_t)launch->parameters;
    if (__builtin_expect(!within(offset, offset, bytes, begin, begin + launch->parameter_bytes), 0))
        illegal(w, i, lane, address, bytes, space);
    return (unsigned char *)(uintptr_t)offset;
}

static inline uint64_t address_of(struct warp *w, const struct insn *i, unsigned k, unsigned lane)
{
    const void *base = operand(w, i, k);
    return (i->wide_address ? ((const uint64_t *)base)[lane] : ((const uint32_t *)base)[lane]);
}

/* Finds the host's addresses of `bytes` bytes at all lanes' addresses from `least` to `most`: *base + address, and for
 * each lane before it *step more. Returns false if they are not in one piece of memory. */
static inline bool piece(struct warp *w, const struct insn *i, uint64_t least, uint64_t most, unsigned bytes,
                         uint64_t *base, uint64_t *step)
{
    const struct block *b = w->block;
    struct range_cache *cache = &w->block->ranges[i->number % RANGE_CACHE];
    const uint64_t parameters = (uintptr_t)b->launch->parameters;
    unsigned space = i->space;
    uint64_t window = 0;
    if (space == GENERIC) {
        window = least & WINDOW_MASK;
        space = window == SHARED_WINDOW ? SHARED : window == LOCAL_WINDOW ? LOCAL : GLOBAL;
        window = space == GLOBAL ? 0 : window;
    }
    *step = space == LOCAL ? w->local_bytes : 0;
    *base = (space == SHARED ? (uintptr_t)b->shared : space == LOCAL ? (uintptr_t)w->local : 0) - window;
    if (space == SHARED || space == LOCAL)
        return within(least, most, bytes, window, window + (space == SHARED ? b->shared_bytes : w->local_bytes));
    if (space == PARAM)
        return within(least, most, bytes, parameters, parameters + b->launch->parameter_bytes);
    return within(least, most, bytes, cache->begin, cache->end)
           || (ptx_range_find(least, bytes, cache) && within(least, most, bytes, cache->begin, cache->end));
}

/* Sets at[l] to the host's address of lane l's element of a load or store, whose address operand is number k. */
static inline void places(struct warp *w, const struct insn *i, uint32_t mask, unsigned k, unsigned char **at)
{
    const unsigned bytes = (unsigned)i->bytes * i->count;
    if (i->space == FRAME) {
        unsigned char *first = (unsigned char *)operand(w, i, k) + i->imm;
        EACH_LANE(at[l] = first + l * i->stride);
        return;
    }
    if ((mask & (mask - 1)) != 0) {
        const void *operands = operand(w, i, k);
        uint64_t addresses[LANES], least = UINT64_MAX, most = 0, all = 0, base, step;
        if (i->wide_address)
            for (unsigned l = 0; l < LANES; l++)
                addresses[l] = ((const uint64_t *)operands)[l] + (uint64_t)i->imm;
        else
            for (unsigned l = 0; l < LANES; l++)
                addresses[l] = ((const uint32_t *)operands)[l] + (uint64_t)i->imm;
        const uint64_t first = addresses[__builtin_ctz(mask)];
        for (unsigned l = 0; l < LANES; l++) {
            const uint64_t address = mask >> l & 1 ? addresses[l] : first;
            least = address < least ? address : least;
            most = address > most ? address : most;
            all |= address;
        }
        if ((all & (bytes - 1)) == 0 && piece(w, i, least, most, bytes, &base, &step)) {
            for (unsigned l = 0; l < LANES; l++)
                at[l] = (unsigned char *)(uintptr_t)(addresses[l] + base + l * step);
            return;
        }
    }
    EACH_LANE(at[l] = resolve(w, i, l, address_of(w, i, k, l) + (uint64_t)i->imm, bytes, i->space));
}

/* ---- ld, st ---- */

#define LOAD_VECTOR(T, S, N)                                                                                         \
    EACH_LANE(T value[N]; memcpy(value, at[l], sizeof value);                                                        \
              for (unsigned k = 0; k < N; k++) ((S *)d[k])[l] = (S)value[k])
#define STORE_VECTOR(T, S, N)                                                                                        \
    EACH_LANE(T value[N]; for (unsigned k = 0; k < N; k++) value[k] = (T)((const S *)d[k])[l];                       \
              memcpy(at[l], value, sizeof value))
#define EACH_VECTOR(F, T, S)                                                                                         \
    do {                                                                                                             \
        if (n == 1)      F(T, S, 1);                                                                                 \
        else if (n == 2) F(T, S, 2);                                                                                 \
        else if (n == 4) F(T, S, 4);                                                                                 \
        else             F(T, S, 8);                                                                                 \
    } while (0)
#define LOAD(T, S)  EACH_VECTOR(LOAD_VECTOR, T, S)
#define STORE(T, S) EACH_VECTOR(STORE_VECTOR, T, S)

void ptx_load(struct warp *w, const struct insn *i, uint32_t mask)
{
    const unsigned n = i->count;
    void *d[8];
    unsigned char *at[LANES];
    for (unsigned k = 0; k < n; k++)
        d[k] = operand(w, i, k);
    places(w, i, mask, n, at);
    if (w->block->records != NULL && (i->space == SHARED || i->space == GENERIC))
        ptx_record_reads(w, i, mask, at, (unsigned)i->bytes * n);
    switch (i->bytes + (i->is_signed ? 16 : 0) + (i->flags ? 32 : 0)) {
    case 1:  LOAD(uint8_t, uint32_t); break;
    case 2:  LOAD(uint16_t, uint32_t); break;
    case 4:  case 20: LOAD(uint32_t, uint32_t); break;
    case 8:  case 24: LOAD(uint64_t, uint64_t); break;
    case 17: LOAD(int8_t, uint32_t); break;
    case 18: LOAD(int16_t, uint32_t); break;
    /* To a register of 64 bits. */
    case 33: LOAD(uint8_t, uint64_t); break;
    case 34: LOAD(uint16_t, uint64_t); break;
    case 36: LOAD(uint32_t, uint64_t); break;
    case 49: LOAD(int8_t, uint64_t); break;
    case 50: LOAD(int16_t, uint64_t); break;
    case 52: LOAD(int32_t, uint64_t); break;
    }
}

void ptx_store(struct warp *w, const struct insn *i, uint32_t mask)
{
    const unsigned n = i->count;
    const void *d[8];
    unsigned char *at[LANES];
    for (unsigned k = 0; k < n; k++)
        d[k] = operand(w, i, k + 1);
    places(w, i, mask, 0, at);
    if (w->block->records != NULL && (i->space == SHARED || i->space == GENERIC))
        ptx_record_writes(w, i, mask, at, (unsigned)i->bytes * n);
    switch (i->bytes) {
    case 1: STORE(uint8_t, uint32_t); break;
    case 2: STORE(uint16_t, uint32_t); break;
    case 4: STORE(uint32_t, uint32_t); break;
    case 8: STORE(uint64_t, uint64_t); break;
    }
}

/* ---- atom, red ---- */

static inline double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t changed(const struct insn *i, uint64_t old, uint64_t b, uint64_t c)
{
    const bool is_signed = i->is_signed;
    const int64_t so = i->bytes == 4 ? (int32_t)old : (int64_t)old, sb = i->bytes == 4 ? (int32_t)b : (int64_t)b;
    switch (i->target) {
    case ATOM_ADD:
        if (i->flags == TYPE_FLOAT && i->bytes == 4)
            return bits_of(float_of((uint32_t)old) + float_of((uint32_t)b));
        if (i->flags == TYPE_FLOAT) {
            const double sum = double_of(old) + double_of(b);
            uint64_t bits;
            memcpy(&bits, &sum, sizeof bits);
            return bits;
        }
        if (i->flags == TYPE_F16X2 || i->flags == TYPE_BF16X2) {
            uint64_t x = 0;
            for (unsigned k = 0; k < i->bytes / 2u; k++) {
                const uint32_t p = old >> 16 * k & 0xffff, q = b >> 16 * k & 0xffff;
                x |= (uint64_t)(i->flags == TYPE_F16X2 ? f16_of_float(float_of_f16(p) + float_of_f16(q))
                                                       : bf16_of_float(float_of_bf16(p) + float_of_bf16(q))) << 16 * k;
            }
            return x;
        }
        return old + b;
    case ATOM_MIN:  return (is_signed ? sb < so : b < old) ? b : old;
    case ATOM_MAX:  return (is_signed ? sb > so : b > old) ? b : old;
    case ATOM_AND:  return old & b;
    case ATOM_OR:   return old | b;
    case ATOM_XOR:  return old ^ b;
    case ATOM_EXCH: return b;
    case ATOM_CAS:  return old == b ? c : old;
    case ATOM_INC:  return old >= b ? 0 : old + 1;
    default:        return old == 0 || old > b ? b : old - 1;
    }
}

#define ATOMIC(T, S)                                                                                                 \
    EACH_LANE(T *at = (T *)(void *)resolve(w, i, l, address_of(w, i, 1, l) + (uint64_t)i->imm, sizeof(T), i->space); \
              ptx_record(w, i, l, (unsigned char *)at, sizeof(T), UPDATES);                                          \
              const T b = (T)((const S *)operand(w, i, 2))[l], c = (T)((const S *)operand(w, i, 3))[l];              \
              T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                         \
              while (!__atomic_compare_exchange_n(at, &old, (T)changed(i, old, b, c), false, __ATOMIC_SEQ_CST,       \
                                                  __ATOMIC_SEQ_CST)) {                                               \
              } ((S *)operand(w, i, 0))[l] = old)

void ptx_atomic(struct warp *w, const struct insn *i, uint32_t mask)
{
    switch (i->bytes) {
    case 2: ATOMIC(uint16_t, uint32_t); break;
    case 4: ATOMIC(uint32_t, uint32_t); break;
    case 8: ATOMIC(uint64_t, uint64_t); break;
    }
}

/* ---- cp.async: the bytes arrive when the lane waits for them ---- */

void ptx_copy_async(struct warp *w, const struct insn *i, uint32_t mask)
{
    const uint32_t *size = operand(w, i, 2);
    EACH_LANE(
        if (w->async_count == w->async_room) {
            w->async_room = 2 * w->async_room + 256;
            w->async = realloc(w->async, w->async_room * sizeof *w->async);
            if (w->async == NULL)
                abort();
        }
        const uint64_t to = ((const uint32_t *)operand(w, i, 0))[l] + (uint64_t)i->imm;
        const uint64_t from = ((const uint64_t *)operand(w, i, 1))[l] + (uint64_t)(int32_t)i->target;
        const uint8_t source = size[l] < i->bytes ? (uint8_t)size[l] : i->bytes;
        ptx_record(w, i, l, resolve(w, i, l, to, i->bytes, SHARED), i->bytes, BEGINS_COPY);
        if (source > 0) {
            if (from % i->bytes != 0)
                illegal(w, i, l, from, i->bytes, GLOBAL);
            for (unsigned k = 0; k < source; k += source)
                (void)resolve(w, i, l, from, 1, GLOBAL), (void)resolve(w, i, l, from + source - 1, 1, GLOBAL);
        }
        w->async[w->async_count++] = (struct async_copy){ (uint8_t)l, i->bytes, source, w->async_group[l], to, from });
}

void ptx_async_commit(struct warp *w, const struct insn *i, uint32_t mask)
{
    (void)i;
    EACH_LANE(w->async_group[l]++);
}

/* Completes all copies of the lanes but those of the imm most recent groups; imm -1: all, committed or not. */
void ptx_async_wait(struct warp *w, const struct insn *i, uint32_t mask)
{
    unsigned kept = 0;
    for (unsigned k = 0; k < w->async_count; k++) {
        const struct async_copy copy = w->async[k];
        const bool due = i->imm < 0 || (int64_t)copy.group < (int64_t)w->async_group[copy.lane] - i->imm;
        if (!(mask >> copy.lane & 1) || !due) {
            w->async[kept++] = copy;
            continue;
        }
        unsigned char *to = w->block->shared + copy.to;
        ptx_record(w, i, copy.lane, to, copy.bytes, ENDS_COPY);
        memcpy(to, (const void *)(uintptr_t)copy.from, copy.source_bytes);
        memset(to + copy.source_bytes, 0, (size_t)copy.bytes - copy.source_bytes);
    }
    w->async_count = kept;
}

/* ---- ldmatrix: matrices of 8 by 8 elements of 2 bytes; lanes 8*k to 8*k+7 have the addresses of the rows of matrix
 * k */

void ptx_ldmatrix(struct warp *w, const struct insn *i, uint32_t mask)
{
    (void)mask;                             /* all lanes: run.c has checked it */
    const unsigned n = i->count;
    uint16_t rows[LANES][8];
    uint32_t *d[4];
    for (unsigned k = 0; k < n; k++)
        d[k] = operand(w, i, k);
    for (unsigned l = 0; l < 8 * n; l++) {
        const unsigned char *row = resolve(w, i, l, address_of(w, i, n, l) + (uint64_t)i->imm, 16, i->space);
        ptx_record(w, i, l, row, 16, READS);
        memcpy(rows[l], row, 16);
    }
    for (unsigned k = 0; k < n; k++)
        for (unsigned l = 0; l < LANES; l++) {
            const unsigned r = l / 4, c = 2 * (l % 4);
            d[k][l] = i->flags ? rows[8 * k + c][r] | (uint32_t)rows[8 * k + c + 1][r] << 16
                               : rows[8 * k + r][c] | (uint32_t)rows[8 * k + r][c + 1] << 16;
        }
}
