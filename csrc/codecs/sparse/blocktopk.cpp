// The k elements of largest magnitude in each tile of a matrix.
#include <cstring>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "codec/sparse_interface.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/scatter.hpp"
#include "codecs/sparse/selection.hpp"
#include "codecs/sparse/sparse_codec.hpp"
#include "codecs/sparse/tiling.hpp"
#include "coding/gaps.hpp"
#include "coding/indices.hpp"
#include "coding/values.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

static_assert(kTile == kGapBlock);

constexpr std::size_t kHeader = 4;
constexpr std::size_t kPositionSlot = 0;
constexpr std::size_t kValueSlot = 1;
constexpr std::size_t kSymbolSlot = 2;
constexpr std::size_t kTileSlot = 3;  // one Workspace per thread

Status out_of_memory(std::size_t kept) {
  return capacity_error("out of memory: " + std::to_string(kept) + " kept elements");
}

// Working memory for one tile, and the threshold for the next one: neighbours are often alike. A
// bad threshold costs time, never exactness.
struct Workspace {
  static constexpr std::size_t kCapacity = kTile + kCollectSlack;
  float elements[kTile];
  float values[kCapacity];
  std::uint32_t indices[kCapacity];
  std::uint32_t work[kCapacity];
  std::uint32_t threshold;

  // The elements of a tile one after the other.
  const float* gathered(const float* x, const Tile& tile, std::size_t cols) {
    const float* const corner = x + tile.corner;
    if (tile.height == 1 || tile.width == cols) return corner;
    for (std::size_t row = 0; row < tile.height; ++row) {
      std::memcpy(elements + row * tile.width, corner + row * cols, 4 * tile.width);
    }
    return elements;
  }

  Candidates collect(const float* x, std::size_t size) {
    Candidates found{values, indices, work};
    std::size_t taken = 0;
    found.size = kernels().collect(x, size, 0, threshold, values, indices, kCapacity, &taken);
    return found;
  }

  // Writes places and values of the largest elements of a tile.
  void select(const float* x, const Tile& tile, std::uint32_t* places, float* kept_values) {
    constexpr std::uint32_t kMargin = 1u << 20;  // about a tenth of the magnitude
    Candidates found = collect(x, tile.size());
    if (found.size < tile.kept) {
      threshold = 0;
      found = collect(x, tile.size());
    }
    const std::uint32_t least = keep_largest(&found, tile.kept);
    threshold = least - std::min(least, kMargin);
    std::memcpy(places, indices, 4 * tile.kept);
    std::memcpy(kept_values, values, 4 * tile.kept);
  }
};

class BlockTopK final : public Codec, public SparseInterface {
 public:
  explicit BlockTopK(const Recipe& recipe)
      : kept_(static_cast<std::size_t>(recipe.params.integer("k"))),
        value_type_(value_type(recipe.params.choice("values"))),
        coder_(IndexCoder::named(recipe.coder_name("auto"))),
        gaps_(kept_) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.sparse = true;
    caps.finite = value_finite(value_type_);
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    const std::size_t kept = Tiling::max_kept(n, kept_);
    return kHeader + value_bytes(value_type_, kept) +
           (coder_.smallest ? GapCoder::max_bytes(kept) : coder_.max_bytes(n, kept));
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    GRADCOMP_TRY(check_room(out, max_encoded_size(x.size())));
    const std::size_t cols = call.cols == 0 ? x.size() : call.cols;
    const Tiling tiling(x.size(), cols, kept_);
    const std::size_t kept = tiling.kept();
    const std::size_t parts = range_count(x.size());
    Span<std::uint32_t> places = call.scratch->get<std::uint32_t>(kPositionSlot, kept + 1);
    Span<float> values = call.scratch->get<float>(kValueSlot, kept + 1);
    Span<std::uint8_t> symbols = call.scratch->get<std::uint8_t>(kSymbolSlot, kept + 1);
    Span<Workspace> workspaces = call.scratch->get<Workspace>(kTileSlot, parts);
    if (places.empty() || values.empty() || symbols.empty() || workspaces.empty()) {
      return out_of_memory(kept);
    }
    const bool codes_gaps = coder_.smallest;
    for_parts(tiling.tiles(), parts, [&](std::size_t part, std::size_t begin, std::size_t end) {
      Workspace& workspace = workspaces[part];
      workspace.threshold = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const Tile tile = tiling.tile(i);
        std::uint32_t* const own = places.data() + tile.first_kept;
        workspace.select(workspace.gathered(x.data(), tile, cols), tile, own,
                         values.data() + tile.first_kept);
        if (codes_gaps) {
          to_gaps(own, tile.kept);
        } else {
          for (std::size_t j = 0; j < tile.kept; ++j)
            own[j] += static_cast<std::uint32_t>(tile.begin);
        }
      }
    });
    store(out.data(), static_cast<std::uint32_t>(cols));
    encode_values(value_type_, {values.data(), kept}, out.data() + kHeader);
    const std::size_t head = kHeader + value_bytes(value_type_, kept);
    IndexCoding used;
    *written = head + (codes_gaps ? gaps_.encode({places.data(), kept}, symbols, out.data() + head)
                                  : coder_.encode({places.data(), kept}, x.size(),
                                                  out.data() + head, &used));
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    Kept kept;
    GRADCOMP_TRY(unpack(in, call, y.size(), &kept));
    scatter({kept.indices.data(), kept.indices.size()}, 1, kept.values.data(), y);
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    Kept kept;
    GRADCOMP_TRY(unpack(in, call, acc.size(), &kept));
    scatter_add({kept.indices.data(), kept.indices.size()}, 1, kept.values.data(), weight, acc);
    return {};
  }

  const SparseInterface* sparse() const noexcept override { return this; }

  Status decode_add_count(Span<const std::uint8_t> in, const Call& call, float weight,
                          Span<float> acc, Span<std::uint16_t> counts) const override {
    Kept kept;
    GRADCOMP_TRY(unpack(in, call, acc.size(), &kept));
    const Span<const std::uint32_t> indices{kept.indices.data(), kept.indices.size()};
    scatter_add(indices, 1, kept.values.data(), weight, acc);
    scatter_count(indices, 1, counts);
    return {};
  }

  Status sum_squares(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                     double* sum) const override {
    Kept kept;
    GRADCOMP_TRY(unpack_values(in, call, n, &kept));
    *sum = kernels().sum_squares(kept.values.data(), kept.values.size());
    return {};
  }

  Status zero_sent(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    Kept kept;
    GRADCOMP_TRY(unpack(in, call, y.size(), &kept));
    scatter_zeros({kept.indices.data(), kept.indices.size()}, 1, y);
    return {};
  }

 private:
  struct Kept {
    Span<std::uint32_t> indices;
    Span<float> values;
    Span<const std::uint8_t> coded;  // the indices in the payload
    std::size_t cols = 0;
  };

  static void to_gaps(std::uint32_t* places, std::size_t count) {
    std::uint32_t next = 0;
    for (std::size_t j = 0; j < count; ++j) {
      const std::uint32_t place = places[j];
      places[j] = place - next;
      next = place + 1;
    }
  }

  // Reads the values of a payload.
  Status unpack_values(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                       Kept* kept) const {
    const std::size_t cols = in.size() < kHeader ? 0 : load<std::uint32_t>(in.data());
    if (in.size() < kHeader || (n == 0 ? cols != 0 : cols == 0 || n % cols != 0)) {
      return wire_error("a blocktopk payload of " + std::to_string(in.size()) +
                        " bytes and rows of " + std::to_string(cols) +
                        " elements, which must divide the tensor's " + std::to_string(n));
    }
    const Tiling tiling(n, cols, kept_);
    const std::size_t count = tiling.kept();
    const std::size_t head = kHeader + value_bytes(value_type_, count);
    if (in.size() < head) {
      return wire_error("the payload has " + std::to_string(in.size()) +
                        " bytes; its values alone " + "need " + std::to_string(head - kHeader));
    }
    kept->values = call.scratch->get<float>(kValueSlot, count + 1);
    if (kept->values.empty()) return out_of_memory(count);
    kept->values = {kept->values.data(), count};
    kept->coded = {in.data() + head, in.size() - head};
    kept->cols = cols;
    decode_values(value_type_, in.data() + kHeader, kept->values);
    return {};
  }

  // Reads a payload: the values of the kept elements in tile order, and their indices.
  Status unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n, Kept* kept) const {
    GRADCOMP_TRY(unpack_values(in, call, n, kept));
    const std::size_t count = kept->values.size();
    kept->indices = call.scratch->get<std::uint32_t>(kPositionSlot, count + 1);
    Span<std::uint8_t> symbols = call.scratch->get<std::uint8_t>(kSymbolSlot, count + 1);
    if (kept->indices.empty() || symbols.empty()) return out_of_memory(count);
    kept->indices = {kept->indices.data(), count};
    if (!coder_.smallest) {
      GRADCOMP_TRY(decode_indices(coder_.coding, kept->coded, n, kept->indices));
    } else if (!gaps_.decode(kept->coded, symbols, kept->indices)) {
      return wire_error("coded gaps that do not end where they should");
    }
    const Tiling tiling(n, kept->cols, kept_);
    for (std::size_t i = 0; i < tiling.tiles(); ++i) {
      GRADCOMP_TRY(to_indices(tiling.tile(i), kept->cols, kept->indices.data()));
    }
    return {};
  }

  // Turns a tile's gaps or places in tile order into indices of elements.
  Status to_indices(const Tile& tile, std::size_t cols, std::uint32_t* all) const {
    std::uint32_t* const own = all + tile.first_kept;
    const auto width = static_cast<std::uint32_t>(tile.width);
    std::size_t next = 0;
    for (std::size_t j = 0; j < tile.kept; ++j) {
      // A place before the tile wraps around to a large number.
      const std::size_t place = coder_.smallest ? next + own[j] : own[j] - tile.begin;
      if (place >= tile.size()) {
        return wire_error("a kept element outside of its tile of " + std::to_string(tile.size()) +
                          " elements");
      }
      next = place + 1;
      const auto at = static_cast<std::uint32_t>(place);
      own[j] = static_cast<std::uint32_t>(tile.corner + at / width * cols + at % width);
    }
    return {};
  }

  std::size_t kept_;
  ValueType value_type_;
  IndexCoder coder_;
  GapCoder gaps_;
};

}  // namespace

StageInfo blocktopk_stage() {
  StageInfo stage;
  stage.name = "blocktopk";
  stage.id = 32;
  stage.summary =
      "the k elements of largest magnitude in each tile of 64 x 64 elements; ties go to the lower "
      "index";
  stage.paper =
      "Sarfi, Therien, Lidin, Belilovsky: Communication Efficient LLM Pre-training with "
      "SparseLoCo, "
      "2025; tiles after Peng, Quesnelle, Kingma: DeMo, 2024";
  stage.nonfinite = "NaN ranks above Inf and Inf above all finite values, so they are sent first";
  stage.example = "blocktopk(k=64)";
  stage.params = {integer_param("k", "64", 1, static_cast<std::int64_t>(kTile),
                                "elements kept of a tile of 4096; smaller tiles keep their share, "
                                "to the nearest, at least 1"),
                  values_param()};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<BlockTopK>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
