// torchamp under its short name: `amp::initialize`, `amp::scale_loss`, …
#pragma once

#include <torchamp/torchamp.h>

namespace amp = torchamp;
