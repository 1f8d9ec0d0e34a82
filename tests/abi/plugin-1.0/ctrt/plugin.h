/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/plugin.h: all that the author of a plugin needs; the binary border of ctrt.
 *
 * A plugin is a shared object that exports one function, ctrt_plugin_v1. It needs no symbol of libctrt: what it wants of
 * the library comes in a host table. Every table begins with its size, is reached by pointer and only ever grows at its
 * end; a slot may be called only when it lies inside the size and is not NULL (CTRT_SLOT). Unless a slot says
 * otherwise it returns CTRT_OK or a negative status after host->fail(), and may be called from any thread.
 *
 * Order of events:  dlopen -> ctrt_plugin_v1() (pure) -> sizes and ABI judged -> component probe (cheap, opens nothing)
 *                   -> plugin init(host), once, when a component is first wanted -> component slots. Never unloaded. */
#ifndef CTRT_PLUGIN_H
#define CTRT_PLUGIN_H

#include "ctrt/types.h"

CTRT_BEGIN_DECLS

/* The ABI's generation. Equal major numbers understand one another; the minor number counts additions. */
#define CTRT_PLUGIN_ABI_MAJOR 1u
#define CTRT_PLUGIN_ABI_MINOR 0u

/* True when `table` is large enough to have slot `member` and the slot is filled. */
#define CTRT_SLOT(table, member)                                                                                  \
    ((table) != NULL                                                                                              \
     && (table)->size >= (size_t)((const char *)(&(table)->member + 1) - (const char *)(table))                   \
     && (table)->member != NULL)

/* The same for members of which 0 means something. */
#define CTRT_HAS(table, member)                                                                                   \
    ((table) != NULL && (table)->size >= (size_t)((const char *)(&(table)->member + 1) - (const char *)(table)))

/* ---- what kernels see ------------------------------------------------------------------------------------- */

enum {                              /* ctrt_view.flags */
    CTRT_VIEW_CONTIGUOUS = 1,       /* row major, no gaps */
    CTRT_VIEW_CHANNELS_LAST = 2,    /* 4-d NCHW shape laid out as NHWC, no gaps */
    CTRT_VIEW_HOST_SCALAR = 4,      /* one element in host memory, strides 0, whatever the device */
    CTRT_VIEW_PINNED = 8            /* host memory that devices copy by themselves; the core waits before kernels see it */
};

/* A tensor as a kernel sees it. Shapes and strides are in elements; entries from ndim on are unspecified. */
typedef struct ctrt_view {
    void *data;                     /* address of element [0,0,...] on the device */
    int64_t numel;
    uint8_t dtype;                  /* ctrt_dtype */
    uint8_t ndim;
    uint16_t flags;                 /* CTRT_VIEW_*; contiguity is always stated */
    uint32_t reserved;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t strides[CTRT_MAX_DIMS];
    void *owner;                    /* the core's: what it knows of the memory; not for kernels */
} ctrt_view;

struct ctrt_kernel;

/* One execution of an op. Views of optional inputs may be NULL where the op says so. Inputs never overlap
 * outputs except as the very same view of an in-place op (CTRT_KERNEL_INPLACE).
 *
 * On a device with queues, run() puts the work on `queue` and returns; all that the call points to (views, arrays,
 * attributes, elements of HOST_SCALAR views) lives until run() returns, the memory of operands and workspace until the work
 * is done. */
typedef struct ctrt_call {
    size_t size;
    void *device;                           /* what device->open() gave */
    void *queue;                            /* stream to work on; NULL on synchronous devices */
    const ctrt_view *const *inputs;
    const ctrt_view *const *outputs;        /* kernels write the data, never the view */
    uint32_t n_inputs, n_outputs;
    const void *attributes;                 /* struct ctrt_*_attributes of the op, or NULL */
    void *workspace;                        /* as many bytes as the row's workspace() asked for; 64-byte aligned */
    size_t workspace_bytes;
    const struct ctrt_kernel *row;          /* the row that runs */
    uint64_t sequence;                      /* number of this call on its queue, from 1; 0 without queues */
} ctrt_call;

enum {                              /* ctrt_kernel.flags */
    CTRT_KERNEL_STRIDED = 1,        /* takes any strides (zero and negative too); else inputs come contiguous */
    CTRT_KERNEL_INPLACE = 2,        /* output 0 may be input 0 */
    CTRT_KERNEL_CHANNELS_LAST = 4   /* 4-d operands may also come channels-last, all alike */
};

#define CTRT_DTYPE_BIT(dtype) (1u << (dtype))

/* A kernel: one op's code on one backend for some dtypes. The best score among the rows whose dtypes have the op's
 * key dtype (see the table of ops below) and whose accepts() agrees wins; the core remembers the winner. */
typedef struct ctrt_kernel {
    size_t size;
    const char *op;                                 /* name in ops.def */
    uint32_t dtypes;                                /* set of CTRT_DTYPE_BIT */
    int32_t score;                                  /* 0 is normal; larger wins */
    uint32_t flags;                                 /* CTRT_KERNEL_* */
    uint32_t reserved;
    ctrt_status (*run)(const ctrt_call *call);      /* required */
    bool (*accepts)(const ctrt_call *call);         /* optional: declines shapes or layouts; data must not be read */
    /* Optional: bytes of workspace that run() needs; data must not be read. call->workspace_bytes is 0, or so many bytes as could not be allocated:
     * then a kernel that can do with less says how much (0: none), any other the same again, and the op fails. */
    ctrt_status (*workspace)(const ctrt_call *call, size_t *bytes);
} ctrt_kernel;

/* ---- attributes of ops ---------------------------------------------------------------------------------------- */

typedef struct ctrt_reduce_attributes {     /* sum mean prod amax amin any all argmax argmin */
    size_t size;
    uint32_t dims;                          /* bit d set: dimension d of the input view is reduced */
} ctrt_reduce_attributes;

typedef struct ctrt_range_attributes {      /* clamp: limits, where has_lo, has_hi; fill: lo; arange: lo = start, hi = step */
    size_t size;
    ctrt_scalar lo, hi;
    bool has_lo, has_hi;
} ctrt_range_attributes;

typedef struct ctrt_gelu_attributes {       /* gelu gelu_backward */
    size_t size;
    bool tanh;                              /* the tanh approximation instead of erf */
} ctrt_gelu_attributes;

typedef struct ctrt_conv_attributes {       /* conv2d conv2d_input_grad conv2d_weight_grad */
    size_t size;
    int64_t stride[2], padding[2], dilation[2], groups;     /* stride, padding, dilation at most INT32_MAX */
} ctrt_conv_attributes;

typedef struct ctrt_pool_attributes {       /* max_pool2d max_pool2d_backward */
    size_t size;
    int64_t kernel[2], stride[2], padding[2], dilation[2];  /* each at most INT32_MAX */
} ctrt_pool_attributes;

typedef struct ctrt_norm_attributes {       /* layer_norm batch_norm and their gradients */
    size_t size;
    double epsilon, momentum;               /* momentum: batch_norm only; how far running_* move toward the batch's, 0 to 1 */
    bool training;                          /* batch_norm only */
} ctrt_norm_attributes;

typedef struct ctrt_cross_entropy_attributes {
    size_t size;
    int64_t ignore_index;                   /* rows with this target count nothing */
    double label_smoothing;
} ctrt_cross_entropy_attributes;

typedef struct ctrt_attention_attributes {  /* attention attention_backward */
    size_t size;
    double scale;                           /* of the scores */
    bool causal;                            /* row i sees columns up to i */
} ctrt_attention_attributes;

typedef struct ctrt_index_attributes {      /* index_add: a row that gets no gradient; tril triu: the diagonal */
    size_t size;
    int64_t value;                          /* index_add: -1 for none */
} ctrt_index_attributes;

/* Random numbers are Philox4x32-10 (Salmon et al. 2011): element i of the output takes word i%4 of the block with counter
 * {offset + i/4 (64 bit), 0, 0} and key `seed`, so the same seed gives the same numbers on every backend. uniform: (word >> 8) *
 * 2^-24, then * (hi - lo), + lo, each rounded to f32, then rounded to the output's dtype, and lo where that is not below
 * hi (f64 outputs: block i/2, words 2(i%2) and 2(i%2)+1 as hi and lo, top 53 bits * 2^-53, the rest in f64).
 * normal: Box-Muller over word pairs (0,1) and (2,3): with u1 = ((w0>>8)+1) * 2^-24 and u2 = (w1>>8) * 2^-24,
 * r = sqrt(-2 ln u1): element even r*cos(2 pi u2), odd r*sin(2 pi u2), computed in f32 (f64: from the 53-bit pairs, one block per
 * two elements). randint: lo + (((uint64)word_pair) % range), block i/2, as 64 bits (w_even << 32 | w_odd). bernoulli and dropout: the f32 uniform < p
 * (dropout keeps where uniform >= p). f16 and bf16 are rounded from f32. */
typedef struct ctrt_random_attributes {     /* uniform normal randint bernoulli dropout */
    size_t size;
    uint64_t seed, offset;                  /* the core advances offset by the blocks that were used */
    double a, b;                            /* uniform: lo, hi; normal: mean, std; bernoulli, dropout: p */
    int64_t lo, hi;                         /* randint: lo <= value < hi */
    const uint64_t *place;                  /* in a capture: see below; else NULL */
} ctrt_random_attributes;

typedef struct ctrt_sgd_attributes {        /* sgd_step */
    size_t size;
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first;         /* first: momentum buffers are to be set to the gradient */
    const double *replayed;                 /* in a capture: lr; see below */
} ctrt_sgd_attributes;

typedef struct ctrt_adam_attributes {       /* adam_step */
    size_t size;
    double lr, beta1, beta2, epsilon, weight_decay;
    bool decoupled;                         /* AdamW: p *= 1 - lr*weight_decay; else weight_decay*p joins the gradient */
    bool maximize;
    int64_t step;                           /* 1 for the first step */
    const double *replayed;                 /* in a capture: decoupled ? 1 - lr*weight_decay : 1; lr / (1 - beta1^step); 1 / sqrt(1 - beta2^step) */
} ctrt_adam_attributes;

/* Numbers that change from replay to replay of captured work lie in device memory then: the kernel reads them there when it runs, instead
 * of those beside the pointer. place: seed, and what is added to `offset`. Only backends with a capture table get such pointers. */

/* ---- the table of ops --------------------------------------------------------------------------------------------
 *
 * What a kernel of each op gets. "like" means same shape; the key dtype is input 0's unless another is named. Floating work of
 * f16 and bf16 accumulates in f32. NULL marks optional inputs. The core has broadcast (strides 0), promoted, checked and allocated.
 *
 * Elementwise, all views of one shape, merged to few dimensions:
 *   copy(x) -> out            out may have another dtype (key: x); float to int truncates toward zero; bool is x != 0
 *   fill() -> out             value: range_attributes.lo; key: out.  Strided when the row is STRIDED
 *   neg abs sign square relu(x); floor ceil round trunc (ties to even); clamp(x), range_attributes   any dtype but bool
 *   sqrt rsqrt reciprocal exp expm1 log log1p sin cos tan tanh sigmoid silu erf gelu(x)     floating
 *   isnan isinf isfinite logical_not(x) -> bool out
 *   relu_backward(dy, y): y <= 0 ? 0 : dy   sigmoid_backward(dy, y)    tanh_backward(dy, y)
 *   gelu_backward(dy, x)    silu_backward(dy, x)
 *   add sub mul div(floating) remainder(sign of divisor) fmod floor_divide pow maximum minimum (NaN wins) (a, b)
 *       bool: add is or, mul and maximum are and/or
 *   eq ne lt le gt ge logical_and logical_or logical_xor(a, b) -> bool out (key: a, b alike)
 *   where(cond bool, a, b) (key: a)
 * Reductions, attributes: reduce; out has the input's ndim with size 1 at reduced dims, stride 0 there:
 *   sum prod(x) -> out, key x, out dtype: x's, or i64 for integers and bool      mean(x) floating
 *   amax amin(x) NaN wins     any all(x) -> bool      argmax argmin(x) -> i64: index in the reduced dims taken row major; first
 *   of ties, NaN wins
 * Matrices (strided; of the last two strides of each input one is 1):
 *   matmul(a[B,M,K], b[B,K,N]) -> out[B,M,N] contiguous; batch strides may be 0
 *   linear(x[M,K], w[N,K], bias[N] or NULL) -> out[M,N] contiguous
 *   A backend's rows may also take an f32 out beside f16 or bf16 operands (bias: f32 then), for overlays; the core does not ask for it
 * Convolution and pooling, NCHW shapes, contiguous or (flag) channels-last:
 *   conv2d(x[N,C,H,W], w[O,C/g,kh,kw], bias[O] or NULL) -> y;   conv2d_input_grad(dy, w) -> dx;   conv2d_weight_grad(dy, x) -> dw
 *   max_pool2d(x) -> y, indices i64 (h*W+w of the input plane; -1: the window lies outside);   max_pool2d_backward(dy, indices) -> dx
 * Rows (contiguous):
 *   softmax log_softmax(x[O,N,I]) over the middle;  softmax_backward log_softmax_backward(dy, y) alike
 *   cross_entropy(logits[N,C], target i64[N], class weight[C] or NULL) -> loss f32/f64[N] (f32 for f16, bf16),
 *   statistics likewise[N,2]: of each row the largest logit and the sum of e^(logit - largest)
 *   cross_entropy_backward(logits, target, weight or NULL, statistics, dloss[N]) -> dlogits[N,C].  A target outside
 *   [0,C) that is not ignore_index is an error that names it
 *   layer_norm(x[M,N], weight[N] or NULL, bias[N] or NULL) -> y, mean[M], rstd[M] (f64 for f64, else f32)
 *   layer_norm_backward(dy, x, weight or NULL, mean, rstd) -> dx, dweight[N] or NULL, dbias[N] or NULL
 *   batch_norm(x[N,C,S], weight[C] or NULL, bias or NULL, running_mean[C] or NULL, running_var or NULL) -> y, mean[C], rstd[C]; training:
 *   batch statistics, and where running_* are given, outputs 3 and 4 are they again, to be updated in place (unbiased variance); else
 *   running_* are used and mean, rstd are made of them. weight, bias and running_* may be f32 where x is f16 or bf16
 *   batch_norm_backward(dy, x, weight or NULL, mean, rstd) -> dx, dweight or NULL, dbias or NULL
 * Attention (strided; the last stride of q, k, v, y and their gradients is 1; no size is 0). A device may do without: the core then composes it
 * of other ops. Hidden: column j of row i where causal and j > i; its weight is 0. A row of weights whose scores are all -inf is NaN:
 *   attention(q[B,H,L,E], k[B,H,S,E], v[B,H,S,V]) -> y[B,H,L,V] = softmax(scale q k^T) v, logsumexp[B,H,L] of the rows of scale q k^T (f64 for
 *   f64, else f32; contiguous)
 *   attention_backward(dy, q, k, v, y, logsumexp) -> dq, dk, dv, each like its operand; with p = exp(scale q k^T - logsumexp) and
 *   ds = p (dy v^T - sum(dy y)):  dv = p^T dy, dq = scale ds k, dk = scale ds^T q
 * Indexing (contiguous; an index out of range is an error that names it):
 *   index_select(x[O,V,I], index i64[M]) -> out[O,M,I];   index_add(dy[O,M,I], index[M]) -> dx[O,V,I], zeroed first; attributes.value: row to skip
 *   gather(x[O,V,I], index i64[O,M,I]) -> out[O,M,I];   scatter_add(dy[O,M,I], index[O,M,I]) -> dx[O,V,I], zeroed first
 *   tril triu(x[B,M,N]) -> out
 * Creation and random (key: out, contiguous): arange() range_attributes; uniform normal() floating; randint(); bernoulli();
 *   dropout(x) -> y = x * mask / (1-p), mask bool
 * Optimizers, in place on many tensors at once (contiguous; key: parameter; sequences of n equal shapes):
 *   sgd_step: inputs p[n], g[n], buf[n] (buf absent without momentum): outputs p[n], buf[n]
 *   adam_step: inputs p[n], g[n], m[n], v[n]: outputs p[n], m[n], v[n]
 *   buf, m and v are f32 where p and g are f16 or bf16, else of p's dtype
 */

/* ---- what the library lends ------------------------------------------------------------------------------------- */

struct ctrt_backend;

/* The value of a parameter. `text` lives until the process ends; NULL when unset. */
typedef struct ctrt_param_value {
    const char *text;
    int64_t integer;            /* INT, BYTES (bytes), BOOL (0, 1), ENUM (position of the word) */
    bool is_set;                /* by the environment or the program, not by default */
} ctrt_param_value;

typedef struct ctrt_host {
    size_t size;
    uint32_t abi_major, abi_minor;
    /* Sets the thread's error message; returns `status`. */
    ctrt_status (*fail)(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);
    void (*log)(ctrt_log_level level, const char *component, const char *format, ...) CTRT_PRINTF(3, 4);
    /* Memory that failure injection can see; alloc returns NULL when there is none. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
    /* Declares `param` (may be repeated), reads it by that declaration. A malformed value is an error that names it. */
    ctrt_status (*param)(ctrt_param_value *out, const ctrt_param *param);
    /* The tables of another backend, loading it if need be; NULL when there is none. For overlays. */
    const struct ctrt_backend *(*backend)(const char *name);
    /* What fail() was told last in this thread, for errors that are passed on later or elsewhere; valid until the next failure. */
    const char *(*message)(void);
    /* Writes whose device memory lies at `address` ("the result of matmul in encoder.0"), if that is known. For handlers of signals:
     * takes no lock that it might have to wait for, allocates nothing. */
    bool (*describe)(char *text, size_t bytes, const void *address);
    /* As pthread_atfork (NULL: nothing to do), for locks that a plugin takes when it is called: `before` runs when the library has taken
     * its own, in the order in which both are taken otherwise, and the others before they are given back. */
    ctrt_status (*at_fork)(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
} ctrt_host;

/* ---- backends ------------------------------------------------------------------------------------------------------ */

enum {                                  /* ctrt_device_info.flags */
    CTRT_DEVICE_HOST_MEMORY = 1,        /* the host can read and write the device's memory at the same addresses */
    CTRT_DEVICE_ASYNCHRONOUS = 2        /* work is queued on streams */
};

/* Facts about a device, filled by the backend. Unknown: 0 or "". Grows at its end. */
typedef struct ctrt_device_info {
    size_t size;
    char name[128];                     /* "AMD EPYC 9355" */
    char uuid[64];                      /* "GPU-..." */
    char pci[32];                       /* "0000:65:00.0" */
    uint64_t total_memory;              /* bytes */
    int32_t compute_major, compute_minor;
    int32_t processors;                 /* cores or multiprocessors that may be used */
    int32_t clock_khz;
    int32_t numa_node;                  /* -1: unknown */
    uint32_t flags;                     /* CTRT_DEVICE_* */
    int32_t ecc;                        /* 1 on, 0 off, -1 unknown */
    int32_t reserved;
    char cpus[256];                     /* near the device: "0-31,64-95" */
} ctrt_device_info;

/* A process that has memory on a device. */
typedef struct ctrt_device_process {
    int64_t pid;
    uint64_t memory;                    /* bytes; UINT64_MAX: unknown */
} ctrt_device_process;

/* What goes on on a device, over all processes. Unknown: -1, bytes: 0. Grows at its end. */
typedef struct ctrt_device_usage {
    size_t size;
    uint64_t total_memory, used_memory, free_memory;    /* bytes */
    int32_t busy, memory_busy;          /* percent of the time lately in which work ran; in which memory was read or written */
    int32_t temperature;                /* degrees Celsius */
    int32_t power, power_limit;         /* milliwatts */
    int32_t clock_khz;
    int32_t process_count;              /* how many there are; process_room of them are written at most */
    int32_t process_room;               /* set by the caller, as `processes` is */
    ctrt_device_process *processes;
} ctrt_device_usage;

enum {                                  /* ctrt_device_link.kind: what lies between two devices */
    CTRT_LINK_UNKNOWN, CTRT_LINK_NVLINK, CTRT_LINK_BOARD, CTRT_LINK_SWITCH, CTRT_LINK_SWITCHES, CTRT_LINK_BRIDGE, CTRT_LINK_NODE,
    CTRT_LINK_SYSTEM
};

/* The way from one device to another of its type. Grows at its end. */
typedef struct ctrt_device_link {
    size_t size;
    int32_t direct;                     /* 1: it reads the other's memory; 0: copies go through the host; -1: unknown */
    int32_t kind;                       /* CTRT_LINK_*: the same board, a PCI switch, several, a host bridge, a NUMA node, all of the machine */
    int32_t links;                      /* how many NVLinks join the two; 0: none, or through switches */
    int32_t reserved;
} ctrt_device_link;

typedef struct ctrt_device_table {      /* required; required slots: count, describe, open, close */
    size_t size;
    ctrt_status (*count)(int32_t *count);                               /* opens no context; survives fork */
    ctrt_status (*describe)(int32_t index, ctrt_device_info *info);     /* likewise; info->size is set by the caller */
    ctrt_status (*open)(void **device, int32_t index);                  /* called once per device and process */
    void (*close)(void *device);
    ctrt_status (*memory_info)(void *device, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Optional: without opening anything, as count and describe. The caller sets `size` and fills all else with "unknown". */
    ctrt_status (*usage)(int32_t index, ctrt_device_usage *usage);
    ctrt_status (*link)(int32_t index, int32_t peer, ctrt_device_link *link);
} ctrt_device_table;

enum ctrt_copy_kind { CTRT_COPY_TO_DEVICE, CTRT_COPY_TO_HOST, CTRT_COPY_ON_DEVICE };

typedef struct ctrt_memory_table {      /* required; required slots: alloc, free, copy, fill */
    size_t size;
    ctrt_status (*alloc)(void *device, void **address, size_t bytes);   /* 64-byte aligned at least; bytes > 0 */
    void (*free)(void *device, void *address, size_t bytes);
    ctrt_status (*copy)(void *device, void *queue, void *to, const void *from, size_t bytes, int kind);
    ctrt_status (*fill)(void *device, void *queue, void *address, int byte, size_t bytes);
    /* Optional: host memory that this device copies fast; peers; sharing. */
    ctrt_status (*host_alloc)(void *device, void **address, size_t bytes);
    void (*host_free)(void *device, void *address, size_t bytes);
    bool (*can_access_peer)(void *device, void *peer);
    ctrt_status (*copy_peer)(void *to_device, void *to, void *from_device, const void *from, size_t bytes, void *queue);
    ctrt_status (*export_memory)(void *device, void *address, size_t bytes, int *fd);
    ctrt_status (*import_memory)(void *device, void **address, size_t bytes, int fd);
    /* Optional, all five or none: addresses without memory, and memory for parts of them. page_bytes: the unit of
     * offsets and sizes. Mapped memory is like alloc's. */
    size_t page_bytes;
    ctrt_status (*reserve)(void *device, void **address, size_t bytes);
    void (*unreserve)(void *device, void *address, size_t bytes);
    ctrt_status (*map)(void *device, void *address, size_t bytes);      /* CTRT_ERR_OUT_OF_MEMORY: nothing is mapped */
    void (*unmap)(void *device, void *address, size_t bytes);
    /* Optional, all four or none: memory in the order of a queue. ordered: does this device serve that? Asked when its memory is set up;
     * if so these stand for alloc and free. alloc_on: work that is put on `queue` from now on may use the memory, and other work once it is
     * behind that; on a queue that is being captured, any work may. free_on: the memory goes when all work is done that is on `queue` now; the
     * caller has put waits there for the work of others. trim: what the device keeps of freed memory goes back, that of frees still to come too. */
    bool (*ordered)(void *device);
    ctrt_status (*alloc_on)(void *device, void **address, size_t bytes, void *queue);
    void (*free_on)(void *device, void *address, size_t bytes, void *queue);
    void (*trim)(void *device);
} ctrt_memory_table;

/* Queues of work, which runs in the order in which it was put there; queues run side by side. Work that fails (found out later)
 * ends its queue's work: what follows on that queue is dropped, and synchronize, query and error give the status with a message
 * that names the work, until reset. Records of events and waits for them still take place, in order. Other queues go on. An event stands for all work that was on the queue when it was recorded;
 * recording it anew moves it, and waits made before keep to what they saw. wait_event may be followed by event_destroy at once. */
typedef struct ctrt_queue_table {       /* optional: absent means that every slot works at once and in order */
    size_t size;
    ctrt_status (*create)(void *device, void **queue, int32_t priority);
    void (*destroy)(void *device, void *queue);
    ctrt_status (*synchronize)(void *device, void *queue);              /* queue NULL: the whole device */
    ctrt_status (*query)(void *device, void *queue, bool *idle);
    ctrt_status (*wait_event)(void *device, void *queue, void *event);
    ctrt_status (*host_call)(void *device, void *queue, void (*function)(void *), void *argument);
    ctrt_status (*event_create)(void *device, void **event, bool timing);
    void (*event_destroy)(void *device, void *event);
    ctrt_status (*event_record)(void *device, void *event, void *queue);
    ctrt_status (*event_query)(void *device, void *event, bool *done);
    ctrt_status (*event_synchronize)(void *device, void *event);
    ctrt_status (*event_elapsed)(void *device, void *from, void *to, double *milliseconds);
    /* Optional: the failure of a queue, if any is known by now; *sequence: ctrt_call.sequence of the op that failed, 0
     * for other work. And back to work after a failure: CTRT_ERR_DEVICE_LOST when the device itself is gone. */
    ctrt_status (*error)(void *device, void *queue, uint64_t *sequence);
    ctrt_status (*reset)(void *device, void *queue);
} ctrt_queue_table;

typedef struct ctrt_kernel_table {      /* optional: without it every op falls back */
    size_t size;
    const ctrt_kernel *rows;
    size_t count;
    size_t stride;                      /* sizeof(ctrt_kernel) as the plugin was built */
    /* Optional, before the first kernel runs: libraries are loaded, CPU versions chosen. */
    ctrt_status (*prepare)(void *device);
} ctrt_kernel_table;

/* Tables come in files of their own as they are specified; the pointers keep their places. */
typedef struct ctrt_comm_table { size_t size; } ctrt_comm_table;
/* Work of queues, recorded as a graph that can be put on a queue again and again. Between begin and end nothing that is put on `queue`
 * runs; queues that wait for an event of it meanwhile join, and are waited for before end. Memory may be allocated meanwhile. */
typedef struct ctrt_capture_table {     /* all slots or none */
    size_t size;
    ctrt_status (*begin)(void *device, void *queue);
    ctrt_status (*end)(void *device, void *queue, void **graph);        /* also after a failure: then there is no graph */
    ctrt_status (*replay)(void *device, void *graph, void *queue);
    void (*destroy)(void *device, void *graph);
} ctrt_capture_table;

typedef struct ctrt_backend {
    size_t size;
    const ctrt_device_table *device;
    const ctrt_memory_table *memory;
    const ctrt_queue_table *queue;
    const ctrt_kernel_table *kernels;
    const ctrt_comm_table *comm;
    const ctrt_capture_table *capture;
    const char *default_memory;         /* policy for this backend's devices when CTRT_MEMORY names none; NULL: direct */
    /* Optional: this backend's devices are those of another backend under another name: device i is base:i, with its memory, streams and
     * allocator. `kernels` then lies over the base's rows; the other tables are not looked at and may be NULL. */
    const char *base;
    uint32_t float_default;             /* ctrt_dtype of new tensors that are to have the default dtype; 0: the process's */
    /* ctrt_dtype in which matrices and convolutions of f32 are multiplied (sums are f32's); 0: f32. For those who compare results. */
    uint32_t matrix_dtype;
} ctrt_backend;

/* Rows laid over another backend's (component kind `kernels`; the component's name is the backend's). */
typedef struct ctrt_kernels {
    size_t size;
    const ctrt_kernel_table *kernels;
} ctrt_kernels;

/* ---- memory policies --------------------------------------------------------------------------------------------------- */

enum {                                  /* ctrt_memory_source.flags */
    CTRT_SOURCE_ORDERED = 1             /* free gives back in the order of its queue, so that nobody has to wait for work on that */
};

/* Where a policy draws memory from: the backend, or the policy beneath it in a stack. */
typedef struct ctrt_memory_source {
    size_t size;
    void *state;
    ctrt_status (*alloc)(void *state, void **address, size_t bytes, void *queue);
    void (*free)(void *state, void *address, size_t bytes, void *queue);
    const char *device_name;            /* "cpu", "cuda:1" */
    uint32_t device_flags;              /* CTRT_DEVICE_* */
    uint32_t flags;                     /* CTRT_SOURCE_* */
    uint64_t total_bytes;               /* of the device; 0: unknown, or, from some time on in a plan, no limit */
    /* A fence stands for work on one or several queues; it is done when all of that is. NULL is a
     * fence that is done. The slots are there on every device; without queues every fence is NULL. */
    ctrt_status (*fence_new)(void *state, void **fence, void *queue);   /* all work that is on `queue` now */
    /* Work put on `queue` from now on waits; queue NULL: the caller waits. The fence stays the caller's. */
    ctrt_status (*fence_wait)(void *state, void *fence, void *queue);
    bool (*fence_done)(void *state, void *fence);
    void *(*fence_join)(void *state, void *a, void *b);                 /* takes both over; never fails: it waits if it must */
    void (*fence_free)(void *state, void *fence);
    /* Copies on `queue`, for policies that move memory; host memory is pinned where the device has such. */
    ctrt_status (*copy)(void *state, void *to, const void *from, size_t bytes, int kind, void *queue);
    ctrt_status (*host_alloc)(void *state, void **address, size_t bytes);
    void (*host_free)(void *state, void *address, size_t bytes);
    /* As in ctrt_memory_table; NULL and 0 where the backend, or the policy beneath, has no pages. */
    size_t page_bytes;
    ctrt_status (*reserve)(void *state, void **address, size_t bytes);
    void (*unreserve)(void *state, void *address, size_t bytes);
    ctrt_status (*map)(void *state, void *address, size_t bytes);
    void (*unmap)(void *state, void *address, size_t bytes);
    /* How did the work that a fence stands for end? *done: has it? Then CTRT_OK, or the failure for which a queue dropped it or what comes
     * before it; that stays true when the queue is reset. Does not wait. */
    ctrt_status (*fence_status)(void *state, void *fence, bool *done);
    /* As alloc, but for what is not needed yet: neither is cached memory given back for it nor does anything move. */
    ctrt_status (*alloc_spare)(void *state, void **address, size_t bytes, void *queue);
} ctrt_memory_source;

/* What a policy hands out. `bytes` is what the request costs (not less than asked for) and is what accounting counts; the
 * caller uses no more than it asked for. `cookie` belongs to the policy. */
typedef struct ctrt_block {
    void *address;
    size_t bytes;
    void *cookie;
    /* For policies with CTRT_MEMORY_FENCES. In free: work of other queues that still uses the block; it becomes the
     * policy's, and the memory must not be used before it is done. Out of alloc: what the first user has to wait for; it
     * becomes the caller's. NULL: nothing. */
    void *fence;
} ctrt_block;

/* One figure of a policy, as PyTorch's memory_stats has them: now, at most, and summed up over time. */
typedef struct ctrt_memory_stat {
    int64_t current, peak, allocated, freed;
} ctrt_memory_stat;

enum { CTRT_POOL_ALL, CTRT_POOL_LARGE, CTRT_POOL_SMALL, CTRT_POOLS };   /* large: blocks above 1 MiB */

typedef struct ctrt_memory_stats {
    size_t size;
    uint64_t reserved_bytes;            /* drawn from the source and not given back */
    uint64_t cached_bytes;              /* of those, free for reuse */
    uint64_t source_allocs, source_frees;
    /* Blocks that were handed out are counted by the core; these are the policy's to know. */
    ctrt_memory_stat segment[CTRT_POOLS], reserved[CTRT_POOLS];                 /* count, bytes */
    ctrt_memory_stat inactive_split[CTRT_POOLS], inactive_split_bytes[CTRT_POOLS];  /* free, beside used ones in its segment */
    ctrt_memory_stat oversize_segment;  /* from max_split on */
    uint64_t max_split;                 /* bytes; 0: no limit */
    uint64_t retries;                   /* times that the source failed and the cache was given back to try again */
    uint64_t largest_free;              /* bytes of the largest free block */
    ctrt_memory_stat spilled, spilled_bytes;    /* blocks whose bytes are on the host instead; allocated: went there, freed: came back, or are gone */
} ctrt_memory_stats;

/* What `walk` reports: each segment, followed by its blocks in order of addresses. */
enum { CTRT_BLOCK_INACTIVE, CTRT_BLOCK_ACTIVE, CTRT_BLOCK_AWAITING };   /* free; handed out; free, once its fence is done */
typedef struct ctrt_memory_piece {
    size_t size;
    bool segment;                       /* a segment; else a block of the last segment */
    bool large;                         /* of the large pool */
    bool expandable;                    /* a segment that grows by pages */
    uint8_t block_state;                /* CTRT_BLOCK_*; of blocks */
    void *address;
    size_t bytes;
    void *queue;                        /* of a segment: the queue that it serves */
    void *name;                         /* of a block of memory that moves: its name, while it is at `address` */
} ctrt_memory_piece;

enum {                                  /* ctrt_memory_policy.flags */
    CTRT_MEMORY_FENCES = 1,             /* takes and gives fences in ctrt_block; else the core waits before free */
    CTRT_MEMORY_MOVES = 2               /* blocks can move: `use` says where one is */
};

/* A memory policy (component kind `memory`). One instance per device. */
typedef struct ctrt_memory_policy {
    size_t size;                        /* required slots: create, destroy, alloc, free */
    /* `options`: what followed the name in CTRT_MEMORY ("max_split=64m,gc=0.8"), or "". `source` outlives the policy. */
    ctrt_status (*create)(void **policy, const ctrt_memory_source *source, const char *options);
    void (*destroy)(void *policy);
    ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue);
    void (*free)(void *policy, const ctrt_block *block, void *queue);
    uint32_t flags;                     /* CTRT_MEMORY_* */
    uint32_t reserved;
    /* Optional: gives back what is cached; figures. */
    void (*trim)(void *policy);
    void (*stats)(void *policy, ctrt_memory_stats *stats);
    /* Optional: all segments and blocks, with the policy's locks held; `visit` must not call the policy. */
    void (*walk)(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument);
    /* With CTRT_MEMORY_MOVES, required: before work is put on `queue` that uses the block: brings it back if need be, keeps it
     * where it is until unuse, and says where that is. Calls nest. `block` is as alloc gave it; its address is the name of the
     * block and stays valid as such while the block lives, wherever the bytes are. */
    ctrt_status (*use)(void *policy, const ctrt_block *block, void *queue, void **address);
    void (*unuse)(void *policy, const ctrt_block *block, void *queue);
    /* Optional: a second instance in the same state over another source, whose blocks are no memory: for predicting. Cookies of
     * blocks that live are those of the original's. */
    ctrt_status (*clone)(void *policy, void **copy, const ctrt_memory_source *source);
    /* Optional: as alloc, but without giving anything back to the source for it; else alloc must not do that either. */
    ctrt_status (*alloc_spare)(void *policy, ctrt_block *block, size_t bytes, void *queue);
    /* Optional: sets all peaks of `stats` to the current values. */
    void (*reset_peaks)(void *policy);
} ctrt_memory_policy;

/* ---- the plugin itself --------------------------------------------------------------------------------------------------- */

typedef enum ctrt_component_kind {
    CTRT_COMPONENT_BACKEND = 1,         /* table: ctrt_backend */
    CTRT_COMPONENT_KERNELS = 2,         /* table: ctrt_kernels */
    CTRT_COMPONENT_MEMORY = 3,          /* table: ctrt_memory_policy */
    CTRT_COMPONENT_COMM = 4,
    CTRT_COMPONENT_STRATEGY = 5,
    CTRT_COMPONENT_HOOK = 6,
    CTRT_COMPONENT_KIND_MAX_ = 0x7fffffff
} ctrt_component_kind;

#define CTRT_PROBE_AGAIN (-0x7fffffff - 1)

typedef struct ctrt_component {
    size_t size;
    ctrt_component_kind kind;
    int32_t score;                      /* of two components with one name the larger score wins */
    const char *name;                   /* "cpu": letters, digits, '-'; begins with a letter */
    const void *table;                  /* begins with size_t size */
    /* Optional. Can it work here? Above 0: yes, and how well; else no. Writes one line of reason ("" allowed on yes).
     * CTRT_PROBE_AGAIN: not known, for a shortage of the moment; the next use asks again.
     * Must be cheap, open no context and survive a fork. */
    int32_t (*probe)(char *reason, size_t reason_bytes);
} ctrt_component;

typedef struct ctrt_plugin {
    size_t size;
    uint32_t abi_major, abi_minor;      /* CTRT_PLUGIN_ABI_MAJOR, _MINOR of the header it was built with */
    const char *name;                   /* "backend-cpu" */
    const char *version;
    const char *description;
    const ctrt_component *components;
    size_t component_count;
    size_t component_stride;            /* sizeof(ctrt_component) as the plugin was built */
    /* Optional: keeps the host table; declares parameters. Called also when parameters are listed, even if probe said no: it must not
     * need the device, and a failure then has no effect. Called before any slot but probe, once, or again after it returned
     * CTRT_ERR_OUT_OF_MEMORY or CTRT_ERR_IO, which mean a shortage of the moment (descriptors, memory, input). No
     * lock is held that functions of the host take, so init may start threads that use the host, and wait for them; a
     * backend's may also fork. host->backend returns NULL for a plugin whose init waits for this one. */
    ctrt_status (*init)(const ctrt_host *host);
} ctrt_plugin;

/* The one symbol of a plugin. Pure: constant data, no side effects. May look at the host's ABI numbers. */
typedef const ctrt_plugin *(*ctrt_plugin_entry)(uint32_t host_abi_major, uint32_t host_abi_minor);
CTRT_API const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor);

CTRT_END_DECLS

#endif
