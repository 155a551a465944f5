#include "codecs/sparse/seeded_codec.hpp"

#include <string>

#include "codec/payload.hpp"
#include "codecs/sparse/scatter.hpp"
#include "codecs/sparse/sparse_codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kIndexSlot = 4;
constexpr std::size_t kValueSlot = 5;

}  // namespace

SeededCodec::SeededCodec(const Params& params)
    : keep_(params),
      value_type_(value_type(params.choice("values"))),
      unbiased_(params.boolean("unbiased")) {}

Caps SeededCodec::caps() const noexcept {
  Caps caps;
  caps.summable = value_type_ == ValueType::kFp32 || value_type_ == ValueType::kFp16;
  caps.seeded = true;
  caps.sparse = true;
  caps.finite = value_finite(value_type_) && !unbiased_;  // x * n / k may overflow
  if (value_type_ == ValueType::kFp32) caps.payload_type = PayloadType::kFloat32;
  if (value_type_ == ValueType::kFp16) caps.payload_type = PayloadType::kFloat16;
  return caps;
}

std::size_t SeededCodec::max_encoded_size(std::size_t n) const noexcept {
  return value_bytes(value_type_, keep_.count(n));
}

Status SeededCodec::encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                           std::size_t* written) const {
  GRADCOMP_TRY(check_room(out, max_encoded_size(x.size())));
  Kept kept;
  GRADCOMP_TRY(choose_kept(x.size(), call, &kept));
  const std::size_t k = kept.indices.size();
  gather(x, {kept.indices.data(), k}, kept.values.data());
  if (unbiased_ && k > 0) {
    const float scale = static_cast<float>(static_cast<double>(x.size()) / static_cast<double>(k));
    for (float& value : kept.values) value *= scale;
  }
  encode_values(value_type_, {kept.values.data(), k}, out.data());
  *written = value_bytes(value_type_, k);
  return {};
}

Status SeededCodec::decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, y.size(), &kept));
  scatter(kept.indices, 1, kept.values.data(), y);
  return {};
}

Status SeededCodec::decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                               Span<float> acc) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, acc.size(), &kept));
  scatter_add(kept.indices, 1, kept.values.data(), weight, acc);
  return {};
}

Status SeededCodec::decode_add_count(Span<const std::uint8_t> in, const Call& call, float weight,
                                     Span<float> acc, Span<std::uint16_t> counts) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, acc.size(), &kept));
  scatter_add(kept.indices, 1, kept.values.data(), weight, acc);
  scatter_count(kept.indices, 1, counts);
  return {};
}

Status SeededCodec::sum_squares(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                                double* sum) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, n, &kept));
  *sum = kernels().sum_squares(kept.values.data(), kept.values.size());
  return {};
}

Status SeededCodec::choose_kept(std::size_t n, const Call& call, Kept* kept) const {
  const std::size_t k = keep_.count(n);
  Span<std::uint32_t> indices = call.scratch->get<std::uint32_t>(kIndexSlot, k + 1);
  Span<float> values = call.scratch->get<float>(kValueSlot, k + 1);
  if (indices.empty() || values.empty()) {
    return capacity_error("out of memory: " + std::to_string(k) + " indices and values");
  }
  kept->indices = {indices.data(), k};
  kept->values = {values.data(), k};
  return choose(n, call, kept->indices);
}

Status SeededCodec::pack(const KeptParts& kept, std::size_t n, Span<std::uint8_t> out,
                         std::size_t* written) const {
  GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
  if (!kept.indices.empty() || kept.values.size() != keep_.count(n)) {
    return wire_error(std::to_string(kept.indices.size()) + " indices and " +
                      std::to_string(kept.values.size()) + " values; this spec sends 0 and " +
                      std::to_string(keep_.count(n)));
  }
  encode_values(value_type_, kept.values, out.data());
  *written = value_bytes(value_type_, kept.values.size());
  return {};
}

Status SeededCodec::unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                           KeptParts* kept) const {
  GRADCOMP_TRY(check_payload_size(in, max_encoded_size(n), n));
  Kept chosen;
  GRADCOMP_TRY(choose_kept(n, call, &chosen));
  decode_values(value_type_, in.data(), chosen.values);
  *kept = {{chosen.indices.data(), chosen.indices.size()},
           {chosen.values.data(), chosen.values.size()}};
  return {};
}

std::vector<ParamInfo> seeded_params() {
  return {ratio_param(), k_param(), values_param(),
          boolean_param("unbiased", "false",
                        "scale by numel/k: the expectation over streams is the gradient")};
}

const char* refuse_seeded(const Params& params, const StageInfo* memory) {
  if (!params.boolean("unbiased")) return nullptr;
  if (memory != nullptr) {
    return "error feedback diverges with unbiased=true, because values scaled by numel/k exceed "
           "the gradient; leave out the memory, or unbiased=true";
  }
  const std::string& values = params.choice("values");
  if (values == "sign" || values == "means" || values == "2bit") {
    return "values=sign, means and 2bit are biased, which excludes unbiased=true; leave out one of "
           "them";
  }
  return nullptr;
}

}  // namespace gradcomp
