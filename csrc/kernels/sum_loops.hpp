// Sums and the maximum. No include guard: each level includes this file inside its namespace, after
// its vectors.

// The 16 partial sums of PartialSums.
struct Sums {
  static constexpr std::size_t kPieces = 16 / kDoubles;

  Doubles pieces[kPieces];

  GRADCOMP_LEVEL void clear() {
    for (std::size_t j = 0; j < kPieces; ++j) pieces[j] = Doubles{};
  }

  // Adds the terms of part `part` of kWidth elements among 16.
  GRADCOMP_LEVEL void add(std::size_t part, Floats terms) {
    pieces[2 * part] += widen_lower(terms);
    pieces[2 * part + 1] += widen_upper(terms);
  }

  GRADCOMP_LEVEL void store_to(PartialSums* sums) const {
    for (std::size_t j = 0; j < kPieces; ++j) store(sums->partial + j * kDoubles, pieces[j]);
  }
};

template <typename Term>
GRADCOMP_LEVEL inline double sum_terms(const float* x, std::size_t n, const Term& term) {
  Sums vectors;
  vectors.clear();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t j = 0; j < Sums::kPieces; ++j) {
      vectors.pieces[j] += term.vector(widen(x + i + j * kDoubles));
    }
  }
  PartialSums sums;
  vectors.store_to(&sums);
  for (; i < n; ++i) sums.add(i, term.scalar(static_cast<double>(x[i])));
  return sums.total();
}

struct Magnitude {
  GRADCOMP_LEVEL Doubles vector(Doubles x) const { return absolute(x); }
  double scalar(double x) const { return x < 0 ? -x : x; }
};

struct Square {
  GRADCOMP_LEVEL Doubles vector(Doubles x) const { return x * x; }
  double scalar(double x) const { return x * x; }
};

GRADCOMP_LEVEL double sum_magnitudes(const float* x, std::size_t n) {
  return sum_terms(x, n, Magnitude{});
}

GRADCOMP_LEVEL double sum_squares(const float* x, std::size_t n) {
  return sum_terms(x, n, Square{});
}

GRADCOMP_LEVEL Moments moments(const float* x, std::size_t n) {
  Sums sums, squares;
  sums.clear();
  squares.clear();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t j = 0; j < Sums::kPieces; ++j) {
      const Doubles wide = widen(x + i + j * kDoubles);
      sums.pieces[j] += wide;
      squares.pieces[j] += wide * wide;
    }
  }
  PartialSums sum, square;
  sums.store_to(&sum);
  squares.store_to(&square);
  for (; i < n; ++i) {
    const auto wide = static_cast<double>(x[i]);
    sum.add(i, wide);
    square.add(i, wide * wide);
  }
  return {sum.total(), square.total()};
}

GRADCOMP_LEVEL SignedSums sum_by_sign(const float* x, std::size_t n) {
  Sums below, above;
  below.clear();
  above.clear();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t j = 0; j < Sums::kPieces; ++j) {
      const Doubles wide = widen(x + i + j * kDoubles);
      below.pieces[j] += min(Doubles{}, wide);
      above.pieces[j] += max(Doubles{}, wide);
    }
  }
  PartialSums negative, others;
  below.store_to(&negative);
  above.store_to(&others);
  for (; i < n; ++i) {
    const SignedSums terms = split_by_sign(x[i]);
    negative.add(i, terms.negative);
    others.add(i, terms.others);
  }
  return {negative.total(), others.total()};
}

GRADCOMP_LEVEL std::uint32_t max_magnitude(const float* x, std::size_t n) {
  Words largest{};
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) largest = max(largest, magnitude(load(x + i)));
  const std::uint32_t tail = kScalarKernels.max_magnitude(x + i, n - i);
  const std::uint32_t body = largest_lane(largest);
  return body > tail ? body : tail;
}
