/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/init.c: sets initial values of tensors in place, without autograd recording.
 *
 * Fan in and fan out are computed as in PyTorch: the weight of a linear layer is [out, in], the weight of a convolution
 * is [out, in/groups, kh, kw]. */
#include <math.h>

#include "base/base.h"
#include "ctrt/nn.h"

ctrt_status ctrt_init_uniform_(ctrt_tensor *tensor, double low, double high)
{
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = ctrt_uniform_(tensor, low, high);
    return ctrt_context(status, "init_uniform_");
}

ctrt_status ctrt_init_normal_(ctrt_tensor *tensor, double mean, double std)
{
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = ctrt_normal_(tensor, mean, std);
    return ctrt_context(status, "init_normal_");
}

ctrt_status ctrt_init_constant_(ctrt_tensor *tensor, double value)
{
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = ctrt_fill_(tensor, ctrt_float(value));
    return ctrt_context(status, "init_constant_");
}

static ctrt_status fans(double *in, double *out, const char *who, const ctrt_tensor *tensor)
{
    NULL_CHECK(who, tensor);
    if (ctrt_tensor_ndim(tensor) < 2)
        return ctrt_fail(CTRT_ERR_SHAPE, "%s: fan in and fan out need at least 2 dimensions, the tensor has %d", who,
                         ctrt_tensor_ndim(tensor));
    double field = 1;
    for (int dim = 2; dim < ctrt_tensor_ndim(tensor); dim++)
        field *= (double)ctrt_tensor_size(tensor, dim);
    *in = (double)ctrt_tensor_size(tensor, 1) * field;
    *out = (double)ctrt_tensor_size(tensor, 0) * field;
    return CTRT_OK;
}

/* Glorot and Bengio 2010: the variance is 2 / (fan_in + fan_out). A uniform distribution on (-b, b) has the variance
 * b^2 / 3. */
ctrt_status ctrt_init_xavier_uniform_(ctrt_tensor *tensor, double gain)
{
    double in, out;
    CTRT_TRY(fans(&in, &out, "init_xavier_uniform_", tensor));
    if (ctrt_tensor_numel(tensor) == 0)
        return CTRT_OK;
    double bound = gain * sqrt(6 / (in + out));
    return ctrt_init_uniform_(tensor, -bound, bound);
}

ctrt_status ctrt_init_xavier_normal_(ctrt_tensor *tensor, double gain)
{
    double in, out;
    CTRT_TRY(fans(&in, &out, "init_xavier_normal_", tensor));
    return ctrt_tensor_numel(tensor) == 0 ? CTRT_OK : ctrt_init_normal_(tensor, 0, gain * sqrt(2 / (in + out)));
}

/* He et al. 2015, with the gain of a leaky ReLU of slope a: the variance is 2 / ((1 + a^2) fan_in). */
ctrt_status ctrt_init_kaiming_uniform_(ctrt_tensor *tensor, double a)
{
    double in, out;
    CTRT_TRY(fans(&in, &out, "init_kaiming_uniform_", tensor));
    if (ctrt_tensor_numel(tensor) == 0)
        return CTRT_OK;
    double bound = sqrt(6 / ((1 + a * a) * in));
    return ctrt_init_uniform_(tensor, -bound, bound);
}

ctrt_status ctrt_init_kaiming_normal_(ctrt_tensor *tensor, double a)
{
    double in, out;
    CTRT_TRY(fans(&in, &out, "init_kaiming_normal_", tensor));
    return ctrt_tensor_numel(tensor) == 0 ? CTRT_OK : ctrt_init_normal_(tensor, 0, sqrt(2 / ((1 + a * a) * in)));
}
