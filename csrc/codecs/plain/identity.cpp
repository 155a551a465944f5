// Unchanged float32 values. Payload: numel float32.
#include <cstring>

#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

class Identity final : public Codec {
 public:
  Caps caps() const noexcept override {
    Caps caps;
    caps.summable = true;
    caps.payload_type = PayloadType::kFloat32;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override { return 4 * n; }

  Status encode(Span<const float> x, const Call&, Span<std::uint8_t> out,
                std::size_t* written) const override {
    GRADCOMP_TRY(check_room(out, 4 * x.size()));
    if (!x.empty()) std::memcpy(out.data(), x.data(), 4 * x.size());
    *written = 4 * x.size();
    return {};
  }

  Status check(Span<const std::uint8_t> in, const Call&, std::size_t n) const override {
    return check_payload_size(in, 4 * n, n);
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    GRADCOMP_TRY(check(in, call, y.size()));
    if (!y.empty()) std::memcpy(y.data(), in.data(), in.size());
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    GRADCOMP_TRY(check(in, call, acc.size()));
    for_ranges(acc.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      kernels().f32_add(in.data() + 4 * begin, weight, acc.data() + begin, end - begin);
    });
    return {};
  }
};

}  // namespace

StageInfo identity_stage() {
  StageInfo stage;
  stage.name = "identity";
  stage.id = 1;
  stage.summary = "unchanged float32 values";
  stage.paper = "none";
  stage.nonfinite = "kept";
  stage.example = "identity";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> { return std::make_unique<Identity>(); };
  return stage;
}

}  // namespace gradcomp
