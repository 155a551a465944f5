// Spec strings: "residual(beta=0.9)|topk(ratio=0.01)|rice". Left to right is data flow: memory,
// transform, codec, coder; all but the codec are optional. Or an algorithm instead of transform,
// codec and coder. A preset stands for several stages. The one parser of the project;
// docs/spec-grammar.md has the grammar.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/registry.hpp"
#include "core/schedule.hpp"
#include "core/status.hpp"

namespace gradcomp {

struct Value {
  ParamType type = ParamType::kReal;
  double real = 0;                                  // kReal; of a schedule, what it begins with
  std::int64_t integer = 0;                         // kInteger
  bool boolean = false;                             // kBoolean
  std::string choice;                               // kChoice
  std::vector<double> list;                         // kList
  std::optional<Schedule> schedule = std::nullopt;  // kReal only

  std::string text() const;  // canonical: what the spec grammar reads back as the same value
};

// A stage's parameters, checked and with defaults filled in.
class Params {
 public:
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  double real(std::string_view name) const { return values_.find(name)->second.real; }
  std::int64_t integer(std::string_view name) const { return values_.find(name)->second.integer; }
  bool boolean(std::string_view name) const { return values_.find(name)->second.boolean; }
  const std::string& choice(std::string_view name) const {
    return values_.find(name)->second.choice;
  }

  const std::vector<double>& list(std::string_view name) const {
    return values_.find(name)->second.list;
  }

  void set(std::string name, Value value) { values_[std::move(name)] = std::move(value); }
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, Value, std::less<>> values_;  // sorted: the canonical order
};

struct Stage {
  const StageInfo* info = nullptr;
  Params params;

  std::string text() const;
};

struct Spec {
  std::vector<Stage> stages;

  const Stage* find(StageKind kind) const;  // nullptr when the spec has none
  std::string text() const;                 // canonical: keys sorted, defaults filled in, no spaces
  std::string text_without_memory() const;
  bool scheduled_by(Schedule::Unit unit) const;  // some parameter has a schedule that counts these
  // What the spec is at a step (how often the tensor was averaged before) of an epoch.
  Spec at(std::int64_t step, std::int64_t epoch) const;
};

inline constexpr std::size_t kMaxSpecLength = 1024;

Status parse_spec(std::string_view text, Spec* spec);

}  // namespace gradcomp
