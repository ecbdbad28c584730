// An LSTM over sequences of different lengths.
#pragma once

#include <torch/nn.h>

constexpr int64_t kSymbols = 8;
constexpr int64_t kHidden = 32;

/// Symbols, int64 [n, longest], and the length of each row, int64 [n] on the CPU → logits
/// [n, kSymbols], from the state after each row's last symbol.
struct RecallerImpl : torch::nn::Module {
  torch::nn::Embedding embedding{kSymbols, kHidden};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(kHidden, kHidden).batch_first(true)};
  torch::nn::Linear fc{kHidden, kSymbols};

  RecallerImpl() {
    register_module("embedding", embedding);
    register_module("lstm", lstm);
    register_module("fc", fc);
  }

  torch::Tensor forward(const torch::Tensor& symbols, const torch::Tensor& lengths) {
    const auto packed = torch::nn::utils::rnn::pack_padded_sequence(
        embedding(symbols), lengths, /*batch_first=*/true, /*enforce_sorted=*/false);
    const auto [outputs, state] = lstm->forward_with_packed_input(packed);
    return fc(std::get<0>(state).select(0, 0));
  }
};
TORCH_MODULE(Recaller);
