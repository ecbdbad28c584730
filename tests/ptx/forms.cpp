// Arithmetic as in the PTX ISA: rounding to nearest even, no flush to zero, NaN results canonical.
#include "forms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

#include "machine.h"

namespace ptx {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;

template <class To, class From>
To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To bits;
  std::memcpy(&bits, &value, sizeof(To));
  return bits;
}

/// A register's value as a T.
template <class T>
T unpack(u64 slot) {
  if constexpr (std::is_same_v<T, bool>) {
    return slot != 0;
  } else if constexpr (std::is_same_v<T, f32>) {
    return bits_of<f32>(static_cast<u32>(slot));
  } else if constexpr (std::is_same_v<T, f64>) {
    return bits_of<f64>(slot);
  } else {
    return static_cast<T>(slot);
  }
}

/// Results that are NaN are canonical.
template <class T>
u64 pack(T value) {
  if constexpr (std::is_same_v<T, f32>) {
    return value == value ? bits_of<u32>(value) : 0x7fffffffu;
  } else if constexpr (std::is_same_v<T, f64>) {
    return value == value ? bits_of<u64>(value) : 0x7fffffffffffffffu;
  } else {
    return static_cast<u64>(value);
  }
}

template <class Visit>
void for_each_lane(Mask lanes, Visit visit) {
  if (lanes == ~Mask{0}) {
    for (int lane = 0; lane < kLanes; ++lane) visit(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) visit(__builtin_ctz(lanes));
}

/// The form of a function of one lane's operands.
template <auto function>
struct EachLane;

template <class Result, class... Sources, Result (*function)(Sources...)>
struct EachLane<function> {
  template <std::size_t... i>
  static void apply(Warp& warp, const Instruction& instruction, Mask lanes,
                    std::index_sequence<i...>) {
    u64* const to = warp.destination(instruction.operands[0]);
    const u64* const from[] = {warp.source(instruction.operands[1 + i])...};
    for_each_lane(lanes, [&](int lane) {
      to[lane] = pack<Result>(function(unpack<Sources>(from[i][lane])...));
    });
  }

  static void execute(Warp& warp, const Instruction& instruction, Mask lanes) {
    apply(warp, instruction, lanes, std::index_sequence_for<Sources...>());
  }
};

template <class Result, class... Sources>
constexpr int operands_of(Result (*)(Sources...)) {
  return 1 + sizeof...(Sources);
}

template <auto function>
Form each_lane() {
  return {Kind::kEachLane, EachLane<function>::execute, operands_of(function), false};
}

template <class T>
using Unsigned = std::make_unsigned_t<T>;

/// As T, computed without undefined overflow.
template <class T, class Compute>
T wrapped(T a, T b, Compute compute) {
  return static_cast<T>(compute(static_cast<u64>(a), static_cast<u64>(b)));
}

template <class T>
T add(T a, T b) {
  return wrapped(a, b, [](u64 x, u64 y) { return x + y; });
}
template <class T>
T subtract(T a, T b) {
  return wrapped(a, b, [](u64 x, u64 y) { return x - y; });
}
template <class T>
T multiply(T a, T b) {
  return wrapped(a, b, [](u64 x, u64 y) { return x * y; });
}
template <class T>
T multiply_add(T a, T b, T c) {
  return add(multiply(a, b), c);
}
template <class T>
T divide(T a, T b) {
  return b == 0 ? static_cast<T>(~Unsigned<T>{0}) : static_cast<T>(a / b);
}
template <class T>
T negate(T a) {
  return subtract(T{0}, a);
}
template <class T>
T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T larger(T a, T b) {
  return a < b ? b : a;
}
template <class Wide, class T>
Wide multiply_wide(T a, T b) {
  return static_cast<Wide>(a) * static_cast<Wide>(b);
}
template <class T>
T shift_left(T a, u32 distance) {
  return distance < 8 * sizeof(T) ? static_cast<T>(a << distance) : T{0};
}
/// Of a signed T, fills with the sign.
template <class T>
T shift_right(T a, u32 distance) {
  constexpr u32 kMost = 8 * sizeof(T) - 1;
  if (distance > kMost) return std::is_signed_v<T> ? static_cast<T>(a >> kMost) : T{0};
  return static_cast<T>(a >> distance);
}

template <class T>
T both(T a, T b) {
  return a & b;
}
template <class T>
T either(T a, T b) {
  return a | b;
}
template <class T>
T differing(T a, T b) {
  return a ^ b;
}
template <class T>
T complement(T a) {
  return static_cast<T>(~a);
}
/// `count` low bits of a, in b from bit `first` on.
template <class T>
T insert_bits(T a, T b, u32 first, u32 count) {
  constexpr u32 kBits = 8 * sizeof(T);
  const u32 from = std::min(first & 255, kBits), length = std::min(count & 255, kBits - from);
  const T mask = static_cast<T>(length == kBits ? ~T{0} : ((T{1} << length) - 1) << (from % kBits));
  return from == kBits ? b : static_cast<T>((b & ~mask) | (a << from & mask));
}
/// Each byte of the result is chosen by four bits: one of the eight bytes of a and b, or its sign.
u32 permute(u32 a, u32 b, u32 choice) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i, choice >>= 4) {
    const auto byte = static_cast<signed char>(bytes >> (choice & 7) * 8);
    result |= static_cast<u32>((choice & 8) != 0 ? byte >> 7 : byte) % 256 << i * 8;
  }
  return result;
}
bool opposite(bool a) {
  return !a;
}

template <class T>
T same(T a) {
  return a;
}
template <class T>
T select(T a, T b, bool first) {
  return first ? a : b;
}

template <class T>
bool equal(T a, T b) {
  return a == b;
}
template <class T>
bool less(T a, T b) {
  return a < b;
}
template <class T>
bool less_or_equal(T a, T b) {
  return a <= b;
}
template <class T>
bool greater(T a, T b) {
  return a > b;
}
template <class T>
bool greater_or_equal(T a, T b) {
  return a >= b;
}
/// False for NaNs, unlike !=.
template <class T>
bool unequal(T a, T b) {
  return a < b || a > b;
}
template <class T>
bool any_nan(T a, T b) {
  return a != a || b != b;
}
template <class T>
bool no_nan(T a, T b) {
  return !any_nan(a, b);
}
/// True for NaNs too.
template <class T, bool (*compare)(T, T)>
bool or_nan(T a, T b) {
  return any_nan(a, b) || compare(a, b);
}

template <class T>
T float_add(T a, T b) {
  return a + b;
}
template <class T>
T float_subtract(T a, T b) {
  return a - b;
}
template <class T>
T float_multiply(T a, T b) {
  return a * b;
}
template <class T>
T float_divide(T a, T b) {
  return a / b;
}
template <class T>
T float_multiply_add(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <class T>
T reciprocal(T a) {
  return T{1} / a;
}
template <class T>
T square_root(T a) {
  return std::sqrt(a);
}
template <class T>
T float_negate(T a) {
  return -a;
}
template <class T>
T magnitude(T a) {
  return std::fabs(a);
}

template <class To, class From>
To convert(From value) {
  return static_cast<To>(value);
}

/// Toward zero. Values out of range become the nearest, NaN 0, or from doubles to 64 bits the least
/// signed and the middle unsigned one.
template <class To, class From>
To truncate(From value) {
  using Limits = std::numeric_limits<To>;
  if (value != value) {
    return sizeof(To) == 8 || sizeof(From) == 8 ? static_cast<To>(u64{1} << (8 * sizeof(To) - 1))
                                                : To{0};
  }
  constexpr int kBits = Limits::digits;
  if (value >= std::ldexp(From{1}, kBits)) return Limits::max();
  if (value < static_cast<From>(Limits::min())) return Limits::min();
  return static_cast<To>(value);
}

/// float16 has 11 significant bits, and multiples of 2^-24 below 2^-14.
f32 from_half(u16 bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const f32 sign = bits >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<f32>(fraction), -24);
  return sign * std::ldexp(static_cast<f32>(fraction + 1024), exponent - 25);
}

u16 to_half(f32 value) {
  if (value != value) return 0x7fff;
  const u16 sign = std::signbit(value) ? 0x8000 : 0;
  const f32 size = std::fabs(value);
  if (size == 0.0f) return sign;
  if (size >= 65520.0f) return static_cast<u16>(sign | 0x7c00);
  int exponent = 0;
  std::frexp(size, &exponent);
  const int unit = std::max(exponent - 11, -24);
  const int units = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
  // A carry into the exponent is right: 2048 units are 1024 of the next exponent.
  return static_cast<u16>(sign | (unit == -24 ? units : ((unit + 24) << 10) + units));
}

/// float16 values are looked up.
f32 widen_half(u16 bits) {
  static const std::vector<f32> values = [] {
    std::vector<f32> each(1 << 16);
    for (u32 i = 0; i < each.size(); ++i) each[i] = from_half(static_cast<u16>(i));
    return each;
  }();
  return values[bits];
}

// Memory.

enum class Space { kGeneric, kGlobal, kShared, kParameter };

/// The address on the host of `bytes` bytes; faults where the kernel may not access them.
template <Space space>
char* resolve(Warp& warp, const Instruction& instruction, u64 address, std::size_t bytes) {
  if (address % bytes != 0) {
    warp.fail(instruction, FaultKind::kMisaligned,
              "an access of " + std::to_string(bytes) + " bytes is misaligned");
  }
  Block& block = warp.block();
  if (space == Space::kShared) {
    char* const found = block.shared(static_cast<u32>(address), bytes);
    if (found != nullptr) return found;
    warp.fail(instruction, FaultKind::kIllegalAddress, "outside shared memory");
  }
  char* const found = reinterpret_cast<char*>(address);
  Grid& grid = block.grid();
  const bool is_parameter = grid.is_parameter(found) && grid.is_parameter(found + bytes - 1);
  if (space == Space::kParameter) {
    if (is_parameter) return found;
    warp.fail(instruction, FaultKind::kIllegalAddress, "outside the kernel's parameter");
  }
  const bool is_generic_parameter = space == Space::kGeneric && is_parameter;
  if (!is_generic_parameter && !grid.is_memory(found, bytes)) {
    warp.fail(instruction, FaultKind::kIllegalAddress,
              "an access of " + std::to_string(bytes) + " bytes outside allocated memory");
  }
  return found;
}

/// ld: `count` values of type T, an integer that extends to the register as the instruction says.
template <class T, int count, Space space>
void load(Warp& warp, const Instruction& instruction, Mask lanes) {
  Block& block = warp.block();
  const u64* const base = warp.source(instruction.operands[count]);
  for_each_lane(lanes, [&](int lane) {
    char* const from =
        resolve<space>(warp, instruction, base[lane] + instruction.offset, count * sizeof(T));
    for (int i = 0; i < count; ++i) {
      const T value = block.load<T>(from + i * sizeof(T));
      warp.destination(instruction.operands[i])[lane] = static_cast<u64>(value);
    }
    if (space == Space::kGlobal || (space == Space::kGeneric && !block.grid().is_parameter(from))) {
      block.grid().count_load(count * sizeof(T));
    }
  });
}

template <class T, int count, Space space>
void store(Warp& warp, const Instruction& instruction, Mask lanes) {
  Block& block = warp.block();
  const u64* const base = warp.source(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) {
    char* const to =
        resolve<space>(warp, instruction, base[lane] + instruction.offset, count * sizeof(T));
    for (int i = 0; i < count; ++i) {
      const T value = static_cast<T>(warp.source(instruction.operands[1 + i])[lane]);
      if (space == Space::kShared) {
        std::memcpy(to + i * sizeof(T), &value, sizeof(T));
      } else {
        block.store<T>(to + i * sizeof(T), value);
      }
    }
    if (space != Space::kShared) block.grid().count_store(count * sizeof(T));
  });
}

template <auto update>
void atomic(Warp& warp, const Instruction& instruction, Mask lanes) {
  const u64* const base = warp.source(instruction.operands[1]);
  const u64* const value = warp.source(instruction.operands[2]);
  u64* const to = warp.destination(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) {
    char* const at =
        resolve<Space::kGlobal>(warp, instruction, base[lane] + instruction.offset, sizeof(u32));
    to[lane] = update(reinterpret_cast<u32*>(at), static_cast<u32>(value[lane]));
  });
}

u32 fetch_add(u32* at, u32 value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

u32 fetch_max(u32* at, u32 value) {
  u32 before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (before < value && !__atomic_compare_exchange_n(at, &before, value, /*weak=*/true,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}

void fence(Warp& warp, const Instruction&, Mask) {
  warp.block().fence();
}

// Halves of registers.

/// mov.b32 to, {low, high} and its like.
template <class Part, int parts>
void join(Warp& warp, const Instruction& instruction, Mask lanes) {
  u64* const to = warp.destination(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) {
    u64 whole = 0;
    for (int i = 0; i < parts; ++i) {
      const Part part = static_cast<Part>(warp.source(instruction.operands[1 + i])[lane]);
      whole |= static_cast<u64>(part) << (8 * sizeof(Part) * i);
    }
    to[lane] = whole;
  });
}

template <class Part, int parts>
void split(Warp& warp, const Instruction& instruction, Mask lanes) {
  const u64* const from = warp.source(instruction.operands[parts]);
  for_each_lane(lanes, [&](int lane) {
    const u64 whole = from[lane];
    for (int i = 0; i < parts; ++i) {
      warp.destination(instruction.operands[i])[lane] =
          static_cast<Part>(whole >> (8 * sizeof(Part) * i));
    }
  });
}

// Warp operations.

/// shfl.sync.down: lanes past `last`, the low bits of the fourth operand, keep their own value.
void shuffle_down(Warp& warp, const Instruction& instruction, Mask lanes) {
  u64* const to = warp.destination(instruction.operands[0]);
  u64* const is_inside = warp.destination(instruction.operands[1]);
  Lanes value;
  std::memcpy(value.data(), warp.source(instruction.operands[2]), sizeof(value));
  const u64* const distance = warp.source(instruction.operands[3]);
  const u64* const last = warp.source(instruction.operands[4]);
  for_each_lane(lanes, [&](int lane) {
    const int other = lane + static_cast<int>(distance[lane] & 31);
    is_inside[lane] = other <= static_cast<int>(last[lane] & 31) ? 1 : 0;
    if (is_inside[lane] != 0 && (lanes >> other & 1) == 0) {
      warp.fail(instruction, FaultKind::kOther, "a lane reads one that does not take part");
    }
    to[lane] = static_cast<u32>(value[is_inside[lane] != 0 ? other : lane]);
  });
}

void vote_any(Warp& warp, const Instruction& instruction, Mask lanes) {
  const u64* const given = warp.source(instruction.operands[1]);
  const u64* const members = warp.source(instruction.members);
  Mask votes = 0;
  for_each_lane(lanes, [&](int lane) { votes |= static_cast<Mask>(given[lane] != 0) << lane; });
  Lanes results;
  for_each_lane(lanes, [&](int lane) { results[lane] = (votes & members[lane]) != 0 ? 1 : 0; });
  u64* const to = warp.destination(instruction.operands[0]);
  for_each_lane(lanes, [&](int lane) { to[lane] = results[lane]; });
}

using Forms = std::unordered_map<std::string, Form>;

template <class T>
void add_integers(Forms& forms, const std::string& type) {
  forms["add." + type] = each_lane<add<T>>();
  forms["sub." + type] = each_lane<subtract<T>>();
  forms["mul.lo." + type] = each_lane<multiply<T>>();
  forms["mad.lo." + type] = each_lane<multiply_add<T>>();
  forms["div." + type] = each_lane<divide<T>>();
  forms["neg." + type] = each_lane<negate<T>>();
  forms["min." + type] = each_lane<smaller<T>>();
  forms["max." + type] = each_lane<larger<T>>();
  forms["shr." + type] = each_lane<shift_right<T>>();
}

template <class T>
void add_bits(Forms& forms, const std::string& type) {
  forms["and." + type] = each_lane<both<T>>();
  forms["or." + type] = each_lane<either<T>>();
  forms["xor." + type] = each_lane<differing<T>>();
  forms["not." + type] = each_lane<complement<T>>();
  forms["shl." + type] = each_lane<shift_left<T>>();
}

template <class T>
void add_values(Forms& forms, const std::string& type) {
  forms["mov." + type] = each_lane<same<T>>();
  forms["selp." + type] = each_lane<select<T>>();
}

template <class T>
void add_comparisons(Forms& forms, const std::string& type) {
  forms["setp.eq." + type] = each_lane<equal<T>>();
  forms["setp.ne." + type] = each_lane<unequal<T>>();
  forms["setp.lt." + type] = each_lane<less<T>>();
  forms["setp.le." + type] = each_lane<less_or_equal<T>>();
  forms["setp.gt." + type] = each_lane<greater<T>>();
  forms["setp.ge." + type] = each_lane<greater_or_equal<T>>();
}

template <class T>
void add_floats(Forms& forms, const std::string& type) {
  add_comparisons<T>(forms, type);
  forms["setp.equ." + type] = each_lane<or_nan<T, equal<T>>>();
  forms["setp.neu." + type] = each_lane<or_nan<T, unequal<T>>>();
  forms["setp.ltu." + type] = each_lane<or_nan<T, less<T>>>();
  forms["setp.leu." + type] = each_lane<or_nan<T, less_or_equal<T>>>();
  forms["setp.gtu." + type] = each_lane<or_nan<T, greater<T>>>();
  forms["setp.geu." + type] = each_lane<or_nan<T, greater_or_equal<T>>>();
  forms["setp.nan." + type] = each_lane<any_nan<T>>();
  forms["setp.num." + type] = each_lane<no_nan<T>>();
  forms["add.rn." + type] = each_lane<float_add<T>>();
  forms["sub.rn." + type] = each_lane<float_subtract<T>>();
  forms["mul.rn." + type] = each_lane<float_multiply<T>>();
  forms["div.rn." + type] = each_lane<float_divide<T>>();
  forms["fma.rn." + type] = each_lane<float_multiply_add<T>>();
  forms["rcp.rn." + type] = each_lane<reciprocal<T>>();
  forms["sqrt.rn." + type] = each_lane<square_root<T>>();
  forms["neg." + type] = each_lane<float_negate<T>>();
  forms["abs." + type] = each_lane<magnitude<T>>();
}

template <class T, int count, Space space>
void add_accesses(Forms& forms, const std::string& modifiers) {
  forms["ld" + modifiers] = {Kind::kEachLane, load<T, count, space>, count + 1, true};
  if (space == Space::kParameter) return;
  forms["st" + modifiers] = {Kind::kEachLane, store<T, count, space>, count + 1, true};
}

template <class T, Space space>
void add_memory_of(Forms& forms, const std::string& space_name, const std::string& type) {
  add_accesses<T, 1, space>(forms, space_name + type);
  add_accesses<T, 2, space>(forms, space_name + ".v2" + type);
  if constexpr (sizeof(T) < 8) add_accesses<T, 4, space>(forms, space_name + ".v4" + type);
}

template <Space space>
void add_memory(Forms& forms, const std::string& name) {
  for (const char* type : {".u8", ".b8"}) add_memory_of<u8, space>(forms, name, type);
  add_memory_of<s8, space>(forms, name, ".s8");
  for (const char* type : {".u16", ".b16"}) add_memory_of<u16, space>(forms, name, type);
  add_memory_of<s16, space>(forms, name, ".s16");
  for (const char* type : {".u32", ".b32", ".f32"}) add_memory_of<u32, space>(forms, name, type);
  add_memory_of<s32, space>(forms, name, ".s32");
  for (const char* type : {".u64", ".b64", ".f64"}) add_memory_of<u64, space>(forms, name, type);
}

void add_conversions(Forms& forms) {
  forms["cvt.s32.s8"] = each_lane<convert<s32, s8>>();
  forms["cvt.u32.u16"] = each_lane<convert<u32, u16>>();
  forms["cvt.u16.u32"] = each_lane<convert<u16, u32>>();
  forms["cvt.u64.u32"] = each_lane<convert<u64, u32>>();
  forms["cvt.u32.u64"] = each_lane<convert<u32, u64>>();
  forms["cvt.s64.s32"] = each_lane<convert<s64, s32>>();
  forms["cvt.rn.f32.s32"] = each_lane<convert<f32, s32>>();
  forms["cvt.rn.f32.f64"] = each_lane<convert<f32, f64>>();
  forms["cvt.f64.f32"] = each_lane<convert<f64, f32>>();
  forms["cvt.rzi.s32.f32"] = each_lane<truncate<s32, f32>>();
  forms["cvt.rzi.s64.f64"] = each_lane<truncate<s64, f64>>();
  forms["cvt.f32.f16"] = each_lane<widen_half>();
  forms["cvt.rn.f16.f32"] = each_lane<to_half>();
  // Addresses are those of the host in every space but shared memory.
  for (const char* form : {"cvta.to.global.u64", "cvta.param.u64"}) {
    forms[form] = each_lane<same<u64>>();
  }
}

void add_control(Forms& forms) {
  for (const char* branch : {"bra", "bra.uni"}) forms[branch] = {Kind::kBranch, nullptr, 0, false};
  forms["ret"] = {Kind::kExit, nullptr, 0, false};
  forms["bar.sync"] = {Kind::kBarrier, nullptr, 1, false};
  forms["shfl.sync.down.b32"] = {Kind::kWarp, shuffle_down, 6, false};
  forms["vote.sync.any.pred"] = {Kind::kWarp, vote_any, 3, false};
  for (const char* form : {"membar.gl", "membar.sys"}) {
    forms[form] = {Kind::kEachLane, fence, 0, false};
  }
}

Forms make_forms() {
  Forms forms;
  add_integers<u16>(forms, "u16");
  add_integers<s16>(forms, "s16");
  add_integers<u32>(forms, "u32");
  add_integers<s32>(forms, "s32");
  add_integers<u64>(forms, "u64");
  add_integers<s64>(forms, "s64");
  forms["mul.wide.u16"] = each_lane<multiply_wide<u32, u16>>();
  forms["mul.wide.u32"] = each_lane<multiply_wide<u64, u32>>();
  forms["mul.wide.s32"] = each_lane<multiply_wide<s64, s32>>();
  for (const char* type : {"u16", "b16"}) add_values<u16>(forms, type);
  for (const char* type : {"u32", "b32", "f32"}) add_values<u32>(forms, type);
  for (const char* type : {"u64", "b64", "f64"}) add_values<u64>(forms, type);
  forms["mov.b32.join"] = {Kind::kEachLane, join<u16, 2>, 3, false};
  forms["mov.b32.split"] = {Kind::kEachLane, split<u16, 2>, 3, false};
  forms["mov.b64.join"] = {Kind::kEachLane, join<u32, 2>, 3, false};
  forms["mov.b64.split"] = {Kind::kEachLane, split<u32, 2>, 3, false};
  forms["mov.pred"] = each_lane<same<bool>>();
  add_bits<u16>(forms, "b16");
  add_bits<u32>(forms, "b32");
  add_bits<u64>(forms, "b64");
  forms["bfi.b32"] = each_lane<insert_bits<u32>>();
  forms["bfi.b64"] = each_lane<insert_bits<u64>>();
  forms["prmt.b32"] = each_lane<permute>();
  forms["and.pred"] = each_lane<both<bool>>();
  forms["or.pred"] = each_lane<either<bool>>();
  forms["xor.pred"] = each_lane<differing<bool>>();
  forms["not.pred"] = each_lane<opposite>();
  for (const char* type : {"u16", "b16"}) add_comparisons<u16>(forms, type);
  add_comparisons<s16>(forms, "s16");
  for (const char* type : {"u32", "b32"}) add_comparisons<u32>(forms, type);
  add_comparisons<s32>(forms, "s32");
  for (const char* type : {"u64", "b64"}) add_comparisons<u64>(forms, type);
  add_comparisons<s64>(forms, "s64");
  add_floats<f32>(forms, "f32");
  add_floats<f64>(forms, "f64");
  add_conversions(forms);
  add_memory<Space::kGeneric>(forms, "");
  add_memory<Space::kGlobal>(forms, ".global");
  add_memory<Space::kGlobal>(forms, ".volatile.global");
  add_memory<Space::kShared>(forms, ".shared");
  add_memory<Space::kParameter>(forms, ".param");
  for (const std::string form : {"atom.global.", "atom.relaxed.gpu.global."}) {
    forms[form + "add.u32"] = {Kind::kEachLane, atomic<fetch_add>, 3, true};
    forms[form + "max.u32"] = {Kind::kEachLane, atomic<fetch_max>, 3, true};
  }
  add_control(forms);
  return forms;
}

}  // namespace

const Form* find_form(const std::string& name) {
  static const Forms forms = make_forms();
  const auto found = forms.find(name);
  return found == forms.end() ? nullptr : &found->second;
}

}  // namespace ptx
