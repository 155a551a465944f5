#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

#if defined(__x86_64__)
// Clang's __builtin_cpu_supports does not know this name.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

struct Levels {
  const Kernels* tables[3];
  const char* names[3];
  std::size_t count = 0;

  Levels() noexcept {
    add(kScalarKernels);
#if defined(__x86_64__)
    // These builtins also check that the OS saves the wider registers.
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && has_f16c() && __builtin_cpu_supports("sse4.2")) {
      add(kAvx2Kernels);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        add(kAvx512Kernels);
      }
    }
#endif
  }

  const Kernels* find(const char* name) const noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      if (std::strcmp(names[i], name) == 0) return tables[i];
    }
    return nullptr;
  }

 private:
  void add(const Kernels& table) noexcept {
    tables[count] = &table;
    names[count] = table.name;
    ++count;
  }
};

const Levels& levels() noexcept {
  static const Levels found;
  return found;
}

std::atomic<const Kernels*>& current() noexcept {
  static std::atomic<const Kernels*> table{[] {
    const char* wanted = std::getenv("GRADCOMP_SIMD");
    const Kernels* named = wanted == nullptr ? nullptr : levels().find(wanted);
    return named != nullptr ? named : levels().tables[levels().count - 1];
  }()};
  return table;
}

}  // namespace

const Kernels& kernels() noexcept { return *current().load(std::memory_order_relaxed); }

std::size_t available_levels(const char* const** names) noexcept {
  *names = levels().names;
  return levels().count;
}

bool select_level(const char* name) noexcept {
  const Kernels* table = levels().find(name);
  if (table == nullptr) return false;
  current().store(table);
  return true;
}

}  // namespace gradcomp
