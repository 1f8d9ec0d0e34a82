// SPDX-License-Identifier: Apache-2.0
// bench/peers/train_torch.cpp: the steps of ../train.c in libtorch, on OMP_NUM_THREADS threads. Built by build.sh, or
// with Debian's libtorch-dev: g++ -O2 -std=c++17 train_torch.cpp -ltorch -ltorch_cpu -lc10 -o train_torch
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <string>

#include "../timing.h"

namespace nn = torch::nn;
using torch::Tensor;

static void autocast(bool on)
{
#if TORCH_VERSION_MAJOR >= 2
    at::autocast::set_autocast_enabled(at::kCPU, on);
#else
    at::autocast::set_cpu_enabled(on);
#endif
}

static Tensor causal_attention(Tensor q, Tensor k, Tensor v)
{
#if TORCH_VERSION_MAJOR >= 2
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
#else
    static auto mask = torch::full({q.size(-2), q.size(-2)}, -INFINITY).triu(1);
    return torch::softmax(q.matmul(k.transpose(-2, -1)) / std::sqrt(q.size(-1)) + mask, -1).matmul(v);
#endif
}

static void call(void *f) { (*static_cast<std::function<void()> *>(f))(); }

struct BlockImpl : nn::Module {
    nn::LayerNorm ln1, ln2;
    nn::Linear qkv, out, up, down;
    int64_t width, heads;
    BlockImpl(int64_t width, int64_t heads)
        : ln1(nn::LayerNormOptions({width})), ln2(nn::LayerNormOptions({width})), qkv(width, 3 * width),
          out(width, width), up(width, 4 * width), down(4 * width, width), width(width), heads(heads)
    {
        register_module("ln1", ln1);
        register_module("ln2", ln2);
        register_module("qkv", qkv);
        register_module("out", out);
        register_module("up", up);
        register_module("down", down);
    }
    Tensor forward(Tensor x)
    {
        auto n = x.size(0), length = x.size(1);
        auto parts = qkv(ln1(x)).view({n, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
        auto a = causal_attention(parts[0], parts[1], parts[2]);
        x = x + out(a.transpose(1, 2).reshape({n, length, width}));
        return x + down(nn::functional::gelu(up(ln2(x)), nn::functional::GELUFuncOptions().approximate("tanh")));
    }
};
TORCH_MODULE(Block);

static nn::Sequential mlp(int64_t in, int64_t hidden)
{
    return nn::Sequential(nn::Linear(in, hidden), nn::ReLU(), nn::Linear(hidden, hidden), nn::ReLU(),
                          nn::Linear(hidden, 10));
}

// `classes` false: the loss is the mean square of the output.
static void measure(const char *name, nn::Sequential model, Tensor x, bool classes, bool adam, bool bf16)
{
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (adam)
        optimizer = std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                          torch::optim::AdamWOptions(1e-4).weight_decay(0.01));
    else
        optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.01);
    auto y = torch::randint(0, 10, {x.size(0)}, torch::kLong);
    std::function<void()> step = [&] {
        autocast(bf16);
        auto h = model->forward(x);
        auto loss = classes ? nn::functional::cross_entropy(h, y) : h.to(torch::kFloat).square().mean();
        at::autocast::clear_cache();
        autocast(false);
        optimizer->zero_grad();
        loss.backward();
        optimizer->step();
    };
    timing_report((name + std::string(bf16 ? "_bf16" : "")).c_str(), call, &step);
}

int main()
{
    const char *threads = std::getenv("OMP_NUM_THREADS");
    at::set_num_threads(threads ? std::atoi(threads) : 1);
    std::fprintf(stderr, "libtorch %s\n", TORCH_VERSION);
    torch::manual_seed(1);
    for (bool bf16 : {false, true}) {
        measure("mlp_64_256_256_10_sgd", mlp(64, 256), torch::randn({64, 64}), true, false, bf16);
        measure("mlp_784_1024_1024_10_adamw", mlp(784, 1024), torch::randn({256, 784}), true, true, bf16);
        nn::Sequential cnn(nn::Conv2d(1, 32, 3), nn::ReLU(), nn::Conv2d(32, 64, 3), nn::ReLU(), nn::MaxPool2d(2),
                           nn::Flatten(), nn::Linear(9216, 10));
        measure("cnn_28x28_sgd", cnn, torch::randn({64, 1, 28, 28}), true, false, bf16);
        nn::Sequential transformer(Block(256, 8), Block(256, 8), Block(256, 8), Block(256, 8));
        measure("transformer_256_4_adamw", transformer, torch::randn({8, 128, 256}), false, true, bf16);
    }
}
