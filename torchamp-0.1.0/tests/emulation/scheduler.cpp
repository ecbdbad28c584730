#include "scheduler.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "fiber.h"
#include "sanitizers.h"

namespace emulation {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStackBytes = 256 << 10;

enum class State { kReady, kAtBarrier, kInWarpOperation, kDone };

/// A thread of the block.
struct Thread {
  Context context;
  State state = State::kReady;
  std::uint32_t mask = 0;        ///< of the warp operation that it waits in
  unsigned warp_operations = 0;  ///< started so far
  unsigned barriers = 0;         ///< reached so far
  void* tsan = nullptr;
  void* fake_stack = nullptr;
};

/// The values that the lanes of a warp exchange. A lane can be one operation ahead of another, so
/// there are two sets.
struct Warp {
  std::uint64_t given[2][kWarp] = {};
};

/// The state that the threads of a block share. The sanitizers identify it by its addresses, so it
/// is created before the threads and kept until the launch ends: reuse would order blocks.
class Shared {
 public:
  Shared() {
    for (char& byte : memory_) byte = static_cast<char>(0xff);
    asan_poison(memory_, sizeof(memory_));
  }
  ~Shared() { asan_unpoison(memory_, sizeof(memory_)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  /// Identifies each barrier; two, because a thread can be one barrier ahead.
  char* barrier(unsigned number) { return &barriers_[number % 2]; }

  /// The memory of one declaration, between poisoned gaps. Null if there is no room.
  char* memory(const void* declaration, std::size_t bytes) {
    for (std::size_t i = 0; i < declared_; ++i) {
      if (declarations_[i].of == declaration) return declarations_[i].memory;
    }
    const std::size_t begin = used_ + kGap;
    if (declared_ == kMaxDeclarations || begin + bytes + kGap > sizeof(memory_)) return nullptr;
    used_ = (begin + bytes + kGap - 1) / kGap * kGap;
    asan_unpoison(memory_ + begin, bytes);
    declarations_[declared_++] = {declaration, memory_ + begin};
    return memory_ + begin;
  }

 private:
  static constexpr std::size_t kGap = 64;
  static constexpr std::size_t kMaxDeclarations = 8;

  struct Declaration {
    const void* of;
    char* memory;
  };

  char barriers_[2] = {};
  Declaration declarations_[kMaxDeclarations] = {};
  std::size_t declared_ = 0;
  std::size_t used_ = 0;
  alignas(kGap) char memory_[4096];
};

struct Block {
  unsigned number = 0;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::unique_ptr<Shared> shared;
};

/// The stacks of a block's threads, contiguous in memory.
class Stacks {
 public:
  explicit Stacks(unsigned threads) : bytes_(threads * kStackBytes), memory_(map()) {}
  ~Stacks() { munmap(memory_, bytes_); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  char* of(unsigned thread) const { return memory_ + thread * kStackBytes; }

  /// Removes the sanitizers' state of the previous threads on these stacks.
  void renew() {
    asan_unpoison(memory_, bytes_);
    if (!has_tsan()) return;
    munmap(memory_, bytes_);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    memory_ = map();
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  }

 private:
  char* map() const {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<char*>(memory);
  }

  std::size_t bytes_;
  char* memory_;
};

/// The launch in progress.
struct Launch {
  unsigned blocks = 0;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  Context scheduler;
  void* scheduler_tsan = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  Stacks* stacks = nullptr;
  Block block;
  unsigned running = 0;
  char end = 0;  ///< its address identifies the end of the launch to the sanitizer
  std::vector<std::unique_ptr<Shared>> old_shared;
};

Launch* launch = nullptr;

Thread& running_thread() {
  return launch->block.threads[launch->running];
}

[[noreturn]] void fail(unsigned thread, const char* what) {
  std::fprintf(stderr, "emulation: thread %u of block %u %s\n", thread, launch->block.number, what);
  std::_Exit(1);
}

/// Returns to the scheduler, until it resumes this thread.
void pause() {
  Thread& thread = running_thread();
  const bool last = thread.state == State::kDone;
  asan_start_switch(last ? nullptr : &thread.fake_stack, launch->scheduler_stack,
                    launch->scheduler_stack_bytes);
  tsan_switch(launch->scheduler_tsan);
  thread.context.switch_to(launch->scheduler);
  asan_finish_switch(running_thread().fake_stack, nullptr, nullptr);
}

void run_thread() {
  asan_finish_switch(nullptr, &launch->scheduler_stack, &launch->scheduler_stack_bytes);
  launch->body(launch->argument);
  tsan_release(&launch->end);
  running_thread().state = State::kDone;
  pause();
}

void resume(unsigned number) {
  launch->running = number;
  Thread& thread = running_thread();
  void* fake_stack = nullptr;
  asan_start_switch(&fake_stack, launch->stacks->of(number), kStackBytes);
  tsan_switch(thread.tsan);
  launch->scheduler.switch_to(thread.context);
  asan_finish_switch(fake_stack, nullptr, nullptr);
}

void begin_block(unsigned number, unsigned threads) {
  Block& block = launch->block;
  block.number = number;
  block.threads = std::vector<Thread>(threads);
  block.warps = std::vector<Warp>((threads + kWarp - 1) / kWarp);
  block.shared = std::make_unique<Shared>();
  launch->stacks->renew();
  for (unsigned i = 0; i < threads; ++i) {
    block.threads[i].tsan = tsan_create();
    block.threads[i].context.prepare(launch->stacks->of(i), kStackBytes, run_thread);
  }
}

void end_block() {
  Block& block = launch->block;
  for (Thread& thread : block.threads) tsan_destroy(thread.tsan);
  launch->old_shared.push_back(std::move(block.shared));
}

/// Resumes every thread that can continue; returns whether there was one.
bool run_ready_threads() {
  bool any_ready = false;
  auto& threads = launch->block.threads;
  for (unsigned i = 0; i < threads.size(); ++i) {
    if (threads[i].state != State::kReady) continue;
    any_ready = true;
    resume(i);
  }
  return any_ready;
}

bool all_done() {
  for (const Thread& thread : launch->block.threads) {
    if (thread.state != State::kDone) return false;
  }
  return true;
}

/// Whether all lanes in the mask of thread `number`'s warp operation have reached it.
bool warp_is_complete(unsigned number) {
  const auto& threads = launch->block.threads;
  const unsigned first = number / kWarp * kWarp;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((threads[number].mask >> lane & 1) == 0) continue;
    if (first + lane >= threads.size()) fail(number, "names lanes that its warp does not have");
    const Thread& other = threads[first + lane];
    if (other.state == State::kDone) {
      fail(first + lane, "left the kernel before a warp operation that names it");
    }
    if (other.state != State::kInWarpOperation) return false;
    if (other.warp_operations != threads[number].warp_operations) return false;
  }
  return true;
}

bool release_warps() {
  auto& threads = launch->block.threads;
  std::vector<unsigned> complete;
  for (unsigned i = 0; i < threads.size(); ++i) {
    if (threads[i].state == State::kInWarpOperation && warp_is_complete(i)) complete.push_back(i);
  }
  for (unsigned i : complete) threads[i].state = State::kReady;
  return !complete.empty();
}

bool release_barrier() {
  auto& threads = launch->block.threads;
  for (unsigned i = 0; i < threads.size(); ++i) {
    if (threads[i].state == State::kDone) {
      fail(i, "left the kernel while others wait at __syncthreads");
    }
    if (threads[i].state != State::kAtBarrier) return false;
  }
  for (Thread& thread : threads) thread.state = State::kReady;
  return true;
}

void run_block(unsigned number, unsigned threads) {
  begin_block(number, threads);
  while (run_ready_threads()) {
    if (all_done() || release_warps() || release_barrier()) continue;
    fail(0, "and others wait for each other at different places");
  }
  end_block();
}

}  // namespace

void run_grid(unsigned blocks, unsigned threads, void (*body)(void*), void* argument) {
  Stacks stacks(threads);
  Launch current;
  current.blocks = blocks;
  current.body = body;
  current.argument = argument;
  current.scheduler_tsan = tsan_current();
  current.stacks = &stacks;
  launch = &current;
  for (unsigned number = 0; number < blocks; ++number) run_block(number, threads);
  tsan_acquire(&current.end);
  launch = nullptr;
}

Index thread_index() {
  return {launch->running};
}
Index block_index() {
  return {launch->block.number};
}
Index block_size() {
  return {static_cast<unsigned>(launch->block.threads.size())};
}
Index grid_size() {
  return {launch->blocks};
}

void sync_threads() {
  Thread& thread = running_thread();
  char* name = launch->block.shared->barrier(thread.barriers++);
  tsan_release(name);
  thread.state = State::kAtBarrier;
  pause();
  tsan_acquire(name);
}

namespace {

/// Passes `value` to the warp, waits for the lanes of the mask, and returns the values of all.
const std::uint64_t* meet(std::uint32_t mask, std::uint64_t value) {
  Thread& thread = running_thread();
  const unsigned lane = launch->running % kWarp;
  if ((mask >> lane & 1) == 0) fail(launch->running, "is not in the mask of its warp operation");
  auto& given = launch->block.warps[launch->running / kWarp].given[thread.warp_operations++ % 2];
  given[lane] = value;
  thread.mask = mask;
  thread.state = State::kInWarpOperation;
  pause();
  return given;
}

}  // namespace

std::uint64_t exchange(std::uint32_t mask, std::uint64_t value, unsigned source) {
  const std::uint64_t* given = meet(mask, value);
  return source < kWarp ? given[source] : value;
}

bool any(std::uint32_t mask, bool predicate) {
  const std::uint64_t* given = meet(mask, predicate);
  bool found = false;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    found |= (mask >> lane & 1) != 0 && given[lane] != 0;
  return found;
}

void* shared_memory(const void* declaration, std::size_t bytes) {
  char* memory = launch->block.shared->memory(declaration, bytes);
  if (memory == nullptr) fail(launch->running, "declares more shared memory than is emulated");
  return memory;
}

}  // namespace emulation
