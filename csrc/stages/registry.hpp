// Table of all stages that a spec may name. Explicit, because static linking drops self-registering
// objects.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "codec/stage.hpp"

namespace gradcomp {

const std::vector<StageInfo>& registry();
const StageInfo* find_stage(std::string_view name) noexcept;
const StageInfo* find_stage(std::uint16_t codec_id) noexcept;

}  // namespace gradcomp
