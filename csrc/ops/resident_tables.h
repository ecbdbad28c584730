// Long tables in torch's memory.
#pragma once

#include "backends/kernels.h"
#include "cuda/table_store.h"

namespace torchamp {

/// The calling thread's tables on a stream. What is there already is not copied again.
class ResidentTables : public cuda::TableStore {
 public:
  explicit ResidentTables(const cuda::Queue& queue) : queue_(queue) {}
  const unsigned char* put(const std::vector<unsigned char>& table) override;

 private:
  const cuda::Queue& queue_;
};

}  // namespace torchamp
