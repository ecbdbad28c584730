// The images that VGG16 learns: digits, CIFAR-10 or made-up ones.
#pragma once

#include <torch/nn/functional/upsampling.h>
#include <torch/utils.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "arguments.h"
#include "digits.h"

constexpr int64_t kSize = 32;  // pixels
constexpr int64_t kClasses = 10;
constexpr int64_t kCifarRow = 1 + 3 * kSize * kSize;  // bytes: the label, then red, green and blue

inline torch::Tensor enlarge(const torch::Tensor& images, bool smooth) {
  namespace F = torch::nn::functional;
  F::InterpolateFuncOptions options;
  options.size(std::vector<int64_t>{kSize, kSize});
  if (smooth) options.mode(torch::kBilinear).align_corners(false);
  return F::interpolate(images, options);
}

/// Digits [n, 1, 8, 8] as images [n, 3, 32, 32].
inline Digits in_color(const Digits& digits) {
  return {enlarge(digits.images, /*smooth=*/true).repeat({1, 3, 1, 1}), digits.labels};
}

/// Images of noise over the pattern of their class.
inline Digits made_up(int64_t count, const torch::Tensor& patterns, torch::Device device) {
  const torch::Tensor labels = torch::randint(kClasses, {count}, torch::kLong);
  const torch::Tensor images = enlarge(patterns.index_select(0, labels), /*smooth=*/false);
  return {(images + torch::randn(images.sizes())).to(device), labels.to(device)};
}

/// Of a file of CIFAR-10's binary form.
inline Digits read_cifar(const std::string& path, torch::Device device) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "expected --data cifar10 to name a folder of CIFAR-10's binary form, got no ",
              path);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  const torch::Tensor table =
      torch::tensor(std::move(bytes), torch::kByte).reshape({-1, kCifarRow});
  const torch::Tensor pixels = table.narrow(1, 1, kCifarRow - 1).to(torch::kFloat).div(255);
  return {pixels.reshape({-1, 3, kSize, kSize}).to(device),
          table.select(1, 0).to(torch::kLong).to(device)};
}

inline Split load_cifar(const std::string& folder, torch::Device device) {
  std::vector<torch::Tensor> images, labels;
  for (int number = 1; number <= 5; ++number) {
    const Digits part =
        read_cifar(folder + "/data_batch_" + std::to_string(number) + ".bin", device);
    images.push_back(part.images);
    labels.push_back(part.labels);
  }
  return {{torch::cat(images), torch::cat(labels)}, read_cifar(folder + "/test_batch.bin", device)};
}

inline Split load_images(const Words& data, int64_t count, torch::Device device) {
  Split split;
  if (data.front() == "cifar10" && data.size() == 2) {
    split = load_cifar(data[1], device);
  } else if (data.front() == "synthetic") {
    const torch::Tensor patterns = torch::rand({kClasses, 3, 4, 4});
    split = {made_up(count, patterns, device),
             made_up(std::max(count / 5, kClasses), patterns, device)};
  } else {
    TORCH_CHECK(data.front() == "digits",
                "expected --data to be digits, synthetic, or cifar10 and a folder, got ", data);
    const Split digits = load_digits(EXAMPLES_DATA "/digits.csv", device);
    split = {in_color(digits.train), in_color(digits.test)};
  }
  split.train = take(split.train, torch::arange(std::min(count, split.train.labels.size(0))));
  return split;
}
