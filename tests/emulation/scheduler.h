// Runs a grid on the CPU: a fiber for each thread of a block, one block after the other.
//
// A thread runs until it waits for others. What the threads of a block write is ordered by
// __syncthreads alone, and blocks are not ordered at all: so it is told to the thread sanitizer,
// which then finds the races that a card would have.
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
/// a message when threads wait for one that never comes.
void run_grid(unsigned blocks, unsigned threads, void (*body)(void* argument), void* argument);

// For the thread that is running:

Index thread_index();
Index block_index();
Index block_size();
Index grid_size();

void sync_threads();

/// Gives `value` to the warp and takes that of `source`, a lane's number; lanes above 31 give back
/// the caller's.
std::uint64_t exchange(std::uint32_t mask, std::uint64_t value, unsigned source);

/// Whether any lane of the mask gives true.
bool any(std::uint32_t mask, bool predicate);

/// The block's memory for one declaration, which is known by its address. New memory is filled with
/// NaNs.
void* shared_memory(const void* declaration, std::size_t bytes);

}  // namespace emulation
