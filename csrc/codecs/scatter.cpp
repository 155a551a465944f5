#include "codecs/scatter.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// More than a processor has in flight, so that none is waited for.
constexpr std::size_t kAhead = 32;

// Calls fn(i) for every i below count, and touch(i) about kAhead calls before.
template <typename Touch, typename Fn>
void for_touched(std::size_t count, const Touch& touch, const Fn& fn) {
  std::size_t i = 0;
  for (; i < std::min(kAhead, count); ++i) touch(i);
  for (i = 0; i + kAhead < count; ++i) {
    touch(i + kAhead);
    fn(i);
  }
  for (; i < count; ++i) fn(i);
}

}  // namespace

void gather(Span<const float> x, Span<const std::uint32_t> indices, float* values) {
  for_touched(
      indices.size(), [&](std::size_t i) { __builtin_prefetch(x.data() + indices[i]); },
      [&](std::size_t i) { values[i] = x[indices[i]]; });
}

void scatter(Span<const std::uint32_t> indices, std::size_t unit, const float* values,
             Span<float> y) {
  // Zeroed a little before it is written, so that a cache still holds it.
  constexpr std::size_t kZeroed = 16384;
  const std::size_t n = y.size();
  std::size_t zeroed = 0;
  const auto zero_to = [&](std::size_t end) {
    if (end > zeroed) std::memset(y.data() + zeroed, 0, 4 * (end - zeroed));
    zeroed = std::max(zeroed, end);
  };
  for (const std::uint32_t index : indices) {
    const std::size_t begin = index * unit;
    const std::size_t end = std::min(begin + unit, n);
    if (end > zeroed) zero_to(std::min(end + kZeroed, n));
    if (unit == 1) {
      y[begin] = *values;
    } else {
      std::memcpy(y.data() + begin, values, 4 * (end - begin));
    }
    values += end - begin;
  }
  zero_to(n);
}

void scatter_add(Span<const std::uint32_t> indices, std::size_t unit, const float* values,
                 float weight, Span<float> acc) {
  const std::size_t n = acc.size();
  const auto touch = [&](std::size_t i) { __builtin_prefetch(acc.data() + indices[i] * unit, 1); };
  if (unit == 1) {
    for_touched(indices.size(), touch,
                [&](std::size_t i) { acc[indices[i]] += weight * values[i]; });
    return;
  }
  for_touched(indices.size(), touch, [&](std::size_t i) {
    const std::size_t begin = indices[i] * unit;
    const std::size_t count = std::min(unit, n - begin);
    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(values + i * unit), weight,
                      acc.data() + begin, count);
  });
}

void scatter_zeros(Span<const std::uint32_t> indices, std::size_t unit, Span<float> y) {
  for_touched(
      indices.size(), [&](std::size_t i) { __builtin_prefetch(y.data() + indices[i] * unit, 1); },
      [&](std::size_t i) {
        const std::size_t begin = indices[i] * unit;
        std::memset(y.data() + begin, 0, 4 * std::min(unit, y.size() - begin));
      });
}

}  // namespace gradcomp
