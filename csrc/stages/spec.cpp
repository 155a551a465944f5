#include "stages/spec.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "stages/plugins.hpp"
#include "stages/registry.hpp"

namespace gradcomp {
namespace {

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_lower(c) || is_digit(c) || c == '_'; }
bool is_number(char c) { return is_digit(c) || c == '.' || c == '+' || c == '-' || c == 'e'; }

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// "did you mean 'x'?" if a known name is close, and the list of known names.
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known) {
  std::string list;
  std::string_view nearest;
  std::size_t nearest_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (std::string_view name : known) {
    list += (list.empty() ? "" : ", ") + std::string(name);
    const std::size_t distance = edit_distance(word, name);
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = name;
    }
  }
  if (list.empty()) return "there are none";
  const std::string known_text = "known: " + list;
  return nearest.empty() ? known_text : "did you mean " + quoted(nearest) + "? " + known_text;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Status parse(Spec* spec) {
    if (text_.size() > kMaxSpecLength) {
      return {Code::kSpec, "the spec has " + std::to_string(text_.size()) +
                               " characters; at most " + std::to_string(kMaxSpecLength) +
                               " are allowed"};
    }
    for (std::size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] < ' ' || text_[i] > '~') return error(i, "only printable ASCII is allowed here");
    }
    if (ends_with(text_, ".yaml") || ends_with(text_, ".yml")) {
      return {Code::kSpec, quoted(text_) +
                               " is a file and no spec: load it with load_config, or give "
                               "it to from_config instead of the constructor"};
    }
    for (;;) {
      Stage stage;
      GRADCOMP_TRY(parse_stage(spec->stages, &stage));
      if (stage.info->kind == StageKind::kPreset) {
        GRADCOMP_TRY(Parser(stage.info->expand(stage.params)).parse(spec));
      } else {
        spec->stages.push_back(std::move(stage));
      }
      skip_blanks();
      if (at_end()) break;
      if (peek() != '|') return error(pos_, "expected '|' and another stage, or the end");
      ++pos_;
    }
    const StageInfo& last = *spec->stages.back().info;
    if (last.is_default) spec->stages.pop_back();  // one canonical form per meaning
    if (last.kind < StageKind::kCodec) {
      return error(pos_, "a codec must follow the " + std::string(kind_name(last.kind)) + " " +
                             quoted(last.name) + ", as in " + quoted(last.example));
    }
    return {};
  }

 private:
  struct Word {
    std::string_view text;
    std::size_t pos = 0;
  };

  bool at_end() const { return pos_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[pos_]; }
  void skip_blanks() {
    while (peek() == ' ') ++pos_;
  }

  template <typename Predicate>
  Word take(Predicate&& belongs) {
    skip_blanks();
    const std::size_t begin = pos_;
    while (!at_end() && belongs(text_[pos_])) ++pos_;
    return {text_.substr(begin, pos_ - begin), begin};
  }

  Status error(std::size_t pos, const std::string& what) const {
    std::string shown(text_);
    for (char& c : shown) {
      if (c < ' ' || c > '~') c = '?';
    }
    return {Code::kSpec, what + "\n  " + shown + "\n  " + std::string(pos, ' ') + "^"};
  }

  Status parse_stage(const std::vector<Stage>& before, Stage* stage) {
    const Word name = take(is_word);
    if (name.text.empty()) {
      return error(name.pos, "expected the name of a stage (lower case), as in 'topk(ratio=0.01)'");
    }
    stage->info = find_stage(name.text);
    if (stage->info == nullptr) {
      load_environment_plugins();
      stage->info = find_stage(name.text);
    }
    if (stage->info == nullptr) {
      std::vector<std::string_view> known;
      for (const StageInfo& info : registry()) known.push_back(info.name);
      if (name.text == "none")
        return error(name.pos, "'identity' is the stage without compression");
      std::string faults;
      for (const std::string& fault : plugin_faults()) faults += "; " + fault;
      return error(name.pos, "unknown stage " + quoted(name.text) + ": " +
                                 suggestion(name.text, known) + faults);
    }
    GRADCOMP_TRY(check_order(before, *stage->info, name.pos));
    skip_blanks();
    if (peek() == '(') {
      ++pos_;
      GRADCOMP_TRY(parse_params(stage));
    }
    GRADCOMP_TRY(complete(stage, name.pos));
    if (stage->info->refuse == nullptr) return {};
    const bool memory = !before.empty() && before[0].info->kind == StageKind::kMemory;
    const char* const reason =
        stage->info->refuse(stage->params, memory ? before[0].info : nullptr);
    return reason == nullptr ? Status() : error(name.pos, quoted(stage->text()) + ": " + reason);
  }

  Status check_order(const std::vector<Stage>& before, const StageInfo& info,
                     std::size_t pos) const {
    if (before.empty()) {
      if (info.kind != StageKind::kCoder) return {};
      return error(pos, quoted(info.name) + " is a lossless coder: it follows a codec, as in " +
                            quoted(info.example));
    }
    const StageInfo& last = *before.back().info;
    if (info.kind == StageKind::kPreset) {
      return error(pos,
                   quoted(info.name) +
                       " is a preset, short for a memory and a codec: it stands first, as in " +
                       quoted(info.example));
    }
    if (last.kind == StageKind::kAlgorithm ||
        (info.kind == StageKind::kAlgorithm && last.kind != StageKind::kMemory)) {
      return error(pos, quoted(info.name) + " cannot follow " + quoted(last.name) +
                            ": an algorithm stands without transform, codec and coder, as in " +
                            quoted((last.kind == StageKind::kAlgorithm ? last : info).example));
    }
    if (info.kind <= last.kind) {
      return error(pos, quoted(info.name) + " (a " + kind_name(info.kind) + ") cannot follow " +
                            quoted(last.name) + " (a " + kind_name(last.kind) +
                            "): the order is memory, transform, codec, coder, with one codec and "
                            "at most one of each other");
    }
    if (masks(before[0]) && info.kind != StageKind::kCoder && info.symbols != Symbols::kIndices &&
        info.name != std::string_view("identity")) {
      return error(pos, quoted(info.name) + " after " + quoted(before[0].info->name) +
                            " makes no sense: factor masking must know which elements were sent, "
                            "so it needs a sparsifier that sends indices, or 'identity', which "
                            "sends all; for other codecs set masking=false");
    }
    if (last.kind == StageKind::kTransform && info.origin != Origin::kCore) {
      return error(pos, quoted(info.name) + " cannot follow " + quoted(last.name) +
                            ": codecs rotate for themselves, and a plug-in's codec is not told "
                            "of the stages around it; it may rotate in its own functions");
    }
    if (info.kind == StageKind::kCodec && last.kind == StageKind::kTransform && !info.rotatable) {
      return error(pos, quoted(info.name) + " after " + quoted(last.name) +
                            " makes no sense: a rotation spreads the elements that " +
                            quoted(info.name) + " selects or scales; it helps " +
                            rotatable_codecs());
    }
    if (info.kind == StageKind::kCoder) {
      if (last.kind != StageKind::kCodec) {
        return error(pos, quoted(info.name) + " is a lossless coder: a codec must come before it");
      }
      if (last.symbols != info.symbols) {
        return error(pos, quoted(info.name) + " codes " + symbols_text(info.symbols) + ", and " +
                              quoted(last.name) + " has " + symbols_text(last.symbols));
      }
    }
    return {};
  }

  // Whether a memory clears the momentum of sent elements.
  static bool masks(const Stage& memory) {
    return memory.info->masks && memory.params.boolean("masking");
  }

  static std::string symbols_text(Symbols symbols) {
    return symbols == Symbols::kIndices  ? "indices"
           : symbols == Symbols::kLevels ? "levels"
                                         : "no symbols for a coder";
  }

  static std::string rotatable_codecs() {
    std::string names;
    for (const StageInfo& info : registry()) {
      if (info.rotatable) names += (names.empty() ? "" : ", ") + quoted(info.name);
    }
    return names;
  }

  Status parse_params(Stage* stage) {
    skip_blanks();
    if (peek() == ')') {
      ++pos_;
      return {};
    }
    for (;;) {
      const Word key = take(is_word);
      if (key.text.empty()) {
        return error(key.pos, "expected a parameter as key=value (lower case), or ')'");
      }
      const ParamInfo* param = nullptr;
      std::vector<std::string_view> known;
      for (const ParamInfo& candidate : stage->info->params) {
        known.push_back(candidate.name);
        if (key.text == candidate.name) param = &candidate;
      }
      if (param == nullptr) {
        pos_ = key.pos;
        const std::string named = named_value(*stage->info);
        if (!named.empty()) {
          return error(key.pos, "a value needs the name of its parameter: " + quoted(named));
        }
        return error(key.pos, "unknown parameter " + quoted(key.text) + " of " +
                                  quoted(stage->info->name) + ": " + suggestion(key.text, known));
      }
      if (stage->params.has(key.text)) {
        return error(key.pos, quoted(key.text) + " is given twice");
      }
      skip_blanks();
      if (peek() != '=') return error(pos_, "expected '=' after " + quoted(key.text));
      ++pos_;
      Value value;
      bool scheduled = false;
      Word schedule;
      GRADCOMP_TRY(parse_schedule_name(*stage->info, *param, &scheduled, &schedule));
      if (scheduled) {
        GRADCOMP_TRY(parse_schedule(*stage->info, *param, schedule, &value));
      } else {
        GRADCOMP_TRY(parse_value(*stage->info, *param, &value));
      }
      stage->params.set(std::string(key.text), std::move(value));
      skip_blanks();
      if (peek() == ')') {
        ++pos_;
        return {};
      }
      if (peek() != ',') return error(pos_, "expected ',' or ')'");
      ++pos_;
    }
  }

  // The stage with the number here as the first parameter that can have it; empty if there is none.
  std::string named_value(const StageInfo& stage) {
    const std::size_t begin = pos_;
    for (const ParamInfo& param : stage.params) {
      pos_ = begin;
      Value value;
      if ((param.type == ParamType::kReal || param.type == ParamType::kInteger) &&
          parse_value(stage, param, &value).ok()) {
        return std::string(stage.name) + "(" + std::string(param.name) + "=" +
               std::string(text_.substr(begin, pos_ - begin)) + ")";
      }
    }
    return {};
  }

  static std::string must_be(const StageInfo& stage, const ParamInfo& param) {
    const std::string name = std::string(stage.name) + "'s " + quoted(param.name);
    const bool numeric = param.type == ParamType::kReal || param.type == ParamType::kInteger;
    return name + " must be " +
           (param.type == ParamType::kInteger ? "a whole number in "
            : numeric                         ? "a number in "
            : param.type == ParamType::kList  ? "auto, or a list of numbers in "
                                              : "one of ") +
           param.range_text();
  }

  Status parse_value(const StageInfo& stage, const ParamInfo& param, Value* value) {
    value->type = param.type;
    value->short_whole = param.short_whole;
    skip_blanks();
    if (param.type == ParamType::kList && peek() == '[') return parse_list(stage, param, value);
    const Word word = take([](char c) { return is_word(c) || is_number(c); });
    bool valid = false;
    if (param.type == ParamType::kReal) {
      valid = read_number(word.text, &value->real) && in_range(param, value->real);
      value->real += 0.0;  // -0 becomes 0: equal values have one canonical text
    } else if (param.type == ParamType::kInteger) {
      valid = read_number(word.text, &value->integer) &&
              in_range(param, static_cast<double>(value->integer));
    } else if (param.type == ParamType::kBoolean) {
      value->boolean = word.text == "true";
      valid = value->boolean || word.text == "false";
    } else if (param.type == ParamType::kList) {
      valid = word.text == "auto";
    } else {
      value->choice = std::string(word.text);
      const std::string choices = "|" + std::string(param.choices) + "|";
      valid = !word.text.empty() && choices.find("|" + value->choice + "|") != std::string::npos;
    }
    if (valid) return {};
    return error(word.pos,
                 must_be(stage, param) + (word.text.empty() ? "" : ", not " + quoted(word.text)));
  }

  // [0.25,0.1], with numbers in the range of the parameter
  Status parse_list(const StageInfo& stage, const ParamInfo& param, Value* value) {
    GRADCOMP_TRY(expect('['));
    for (;;) {
      GRADCOMP_TRY(parse_number(stage, param, &value->list.emplace_back()));
      skip_blanks();
      if (peek() == ']') break;
      GRADCOMP_TRY(expect(','));
    }
    ++pos_;
    return {};
  }

  Status parse_number(const StageInfo& stage, const ParamInfo& param, double* number) {
    const Word word = take(is_number);
    if (read_number(word.text, number) && in_range(param, *number)) {
      *number += 0.0;
      return {};
    }
    return error(word.pos,
                 must_be(stage, param) + (word.text.empty() ? "" : ", not " + quoted(word.text)));
  }

  Status expect(char wanted) {
    skip_blanks();
    if (peek() != wanted) return error(pos_, "expected " + quoted({&wanted, 1}));
    ++pos_;
    return {};
  }

  // True if a schedule follows; then reads its name.
  Status parse_schedule_name(const StageInfo& stage, const ParamInfo& param, bool* found,
                             Word* name) {
    const std::size_t begin = pos_;
    *name = take(is_word);
    skip_blanks();
    *found = peek() == '(' && !name->text.empty();
    if (!*found) {
      pos_ = begin;
      return {};
    }
    if (name->text != "ramp" && name->text != "steps" && name->text != "epochs") {
      return error(name->pos, "unknown schedule " + quoted(name->text) + ": " +
                                  suggestion(name->text, {"ramp", "steps", "epochs"}));
    }
    if (stage.kind >= StageKind::kCodec && param.type == ParamType::kReal) return {};
    return error(name->pos,
                 std::string(stage.name) + "'s " + quoted(param.name) +
                     " cannot have a schedule: only real-valued parameters of codecs can");
  }

  // ramp(from=0.25,to=0.001,steps=4000), steps([0.25,0.1],every=100) or epochs([0.25,0.1])
  Status parse_schedule(const StageInfo& stage, const ParamInfo& param, const Word& name,
                        Value* value) {
    Schedule schedule;
    GRADCOMP_TRY(expect('('));
    if (name.text == "ramp") {
      GRADCOMP_TRY(parse_ramp(stage, param, name.pos, &schedule));
    } else {
      schedule.shape = Schedule::Shape::kStairs;
      schedule.unit = name.text == "steps" ? Schedule::Unit::kSteps : Schedule::Unit::kEpochs;
      Value list;
      GRADCOMP_TRY(parse_list(stage, param, &list));
      schedule.values = std::move(list.list);
      skip_blanks();
      if (peek() == ',') {
        ++pos_;
        const Word key = take(is_word);
        if (key.text != "every") return error(key.pos, "expected every=..., or ')'");
        GRADCOMP_TRY(expect('='));
        GRADCOMP_TRY(parse_length(&schedule.length));
      }
      GRADCOMP_TRY(expect(')'));
    }
    value->type = param.type;
    value->short_whole = param.short_whole;
    value->real = schedule.values[0];
    value->schedule = std::move(schedule);
    return {};
  }

  Status parse_ramp(const StageInfo& stage, const ParamInfo& param, std::size_t pos,
                    Schedule* schedule) {
    constexpr double kNone = -1;
    schedule->values = {kNone, kNone};
    schedule->length = 0;
    for (;;) {
      const Word key = take(is_word);
      GRADCOMP_TRY(expect('='));
      if (key.text == "from" || key.text == "to") {
        double& end = schedule->values[key.text == "from" ? 0 : 1];
        if (end != kNone) return error(key.pos, quoted(key.text) + " is given twice");
        const std::size_t at = pos_;
        GRADCOMP_TRY(parse_number(stage, param, &end));
        if (!(end > 0)) return error(at, "a ramp multiplies: its ends must be above 0");
      } else if (key.text == "steps" || key.text == "epochs") {
        if (schedule->length != 0) return error(key.pos, "the length is given twice");
        schedule->unit = key.text == "steps" ? Schedule::Unit::kSteps : Schedule::Unit::kEpochs;
        GRADCOMP_TRY(parse_length(&schedule->length));
      } else {
        return error(key.pos, "unknown parameter " + quoted(key.text) + " of a ramp: " +
                                  suggestion(key.text, {"from", "to", "steps", "epochs"}));
      }
      skip_blanks();
      if (peek() == ')') break;
      GRADCOMP_TRY(expect(','));
    }
    ++pos_;
    if (schedule->values[0] == kNone || schedule->values[1] == kNone || schedule->length == 0) {
      return error(pos,
                   "a ramp needs from, to, and steps or epochs, as in "
                   "'ramp(from=0.25,to=0.001,steps=4000)'");
    }
    return {};
  }

  Status parse_length(std::int64_t* length) {
    const Word word = take(is_number);
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    if (read_number(word.text, length) && *length >= 1 && *length <= kMost) return {};
    return error(word.pos, "a schedule's length must be a whole number in [1, 9007199254740992]" +
                               (word.text.empty() ? "" : ", not " + quoted(word.text)));
  }

  template <typename Number>
  static bool read_number(std::string_view text, Number* value) {
    const char* begin = text.data();
    const char* const end = begin + text.size();
    if (end - begin > 1 && begin[0] == '+' && begin[1] != '-') ++begin;
    const auto result = std::from_chars(begin, end, *value);
    return result.ec == std::errc() && result.ptr == end;
  }

  static bool in_range(const ParamInfo& param, double value) {
    return std::isfinite(value) && value <= param.max &&
           (param.min_exclusive ? value > param.min : value >= param.min);
  }

  Status complete(Stage* stage, std::size_t pos) const {
    const std::vector<const char*>& group = stage->info->exactly_one_of;
    if (!group.empty()) {
      std::string names;
      int given = 0;
      for (const char* name : group) {
        names += (names.empty() ? "" : ", ") + quoted(name);
        given += stage->params.has(name) ? 1 : 0;
      }
      if (given != 1) {
        return error(pos, quoted(stage->info->name) + " needs exactly one of " + names +
                              ", as in " + quoted(stage->info->example));
      }
    }
    for (const ParamInfo& param : stage->info->params) {
      if (param.unless != nullptr && stage->params.has(param.unless)) {
        if (!stage->params.has(param.name)) continue;
        return error(pos, quoted(stage->info->name) + " takes either " + quoted(param.name) +
                              " or " + quoted(param.unless) + ", not both");
      }
      if (param.default_text == nullptr || stage->params.has(param.name)) continue;
      Parser defaults{std::string_view(param.default_text)};
      Value value;
      GRADCOMP_TRY(defaults.parse_value(*stage->info, param, &value));
      stage->params.set(param.name, std::move(value));
    }
    return {};
  }

  std::string_view text_;
  std::size_t pos_ = 0;
};

}  // namespace

const Stage* Spec::find(StageKind kind) const {
  for (const Stage& stage : stages) {
    if (stage.info->kind == kind) return &stage;
  }
  return nullptr;
}

std::string Spec::text() const {
  const Stage* memory = find(StageKind::kMemory);
  return (memory == nullptr ? "" : memory->text() + "|") + text_without_memory();
}

std::string Spec::text_without_memory() const {
  std::string text;
  for (const Stage& stage : stages) {
    if (stage.info->kind != StageKind::kMemory) text += (text.empty() ? "" : "|") + stage.text();
  }
  return text;
}

bool Spec::scheduled_by(Schedule::Unit unit) const {
  for (const Stage& stage : stages) {
    for (const auto& [name, value] : stage.params.values()) {
      if (value.schedule && value.schedule->unit == unit) return true;
    }
  }
  return false;
}

std::int64_t Spec::step_schedules_end() const {
  std::int64_t end = 0;
  for (const Stage& stage : stages) {
    for (const auto& [name, value] : stage.params.values()) {
      if (!value.schedule || value.schedule->unit != Schedule::Unit::kSteps) continue;
      end = std::max(end, value.schedule->end());
    }
  }
  return end;
}

Spec Spec::at(std::int64_t step, std::int64_t epoch) const {
  Spec now = *this;
  for (Stage& stage : now.stages) {
    const Params scheduled = stage.params;
    for (const auto& [name, value] : scheduled.values()) {
      if (!value.schedule) continue;
      Value plain;
      plain.type = ParamType::kReal;
      plain.short_whole = value.short_whole;
      plain.real = value.schedule->at(step, epoch);
      stage.params.set(name, std::move(plain));
    }
  }
  return now;
}

Status parse_spec(std::string_view text, Spec* spec) { return Parser(text).parse(spec); }

}  // namespace gradcomp
