// The search for the one step of a bucket and the rank of each of its tensors.
//
// begin() chooses ranks and a first step only from samples; resume() uses the ranks of the previous
// training step, which is several times as fast. settle() then finds the step with all elements
// quantized. store() keeps the result for the next training step.
#pragma once

#include <cstddef>
#include <vector>

#include "codecs/adaptive/candidate.hpp"
#include "codecs/adaptive/step_search.hpp"

namespace gradcomp {

class BucketSearch {
 public:
  explicit BucketSearch(const SearchOptions& options) : options_(options) {}

  // Adds a tensor whose elements count towards the rate, but which has no symbols to search for.
  void add_elements(std::size_t n) { elements_ += static_cast<double>(n); }
  double elements() const { return elements_; }
  // Adds a tensor to search for; `largest` is its largest magnitude. Both pointers must stay valid.
  void add(TensorPlan* plan, const BucketTensor* tensor, float largest);
  bool empty() const { return candidates_.empty(); }

  // Makes the plans of all tensors that were added, which take `target` bytes together.
  Status run(double target, Scratch& scratch);

 private:
  // Whether all carried states can be used.
  bool resumable() const;
  Status begin(Scratch& scratch);
  // Chooses ranks and the step in turn, from samples.
  void choose_ranks();
  Status resume(Scratch& scratch);
  // Turns the matrices of candidates that are `turned`; raises `largest_` to their largest
  // magnitude.
  Status turn_all(Scratch& scratch);
  // Subtracts the low-rank parts from whole tensors.
  Status take_out(Scratch& scratch);
  // Finds the step for levels only. Clears *resumed if the carried state did not suit and begin()
  // was needed.
  Status settle(bool* resumed, StepSearch* found, Scratch& scratch);
  // If no step takes about the requested number of bytes, as with elements of one magnitude, sends
  // only the first elements of the bucket, with the next finer step. Error feedback sends the
  // others in later training steps, as their residuals grow. Returns in *part whether it did so.
  Status send_part(StepSearch* found, bool* part, Scratch& scratch);
  // Stores the state for the next training step.
  Status store(bool resumed, const StepSearch& found, Scratch& scratch);
  // coder=polar: given the step for levels only, lets groups become points, with a smaller step, if
  // that costs less.
  void place_points(const StepSearch& levels);

  // Sums over all candidates; see there.
  double sample_bytes(float step);
  double bytes(float step);
  // As bytes(), with points in up to `groups` of 255 groups; also finds the squared error.
  double bytes_with_points(float step, std::uint8_t groups, double* error);
  // Bytes estimated from samples of the rest, or from all elements of a tensor if the sample is the
  // whole tensor.
  double promised_bytes(float step);
  // The elements' root mean square, from samples.
  double root_mean_square() const;
  // Whether all elements would be decoded as 0, at the step of the last call of bytes().
  bool all_zero() const;
  bool any_pairs() const;
  bool any_carried() const;

  const SearchOptions& options_;
  std::vector<Candidate> candidates_;
  double elements_ = 0;
  double target_ = 0;      // bytes
  double slope_ = 1;       // see find_step()
  float largest_ = 0;      // magnitude
  double least_step_ = 0;  // below, a magnitude could be too large for the code
  bool ranked_ = true;     // whether low-rank parts are possible
  float step_ = 0;         // result of begin() and resume()
};

}  // namespace gradcomp
