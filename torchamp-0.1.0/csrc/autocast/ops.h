// The autocast kernels that O1 and O4 need and torch does not have.
#pragma once

#include <c10/core/DeviceType.h>

namespace torchamp {

/// While one of these lives, the dispatcher has autocast kernels on `device_type` for the ops of
/// lists.h for which torch registers none. They cast if casting_to() returns a dtype;
/// otherwise the ops are unchanged. Device types other than CPU and CUDA have torch's kernels only.
class AutocastOps {
 public:
  explicit AutocastOps(c10::DeviceType device_type);
  ~AutocastOps();
  AutocastOps(const AutocastOps&) = delete;
  AutocastOps& operator=(const AutocastOps&) = delete;

 private:
  c10::DeviceType device_type_;
};

}  // namespace torchamp
