// Number of elements that a sparsifier keeps, from the parameters `ratio` and `k`.
#pragma once

#include <cmath>
#include <cstddef>

#include "codec/stage.hpp"

namespace gradcomp {

inline ParamInfo ratio_param() {
  return real_param(
      "ratio", nullptr, 0, 1,
      "fraction of the elements that is kept; k = ratio * numel, rounded to nearest, at least 1",
      true);
}

inline ParamInfo k_param() {
  return integer_param("k", nullptr, 1, kMaxNumel,
                       "number of elements that is kept; all if the tensor has fewer");
}

// Number of n elements that are kept: in [1, n], or 0 for n = 0. If k is 0, the ratio determines
// it, rounded to nearest: a ceiling would turn 0.07 * 100 = 7.000000000000001 into 8.
inline std::size_t kept_count(double ratio, std::size_t k, std::size_t n) noexcept {
  if (k == 0) k = static_cast<std::size_t>(std::floor(ratio * static_cast<double>(n) + 0.5));
  if (k < 1) k = 1;
  return k < n ? k : n;
}

class Keep {
 public:
  explicit Keep(const Params& params)
      : ratio_(params.has("ratio") ? params.real("ratio") : 0.0),
        k_(params.has("k") ? static_cast<std::size_t>(params.integer("k")) : 0) {}

  std::size_t count(std::size_t n) const noexcept { return kept_count(ratio_, k_, n); }

 private:
  double ratio_;
  std::size_t k_;
};

}  // namespace gradcomp
