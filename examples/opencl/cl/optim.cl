/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cl: steps of SGD and Adam for up to OPTIM_TENSORS tensors in one launch: a work-group finds its tensor in
 * args.end. Momentum and the averages of f16 and bf16 parameters are f32. */
#define EACH_TENSOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define POINTERS(t) global T *p##t, global const T *g##t, global W *m##t, global W *v##t,
#define CHOOSE(t)                                                                                                     \
    if (tensor == t) {                                                                                                \
        p = p##t;                                                                                                     \
        g = g##t;                                                                                                     \
        m = m##t;                                                                                                     \
        v = v##t;                                                                                                     \
    }

KERNEL optimizer_step(EACH_TENSOR(POINTERS) const struct optim_args a)
{
    global T *p = p0;
    global const T *g = g0;
    global W *m = m0, *v = v0;
    i64 tensor = 0;
    while (GROUP >= a.end[tensor])
        tensor++;
    EACH_TENSOR(CHOOSE)
    const i64 before = tensor > 0 ? a.end[tensor - 1] : 0, begin = (GROUP - before) * a.chunk,
              end = least(begin + a.chunk, a.n[tensor]);
    const W sign = (W)a.sign, lr = (W)a.lr, momentum = (W)a.momentum, gain = (W)a.gain, beta1 = (W)a.beta1,
            beta2 = (W)a.beta2, gain1 = (W)(1 - a.beta1), gain2 = (W)(1 - a.beta2), decay = (W)a.decay,
            coupled = (W)a.weight_decay, size = (W)a.step_size, correction = (W)a.correction, epsilon = (W)a.epsilon;
    INDEPENDENT
    for (i64 i = begin; i < end; i++) {
        const W x = LOAD(p, i), d = sign * LOAD(g, i) + coupled * x;
#if defined(ADAM)
        const W mean = beta1 * m[i] + gain1 * d, square = beta2 * v[i] + gain2 * d * d;
        m[i] = mean;
        v[i] = square;
        STORE(p, i, x * decay - size * mean / (sqrt(square) * correction + epsilon));
#else
        W move = d;
        if (momentum != 0) {
            const W velocity = a.first ? d : momentum * m[i] + gain * d;
            m[i] = velocity;
            move = a.nesterov ? d + momentum * velocity : velocity;
        }
        STORE(p, i, x - lr * move);
#endif
    }
}
