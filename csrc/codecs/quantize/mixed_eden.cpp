// EDEN between whole numbers of bits: a part of the rotated elements, chosen at random, takes the
// quantizer with one bit more than the others. Below 1 bit the others are not sent.
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "base/bytes.hpp"
#include "codec/payload.hpp"
#include "codecs/quantize/rotated_groups.hpp"
#include "coding/lloyd_max.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kFewSlot = 1;   // symbols of elements with fewer bits
constexpr std::size_t kManySlot = 2;  // symbols of the chosen ones

// Far beyond the random words of rotations.
constexpr std::uint64_t kFirstWord = std::uint64_t{1} << 42;

// In a group, symbols of elements with fewer bits come before those of the chosen ones.
class MixedEden final : public RotatedGroups {
 public:
  MixedEden(double bits, unsigned few, const Recipe& recipe)
      : RotatedGroups(symbol_bits(few_levels(few) + (2u << few) - 1), recipe),
        share_(bits - static_cast<double>(few)),
        few_bits_(few),
        many_(few + 1, lloyd_max_centroids(few + 1)) {
    if (few != 0) few_.emplace(few, lloyd_max_centroids(few));
  }

 private:
  // 0 bits have one level, 0.
  static unsigned few_levels(unsigned bits) { return 1u << bits; }

  std::uint8_t first_of_many() const noexcept {
    return static_cast<std::uint8_t>(few_levels(few_bits_));
  }

  // Number of chosen elements of a group, and of all groups of n elements.
  std::size_t chosen(std::size_t group_size) const noexcept {
    const double expected = share_ * static_cast<double>(group_size);
    return std::max<std::size_t>(1, static_cast<std::size_t>(std::floor(expected + 0.5)));
  }
  std::size_t all_chosen(std::size_t n) const noexcept {
    const Rotation rotation(n, 0);
    const std::size_t block = std::size_t{1} << rotation.log2();
    const std::size_t beyond = n % block;
    return rotation.tiles() * chosen(block) + (beyond == 0 ? 0 : chosen(beyond));
  }

  // Sets mask[i] to 1 for the chosen elements of a group, to 0 for the others. The group is a ring,
  // cut at random into parts that are equal up to one element, each of which gives one element: so
  // all elements are equally likely.
  void choose(std::size_t first, std::size_t n, std::uint64_t stream, std::uint8_t* mask) const {
    const std::size_t count = chosen(n);
    std::uint32_t words[kRotationBlock + 1];
    kernels().random_words(stream, kFirstWord + 4 * first, words, count + 1);
    std::memset(mask, 0, n);
    const std::uint64_t step = ((std::uint64_t{n} << 32) + count - 1) / count;
    const std::size_t turn = std::uint64_t{words[count]} * n >> 32;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t begin = i * step >> 32;
      const std::size_t size = ((i + 1) * step >> 32) - begin;
      const std::size_t at = turn + begin + (std::uint64_t{words[i]} * size >> 32);
      mask[at < n ? at : at - n] = 1;
    }
  }

  void quantize(const float* v, std::size_t n, std::size_t first, const Call& call,
                std::uint8_t* symbols, float* scale) const override {
    const double squares = kernels().sum_squares(v, n);
    const double rms = usable_rms(squares, n, symbols, scale);
    std::uint8_t mask[kRotationBlock];
    choose(first, n, call.stream, mask);
    if (rms == 0) {  // all symbols are 0; those of the chosen have other numbers
      for (std::size_t i = 0; i < n; ++i) symbols[i] = mask[i] != 0 ? first_of_many() : 0;
      return;
    }
    float parts[2][kRotationBlock];
    std::size_t sizes[2] = {0, 0};
    for (std::size_t i = 0; i < n; ++i) {
      // Without branches, which would be predicted wrongly.
      parts[0][sizes[0]] = v[i];
      parts[1][sizes[1]] = v[i];
      sizes[0] += 1u - mask[i];
      sizes[1] += mask[i];
    }
    const auto per_rms = static_cast<float>(1.0 / rms);
    std::uint8_t levels[2][kRotationBlock];
    CentroidSums sums =
        kernels().quantize_centroids(parts[1], per_rms, many_, !unbiased(), levels[1], sizes[1]);
    double numerator = squares;
    if (few_) {
      const CentroidSums others =
          kernels().quantize_centroids(parts[0], per_rms, *few_, !unbiased(), levels[0], sizes[0]);
      sums.dot += others.dot;
      sums.energy += others.energy;
    } else {
      std::memset(levels[0], 0, sizes[0]);
      // The chosen elements stand for all.
      numerator = kernels().sum_squares(parts[1], sizes[1]) * static_cast<double>(n) /
                  static_cast<double>(sizes[1]);
    }
    std::size_t done[2] = {0, 0};
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint8_t many = mask[i];
      symbols[i] = static_cast<std::uint8_t>(levels[many][done[many]++] + many * first_of_many());
    }
    // Below 1 bit, all chosen elements may be 0.
    *scale = !(sums.dot > 0) ? 0.0f
                             : limited(unbiased() ? numerator / sums.dot : sums.dot / sums.energy);
  }

  void values(const float* scale, float* table) const override {
    std::fill(table, table + (std::size_t{1} << bits()), 0.0f);
    if (few_) scaled_centroids(*few_, *scale, table);
    scaled_centroids(many_, *scale, table + first_of_many());
  }

  // The code: with levels of fewer bits, the size of their code in 4 bytes, and this code; then the
  // code of the chosen elements' levels.
  std::size_t max_code(std::size_t n) const noexcept override {
    const std::size_t many = all_chosen(n);
    const std::size_t code = coder().max_bytes(many, few_bits_ + 1);
    return few_ ? kSize + coder().max_bytes(n - many, few_bits_) + code : code;
  }

  Status encode_symbols(Span<const std::uint8_t> symbols, const Call& call, std::uint8_t* out,
                        std::size_t* written) const override {
    Parts parts;
    GRADCOMP_TRY(parts_of(symbols.size(), call, &parts));
    std::size_t few = 0;
    std::size_t many = 0;
    for (const std::uint8_t symbol : symbols) {
      const bool chosen = symbol >= first_of_many();
      parts.few[few] = symbol;
      parts.many[many] = static_cast<std::uint8_t>(symbol - first_of_many());
      few += chosen ? 0 : 1;
      many += chosen ? 1 : 0;
    }
    std::size_t size = 0;
    if (few_) {
      size = coder().encode({parts.few.data(), few}, few_bits_, out + kSize);
      store(out, static_cast<std::uint32_t>(size));
      size += kSize;
    }
    *written = size + coder().encode({parts.many.data(), many}, few_bits_ + 1, out + size);
    return {};
  }

  Status decode_symbols(Span<const std::uint8_t> in, const Call& call,
                        Span<std::uint8_t> symbols) const override {
    const std::size_t n = symbols.size();
    Codes codes;
    GRADCOMP_TRY(split(in, &codes));
    Parts parts;
    GRADCOMP_TRY(parts_of(n, call, &parts));
    const std::size_t chosen = all_chosen(n);
    if (few_) {
      GRADCOMP_TRY(coder().decode(codes.few, few_bits_, {parts.few.data(), n - chosen}));
    } else {
      std::memset(parts.few.data(), 0, n - chosen);
    }
    GRADCOMP_TRY(coder().decode(codes.many, few_bits_ + 1, {parts.many.data(), chosen}));
    const Rotation rotation(n, call.stream);
    const std::uint8_t* few = parts.few.data();
    const std::uint8_t* many = parts.many.data();
    const auto merge = [&](std::size_t begin, std::size_t size) {
      std::uint8_t mask[kRotationBlock];
      choose(begin, size, call.stream, mask);
      for (std::size_t i = 0; i < size; ++i) {
        symbols[begin + i] =
            mask[i] != 0 ? static_cast<std::uint8_t>(*many + first_of_many()) : *few;
        many += mask[i];
        few += 1u - mask[i];
      }
    };
    for (std::size_t tile = 0; tile < rotation.tiles(); ++tile) {
      const std::size_t begin = rotation.tile_begin(tile);
      const std::size_t first = rotation.first_group(tile);
      const std::size_t rest = rotation.tile_size(tile) - first;
      merge(begin, first);
      if (rest != 0) merge(begin + first, rest);
    }
    return {};
  }

  Status check_code(Span<const std::uint8_t> in, std::size_t n) const override {
    Codes codes;
    GRADCOMP_TRY(split(in, &codes));
    const std::size_t chosen = all_chosen(n);
    if (few_) GRADCOMP_TRY(coder().check_fixed(codes.few, few_bits_, n - chosen));
    return coder().check_fixed(codes.many, few_bits_ + 1, chosen);
  }

  static constexpr std::size_t kSize = 4;

  struct Parts {
    Span<std::uint8_t> few;
    Span<std::uint8_t> many;
  };
  struct Codes {
    Span<const std::uint8_t> few;
    Span<const std::uint8_t> many;
  };

  // Room for the symbols of either kind, and one more.
  static Status parts_of(std::size_t n, const Call& call, Parts* parts) {
    parts->few = call.scratch->get<std::uint8_t>(kFewSlot, n + 1);
    parts->many = call.scratch->get<std::uint8_t>(kManySlot, n + 1);
    if (parts->few.empty() || parts->many.empty()) {
      return capacity_error("out of memory: the levels of " + std::to_string(n) + " elements");
    }
    return {};
  }

  // Finds both codes.
  Status split(Span<const std::uint8_t> in, Codes* codes) const {
    *codes = {{}, in};
    if (!few_) return {};
    const std::size_t size = in.size() < kSize ? 0 : load<std::uint32_t>(in.data());
    if (in.size() < kSize || size > in.size() - kSize) {
      return wire_error("the code of levels has " + std::to_string(in.size()) +
                        " bytes; its first part and the part's size need " +
                        std::to_string(kSize + size));
    }
    *codes = {{in.data() + kSize, size}, {in.data() + kSize + size, in.size() - kSize - size}};
    return {};
  }

  double share_;
  unsigned few_bits_;
  std::optional<Centroids> few_;
  Centroids many_;
};

}  // namespace

std::unique_ptr<Codec> make_mixed_eden(double bits, const Recipe& recipe) {
  return std::make_unique<MixedEden>(bits, static_cast<unsigned>(bits), recipe);
}

}  // namespace gradcomp
