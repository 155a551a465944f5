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

class Keep {
 public:
  explicit Keep(const Params& params)
      : ratio_(params.has("ratio") ? params.real("ratio") : 0.0),
        k_(params.has("k") ? static_cast<std::size_t>(params.integer("k")) : 0) {}

  // Number of elements kept of n: in [1, n], or 0 for n = 0. Rounded to nearest: a ceiling would
  // turn 0.07 * 100 = 7.000000000000001 into 8.
  std::size_t count(std::size_t n) const noexcept {
    std::size_t k = k_;
    if (k == 0) k = static_cast<std::size_t>(std::floor(ratio_ * static_cast<double>(n) + 0.5));
    if (k < 1) k = 1;
    return k < n ? k : n;
  }

 private:
  double ratio_;
  std::size_t k_;
};

}  // namespace gradcomp
