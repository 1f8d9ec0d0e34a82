// SPDX-License-Identifier: Apache-2.0
// Tests of bindings/cpp/ctrt.hpp. Prints what is wrong.
#include <cstdio>
#include <thread>

#include <ctrt.hpp>

namespace nn = ctrt::nn;

static void expect(bool fine, const char *what)
{
    if (!fine)
        std::printf("%s\n", what);
}

static void check_tensors()
{
    ctrt::tensor x = ctrt::from(std::vector<float>{ 1, 2, 3, 4 }, { 2, 2 }), y = x, z;
    expect(y.get() == x.get() && !z, "a copy is another reference");
    z = std::move(y);
    expect(z.get() == x.get(), "a handle can be moved");
    z = z + 1 - x / 2 + 2 * x;
    expect(z.values<float>() == std::vector<float>({ 3.5f, 6, 8.5f, 11 }), "operators");
    expect(sum(x, { 0 }).values<float>() == std::vector<float>({ 4, 6 }) && mean(x).item() == 2.5, "reductions");
    expect((x > 2).values<uint8_t>() == std::vector<uint8_t>({ 0, 0, 1, 1 }), "comparisons");
    expect(reshape(x, { -1 }).shape() == std::vector<int64_t>{ 4 } && transpose(x, 0, 1).size(0) == 2, "shapes");
    add_(z, x);
    mul_(z, 2);
    expect(z.values<double>().back() == 30, "in place");
    expect(ctrt::cat({ x, x }, 1).size(1) == 4 && ctrt::stack({ x, x }).ndim() == 3, "cat and stack");
    x = relu(-x);
    expect(sum(x).item() == 0, "a variable can be its own operand");
}

static void check_autograd()
{
    ctrt::tensor x = ctrt::from(std::vector<float>{ 1, 4 });
    x.require_grad();
    sum(x * x).backward();
    expect(x.grad().values<float>() == std::vector<float>({ 2, 8 }), "backward");
    x.set_grad({});
    expect(!x.grad(), "no gradient is an empty handle");
    ctrt::tensor first = ctrt::grad(sum(x * x * x), { x }, true)[0];
    expect(ctrt::grad(sum(first), { x })[0].values<float>()[1] == 24, "second derivative");
    ctrt::no_grad guard;
    expect(!(x * 2).requires_grad(), "no_grad");
}

struct block : ctrt::layer {
    ctrt::module inner = add("inner", nn::linear(4, 4));
    ctrt::tensor scale = add("scale", ctrt::ones({ 4 }));
    bool fails;

    explicit block(bool fails_) : fails(fails_) {}
    ctrt::tensor forward(const std::vector<ctrt::tensor> &inputs) override
    {
        if (fails)
            throw std::out_of_range("thrown in forward");
        return inputs[0] + relu(inner(inputs[0])) * scale;
    }
};

static void check_modules()
{
    ctrt::module net = nn::sequential(ctrt::make_module<block>(false), nn::linear(4, 2));
    expect(net.parameter_count() == 5 && net.parameters()[4].first == "1.bias", "parameters");
    ctrt::optimizer adam = ctrt::adam(net);
    adam.set_lr(0.05);
    ctrt::manual_seed(1);
    ctrt::tensor x = ctrt::randn({ 32, 4 }), labels = to_dtype(select(x, 1, 0) > 0, ctrt::i64);
    double before = cross_entropy(net(x), labels).item();
    for (int step = 0; step < 50; step++) {
        adam.zero_grad();
        cross_entropy(net(x), labels).backward();
        adam.step();
    }
    expect(cross_entropy(net(x), labels).item() < before / 3, "training");
    expect(static_cast<bool>(net["0.scale"].grad()), "a parameter of a layer of the program has a gradient");

    try {
        nn::sequential(ctrt::make_module<block>(true))(x);
        expect(false, "an exception of forward is lost");
    } catch (const std::out_of_range &thrown) {
        expect(std::string(thrown.what()) == "thrown in forward", "the exception of forward");
    }
}

static void check_errors()
{
    try {
        ctrt::zeros({ 2, 3 }) + ctrt::zeros({ 4 });
        expect(false, "shapes that do not fit are accepted");
    } catch (const ctrt::error &refused) {
        expect(refused.status() == CTRT_ERR_SHAPE && std::string(refused.what()).find("[2, 3]") != std::string::npos,
               "the error of shapes");
    }
    ctrt::tensor x = ctrt::ones({ 2, 4 });
    ctrt::module net = ctrt::parallel(nn::linear(4, 1), "single");
    auto loss = [](const ctrt::tensor &output, const std::vector<ctrt::tensor> &) { return mean(output); };
    expect(ctrt::parallel_step(net, { x }, loss).numel() == 1, "parallel_step");
    try {
        ctrt::parallel_step(net, { x }, [](const ctrt::tensor &, const std::vector<ctrt::tensor> &) -> ctrt::tensor {
            throw 5;
        });
        expect(false, "an exception of the loss function is lost");
    } catch (int thrown) {
        expect(thrown == 5, "the exception of the loss function");
    }
}

int main()
try {
    ctrt::device cpu("cpu");
    ctrt::check(ctrt_set_default_device(cpu.pointer));
    for (int round = 0; round < 2; round++) {
        const uint64_t bytes = ctrt_memory_allocated(cpu.pointer), nodes = ctrt_autograd_live_nodes();
        check_tensors();
        check_autograd();
        check_modules();
        check_errors();
        std::thread(check_autograd).join();
        expect(ctrt_memory_allocated(cpu.pointer) == bytes, "tensors are left");
        expect(ctrt_autograd_live_nodes() == nodes, "nodes of graphs are left");
    }
    return 0;
} catch (const std::exception &thrown) {
    std::printf("%s\n", thrown.what());
    return 1;
}
