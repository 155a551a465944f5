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

// What the tensors of a bucket are to reach together.
struct SearchGoal {
  double most = 0;   // bytes; without an error exactly as many
  double error = 0;  // squared error, within the bytes allowed; 0: none
  double least = 0;  // bytes, if there is an error; fewer only if all elements become 0

  // The quantity to search by: falls as the step grows, and is target() at the step wanted. `zero`:
  // all levels are 0, so that no step leaves a greater error than the pairs do.
  double value(double bytes, double squared_error, bool zero) const;
  double target() const { return error > 0 ? 1 : most; }
};

class BucketSearch {
 public:
  explicit BucketSearch(const SearchOptions& options) : options_(options) {}

  // Adds a tensor whose elements count towards the rate, but which has no symbols to search for.
  void add_elements(std::size_t n) { elements_ += static_cast<double>(n); }
  double elements() const { return elements_; }
  // Adds a tensor to search for; `largest` is its largest magnitude, `energy` what its step follows
  // with step=energy. Both pointers must stay valid.
  void add(TensorPlan* plan, const BucketTensor* tensor, float largest, double energy);
  bool empty() const { return candidates_.empty(); }

  // Makes the plans of all tensors that were added, for this goal.
  Status run(const SearchGoal& goal, Scratch& scratch);

 private:
  // Calls fn(candidate) for all candidates, on all threads.
  template <typename Fn>
  void for_candidates(const Fn& fn);
  // The same for an fn that may fail.
  template <typename Fn>
  Status try_candidates(const Fn& fn);
  // The sum of fn(candidate) over all candidates.
  template <typename Fn>
  double sum_of(const Fn& fn);
  std::size_t index_of(const Candidate& one) const {
    return static_cast<std::size_t>(&one - candidates_.data());
  }

  // Whether all carried states can be used.
  bool resumable() const;
  Status begin();
  // Chooses ranks and the step in turn, from samples.
  void choose_ranks();
  Status resume(Scratch& scratch);
  // Turns the matrices of candidates that are `turned`; raises their `largest`.
  Status turn_all(Scratch& scratch);
  // Sets the candidates' multiples and `least_step_`.
  void set_multiples();
  // Gives candidates room for copies of their rows. Kept memory, as fresh pages take time.
  Status give_room(Scratch& scratch);
  // The most pairs that store() tries of a tensor: any where it has none, else at most twice as
  // many as it has.
  std::size_t most_tried(const Candidate& one) const;
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
  Status store(bool resumed, const StepSearch& found);
  // coder=polar: given the step for levels only, lets groups become points, with a smaller step, if
  // that costs less.
  void place_points(const StepSearch& levels);

  // Whether the bytes of the last value are too many.
  bool overspent() const;

  // The step of the goal, with all elements quantized.
  StepSearch full_search();

  // Whether all levels of the last bytes are 0.
  bool zero_levels() const;

  // Sums over all candidates; see there. value() and sample_value() are those of the goal.
  double sample_error(float step);
  double sample_value(float step);
  double bytes(float step);
  double value(float step);
  // As bytes(), with points in up to `groups` of 255 groups; also finds the squared error.
  double bytes_with_points(float step, std::uint8_t groups, double* error);
  // The elements' root mean square, from samples.
  double root_mean_square();
  // Unit of CarriedState::step.
  double unit();
  // Whether all elements would be decoded as 0, at the step of the last call of value().
  bool all_zero() const;
  bool any_pairs() const;
  bool any_carried() const;

  const SearchOptions& options_;
  std::vector<Candidate> candidates_;
  double elements_ = 0;
  SearchGoal goal_;
  double bytes_ = 0;       // of the last value
  double slope_ = 1;       // see find_step()
  double least_step_ = 0;  // below, a magnitude could be too large for the code
  bool ranked_ = true;     // whether low-rank parts are possible
  bool grouped_ = false;   // whether zero groups may have no symbols
  float step_ = 0;         // result of begin() and resume()
};

}  // namespace gradcomp
