#include "codecs/sparse/sparse_codec.hpp"

#include <algorithm>
#include <string>

#include "base/bytes.hpp"
#include "codec/payload.hpp"
#include "codecs/sparse/scatter.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kHeader = 8;

// Elements for each kept one. Of fewer kept ones single writes are faster than pieces; more of
// them, of several open payloads, would take more memory than the tensor.
constexpr std::size_t kFew = 256, kMany = 16;

constexpr std::size_t kIndexSlot = kSelectionSlots;
constexpr std::size_t kValueSlot = kSelectionSlots + 1;

}  // namespace

SparseCodec::SparseCodec(const Recipe& recipe, std::size_t unit)
    : SparseCodec(recipe, value_type(recipe.params.choice("values"))) {
  unit_ = unit;
}

SparseCodec::SparseCodec(const Recipe& recipe, ValueType values)
    : coder_(IndexCoder::named(recipe.coder_name("auto"))), value_type_(values), unit_(1) {}

Caps SparseCodec::caps() const noexcept {
  Caps caps;
  caps.sparse = true;
  caps.finite = value_finite(value_type_);
  return caps;
}

std::size_t SparseCodec::max_encoded_size(std::size_t n) const noexcept {
  const std::size_t kept = max_kept(units(n));
  return kHeader + coder_.max_bytes(units(n), kept) +
         value_bytes(value_type_, std::min(n, kept * unit_));
}

Status SparseCodec::encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                           std::size_t* written) const {
  GRADCOMP_TRY(check_room(out, max_encoded_size(x.size())));
  Selection kept;
  GRADCOMP_TRY(select(x, call, &kept));
  *written = write(kept, x.size(), out.data());
  return {};
}

std::size_t SparseCodec::write(const KeptParts& kept, std::size_t n, std::uint8_t* out) const {
  IndexCoding used = IndexCoding::kRaw32;
  const std::size_t index_bytes = coder_.encode(kept.indices, units(n), out + kHeader, &used);
  encode_values(value_type_, kept.values, out + kHeader + index_bytes);
  store(out, static_cast<std::uint32_t>(kept.indices.size()));
  out[4] = static_cast<std::uint8_t>(used);
  out[5] = static_cast<std::uint8_t>(value_type_);
  const std::size_t shortfall = kept.indices.size() * unit_ - kept.values.size();
  store(out + 6, static_cast<std::uint16_t>(shortfall));
  return kHeader + index_bytes + value_bytes(value_type_, kept.values.size());
}

Status SparseCodec::pack(const KeptParts& kept, std::size_t n, Span<std::uint8_t> out,
                         std::size_t* written) const {
  GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
  const std::size_t all = units(n), count = kept.indices.size();
  if (count < min_kept(all) || count > max_kept(all)) {
    return wire_error(std::to_string(count) + " indices of " + std::to_string(all) +
                      "; this spec keeps " + std::to_string(min_kept(all)) + " to " +
                      std::to_string(max_kept(all)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (kept.indices[i] < all && (i == 0 || kept.indices[i - 1] < kept.indices[i])) continue;
    return wire_error("index " + std::to_string(kept.indices[i]) + " at place " +
                      std::to_string(i) + "; indices must ascend and be below " +
                      std::to_string(all));
  }
  const bool last_kept = count > 0 && kept.indices[count - 1] + std::size_t{1} == all;
  const std::size_t expected = count * unit_ - (last_kept ? last_short(n) : 0);
  if (kept.values.size() != expected) {
    return wire_error(std::to_string(kept.values.size()) + " values for " +
                      std::to_string(expected) + " kept elements");
  }
  *written = write(kept, n, out.data());
  return {};
}

Status SparseCodec::decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, y.size(), &kept));
  scatter(kept.indices, unit_, kept.values.data(), y);
  return {};
}

Status SparseCodec::decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                               Span<float> acc) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, acc.size(), &kept));
  scatter_add(kept.indices, unit_, kept.values.data(), weight, acc);
  return {};
}

Status SparseCodec::open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                         OpenPayload* opened) const {
  if (in.size() >= kHeader) {
    const std::size_t kept = load<std::uint32_t>(in.data()) * unit_;
    if (kept < n / kFew || kept > n / kMany) return {};
  }
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, n, &kept));
  opened->unit = 1;
  opened->add = [this, kept](std::size_t begin, std::size_t count, float weight, float* acc) {
    scatter_add_piece(kept.indices, unit_, kept.values.data(), weight, begin, {acc, count});
  };
  return {};
}

Status SparseCodec::decode_add_count(Span<const std::uint8_t> in, const Call& call, float weight,
                                     Span<float> acc, Span<std::uint16_t> counts) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, acc.size(), &kept));
  scatter_add(kept.indices, unit_, kept.values.data(), weight, acc);
  scatter_count(kept.indices, unit_, counts);
  return {};
}

Status SparseCodec::sum_squares(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                                double* sum) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, n, &kept));
  *sum = kernels().sum_squares(kept.values.data(), kept.values.size());
  return {};
}

Status SparseCodec::zero_sent(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
  KeptParts kept;
  GRADCOMP_TRY(unpack(in, call, y.size(), &kept));
  scatter_zeros(kept.indices, unit_, y);
  return {};
}

Status SparseCodec::unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                           KeptParts* kept) const {
  if (in.size() < kHeader) {
    return wire_error("a sparse payload of " + std::to_string(in.size()) +
                      " bytes; its header alone has " + std::to_string(kHeader));
  }
  const std::size_t all = units(n);
  const std::size_t count = load<std::uint32_t>(in.data());
  if (count < min_kept(all) || count > max_kept(all)) {
    return wire_error("the payload says that it keeps " + std::to_string(count) + " of " +
                      std::to_string(all) + "; this spec keeps " + std::to_string(min_kept(all)) +
                      " to " + std::to_string(max_kept(all)));
  }
  const auto coding = static_cast<IndexCoding>(in[4]);
  if (in[4] >= kIndexCodings || !coder_.allows(coding) ||
      in[5] != static_cast<std::uint8_t>(value_type_)) {
    return wire_error("index coding " + std::to_string(in[4]) + " or value type " +
                      std::to_string(in[5]) + ", which this spec does not allow");
  }
  const std::size_t shortfall = load<std::uint16_t>(in.data() + 6);
  if (shortfall != 0 && (shortfall != last_short(n) || count == 0)) {
    return wire_error("reserved bits, or a last unit that is short by " +
                      std::to_string(shortfall) + " elements");
  }
  const std::size_t value_count = count * unit_ - shortfall;
  const std::size_t tail = value_bytes(value_type_, value_count);
  if (in.size() < kHeader + tail) {
    return wire_error("the payload has " + std::to_string(in.size()) + " bytes; its values alone " +
                      "need " + std::to_string(tail));
  }
  Span<std::uint32_t> indices = call.scratch->get<std::uint32_t>(kIndexSlot, count + 1);
  Span<float> values = call.scratch->get<float>(kValueSlot, value_count + 1);
  if (indices.empty() || values.empty()) {
    return capacity_error("out of memory while decoding a sparse payload");
  }
  const std::size_t index_bytes = in.size() - kHeader - tail;
  GRADCOMP_TRY(
      decode_indices(coding, {in.data() + kHeader, index_bytes}, all, {indices.data(), count}));
  const bool last_kept = count > 0 && indices[count - 1] + std::size_t{1} == all;
  if (shortfall != (last_kept ? last_short(n) : 0)) {
    return wire_error("the last unit is short by " + std::to_string(last_short(n)) +
                      " elements, and the payload says " + std::to_string(shortfall));
  }
  decode_values(value_type_, in.data() + kHeader + index_bytes, {values.data(), value_count});
  *kept = {{indices.data(), count}, {values.data(), value_count}};
  return {};
}

}  // namespace gradcomp
