// Vectors of a level, and what needs no instruction of its own. No include guard: the header of
// each level (vectors_avx2.hpp, ...) includes this file inside its namespace, with
//   GRADCOMP_LEVEL  the functions' attribute, and
//   GRADCOMP_WIDTH  32-bit lanes in a register.

typedef float Floats __attribute__((vector_size(4 * GRADCOMP_WIDTH)));
typedef double Doubles __attribute__((vector_size(4 * GRADCOMP_WIDTH)));
typedef std::int32_t Signed __attribute__((vector_size(4 * GRADCOMP_WIDTH)));
typedef std::uint32_t Words __attribute__((vector_size(4 * GRADCOMP_WIDTH)));
typedef std::uint64_t Longs __attribute__((vector_size(4 * GRADCOMP_WIDTH)));

constexpr std::size_t kWidth = GRADCOMP_WIDTH;
constexpr std::size_t kDoubles = kWidth / 2;

// Without these, the functions below would hide the ones of base/bytes.hpp.
using gradcomp::load;
using gradcomp::store;

GRADCOMP_LEVEL inline Floats load(const float* x) {
  Floats v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
GRADCOMP_LEVEL inline Floats load_f32(const std::uint8_t* x) {
  Floats v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
GRADCOMP_LEVEL inline Words load(const std::uint32_t* x) {
  Words v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
GRADCOMP_LEVEL inline void store(float* x, Floats v) { std::memcpy(x, &v, sizeof v); }
GRADCOMP_LEVEL inline void store(double* x, Doubles v) { std::memcpy(x, &v, sizeof v); }
GRADCOMP_LEVEL inline void store(std::uint32_t* x, Words v) { std::memcpy(x, &v, sizeof v); }

GRADCOMP_LEVEL inline Words bits_of(Floats x) { return Words(x); }
GRADCOMP_LEVEL inline Floats floats_of(Words x) { return Floats(x); }
GRADCOMP_LEVEL inline Words magnitude(Floats x) { return bits_of(x) & kMagnitudeMask; }
GRADCOMP_LEVEL inline Floats absolute(Floats x) { return floats_of(magnitude(x)); }
// All ones in the lanes with the uppermost bit, else 0.
GRADCOMP_LEVEL inline Words spread_sign(Words x) { return Words(Signed(x) >> 31); }
