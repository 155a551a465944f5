#include "codecs/adaptive/group_decoder.hpp"

#include <algorithm>
#include <vector>

#include "base/bytes.hpp"
#include "codecs/adaptive/codewords.hpp"
#include "codecs/adaptive/group_contexts.hpp"
#include "kernels/polar.hpp"

namespace gradcomp {
namespace {

// Reads the groups of a band, one after the other.
class GroupReader {
 public:
  GroupReader(SymbolReader& symbols, const ClassTables& levels, const GroupForm& form,
              const Codewords& codes, const std::uint64_t* bits, std::size_t points)
      : symbols_(symbols),
        levels_(levels),
        form_(form),
        codes_(codes),
        bits_(bits),
        points_(points) {
    form.indices.fill(&indices_);
  }

  bool read(const LevelMatrix& band) {
    std::vector<std::int16_t> columns;
    Contexts contexts = first_contexts(band.cols, &columns);
    for (std::size_t i = 0; i < band.rows; ++i) {
      contexts.shift = column_shift(i);
      for (std::size_t at = 0; at < band.cols; at += kGroup) {
        const std::size_t count = std::min(kGroup, band.cols - at);
        if (!read_group(contexts, at, count, band.levels + i * band.cols + at)) return false;
      }
    }
    return element_ == points_;
  }

 private:
  bool read_group(Contexts& contexts, std::size_t at, std::size_t count, std::int8_t* levels) {
    bool of_points = false;
    if (!symbols_.flag(form_.points_of(group_class(contexts, at, count)), &of_points)) return false;
    if (of_points) return read_points(contexts, at, count, levels);
    Contexts here{contexts.columns + at, contexts.row, contexts.shift};
    const bool enough = symbols_.row(levels_, nullptr, here, levels, count);
    contexts.row = here.row;
    return enough;
  }

  bool read_points(Contexts& contexts, std::size_t at, std::size_t count, std::int8_t* levels) {
    if (count > points_ - element_) return false;
    // row() would add indices to the means as if they were levels, so it gets a copy of the means.
    std::int16_t means[kGroup];
    std::copy_n(contexts.columns + at, kGroup, means);
    Contexts here{means, contexts.row, contexts.shift};
    std::uint8_t classes[kGroup];
    find_element_classes(here, 0, classes);
    if (!symbols_.row(indices_, nullptr, here, levels, count)) return false;
    std::uint8_t indices[kGroup];
    for (std::size_t k = 0; k < count; ++k, ++element_) {
      const std::size_t place = codes_.place(element_);
      const bool bit = (bits_[place / kLanes] >> (place % kLanes) & 1) != 0;
      const int index = levels[k];
      indices[k] = static_cast<std::uint8_t>(index);
      const bool negative = ((index & 1) != 0) != bit;
      levels[k] =
          index == 0 ? first_point_code(classes[k], negative) : other_point_code(index, negative);
    }
    add_points(contexts, at, count, indices);
    return true;
  }

  SymbolReader& symbols_;
  const ClassTables& levels_;
  const GroupForm& form_;
  const Codewords& codes_;
  const std::uint64_t* bits_;
  std::size_t points_;
  std::size_t element_ = 0;
  ClassTables indices_;
};

}  // namespace

bool decode_groups(Span<const std::uint8_t> in, const ClassTables& levels, const GroupForm& form,
                   std::size_t lanes, Span<LevelMatrix> matrices) {
  const LevelMatrix& band = *(matrices.end() - 1);
  if (in.size() < kPointCountBytes) return false;
  const std::size_t points = load<std::uint32_t>(in.data());
  if (points > band.size()) return false;
  const Codewords codes(points);
  const std::size_t head = kPointCountBytes + codes.bytes();
  if (in.size() < head) return false;
  std::vector<std::uint64_t> bits(codes.rows());
  if (!codes.decode(in.data() + kPointCountBytes, bits.data())) return false;
  in = {in.data() + head, in.size() - head};
  SymbolReader reader;
  if (!reader.open(in, lanes)) return false;
  for (std::size_t m = 0; m + 1 < matrices.size(); ++m) {
    if (!reader.matrix(levels, nullptr, matrices[m])) return false;
  }
  return GroupReader(reader, levels, form, codes, bits.data(), points).read(band) &&
         reader.finished() && read_excesses({in.data(), reader.left()}, matrices);
}

}  // namespace gradcomp
