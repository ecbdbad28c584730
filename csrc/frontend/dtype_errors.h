// What torch's errors about dtypes mean, by their wordings, which differ from op to op.
#pragma once

#include <torchamp/detail/export.h>

#include <functional>
#include <string>
#include <string_view>

namespace torchamp {

/// kOverflow: a number that 16 bits do not hold. kNoKernel: an op that torch does not have in 16
/// bits. kMixed: tensors of two dtypes. kHook: a gradient hook whose result has
/// another dtype than the grad.
enum class DtypeError { kNone, kOverflow, kNoKernel, kMixed, kHook };

TORCHAMP_API DtypeError dtype_error(std::string_view message);

/// Throws the exception being handled with what `explain` says of its message: of its own type if
/// that is c10::Error or std::runtime_error, else nested in the latter. As it is where that says
/// "".
[[noreturn]] void rethrow_explained(const std::function<std::string(const char*)>& explain);

}  // namespace torchamp
