// Vectors of Advanced SIMD, for the sums that the levels share (sum_loops.hpp). A subset of the
// names of vectors_avx2.hpp.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/kernels.hpp"

#define GRADCOMP_LEVEL
#define GRADCOMP_WIDTH 4

namespace gradcomp {
namespace {

#include "kernels/vectors.hpp"

// The second operand where one is NaN.
inline Doubles min(Doubles a, Doubles b) { return vbslq_f64(vcltq_f64(a, b), a, b); }
inline Doubles max(Doubles a, Doubles b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
// As signed numbers.
inline Words max(Words a, Words b) { return Words(vmaxq_s32(int32x4_t(a), int32x4_t(b))); }
inline std::uint32_t largest_lane(Words x) { return vmaxvq_u32(x); }
inline Doubles absolute(Doubles x) { return vabsq_f64(x); }

inline Doubles widen(const float* x) { return vcvt_f64_f32(vld1_f32(x)); }
inline Doubles widen_lower(Floats x) { return vcvt_f64_f32(vget_low_f32(x)); }
inline Doubles widen_upper(Floats x) { return vcvt_high_f64_f32(x); }

}  // namespace
}  // namespace gradcomp
