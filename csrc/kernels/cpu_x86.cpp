#if defined(__x86_64__)

#include "kernels/cpu_x86.hpp"

#include <cpuid.h>

namespace gradcomp {
namespace {

// Parts of the registers that the operating system saves (Intel SDM, volume 1, 13.3).
constexpr unsigned kYmmState = 0x06;
constexpr unsigned kZmmState = 0xE6;
constexpr unsigned kPclmul = 1u << 1, kSse42 = 1u << 20, kOsxsave = 1u << 27, kF16c = 1u << 29;
constexpr unsigned kAvx2 = 1u << 5;
constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
constexpr unsigned kVpclmul = 1u << 10;

constexpr bool has(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

unsigned saved_state() noexcept {
  unsigned lower = 0, upper = 0;
  __asm__("xgetbv" : "=a"(lower), "=d"(upper) : "c"(0));
  return lower;
}

CpuX86 detect() noexcept {
  unsigned eax = 0, ebx = 0, ecx1 = 0, edx = 0, ebx7 = 0, ecx7 = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx1, &edx) == 0 ||
      __get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx) == 0 || !has(ecx1, kOsxsave)) {
    return {};
  }
  const unsigned state = saved_state();
  CpuX86 cpu{};
  cpu.avx2 = has(state, kYmmState) && has(ecx1, kF16c | kSse42) && has(ebx7, kAvx2);
  cpu.avx512 = cpu.avx2 && has(state, kZmmState) && has(ebx7, kAvx512);
  cpu.folds = cpu.avx512 && has(ecx1, kPclmul) && has(ecx7, kVpclmul);
  return cpu;
}

}  // namespace

const CpuX86& cpu_x86() noexcept {
  static const CpuX86 found = detect();
  return found;
}

}  // namespace gradcomp

#endif
