// The kernels that each device implements. No torch header: kernels see plans and pointers only.
//
// Everything is written element by element with the arithmetic of math/, so the devices agree bit
// for bit; only the norms may differ in their last bits. Pointers that a kernel reads its scalars
// from (inv_scale, loss_scale, …) are in the memory of the plan's device.
#pragma once

#include "backends/plan.h"
#include "math/clip.h"
#include "math/finalize.h"
#include "math/float8.h"
#include "math/optim/step.h"
#include "math/unscale.h"

namespace torchamp {

/// Which of axpby's inputs decide found_inf.
enum class Checked : uint8 { kX = 1, kY = 2, kBoth = 3 };

namespace cpu {

/// lists: scaled_grads, master_grads
void unscale(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags);
/// lists: x, y, out
void axpby(const Plan& plan, float a, float b, Checked checked, Flags flags);
/// lists: tensors
void check(const Plan& plan, Flags flags);
/// lists: tensors. Writes the norm of everything, and of each caller's position if per_tensor is
/// not null (entries of positions that the plan omits are not written). found_inf may be null. If
/// skip is neither null nor 0, reads no tensor and writes zeros.
void l2norm(const Plan& plan, float* norm, float* per_tensor, Flags flags, const float* skip);
/// lists: source, destination
void copy_cast(const Plan& plan);
/// lists: tensors. Writes the scales of `count` positions, 1 for those that the plan omits.
void float8_scales(const Plan& plan, Float8 format, int32 count, float* scales);
/// lists: matrices, plain and transposed outputs, whose addresses may be null. A plan's elements
/// are tiles. Rows are the matrices'. Scales are by position.
void float8_cast(const Plan& plan, const std::vector<Matrix>& matrices, const float* scales,
                 Float8 format);
/// lists: grads, params, states …, model_params. Tag 1: grad_factor does not apply to this grad.
/// Rows are the groups'. ticket: not used.
void step(Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
          const std::vector<HyperRow>& rows, uint32* ticket);
void update_scale(const ScaleUpdate& scale, const float* found_inf);
void clip(const Clipping& clipping);
void finalize(const Finalization& end);
/// The last of a backward's passes. lists: scaled_grads, master_grads, whose addresses may be null:
/// then the grad is only checked.
void finish_backward(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
                     const Finalization& end);

}  // namespace cpu

namespace cuda {

class TableStore;

/// The device's index, its current stream (a CUstream), and the store of long tables; null: they
/// are passed in several parameters.
struct Queue {
  int device;
  void* stream;
  TableStore* tables = nullptr;
};

void unscale(Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags);
/// Like cpu::finish_backward; the last block ends the backward, if `end` has a ticket. partials: at
/// least finish_backward_workspace(plan) bytes on the device, if the norm is computed.
void finish_backward(Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate,
                     Flags flags, const Finalization& end, float* partials);
int64 finish_backward_workspace(const Plan& plan);
void axpby(Queue queue, const Plan& plan, float a, float b, Checked checked, Flags flags);
void check(Queue queue, const Plan& plan, Flags flags);
/// workspace: at least l2norm_workspace(plan) bytes on the device, 16-byte aligned.
void l2norm(Queue queue, const Plan& plan, float* norm, float* per_tensor, Flags flags,
            const float* skip, void* workspace);
int64 l2norm_workspace(const Plan& plan);
void copy_cast(Queue queue, const Plan& plan);
/// workspace: count + 1 zeros on the device.
void float8_scales(Queue queue, const Plan& plan, Float8 format, int32 count, float* scales,
                   uint32* workspace);
/// Outputs are aligned to 16 bytes.
void float8_cast(Queue queue, const Plan& plan, const std::vector<Matrix>& matrices,
                 const float* scales, Float8 format);
/// ticket: a 0 on the device, and again afterwards; not shared.
void step(Queue queue, Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
          const std::vector<HyperRow>& rows, uint32* ticket);
void update_scale(Queue queue, const ScaleUpdate& scale, const float* found_inf);
void clip(Queue queue, const Clipping& clipping);
void finalize(Queue queue, const Finalization& end);

}  // namespace cuda

}  // namespace torchamp
