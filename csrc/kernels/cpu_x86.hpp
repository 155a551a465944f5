// Instruction sets of this x86 machine that the operating system supports too. The compilers' own
// __builtin_cpu_supports finds nothing in programs that zig links (scripts/release).
#pragma once

namespace gradcomp {

struct CpuX86 {
  bool avx2;    // with F16C and the CRC-32C instructions
  bool avx512;  // F, BW, DQ and VL, and all of avx2
  bool folds;   // VPCLMULQDQ and PCLMULQDQ
};

const CpuX86& cpu_x86() noexcept;

}  // namespace gradcomp
