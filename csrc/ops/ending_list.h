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
  kNorm,
  kMovedScale,
  kGrowthTracker,
  kHysteresisTracker,
  kFoundBefore,  ///< the only one that is read
  kReport,       ///< the bytes of a Report, in memory of the host
  kEndingPlaces
};

using EndingList = std::array<at::Tensor, kEndingPlaces>;

}  // namespace torchamp
