// The table of every stage that a spec may name. Explicit: static registrars vanish in static
// links. Rows of plug-ins follow at run time (stages/plugins.hpp); a row never moves or changes.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/stage.hpp"

namespace gradcomp {

// All rows so far. May run at the same time as add_stage().
Span<const StageInfo> registry();
const StageInfo* find_stage(std::string_view name) noexcept;
const StageInfo* find_stage(std::uint16_t codec_id) noexcept;

inline constexpr std::size_t kMaxStages = 256;

// Adds a codec's row. Its strings must live as long as the process. Refuses a name or an id that is
// taken.
Status add_stage(StageInfo row);

}  // namespace gradcomp
