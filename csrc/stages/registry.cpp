#include "stages/registry.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "codecs/codecs.hpp"
#include "stages/rows.hpp"

namespace gradcomp {
namespace {

std::vector<StageInfo> own_stages() {
  // In the order that people see; ids are given once and never change.
  std::vector<StageInfo> all = {
      dgc_stage(),
      chunk_dgc_stage(),
      residual_stage(),
      signum_stage(),
      momentum_correction_stage(),
      ef21_stage(),
      rotate_stage(),
      identity_stage(),
      fp16_stage(),
      bf16_stage(),
      lossless_stage(),
      topk_stage(),
      randomk_stage(),
      sign_stage(),
      onebit_stage(),
      terngrad_stage(),
      natural_stage(),
      int8_stage(),
      int4_stage(),
      fp8_stage(),
      blockwise8_stage(),
      qsgd_stage(),
      dither_stage(),
      uniform_stage(),
      eden_stage(),
      drive_stage(),
      sampled_topk_stage(),
      threshold_stage(),
      randomblock_stage(),
      chunktopk_stage(),
      blocktopk_stage(),
      globaltopk_stage(),
      adaq_stage(),
      inceptionn_stage(),
      sketch_stage(),
      polar_b_stage(),
      polar_ec_stage(),
      polar_stage(),
      adaptive_stage(),
      powersgd_stage(),
      atomo_stage(),
      chunk_allreduce_stage(),
      signsgd_mv_stage(),
      dion_stage(),
      dion2_stage(),
      demo_stage(),
  };
  for (StageInfo& coder : coder_stages()) all.push_back(std::move(coder));
  return all;
}

// Readers take no lock: a row is complete before the count says that it is there.
class Table {
 public:
  Table() {
    for (StageInfo& row : own_stages()) append(std::move(row));
  }

  Span<const StageInfo> rows() const noexcept {
    return {rows_.data(), count_.load(std::memory_order_acquire)};
  }

  Status add(StageInfo row) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string name = "'" + std::string(row.name) + "'";
    if (find_stage(std::string_view(row.name)) != nullptr) {
      return {Code::kSpec, "the name " + name + " is taken: give the codec another one"};
    }
    if (const StageInfo* const other = find_stage(row.id)) {
      return {Code::kSpec, "the codec id " + std::to_string(row.id) + " of " + name +
                               " is that of '" + std::string(other->name) +
                               "': give the codec another one"};
    }
    if (rows().size() == kMaxStages) {
      return capacity_error("there are " + std::to_string(kMaxStages) +
                            " stages, and there is no room for " + name);
    }
    append(std::move(row));
    return {};
  }

 private:
  void append(StageInfo row) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    rows_[count] = std::move(row);
    count_.store(count + 1, std::memory_order_release);
  }

  std::mutex mutex_;
  std::array<StageInfo, kMaxStages> rows_;
  std::atomic<std::size_t> count_{0};
};

// Never destroyed: codecs point to their rows until the very end of the process.
Table& table() {
  static Table* const only = new Table;
  return *only;
}

}  // namespace

Span<const StageInfo> registry() { return table().rows(); }

Status add_stage(StageInfo row) { return table().add(std::move(row)); }

const StageInfo* find_stage(std::string_view name) noexcept {
  for (const StageInfo& info : registry()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

const StageInfo* find_stage(std::uint16_t codec_id) noexcept {
  for (const StageInfo& info : registry()) {
    if (info.kind == StageKind::kCodec && info.id == codec_id) return &info;
  }
  return nullptr;
}

}  // namespace gradcomp
