#include "codecs/quantize/group_codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kSymbolSlot = 0;

// Splits the tiles of a rotation between threads.
template <typename Fn>
void for_tiles(const Rotation& rotation, const Fn& fn) {
  static_assert(kChunk % kRotationBlock == 0, "ranges are whole tiles");
  for_ranges(
      rotation.tiles() * kRotationBlock, [&](std::size_t, std::size_t begin, std::size_t end) {
        alignas(64) float buffer[Rotation::kMaxTile];
        for (std::size_t tile = begin / kRotationBlock; tile < end / kRotationBlock; ++tile) {
          fn(tile, buffer);
        }
      });
}

void subtract(const float* sent, float* residual, std::size_t n) {
  kernels().f32_add(reinterpret_cast<const std::uint8_t*>(sent), -1.0f, residual, n);
}

}  // namespace

std::size_t GroupCodec::groups(std::size_t n) const noexcept {
  return rotated_ ? Rotation(n, 0).groups() : (n + kGroup - 1) / kGroup;
}

std::size_t GroupCodec::max_encoded_size(std::size_t n) const noexcept {
  return n < min_numel_ ? 4 * n : scale_bytes(groups(n)) + max_code(n);
}

Status GroupCodec::encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                          std::size_t* written) const {
  const std::size_t n = x.size();
  GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
  float* const residual = residual_of(call);
  if (n < min_numel_) {
    correct(call, 0, n);
    if (n != 0) std::memcpy(out.data(), x.data(), 4 * n);
    if (residual != nullptr) kernels().f32_add(out.data(), -1.0f, residual, n);
    *written = 4 * n;
    return {};
  }
  const Span<std::uint8_t> symbols = call.scratch->get<std::uint8_t>(kSymbolSlot, n + 1);
  if (symbols.empty()) return capacity_error("out of memory while quantizing");
  std::uint8_t* const scales = out.data();
  const auto encode_group = [&](std::size_t group, const float* v, std::size_t begin,
                                std::size_t count) {
    float of_group[kMaxScales];
    quantize(v, count, begin, call, symbols.data() + begin, of_group);
    std::memcpy(scales + scale_bytes(group), of_group, scale_bytes(1));
  };
  if (rotated_) {
    const Rotation rotation(n, call.stream);
    for_tiles(rotation, [&](std::size_t tile, float* buffer) {
      const std::size_t begin = rotation.tile_begin(tile);
      const std::size_t first = rotation.first_group(tile);
      const std::size_t rest = rotation.tile_size(tile) - first;
      correct(call, begin, begin + first + rest);
      rotation.forward(tile, x.data() + begin, buffer);
      encode_group(tile, buffer, begin, first);
      if (rest != 0) encode_group(tile + 1, buffer + first, begin + first, rest);
      if (residual != nullptr) {
        decode_tile(rotation, tile, scales, symbols.data(), buffer);
        subtract(buffer, residual + begin, first + rest);
      }
    });
  } else {
    for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; i += kGroup) {
        const std::size_t count = end - i < kGroup ? end - i : kGroup;
        correct(call, i, i + count);
        encode_group(i / kGroup, x.data() + i, i, count);
        if (residual != nullptr) {
          alignas(64) float sent[kGroup];
          decode_group(scales + scale_bytes(i / kGroup), symbols.data() + i, count, sent);
          subtract(sent, residual + i, count);
        }
      }
    });
  }
  const std::size_t head = scale_bytes(groups(n));
  std::size_t coded = 0;
  GRADCOMP_TRY(encode_symbols({symbols.data(), n}, call, out.data() + head, &coded));
  *written = head + coded;
  return {};
}

Status GroupCodec::encode_symbols(Span<const std::uint8_t> symbols, const Call&, std::uint8_t* out,
                                  std::size_t* written) const {
  *written = coder_.encode(symbols, bits_, out);
  return {};
}

Status GroupCodec::decode_symbols(Span<const std::uint8_t> in, const Call&,
                                  Span<std::uint8_t> symbols) const {
  return coder_.decode(in, bits_, symbols);
}

Status GroupCodec::check_code(Span<const std::uint8_t> in, std::size_t n) const {
  return coder_.check_fixed(in, bits_, n);
}

Status GroupCodec::find_levels(Span<const std::uint8_t> in, std::size_t n,
                               Span<const std::uint8_t>* levels) const {
  const std::size_t head = scale_bytes(groups(n));
  if (in.size() < head) {
    return wire_error("the payload has " + std::to_string(in.size()) + " bytes; the scales of " +
                      std::to_string(n) + " elements alone have " + std::to_string(head));
  }
  *levels = {in.data() + head, in.size() - head};
  return {};
}

Status GroupCodec::unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                          Span<std::uint8_t>* symbols) const {
  Span<const std::uint8_t> levels;
  GRADCOMP_TRY(find_levels(in, n, &levels));
  const Span<std::uint8_t> buffer = call.scratch->get<std::uint8_t>(kSymbolSlot, n + 1);
  if (buffer.empty()) return capacity_error("out of memory while decoding levels");
  *symbols = {buffer.data(), n};
  return decode_symbols(levels, call, *symbols);
}

Status GroupCodec::check(Span<const std::uint8_t> in, const Call& call, std::size_t n) const {
  if (n < min_numel_) return check_payload_size(in, 4 * n, n);
  if (coder_.fixed_size()) {  // all symbols of so many bits are levels
    Span<const std::uint8_t> levels;
    GRADCOMP_TRY(find_levels(in, n, &levels));
    return check_code(levels, n);
  }
  Span<std::uint8_t> symbols;
  return unpack(in, call, n, &symbols);
}

void GroupCodec::decode_group(const std::uint8_t* scales, const std::uint8_t* symbols,
                              std::size_t count, float* v) const {
  float of_group[kMaxScales];
  std::memcpy(of_group, scales, scale_bytes(1));
  alignas(64) float table[256];
  values(of_group, table);
  kernels().look_up(symbols, table, bits_, v, count);
}

bool GroupCodec::usable(const std::uint8_t* scales) const {
  for (std::size_t i = 0; i < scales_; ++i) {
    if (!(std::fabs(load<float>(scales + 4 * i)) <= kMaxRotatedScale)) return false;
  }
  return true;
}

void GroupCodec::decode_tile(const Rotation& rotation, std::size_t tile, const std::uint8_t* scales,
                             const std::uint8_t* symbols, float* v) const {
  const std::size_t first = rotation.first_group(tile);
  const std::size_t rest = rotation.tile_size(tile) - first;
  const std::uint8_t* const own = scales + scale_bytes(tile);
  const std::uint8_t* const next = scales + scale_bytes(tile + 1);
  if (usable(own) && (rest == 0 || usable(next))) {
    symbols += rotation.tile_begin(tile);
    decode_group(own, symbols, first, v);
    if (rest != 0) decode_group(next, symbols + first, rest, v + first);
    rotation.inverse(tile, v);
  } else {
    std::fill(v, v + first + rest, std::numeric_limits<float>::quiet_NaN());
  }
}

template <typename Place, typename Sink>
void GroupCodec::expand(const std::uint8_t* scales, Span<const std::uint8_t> symbols,
                        const Call& call, const Place& place, const Sink& sink) const {
  if (rotated_) {
    const Rotation rotation(symbols.size(), call.stream);
    for_tiles(rotation, [&](std::size_t tile, float* buffer) {
      const std::size_t begin = rotation.tile_begin(tile);
      float* const v = place(begin, buffer);
      decode_tile(rotation, tile, scales, symbols.data(), v);
      sink(begin, v, rotation.tile_size(tile));
    });
  } else {
    for_ranges(symbols.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      alignas(64) float buffer[kGroup];
      for (std::size_t i = begin; i < end; i += kGroup) {
        const std::size_t count = end - i < kGroup ? end - i : kGroup;
        float* const v = place(i, buffer);
        decode_group(scales + scale_bytes(i / kGroup), symbols.data() + i, count, v);
        sink(i, v, count);
      }
    });
  }
}

Status GroupCodec::decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
  if (y.size() < min_numel_) {
    GRADCOMP_TRY(check_payload_size(in, 4 * y.size(), y.size()));
    if (!y.empty()) std::memcpy(y.data(), in.data(), 4 * y.size());
    return {};
  }
  Span<std::uint8_t> symbols;
  GRADCOMP_TRY(unpack(in, call, y.size(), &symbols));
  expand(
      in.data(), {symbols.data(), symbols.size()}, call,
      [&](std::size_t begin, float*) { return y.data() + begin; },
      [](std::size_t, const float*, std::size_t) {});
  return {};
}

Status GroupCodec::decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                              Span<float> acc) const {
  if (acc.size() < min_numel_) {
    GRADCOMP_TRY(check_payload_size(in, 4 * acc.size(), acc.size()));
    kernels().f32_add(in.data(), weight, acc.data(), acc.size());
    return {};
  }
  Span<std::uint8_t> symbols;
  GRADCOMP_TRY(unpack(in, call, acc.size(), &symbols));
  expand(
      in.data(), {symbols.data(), symbols.size()}, call,
      [](std::size_t, float* buffer) { return buffer; },
      [&](std::size_t begin, const float* v, std::size_t count) {
        kernels().f32_add(reinterpret_cast<const std::uint8_t*>(v), weight, acc.data() + begin,
                          count);
      });
  return {};
}

}  // namespace gradcomp
