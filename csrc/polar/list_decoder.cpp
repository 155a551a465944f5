#include "polar/list_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "polar/blocks.hpp"
#include "polar/boxplus.hpp"
#include "polar/llrs.hpp"

namespace gradcomp::polar_code {
namespace {

// All paths walk the tree together. A node returns the origin of each surviving path among the
// paths that entered, so LLRs are never copied when a path forks.
class ListDecoder {
 public:
  ListDecoder(const Code& code, std::size_t list_size)
      : code_(&code), limit_(path_count(code, list_size)), levels_(code.log2 + 1) {
    for (unsigned log2 = 0; log2 <= code.log2; ++log2) {
      Level& level = levels_[log2];
      const std::size_t count = limit_ << log2;
      // Only one path enters the root.
      level.llrs.resize(log2 == code.log2 ? code.mother() : count);
      level.left.resize(count);
      level.right.resize(count);
      level.left_origin.resize(limit_);
      level.right_origin.resize(limit_);
    }
    metrics_.resize(limit_);
    forks_.reserve(2 * limit_);
    words_.resize((code.mother() + 63) / 64);
  }

  double* channel() { return levels_[code_->log2].llrs.data(); }

  template <typename Rule>
  void run(bool systematic, std::uint8_t* messages, double* metrics) {
    // The root's outputs and origins have the places of a left child.
    Level& root = levels_[code_->log2];
    metrics_[0] = 0;
    const std::size_t paths =
        node<Rule>(code_->log2, 0, 1, root.left.data(), root.left_origin.data());
    std::vector<std::uint32_t>& order = root.right_origin;
    std::iota(order.begin(), order.end(), 0u);
    // Insertion sort: stable, and at most 64 paths that are nearly in order.
    for (std::size_t i = 1; i < paths; ++i) {
      for (std::size_t j = i; j > 0 && metrics_[order[j]] < metrics_[order[j - 1]]; --j) {
        std::swap(order[j], order[j - 1]);
      }
    }
    for (std::size_t i = 0; i < paths; ++i) {
      metrics[i] = metrics_[order[i]];
      store_message(&root.left[order[i] << code_->log2], systematic, messages + i * code_->message);
    }
  }

 private:
  struct Level {
    std::vector<double> llrs;               // of the paths that enter a node of this size
    std::vector<std::uint8_t> left, right;  // outputs of nodes of this size
    std::vector<std::uint32_t> left_origin, right_origin;
  };
  struct Fork {
    double metric;
    std::uint32_t path;
    bool unlikely;  // the decision against the LLR's sign
  };

  // outputs: a row of 2^log2 for each surviving path. Returns their number.
  template <typename Rule>
  std::size_t node(unsigned log2, std::size_t begin, std::size_t paths, std::uint8_t* outputs,
                   std::uint32_t* origin) {
    const std::size_t size = std::size_t{1} << log2;
    const double* const llrs = levels_[log2].llrs.data();
    if (!code_->any_information(begin, begin + size)) {
      // The chain rule: -ln P(inputs are 0) = -ln P(outputs are 0).
      for (std::size_t p = 0; p < paths; ++p) {
        for (std::size_t i = 0; i < size; ++i) metrics_[p] += Rule::cost(llrs[p * size + i]);
        origin[p] = static_cast<std::uint32_t>(p);
      }
      std::memset(outputs, 0, paths * size);
      return paths;
    }
    if (log2 == 0) return fork<Rule>(paths, llrs, outputs, origin);
    const std::size_t half = size / 2;
    Level& child = levels_[log2 - 1];
    for (std::size_t p = 0; p < paths; ++p) {
      const double* const a = llrs + p * size;
      double* const to = &child.llrs[p * half];
      for (std::size_t i = 0; i < half; ++i) to[i] = Rule::combine(a[i], a[i + half]);
    }
    const std::size_t lefts =
        node<Rule>(log2 - 1, begin, paths, child.left.data(), child.left_origin.data());
    for (std::size_t p = 0; p < lefts; ++p) {
      const double* const a = llrs + child.left_origin[p] * size;
      const std::uint8_t* const bits = &child.left[p * half];
      double* const to = &child.llrs[p * half];
      for (std::size_t i = 0; i < half; ++i) {
        to[i] = bits[i] != 0 ? a[i + half] - a[i] : a[i + half] + a[i];
      }
    }
    // The output of the left child must outlive the right child: descendants of the right child use
    // only smaller levels.
    const std::size_t survivors =
        node<Rule>(log2 - 1, begin + half, lefts, child.right.data(), child.right_origin.data());
    for (std::size_t p = 0; p < survivors; ++p) {
      const std::uint32_t from = child.right_origin[p];
      origin[p] = child.left_origin[from];
      const std::uint8_t* const left = &child.left[from * half];
      const std::uint8_t* const right = &child.right[p * half];
      std::uint8_t* const to = outputs + p * size;
      for (std::size_t i = 0; i < half; ++i) to[i] = left[i] ^ right[i];
      std::memcpy(to + half, right, half);
    }
    return survivors;
  }

  template <typename Rule>
  std::size_t fork(std::size_t paths, const double* llrs, std::uint8_t* outputs,
                   std::uint32_t* origin) {
    forks_.clear();
    for (std::size_t p = 0; p < paths; ++p) {
      const auto path = static_cast<std::uint32_t>(p);
      const double magnitude = std::fabs(llrs[p]);
      forks_.push_back({metrics_[p] + Rule::cost(magnitude), path, false});
      forks_.push_back({metrics_[p] + Rule::cost(-magnitude), path, true});
    }
    const std::size_t survivors = std::min(forks_.size(), limit_);
    std::partial_sort(forks_.begin(), forks_.begin() + static_cast<std::ptrdiff_t>(survivors),
                      forks_.end(), [](const Fork& a, const Fork& b) {
                        return std::tie(a.metric, a.path, a.unlikely) <
                               std::tie(b.metric, b.path, b.unlikely);
                      });
    for (std::size_t p = 0; p < survivors; ++p) {
      metrics_[p] = forks_[p].metric;
      outputs[p] = (llrs[forks_[p].path] < 0) != forks_[p].unlikely;
      origin[p] = forks_[p].path;
    }
    return survivors;
  }

  void store_message(std::uint8_t* outputs, bool systematic, std::uint8_t* message) {
    // In decision order too, inputs are the transform of outputs.
    if (!systematic) transform_bits(outputs, code_->log2, &words_);
    for (std::size_t i = 0; i < code_->message; ++i) {
      message[i] = outputs[reverse_bits(code_->information[i], code_->log2)];
    }
  }

  const Code* code_;
  std::size_t limit_;
  std::vector<Level> levels_;
  std::vector<double> metrics_;
  std::vector<Fork> forks_;
  std::vector<std::uint64_t> words_;
};

template <typename Rule>
Status decode_with(const Code& code, Span<const double> llrs, std::size_t list_size,
                   bool systematic, Span<std::uint8_t> messages, Span<double> metrics) {
  const std::size_t paths = path_count(code, list_size);
  return for_blocks(llrs.size() / code.length, [&] {
    return [&, decoder = ListDecoder(code, list_size)](std::size_t block) mutable {
      load_channel(code, llrs.data() + block * code.length, decoder.channel());
      decoder.run<Rule>(systematic, messages.data() + block * paths * code.message,
                        metrics.data() + block * paths);
    };
  });
}

}  // namespace

std::size_t path_count(const Code& code, std::size_t list_size) noexcept {
  return std::min(
      {list_size, kMaxListSize, std::size_t{1} << std::min<std::size_t>(code.message, 63)});
}

Status list_decode(const Code& code, Span<const double> llrs, std::size_t list_size,
                   const DecodeOptions& options, Span<std::uint8_t> messages,
                   Span<double> metrics) {
  if (list_size < 1 || list_size > kMaxListSize) {
    return argument_error("list_size is " + std::to_string(list_size) +
                          "; it must be from 1 to 64, and 1 is plain successive cancellation");
  }
  const std::size_t blocks = llrs.size() / code.length, paths = path_count(code, list_size);
  if (llrs.size() != blocks * code.length || metrics.size() != blocks * paths ||
      messages.size() != blocks * paths * code.message) {
    return argument_error("the arrays do not hold the same number of blocks");
  }
  GRADCOMP_TRY(check_llrs(llrs));
  return options.min_sum
             ? decode_with<MinSumRule>(code, llrs, list_size, options.systematic, messages, metrics)
             : decode_with<ExactRule>(code, llrs, list_size, options.systematic, messages, metrics);
}

}  // namespace gradcomp::polar_code
