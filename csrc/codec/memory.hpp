// A spec's memory around its codec, for engines that do not run the rounds of the Python package.
// gradcomp/exchange/memory.py describes each memory; both give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/compiled.hpp"
#include "codec/stage.hpp"

namespace gradcomp {

// A tensor's own, the caller's memory: all 0 before the first step, empty where `keeps` has none.
struct MemoryArrays {
  Span<float> residual;
  Span<float> momentum;
};

class Memory {
 public:
  // The memory of a stage, which must outlive this; none for nullptr.
  explicit Memory(const Stage* stage);

  bool keeps_residual() const noexcept { return kind_ == Kind::kResidual || corrects(); }
  bool keeps_momentum() const noexcept { return kind_ == Kind::kSignum || corrects(); }

  // The codec's payload of what the memory makes of `grad`. `first`: this is the tensor's step 0.
  Status encode(const CompiledCodec& codec, Span<const float> grad, const MemoryArrays& arrays,
                std::size_t world_size, bool first, Call call, Span<std::uint8_t> out,
                std::size_t* written) const;

 private:
  enum class Kind { kNone, kResidual, kSignum, kMomentumCorrection };

  bool corrects() const noexcept { return kind_ == Kind::kMomentumCorrection; }
  // What brings a gradient down to the norm that clipping allows.
  float clip_scale(Span<const float> grad, std::size_t world_size) const;

  Kind kind_ = Kind::kNone;
  const Params* params_ = nullptr;  // of a memory
};

}  // namespace gradcomp
