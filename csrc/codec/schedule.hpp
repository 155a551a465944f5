// Parameters that change while training goes on: ratio=ramp(from=0.25,to=0.001,steps=4000).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradcomp {

struct Schedule {
  // kRamp: from values[0] to values[1] by the same factor in each of `length` units, then
  // values[1]. kStairs: values[i] for `length` units each, then the last value.
  enum class Shape { kRamp, kStairs };
  enum class Unit { kSteps, kEpochs };

  Shape shape = Shape::kRamp;
  Unit unit = Unit::kSteps;
  std::int64_t length = 1;
  std::vector<double> values;

  // Rounded to six digits: ranks whose mathematical libraries differ must not differ here.
  double at(std::int64_t step, std::int64_t epoch) const;
  std::int64_t end() const;  // units after which the value stays as it is
  std::string text() const;  // canonical
};

// A number as specs write it: the shortest text that reads back as the same value.
std::string number_text(double value);

}  // namespace gradcomp
