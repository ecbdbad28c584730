// A text as numbers: each character is its index in the text's alphabet.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

struct Batch {
  torch::Tensor inputs;   ///< int64 [n, length]
  torch::Tensor targets;  ///< the same, one character later
};

class Text {
 public:
  Text(const std::string& path, torch::Device device) {
    std::ifstream file(path);
    TORCH_CHECK(file, "expected --data to name a readable file, got ", path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::set<char> letters(text.begin(), text.end());
    alphabet_.assign(letters.begin(), letters.end());
    ids_ = encode(text).to(device);
  }

  int64_t alphabet_size() const { return static_cast<int64_t>(alphabet_.size()); }

  /// int64 [text.size()]. A character outside the alphabet becomes the next one in it.
  torch::Tensor encode(const std::string& text) const {
    std::vector<int64_t> ids;
    for (const char letter : text) {
      ids.push_back(std::lower_bound(alphabet_.begin(), alphabet_.end(), letter) -
                    alphabet_.begin());
    }
    return torch::tensor(ids);
  }

  char decode(int64_t id) const { return alphabet_[static_cast<size_t>(id)]; }

  /// `count` random excerpts.
  Batch sample(int64_t count, int64_t length) const {
    const torch::Tensor starts = torch::randint(ids_.size(0) - length, {count, 1});
    const torch::Tensor places = (starts + torch::arange(length)).to(ids_.device());
    return {ids_.index({places}), ids_.index({places + 1})};
  }

 private:
  std::string alphabet_;
  torch::Tensor ids_;
};
