#include "ops/outside_capture.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "cuda/stream.h"

namespace torchamp {

bool is_capturing(at::Device device) {
  return device.is_cuda() && cuda::is_capturing(cuda::current_queue(device.index()));
}

OutsideCapture::OutsideCapture(at::Device device) {
  if (!is_capturing(device)) return;
  relaxed_.emplace(cuda::driver());
  other_stream_.emplace(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

at::Tensor OutsideCapture::kept(at::Tensor made) const {
  if (!other_stream_) return made;
  const c10::impl::VirtualGuardImpl streams(made.device().type());
  made.record_stream(other_stream_->original_stream());
  made.record_stream(streams.getDefaultStream(made.device()));
  return made;
}

OutsideCapture::~OutsideCapture() noexcept(false) {
  if (other_stream_) other_stream_->current_stream().synchronize();
}

}  // namespace torchamp
