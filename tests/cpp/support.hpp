// Helpers of the C++ tests: data, levels, specs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "stages/compile.hpp"
#include "stages/registry.hpp"

namespace gradcomp::test {

// Floats of all kinds: mostly ordinary, some tied, tiny, huge or not finite.
inline std::vector<float> floats(std::size_t n, std::uint64_t seed, bool finite = false) {
  Stream stream(seed);
  std::vector<float> x(n);
  for (float& value : x) {
    const auto bits = static_cast<std::uint32_t>(stream.next());
    const std::uint64_t kind = stream.below(8);
    if (kind == 0) {
      value = bits_float(bits);
      if (finite && (bits & kInfBits) == kInfBits) value = 0.0f;
    } else if (kind == 1) {
      value = bits % 2 == 0 ? 0.5f : -0.5f;
    } else {
      value = (static_cast<float>(bits % 2000001) - 1e6f) / 1e6f;
    }
  }
  return x;
}

inline std::vector<std::string> level_names() {
  const char* const* names = nullptr;
  const std::size_t count = available_levels(&names);
  return {names, names + count};
}

// Restores the number of threads at its end: later tests run with that of GRADCOMP_THREADS.
class ThreadScope {
 public:
  ThreadScope() = default;
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
  ~ThreadScope() { set_thread_count(before_); }

 private:
  std::size_t before_ = thread_count();
};

// Selects a level; the end of the scope selects the best one again.
class LevelScope {
 public:
  explicit LevelScope(const std::string& name) { selected_ = select_level(name.c_str()); }
  ~LevelScope() { select_level(level_names().back().c_str()); }
  LevelScope(const LevelScope&) = delete;
  LevelScope& operator=(const LevelScope&) = delete;
  bool selected() const { return selected_; }

 private:
  bool selected_;
};

inline std::vector<std::string> example_specs() {
  std::vector<std::string> specs;
  for (const StageInfo& info : registry()) {
    if (info.kind == StageKind::kCodec || info.kind == StageKind::kCoder) {
      specs.push_back(info.example);
    }
  }
  return specs;
}

}  // namespace gradcomp::test
