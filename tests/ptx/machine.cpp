#include "machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

constexpr Mask kAll = ~Mask{0};

int count(Mask lanes) {
  return __builtin_popcount(lanes);
}

}  // namespace

void DelayedStores::store(char* address, const char* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bytes_[address + i] = bytes[i];
}

void DelayedStores::overlay_stored(const char* address, char* bytes, std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i) {
    const auto stored = bytes_.find(const_cast<char*>(address) + i);
    if (stored != bytes_.end()) bytes[i] = stored->second;
  }
}

void DelayedStores::publish() {
  for (const auto& [address, byte] : bytes_) *address = byte;
  bytes_.clear();
}

Warp::Warp(Block& block, Kernel& kernel)
    : block_(block),
      kernel_(kernel),
      registers_(new std::uint64_t[static_cast<std::size_t>(kernel.registers) * kLanes]) {}

void Warp::start(unsigned first_thread, unsigned threads) {
  first_thread_ = first_thread;
  lanes_ = threads < kLanes ? (Mask{1} << threads) - 1 : kAll;
  left_ = 0;
  waiting_.clear();
  ready_.assign(1, {0, lanes_});
  const Grid& grid = block_.grid();
  for (int lane = 0; lane < kLanes; ++lane) {
    destination(kThread)[lane] = first_thread + lane;
    destination(kBlock)[lane] = block_.number();
    destination(kThreads)[lane] = grid.threads;
    destination(kBlocks)[lane] = grid.blocks;
    destination(kParameter)[lane] = reinterpret_cast<std::uintptr_t>(grid.parameter());
  }
}

const std::uint64_t* Warp::source(Operand operand) const {
  return operand < 0 ? kernel_.constants[-1 - operand].data() : &registers_[operand * kLanes];
}

void Warp::fail(const Instruction& instruction, FaultKind kind, const std::string& what) const {
  throw Fault(kind, kernel_.name + ", line " + std::to_string(instruction.line) + ", block " +
                        std::to_string(block_.number()) + ", warp " +
                        std::to_string(first_thread_ / kLanes) + ": " + what);
}

Mask Warp::guarded(const Instruction& instruction, Mask lanes) const {
  if (instruction.guard == kNone) return lanes;
  const std::uint64_t* const guard = source(instruction.guard);
  Mask chosen = 0;
  for (int lane = 0; lane < kLanes; ++lane) chosen |= static_cast<Mask>(guard[lane] != 0) << lane;
  return lanes & (instruction.guard_is_negated ? ~chosen : chosen);
}

/// Keeps groups in descending order, and merges those at the same instruction.
void Warp::place(std::vector<Group>& groups, Group group) const {
  auto position = groups.end();
  while (position != groups.begin() && (position - 1)->at < group.at) --position;
  if (position != groups.begin() && (position - 1)->at == group.at) {
    (position - 1)->lanes |= group.lanes;
  } else {
    groups.insert(position, group);
  }
}

void Warp::advance() {
  Group& group = ready_.back();
  ++group.at;
  if (ready_.size() == 1 || group.at < ready_[ready_.size() - 2].at) return;
  const Group moved = group;
  ready_.pop_back();
  place(ready_, moved);
}

void Warp::branch(const Instruction& instruction, Mask taken) {
  const Group group = ready_.back();
  ready_.pop_back();
  if (taken != group.lanes) place(ready_, {group.at + 1, group.lanes & ~taken});
  if (taken != 0) place(ready_, {static_cast<int>(instruction.offset), taken});
}

void Warp::leave(Mask lanes) {
  left_ |= lanes;
  ready_.back().lanes &= ~lanes;
  if (ready_.back().lanes == 0) {
    ready_.pop_back();
  } else {
    advance();
  }
}

void Warp::wait(const Instruction& instruction) {
  if (instruction.guard != kNone) fail(instruction, FaultKind::kOther, "waits under a condition");
  const Group group = ready_.back();
  ready_.pop_back();
  place(waiting_, group);
}

/// Executes the operation if all lanes that it names have come; else they wait.
void Warp::try_warp_operation(const Instruction& instruction) {
  wait(instruction);
  const int at = static_cast<int>(&instruction - kernel_.code.data());
  const auto group = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Group& each) { return each.at == at; });
  const std::uint64_t* const named = source(instruction.members);
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((group->lanes >> lane & 1) == 0) continue;
    const Mask mask = static_cast<Mask>(named[lane]);
    if ((mask >> lane & 1) == 0) {
      fail(instruction, FaultKind::kOther, "a lane is not in the mask of its warp operation");
    }
    if ((mask & left_ & lanes_) != 0 || (mask & ~lanes_) != 0) {
      fail(instruction, FaultKind::kOther,
           "a lane left the kernel before a warp operation that names it");
    }
    if ((mask & ~group->lanes) != 0) return;
  }
  instruction.execute(*this, instruction, group->lanes);
  const Group done{at + 1, group->lanes};
  waiting_.erase(group);
  place(ready_, done);
}

void Warp::run(std::uint64_t turn) {
  for (; turn != 0 && !ready_.empty(); --turn) {
    const Group& group = ready_.back();
    const Instruction& instruction = kernel_.code[group.at];
    const Mask lanes = guarded(instruction, group.lanes);
    kernel_.executed[group.at] = 1;
    switch (instruction.kind) {
      case Kind::kEachLane:
        if (lanes != 0) instruction.execute(*this, instruction, lanes);
        advance();
        break;
      case Kind::kBranch:
        branch(instruction, lanes);
        break;
      case Kind::kExit:
        leave(lanes);
        break;
      case Kind::kBarrier:
        wait(instruction);
        break;
      case Kind::kWarp:
        try_warp_operation(instruction);
        break;
    }
  }
}

Mask Warp::at_barrier() const {
  Mask lanes = 0;
  for (const Group& group : waiting_) {
    if (kernel_.code[group.at].kind == Kind::kBarrier) lanes |= group.lanes;
  }
  return lanes;
}

void Warp::expect_no_warp_operation() const {
  for (const Group& group : waiting_) {
    const Instruction& instruction = kernel_.code[group.at];
    if (instruction.kind != Kind::kWarp) continue;
    fail(instruction, FaultKind::kOther, "lanes wait in a warp operation for one elsewhere");
  }
}

void Warp::pass_barrier() {
  for (const Group& group : waiting_) place(ready_, {group.at + 1, group.lanes});
  waiting_.clear();
}

Block::Block(Grid& grid) : grid_(grid), shared_(grid.kernel.shared_bytes) {
  const unsigned warps = (grid.threads + kLanes - 1) / kLanes;
  warps_.reserve(warps);
  for (unsigned i = 0; i < warps; ++i) warps_.emplace_back(*this, grid.kernel);
}

/// Shared memory begins as NaNs.
void Block::start(unsigned number) {
  number_ = number;
  std::fill(shared_.begin(), shared_.end(), static_cast<char>(0xff));
  for (unsigned i = 0; i < warps_.size(); ++i) {
    warps_[i].start(i * kLanes, grid_.threads - i * kLanes);
  }
}

bool Block::advance() {
  std::vector<Warp*> ready;
  for (Warp& warp : warps_) {
    if (warp.is_ready()) ready.push_back(&warp);
  }
  if (ready.empty()) {
    release_barrier();
    return std::any_of(warps_.begin(), warps_.end(), [](Warp& warp) { return warp.is_ready(); });
  }
  const Schedule& schedule = grid_.schedule;
  if (!schedule.is_random) {
    for (Warp* warp : ready) warp->run(schedule.turn);
    return true;
  }
  ready[grid_.draw(static_cast<unsigned>(ready.size()))]->run(1 + grid_.draw(schedule.turn));
  if (grid_.draw(64) == 0) fence();
  return true;
}

/// Called when no warp can run: all threads have left, or all wait at a barrier, or never will.
void Block::release_barrier() {
  int left = 0, waiting = 0;
  for (const Warp& warp : warps_) {
    warp.expect_no_warp_operation();
    left += count(warp.left());
    waiting += count(warp.at_barrier());
  }
  if (waiting == 0) return;
  if (left != 0) {
    throw Fault(FaultKind::kOther, grid_.kernel.name + ", block " + std::to_string(number_) + ": " +
                                       std::to_string(left) +
                                       " threads have left before the barrier");
  }
  for (Warp& warp : warps_) warp.pass_barrier();
}

char* Block::shared(std::uint64_t offset, std::size_t bytes) {
  return offset + bytes <= shared_.size() ? shared_.data() + offset : nullptr;
}

void Block::fence() {
  delayed_.publish();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

Grid::Grid(Kernel& kernel, unsigned blocks, unsigned threads, const void* parameter,
           const Schedule& schedule, const Memory* memory)
    : kernel(kernel),
      blocks(blocks),
      threads(threads),
      schedule(schedule),
      parameter_(new char[kernel.parameter_bytes]),
      memory_(memory),
      random_(schedule.seed) {
  std::memcpy(parameter_.get(), parameter, kernel.parameter_bytes);
}

bool Grid::is_parameter(const char* address) const {
  return address >= parameter_.get() && address < parameter_.get() + kernel.parameter_bytes;
}

bool Grid::is_mapped(const char* address) {
  static const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(address) / page_bytes;
  std::uintptr_t& known = mapped_pages_[page % mapped_pages_.size()];
  if (known == page && page != 0) return true;
  unsigned char resident = 0;
  if (mincore(reinterpret_cast<void*>(page * page_bytes), page_bytes, &resident) != 0) return false;
  known = page;
  return true;
}

bool Grid::is_memory(const char* address, std::size_t bytes) {
  if (memory_ == nullptr) return is_mapped(address);  // an aligned access lies in one page
  const auto after = memory_->upper_bound(address);
  return after != memory_->begin() && address + bytes <= std::prev(after)->second;
}

void Grid::run() {
  std::vector<std::unique_ptr<Block>> running, rested;
  for (unsigned next = 0; next < blocks || !running.empty();) {
    while (next < blocks && running.size() < schedule.resident_blocks) {
      if (rested.empty()) rested.push_back(std::make_unique<Block>(*this));
      running.push_back(std::move(rested.back()));
      rested.pop_back();
      running.back()->start(next++);
    }
    const unsigned chosen = schedule.is_random ? draw(static_cast<unsigned>(running.size())) : 0;
    publish_some();
    if (running[chosen]->advance()) continue;
    lingering_.push_back(running[chosen]->take_stores());
    rested.push_back(std::move(running[chosen]));
    running.erase(running.begin() + chosen);
  }
  for (DelayedStores& stores : lingering_) stores.publish();
}

/// Now and then, those of a block that has ended.
void Grid::publish_some() {
  if (!schedule.is_random || lingering_.empty() || draw(64) != 0) return;
  const auto chosen = lingering_.begin() + draw(static_cast<unsigned>(lingering_.size()));
  chosen->publish();
  lingering_.erase(chosen);
}

}  // namespace ptx
