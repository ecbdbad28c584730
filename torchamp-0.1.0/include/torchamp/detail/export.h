#pragma once

/// Marks the symbols that libtorchamp.so exports; all others are hidden.
#define TORCHAMP_API __attribute__((visibility("default")))
