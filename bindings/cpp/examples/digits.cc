// SPDX-License-Identifier: Apache-2.0
// Handwritten digits in C++: c++ -std=c++17 digits.cc $(pkg-config --cflags --libs ctrt) && ./a.out digits.csv
#include <cstdio>
#include <fstream>
#include <iostream>
#include <vector>

#include <ctrt.hpp>

int main(int count, char **arguments)
try {
    std::ifstream file(count > 1 ? arguments[1] : "../../../examples/data/digits.csv");
    std::vector<float> numbers;
    char separator;
    for (float number; file >> number; file.get(separator))
        numbers.push_back(number);
    const int64_t rows = static_cast<int64_t>(numbers.size()) / 65, first = rows - rows / 5;
    if (rows == 0)
        throw std::runtime_error("the file of digits cannot be read; give its name");

    ctrt::manual_seed(1);
    ctrt::tensor table = index_select(ctrt::from(numbers, { rows, 65 }), 0, ctrt::randperm(rows));
    ctrt::tensor images = narrow(table, 1, 0, 64) / 16, labels = to_dtype(select(table, 1, 64), ctrt::i64);
    ctrt::module net = ctrt::nn::sequential(ctrt::nn::linear(64, 256), ctrt::nn::relu(), ctrt::nn::linear(256, 10));
    ctrt::optimizer adam = ctrt::adam(net);
    for (int epoch = 0; epoch < 20; epoch++) {
        ctrt::tensor order = ctrt::randperm(first);
        for (int64_t at = 0; at + 32 <= first; at += 32) {
            ctrt::tensor batch = narrow(order, 0, at, 32);
            ctrt::tensor loss = cross_entropy(net(index_select(images, 0, batch)), index_select(labels, 0, batch));
            adam.zero_grad();
            loss.backward();
            adam.step();
        }
    }
    ctrt::no_grad guard;
    ctrt::tensor output = net(narrow(images, 0, first, rows - first));
    ctrt::tensor right = argmax(output, { 1 }) == narrow(labels, 0, first, rows - first);
    const double accuracy = mean(to_dtype(right, ctrt::f32)).item();
    std::printf("%.2f %% of %lld other images are right\n", 100 * accuracy, static_cast<long long>(rows - first));
    return accuracy < 0.95;
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
