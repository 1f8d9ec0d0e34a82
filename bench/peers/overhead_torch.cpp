// SPDX-License-Identifier: Apache-2.0
// bench/peers/overhead_torch.cpp: the cases of ../overhead.c in libtorch. Built by build.sh.
#include <torch/torch.h>

#include <functional>

#include "../timing.h"

static void call(void *f) { (*static_cast<std::function<void()> *>(f))(); }

static void report(const std::string &name, std::function<void()> f) { timing_report(name.c_str(), call, &f); }

int main()
{
    at::set_num_threads(1);
    for (int n : {1, 64, 1024}) {
        const auto s = std::to_string(n);
        auto a = torch::randn({n}), b = torch::randn({n});
        torch::Tensor out;
        report("add_" + s, [&] { out = at::add(a, b); });
        report("add_inplace_" + s, [&] { a.add_(b); });
        report("relu_" + s, [&] { out = a.relu(); });
        report("empty_" + s, [&] { out = torch::empty({n}); });
        auto x = torch::randn({n}, torch::requires_grad()), y = torch::randn({n}, torch::requires_grad()),
             z = torch::randn({n}, torch::requires_grad());
        report("add_grad_" + s, [&] { out = at::add(x, y); });
        report("muladdsum_forward_" + s, [&] { out = (x * y + z).sum(); });
        report("muladdsum_backward_" + s, [&] { (x * y + z).sum().backward(); });
    }
    auto a = torch::randn({8, 8}), b = torch::randn({8, 8});
    torch::Tensor out;
    report("matmul_8x8", [&] { out = at::matmul(a, b); });
    report("view_8x8", [&] { out = a.view({-1}); });
}
