// A checkpoint's bytes: a zip of a pickle and the tensors' memory, as Python's torch.save writes
// and torch.load(weights_only=True) reads it. Reading makes data only; nothing in a file is run.
#pragma once

#include <iosfwd>
#include <string>

#include "checkpoint/tree.h"

namespace torchamp::checkpoint {

void write_file(const Tree& tree, std::ostream& file);

/// Throws, naming the file `name`, where it is damaged or holds anything but data.
Tree read_file(std::istream& file, const std::string& name);

}  // namespace torchamp::checkpoint
