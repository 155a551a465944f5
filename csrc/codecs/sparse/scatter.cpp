#include "codecs/sparse/scatter.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// More loads than a processor has in flight, so that none stalls.
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
  kernels().zero(y.data(), y.size());
  const auto touch = [&](std::size_t i) { __builtin_prefetch(y.data() + indices[i] * unit, 1); };
  if (unit == 1) {
    for_touched(indices.size(), touch, [&](std::size_t i) { y[indices[i]] = values[i]; });
    return;
  }
  for_touched(indices.size(), touch, [&](std::size_t i) {
    const std::size_t begin = indices[i] * unit;
    std::memcpy(y.data() + begin, values + i * unit, 4 * std::min(unit, y.size() - begin));
  });
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

void scatter_add_piece(Span<const std::uint32_t> indices, std::size_t unit, const float* values,
                       float weight, std::size_t begin, Span<float> acc) {
  const std::size_t end = begin + acc.size();
  const auto* const first =
      std::lower_bound(indices.begin(), indices.end(), static_cast<std::uint32_t>(begin / unit));
  values += static_cast<std::size_t>(first - indices.begin()) * unit;
  if (unit == 1) {
    for (const auto* at = first; at != indices.end() && *at < end; ++at, ++values) {
      acc[*at - begin] += weight * *values;
    }
    return;
  }
  for (const auto* at = first; at != indices.end() && *at * unit < end; ++at, values += unit) {
    const std::size_t from = std::max(*at * unit, begin);
    const std::size_t to = std::min((*at + std::size_t{1}) * unit, end);
    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(values + (from - *at * unit)), weight,
                      acc.data() + (from - begin), to - from);
  }
}

void scatter_count(Span<const std::uint32_t> indices, std::size_t unit,
                   Span<std::uint16_t> counts) {
  const auto touch = [&](std::size_t i) {
    __builtin_prefetch(counts.data() + indices[i] * unit, 1);
  };
  for_touched(indices.size(), touch, [&](std::size_t i) {
    const std::size_t begin = indices[i] * unit;
    const std::size_t end = std::min(begin + unit, counts.size());
    for (std::size_t j = begin; j < end; ++j) ++counts[j];
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
