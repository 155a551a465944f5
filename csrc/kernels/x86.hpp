// Helpers shared by the AVX levels. Intrinsics work inside functions with a matching target
// attribute, so no file needs its own compiler flags (which would leak wide instructions into
// shared templates).
#pragma once

// GCC 12 warns of its own header's _mm512_undefined (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <cstdint>

#define GRADCOMP_SSE42 __attribute__((target("sse4.2,crc32")))
#define GRADCOMP_AVX2 __attribute__((target("avx2,f16c")))
#define GRADCOMP_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))

#define GRADCOMP_VPCLMUL \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq,pclmul,sse4.2,crc32")))

namespace gradcomp {

// Number of floats before y's first whole cache line; n if there are fewer, or y is not aligned.
inline std::size_t until_line(const float* y, std::size_t n) noexcept {
  const std::uintptr_t before = (0 - reinterpret_cast<std::uintptr_t>(y)) % 64;
  return before % sizeof(float) == 0 && before / sizeof(float) < n ? before / sizeof(float) : n;
}

// Prefetches x[from, from + n), which may lie beyond the end of x.
inline void prefetch(const float* x, std::size_t from, std::size_t n) {
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(x) + sizeof(float) * from;
  for (std::size_t line = 0; line < sizeof(float) * n; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(at + line), _MM_HINT_T0);
  }
}

// Prefetches 4 KiB ahead of x, which need not exist. For loops with branches on the data they read:
// after a mispredicted branch, execution and hardware prefetching would wait for memory.
inline void prefetch_ahead(const float* x) noexcept {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(x) + std::uintptr_t{4096}));
}

std::uint32_t crc32c_sse42(std::uint32_t crc, const std::uint8_t* data, std::size_t size);
// Uses VPCLMULQDQ where the CPU has it.
std::uint32_t crc32c_avx512(std::uint32_t crc, const std::uint8_t* data, std::size_t size);

}  // namespace gradcomp
