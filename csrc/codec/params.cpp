#include "codec/params.hpp"

#include <cmath>

namespace gradcomp {
namespace {

// Without ".0" for whole numbers.
std::string short_text(double number) {
  std::string text = number_text(number);
  if (text.size() > 2 && text.compare(text.size() - 2, 2, ".0") == 0) text.resize(text.size() - 2);
  return text;
}

std::string bound_text(double bound, ParamType type) {
  if (std::isinf(bound)) return bound < 0 ? "-inf" : "inf";
  if (type == ParamType::kInteger) return std::to_string(static_cast<std::int64_t>(bound));
  return short_text(bound);
}

}  // namespace

ParamInfo real_param(const char* name, const char* default_text, double min, double max,
                     const char* doc, bool min_exclusive) {
  ParamInfo param{name, ParamType::kReal, default_text, doc};
  param.min = min;
  param.max = max;
  param.min_exclusive = min_exclusive;
  return param;
}

ParamInfo integer_param(const char* name, const char* default_text, std::int64_t min,
                        std::int64_t max, const char* doc) {
  ParamInfo param{name, ParamType::kInteger, default_text, doc};
  param.min = static_cast<double>(min);
  param.max = static_cast<double>(max);
  return param;
}

ParamInfo boolean_param(const char* name, const char* default_text, const char* doc) {
  return {name, ParamType::kBoolean, default_text, doc};
}

ParamInfo list_param(const char* name, double min, double max, const char* doc,
                     bool min_exclusive) {
  ParamInfo param = real_param(name, "auto", min, max, doc, min_exclusive);
  param.type = ParamType::kList;
  return param;
}

ParamInfo choice_param(const char* name, const char* default_text, const char* choices,
                       const char* doc) {
  ParamInfo param{name, ParamType::kChoice, default_text, doc};
  param.choices = choices;
  return param;
}

std::string Value::text() const {
  if (schedule) return schedule->text();
  switch (type) {
    case ParamType::kReal:
      return short_whole ? short_text(real) : number_text(real);
    case ParamType::kInteger:
      return std::to_string(integer);
    case ParamType::kBoolean:
      return boolean ? "true" : "false";
    case ParamType::kChoice:
      return choice;
    case ParamType::kList:
      break;
  }
  std::string text;
  for (const double one : list) text += (text.empty() ? "[" : ",") + number_text(one);
  return text.empty() ? "auto" : text + "]";
}

std::string ParamInfo::range_text() const {
  if (type == ParamType::kBoolean) return "true|false";
  if (type == ParamType::kChoice) return choices;
  return (min_exclusive ? "(" : "[") + bound_text(min, type) + ", " + bound_text(max, type) +
         (std::isinf(max) ? ")" : "]");
}

}  // namespace gradcomp
