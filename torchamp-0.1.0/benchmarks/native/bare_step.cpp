// What a step of AdamW at O2 takes at least: the same check and the same arithmetic as a bare AVX2
// loop over its memory, with prefetches and non-temporal stores. Around it is only what starts the
// threads, twice.
// benchmarks/python/bare_step.py compiles and calls it.

#include <immintrin.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kAhead = 384;

/// Elements that a vectorised loop takes at once.
constexpr int64_t kLanes = 16;

struct Tensor {
  const uint16_t* grad;
  float *master, *average, *average_of_squares;
  uint16_t* model;
  int64_t count;
};

struct Coefficients {
  float grad_factor, decay, one_minus_beta1, beta2, one_minus_beta2, root_factor, eps, step_size;
};

__m256 every(float value) {
  return _mm256_set1_ps(value);
}

bool any_nonfinite(const uint16_t* grad, int64_t count) {
  const __m256i exponent = _mm256_set1_epi16(0x7c00);
  __m256i found = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    _mm_prefetch(grad + i + kAhead, _MM_HINT_T0);
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(grad + i));
    found = _mm256_or_si256(found, _mm256_cmpeq_epi16(_mm256_and_si256(bits, exponent), exponent));
  }
  bool any = _mm256_testz_si256(found, found) == 0;
  for (; i < count; ++i) any |= (grad[i] & 0x7c00) == 0x7c00;
  return any;
}

__m256 flushed(__m256 x) {
  const __m256 magnitude = _mm256_andnot_ps(every(-0.0f), x);
  return _mm256_and_ps(x, _mm256_cmp_ps(magnitude, every(FLT_MIN), _CMP_NLT_UQ));
}

/// The new halves of 8 elements.
__m128i step8(const Tensor& t, int64_t i, const Coefficients& c) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(t.grad + i));
  const __m256 grad = _mm256_mul_ps(_mm256_cvtph_ps(halves), every(c.grad_factor));
  __m256 master = _mm256_loadu_ps(t.master + i), average = _mm256_loadu_ps(t.average + i);
  __m256 squares = _mm256_loadu_ps(t.average_of_squares + i);
  average =
      flushed(_mm256_fmadd_ps(every(c.one_minus_beta1), _mm256_sub_ps(grad, average), average));
  squares = flushed(_mm256_fmadd_ps(_mm256_mul_ps(every(c.one_minus_beta2), grad), grad,
                                    _mm256_mul_ps(every(c.beta2), squares)));
  const __m256 root = _mm256_fmadd_ps(_mm256_sqrt_ps(squares), every(c.root_factor), every(c.eps));
  master = _mm256_fmadd_ps(every(-c.step_size), _mm256_div_ps(average, root),
                           _mm256_mul_ps(master, every(c.decay)));
  _mm256_storeu_ps(t.master + i, master);
  _mm256_storeu_ps(t.average + i, average);
  _mm256_storeu_ps(t.average_of_squares + i, squares);
  return _mm256_cvtps_ph(master, _MM_FROUND_TO_NEAREST_INT);
}

float flushed(float x) {
  return std::fabs(x) < FLT_MIN ? 0.0f : x;
}

void step1(const Tensor& t, int64_t i, const Coefficients& c) {
  const float grad = _cvtsh_ss(t.grad[i]) * c.grad_factor;
  float &average = t.average[i], &squares = t.average_of_squares[i];
  average = flushed(std::fma(c.one_minus_beta1, grad - average, average));
  squares = flushed(std::fma(c.one_minus_beta2 * grad, grad, c.beta2 * squares));
  const float root = std::fma(std::sqrt(squares), c.root_factor, c.eps);
  t.master[i] = std::fma(-c.step_size, average / root, t.master[i] * c.decay);
  t.model[i] = _cvtss_sh(t.master[i], _MM_FROUND_TO_NEAREST_INT);
}

/// Elements [begin, end); `begin` is a multiple of kLanes, and the model's memory is aligned.
void step(const Tensor& t, int64_t begin, int64_t end, const Coefficients& c) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (const float* list : {t.master, t.average, t.average_of_squares})
      _mm_prefetch(list + i + kAhead, _MM_HINT_T0);
    _mm_prefetch(t.grad + i + kAhead, _MM_HINT_T0);
    const __m128i low = step8(t, i, c), high = step8(t, i + 8, c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(t.model + i), _mm256_set_m128i(high, low));
  }
  for (; i < end; ++i) step1(t, i, c);
}

/// Calls visit(tensor, begin, end) for all elements; each of `threads` threads has an equal share.
template <class Visit>
void for_each_part(const Tensor* tensors, int64_t count, int threads, Visit visit) {
  int64_t elements = 0;
  for (int64_t t = 0; t < count; ++t) elements += tensors[t].count;
  const auto run = [&](int64_t first, int64_t last) {
    int64_t offset = 0;
    for (int64_t t = 0; t < count; offset += tensors[t++].count) {
      const auto border = [&](int64_t flat) {
        if (flat - offset >= tensors[t].count) return tensors[t].count;
        return std::max<int64_t>(flat - offset, 0) / kLanes * kLanes;
      };
      const int64_t begin = border(first), end = border(last);
      if (begin < end) visit(tensors[t], begin, end);
    }
    _mm_sfence();
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread)
    others.emplace_back(run, elements * thread / threads, elements * (thread + 1) / threads);
  run(0, elements / threads);
  for (auto& other : others) other.join();
}

}  // namespace

/// Steps unless a grad is not finite; returns whether one is.
extern "C" bool bare_step(const Tensor* tensors, int64_t count, int threads,
                          const Coefficients* coefficients) {
  bool found = false;
  for_each_part(tensors, count, threads, [&](const Tensor& t, int64_t begin, int64_t end) {
    if (any_nonfinite(t.grad + begin, end - begin))
      __atomic_store_n(&found, true, __ATOMIC_RELAXED);
  });
  if (found) return true;
  for_each_part(tensors, count, threads, [&](const Tensor& t, int64_t begin, int64_t end) {
    step(t, begin, end, *coefficients);
  });
  return false;
}
