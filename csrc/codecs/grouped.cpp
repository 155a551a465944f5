#include "codecs/grouped.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codecs/payload.hpp"
#include "coding/rotation.hpp"
#include "core/bytes.hpp"
#include "core/thread_pool.hpp"
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

}  // namespace

std::size_t GroupedCodec::groups(std::size_t n) const noexcept {
  return rotated_ ? Rotation(n, 0).groups() : (n + kGroup - 1) / kGroup;
}

std::size_t GroupedCodec::max_encoded_size(std::size_t n) const noexcept {
  return n < min_numel_ ? 4 * n : 4 * groups(n) + coder_.max_bytes(n, bits_);
}

Status GroupedCodec::encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                            std::size_t* written) const {
  const std::size_t n = x.size();
  GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
  if (n < min_numel_) {
    if (n != 0) std::memcpy(out.data(), x.data(), 4 * n);
    *written = 4 * n;
    return {};
  }
  const Span<std::uint8_t> symbols = call.scratch->get<std::uint8_t>(kSymbolSlot, n + 1);
  if (symbols.empty()) return capacity_error("out of memory while quantizing");
  std::uint8_t* const scales = out.data();
  const auto encode_group = [&](std::size_t group, const float* v, std::size_t begin,
                                std::size_t count) {
    store(scales + 4 * group, quantize(v, count, begin, call, symbols.data() + begin));
  };
  if (rotated_) {
    const Rotation rotation(n, call.stream);
    for_tiles(rotation, [&](std::size_t tile, float* buffer) {
      const std::size_t begin = rotation.tile_begin(tile);
      const std::size_t first = rotation.first_group(tile);
      const std::size_t rest = rotation.tile_size(tile) - first;
      rotation.forward(tile, x.data() + begin, buffer);
      encode_group(tile, buffer, begin, first);
      if (rest != 0) encode_group(tile + 1, buffer + first, begin + first, rest);
    });
  } else {
    for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; i += kGroup) {
        encode_group(i / kGroup, x.data() + i, i, end - i < kGroup ? end - i : kGroup);
      }
    });
  }
  const std::size_t head = 4 * groups(n);
  *written = head + coder_.encode({symbols.data(), n}, bits_, out.data() + head);
  return {};
}

Status GroupedCodec::unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                            Span<std::uint8_t>* symbols) const {
  const std::size_t head = 4 * groups(n);
  if (in.size() < head) {
    return wire_error("the payload has " + std::to_string(in.size()) + " bytes; the scales of " +
                      std::to_string(n) + " elements alone have " + std::to_string(head));
  }
  const Span<std::uint8_t> room = call.scratch->get<std::uint8_t>(kSymbolSlot, n + 1);
  if (room.empty()) return capacity_error("out of memory while decoding levels");
  *symbols = {room.data(), n};
  return coder_.decode({in.data() + head, in.size() - head}, bits_, *symbols);
}

template <typename Place, typename Sink>
void GroupedCodec::expand(const std::uint8_t* scales, Span<const std::uint8_t> symbols,
                          const Call& call, const Place& place, const Sink& sink) const {
  const auto decode_group = [&](std::size_t group, std::size_t begin, std::size_t count, float* v) {
    alignas(64) float table[256];
    values(load<float>(scales + 4 * group), table);
    kernels().look_up(symbols.data() + begin, table, bits_, v, count);
  };
  const auto usable = [](const std::uint8_t* scale) {
    return std::fabs(load<float>(scale)) <= kMaxRotatedScale;
  };
  if (rotated_) {
    const Rotation rotation(symbols.size(), call.stream);
    for_tiles(rotation, [&](std::size_t tile, float* buffer) {
      const std::size_t begin = rotation.tile_begin(tile);
      const std::size_t first = rotation.first_group(tile);
      const std::size_t rest = rotation.tile_size(tile) - first;
      float* const v = place(begin, buffer);
      if (usable(scales + 4 * tile) && (rest == 0 || usable(scales + 4 * (tile + 1)))) {
        decode_group(tile, begin, first, v);
        if (rest != 0) decode_group(tile + 1, begin + first, rest, v + first);
        rotation.inverse(tile, v);
      } else {
        std::fill(v, v + first + rest, std::numeric_limits<float>::quiet_NaN());
      }
      sink(begin, v, first + rest);
    });
  } else {
    for_ranges(symbols.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      alignas(64) float buffer[kGroup];
      for (std::size_t i = begin; i < end; i += kGroup) {
        const std::size_t count = end - i < kGroup ? end - i : kGroup;
        float* const v = place(i, buffer);
        decode_group(i / kGroup, i, count, v);
        sink(i, v, count);
      }
    });
  }
}

Status GroupedCodec::decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
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

Status GroupedCodec::decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
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
