// What torch's errors about dtypes mean, by their wordings, which differ from op to op.
#pragma once

#include <torchamp/detail/export.h>

#include <string_view>

namespace torchamp {

/// kOverflow: a number that 16 bits do not hold. kNoKernel: an op that torch does not have in 16
/// bits. kMixed: tensors of two dtypes.
enum class DtypeError { kNone, kOverflow, kNoKernel, kMixed };

TORCHAMP_API DtypeError dtype_error(std::string_view message);

}  // namespace torchamp
