#include "codecs/polar/polar_ec_payload.hpp"

#include <cstring>
#include <string>

#include "base/chunks.hpp"

namespace gradcomp {

PolarEcTrees::PolarEcTrees() {
  for (unsigned log2 = 0; log2 <= kMaxPolarLog2; ++log2) {
    whole_.push_back(lattice_tree(log2, std::size_t{1} << log2));
  }
  for (std::size_t rows = 1; rows <= kTileRows; ++rows) {
    short_.push_back(lattice_tree(rows == 1 ? 0 : floor_log2(rows - 1) + 1, rows));
  }
}

Status read_chunks(const PolarEcLayout& layout, Span<const std::uint8_t> in,
                   std::vector<DigitsChunk>* chunks, std::uint8_t* symbols,
                   Span<const std::uint8_t>* rest) {
  const std::uint8_t* at = in.data() + layout.digits_at();
  chunks->resize(layout.chunks());
  for (std::size_t c = 0; c < layout.chunks(); ++c) {
    const Span<const std::uint8_t> left{at, static_cast<std::size_t>(in.end() - at)};
    if (!read_digits_header(left, layout.chunk_size(c), &(*chunks)[c])) {
      return wire_error("chunk " + std::to_string(c) + " of the indices has no valid header");
    }
    at = (*chunks)[c].body.end();
  }
  *rest = {at, static_cast<std::size_t>(in.end() - at)};
  std::vector<std::uint8_t> failed(layout.chunks(), 0);
  const std::size_t parts = part_count(layout.chunks());
  for_parts(layout.chunks(), parts, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t c = begin; c < end; ++c) {
      const DigitsChunk& chunk = (*chunks)[c];
      failed[c] = !digits_decode(
          chunk, {symbols + layout.chunk() * c, digit_symbols(layout.chunk_size(c), chunk.width)});
    }
  });
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) return {};
  return wire_error("chunk " + std::to_string(first - failed.begin()) +
                    " of the indices is damaged");
}

Status read_outliers(Span<const std::uint8_t> in, std::size_t n, const Call& call,
                     Span<const Outlier>* outliers) {
  if (in.size() % kOutlierBytes != 0) {
    return wire_error(std::to_string(in.size()) +
                      " bytes follow the last chunk of indices; outliers take " +
                      std::to_string(kOutlierBytes) + " each");
  }
  const std::size_t count = in.size() / kOutlierBytes;
  const Span<Outlier> all = call.scratch->get<Outlier>(kPolarEcOutlierSlot, count + 1);
  if (all.empty()) return capacity_error("out of memory while decoding outliers");
  std::memcpy(all.data(), in.data(), in.size());
  *outliers = {all.data(), count};
  for (std::size_t i = 0; i < count; ++i) {
    if (all[i].at >= n || (i != 0 && all[i].at <= all[i - 1].at)) {
      return wire_error("outlier " + std::to_string(i) + " is element " +
                        std::to_string(all[i].at) + " of " + std::to_string(n) +
                        "; they must ascend");
    }
  }
  return {};
}

}  // namespace gradcomp
