/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/dnn.c: a fake libcudnn.so.9: convolutions as described in cuDNN's reference, with the same checks of
 * arguments.
 *
 * For each pass, the first algorithm listed requires a workspace and is deterministic; the next one requires none. For
 * gradients, a non-deterministic algorithm is listed before both. SOFTCUDA_DNN="create=no" makes cudnnCreate fail,
 * "bias=no" makes the convolution with bias unsupported, "late=N" makes algorithm N slow, "workspace=N" sets the
 * required workspace in MiB. */
#include <stdatomic.h>

#include "library.h"

#define MAGIC(kind) (0xd22a0000u | (kind))
enum { HANDLE = MAGIC(1), TENSOR = MAGIC(2), FILTER = MAGIC(3), CONV = MAGIC(4), ACTIVATION = MAGIC(5) };
enum { OK = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, BAD_NULL = 2002, BAD_SHAPE = 2008, NOT_SUPPORTED = 3000,
       INTERNAL_ERROR = 4000, EXECUTION_FAILED = 5000 };
enum { MATH_DEFAULT = 0, MATH_TENSOR = 1, MATH_PLAIN = 3 };

struct handle { unsigned magic; void *stream; };
struct tensor { unsigned magic; int format, type, sides[4]; };     /* or a filter */
struct conv { unsigned magic; int padding[2], stride[2], dilation[2], mode, type, groups, math; };
struct activation { unsigned magic; int mode; };

struct choice {                             /* cudnnConvolution*AlgoPerf_t */
    int algorithm, status;
    float time;
    size_t workspace;
    int deterministic, math, reserved[3];
};

enum pass { DNN_FORWARD, DNN_INPUT, DNN_WEIGHT };

/* x[n,c,h,w], w[o,c/groups,kh,kw], y[n,o,oh,ow]; `pass` determines which one is written. */
struct job {
    enum pass pass;
    int type;                               /* cudnnDataType_t */
    bool last;                              /* channels-last */
    bool tf32, varies, late;                /* varies: the order of summation changes with each run */
    int x[4], w[4], y[4];
    int groups, stride[2], padding[2], dilation[2];
    address x_at, w_at, y_at, bias_at, workspace_at;
    size_t workspace_bytes;
    double alpha, beta;
};

#define IS(pointer, kind) ((pointer) != NULL && (pointer)->magic == (unsigned)(kind))

static long option(const char *name)
{
    return library_option("SOFTCUDA_DNN", name);
}

/* ---- objects ---- */

/* cudnnCreate and cudnnDestroy may wait for all work of the context, which CUDA does not allow while one of its streams
 * is being captured. */
static bool waits_for_context(void)
{
    void *context = NULL;
    return cuCtxGetCurrent(&context) == 0 && context != NULL && cuCtxSynchronize() == 0;
}

/* Unless `refused`, creates an object. */
#define OBJECT(create, destroy, type, kind, refused)                               \
    EXPORT int create(struct type **out)                                           \
    {                                                                              \
        ENTER(create);                                                             \
        RETURN_IF(out == NULL, BAD_NULL);                                          \
        RETURN_IF(refused, NOT_INITIALIZED);                                       \
        struct type *made = allocated(calloc(1, sizeof *made));                    \
        made->magic = (unsigned)(kind);                                            \
        *out = made;                                                               \
        return OK;                                                                 \
    }                                                                              \
    EXPORT int destroy(struct type *object)                                        \
    {                                                                              \
        ENTER(destroy);                                                            \
        RETURN_IF(!IS(object, kind), BAD_PARAM);                                   \
        object->magic = 0;                                                         \
        free(object);                                                              \
        return OK;                                                                 \
    }
OBJECT(cudnnCreate, cudnnDestroy, handle, HANDLE, option("create") == 0 || !waits_for_context())
OBJECT(cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor, tensor, TENSOR, false)
OBJECT(cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor, tensor, FILTER, false)
OBJECT(cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor, conv, CONV, false)
OBJECT(cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor, activation, ACTIVATION, false)

EXPORT size_t cudnnGetVersion(void)
{
    return 91900;
}

EXPORT const char *cudnnGetErrorString(int status)
{
    return status == OK ? "CUDNN_STATUS_SUCCESS" : "an error of softcuda's cuDNN";
}

EXPORT int cudnnSetStream(struct handle *handle, void *stream)
{
    ENTER(cudnnSetStream);
    RETURN_IF(!IS(handle, HANDLE), NOT_INITIALIZED);
    handle->stream = stream;
    return OK;
}

static int set_sides(struct tensor *tensor, struct tensor made)
{
    int64_t all = 1;
    for (int i = 0; i < 4; i++) {
        all *= made.sides[i];
        RETURN_IF(made.sides[i] < 1 || all > INT32_MAX, BAD_PARAM);
    }
    RETURN_IF(!IS(tensor, made.magic) || (made.format != 0 && made.format != 1), BAD_PARAM);
    RETURN_IF(made.type != 0 && made.type != 1 && made.type != 2 && made.type != 9, BAD_PARAM);
    *tensor = made;
    return OK;
}

EXPORT int cudnnSetTensor4dDescriptor(struct tensor *tensor, int format, int type, int n, int c, int h, int w)
{
    ENTER(cudnnSetTensor4dDescriptor);
    return set_sides(tensor, (struct tensor){ TENSOR, format, type, { n, c, h, w } });
}

EXPORT int cudnnSetFilter4dDescriptor(struct tensor *filter, int type, int format, int o, int c, int h, int w)
{
    ENTER(cudnnSetFilter4dDescriptor);
    return set_sides(filter, (struct tensor){ FILTER, format, type, { o, c, h, w } });
}

EXPORT int cudnnSetConvolution2dDescriptor(struct conv *conv, int pad_h, int pad_w, int stride_h, int stride_w,
                                           int dilation_h, int dilation_w, int mode, int type)
{
    ENTER(cudnnSetConvolution2dDescriptor);
    RETURN_IF(!IS(conv, CONV) || pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1
              || dilation_w < 1 || (mode != 0 && mode != 1), BAD_PARAM);
    *conv = (struct conv){ CONV, { pad_h, pad_w }, { stride_h, stride_w }, { dilation_h, dilation_w }, mode, type, 1,
                           MATH_DEFAULT };
    return OK;
}

EXPORT int cudnnSetConvolutionGroupCount(struct conv *conv, int groups)
{
    ENTER(cudnnSetConvolutionGroupCount);
    RETURN_IF(!IS(conv, CONV) || groups < 1, BAD_PARAM);
    conv->groups = groups;
    return OK;
}

EXPORT int cudnnSetConvolutionMathType(struct conv *conv, int math)
{
    ENTER(cudnnSetConvolutionMathType);
    RETURN_IF(!IS(conv, CONV) || math < 0 || math > MATH_PLAIN, BAD_PARAM);
    conv->math = math;
    return OK;
}

EXPORT int cudnnSetActivationDescriptor(struct activation *activation, int mode, int nan, double limit)
{
    ENTER(cudnnSetActivationDescriptor);
    (void)nan, (void)limit;
    RETURN_IF(!IS(activation, ACTIVATION), BAD_PARAM);
    activation->mode = mode;
    return OK;
}

/* ---- convolutions by plain loops, in stream order ---- */

/* Every combination of an input pixel, a weight and an output pixel is visited once, and the product is added to the
 * tensor that the pass computes. */

static size_t count_of(const int sides[4])
{
    return (size_t)sides[0] * (size_t)sides[1] * (size_t)sides[2] * (size_t)sides[3];
}

/* The distances between neighbours in each dim of a tensor with these sides. */
struct steps { size_t n, c, h, w; };
static struct steps steps_of(const struct job *j, const int s[4])
{
    const size_t c = (size_t)s[1], h = (size_t)s[2], w = (size_t)s[3];
    return j->last ? (struct steps){ h * w * c, 1, w * c, c } : (struct steps){ c * h * w, h * w, w, 1 };
}

static void add(const struct job *j, double *sum, double product)
{
    *sum = j->type == TYPE_F64 ? *sum + product : (double)((float)*sum + (float)product);
}

/* Adds all products that belong to one output pixel. */
static void pixel(const struct job *j, double *x, double *w, double *y, int n, int o, int oh, int ow)
{
    const struct steps in_by = steps_of(j, j->x), weight_by = steps_of(j, j->w), out_by = steps_of(j, j->y);
    const int channel = o / (j->y[1] / j->groups) * j->w[1];        /* the first of the group */
    double *const out = y + (size_t)n * out_by.n + (size_t)o * out_by.c + (size_t)oh * out_by.h + (size_t)ow * out_by.w;
    double sum = *out;                              /* of the forward pass */
    for (int c = 0; c < j->w[1]; c++)
        for (int kh = 0; kh < j->w[2]; kh++) {
            const int64_t h = (int64_t)oh * j->stride[0] - j->padding[0] + (int64_t)kh * j->dilation[0];
            if (h < 0 || h >= j->x[2])
                continue;
            double *const row = x + (size_t)n * in_by.n + (size_t)(channel + c) * in_by.c + (size_t)h * in_by.h,
                          *weight = w + (size_t)o * weight_by.n + (size_t)c * weight_by.c + (size_t)kh * weight_by.h;
            int64_t v = (int64_t)ow * j->stride[1] - j->padding[1];
            for (int kw = 0; kw < j->w[3]; kw++, v += j->dilation[1], weight += weight_by.w) {
                if (v < 0 || v >= j->x[3])
                    continue;
                double *const in = row + (size_t)v * in_by.w;
                if (j->pass == DNN_FORWARD)
                    add(j, &sum, *in * *weight);
                else if (j->pass == DNN_INPUT)
                    add(j, in, *out * *weight);
                else
                    add(j, weight, *out * *in);
            }
        }
    if (j->pass == DNN_FORWARD)
        *out = sum;
}

static void all_pixels(const struct job *j, double *x, double *w, double *y)
{
    static atomic_uint turn;
    const bool backwards = j->varies && (atomic_fetch_add(&turn, 1) & 1u);
    const int count = (int)count_of(j->y), image = j->y[2] * j->y[3];
    for (int i = 0; i < count; i++) {
        const int at = backwards ? count - 1 - i : i, plane = at / image;
        pixel(j, x, w, y, plane / j->y[1], plane % j->y[1], at % image / j->y[3], at % j->y[3]);
    }
}

/* `work` is zero and has space for x, w, y, the former values of the result, and the bias. */
static result compute(const struct job *j, double *work)
{
    const int *const sides[3] = { j->x, j->w, j->y };
    const address at[3] = { j->x_at, j->w_at, j->y_at };
    const int written = j->pass == DNN_INPUT ? 0 : j->pass == DNN_WEIGHT ? 1 : 2;
    const size_t n = count_of(sides[written]), channels = (size_t)j->y[1], image = (size_t)j->y[2] * (size_t)j->y[3];
    double *values[3], *before, *bias;
    TRY(library_workspace(j->workspace_at, j->workspace_bytes, j->late));
    for (int i = 0; i < 3; i++, work += count_of(sides[i - 1])) {
        values[i] = work;
        if (i != written)
            TRY(library_read(values[i], at[i], j->type, count_of(sides[i]), j->tf32));
    }
    before = work, bias = work + n;
    if (j->beta != 0)
        TRY(library_read(before, at[written], j->type, n, false));
    if (j->bias_at != 0)
        TRY(library_read(bias, j->bias_at, j->type, channels, false));
    all_pixels(j, values[0], values[1], values[2]);
    for (size_t i = 0; i < n; i++) {
        values[written][i] *= j->alpha;
        if (j->beta != 0)
            values[written][i] += j->beta * before[i];
        if (j->bias_at != 0)
            values[written][i] += bias[j->last ? i % channels : i / image % channels];
    }
    return library_write(values[written], at[written], j->type, n);
}

static result run(void *argument)
{
    const struct job *j = argument;
    const size_t all = count_of(j->x) + count_of(j->w) + count_of(j->y), most = all + (size_t)j->y[1] + 1;
    double *work = allocated(calloc(all + most, sizeof *work));
    const result made = compute(j, work);
    free(work);
    return made;
}

/* ---- description of a convolution ---- */

static int describe(struct job *job, enum pass pass, const struct tensor *x, const struct tensor *w,
                    const struct conv *conv, const struct tensor *y)
{
    RETURN_IF(!IS(x, TENSOR) || !IS(w, FILTER) || !IS(y, TENSOR) || !IS(conv, CONV), BAD_PARAM);
    RETURN_IF(x->type != y->type || x->type != w->type || x->format != y->format || x->format != w->format
              || conv->mode != 1, NOT_SUPPORTED);
    RETURN_IF(conv->type != (x->type == 1 ? 1 : 0), NOT_SUPPORTED);
    *job = (struct job){ .pass = pass, .type = x->type, .last = x->format == 1, .groups = conv->groups,
                             .tf32 = x->type == 0 && conv->math != MATH_PLAIN };
    RETURN_IF(x->sides[1] != w->sides[1] * conv->groups || w->sides[0] % conv->groups != 0 || y->sides[0] != x->sides[0]
              || y->sides[1] != w->sides[0], BAD_SHAPE);
    for (int i = 0; i < 2; i++) {
        const int64_t positions = (int64_t)x->sides[2 + i] + 2 * (int64_t)conv->padding[i]
                             - ((int64_t)conv->dilation[i] * (w->sides[2 + i] - 1) + 1);
        RETURN_IF(positions < 0 || y->sides[2 + i] != positions / conv->stride[i] + 1, BAD_SHAPE);
        job->stride[i] = conv->stride[i];
        job->padding[i] = conv->padding[i];
        job->dilation[i] = conv->dilation[i];
    }
    memcpy(job->x, x->sides, sizeof job->x);
    memcpy(job->w, w->sides, sizeof job->w);
    memcpy(job->y, y->sides, sizeof job->y);
    return OK;
}

/* Algorithm 0 of gradients is the non-deterministic one; algorithm 0 of the forward pass needs no workspace. Algorithm
 * 1 needs a workspace, 5 needs none. */
static size_t workspace_of(int algorithm)
{
    const long mib = option("workspace");
    return algorithm == 1 ? (size_t)(mib > 0 ? mib : 1) << 20 : 0;
}

static bool algorithm_is(enum pass pass, int algorithm)
{
    return algorithm == 0 || algorithm == 1 || (algorithm == 5 && pass != DNN_FORWARD);
}

static int choose(struct handle *handle, enum pass pass, const struct tensor *x, const struct tensor *w,
                  const struct conv *conv, const struct tensor *y, int limit, int *found, struct choice *choices)
{
    static const int orders[2][3] = { { 1, 0, -1 }, { 0, 1, 5 } };
    struct job job;
    RETURN_IF(!IS(handle, HANDLE), NOT_INITIALIZED);
    RETURN_IF(limit < 1 || found == NULL || choices == NULL, BAD_PARAM);
    const int status = describe(&job, pass, x, w, conv, y);
    *found = 0;
    for (int i = 0; i < 3 && status == OK && *found < limit; i++) {
        const int algorithm = orders[pass != DNN_FORWARD][i];
        if (algorithm >= 0)
            choices[(*found)++] = (struct choice){ .algorithm = algorithm, .time = -1,
                                                   .workspace = workspace_of(algorithm),
                                                   .deterministic = algorithm != 0 || pass == DNN_FORWARD,
                                                   .math = conv->math };
    }
    return status;
}

/* ---- execution ---- */

static double scale_of(int type, const void *at)
{
    return element_load(type == TYPE_F64 ? TYPE_F64 : TYPE_F32, at);
}

static int put(struct handle *handle, struct job *job, const void *alpha, const void *beta, const void *x,
               const void *w, const void *y, int algorithm, void *workspace, size_t bytes)
{
    const size_t needed = workspace_of(algorithm);
    RETURN_IF(!IS(handle, HANDLE), NOT_INITIALIZED);
    RETURN_IF(alpha == NULL || beta == NULL || x == NULL || w == NULL || y == NULL, BAD_NULL);
    RETURN_IF(!algorithm_is(job->pass, algorithm) || bytes < needed || (needed > 0 && workspace == NULL), BAD_PARAM);
    job->x_at = (uintptr_t)x, job->w_at = (uintptr_t)w, job->y_at = (uintptr_t)y;
    /* as cuDNN, whose kernels load vectors of 16 bytes */
    RETURN_IF((job->x_at | job->w_at | job->y_at) % 16 != 0, EXECUTION_FAILED);
    job->alpha = scale_of(job->type, alpha);
    job->beta = scale_of(job->type, beta);
    job->workspace_at = (uintptr_t)workspace;
    job->workspace_bytes = needed;
    job->varies = algorithm == 0 && job->pass != DNN_FORWARD;
    job->late = option("late") == algorithm;
    return softcuda_enqueue(handle->stream, run, NULL, job, sizeof *job) == 0 ? OK : EXECUTION_FAILED;
}

/* The functions of a pass that choose an algorithm and that run it. `first`, `second` and `result` are x, w and y in
 * the order of their parameters. */
#define PASS(pass, choosing, running, first, second, result)                                                          \
    EXPORT int choosing(struct handle *handle, struct tensor *first, struct tensor *second, struct conv *conv,         \
                        struct tensor *result, int limit, int *found, struct choice *choices)                          \
    {                                                                                                                  \
        ENTER(choosing);                                                                                               \
        return choose(handle, pass, x, w, conv, y, limit, found, choices);                                             \
    }                                                                                                                  \
    EXPORT int running(struct handle *handle, const void *alpha, struct tensor *first##_is, const void *first,         \
                       struct tensor *second##_is, const void *second, struct conv *conv, int algorithm,               \
                       void *workspace, size_t bytes, const void *beta, struct tensor *result##_is, void *result)      \
    {                                                                                                                  \
        struct job job;                                                                                                \
        ENTER(running);                                                                                                \
        TRY(describe(&job, pass, x_is, w_is, conv, y_is));                                                             \
        return put(handle, &job, alpha, beta, x, w, y, algorithm, workspace, bytes);                                   \
    }
PASS(DNN_FORWARD, cudnnGetConvolutionForwardAlgorithm_v7, cudnnConvolutionForward, x, w, y)
PASS(DNN_INPUT, cudnnGetConvolutionBackwardDataAlgorithm_v7, cudnnConvolutionBackwardData, w, y, x)
PASS(DNN_WEIGHT, cudnnGetConvolutionBackwardFilterAlgorithm_v7, cudnnConvolutionBackwardFilter, x, y, w)

EXPORT int cudnnConvolutionBiasActivationForward(struct handle *handle, const void *alpha, struct tensor *x_is,
                                                 const void *x, struct tensor *w_is, const void *w, struct conv *conv,
                                                 int algorithm, void *workspace, size_t bytes, const void *alpha2,
                                                 struct tensor *z_is, const void *z, struct tensor *bias_is,
                                                 const void *bias, struct activation *activation, struct tensor *y_is,
                                                 void *y)
{
    struct job job;
    ENTER(cudnnConvolutionBiasActivationForward);
    TRY(describe(&job, DNN_FORWARD, x_is, w_is, conv, y_is));
    RETURN_IF(!IS(z_is, TENSOR) || !IS(bias_is, TENSOR) || !IS(activation, ACTIVATION) || bias == NULL || z == NULL
              || alpha2 == NULL, BAD_PARAM);
    /* Without an activation, only the precomputed algorithm is supported. */
    RETURN_IF(activation->mode != 5 || algorithm != 1 || option("bias") == 0 || scale_of(job.type, alpha2) != 0,
              NOT_SUPPORTED);
    const int *const sides = bias_is->sides;
    RETURN_IF(sides[0] != 1 || sides[1] != w_is->sides[0] || sides[2] != 1 || sides[3] != 1
              || bias_is->type != x_is->type, BAD_SHAPE);
    job.bias_at = (uintptr_t)bias;
    return put(handle, &job, alpha, alpha2, x, w, y, algorithm, workspace, bytes);
}
