// A transformer that predicts the next character.
#pragma once

#include <torch/nn.h>

constexpr int64_t kContext = 32;
constexpr int64_t kWidth = 48;
constexpr int64_t kHeads = 4;
constexpr int64_t kBlocks = 2;

/// Causal self-attention, then two layers for each position: [n, length, kWidth] → the same shape.
struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear qkv{kWidth, 3 * kWidth};
  torch::nn::Linear projection{kWidth, kWidth};
  torch::nn::LayerNorm norm2{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear fc1{kWidth, 4 * kWidth};
  torch::nn::Linear fc2{4 * kWidth, kWidth};

  BlockImpl() {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("norm2", norm2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(norm1(x));
    return x + fc2(torch::gelu(fc1(norm2(x))));
  }

  torch::Tensor attention(const torch::Tensor& x) {
    const auto heads = qkv(x).unflatten(-1, {3, kHeads, -1}).transpose(1, 3).unbind(2);
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        heads[0], heads[1], heads[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return projection(mixed.transpose(1, 2).flatten(2));
  }
};
TORCH_MODULE(Block);

/// Characters, int64 [n, length ≤ kContext] → logits [n, length, alphabet_size].
struct CharTransformerImpl : torch::nn::Module {
  torch::nn::Embedding characters;
  torch::nn::Embedding places{kContext, kWidth};
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear head;

  explicit CharTransformerImpl(int64_t alphabet_size)
      : characters(alphabet_size, kWidth), head(kWidth, alphabet_size) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("characters", characters);
    register_module("places", places);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    const torch::Tensor place = torch::arange(ids.size(1), ids.device());
    return head(norm(blocks->forward(characters(ids) + places(place))));
  }
};
TORCH_MODULE(CharTransformer);
