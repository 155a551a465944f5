// Codec for quantizers that round each element at random to a level of its bucket's norm.
//
// Payload: float32 norms, one per bucket, then the coded levels of all elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codec/stage.hpp"
#include "codecs/quantize/bucket_norms.hpp"
#include "coding/levels.hpp"

namespace gradcomp {

enum class Partition {
  kLinear,   // levels 0, 1/s, 2/s, ..., 1 of the norm
  kNatural,  // levels 0, 2^(1-s), ..., 1/2, 1 of the norm
};

class DitheredCodec final : public Codec {
 public:
  // Reads the parameters `levels` and `bucket`, and the coder stage.
  DitheredCodec(const Recipe& recipe, Norm norm, Partition partition);

  Caps caps() const noexcept override;
  std::size_t max_encoded_size(std::size_t n) const noexcept override;
  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override;
  Status check(Span<const std::uint8_t> in, const Call& call, std::size_t n) const override;
  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override;
  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override;

 private:
  Status write_long_norms(Span<const float> x, const Call& call, std::uint8_t* out) const;
  void write_symbols(Span<const float> x, const Call& call, std::size_t begin, std::size_t end,
                     std::uint8_t* norms, std::uint8_t* symbols) const;
  void round(const float* x, const std::uint32_t* words, float norm, std::uint8_t* symbols,
             std::size_t n) const;

  // acc += weight * the values of the symbols of a bucket, or of a part of one.
  void add(const std::uint8_t* symbols, float norm, float weight, float* acc, std::size_t n) const;

  Status read(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              Span<const std::uint8_t>* symbols) const;
  template <typename Fn>
  void for_buckets(std::size_t n, const Fn& fn) const;

  unsigned levels_;
  unsigned bits_;
  std::size_t bucket_;
  BucketNorms norms_;
  Partition partition_;
  LevelCoder coder_;
  float values_[256];  // of each symbol, in units of unit(norm)
};

ParamInfo levels_param(const char* default_text, const char* doc);
ParamInfo bucket_param(const char* default_text, const char* doc);
// Why error feedback diverges with these parameters; nullptr if it converges. Bounds of the mean
// squared error over the mean square of n elements, with an l2 norm: min(n / s^2, sqrt(n) / s) for
// s linear levels (QSGD, lemma 3.1); 1/8 + t min(1, t), t = 2^(1-s) sqrt(n), for natural ones
// (Horvath et al., theorem 7). From 1 on, a step may add more error than it sends. With the largest
// magnitude as the norm, elements near it are sent almost surely, which bounds the residual.
const char* refuse_dithered(Norm norm, Partition partition, const Params& params,
                            const StageInfo* memory);
// Effect of NaN and Inf in a bucket, for stage rows.
extern const char* const kDitheredNonfinite;

}  // namespace gradcomp
