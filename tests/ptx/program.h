// A parsed PTX program: its kernels, as instructions whose operands are numbers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

constexpr int kLanes = 32;

/// One bit per lane of a warp.
using Mask = std::uint32_t;

/// A register of all lanes. Narrow values are extended; a predicate is true unless it is 0.
using Lanes = std::array<std::uint64_t, kLanes>;

class Warp;
struct Instruction;

/// Executes an instruction in those lanes.
using Execute = void (*)(Warp& warp, const Instruction& instruction, Mask lanes);

enum class Kind {
  kEachLane,
  kBranch,
  kExit,
  kBarrier,
  kWarp,  ///< executed at once by all lanes that its last operand names
};

/// Not negative: a register of the warp. Negative: the constant -1 - operand.
using Operand = int;

/// Registers that a warp has at its start, and one for results that are not used.
enum Special : Operand { kThread, kBlock, kThreads, kBlocks, kParameter, kSink, kSpecials };

constexpr Operand kNone = kSpecials;  ///< no operand: this register is never written

struct Instruction {
  Kind kind = Kind::kEachLane;
  Execute execute = nullptr;
  std::array<Operand, 6> operands{};
  Operand guard = kNone;
  bool guard_is_negated = false;
  Operand members = kNone;  ///< of a warp operation, the mask of the lanes that execute it
  std::int64_t offset = 0;  ///< of an address in bytes; of a branch, the target's index
  int line = 0;             ///< of the program's text, from 1
};

struct Kernel {
  std::string name;
  std::size_t parameter_bytes = 0;
  std::size_t parameter_alignment = 1;
  unsigned most_threads = 0;  ///< per block
  std::size_t shared_bytes = 0;
  int registers = kNone + 1;
  std::vector<Instruction> code;
  std::vector<Lanes> constants;
  std::vector<char> executed;  ///< per instruction, whether any lane came to it
};

struct Program {
  int version = 0;     ///< of PTX: 10 · major + minor
  int capability = 0;  ///< of the target: 10 · major + minor
  std::vector<std::unique_ptr<Kernel>> kernels;

  /// Null where there is none of that name.
  Kernel* find(const std::string& name) const;
};

/// Throws std::runtime_error that names the line where the text uses what is not supported.
Program parse(const std::string& text);

}  // namespace ptx
