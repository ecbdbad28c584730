// A checkpoint's bytes: a zip of a pickle and the tensors' memory, as Python's torch.save writes
// and torch.load(weights_only=True) reads it. Reading creates only data; it never runs code from a
// file.
#pragma once

#include <iosfwd>
#include <string>

#include "checkpoint/tree.h"

namespace torchamp::checkpoint {

/// If the file cannot be written, `file` has failed.
void write_file(const Tree& tree, std::ostream& file);

/// Throws, naming the file `name`, if it is damaged or contains anything but data.
Tree read_file(std::istream& file, const std::string& name);

}  // namespace torchamp::checkpoint
