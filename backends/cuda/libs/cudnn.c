/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/cudnn.c: convolutions by cuDNN 9, which is loaded at run time.
 *
 * For each shape the library lists algorithms, by expected speed. Algorithms that need too much workspace are excluded,
 * and so are nondeterministic ones, unless CTRT_CUDA_DETERMINISTIC=no. A cuDNN handle must not be used by two threads
 * at the same time, so a lock serialises the calls for a device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/conv.h"
#include "cudnn_api.h"
#include "library.h"
#include "host/options.h"
#include "ops/product.h"
#include "tuning.h"

#define MOST_ENTRIES 4096u                  /* when the cache is full, it is cleared */
#define CANDIDATES 8
#define RUNS 3

struct dnn_library {
    void *file;
#define DNN(name, symbol, result, arguments) result (*name) arguments;
    DNN_ENTRIES(DNN)
#undef DNN
};

struct dnn_key {
    int64_t n, c, h, w, o, kh, kw, oh, ow, groups, stride[2], padding[2], dilation[2];
    uint8_t pass, dtype, channels_last, tf32, reserved[4];
};

struct dnn_entry {
    struct cuda_cached cached;
    struct dnn_key key;
    dnn_tensor x, y, bias;
    dnn_filter weight;
    dnn_conv conv;
    dnn_choice choices[CANDIDATES];         /* best first; algorithms that fail as unsupported are removed */
    int count;                              /* 0: the library does not support the convolution */
    bool to_time, bias_apart;
    bool passing;                           /* a temporary failure occurred: discard the entry after use */
};

/* State of a device. */
struct dnn {
    const struct dnn_library *library;
    dnn_handle handle;
    dnn_activation identity;
    size_t version;
    pthread_mutex_t lock;                   /* protects the members below and the handle */
    struct cuda_cache cache;
};

static struct dnn no_library;               /* in the slot of a device without the library */
static struct dnn not_while_captured;       /* the same, until all captures have ended */

/* ---- the library ---- */

#define NAME "libcudnn.so.9"

static const struct cuda_symbol symbols[] = {
#define DNN(name, symbol, result, arguments) { symbol, offsetof(struct dnn_library, name) },
    DNN_ENTRIES(DNN)
#undef DNN
};

static bool dnn_open_library(struct dnn_library *library, struct cuda_library_failure *why)
{
    for (int place = 0; place < CUDA_LIBRARY_PLACES && library->file == NULL && !why->transient; place++)
        library->file = cuda_library_open(library, NAME, place, symbols, COUNT_OF(symbols), why);
    return library->file != NULL;
}

static bool is_out_of_memory(dnn_status status)
{
    return status == DNN_NO_HOST_MEMORY || status == DNN_NO_DEVICE_MEMORY;
}

/* Opens the library. Returns &no_library if that is impossible, &not_while_captured while work of the device is
 * captured (see host/capture.c), or NULL after a temporary failure, after which the next convolution tries again. */
static void *open_dnn(struct cuda_device *device)
{
    static struct dnn_library library;
    static bool warned;
    struct cuda_library_failure why = { 0 };
    struct dnn *dnn = NULL;
    if (atomic_load(&device->captures) > 0) {
        cuda_host->log(CTRT_LOG_WARNING, "cuda",
                       "%s: the first convolution is in a captured step, in which cuDNN cannot be opened, so the "
                       "captured convolutions use slower kernels; run the step once before its capture", device->name);
        return &not_while_captured;
    }
    const bool open = library.file != NULL || dnn_open_library(&library, &why);
    if (open && (dnn = cuda_host->alloc(sizeof *dnn)) == NULL)
        why = (struct cuda_library_failure){ "no host memory", true };
    if (dnn != NULL) {
        memset(dnn, 0, sizeof *dnn);
        dnn->library = &library;
        dnn_status status = library.create(&dnn->handle);
        if (status == DNN_OK) {
            /* Without the activation, biases are added separately. */
            if (library.activation_create(&dnn->identity) == DNN_OK
                && library.activation_set(dnn->identity, DNN_IDENTITY, 0, 0.0) != DNN_OK) {
                (void)library.activation_destroy(dnn->identity);
                dnn->identity = NULL;
            }
            dnn->version = library.version();
            dnn->cache.key_bytes = sizeof(struct dnn_key);
            pthread_mutex_init(&dnn->lock, NULL);
            cuda_host->log(CTRT_LOG_INFO, "cuda", "%s: convolutions by %s (%zu)", device->name,
                           cuda_library_path(library.file, NAME), dnn->version);
            return dnn;
        }
        snprintf(why.text, sizeof why.text, "%s: cudnnCreate: %s", NAME, library.error_string(status));
        why.transient = is_out_of_memory(status);
        cuda_host->free(dnn);
    }
    if (why.transient) {
        if (!warned)
            cuda_host->log(
                CTRT_LOG_WARNING, "cuda",
                "%s: cuDNN cannot be opened now, so convolutions use matrix products or built-in kernels, "
                "which are slower, until it can be: %s",
                device->name, why.text);
        warned = true;
        return NULL;
    }
    cuda_host->log(
        CTRT_LOG_WARNING, "cuda",
        "%s: no cuDNN, so convolutions use matrix products or built-in kernels, which are slower: %s",
        device->name, why.text);
    return &no_library;
}

/* Returns true if opening the library should be tried. */
static bool to_open(const struct cuda_device *device, const struct dnn *dnn)
{
    return dnn == NULL || (dnn == &not_while_captured && atomic_load(&device->captures) == 0);
}

/* Returns the device's state, or NULL if the library is not available. The device's context must be current. The first
 * convolution of a device outside of captures opens the library. */
static struct dnn *dnn_of(struct cuda_device *device)
{
    struct dnn *dnn = cuda_library_slot_read(device, CUDA_LIBRARY_DNN);
    if (__builtin_expect(to_open(device, dnn), 0))
        dnn = cuda_library_fill_slot(device, CUDA_LIBRARY_DNN, dnn, open_dnn);
    return dnn != &no_library && dnn != &not_while_captured ? dnn : NULL;
}

/* Returns true if the status means that the library does not support the convolution, permanently. */
static bool is_refusal(dnn_status status)
{
    return status >= DNN_BAD_PARAM && status < DNN_INTERNAL_ERROR;
}

/* ---- conversion of a convolution for the library, and selection of algorithms; called with dnn->lock held ---- */

/* cuDNN's sizes and strides are ints, and no stride exceeds the product of all sizes. */
static bool dnn_fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t all;
    return !__builtin_mul_overflow(a, b, &all) && !__builtin_mul_overflow(all, c, &all)
           && !__builtin_mul_overflow(all, d, &all) && all > 0 && all <= INT32_MAX;
}

/* cuDNN's kernels load vectors of 16 bytes. */
static bool aligned(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

static bool dnn_key_of(struct dnn_key *key, const struct cuda_conv *v)
{
    if (cuda_options.convolutions == CUDA_PATH_BUILTIN || cuda_options.convolutions == CUDA_PATH_PRODUCT
        || !dnn_fits(v->n, v->c, v->h, v->w) || !dnn_fits(v->n, v->o, v->oh, v->ow)
        || !dnn_fits(v->o, v->c / v->groups, v->kh, v->kw) || !aligned(v->x) || !aligned(v->weight) || !aligned(v->y))
        return false;
    for (int i = 0; i < 2; i++)
        if (v->stride[i] > INT32_MAX || v->padding[i] > INT32_MAX || v->dilation[i] > INT32_MAX)
            return false;
    memset(key, 0, sizeof *key);
    *key = (struct dnn_key){
        .n = v->n, .c = v->c, .h = v->h, .w = v->w, .o = v->o, .kh = v->kh, .kw = v->kw, .oh = v->oh, .ow = v->ow,
        .groups = v->groups, .stride = { v->stride[0], v->stride[1] }, .padding = { v->padding[0], v->padding[1] },
        .dilation = { v->dilation[0], v->dilation[1] },
        .pass = (uint8_t)v->pass, .dtype = (uint8_t)v->dtype, .channels_last = v->channels_last,
        .tf32 = v->dtype == CTRT_F32 && cuda_options.tf32_convolutions,
    };
    return true;
}
_Static_assert(sizeof(struct dnn_key) % sizeof(int64_t) == 0, "keys are hashed by words");

static void dnn_write_key(char text[TUNING_KEY], const struct dnn_key *key)
{
    static const char *const passes[] = { "conv2d", "conv2d_input_grad", "conv2d_weight_grad" };
    snprintf(text, TUNING_KEY, "%s %s%s%s x%lld,%lld,%lld,%lld w%lld,%lld,%lld s%lld,%lld p%lld,%lld d%lld,%lld g%lld",
             passes[key->pass], cuda_dtype_names[key->dtype], key->tf32 ? "(tf32)" : "",
             key->channels_last ? " nhwc" : "", (long long)key->n, (long long)key->c, (long long)key->h,
             (long long)key->w, (long long)key->o, (long long)key->kh, (long long)key->kw, (long long)key->stride[0],
             (long long)key->stride[1], (long long)key->padding[0], (long long)key->padding[1],
             (long long)key->dilation[0], (long long)key->dilation[1], (long long)key->groups);
}

static void dnn_entry_free(const void *of, void *cached)
{
    const struct dnn_library *library = of;
    struct dnn_entry *entry = cached;
    dnn_tensor tensors[3] = { entry->x, entry->y, entry->bias };
    for (int i = 0; i < 3; i++)
        if (tensors[i] != NULL)
            (void)library->tensor_destroy(tensors[i]);
    if (entry->weight != NULL)
        (void)library->filter_destroy(entry->weight);
    if (entry->conv != NULL)
        (void)library->conv_destroy(entry->conv);
    cuda_host->free(entry);
}

static int math_of(const struct dnn_key *key)
{
    return key->dtype == CTRT_F32 ? (key->tf32 ? DNN_MATH_DEFAULT : DNN_MATH_PLAIN)
                                  : key->dtype == CTRT_F64 ? DNN_MATH_DEFAULT : DNN_MATH_TENSOR;
}

static dnn_status dnn_describe(const struct dnn_library *library, struct dnn_entry *entry)
{
    static const int types[CUDA_DTYPES] = {
        [CTRT_F32] = DNN_F32, [CTRT_F64] = DNN_F64, [CTRT_F16] = DNN_F16, [CTRT_BF16] = DNN_BF16
    };
    const struct dnn_key *k = &entry->key;
    const int type = types[k->dtype], format = k->channels_last ? DNN_NHWC : DNN_NCHW;
    LIBRARY_TRY(library->tensor_create(&entry->x));
    LIBRARY_TRY(library->tensor_set(entry->x, format, type, (int)k->n, (int)k->c, (int)k->h, (int)k->w));
    LIBRARY_TRY(library->tensor_create(&entry->y));
    LIBRARY_TRY(library->tensor_set(entry->y, format, type, (int)k->n, (int)k->o, (int)k->oh, (int)k->ow));
    LIBRARY_TRY(library->tensor_create(&entry->bias));
    LIBRARY_TRY(library->tensor_set(entry->bias, format, type, 1, (int)k->o, 1, 1));
    LIBRARY_TRY(library->filter_create(&entry->weight));
    LIBRARY_TRY(library->filter_set(entry->weight, type, format, (int)k->o, (int)(k->c / k->groups), (int)k->kh,
                                    (int)k->kw));
    LIBRARY_TRY(library->conv_create(&entry->conv));
    LIBRARY_TRY(library->conv_set(entry->conv, (int)k->padding[0], (int)k->padding[1], (int)k->stride[0],
                                  (int)k->stride[1], (int)k->dilation[0], (int)k->dilation[1], DNN_CROSS_CORRELATION,
                                  k->dtype == CTRT_F64 ? DNN_F64 : DNN_F32));
    LIBRARY_TRY(library->conv_groups(entry->conv, (int)k->groups));
    LIBRARY_TRY(library->conv_math(entry->conv, math_of(k)));
    return DNN_OK;
}

static bool dnn_allowed(const struct cuda_device *device, const struct dnn_key *key, const dnn_choice *choice)
{
    return choice->status == DNN_OK && choice->workspace <= cuda_conv_workspace_limit(device)
           && (choice->deterministic != 0 || cuda_options.determinism == CUDA_DETERMINISM_NO)
           && (math_of(key) != DNN_MATH_PLAIN || choice->math == DNN_MATH_PLAIN || choice->math == DNN_MATH_DEFAULT);
}

static dnn_status dnn_choose(const struct cuda_device *device, struct dnn *dnn, struct dnn_entry *entry)
{
    const struct dnn_library *library = dnn->library;
    dnn_choice choices[CANDIDATES];
    int found = 0;
    dnn_status status;
    if (entry->key.pass == CUDA_CONV_FORWARD)
        status = library->forward_choose(dnn->handle, entry->x, entry->weight, entry->conv, entry->y, CANDIDATES,
                                         &found, choices);
    else if (entry->key.pass == CUDA_CONV_INPUT_GRAD)
        status = library->input_choose(dnn->handle, entry->weight, entry->y, entry->conv, entry->x, CANDIDATES, &found,
                                       choices);
    else
        status = library->weight_choose(dnn->handle, entry->x, entry->y, entry->conv, entry->weight, CANDIDATES, &found,
                                        choices);
    entry->count = 0;
    for (int i = 0; i < found && status == DNN_OK; i++) {
        entry->passing |= is_out_of_memory(choices[i].status);
        if (dnn_allowed(device, &entry->key, &choices[i]))
            entry->choices[entry->count++] = choices[i];
    }
    return status;
}

/* Swaps choice i with choice 0. */
static void dnn_put_first(struct dnn_entry *entry, int i)
{
    const dnn_choice first = entry->choices[i];
    entry->choices[i] = entry->choices[0];
    entry->choices[0] = first;
}

static void dnn_take_out(struct dnn_entry *entry, int i)
{
    entry->count--;
    memmove(&entry->choices[i], &entry->choices[i + 1], (size_t)(entry->count - i) * sizeof entry->choices[0]);
}

/* Puts the choice of the tuning file first. Returns false if the file has none or the library does not list it any
 * more. */
static bool dnn_recall(struct cuda_device *device, struct dnn *dnn, struct dnn_entry *entry)
{
    char key[TUNING_KEY], text[TUNING_CHOICE];
    int algorithm, math;
    dnn_write_key(key, &entry->key);
    if (!cuda_tuning_find(device, "cudnn", dnn->version, key, text) || sscanf(text, "%d %d", &algorithm, &math) != 2)
        return false;
    for (int i = 0; i < entry->count; i++)
        if (entry->choices[i].algorithm == algorithm && entry->choices[i].math == math) {
            dnn_put_first(entry, i);
            return true;
        }
    return false;
}

static void dnn_keep(struct cuda_device *device, struct dnn *dnn, const struct dnn_entry *entry)
{
    char key[TUNING_KEY], text[TUNING_CHOICE];
    dnn_write_key(key, &entry->key);
    snprintf(text, sizeof text, "%d %d", entry->choices[0].algorithm, entry->choices[0].math);
    cuda_tuning_keep(device, "cudnn", dnn->version, key, text);
}

static void dnn_forget(struct dnn *dnn, struct dnn_entry *entry)
{
    cuda_cache_remove(&dnn->cache, &entry->cached);
    dnn_entry_free(dnn->library, entry);
}

/* Returns the convolution's entry. Returns NULL after a temporary failure. A caller that finds `passing` set removes
 * the entry after use. */
static struct dnn_entry *dnn_entry_of(struct cuda_device *device, struct dnn *dnn, const struct dnn_key *key)
{
    struct dnn_entry *entry = cuda_cache_find(&dnn->cache, key);
    if (entry != NULL)
        return entry;
    if (dnn->cache.count >= MOST_ENTRIES)
        cuda_cache_clear(&dnn->cache, dnn_entry_free, dnn->library);
    entry = cuda_host->alloc(sizeof *entry);
    if (entry == NULL)
        return NULL;
    memset(entry, 0, sizeof *entry);
    entry->key = *key;
    entry->cached.key = &entry->key;
    cuda_cache_add(&dnn->cache, &entry->cached);
    dnn_status status = dnn_describe(dnn->library, entry);
    if (status == DNN_OK)
        status = dnn_choose(device, dnn, entry);
    /* If the query failed for a temporary reason, do not cache that there is no algorithm. */
    if (entry->count == 0 && (entry->passing || (status != DNN_OK && !is_refusal(status)))) {
        dnn_forget(dnn, entry);
        return NULL;
    }
    entry->to_time = !dnn_recall(device, dnn, entry) && cuda_options.benchmark
                     && cuda_options.determinism != CUDA_DETERMINISM_YES && entry->count > 1;
    return entry;
}

bool cuda_dnn_workspace(struct cuda_device *device, const struct cuda_conv *v, size_t limit, size_t *bytes)
{
    struct dnn_key key;
    if (!dnn_key_of(&key, v) || cuda_enter(device) != CTRT_OK)
        return false;
    struct dnn *dnn = dnn_of(device);
    if (dnn == NULL)
        return false;
    pthread_mutex_lock(&dnn->lock);
    const struct dnn_entry *entry = dnn_entry_of(device, dnn, &key);
    bool any = false;
    *bytes = 0;
    for (int i = 0; entry != NULL && i < entry->count && (!any || entry->to_time); i++) {
        const size_t wanted = entry->choices[i].workspace;
        if (wanted > limit)
            continue;
        any = true;
        *bytes = wanted > *bytes ? wanted : *bytes;
    }
    pthread_mutex_unlock(&dnn->lock);
    return any;
}

/* ---- execution ---- */

struct dnn_work {
    struct dnn *dnn;
    struct dnn_entry *entry;
    const struct cuda_conv *v;
    const dnn_choice *choice;
    void *workspace;
    size_t workspace_bytes;
    cu_stream stream;
    dnn_status status;
    const ctrt_call *call;                  /* NULL while algorithms are timed */
    ctrt_status filled;                     /* status of cuda_fill_bias() */
};

/* Computes convolution and bias in one call, which cuDNN supports with one algorithm only. Returns false if that is not
 * possible or failed. */
static bool forward_with_bias(struct dnn_work *w, const void *one, const void *zero)
{
    const struct dnn_entry *e = w->entry;
    if (w->v->bias == NULL || e->bias_apart || w->dnn->identity == NULL
        || w->choice->algorithm != DNN_FORWARD_PRECOMPUTED || w->v->dtype == CTRT_F64 || !aligned(w->v->bias))
        return false;
    w->status = w->dnn->library->forward_bias(w->dnn->handle, one, e->x, w->v->x, e->weight, w->v->weight, e->conv,
                                              w->choice->algorithm, w->workspace, w->workspace_bytes, zero, e->y,
                                              w->v->y, e->bias, w->v->bias, w->dnn->identity, e->y, w->v->y);
    if (is_refusal(w->status))
        w->entry->bias_apart = true;
    return w->status == DNN_OK;
}

/* Fills the output with the bias and accumulates the convolution into it, so that the sum is rounded once. Timed runs
 * omit the bias, because repeated runs would accumulate. */
static dnn_status dnn_forward(struct dnn_work *w, const void *one, const void *zero)
{
    const struct cuda_conv *v = w->v;
    const struct dnn_entry *e = w->entry;
    const bool add = w->call != NULL && v->bias != NULL;
    if (add)
        w->filled = cuda_fill_bias(w->call, v->dtype, v->y, v->bias, v->n * v->o * v->oh * v->ow, v->o,
                                   v->channels_last ? 1 : v->oh * v->ow);
    if (w->filled != CTRT_OK)
        return DNN_EXECUTION_FAILED;
    return w->dnn->library->forward(w->dnn->handle, one, e->x, v->x, e->weight, v->weight, e->conv,
                                    w->choice->algorithm, w->workspace, w->workspace_bytes, add ? one : zero, e->y,
                                    v->y);
}

static bool dnn_convolve(void *argument)
{
    struct dnn_work *w = argument;
    const struct dnn_library *library = w->dnn->library;
    const struct dnn_entry *e = w->entry;
    const float one_32 = 1, zero_32 = 0;
    const double one_64 = 1, zero_64 = 0;
    const void *one = w->v->dtype == CTRT_F64 ? (const void *)&one_64 : &one_32,
               *zero = w->v->dtype == CTRT_F64 ? (const void *)&zero_64 : &zero_32;
    const int algorithm = w->choice->algorithm;
    w->status = math_of(&e->key) == DNN_MATH_PLAIN ? DNN_OK : library->conv_math(e->conv, w->choice->math);
    if (w->status != DNN_OK)
        return false;
    if (e->key.pass == CUDA_CONV_INPUT_GRAD)
        w->status = library->input(w->dnn->handle, one, e->weight, w->v->weight, e->y, w->v->y, e->conv, algorithm,
                                   w->workspace, w->workspace_bytes, zero, e->x, w->v->x);
    else if (e->key.pass == CUDA_CONV_WEIGHT_GRAD)
        w->status = library->weight(w->dnn->handle, one, e->x, w->v->x, e->y, w->v->y, e->conv, algorithm, w->workspace,
                                    w->workspace_bytes, zero, e->weight, w->v->weight);
    else if (!forward_with_bias(w, one, zero))
        w->status = dnn_forward(w, one, zero);
    return w->status == DNN_OK;
}

/* Times the choices and puts the fastest one first. */
static void dnn_time_choices(struct cuda_device *device, struct dnn_work *w)
{
    struct dnn_entry *entry = w->entry;
    int best = 0;
    double least = -1;
    for (int i = 0; i < entry->count; i++) {
        w->choice = &entry->choices[i];
        const bool fits = w->choice->workspace <= w->workspace_bytes;
        const double ms = fits ? cuda_tuning_time(w->stream, RUNS, dnn_convolve, w) : -1;
        if (ms >= 0 && (least < 0 || ms < least)) {
            least = ms;
            best = i;
        }
    }
    dnn_put_first(entry, best);
    entry->to_time = false;
    if (least >= 0)
        dnn_keep(device, w->dnn, entry);
}

/* Runs the first choice that fits in the workspace and that the library executes. A choice that fails as unsupported is
 * removed; when none is left, this convolution and its workspace() use another implementation from then on. Lack of
 * memory is treated as temporary. Returns false if no choice worked. */
static bool dnn_run(const ctrt_call *call, struct dnn_work *w, ctrt_status *status)
{
    struct dnn_entry *entry = w->entry;
    w->status = w->dnn->library->set_stream(w->dnn->handle, w->stream);
    if (w->status != DNN_OK || entry->count == 0)
        return false;
    if (entry->to_time && cuda_tuning_allowed(w->stream))
        dnn_time_choices(call->device, w);
    w->call = call;
    for (int i = 0; i < entry->count;) {
        w->choice = &entry->choices[i];
        if (w->choice->workspace > w->workspace_bytes) {
            i++;
            continue;
        }
        if (dnn_convolve(w)) {
            cuda_record_work(call);
            *status = CTRT_OK;
            return true;
        }
        if (w->filled != CTRT_OK) {
            *status = w->filled;
            return true;
        }
        if (is_refusal(w->status)) {
            dnn_take_out(entry, i);
        } else if (is_out_of_memory(w->status)) {
            entry->passing = true;
            i++;
        } else {
            cuda_record_work(call);
            *status = cuda_host->fail(CTRT_ERR_BACKEND, "%s: %s: cuDNN: %s", ((struct cuda_device *)call->device)->name,
                                      call->kernel->op, w->dnn->library->error_string(w->status));
            return true;
        }
    }
    return false;
}

bool cuda_dnn_conv(const ctrt_call *call, const struct cuda_conv *v, ctrt_status *status)
{
    struct cuda_device *device = call->device;
    struct dnn_key key;
    bool dropped, done = false;
    struct dnn_work w = { .v = v, .workspace = call->workspace, .workspace_bytes = call->workspace_bytes };
    if (!dnn_key_of(&key, v))
        return false;
    *status = cuda_stream_of(call, &w.stream, &dropped);
    if (*status != CTRT_OK || dropped)
        return true;
    w.dnn = dnn_of(device);
    if (w.dnn == NULL)
        return false;
    pthread_mutex_lock(&w.dnn->lock);
    w.entry = dnn_entry_of(device, w.dnn, &key);
    if (w.entry != NULL) {
        done = dnn_run(call, &w, status);
        if (w.entry->passing)
            dnn_forget(w.dnn, w.entry);
    }
    pthread_mutex_unlock(&w.dnn->lock);
    return done;
}

void cuda_dnn_close(struct cuda_device *device)
{
    struct dnn *dnn = device->libraries[CUDA_LIBRARY_DNN];
    device->libraries[CUDA_LIBRARY_DNN] = NULL;
    if (dnn == NULL || dnn == &no_library || dnn == &not_while_captured)
        return;
    cuda_cache_clear(&dnn->cache, dnn_entry_free, dnn->library);
    if (dnn->identity != NULL)
        (void)dnn->library->activation_destroy(dnn->identity);
    (void)dnn->library->destroy(dnn->handle);
    pthread_mutex_destroy(&dnn->lock);
    cuda_host->free(dnn);
}
