// Reads the text that nvcc and NVRTC write: one statement per line.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>

#include "forms.h"
#include "program.h"

namespace ptx {
namespace {

std::string stripped(std::string line) {
  line.resize(std::min(line.size(), line.find("//")));
  const std::size_t first = line.find_first_not_of(" \t\r");
  const std::size_t last = line.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : line.substr(first, last + 1 - first);
}

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Program parse() {
    for (std::string line; std::getline(text_, line);) {
      ++line_;
      const std::string statement = stripped(line);
      if (statement.empty()) continue;
      if (kernel_ == nullptr) {
        declare(statement);
      } else if (is_in_body_) {
        parse_in_body(statement);
      } else {
        parse_in_header(statement);
      }
    }
    if (kernel_ != nullptr) fail("the text ends in kernel " + kernel_->name);
    return std::move(program_);
  }

 private:
  [[noreturn]] void fail_at(int line, const std::string& what) const {
    throw std::runtime_error("PTX, line " + std::to_string(line) + ": " + what);
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(line_, what); }

  bool matches(const std::string& statement, const std::regex& form) {
    return std::regex_match(statement, match_, form);
  }

  int number(int group) const { return std::stoi(match_[group]); }

  /// Global variables, which are constants that the program has inlined, are not operands.
  void declare(const std::string& statement) {
    static const std::regex version(R"(\.version (\d+)\.(\d+))");
    static const std::regex target(R"(\.target sm_(\d+)[a-z]?)");
    static const std::regex entry(R"(\.visible \.entry (\w+)\()");
    if (matches(statement, version)) {
      program_.version = 10 * number(1) + number(2);
    } else if (matches(statement, target)) {
      program_.capability = number(1);
    } else if (matches(statement, entry)) {
      begin_kernel(match_[1]);
    } else if (!declare_shared(statement) && statement != ".address_size 64" &&
               !starts_with(statement, ".global ")) {
      fail("unknown declaration: " + statement);
    }
  }

  /// Returns false if the statement does not declare shared memory.
  bool declare_shared(const std::string& statement) {
    static const std::regex array(R"(\.shared \.align (\d+) \.b8 ([\w$]+)\[(\d+)\];)");
    static const std::regex scalar(R"(\.shared \.align (\d+) \.[bu](\d+) ([\w$]+);)");
    if (matches(statement, array)) {
      share(match_[2], number(1), number(3));
    } else if (matches(statement, scalar)) {
      share(match_[3], number(1), number(2) / 8);
    } else {
      return false;
    }
    return true;
  }

  void share(const std::string& name, std::size_t alignment, std::size_t bytes) {
    shared_bytes_ = (shared_bytes_ + alignment - 1) / alignment * alignment;
    shared_[name] = shared_bytes_;
    shared_bytes_ += bytes;
  }

  void begin_kernel(const std::string& name) {
    program_.kernels.push_back(std::make_unique<Kernel>());
    kernel_ = program_.kernels.back().get();
    kernel_->name = name;
    declared_.clear();
    registers_.clear();
    constants_.clear();
    labels_.clear();
    branches_.clear();
    parameter_.clear();
  }

  void parse_in_header(const std::string& statement) {
    static const std::regex parameter(R"(\.param \.align (\d+) \.b8 (\w+)\[(\d+)\])");
    static const std::regex threads(R"(\.maxntid (\d+)(, 1, 1)?)");
    if (matches(statement, parameter)) {
      if (!parameter_.empty()) fail("kernel " + kernel_->name + " has several parameters");
      kernel_->parameter_alignment = number(1);
      kernel_->parameter_bytes = number(3);
      parameter_ = match_[2];
    } else if (matches(statement, threads)) {
      kernel_->most_threads = number(1);
    } else if (statement == "{") {
      is_in_body_ = true;
    } else if (statement != ")" && statement != ".minnctapersm 1") {
      fail("unknown in a kernel's header: " + statement);
    }
  }

  void parse_in_body(const std::string& statement) {
    static const std::regex registers(
        R"(\.reg \.(?:pred|b16|b32|b64|f32|f64)\s+(%[a-z]+)<(\d+)>;)");
    static const std::regex label(R"(([\w$]+):)");
    static const std::regex scope(R"(\{ \.reg \.b16 tmp; ([^;]*;) \})"), scoped(R"(\btmp\b)");
    if (statement == "}") {
      end_kernel();
    } else if (matches(statement, registers)) {
      declared_[match_[1]] = number(2);
    } else if (matches(statement, label)) {
      labels_[match_[1]] = static_cast<int>(kernel_->code.size());
    } else if (matches(statement, scope)) {
      declared_["%tmp"] = 1;
      parse_instruction(std::regex_replace(match_[1].str(), scoped, "%tmp0"));
    } else if (!declare_shared(statement) && !starts_with(statement, ".pragma ")) {
      parse_instruction(statement);
    }
  }

  void end_kernel() {
    for (const auto& [instruction, label] : branches_) {
      Instruction& branch = kernel_->code[instruction];
      const auto target = labels_.find(label);
      if (target == labels_.end()) fail_at(branch.line, "unknown label: " + label);
      branch.offset = target->second;
    }
    kernel_->shared_bytes = shared_bytes_;
    kernel_->executed.assign(kernel_->code.size(), 0);
    kernel_ = nullptr;
    is_in_body_ = false;
  }

  void parse_instruction(const std::string& statement) {
    static const std::regex form(R"((?:@(!?)(%p\d+)\s+)?([a-z][\w.]*)\s*(.*);)");
    std::smatch parts;
    if (!std::regex_match(statement, parts, form)) fail("unknown statement: " + statement);
    const Form* const known = find_form(form_of(parts[3], parts[4]));
    if (known == nullptr) fail("unknown instruction: " + statement);
    Instruction instruction;
    instruction.kind = known->kind;
    instruction.execute = known->execute;
    instruction.line = line_;
    if (parts[2].matched) instruction.guard = operand(parts[2]);
    instruction.guard_is_negated = parts[1].length() != 0;
    if (known->kind == Kind::kBranch) {
      branches_.emplace_back(kernel_->code.size(), parts[4]);
    } else {
      parse_operands(parts[4], *known, instruction);
    }
    kernel_->code.push_back(instruction);
  }

  /// A move between a register and its parts is a form of its own.
  static std::string form_of(const std::string& opcode, const std::string& operands) {
    if (!starts_with(opcode, "mov.") || operands.find('{') == std::string::npos) return opcode;
    return opcode + (operands[0] == '{' ? ".split" : ".join");
  }

  /// Operands are separated by commas; braces around a vector's and the bar between two results do
  /// not matter, since the form tells how many operands there are.
  void parse_operands(const std::string& text, const Form& form, Instruction& instruction) {
    static const std::regex separator(R"([^\s,{}|\[\]]+|\[[^\]]*\])");
    int count = 0;
    bool has_address = false;
    for (std::sregex_iterator each(text.begin(), text.end(), separator), end; each != end; ++each) {
      const std::string part = each->str();
      if (count == form.operands) fail("too many operands: " + text);
      if (part[0] == '[') {
        has_address = true;
        instruction.operands[count++] = address(part, instruction.offset);
      } else {
        instruction.operands[count++] = operand(part);
      }
    }
    if (form.kind == Kind::kWarp) instruction.members = instruction.operands[form.operands - 1];
    if (count != form.operands || has_address != form.has_address) fail("other operands: " + text);
  }

  Operand address(const std::string& text, std::int64_t& offset) {
    static const std::regex form(R"(\[([%\w$]+)(?:\+(-?\d+))?\])");
    std::smatch parts;
    if (!std::regex_match(text, parts, form)) fail("unknown address: " + text);
    if (parts[2].matched) offset = std::stoll(parts[2]);
    return operand(parts[1]);
  }

  Operand operand(const std::string& text) {
    static const std::map<std::string, Operand> specials{{"%tid.x", kThread},
                                                         {"%ctaid.x", kBlock},
                                                         {"%ntid.x", kThreads},
                                                         {"%nctaid.x", kBlocks},
                                                         {"_", kSink}};
    const auto special = specials.find(text);
    if (special != specials.end()) return special->second;
    if (text == parameter_) return kParameter;
    if (text[0] == '%') return register_of(text);
    const auto shared = shared_.find(text);
    return constant(shared != shared_.end() ? shared->second : literal(text));
  }

  Operand register_of(const std::string& name) {
    const auto known = registers_.find(name);
    if (known != registers_.end()) return known->second;
    const std::size_t digits = name.find_first_of("0123456789");
    const auto declared = declared_.find(name.substr(0, digits));
    if (digits == std::string::npos || declared == declared_.end() ||
        std::stoi(name.substr(digits)) >= declared->second) {
      fail("undeclared register: " + name);
    }
    return registers_[name] = kernel_->registers++;
  }

  /// "0f" and "0d" precede the bits of a float and a double.
  std::uint64_t literal(const std::string& text) const {
    const bool is_float = starts_with(text, "0f") || starts_with(text, "0d");
    char* end = nullptr;
    const char* const digits = text.c_str() + (is_float ? 2 : 0);
    errno = 0;
    const std::uint64_t value = text[0] == '-'
                                    ? static_cast<std::uint64_t>(std::strtoll(digits, &end, 0))
                                    : std::strtoull(digits, &end, is_float ? 16 : 0);
    if (errno != 0 || end == digits || *end != '\0') fail("unknown operand: " + text);
    return value;
  }

  Operand constant(std::uint64_t value) {
    const auto [known, is_new] =
        constants_.emplace(value, -1 - static_cast<Operand>(kernel_->constants.size()));
    if (is_new) {
      kernel_->constants.emplace_back();
      kernel_->constants.back().fill(value);
    }
    return known->second;
  }

  std::istringstream text_;
  int line_ = 0;
  std::smatch match_;
  Program program_;
  std::map<std::string, std::size_t> shared_;  ///< the offset of each shared variable
  std::size_t shared_bytes_ = 0;

  // Of the kernel that is being parsed:
  Kernel* kernel_ = nullptr;
  bool is_in_body_ = false;
  std::string parameter_;
  std::map<std::string, int> declared_;  ///< how many registers have that prefix
  std::map<std::string, Operand> registers_;
  std::map<std::uint64_t, Operand> constants_;
  std::map<std::string, int> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

Kernel* Program::find(const std::string& name) const {
  for (const auto& kernel : kernels) {
    if (kernel->name == name) return kernel.get();
  }
  return nullptr;
}

Program parse(const std::string& text) {
  return Parser(text).parse();
}

}  // namespace ptx
