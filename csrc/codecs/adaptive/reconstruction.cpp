#include "codecs/adaptive/reconstruction.hpp"

#include <algorithm>
#include <memory>

#include "base/chunks.hpp"
#include "codecs/adaptive/scratch_slots.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Elements that are made at once, where a row is not longer.
constexpr std::size_t kPiece = 4096;
// With a low-rank part a piece has eight rows if that is no more than this: outer products then use
// each value of V that they load more than once.
constexpr std::size_t kLongPiece = 8 * 3072;

}  // namespace

template <typename Fn>
void Reconstruction::for_pieces(const Fn& fn) const {
  const std::size_t unit = rank == 0 ? 1 : shape.cols;
  const std::size_t eight = std::min<std::size_t>(8, kLongPiece / unit);
  const std::size_t piece = std::max<std::size_t>({1, kPiece / unit, eight}) * unit;
  for_ranges(shape.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    // A piece belongs to the range that it begins in.
    std::size_t at = (begin + piece - 1) / piece * piece;
    for (; at < end; at += piece) fn(at, std::min(at + piece, shape.size()));
  });
}

void Reconstruction::fill(float* y) const {
  for_pieces([&](std::size_t begin, std::size_t end) { fill(begin, end, y + begin); });
  if (turned()) turn_back(basis, y);
}

void Reconstruction::fill(std::size_t begin, std::size_t end, float* y) const {
  if (codes == nullptr) {
    std::fill(y, y + (end - begin), constant);
    return;
  }
  const unsigned mask = (1u << bits) - 1;
  std::uint8_t places[kPiece];
  for (std::size_t at = begin; at < end; at += kPiece) {
    const std::size_t count = std::min(kPiece, end - at);
    for (std::size_t i = 0; i < count; ++i) {
      places[i] = static_cast<std::uint8_t>(codes[at + i] & mask);
    }
    kernels().look_up(places, table, bits, y + (at - begin), count);
  }
  patch(begin, end, y);
  if (rank == 0) return;
  const std::size_t row = begin / shape.cols;
  kernels().linalg->outer(p + row, shape.rows, v, shape.cols, rank, (end - begin) / shape.cols,
                          shape.cols, {nullptr, y, nullptr}, shape.cols);
}

void Reconstruction::patch(std::size_t begin, std::size_t end, float* y) const {
  auto exception = std::lower_bound(
      exceptions.begin(), exceptions.end(), begin,
      [](const Exception& each, std::size_t position) { return each.at < position; });
  for (; exception != exceptions.end() && exception->at < end; ++exception) {
    y[exception->at - begin] = exception->value;
  }
}

Status Reconstruction::add(float weight, Span<float> decoded, Scratch& scratch,
                           Span<float> acc) const {
  const auto add_from = [&](const float* y, std::size_t begin, std::size_t end) {
    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(y), weight, acc.data() + begin,
                      end - begin);
  };
  if (turned()) {
    const Span<float> y = decoded.empty() ? scratch.get<float>(kDecodedSlot, acc.size()) : decoded;
    if (y.empty()) return capacity_error("out of memory while decoding");
    fill(y.data());
    for_ranges(y.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      add_from(y.data() + begin, begin, end);
    });
    return {};
  }
  for_pieces([&](std::size_t begin, std::size_t end) {
    float piece[kPiece];
    std::unique_ptr<float[]> long_piece;
    float* y = piece;
    if (!decoded.empty()) {
      y = decoded.data() + begin;
    } else if (end - begin > kPiece) {
      long_piece.reset(new float[end - begin]);
      y = long_piece.get();
    }
    fill(begin, end, y);
    add_from(y, begin, end);
  });
  return {};
}

}  // namespace gradcomp
