// coder=polar of `adaptive`: encodes a tensor; each group becomes levels or points
// (group_form.hpp), whichever costs less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span.hpp"
#include "codecs/adaptive/frequency_tables.hpp"
#include "codecs/adaptive/group_form.hpp"
#include "codecs/adaptive/quantized.hpp"
#include "codecs/adaptive/symbol_stream.hpp"

namespace gradcomp {

class GroupCoder {
 public:
  // `symbols` are those of all elements as levels, and `counted` their counts. `groups`: see
  // TensorPlan::groups.
  GroupCoder(const Quantized& quantized, const SymbolCounts& counted, const std::uint8_t* symbols,
             std::uint8_t groups);

  ~GroupCoder();

  // Approximate bytes of the payload; 1 if all elements are 0.
  double bytes() const { return bytes_; }
  // The squared error, in squares of the step.
  double error() const { return error_; }
  const GroupForm& form() const { return form_; }
  const FrequencyTables& tables() const { return tables_; }

  // Replaces the symbols of all elements: 0 for elements that become points.
  void put_levels(std::uint8_t* symbols) const;
  // Writes the stream of a band, with the matrices of `factors` first. Returns the bytes, or 0 if
  // they do not fit.
  std::size_t encode_band(std::size_t band, Span<const SymbolMatrix> factors, std::size_t lanes,
                          std::uint8_t* out, std::size_t capacity) const;

 private:
  struct BandStats;
  struct Band;

  // Codes all bands; these tables choose groups and points. Returns the sum of the bands'
  // statistics.
  BandStats code(const FrequencyTables& levels, const FrequencyTables& indices);
  // Chooses the form and the tables for the groups as they are coded, or for levels only.
  void find_form(const Quantized& quantized, const SymbolCounts& counted, const BandStats& stats);

  MatrixShape shape_;
  float step_;
  std::uint8_t groups_;
  std::vector<Band> bands_;
  FrequencyTables tables_;
  GroupForm form_;
  double bytes_ = 0;
  double error_ = 0;
};

}  // namespace gradcomp
