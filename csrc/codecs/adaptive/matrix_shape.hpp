// The matrix as which a tensor is coded, and its bands of rows.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/chunks.hpp"

namespace gradcomp {

// Approximate number of elements of a band. Each band has its own run of rANS and its own contexts,
// so that threads can share a matrix.
inline constexpr std::size_t kBandElements = std::size_t{1} << 20;

struct MatrixShape {
  std::size_t rows = 0;
  std::size_t cols = 0;

  // A tensor of n elements in rows of `cols`. A vector (`cols` does not make at least two rows) is
  // a single row.
  static MatrixShape of(std::size_t n, std::size_t cols) {
    if (cols < 2 || cols >= n || n % cols != 0) return {1, n};
    return {n / cols, cols};
  }
  std::size_t size() const { return rows * cols; }

  std::size_t band_rows() const { return std::max<std::size_t>(1, kBandElements / cols); }
  std::size_t bands() const { return (rows + band_rows() - 1) / band_rows(); }
  std::size_t band_begin(std::size_t band) const { return band * band_rows(); }  // first row
  // The last band has the rows that are left.
  std::size_t rows_of_band(std::size_t band) const {
    return std::min(band_rows(), rows - band_begin(band));
  }
  // Calls fn(band) for all bands, on all threads if there is work for several.
  template <typename Fn>
  void for_bands(const Fn& fn) const {
    for_parts(bands(), range_count(size()) == 1 ? 1 : bands(),
              [&](std::size_t, std::size_t begin, std::size_t end) {
                for (std::size_t b = begin; b < end; ++b) fn(b);
              });
  }
};

}  // namespace gradcomp
