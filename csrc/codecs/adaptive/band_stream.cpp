#include "codecs/adaptive/band_stream.hpp"

#include <vector>

namespace gradcomp {

std::size_t encode_stream(Span<const SymbolMatrix> matrices, const DeadZone* zones,
                          const RansEncodeTable& table, const BandGroups* groups,
                          const RansEncodeTable& flags, std::size_t lanes, std::uint8_t* out,
                          std::size_t capacity) {
  std::uint8_t* to = out;
  std::vector<std::uint32_t> excesses;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    find_excesses(matrices[m], zones[m], &excesses);
  }
  if (!write_excesses(excesses, &to, out + capacity)) return 0;
  SymbolWriter writer(to, out + capacity, lanes);
  std::size_t left = matrices.size();
  if (groups != nullptr) {
    --left;
    if (!groups->push(table, flags, &writer)) return 0;
  }
  for (std::size_t m = left; m-- > 0;) {
    if (!writer.push(matrices[m], table)) return 0;
  }
  const std::uint8_t* const end = writer.finish();
  return end == nullptr ? 0 : static_cast<std::size_t>(end - out);
}

bool decode_stream(Span<const std::uint8_t> in, const ClassTables& tables, const FlagTable* flags,
                   std::size_t lanes, Span<LevelMatrix> matrices) {
  SymbolReader reader;
  if (!reader.open(in, lanes)) return false;
  std::vector<std::uint8_t> of_groups;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const LevelMatrix& matrix = matrices[m];
    const bool flagged = flags != nullptr && m + 1 == matrices.size();
    if (flagged && !read_flags(*flags, matrix.rows, matrix.cols, &reader, &of_groups)) return false;
    if (!reader.matrix(tables, flagged ? of_groups.data() : nullptr, matrix)) return false;
  }
  return reader.finished() && read_excesses({in.data(), reader.left()}, matrices);
}

}  // namespace gradcomp
