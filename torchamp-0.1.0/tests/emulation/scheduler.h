// Runs a grid on the CPU: a fiber for each thread of a block, one block after the other.
//
// A thread runs until it waits for others. For the thread sanitizer, only __syncthreads orders the
// writes of a block's threads, and nothing orders blocks, so it finds the races that a card would
// have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulation {

struct Index {
  unsigned x;
  unsigned y = 0;
  unsigned z = 0;
};

/// Runs body(argument) once for each thread of `blocks` blocks of `threads`. Ends the process with
/// a message if threads wait for one that never arrives.
void run_grid(unsigned blocks, unsigned threads, void (*body)(void* argument), void* argument);

// For the running thread:

Index thread_index();
Index block_index();
Index block_size();
Index grid_size();

void sync_threads();

/// Passes `value` to the warp and returns that of lane `source`; lanes above 31 return the
/// caller's.
std::uint64_t exchange(std::uint32_t mask, std::uint64_t value, unsigned source);

/// Whether any lane of the mask passes true.
bool any(std::uint32_t mask, bool predicate);

/// The block's shared memory for one declaration, identified by its address. New memory is filled
/// with NaNs.
void* shared_memory(const void* declaration, std::size_t bytes);

}  // namespace emulation
