// The executor itself, on programs of a few lines.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "machine.h"
#include "math/float16.h"

namespace ptx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

std::string program_of(const std::string& body) {
  return R"(.version 9.0
.target sm_90
.address_size 64
.shared .align 8 .b8 shared_words[256];
.visible .entry run(
	.param .align 8 .b8 run_param_0[32]
)
.maxntid 512, 1, 1
.minnctapersm 1
{
	.reg .pred 	%p<10>;
	.reg .b32 	%r<10>;
	.reg .b64 	%rd<10>;
)" + body +
         "\tret;\n}\n";
}

/// Runs the body with up to four pointers as parameter.
void run(const std::string& body, std::array<const void*, 4> pointers, unsigned blocks = 1,
         unsigned threads = 32, const Schedule& schedule = {}) {
  const Program program = parse(program_of(body));
  Grid(*program.find("run"), blocks, threads, pointers.data(), schedule).run();
}

std::string fault_of(const std::string& body, const void* pointer = nullptr,
                     unsigned threads = 32) {
  try {
    run(body, {pointer}, 1, threads);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "none";
}

std::string error_of(const std::string& body) {
  try {
    parse(program_of(body));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

/// The bits that an instruction gives for the bits of its operands.
u64 result_of(const std::string& instruction, std::vector<u64> operands) {
  operands.resize(4);
  u64 result = 0;
  run(R"(	ld.param.u64 	%rd8, [run_param_0];
	ld.global.u64 	%rd1, [%rd8];
	ld.global.u64 	%rd2, [%rd8+8];
	ld.global.u64 	%rd3, [%rd8+16];
	ld.global.u64 	%r4, [%rd8+24];
	setp.ne.s32 	%p1, %r4, 0;
	)" +
          instruction + R"(
	ld.param.u64 	%rd9, [run_param_0+8];
	st.global.u64 	[%rd9], %rd0;
)",
      {operands.data(), &result}, 1, 1);
  return result;
}

u64 bits(float value) {
  u32 bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

u64 bits(double value) {
  u64 bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

constexpr u64 kFloatNan = 0x7fffffff, kDoubleNan = 0x7fffffffffffffff;

struct Case {
  const char* instruction;
  std::vector<u64> operands;
  u64 expected;
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.instruction;
}

class Instructions : public testing::TestWithParam<Case> {};

TEST_P(Instructions, FollowTheManual) {
  const Case& each = GetParam();
  EXPECT_EQ(result_of(each.instruction, each.operands), each.expected) << each.instruction;
}

const float kTiny = std::ldexp(1.0f, -100), kUlp = std::ldexp(1.0f, -23);

INSTANTIATE_TEST_SUITE_P(
    Floats, Instructions,
    testing::Values(
        // Subnormals are not flushed.
        Case{"mul.rn.f32 	%rd0, %rd1, %rd2;",
             {bits(kTiny), bits(std::ldexp(1.0f, -40))},
             bits(std::ldexp(1.0f, -140))},
        // One rounding: (1 + ulp)² - (1 + 2 ulp) = ulp².
        Case{"fma.rn.f32 	%rd0, %rd1, %rd2, %rd3;",
             {bits(1 + kUlp), bits(1 + kUlp), bits(-(1 + 2 * kUlp))},
             bits(kUlp* kUlp)},
        Case{"add.rn.f32 	%rd0, %rd1, %rd2;", {bits(INFINITY), bits(-INFINITY)}, kFloatNan},
        Case{"add.rn.f64 	%rd0, %rd1, %rd2;", {bits(1e300), bits(NAN)}, bits(1e300)},
        Case{"sub.rn.f64 	%rd0, %rd1, %rd2;",
             {bits(double{INFINITY}), bits(double{INFINITY})},
             kDoubleNan},
        Case{"div.rn.f32 	%rd0, %rd1, %rd2;", {bits(1.0f), bits(-0.0f)}, bits(-INFINITY)},
        Case{"rcp.rn.f32 	%rd0, %rd1;", {bits(3.0f)}, bits(1.0f / 3.0f)},
        Case{"sqrt.rn.f32 	%rd0, %rd1;", {bits(-1.0f)}, kFloatNan},
        Case{"neg.f32 	%rd0, %rd1;", {bits(0.0f)}, bits(-0.0f)},
        Case{"abs.f32 	%rd0, %rd1;", {bits(-INFINITY)}, bits(INFINITY)},
        Case{"cvt.rzi.s32.f32 	%rd0, %rd1;", {bits(-1.9f)}, ~u64{0}},
        Case{"cvt.rzi.s32.f32 	%rd0, %rd1;", {bits(3e9f)}, 0x7fffffff},
        Case{"cvt.rzi.s32.f32 	%rd0, %rd1;", {bits(NAN)}, 0},
        Case{"cvt.rzi.s64.f64 	%rd0, %rd1;", {bits(double{NAN})}, u64{1} << 63},
        Case{"cvt.rzi.s64.f64 	%rd0, %rd1;", {bits(-1e30)}, u64{1} << 63},
        Case{"cvt.rn.f32.f64 	%rd0, %rd1;", {bits(1.0 + 0.5 * kUlp)}, bits(1.0f)}));

INSTANTIATE_TEST_SUITE_P(
    Comparisons, Instructions,
    testing::Values(Case{"setp.ne.f32 	%rd0, %rd1, %rd2;", {bits(NAN), bits(1.0f)}, 0},
                    Case{"setp.neu.f32 	%rd0, %rd1, %rd2;", {bits(NAN), bits(1.0f)}, 1},
                    Case{"setp.neu.f32 	%rd0, %rd1, %rd2;", {bits(1.0f), bits(1.0f)}, 0},
                    Case{"setp.equ.f32 	%rd0, %rd1, %rd2;", {bits(NAN), bits(NAN)}, 1},
                    Case{"setp.gtu.f32 	%rd0, %rd1, %rd2;", {bits(1.0f), bits(2.0f)}, 0},
                    Case{"setp.nan.f32 	%rd0, %rd1, %rd2;", {bits(1.0f), bits(NAN)}, 1},
                    Case{"setp.lt.s32 	%rd0, %rd1, %rd2;", {0xffffffff, 0}, 1},
                    Case{"setp.lt.u32 	%rd0, %rd1, %rd2;", {0xffffffff, 0}, 0},
                    Case{"setp.lt.u16 	%rd0, %rd1, %rd2;", {0x10001, 2}, 1},
                    Case{"selp.b32 	%rd0, %rd1, %rd2, %p1;", {5, 6, 0, 1}, 5},
                    Case{"selp.b32 	%rd0, %rd1, %rd2, %p1;", {5, 6, 0, 0}, 6},
                    Case{"@!%p1 mov.u32 	%rd0, 9;", {0, 0, 0, 0}, 9}));

INSTANTIATE_TEST_SUITE_P(
    Integers, Instructions,
    testing::Values(Case{"add.s32 	%rd0, %rd1, %rd2;", {0x7fffffff, 1}, 0xffffffff80000000},
                    Case{"mul.wide.s32 	%rd0, %rd1, %rd2;", {0xffffffff, 3}, ~u64{0} - 2},
                    Case{"mul.wide.u32 	%rd0, %rd1, %rd2;", {0xffffffff, 3}, 0x2fffffffd},
                    Case{"mad.lo.s32 	%rd0, %rd1, -3, %rd2;", {2, 7}, 1},
                    Case{"shr.s32 	%rd0, %rd1, %rd2;", {0x80000000, 40}, ~u64{0}},
                    Case{"shr.u32 	%rd0, %rd1, %rd2;", {0x80000000, 31}, 1},
                    Case{"shl.b32 	%rd0, %rd1, %rd2;", {1, 32}, 0},
                    Case{"not.b32 	%rd0, %rd1;", {0}, 0xffffffff},
                    Case{"bfi.b64 	%rd0, %rd1, %rd2, 32, 32;", {7, 9}, (u64{7} << 32) + 9},
                    Case{"bfi.b32 	%rd0, %rd1, %rd2, 8, 4;", {0xff, 0}, 0xf00},
                    Case{"prmt.b32 	%rd0, %rd1, %rd2, 20800;", {0x3210, 0x7654}, 0x76325410},
                    Case{"prmt.b32 	%rd0, %rd1, %rd2, 664;", {0x80ff, 0}, 0xff00ffff},
                    Case{"div.u32 	%rd0, %rd1, %rd2;", {7, 2}, 3},
                    Case{"cvt.s32.s8 	%rd0, %rd1;", {0x1ff}, ~u64{0}},
                    Case{"mov.b32 	%rd0, {%rd1, %rd2};", {0x11111, 2}, 0x21111},
                    Case{"mov.b32 	{%rd3, %rd0}, %rd1;", {0x54321}, 5}));

/// Every float16, and every boundary between two.
TEST(Conversions, RoundAsTorchampsFloat16) {
  std::vector<float> values;
  for (u32 i = 0; i < 0x7c00; ++i) {
    const float value = torchamp::to_float(torchamp::float16{static_cast<std::uint16_t>(i)});
    EXPECT_EQ(result_of("cvt.f32.f16 	%rd0, %rd1;", {i}), bits(value));
    if (i % 61 != 0) continue;
    const float next = torchamp::to_float(torchamp::float16{static_cast<std::uint16_t>(i + 1)});
    const float middle = std::isinf(next) ? 65520.0f : (value + next) / 2;
    for (const float each :
         {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      values.push_back(each);
      values.push_back(-each);
    }
  }
  values.insert(values.end(), {INFINITY, -INFINITY, 65519.996f, 65520.0f, 1e30f, 1e-30f});
  for (const float value : values) {
    EXPECT_EQ(result_of("cvt.rn.f16.f32 	%rd0, %rd1;", {bits(value)}),
              torchamp::from_float<torchamp::float16>(value).bits)
        << value;
  }
  EXPECT_EQ(result_of("cvt.rn.f16.f32 	%rd0, %rd1;", {bits(NAN)}), 0x7fffu);
}

/// Lane i adds 1 to i times in a loop, so that lanes leave it at different times.
TEST(Lanes, MeetAgainAfterALoop) {
  std::vector<u32> results(64);
  run(R"(	ld.param.u64 	%rd1, [run_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	mov.u32 	%r2, 0;
	mov.u32 	%r3, 0;
$L__loop:
	setp.ge.u32 	%p1, %r2, %r1;
	@%p1 bra 	$L__end;
	add.s32 	%r3, %r3, %r2;
	add.s32 	%r2, %r2, 1;
	bra.uni 	$L__loop;
$L__end:
	shfl.sync.down.b32 	%r4|%p2, %r3, 1, 31, -1;
	selp.b32 	%r5, %r4, 0, %p2;
	st.global.u32 	[%rd3], %r5;
)",
      {results.data()}, 1, 64);
  for (u32 i = 0; i < 64; ++i) {
    EXPECT_EQ(results[i], i % 32 == 31 ? 0 : (i + 1) * i / 2) << "thread " << i;
  }
}

/// Each warp reads what the other wrote before the barrier.
TEST(Barriers, OrderAccessesToSharedMemory) {
  for (u32 seed = 0; seed < 20; ++seed) {
    std::vector<u32> results(64);
    Schedule schedule;
    schedule.turn = 3;
    schedule.is_random = true;
    schedule.seed = seed;
    run(R"(	ld.param.u64 	%rd1, [run_param_0];
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 2;
	mov.u32 	%r3, shared_words;
	add.s32 	%r4, %r3, %r2;
	st.shared.u32 	[%r4], %r1;
	bar.sync 	0;
	sub.s32 	%r5, 252, %r2;
	ld.shared.u32 	%r6, [%r5];
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], %r6;
)",
        {results.data()}, 1, 64, schedule);
    for (u32 i = 0; i < 64; ++i) ASSERT_EQ(results[i], 63 - i) << "seed " << seed;
  }
}

/// Each block writes 1, draws a ticket, and stays for a while; the last one adds what all wrote.
int wrong_sums(const std::string& fence) {
  int wrong = 0;
  for (u32 seed = 0; seed < 50; ++seed) {
    std::array<u32, 16> written{};
    u32 ticket = 0, sum = 0;
    Schedule schedule;
    schedule.resident_blocks = 8;
    schedule.turn = 4;
    schedule.delays_stores = schedule.is_random = true;
    schedule.seed = seed;
    run(R"(	ld.param.u64 	%rd1, [run_param_0];
	mov.u32 	%r1, %ctaid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], 1;
)" + fence + R"(	ld.param.u64 	%rd4, [run_param_0+8];
	atom.global.add.u32 	%r2, [%rd4], 1;
	setp.eq.s32 	%p1, %r2, 15;
	mov.u32 	%r3, 0;
	mov.u32 	%r4, 0;
	@%p1 bra 	$L__loop;
$L__stay:
	add.s32 	%r3, %r3, 1;
	setp.lt.u32 	%p2, %r3, 50;
	@%p2 bra 	$L__stay;
	bra.uni 	$L__end;
$L__loop:
	ld.global.u32 	%r5, [%rd1];
	add.s32 	%r4, %r4, %r5;
	add.s64 	%rd1, %rd1, 4;
	add.s32 	%r3, %r3, 1;
	setp.lt.u32 	%p2, %r3, 16;
	@%p2 bra 	$L__loop;
	ld.param.u64 	%rd5, [run_param_0+16];
	st.global.u32 	[%rd5], %r4;
$L__end:
)",
        {written.data(), &ticket, &sum}, 16, 1, schedule);
    wrong += sum != 16;
  }
  return wrong;
}

TEST(Stores, ReachOtherBlocksAtAFence) {
  EXPECT_EQ(wrong_sums("	membar.gl;\n"), 0);
  EXPECT_GT(wrong_sums(""), 10);
}

TEST(Faults, NameKernelLineBlockAndWarp) {
  const std::string load = "	ld.param.u64 	%rd1, [run_param_0];\n";
  const u64 aligned[2] = {};
  EXPECT_EQ(fault_of(load + "	ld.global.v2.u32 	{%r1, %r2}, [%rd1+4];\n", aligned),
            "run, line 15, block 0, warp 0: an access of 8 bytes is misaligned");
  for (const u64 unmapped : {u64{0}, u64{4096}, u64{1} << 56}) {
    EXPECT_EQ(fault_of(load + "	st.global.u32 	[%rd1], 0;\n", reinterpret_cast<void*>(unmapped)),
              "run, line 15, block 0, warp 0: an access of 4 bytes outside allocated memory");
  }
  EXPECT_EQ(fault_of("	ld.shared.u32 	%r1, [shared_words+256];\n"),
            "run, line 14, block 0, warp 0: outside shared memory");
  EXPECT_EQ(fault_of("	ld.param.u64 	%rd1, [run_param_0+32];\n"),
            "run, line 14, block 0, warp 0: outside the kernel's parameter");
}

/// Threads of the second warp leave first.
const std::string kSecondWarpLeaves =
    "	mov.u32 	%r1, %tid.x;\n	setp.ge.u32 	%p1, %r1, 32;\n	@%p1 ret;\n";
const std::string kOddLanesLeave =
    "	mov.u32 	%r1, %tid.x;\n	and.b32 	%r2, %r1, 1;\n	setp.ne.s32 	%p1, %r2, "
    "0;\n"
    "	@%p1 ret;\n";

TEST(Faults, AreThreadsThatWaitForOthersThatHaveLeft) {
  EXPECT_EQ(fault_of(kSecondWarpLeaves + "	bar.sync 	0;\n", nullptr, 96),
            "run, block 0: 64 threads have left before the barrier");
  EXPECT_EQ(fault_of(kOddLanesLeave + "	vote.sync.any.pred 	%p2, %p1, -1;\n"),
            "run, line 18, block 0, warp 0: a lane left the kernel before a warp operation that "
            "names it");
  EXPECT_EQ(fault_of(kOddLanesLeave + "	vote.sync.any.pred 	%p2, %p1, 1431655765;\n"), "none");
  EXPECT_EQ(fault_of("	vote.sync.any.pred 	%p2, %p1, 1;\n"),
            "run, line 14, block 0, warp 0: a lane is not in the mask of its warp operation");
}

TEST(Errors, NameTheLineOfWhatIsNotSupported) {
  EXPECT_EQ(error_of("	sin.approx.f32 	%r1, %r2;\n"),
            "PTX, line 14: unknown instruction: sin.approx.f32 	%r1, %r2;");
  EXPECT_EQ(error_of("	add.s32 	%r1, %r2, %r77;\n"),
            "PTX, line 14: undeclared register: %r77");
  EXPECT_EQ(error_of("	add.s32 	%r1, %r2, other;\n"),
            "PTX, line 14: unknown operand: other");
  EXPECT_EQ(error_of("	add.s32 	%r1, %r2;\n"), "PTX, line 14: other operands: %r1, %r2");
  EXPECT_EQ(error_of("	add.s32 	%r1, %r2, %r3, %r4;\n"),
            "PTX, line 14: too many operands: %r1, %r2, %r3, %r4");
  EXPECT_EQ(error_of("	bra 	$L__nowhere;\n"), "PTX, line 14: unknown label: $L__nowhere");
  EXPECT_EQ(error_of("	.local .b8 depot[8];\n"),
            "PTX, line 14: unknown statement: .local .b8 depot[8];");
}

}  // namespace
}  // namespace ptx
