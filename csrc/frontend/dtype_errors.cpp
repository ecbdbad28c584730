#include "frontend/dtype_errors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <stdexcept>
#include <typeinfo>
#include <utility>

namespace torchamp {
namespace {

constexpr std::array<std::string_view, 12> kNoKernel{
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "Low precision dtypes not supported",
    "Unsupported dtype",
    "FFT doesn't support tensors of type",
    "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision",
    "of float, double, cfloat or cdouble types",
    "must be either float or double dtype",
    "other than float and double",
    "to be Half, Float or Double tensors",
    "supported for half, float and double tensors",
    "supports floating point, complex, and integer tensors",
};

constexpr std::array<std::string_view, 21> kMixed{
    "same dtype",
    "same scalar type",
    "expected scalar type",
    "object of scalar type",
    "to have scalar type",
    "have the same type as",
    "did not match Float",
    "did not match Half",
    "did not match BFloat16",
    "Found dtype",
    "destination dtypes match",
    "self.dtype to be equal to src.dtype",
    "bias type (",
    "does not match input dtype",
    "does not match weight dtype",
    "input must have the type",
    "Type promoting not supported",
    "with different dtypes",
    "dtypes must be the same",
    "expected dtype",
    "could not create a primitive",
};

bool has(std::string_view message, std::string_view part) {
  return message.find(part) != std::string_view::npos;
}

template <class Parts>
bool has_one_of(std::string_view message, const Parts& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [message](std::string_view part) { return has(message, part); });
}

/// Else it is about devices.
bool has_weights_of_another_dtype(std::string_view message) {
  const bool has_low = has(message, "Half") || has(message, "BFloat16");
  return has(message, "weight type (") && has_low && has(message, ".FloatTensor");
}

}  // namespace

DtypeError dtype_error(std::string_view message) {
  if (has(message, "without overflow")) return DtypeError::kOverflow;
  if (has(message, "has changed the type of value")) return DtypeError::kHook;
  if (has_one_of(message, kNoKernel)) return DtypeError::kNoKernel;
  const bool is_mixed = has_one_of(message, kMixed) || has_weights_of_another_dtype(message);
  return is_mixed ? DtypeError::kMixed : DtypeError::kNone;
}

void rethrow_explained(const std::function<std::string(const char*)>& explain) {
  try {
    throw;
  } catch (c10::Error& error) {
    std::string text = explain(error.what_without_backtrace());
    if (!text.empty()) error.add_context(std::move(text));
    throw;
  } catch (const std::exception& error) {
    const std::string text = explain(error.what());
    if (text.empty()) throw;
    const std::string all = error.what() + ("\n" + text);
    if (typeid(error) == typeid(std::runtime_error)) throw std::runtime_error(all);
    std::throw_with_nested(std::runtime_error(all));
  }
}

}  // namespace torchamp
