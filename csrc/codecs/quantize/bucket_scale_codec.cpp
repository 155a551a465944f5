#include "codecs/quantize/bucket_scale_codec.hpp"

#include <algorithm>
#include <string>

#include "codec/feedback.hpp"

namespace gradcomp {

std::size_t BucketScaleCodec::max_encoded_size(std::size_t n) const noexcept {
  const std::size_t tail = n % bucket_;
  return n / bucket_ * stride() + (tail == 0 ? 0 : kScaleBytes + code_bytes(tail));
}

Status BucketScaleCodec::encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                                std::size_t* written) const {
  GRADCOMP_TRY(check_room(out, max_encoded_size(x.size())));
  float* const residual = residual_of(call);
  for_blocks(x.size(), bucket_, [&](std::size_t bucket, std::size_t begin, std::size_t count) {
    std::uint8_t* to = out.data() + bucket * stride();
    const float* from = x.data() + begin;
    correct(call, begin, begin + count);
    const std::uint32_t largest = kernels().max_magnitude(from, count);
    float scale = largest >= kInfBits ? bits_float(kNanBits) : 0.0f;
    if (largest > 0 && largest < kInfBits) {
      scale = quantize(from, bits_float(largest), call, begin, to + kScaleBytes, count);
    } else {
      zeros(to + kScaleBytes, count);
    }
    store(to, scale);
    if (residual != nullptr) {
      expand_add(to + kScaleBytes, scale, -1.0f, residual + begin, count);
    }
  });
  *written = max_encoded_size(x.size());
  return {};
}

Status BucketScaleCodec::check(Span<const std::uint8_t> in, const Call&, std::size_t n) const {
  GRADCOMP_TRY(check_payload_size(in, max_encoded_size(n), n));
  const std::uint8_t* codes = in.data() + kScaleBytes;
  for (std::size_t begin = 0; begin < n; begin += bucket_, codes += stride()) {
    if (!valid(codes, n - begin < bucket_ ? n - begin : bucket_)) {
      return wire_error("bucket " + std::to_string(begin / bucket_) +
                        " has a code out of range, or bits beyond its end that are not 0");
    }
  }
  return {};
}

Status BucketScaleCodec::decode(Span<const std::uint8_t> in, const Call& call,
                                Span<float> y) const {
  GRADCOMP_TRY(check(in, call, y.size()));
  for_blocks(y.size(), bucket_, [&](std::size_t bucket, std::size_t begin, std::size_t count) {
    const std::uint8_t* from = in.data() + bucket * stride();
    expand(from + kScaleBytes, load<float>(from), y.data() + begin, count);
  });
  return {};
}

Status BucketScaleCodec::open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                              OpenPayload* opened) const {
  GRADCOMP_TRY(check(in, call, n));
  opened->unit = bucket_;
  opened->add = [this, in](std::size_t begin, std::size_t count, float weight, float* acc) {
    const std::uint8_t* from = in.data() + begin / bucket_ * stride();
    for (std::size_t done = 0; done < count; done += bucket_, from += stride()) {
      expand_add(from + kScaleBytes, load<float>(from), weight, acc + done,
                 std::min(count - done, bucket_));
    }
  };
  return {};
}

}  // namespace gradcomp
