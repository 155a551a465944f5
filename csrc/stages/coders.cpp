#include "stages/rows.hpp"

namespace gradcomp {
namespace {

StageInfo coder(Symbols symbols, const char* name, const char* example, const char* summary,
                const char* paper) {
  StageInfo stage;
  stage.name = name;
  stage.kind = StageKind::kCoder;
  stage.summary = summary;
  stage.paper = paper;
  stage.nonfinite = "no effect";
  stage.example = example;
  stage.symbols = symbols;
  return stage;
}

// Marks the coder of specs without a coder.
StageInfo default_coder(StageInfo stage) {
  stage.is_default = true;
  return stage;
}

}  // namespace

std::vector<StageInfo> coder_stages() {
  return {
      default_coder(
          coder(Symbols::kIndices, "auto", "topk(ratio=0.01)|auto",
                "the smallest index coding for each payload; default if a spec has no index coder",
                "none")),
      coder(Symbols::kIndices, "raw32", "topk(ratio=0.01)|raw32", "indices of 32 bits each",
            "none"),
      coder(Symbols::kIndices, "bitmask", "topk(ratio=0.01)|bitmask",
            "indices as one bit per element", "none"),
      coder(Symbols::kIndices, "elias_fano", "topk(ratio=0.01)|elias_fano",
            "indices in at most 2 + log2(n / k) bits each",
            "Elias: Efficient Storage and Retrieval by Content and Address of Static Files, JACM "
            "1974; Fano, 1971"),
      coder(Symbols::kIndices, "rice", "topk(ratio=0.01)|rice",
            "gaps between indices as Golomb-Rice codes, with one parameter per 512 indices",
            "Golomb: Run-Length Encodings, IEEE Trans. Inf. Theory 1966; Rice, Plaunt, 1971"),
      default_coder(coder(
          Symbols::kLevels, "packed", "qsgd(levels=7)|packed",
          "levels in a fixed number of bits each; default if a spec has no level coder", "none")),
      coder(Symbols::kLevels, "rans", "qsgd(levels=7)|rans",
            "levels close to their entropy, with frequencies counted per 64Ki levels",
            "Duda: Asymmetric numeral systems, 2013; Giesen: Interleaved entropy coders, 2014"),
      coder(Symbols::kLevels, "elias_delta", "qsgd(levels=7,norm=l2)|elias_delta",
            "levels in few bits near zero and more bits far from it, without a table",
            "Elias: Universal Codeword Sets and Representations of the Integers, IEEE Trans. Inf. "
            "Theory 1975"),
  };
}

}  // namespace gradcomp
