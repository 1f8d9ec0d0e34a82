/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/pool.cu: max_pool2d and its gradient, on NCHW and channels-last images.
 *
 * A thread computes one element of the result; neighbouring threads compute adjacent elements, and overlapping windows
 * are read from caches. Pooling reads x and writes y and 8 bytes of index per element of y; with windows of 2x2, these
 * 8 bytes are a third of the traffic in f32 and half of it in f16. The gradient iterates over the elements of the
 * input: for each element, the kernel checks, in order, for which of the windows that contain it this element was the
 * maximum. No two threads add to the same element, so results are bitwise reproducible. */
#include "pool_args.h"

/* The type in which values are compared: 4 or 8 bytes. */
template <typename T> struct compared_of { using type = int32_t; };
template <> struct compared_of<float> { using type = float; };
template <> struct compared_of<double> { using type = double; };
template <> struct compared_of<f16> { using type = float; };
template <> struct compared_of<bf16> { using type = float; };
template <> struct compared_of<int64_t> { using type = int64_t; };

template <typename C> DEVICE C lowest();
template <> DEVICE float lowest() { return -__int_as_float(0x7f800000); }
template <> DEVICE double lowest() { return -__longlong_as_double(0x7ff0000000000000ll); }
template <> DEVICE int32_t lowest() { return INT32_MIN; }
template <> DEVICE int64_t lowest() { return INT64_MIN; }

/* The position of element i of the result: row and column, the first element of its plane in an image with planes of
 * `size` elements, and the distance between adjacent elements of the plane. */
struct spot {
    int64_t y, x, base, step;
};

DEVICE spot spot_of(const pool_args &a, int64_t i, int64_t size)
{
    int64_t rest = i;
    const int64_t last = split_off(rest, a.sizes[2]), middle = split_off(rest, a.sizes[1]),
        first = split_off(rest, a.sizes[0]);
    if (a.channels_last)
        return { first, middle, rest * size * a.channels + last, a.channels };
    return { middle, last, (rest * a.channels + first) * size, 1 };
}

/* The taps of a window that are inside the plane: [first, last), the first tap of the window at `start`. */
struct span {
    int64_t start, first, last;
};

DEVICE span taps(const pool_args &a, int axis, int64_t at, int64_t size)
{
    const int64_t start = at * a.stride[axis] - a.padding[axis];
    int64_t first = 0, last = 0;
    if (a.dilation[axis] == 1) {
        first = start < 0 ? -start : 0;
        last = size - start;
    } else {
        while (first < a.kernel[axis] && start + first * a.dilation[axis] < 0)
            first++;
        last = first;
        while (last < a.kernel[axis] && start + last * a.dilation[axis] < size)
            last++;
    }
    return { start, first, last < a.kernel[axis] ? last : a.kernel[axis] };
}

template <typename T> DEVICE void pool(const pool_args &a)
{
    typedef typename compared_of<T>::type C;
    const T *const in = static_cast<const T *>(a.in);
    for (int64_t i = thread_index(); i < a.n; i += thread_count()) {
        const spot s = spot_of(a, i, a.h * a.w);
        const span v = taps(a, 0, s.y, a.h), u = taps(a, 1, s.x, a.w);
        const T *const plane = in + s.base;
        C best = lowest<C>();
        int64_t index = -1;
        if (v.first < v.last && u.first < u.last) {
            index = (v.start + v.first * a.dilation[0]) * a.w + u.start + u.first * a.dilation[1];
            for (int64_t ky = v.first; ky < v.last; ky++) {
                const int64_t row = (v.start + ky * a.dilation[0]) * a.w + u.start;
                for (int64_t kx = u.first; kx < u.last; kx++) {
                    const int64_t at = row + kx * a.dilation[1];
                    const C x = (C)(work<T>)plane[at * s.step];
                    if (x > best || x != x) {
                        best = x;
                        index = at;
                    }
                }
            }
        }
        static_cast<T *>(a.out)[i] = (T)best;
        a.indices[i] = index;
    }
}

/* The windows that may contain an element: numbers [first, last]. */
DEVICE span windows(const pool_args &a, int axis, int64_t at, int64_t count)
{
    const int64_t to = at + a.padding[axis], from = to - (a.kernel[axis] - 1) * a.dilation[axis];
    const int64_t first = from <= 0 ? 0 : fast_quotient(from - 1, a.steps[axis]) + 1,
                  last = fast_quotient(to, a.steps[axis]);
    return { 0, first, last < count ? last : count - 1 };
}

/* The sum is rounded to T after each addition. */
template <typename T> DEVICE void pool_gradient(const pool_args &a)
{
    const T *const dy = static_cast<const T *>(a.in);
    for (int64_t i = thread_index(); i < a.n; i += thread_count()) {
        const spot s = spot_of(a, i, a.oh * a.ow);
        const span v = windows(a, 0, s.y, a.oh), u = windows(a, 1, s.x, a.ow);
        const int64_t here = s.y * a.w + s.x;
        T sum = (T)(work<T>)0;
        for (int64_t y = v.first; y <= v.last; y++)
            for (int64_t x = u.first; x <= u.last; x++) {
                const int64_t at = s.base + (y * a.ow + x) * s.step;
                if (a.indices[at] == here)
                    sum = (T)((work<T>)sum + (work<T>)dy[at]);
            }
        static_cast<T *>(a.out)[i] = sum;
    }
}

#define POOL(type, T) KERNEL_BOUNDS(max_pool2d_##type, pool_args, POOL_THREADS) { pool<T>(a); }
#define GRADIENT(type, T) KERNEL_BOUNDS(max_pool2d_backward_##type, pool_args, POOL_THREADS) { pool_gradient<T>(a); }
POOL(f32, float)
POOL(f64, double)
POOL(f16, f16)
POOL(bf16, bf16)
POOL(i8, int8_t)
POOL(u8, uint8_t)
POOL(i16, int16_t)
POOL(i32, int32_t)
POOL(i64, int64_t)
GRADIENT(f32, float)
GRADIENT(f64, double)
GRADIENT(f16, f16)
GRADIENT(bf16, bf16)
