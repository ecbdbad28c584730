// SHA-256, as FIPS 180-4 defines it.
#pragma once

#include <string>

namespace torchamp::cuda {

/// The digest of the bytes, in 64 hexadecimal digits.
std::string sha256(const std::string& bytes);

}  // namespace torchamp::cuda
