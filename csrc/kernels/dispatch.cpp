#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu_x86.hpp"
#include "kernels/kernels.hpp"
#include "kernels/neon.hpp"

namespace gradcomp {
namespace {

struct Levels {
  const Kernels* tables[3];
  const char* names[3];
  std::size_t count = 0;

  Levels() noexcept {
    add(kScalarKernels);
#if defined(__x86_64__)
    if (cpu_x86().avx2) add(kAvx2Kernels);
    if (cpu_x86().avx512) add(kAvx512Kernels);
#elif defined(__aarch64__)
    add(neon_kernels());
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
