// A tensor in the search for step and ranks: it estimates the tensor's bytes and error from a
// sample of its elements, and chooses the rank that costs least for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bucket_codec.hpp"
#include "codecs/adaptive/carried_state.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/sampled_rows.hpp"
#include "codecs/adaptive/tensor_plan.hpp"

namespace gradcomp {

// Parameters of the spec that the search depends on.
struct SearchOptions {
  static constexpr int kAuto = -1;
  int rank = kAuto;     // kAuto: for each tensor the one that costs least
  bool points = false;  // coder=polar: groups of elements may become lattice points
  bool energy = false;  // step=energy: each tensor's step follows its energy

  // The most pairs of a matrix.
  std::size_t max_rank(const MatrixShape& shape) const;
};

struct RankChoice {
  std::size_t rank = 0;
  float factor_step = 0;
};

struct Candidate {
  const SearchOptions* options;
  TensorPlan* plan;
  const BucketTensor* tensor;
  float largest = 0;          // magnitude
  double energy = 0;          // with step=energy: of the gradient
  LearnedBasis learned = {};  // rank 0: none that this step can use
  CarriedState carried = CarriedState::from({tensor->carried.data(), tensor->carried.size()});
  bool turned = false;  // whether the tensor is sent in the learned basis
  RankChoice choice = {};

  float* sample_room = nullptr;  // room() floats, for copies
  // Filled by take_sample():
  SampledRows rows = {};
  double scale = 1;  // elements of the tensor for each of the sample
  // The tensor's step, in steps of the bucket. A step that is given to this class is the tensor's.
  float multiple = 1;
  // The sample without the low-rank part of `choice`, as choose_rank() or sample_rest() leave it;
  // `rest` has the elements of choose_rank().
  Quantized sample{nullptr, {}};
  std::vector<float> rest = {};
  double sample_scale = 1;  // elements of the tensor for each of `sample`
  std::vector<std::uint8_t> symbols = {};
  double factor_bytes = 0;   // of the whole tensor
  bool zero_levels = false;  // whether all levels of the last bytes() or sample_bytes() are 0

  const MatrixShape& shape() const { return plan->quantized.shape(); }
  // Training steps between two trials of the ranks; fewer with a learned basis, which becomes
  // better in each step.
  std::size_t period() const;

  // Most floats that take_sample() and sample_rest() copy.
  std::size_t room() const;
  // Takes a sample and finds up to `rank` directions in it. `judged`: choose_rank() follows.
  Status take_sample(std::size_t rank, Start start, bool judged);
  // Sets `choice` to the rank of least cost at this step, out of all (`all`) or of those next to
  // the last choice. Returns that cost: squared error plus kBitWorth for each bit, in squares of
  // the step.
  double choose_rank(bool all, float step);
  // Switches between turned and unturned for the next step if the other form costs less than
  // `cost`.
  Status compare_turned(double cost, float step);

  // Writes the turned matrix to `out` and makes it the matrix of `to`. Returns its largest
  // magnitude, or 0 if it is not finite, which a damaged basis may cause: then `to` is unchanged.
  float turn_to(float* out, TensorPlan* to) const;
  // Subtracts the low-rank part of `choice` from the whole tensor; the others are its buffers.
  // `packed_out`: see ZeroGroups::packed.
  void take_out(float* rest_out, std::uint8_t* symbols_out, std::uint8_t* packed_out);
  // Makes the sample one of the rest of the whole tensor.
  void sample_rest();

  // Bytes of the payload at a step, estimated from the sample.
  double sample_bytes(float step);
  // The squared error at the step of the last call of sample_bytes(), from the sample.
  double sample_error(float step) const;
  // Bytes of the payload at a step, with all elements quantized, as levels.
  double bytes(float step);
  // The squared error of all elements at the step of the last call of bytes().
  double error(float step) const;

 private:
  std::vector<std::size_t> ranks(bool all) const;
  // Elements of the sample, about.
  std::size_t wanted() const;
  // Rows that sample_rest() copies of a sample of so many rows; 0: none, as it takes all.
  std::size_t rest_rows(std::size_t taken) const;
  double sample_bits(const Quantized& of, float step);
};

}  // namespace gradcomp
