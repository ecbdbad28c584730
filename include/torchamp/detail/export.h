#pragma once

/// Marks what libtorchamp.so shows to other programs; everything else is hidden.
#define TORCHAMP_API __attribute__((visibility("default")))
