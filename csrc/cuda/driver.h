// The few functions of the CUDA driver that torchamp needs, found in libcuda at run time: nothing
// of CUDA is linked or included, so one binary serves machines with and without it.
#pragma once

#include <stdexcept>
#include <string>

namespace torchamp::cuda {

/// The driver's functions under shortened names, with its handles as void*. Each returns 0 or an
/// error code.
struct Driver {
  int (*init)(unsigned flags);
  int (*driver_version)(int* version);
  int (*device_get)(int* device, int ordinal);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*primary_context_retain)(void** context, int device);
  int (*primary_context_release)(int device);
  int (*context_push)(void* context);
  int (*context_pop)(void** context);
  int (*module_load)(void** module, const void* image);
  int (*module_unload)(void* module);
  int (*module_function)(void** function, void* module, const char* name);
  int (*function_load)(void* function);  ///< CUDA 12.4 on; else null
  int (*launch_kernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       void* stream, void** parameters, void** extra);
  int (*stream_is_capturing)(void* stream, int* status);
  int (*exchange_capture_mode)(int* mode);
  int (*error_name)(int code, const char** name);
};

/// The driver of this machine, initialised. Throws std::runtime_error with the reason if there is
/// none.
const Driver& driver();

/// Makes driver() return `fake`, which must outlive its use. For tests, before the first load.
void use_driver(const Driver& fake);

/// A device's memory is full, which may be otherwise at the next attempt.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws std::runtime_error that names `action` and the error, unless `code` is 0; OutOfMemory
/// where that is the error.
void require(const Driver& driver, int code, const std::string& action);

/// A device's primary context, which torch's streams belong to, kept from being destroyed.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  void* handle() const { return context_; }

 private:
  const Driver& driver_;
  int device_ = 0;
  void* context_ = nullptr;
};

/// Makes a context current for the calling thread, and restores the previous one.
class ContextScope {
 public:
  ContextScope(const Driver& driver, void* context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
};

/// Lets the calling thread load modules while some stream is being captured into a graph.
class RelaxedCaptureScope {
 public:
  explicit RelaxedCaptureScope(const Driver& driver);
  ~RelaxedCaptureScope();
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  const Driver& driver_;
  int mode_;
};

}  // namespace torchamp::cuda
