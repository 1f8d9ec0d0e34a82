/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/cublaslt.c: matrix products by cuBLASLt, which is loaded at run time.
 *
 * The library expects column-major matrices. A row-major C is the column-major C', so the library computes C' = B' A'
 * and no data is moved. The algorithm is selected once per shape, layout, alignment and dtype, and cached. Sums are
 * accumulated in f32 (f64 for f64), never in f16 or bf16, and the selected algorithms are deterministic. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cublaslt_api.h"
#include "library.h"
#include "host/options.h"
#include "ops/product.h"
#include "tuning.h"

#define MOST_ENTRIES 8192u                  /* when the cache is full, it is cleared */
#define CANDIDATES 12                       /* algorithms that are timed */
#define RUNS 3

struct lt_library {
    void *file;
#define LT(name, symbol, result, arguments) result (*name) arguments;
    LT_ENTRIES(LT)
#undef LT
};

/* An operand as the library sees it: a column-major matrix. `step`: the leading dimension, in elements. */
struct lt_operand {
    int64_t rows, columns, step, batch_step;
    int transposed, reserved;
};

struct lt_key {
    struct lt_operand left, right;          /* B', A' */
    int64_t m, n, k, batch;
    uint8_t dtype, out, bias, tf32;
    uint8_t alignment[4];                   /* log2 of bytes, of left, right, c, bias */
};

struct lt_entry {
    struct cuda_cached cached;
    struct lt_key key;
    pthread_mutex_t lock;                   /* protects the members below */
    lt_product product;
    lt_layout left, right, c;
    lt_choice choices[CANDIDATES];          /* choice 0 is used */
    int count;                              /* 0: the library does not support the product */
    /* The choice for calls with less workspace than choice 0 needs, selected for tight_bytes bytes. */
    lt_choice tight;
    size_t tight_bytes;
    enum { TIGHT_UNKNOWN, TIGHT_THERE, TIGHT_NONE } tight_state;
    bool bias_apart;                        /* the library cannot add the bias */
    bool to_time;                           /* the choices have not been timed yet */
};

/* State of a device. */
struct lt {
    const struct lt_library *library;
    lt_handle handle;
    size_t version;
    pthread_rwlock_t lock;                  /* of the cache; entries are freed only with it held for writing */
    struct cuda_cache cache;
};

static struct lt no_library;                /* in the slot of a device without the library */

/* ---- the library ---- */

static const struct cuda_symbol symbols[] = {
#define LT(name, symbol, result, arguments) { symbol, offsetof(struct lt_library, name) },
    LT_ENTRIES(LT)
#undef LT
};

static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12" };

static bool lt_open_library(struct lt_library *library, const char *name, enum cuda_library_place place,
                            struct cuda_library_failure *why)
{
    library->file = cuda_library_open(library, name, place, symbols, COUNT_OF(symbols), why);
    return library->file != NULL;
}

static struct lt *lt_new(struct cuda_device *device, const struct lt_library *library, const char *name,
                         struct cuda_library_failure *why)
{
    struct lt *lt = cuda_host->alloc(sizeof *lt);
    if (lt == NULL) {
        *why = (struct cuda_library_failure){ "no host memory", true };
        return NULL;
    }
    memset(lt, 0, sizeof *lt);
    lt->library = library;
    const lt_status status = library->create(&lt->handle);
    if (status != LT_OK) {
        snprintf(why->text, sizeof why->text, "%s: cublasLtCreate failed: %s", name, library->status_name(status));
        why->transient = status == LT_ALLOC_FAILED;
        cuda_host->free(lt);
        return NULL;
    }
    lt->version = library->version();
    lt->cache.key_bytes = sizeof(struct lt_key);
    pthread_rwlock_init(&lt->lock, NULL);
    cuda_host->log(CTRT_LOG_INFO, "cuda", "%s: matrix products by %s (%zu)", device->name,
                   cuda_library_path(library->file, name), lt->version);
    return lt;
}

/* Opens the first library that works, searching by place and then by version. A library that is too new for the driver
 * can be loaded, but its cublasLtCreate fails. Returns &no_library if there is none, or NULL after a temporary failure,
 * after which the next product tries again. */
static void *open_lt(struct cuda_device *device)
{
    if (cuda_options.products == CUDA_PATH_BUILTIN)
        return &no_library;
    static struct lt_library libraries[COUNT_OF(names)];
    static bool warned;
    struct cuda_library_failure why[COUNT_OF(names)] = { 0 };
    for (int place = 0; place < CUDA_LIBRARY_PLACES; place++)
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            const bool open = libraries[i].file != NULL,
                       to_try = open ? place == 0 : lt_open_library(&libraries[i], names[i], place, &why[i]);
            struct lt *lt = to_try ? lt_new(device, &libraries[i], names[i], &why[i]) : NULL;
            if (lt != NULL)
                return lt;
            if (why[i].transient) {
                if (!warned)
                    cuda_host->log(
                        CTRT_LOG_WARNING, "cuda",
                        "%s: cuBLASLt cannot be opened now, so matrix products use built-in kernels, which "
                        "are slower, until it can be: %s",
                        device->name, why[i].text);
                warned = true;
                return NULL;
            }
        }
    cuda_host->log(CTRT_LOG_WARNING, "cuda",
                   "%s: no cuBLASLt, so matrix products use built-in kernels, which are slower: %s; %s",
                   device->name, why[0].text, why[1].text);
    return &no_library;
}

/* Returns the device's state, or NULL if products must not use the library. The device's context must be current. */
static struct lt *lt_of(struct cuda_device *device)
{
    struct lt *lt = cuda_library_slot_read(device, CUDA_LIBRARY_LT);
    if (__builtin_expect(lt == NULL, 0))
        lt = cuda_library_fill_slot(device, CUDA_LIBRARY_LT, NULL, open_lt);
    return lt != &no_library ? lt : NULL;
}

bool cuda_lt_ready(struct cuda_device *device)
{
    return lt_of(device) != NULL;
}

void cuda_lt_prepare(struct cuda_device *device)
{
    struct cuda_library_failure unused = { 0 };
    void *file = NULL;
    for (int place = 0; place < CUDA_LIBRARY_PLACES && cuda_options.products != CUDA_PATH_BUILTIN; place++)
        for (size_t i = 0; i < COUNT_OF(names) && file == NULL; i++)
            file = cuda_library_load(names[i], place, &unused);
    if (file == NULL)
        return;
    (void)lt_of(device);
    dlclose(file);
}

/* ---- conversion of a product for the library ---- */

static bool lt_operand_of(struct lt_operand *out, int64_t rows, int64_t columns, int64_t row, int64_t column,
                          int64_t batch_step)
{
    /* A row-major matrix [rows, columns] is a column-major [columns, rows], which is the form that C' = B' A'
     * requires. */
    const bool across = column == 1 || columns == 1;
    const int64_t step = across ? row : column, least = across ? columns : rows;
    *out = (struct lt_operand){ .rows = least, .columns = across ? rows : columns, .step = step,
                                .batch_step = batch_step, .transposed = !across };
    if (!across && row != 1 && rows != 1)
        return false;
    if (out->columns == 1 && out->step < least)
        out->step = least;                  /* the step of a single column has no meaning */
    return out->step >= least && batch_step >= 0;
}

/* Returns log2 of the address's alignment in bytes, at most 4, because no algorithm requires more than 16 bytes. */
static uint8_t alignment_of(const void *address)
{
    const int zeros = address != NULL ? __builtin_ctzll((uintptr_t)address) : 4;
    return (uint8_t)(zeros < 4 ? zeros : 4);
}

static bool lt_key_of(struct lt_key *key, const struct cuda_product *p)
{
    memset(key, 0, sizeof *key);
    if (p->dtype != CTRT_F32 && p->dtype != CTRT_F64 && p->dtype != CTRT_F16 && p->dtype != CTRT_BF16)
        return false;
    if (p->k == 0 || p->m == 0 || p->n == 0 || p->batch == 0 || p->batch > INT32_MAX
        || (p->bias != NULL && !p->of_rows && p->batch != 1))
        return false;
    key->m = p->m, key->n = p->n, key->k = p->k, key->batch = p->batch;
    key->dtype = (uint8_t)p->dtype;
    key->out = (uint8_t)p->out;
    /* cuBLASLt has no preference for the alignment of the bias and may read the bias in vectors of 16 bytes. */
    key->bias = p->bias != NULL && !p->of_rows && (uintptr_t)p->bias % 16 == 0;
    key->tf32 = p->dtype == CTRT_F32 && cuda_options.tf32_products;
    key->alignment[0] = alignment_of(p->b);
    key->alignment[1] = alignment_of(p->a);
    key->alignment[2] = alignment_of(p->c);
    key->alignment[3] = alignment_of(key->bias ? p->bias : NULL);
    const int64_t b_batch = p->batch > 1 ? p->b_batch : 0, a_batch = p->batch > 1 ? p->a_batch : 0;
    return lt_operand_of(&key->left, p->k, p->n, p->b_row, p->b_column, b_batch)
           && lt_operand_of(&key->right, p->m, p->k, p->a_row, p->a_column, a_batch);
}
_Static_assert(sizeof(struct lt_key) % sizeof(uint64_t) == 0, "keys are hashed by words");

/* Writes the key as text, for the tuning file. */
static void lt_write_key(char text[TUNING_KEY], const struct lt_key *key)
{
    snprintf(text, TUNING_KEY, "%s%s%s%s m%lld n%lld k%lld b%lld %c%lld,%lld %c%lld,%lld @%u%u%u%u",
             cuda_dtype_names[key->dtype], key->out != key->dtype ? "(f32)" : "", key->tf32 ? "(tf32)" : "",
             key->bias ? "+bias" : "", (long long)key->m, (long long)key->n, (long long)key->k, (long long)key->batch,
             "nt"[key->right.transposed], (long long)key->right.step, (long long)key->right.batch_step,
             "nt"[key->left.transposed], (long long)key->left.step, (long long)key->left.batch_step,
             key->alignment[0], key->alignment[1], key->alignment[2], key->alignment[3]);
}

/* ---- selection of algorithms ---- */

static void lt_entry_free(const void *of, void *cached)
{
    const struct lt_library *library = of;
    struct lt_entry *entry = cached;
    if (entry->product != NULL)
        (void)library->product_destroy(entry->product);
    lt_layout layouts[3] = { entry->left, entry->right, entry->c };
    for (int i = 0; i < 3; i++)
        if (layouts[i] != NULL)
            (void)library->layout_destroy(layouts[i]);
    pthread_mutex_destroy(&entry->lock);
    cuda_host->free(entry);
}

static lt_status lt_layout_new(const struct lt_library *library, lt_layout *out, int type,
                               const struct lt_operand *operand, int64_t batch)
{
    const int32_t count = (int32_t)batch;
    LIBRARY_TRY(library->layout_create(out, type, (uint64_t)operand->rows, (uint64_t)operand->columns, operand->step));
    if (batch > 1) {
        LIBRARY_TRY(library->layout_set(*out, LT_LAYOUT_BATCH, &count, sizeof count));
        LIBRARY_TRY(library->layout_set(*out, LT_LAYOUT_BATCH_STRIDE, &operand->batch_step,
                                        sizeof operand->batch_step));
    }
    return LT_OK;
}

static lt_status lt_describe(const struct lt_library *library, struct lt_entry *entry)
{
    static const int types[CUDA_DTYPES] = {
        [CTRT_F32] = LT_F32, [CTRT_F64] = LT_F64, [CTRT_F16] = LT_F16, [CTRT_BF16] = LT_BF16
    };
    const struct lt_key *key = &entry->key;
    const bool f64 = key->dtype == CTRT_F64;
    const int type = types[key->dtype], epilogue = LT_EPILOGUE_BIAS;
    const struct lt_operand c = { .rows = key->n, .columns = key->m, .step = key->n, .batch_step = key->m * key->n };
    LIBRARY_TRY(library->product_create(&entry->product,
                                        f64 ? LT_COMPUTE_F64 : key->tf32 ? LT_COMPUTE_TF32 : LT_COMPUTE_F32,
                                        f64 ? LT_F64 : LT_F32));
    LIBRARY_TRY(library->product_set(entry->product, LT_PRODUCT_TRANSPOSE_A, &key->left.transposed,
                                     sizeof key->left.transposed));
    LIBRARY_TRY(library->product_set(entry->product, LT_PRODUCT_TRANSPOSE_B, &key->right.transposed,
                                     sizeof key->right.transposed));
    if (key->bias)
        LIBRARY_TRY(library->product_set(entry->product, LT_PRODUCT_EPILOGUE, &epilogue, sizeof epilogue));
    LIBRARY_TRY(lt_layout_new(library, &entry->left, type, &key->left, key->batch));
    LIBRARY_TRY(lt_layout_new(library, &entry->right, type, &key->right, key->batch));
    return lt_layout_new(library, &entry->c, types[key->out], &c, key->batch);
}

/* Queries at most `wanted` choices that need at most `workspace` bytes; *count: their number. */
static lt_status lt_choose(struct lt *lt, const struct lt_entry *entry, lt_choice *choices, int wanted,
                           size_t workspace, int *count)
{
    const struct lt_library *library = lt->library;
    lt_preference preference = NULL;
    const uint32_t reductions = LT_REDUCTION_COMPUTE_TYPE;
    const uint32_t alignment[3] = { 1u << entry->key.alignment[0], 1u << entry->key.alignment[1],
                                    1u << entry->key.alignment[2] };
    int found = 0;
    *count = 0;
    lt_status status = library->preference_create(&preference);
    if (status != LT_OK)
        return status;
    const struct { int name; const void *value; size_t bytes; } settings[] = {
        { LT_PREFER_WORKSPACE, &workspace, sizeof workspace }, { LT_PREFER_REDUCTIONS, &reductions, sizeof reductions },
        { LT_PREFER_ALIGN_A, &alignment[0], sizeof alignment[0] },
        { LT_PREFER_ALIGN_B, &alignment[1], sizeof alignment[1] },
        { LT_PREFER_ALIGN_C, &alignment[2], sizeof alignment[2] },
        { LT_PREFER_ALIGN_D, &alignment[2], sizeof alignment[2] },
    };
    for (size_t i = 0; i < COUNT_OF(settings) && status == LT_OK; i++)
        status = library->preference_set(preference, settings[i].name, settings[i].value, settings[i].bytes);
    if (status == LT_OK)
        status = library->choose(lt->handle, entry->product, entry->left, entry->right, entry->c, entry->c, preference,
                                 wanted, choices, &found);
    (void)library->preference_destroy(preference);
    for (int i = 0; i < found && status == LT_OK; i++)
        if (choices[i].state == LT_OK && choices[i].workspace <= workspace)
            choices[(*count)++] = choices[i];
    return status;
}

/* Sets the choice from the tuning file, if the file has one and the library accepts it. */
static bool lt_recall(struct cuda_device *device, struct lt *lt, struct lt_entry *entry)
{
    char key[TUNING_KEY], text[TUNING_CHOICE];
    lt_choice choice;
    memset(&choice, 0, sizeof choice);
    lt_write_key(key, &entry->key);
    if (!cuda_tuning_find(device, "cublaslt", lt->version, key, text))
        return false;
    const char *at = text;
    for (size_t i = 0; i < COUNT_OF(choice.algorithm.data); i++) {
        char *end;
        choice.algorithm.data[i] = strtoull(at, &end, 16);
        if (end == at)
            return false;
        at = end;
    }
    lt_choice checked = choice;
    if (lt->library->check(lt->handle, entry->product, entry->left, entry->right, entry->c, entry->c,
                           &choice.algorithm, &checked) != LT_OK
        || checked.state != LT_OK || checked.workspace > cuda_options.workspace)
        return false;
    entry->choices[0] = checked;
    entry->choices[0].algorithm = choice.algorithm;
    entry->count = 1;
    return true;
}

static void lt_keep(struct cuda_device *device, struct lt *lt, const struct lt_entry *entry)
{
    char key[TUNING_KEY], text[TUNING_CHOICE];
    size_t used = 0;
    lt_write_key(key, &entry->key);
    for (size_t i = 0; i < COUNT_OF(entry->choices[0].algorithm.data); i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%llx", i > 0 ? " " : "",
                                 (unsigned long long)entry->choices[0].algorithm.data[i]);
    cuda_tuning_keep(device, "cublaslt", lt->version, key, text);
}

/* Creates the entry of a product and selects its algorithms. Returns NULL if memory is short; the next call tries
 * again. */
static struct lt_entry *lt_entry_new(struct cuda_device *device, struct lt *lt, const struct lt_key *key)
{
    struct lt_entry *entry = cuda_host->alloc(sizeof *entry);
    if (entry == NULL)
        return NULL;
    memset(entry, 0, sizeof *entry);
    entry->key = *key;
    entry->cached.key = &entry->key;
    pthread_mutex_init(&entry->lock, NULL);
    lt_status status = lt_describe(lt->library, entry);
    if (status == LT_OK && lt_recall(device, lt, entry))
        return entry;
    const bool timed = cuda_options.benchmark && cuda_options.determinism != CUDA_DETERMINISM_YES;
    const int wanted = timed ? CANDIDATES : 1;
    if (status == LT_OK) {
        status = lt_choose(lt, entry, entry->choices, wanted, cuda_options.workspace, &entry->count);
        if (entry->count == 0 && status != LT_ALLOC_FAILED && key->bias) {
            const int epilogue = LT_EPILOGUE_NONE;
            entry->bias_apart =
                lt->library->product_set(entry->product, LT_PRODUCT_EPILOGUE, &epilogue, sizeof epilogue) == LT_OK;
            if (entry->bias_apart)
                status = lt_choose(lt, entry, entry->choices, wanted, cuda_options.workspace, &entry->count);
        }
    }
    if (status == LT_ALLOC_FAILED) {
        lt_entry_free(lt->library, entry);
        return NULL;
    }
    entry->to_time = timed && entry->count > 1;
    return entry;
}

/* Returns the product's entry, with lt->lock held for reading; the caller unlocks it. Returns NULL, without the lock,
 * if memory is short. */
static struct lt_entry *lt_entry_of(struct cuda_device *device, struct lt *lt, const struct lt_key *key)
{
    for (;;) {
        pthread_rwlock_rdlock(&lt->lock);
        struct lt_entry *entry = cuda_cache_find(&lt->cache, key);
        if (entry != NULL)
            return entry;
        pthread_rwlock_unlock(&lt->lock);
        pthread_rwlock_wrlock(&lt->lock);
        entry = cuda_cache_find(&lt->cache, key);
        if (entry == NULL) {
            if (lt->cache.count >= MOST_ENTRIES)
                cuda_cache_clear(&lt->cache, lt_entry_free, lt->library);
            entry = lt_entry_new(device, lt, key);
            if (entry != NULL)
                cuda_cache_add(&lt->cache, &entry->cached);
        }
        pthread_rwlock_unlock(&lt->lock);
        if (entry == NULL)
            return NULL;
    }
}

/* Returns the workspace of choice 0 or, while the choices have not been timed yet, the largest workspace of all
 * choices. */
static size_t lt_workspace_of(const struct lt_entry *entry)
{
    size_t bytes = 0;
    for (int i = 0; i < (entry->to_time ? entry->count : entry->count > 0); i++)
        if (entry->choices[i].workspace > bytes)
            bytes = entry->choices[i].workspace;
    return bytes;
}

size_t cuda_lt_workspace(struct cuda_device *device, const struct cuda_product *p)
{
    struct lt_key key;
    if (cuda_options.products == CUDA_PATH_BUILTIN || !lt_key_of(&key, p) || cuda_enter(device) != CTRT_OK)
        return 0;
    struct lt *lt = lt_of(device);
    struct lt_entry *entry = lt != NULL ? lt_entry_of(device, lt, &key) : NULL;
    if (entry == NULL)
        return 0;
    pthread_mutex_lock(&entry->lock);
    const size_t bytes = lt_workspace_of(entry);
    pthread_mutex_unlock(&entry->lock);
    pthread_rwlock_unlock(&lt->lock);
    return bytes;
}

/* ---- execution; called with the entry's lock held ---- */

struct lt_work {
    struct lt *lt;
    struct lt_entry *entry;
    const struct cuda_product *p;
    const lt_choice *choice;
    void *workspace;
    size_t workspace_bytes;
    cu_stream stream;
    lt_status status;
    bool add;                               /* accumulate into c */
};

static bool lt_multiply(void *argument)
{
    struct lt_work *w = argument;
    struct lt_entry *entry = w->entry;
    const bool f64 = w->p->dtype == CTRT_F64;
    const float one = 1, beta = w->add ? 1 : 0;
    const double one_64 = 1, beta_64 = beta;
    w->status = w->lt->library->multiply(w->lt->handle, entry->product, f64 ? (const void *)&one_64 : &one, w->p->b,
                                         entry->left, w->p->a, entry->right, f64 ? (const void *)&beta_64 : &beta,
                                         w->p->c, entry->c, w->p->c, entry->c, &w->choice->algorithm, w->workspace,
                                         w->workspace_bytes, w->stream);
    return w->status == LT_OK;
}

/* Times the choices and makes the fastest one choice 0. */
static void lt_time_choices(struct cuda_device *device, struct lt_work *w)
{
    struct lt_entry *entry = w->entry;
    int best = 0;
    double least = -1;
    for (int i = 0; i < entry->count; i++) {
        w->choice = &entry->choices[i];
        const double ms = cuda_tuning_time(w->stream, RUNS, lt_multiply, w);
        if (ms >= 0 && (least < 0 || ms < least)) {
            least = ms;
            best = i;
        }
    }
    entry->choices[0] = entry->choices[best];
    entry->to_time = false;
    if (least >= 0)
        lt_keep(device, w->lt, entry);
}

/* Returns the choice for the call's workspace, or NULL if the library has none. A call can have less workspace than
 * choice 0 needs, if the alignment of its operands was different when the workspace was computed, or if the workspace
 * was computed for another library. Such a call uses `tight`, and choice 0 stays the same for all other calls. */
static const lt_choice *lt_choice_for(struct lt_work *w)
{
    struct lt_entry *entry = w->entry;
    int count;
    if (entry->count == 0)
        return NULL;
    if (entry->choices[0].workspace <= w->workspace_bytes)
        return &entry->choices[0];
    if (entry->tight_state == TIGHT_UNKNOWN || entry->tight_bytes != w->workspace_bytes) {
        entry->tight_state = TIGHT_UNKNOWN;
        if (lt_choose(w->lt, entry, &entry->tight, 1, w->workspace_bytes, &count) == LT_ALLOC_FAILED)
            return NULL;
        entry->tight_bytes = w->workspace_bytes;
        entry->tight_state = count > 0 ? TIGHT_THERE : TIGHT_NONE;
    }
    return entry->tight_state == TIGHT_THERE ? &entry->tight : NULL;
}

/* Enqueues the product. Returns false if the library does not support it, so that another implementation must compute
 * it. */
static bool lt_run(const ctrt_call *call, struct lt_work *w, ctrt_status *status)
{
    struct cuda_device *device = call->device;
    struct lt_entry *entry = w->entry;
    if (entry->count == 0)
        return false;
    if (entry->key.bias && !entry->bias_apart
        && w->lt->library->product_set(entry->product, LT_PRODUCT_BIAS, &w->p->bias, sizeof w->p->bias) != LT_OK)
        return false;
    if (entry->to_time && lt_workspace_of(entry) <= w->workspace_bytes && cuda_tuning_allowed(w->stream))
        lt_time_choices(device, w);
    w->choice = lt_choice_for(w);
    if (w->choice == NULL)
        return false;
    if (w->p->bias != NULL && (!entry->key.bias || entry->bias_apart)) {
        const struct cuda_product *p = w->p;
        *status = cuda_fill_bias(call, p->out, p->c, p->bias, p->batch * p->m * p->n, p->of_rows ? p->m : p->n,
                                 p->of_rows ? p->n : 1);
        if (*status != CTRT_OK)
            return true;
        w->add = true;
    }
    if (!lt_multiply(w)) {
        if (w->status == LT_NOT_SUPPORTED || w->status == LT_INVALID_VALUE || w->status == LT_ARCH_MISMATCH) {
            if (w->choice == &entry->tight)
                entry->tight_state = TIGHT_NONE;
            else
                entry->count = 0;
            return false;
        }
        cuda_record_work(call);
        *status = cuda_host->fail(w->status == LT_ALLOC_FAILED ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_BACKEND,
                                  "%s: %s: cublasLtMatmul of [%lld, %lld] by [%lld, %lld], batch %lld, %s: %s",
                                  device->name, call->kernel->op, (long long)w->p->m, (long long)w->p->k,
                                  (long long)w->p->k, (long long)w->p->n, (long long)w->p->batch,
                                  cuda_dtype_names[w->p->dtype], w->lt->library->status_name(w->status));
        return true;
    }
    cuda_record_work(call);
    *status = CTRT_OK;
    return true;
}

bool cuda_lt_product(const ctrt_call *call, const struct cuda_product *p, ctrt_status *status)
{
    struct cuda_device *device = call->device;
    struct lt_key key;
    bool dropped;
    struct lt_work w = { .p = p, .workspace = call->workspace, .workspace_bytes = call->workspace_bytes };
    if (cuda_options.products == CUDA_PATH_BUILTIN || !lt_key_of(&key, p))
        return false;
    *status = cuda_stream_of(call, &w.stream, &dropped);
    if (*status != CTRT_OK || dropped)
        return true;
    w.lt = lt_of(device);
    w.entry = w.lt != NULL ? lt_entry_of(device, w.lt, &key) : NULL;
    if (w.entry == NULL)
        return false;
    pthread_mutex_lock(&w.entry->lock);
    const bool done = lt_run(call, &w, status);
    pthread_mutex_unlock(&w.entry->lock);
    pthread_rwlock_unlock(&w.lt->lock);
    return done;
}

void cuda_lt_close(struct cuda_device *device)
{
    struct lt *lt = device->libraries[CUDA_LIBRARY_LT];
    device->libraries[CUDA_LIBRARY_LT] = NULL;
    if (lt == NULL || lt == &no_library)
        return;
    cuda_cache_clear(&lt->cache, lt_entry_free, lt->library);
    (void)lt->library->destroy(lt->handle);
    pthread_rwlock_destroy(&lt->lock);
    cuda_host->free(lt);
}
