// Spec strings: "residual(beta=0.9)|topk(ratio=0.01)|rice". Data flows from left to right: memory,
// transform, codec, coder; all but the codec are optional. An algorithm replaces transform, codec
// and coder. A preset stands for several stages. This is the only parser of specs;
// docs/spec-grammar.md has the grammar.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "codec/stage.hpp"

namespace gradcomp {

struct Spec {
  std::vector<Stage> stages;

  const Stage* find(StageKind kind) const;  // nullptr if the spec has none
  std::string text() const;                 // canonical: keys sorted, defaults filled in, no spaces
  std::string text_without_memory() const;
  bool scheduled_by(Schedule::Unit unit) const;  // true if a parameter has a schedule in this unit
  std::int64_t step_schedules_end()
      const;  // steps after which no such schedule changes a parameter
  // Spec without schedules, with their values at a step of an epoch. `step` counts the earlier
  // averages of the tensor.
  Spec at(std::int64_t step, std::int64_t epoch) const;
};

inline constexpr std::size_t kMaxSpecLength = 1024;

Status parse_spec(std::string_view text, Spec* spec);

}  // namespace gradcomp
