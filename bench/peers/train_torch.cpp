// SPDX-License-Identifier: Apache-2.0
// bench/peers/train_torch.cpp: the steps of ../train.c in libtorch, on OMP_NUM_THREADS threads. Built by build.sh.
#include <torch/torch.h>

#include <functional>
#include <memory>

#include "../timing.h"

namespace nn = torch::nn;

static void call(void *f) { (*static_cast<std::function<void()> *>(f))(); }

static void measure(const char *name, int64_t batch, int64_t in, int64_t hidden, bool adam)
{
    nn::Sequential model(nn::Linear(in, hidden), nn::ReLU(), nn::Linear(hidden, hidden), nn::ReLU(),
                         nn::Linear(hidden, 10));
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (adam)
        optimizer = std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                          torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
    else
        optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.01);
    auto x = torch::randn({batch, in});
    auto y = torch::randint(0, 10, {batch}, torch::kLong);
    std::function<void()> step = [&] {
        auto loss = nn::functional::cross_entropy(model->forward(x), y);
        optimizer->zero_grad();
        loss.backward();
        optimizer->step();
    };
    timing_report(name, call, &step);
}

int main()
{
    const char *threads = std::getenv("OMP_NUM_THREADS");
    at::set_num_threads(threads ? std::atoi(threads) : 1);
    torch::manual_seed(1);
    measure("mlp_64_256_256_10_sgd", 64, 64, 256, false);
    measure("mlp_784_1024_1024_10_adamw", 256, 784, 1024, true);
}
