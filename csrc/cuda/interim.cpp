#include <cstdlib>
#include <cstring>
#include "cuda/module.h"
#include "cuda/stream.h"
namespace torchamp::cuda {
bool forced_aten() { const char* v = std::getenv("TORCHAMP_KERNELS"); return v && !std::strcmp(v, "aten"); }
Rung rung(int) { return Rung::kAten; }
Queue current_queue(int d) { return {d, nullptr}; }
void scale(Queue, const Plan&, float, Flags) {}
void unscale(Queue, const Plan&, const float*, bool, Flags) {}
void axpby(Queue, const Plan&, float, float, Checked, Flags) {}
void check(Queue, const Plan&, Flags) {}
void l2norm(Queue, const Plan&, float*, float*, Flags, void*) {}
int64 l2norm_workspace(const Plan&) { return 0; }
void copy_cast(Queue, const Plan&) {}
void update_scale(Queue, float*, int32*, int32*, const float*, const ScaleRule&) {}
}
