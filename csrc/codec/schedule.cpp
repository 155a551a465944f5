#include "codec/schedule.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace gradcomp {

double Schedule::at(std::int64_t step, std::int64_t epoch) const {
  const std::int64_t now = std::max<std::int64_t>(unit == Unit::kSteps ? step : epoch, 0);
  if (shape == Shape::kStairs) {
    const auto stair = static_cast<std::size_t>(now / length);
    return values[std::min(stair, values.size() - 1)];
  }
  if (now >= length) return values[1];
  const double part = static_cast<double>(now) / static_cast<double>(length);
  const double value = values[0] * std::pow(values[1] / values[0], part);
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 6);
  double rounded = 0;
  std::from_chars(buffer, end.ptr, rounded);
  // Rounding must not leave the range between the ends, which the parser has checked.
  return std::clamp(rounded, std::min(values[0], values[1]), std::max(values[0], values[1]));
}

std::int64_t Schedule::end() const {
  if (shape == Shape::kRamp) return length;
  const auto stairs = static_cast<std::int64_t>(values.size()) - 1;
  return stairs > INT64_MAX / length ? INT64_MAX : stairs * length;
}

std::string Schedule::text() const {
  const std::string unit_name = unit == Unit::kSteps ? "steps" : "epochs";
  if (shape == Shape::kRamp) {
    const std::string over = unit_name + "=" + std::to_string(length);
    const std::string from = "from=" + number_text(values[0]);
    const std::string to = "to=" + number_text(values[1]);
    // Keys are sorted, as everywhere.
    return "ramp(" + (unit == Unit::kSteps ? from + "," + over : over + "," + from) + "," + to +
           ")";
  }
  std::string text = unit_name + "([";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ",") + number_text(values[i]);
  }
  return text + (length == 1 ? "])" : "],every=" + std::to_string(length) + ")");
}

std::string number_text(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace gradcomp
