/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/onednn_conv.c: convolutions by oneDNN.
 *
 * oneDNN's fast kernels require channels-last or blocked images. Channels-last tensors are used as they are. For
 * contiguous tensors, the primitive chooses its layout and the data is reordered, which costs less than its kernels for
 * plain layouts (except 1x1 kernels, where plain layouts are as fast). Weights always use the primitive's layout,
 * because they are small.
 *
 * oneDNN has no bf16 kernels for the gradient of weights with fewer than 16 channels, and then multiplies matrices that
 * it copies from the images, which takes six times as long as its f32 kernels. In that case the operands are converted
 * to f32. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef HAVE_ONEDNN

#include <string.h>

#include "onednn.h"

#include "onednn_api.h"
#include "openmp.h"

struct shapes {
    int weight_dims;                    /* 4, or 5 with groups */
    int64_t x[4], y[4], weight[5], bias[1];
    int64_t x_strides[4], y_strides[4], weight_strides[5], bias_strides[1];
};

static void image_strides(int64_t *strides, const int64_t *dims, bool channels_last)
{
    const int64_t c = dims[1], h = dims[2], w = dims[3];
    const int64_t last[4] = { h * w * c, 1, w * c, c }, plain[4] = { c * h * w, h * w, w, 1 };
    memcpy(strides, channels_last ? last : plain, sizeof last);
}

static struct shapes shapes_of(const struct cpu_conv *v)
{
    struct shapes s = {
        .x = { v->n, v->c, v->h, v->w }, .y = { v->n, v->o, v->oh, v->ow }, .bias = { v->o }, .bias_strides = { 1 },
    };
    image_strides(s.x_strides, s.x, v->channels_last);
    image_strides(s.y_strides, s.y, v->channels_last);
    const int64_t weight[4] = { v->o, v->c / v->groups, v->kh, v->kw };
    int64_t strides[4];
    image_strides(strides, weight, v->channels_last);
    if (v->groups == 1) {
        s.weight_dims = 4;
        memcpy(s.weight, weight, sizeof weight);
        memcpy(s.weight_strides, strides, sizeof strides);
    } else {
        s.weight_dims = 5;
        s.weight[0] = v->groups;
        s.weight[1] = v->o / v->groups;
        memcpy(s.weight + 2, weight + 1, 3 * sizeof(int64_t));
        s.weight_strides[0] = s.weight[1] * strides[0];
        memcpy(s.weight_strides + 1, strides, sizeof strides);
    }
    return s;
}

/* The order of operands in all passes. */
enum { X, WEIGHT, Y, BIAS };

static dnnl_status_t describe_conv(dnnl_primitive_desc_t *pd, const struct cpu_conv *v, const onednn_desc_ref *d,
                                   dnnl_primitive_attr_t attr)
{
    const struct onednn *l = cpu_onednn();
    const dnnl_dims_t strides = { v->stride[0], v->stride[1] },
                      dilates = { v->dilation[0] - 1, v->dilation[1] - 1 };
    const dnnl_dims_t before = { v->padding[0], v->padding[1] };
    /* Input elements that no window covers at the end of a dimension are ignored. The padding passed to oneDNN is
     * computed from the output shape and may be negative, so that the shapes are consistent. */
    const dnnl_dims_t after = {
        (v->oh - 1) * v->stride[0] + (v->kh - 1) * v->dilation[0] + 1 - v->h - v->padding[0],
        (v->ow - 1) * v->stride[1] + (v->kw - 1) * v->dilation[1] + 1 - v->w - v->padding[1]
    };
#if CTRT_ONEDNN_MAJOR == 2
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = l->dnnl_dilated_convolution_forward_desc_init(
        &desc, dnnl_forward_training, dnnl_convolution_direct, d[X], d[WEIGHT], d[BIAS], d[Y], strides, dilates, before,
        after);
    if (status == dnnl_success)
        status = l->dnnl_primitive_desc_create(v->pass == CPU_CONV_FORWARD ? pd : &hint, &desc, attr, l->engine, NULL);
    if (v->pass == CPU_CONV_FORWARD || status != dnnl_success)
        return status;
    status = v->pass == CPU_CONV_INPUT_GRAD
                 ? l->dnnl_dilated_convolution_backward_data_desc_init(
                       &desc, dnnl_convolution_direct, d[X], d[WEIGHT], d[Y], strides, dilates, before, after)
                 : l->dnnl_dilated_convolution_backward_weights_desc_init(
                       &desc, dnnl_convolution_direct, d[X], d[WEIGHT], NULL, d[Y], strides, dilates, before, after);
    if (status == dnnl_success)
        status = l->dnnl_primitive_desc_create(pd, &desc, attr, l->engine, hint);
    l->dnnl_primitive_desc_destroy(hint);
    return status;
#else
    dnnl_primitive_desc_t forward = NULL;
    dnnl_status_t status = l->dnnl_convolution_forward_primitive_desc_create(
        v->pass == CPU_CONV_FORWARD ? pd : &forward, l->engine, dnnl_forward_training, dnnl_convolution_direct, d[X],
        d[WEIGHT], d[BIAS], d[Y], strides, dilates, before, after, attr);
    if (v->pass == CPU_CONV_FORWARD || status != dnnl_success)
        return status;
    status = v->pass == CPU_CONV_INPUT_GRAD
                 ? l->dnnl_convolution_backward_data_primitive_desc_create(
                       pd, l->engine, dnnl_convolution_direct, d[X], d[WEIGHT], d[Y], strides, dilates, before, after,
                       forward, attr)
                 : l->dnnl_convolution_backward_weights_primitive_desc_create(
                       pd, l->engine, dnnl_convolution_direct, d[X], d[WEIGHT], NULL, d[Y], strides, dilates, before,
                       after, forward, attr);
    l->dnnl_primitive_desc_destroy(forward);
    return status;
#endif
}

/* Returns whether the implementation multiplies matrices that are copied from the images. */
static bool by_gemm(dnnl_primitive_desc_t pd)
{
    const char *how = NULL;
    return cpu_onednn()->dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &how) == dnnl_success && how
           && strstr(how, "gemm") != NULL;
}

/* Creates the primitive for tensors of `type` that computes in `inner`. Returns false, without a primitive, if it
 * should compute in f32. */
static bool make_in(struct onednn_entry *entry, const struct cpu_conv *v, dnnl_data_type_t type, dnnl_data_type_t inner)
{
    const struct onednn *l = cpu_onednn();
    const struct shapes s = shapes_of(v);
    const int64_t *const dims[4] = { s.x, s.weight, s.y, s.bias };
    const int64_t *const strides[4] = { s.x_strides, s.weight_strides, s.y_strides, s.bias_strides };
    const int ndims[4] = { 4, s.weight_dims, 4, 1 }, count = v->bias ? 4 : 3;
    /* users: layouts of the tensors. wants: layouts requested from the primitive. */
    onednn_desc users[4], wants[4];
    bool made_user[4] = { false }, made_want[4] = { false };
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    bool good = true;
    const bool pointwise = v->kh == 1 && v->kw == 1 && v->stride[0] == 1 && v->stride[1] == 1
                           && v->padding[0] == 0 && v->padding[1] == 0;
    const bool as_it_lies = v->channels_last || (pointwise && v->groups == 1);
    for (int i = 0; i < count; i++) {
        made_user[i] =
            onednn_succeeded(entry, onednn_strided(&users[i], ndims[i], dims[i], type, strides[i]));
        made_want[i] = onednn_succeeded(entry, i == BIAS || (i != WEIGHT && as_it_lies)
                                                   ? onednn_strided(&wants[i], ndims[i], dims[i], inner, strides[i])
                                                   : onednn_tagged(&wants[i], ndims[i], dims[i], inner,
                                                                   dnnl_format_tag_any));
        if (!made_user[i] || !made_want[i])
            goto done;
    }
    if (!onednn_succeeded(entry, l->dnnl_primitive_attr_create(&attr))
        || l->dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) != dnnl_success)
        goto done;
    onednn_desc_ref want_refs[4] = { ONEDNN_REF(wants[0]), ONEDNN_REF(wants[1]), ONEDNN_REF(wants[2]),
                                     count > 3 ? ONEDNN_REF(wants[3]) : NULL };
    onednn_desc_ref user_refs[4] = { ONEDNN_REF(users[0]), ONEDNN_REF(users[1]), ONEDNN_REF(users[2]),
                                     count > 3 ? ONEDNN_REF(users[3]) : NULL };
    if (!onednn_succeeded(entry, describe_conv(&pd, v, want_refs, attr)))
        goto done;
    good = inner == dnnl_f32 || as_it_lies || v->pass != CPU_CONV_WEIGHT_GRAD || !by_gemm(pd);
    if (!good) {
        l->dnnl_primitive_desc_destroy(pd);
        goto done;
    }
    const bool outputs[4] = { v->pass == CPU_CONV_INPUT_GRAD, v->pass == CPU_CONV_WEIGHT_GRAD,
                              v->pass == CPU_CONV_FORWARD, false };
    const int arguments[4] = { outputs[X] ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC,
                               outputs[WEIGHT] ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS,
                               v->pass == CPU_CONV_FORWARD ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, DNNL_ARG_BIAS };
    const dnnl_query_t queries[4] = { outputs[X] ? dnnl_query_diff_src_md : dnnl_query_src_md,
                                      outputs[WEIGHT] ? dnnl_query_diff_weights_md : dnnl_query_weights_md,
                                      v->pass == CPU_CONV_FORWARD ? dnnl_query_dst_md : dnnl_query_diff_dst_md,
                                      dnnl_query_weights_md };
    static const int indices[4] = { 0, 0, 0, 1 };
    const struct onednn_images images[4] = { [X] = { as_it_lies ? NULL : s.x, type, inner },
                                             [Y] = { as_it_lies ? NULL : s.y, type, inner } };
    onednn_fill(entry, pd, count, arguments, outputs, user_refs, queries, indices, images);
done:
    if (attr)
        l->dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 4; i++) {
        onednn_drop(&users[i], made_user[i]);
        onednn_drop(&wants[i], made_want[i]);
    }
    return good;
}

static void conv_make(struct onednn_entry *entry, const struct cpu_conv *v, dnnl_data_type_t type)
{
    if (!make_in(entry, v, type, type))
        make_in(entry, v, type, dnnl_f32);
    onednn_settle(entry);
}

bool cpu_onednn_conv(const struct cpu_conv *v)
{
    if ((v->dtype != CTRT_F32 && v->dtype != CTRT_BF16 && v->dtype != CTRT_F16) || v->n * v->c * v->o == 0
        || v->h * v->w == 0 || cpu_threads_limited() || !cpu_onednn())
        return false;
    struct onednn_key key = { {
        2, v->pass, v->dtype, v->channels_last, v->bias != NULL, v->n, v->c, v->h, v->w, v->o, v->kh, v->kw,
        v->oh, v->ow, v->groups, v->stride[0], v->stride[1], v->padding[0], v->padding[1], v->dilation[0],
        v->dilation[1], cpu_openmp_threads()
    } };
    bool fresh;
    struct onednn_entry *entry = onednn_find(&key, &fresh);
    if (!entry)
        return false;
    if (fresh) {
        /* A primitive is created for a certain number of threads. */
        cpu_openmp_enter();
        conv_make(entry, v, v->dtype == CTRT_F32 ? dnnl_f32 : v->dtype == CTRT_BF16 ? dnnl_bf16 : dnnl_f16);
        cpu_openmp_leave();
    }
    void *const addresses[] = { v->x, v->weight, v->y, (void *)(uintptr_t)v->bias };
    return entry->primitive && onednn_run(entry, addresses);
}

#endif
