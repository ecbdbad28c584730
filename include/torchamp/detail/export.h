#pragma once

/// Marks the symbols that libtorchamp.so exports; all others are hidden.
#define TORCHAMP_API __attribute__((visibility("default")))

namespace torchamp::detail {

/// In the library of these headers' version. A program that is linked with another one gets
/// "undefined reference to torchamp::detail::headers_0_1".
extern TORCHAMP_API const char headers_0_1;
[[gnu::used]] inline const char* const kHeaders = &headers_0_1;

}  // namespace torchamp::detail
