// Runs a grid on the CPU. The lanes of a warp that are at the same instruction execute it together;
// those at the lowest one go first, so they meet again where their branches do.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <unordered_map>
#include <utility>

#include "program.h"

namespace ptx {

/// In which order warps run, and when a block's stores reach other blocks.
struct Schedule {
  unsigned resident_blocks = 1;  ///< blocks that take turns
  unsigned turn = 1u << 30;      ///< the most instructions that a warp executes in one turn
  bool delays_stores = false;    ///< until a fence, a random moment or the grid's end
  bool is_random = false;        ///< which warp is next, and how long its turn is
  std::uint32_t seed = 0;
};

/// Bytes of global memory that the lanes loaded and stored.
struct Traffic {
  std::uint64_t loaded = 0;
  std::uint64_t stored = 0;
};

enum class FaultKind { kIllegalAddress, kMisaligned, kOther };

/// An error of the program that runs. The message names kernel, line, block and warp.
struct Fault : std::runtime_error {
  Fault(FaultKind kind, const std::string& what) : std::runtime_error(what), kind(kind) {}
  FaultKind kind;
};

/// The stores of a block that other blocks do not see yet. The block itself does.
class DelayedStores {
 public:
  void store(char* address, const char* bytes, std::size_t count);
  /// Replaces what was loaded from there by what the block has stored there.
  void overlay(const char* address, char* bytes, std::size_t count) const {
    if (!bytes_.empty()) overlay_stored(address, bytes, count);
  }
  void publish();

 private:
  void overlay_stored(const char* address, char* bytes, std::size_t count) const;

  std::unordered_map<char*, char> bytes_;
};

class Block;

/// Lanes at the same instruction.
struct Group {
  int at;
  Mask lanes;
};

class Warp {
 public:
  Warp(Block& block, Kernel& kernel);

  void start(unsigned first_thread, unsigned threads);

  /// Executes up to `turn` instructions, until all lanes have left or wait.
  void run(std::uint64_t turn);

  bool is_ready() const { return !ready_.empty(); }
  Mask left() const { return left_; }
  Mask at_barrier() const;
  /// Continues after the barrier at which all lanes wait.
  void pass_barrier();
  /// Throws the fault of lanes that wait in a warp operation for one that does not come.
  void expect_no_warp_operation() const;

  const std::uint64_t* source(Operand operand) const;
  std::uint64_t* destination(Operand operand) { return &registers_[operand * kLanes]; }
  Block& block() const { return block_; }

  [[noreturn]] void fail(const Instruction& instruction, FaultKind kind,
                         const std::string& what) const;

 private:
  Mask guarded(const Instruction& instruction, Mask lanes) const;
  void place(std::vector<Group>& groups, Group group) const;
  void advance();
  void branch(const Instruction& instruction, Mask taken);
  void leave(Mask lanes);
  void wait(const Instruction& instruction);
  void try_warp_operation(const Instruction& instruction);

  Block& block_;
  Kernel& kernel_;
  std::unique_ptr<std::uint64_t[]> registers_;
  std::vector<Group> ready_;    ///< the lowest last
  std::vector<Group> waiting_;  ///< at a barrier or in a warp operation
  unsigned first_thread_ = 0;
  Mask lanes_ = 0;
  Mask left_ = 0;
};

/// The memory that a kernel may access: the ends of each allocation, by its beginning.
using Memory = std::map<const char*, const char*>;

/// One launch.
class Grid {
 public:
  /// `parameter`: kernel.parameter_bytes bytes. Without `memory` a kernel may access whatever is
  /// mapped in this process.
  Grid(Kernel& kernel, unsigned blocks, unsigned threads, const void* parameter,
       const Schedule& schedule, const Memory* memory = nullptr);

  /// Throws Fault.
  void run();

  const Traffic& traffic() const { return traffic_; }

  // For blocks and warps:
  Kernel& kernel;
  const unsigned blocks;
  const unsigned threads;
  const Schedule schedule;
  bool is_parameter(const char* address) const;
  bool is_memory(const char* address, std::size_t bytes);
  const char* parameter() const { return parameter_.get(); }
  unsigned draw(unsigned below) { return static_cast<unsigned>(random_() % below); }
  void count_load(std::size_t bytes) { traffic_.loaded += bytes; }
  void count_store(std::size_t bytes) { traffic_.stored += bytes; }

 private:
  void publish_some();
  bool is_mapped(const char* address);

  std::unique_ptr<char[]> parameter_;
  const Memory* const memory_;
  std::array<std::uintptr_t, 64> mapped_pages_{};  ///< a cache, by the last bits of their number
  std::mt19937 random_;
  std::vector<DelayedStores> lingering_;  ///< of blocks that have ended
  Traffic traffic_;
};

class Block {
 public:
  explicit Block(Grid& grid);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void start(unsigned number);

  /// Gives one warp a turn. Returns whether any lane is left to run.
  bool advance();

  unsigned number() const { return number_; }
  Grid& grid() const { return grid_; }
  char* shared(std::uint64_t offset, std::size_t bytes);

  /// `T`: an integer of the access's size, to which the address is aligned.
  template <class T>
  T load(const char* address) const {
    T value = __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_RELAXED);
    delayed_.overlay(address, reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  template <class T>
  void store(char* address, T value) {
    if (grid_.schedule.delays_stores) {
      delayed_.store(address, reinterpret_cast<const char*>(&value), sizeof(T));
    } else {
      __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELAXED);
    }
  }

  /// Publishes the stores so far.
  void fence();

  /// Those that are not published when the block has ended.
  DelayedStores take_stores() { return std::exchange(delayed_, {}); }

 private:
  void release_barrier();

  Grid& grid_;
  unsigned number_ = 0;
  std::vector<Warp> warps_;
  std::vector<char> shared_;
  DelayedStores delayed_;
};

}  // namespace ptx
