// How a BackwardEnding passes the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace torchamp {

/// The places of an EndingList.
enum EndingPlace {
  kFoundInf,
  kInvScale,
  kPerTensor,
  kFoundBefore,
  kNorm,
  kMovedScale,
  kGrowthTracker,
  kHysteresisTracker,
  kEndingPlaces
};

using EndingList = std::array<at::Tensor, kEndingPlaces>;

}  // namespace torchamp
