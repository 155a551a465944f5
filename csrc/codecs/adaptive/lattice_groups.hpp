// coder=polar of `adaptive`: in groups of elements that are not much smaller than the step, each
// becomes a point of the half-integer lattice (polar/lattice.hpp) instead of a level. Codewords of
// polar codes say which half of the points is meant; which one of that half, its index, is coded as
// levels are, by the classes of contexts.
//
// Entropy coding of cosets: Fischer, Wang: Entropy-Constrained Trellis-Coded Quantization, IEEE
// Trans. Inf. Theory 1992, here with the codes of Korada, Urbanke: Polar Codes are Optimal for
// Lossy Source Coding, IEEE Trans. Inf. Theory 2010, instead of a trellis.
// docs/wire-format.md#adaptive is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span.hpp"
#include "codecs/adaptive/quantized.hpp"
#include "codecs/adaptive/stream.hpp"
#include "codecs/adaptive/tables.hpp"

namespace gradcomp {

// How the groups of a tensor are described.
struct GroupForm {
  // From which class on groups are more often of points than not, plus 4; kNoPoints: none are.
  std::uint8_t start = kNoPoints;
  std::int8_t first = 0;  // what is added to a point of index 0, in 64ths of the points' distance
  std::int8_t other = 0;  // and to all others
  AdaptiveTables indices{SymbolKind::kIndices};

  static constexpr std::uint8_t kNoPoints = 24;
  static constexpr std::size_t kMaxBytes = 2 + AdaptiveTables::kMaxBytes;

  std::size_t write(std::uint8_t* out) const;
  // Returns the bytes read, or 0 where there are too few or they are none of a form.
  std::size_t read(Span<const std::uint8_t> in);

  // Of kRansTotal groups of this class, those of points.
  std::uint32_t points_of(unsigned group_class) const;
  // What points stand for where levels have this step, by LevelMatrix's codes, all 256.
  void fill_values(float step, float* values) const;
  // And a point of a larger index, with its sign.
  float value(float step, std::int32_t index) const;
};

// Whether `in` is exactly the code of these matrices, of which the last one has groups.
bool decode_groups(Span<const std::uint8_t> in, const ClassTables& levels, const GroupForm& form,
                   std::size_t lanes, Span<LevelMatrix> matrices);

// A tensor whose groups become levels or points, whichever costs less.
class GroupCoder {
 public:
  // `symbols` are those of all elements as levels, and `counted` is what they are. `groups` is that
  // of the plan.
  GroupCoder(const Quantized& quantized, const Counted& counted, const std::uint8_t* symbols,
             std::uint8_t groups);

  ~GroupCoder();

  // Bytes of the payload, about: 1 where all elements are 0.
  double bytes() const { return bytes_; }
  // The squared error, in squares of the step.
  double error() const { return error_; }
  const GroupForm& form() const { return form_; }
  const AdaptiveTables& tables() const { return tables_; }

  // Makes the symbols of elements that become points 0, and the others what they are now.
  void put_levels(std::uint8_t* symbols) const;
  // The stream of a band that `factors` come before; returns the bytes, or 0 when they do not fit.
  std::size_t encode_band(std::size_t band, Span<const SymbolMatrix> factors, std::size_t lanes,
                          std::uint8_t* out, std::size_t room) const;

 private:
  struct Found;
  struct Band;

  // All bands, with groups and points chosen by these tables.
  Found code(const AdaptiveTables& levels, const AdaptiveTables& indices);
  // How to write them, or to write levels alone.
  void find_form(const Quantized& quantized, const Counted& counted, const Found& found);

  float step_;
  std::uint8_t groups_;
  std::vector<Band> bands_;
  AdaptiveTables tables_;
  GroupForm form_;
  double bytes_ = 0;
  double error_ = 0;
};

}  // namespace gradcomp
