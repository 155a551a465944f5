// Parameters of stages: their descriptions, and their values once a spec is parsed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/schedule.hpp"

namespace gradcomp {

// A list holds numbers, [0.25,0.1]; "auto" is the empty list.
enum class ParamType { kReal, kInteger, kBoolean, kChoice, kList };

struct ParamInfo {
  const char* name;
  ParamType type;
  const char* default_text;  // as written in a spec; nullptr: no default
  const char* doc;
  double min = 0;              // inclusive, numbers only
  double max = 0;              // inclusive, numbers only
  bool min_exclusive = false;  // min itself is refused
  const char* choices = "";    // "a|b", kChoice only
  bool omits_default = false;  // canonical specs leave out the default
  bool short_whole = false;    // kReal only: canonical specs have 2, not 2.0
  // A parameter that excludes this one: a spec that has it does not get the default.
  const char* unless = nullptr;

  std::string range_text() const;  // "(0, 1]", "true|false", ...
};

// A number's parameter; the range is [min, max], or (min, max] with min_exclusive.
ParamInfo real_param(const char* name, const char* default_text, double min, double max,
                     const char* doc, bool min_exclusive = false);
ParamInfo integer_param(const char* name, const char* default_text, std::int64_t min,
                        std::int64_t max, const char* doc);
ParamInfo boolean_param(const char* name, const char* default_text, const char* doc);
ParamInfo list_param(const char* name, double min, double max, const char* doc,
                     bool min_exclusive = false);
ParamInfo choice_param(const char* name, const char* default_text, const char* choices,
                       const char* doc);

struct Value {
  ParamType type = ParamType::kReal;
  double real = 0;                                  // kReal; of a schedule, the first value
  bool short_whole = false;                         // as in ParamInfo
  std::int64_t integer = 0;                         // kInteger
  bool boolean = false;                             // kBoolean
  std::string choice;                               // kChoice
  std::vector<double> list;                         // kList
  std::optional<Schedule> schedule = std::nullopt;  // kReal only

  std::string text() const;  // canonical: the spec grammar reads it back as the same value
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

}  // namespace gradcomp
