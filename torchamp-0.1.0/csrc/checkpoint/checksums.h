#pragma once

#include <iosfwd>

namespace torchamp::checkpoint {

/// Throws, naming it, if a record of a zip that torch wrote has changed since: torch's own
/// reader ignores the checksums. Accepts zips written without them, as after Python's
/// torch.serialization.set_crc32_options(False).
void check_checksums(std::istream& file);

}  // namespace torchamp::checkpoint
