// Base class for codecs with one bit per element. Payload: a head of float32 scales, then one bit
// per element, which is 1 if the element is below 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/chunks.hpp"
#include "codec/codec.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codec/piece_codec.hpp"
#include "coding/bits.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

class SignBitCodec : public PieceCodec {
 public:
  Caps caps() const noexcept final {
    Caps caps;
    caps.fuses_feedback = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept final { return head_ + bit_bytes(n); }

  Status check(Span<const std::uint8_t> in, const Call&, std::size_t n) const final {
    GRADCOMP_TRY(check_payload_size(in, max_encoded_size(n), n));
    if (n % 8 != 0 && in[in.size() - 1] >> n % 8 != 0) {
      return wire_error("the bits beyond the last of " + std::to_string(n) + " elements are not 0");
    }
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final {
    GRADCOMP_TRY(check(in, call, y.size()));
    const Values values = read(in.data());
    for_ranges(y.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      kernels().select_bits(in.data() + head_ + begin / 8, values.others, values.negative,
                            y.data() + begin, end - begin);
    });
    return {};
  }

  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              OpenPayload* opened) const final {
    GRADCOMP_TRY(check(in, call, n));
    const Values values = read(in.data());
    const std::uint8_t* const bits = in.data() + head_;
    opened->unit = 8;
    opened->add = [values, bits](std::size_t begin, std::size_t count, float weight, float* acc) {
      kernels().select_bits_add(bits + begin / 8, weight * values.others, weight * values.negative,
                                acc, count);
    };
    return {};
  }

 protected:
  // Decoded values of elements below 0 and of all others.
  struct Values {
    float negative;
    float others;
  };

  explicit SignBitCodec(std::size_t head) : head_(head) {}

  // Subtracts the decoded payload from the residual, if there is one.
  Status subtract_sent(Span<std::uint8_t> out, std::size_t size, const Call& call) const {
    if (call.feedback == nullptr) return {};
    return decode_add({out.data(), size}, call, -1.0f, call.feedback->residual());
  }

 private:
  virtual Values read(const std::uint8_t* head) const = 0;

  std::size_t head_;
};

}  // namespace gradcomp
