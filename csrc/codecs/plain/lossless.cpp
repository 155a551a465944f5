// Exact float32 values, in fewer bytes: exponents are coded, and bytes that are all 0 left out, as
// the lower two of bfloat16 gradients are. Where zeros are frequent, only their exponents are sent.
//
// Payload: chunks of kChunk elements, one after the other. A chunk is a byte of forms, two bits for
// each plane of Kernels::split_planes, and the planes in that order.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "coding/rans.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kPlanes = 4;
constexpr std::size_t kTile = 4096;  // elements that stay in the first-level cache
constexpr std::size_t kLengthBytes = 2;
constexpr std::size_t kCountBytes = 2;
constexpr std::uint32_t kFewZeros = 64;  // below 1 in so many, leaving them out saves under 1 %

constexpr std::size_t kPlaneSlot = 0;
constexpr std::size_t kDecodedSlot = 1;

enum class Form : std::uint8_t {
  kZeros = 0,  // nothing
  kRaw = 1,    // one byte per element
  kCoded = 2,  // u16 length, then the code of the bytes
  // Exponents only: u16 number of elements that are not 0, then as kCoded. Other planes have the
  // bytes of these elements alone.
  kSparse = 3,
};

struct Plane {
  Form form;
  Span<const std::uint8_t> bytes;
};

// Whether a byte is so frequent that coding pays: in a sample, 16 times the share of even odds. So
// are zeros in a sparse gradient, and the significands of float16 numbers.
bool repetitive(const std::uint8_t* plane, std::size_t n) {
  constexpr std::size_t kRuns = 16;
  constexpr std::size_t kRun = 256;
  std::uint32_t counts[256] = {};
  std::uint32_t total = 0;
  for (std::size_t run = 0; run < kRuns; ++run) {
    const std::size_t begin = n * run / kRuns;
    const std::size_t end = std::min(begin + kRun, n * (run + 1) / kRuns);
    for (std::size_t i = begin; i < end; ++i) ++counts[plane[i]];
    total += static_cast<std::uint32_t>(end - begin);
  }
  return 16 * *std::max_element(counts, counts + 256) >= total;
}

// Writes the length and the code of n bytes after `header` bytes. Returns the end, or nullptr if
// all that takes n bytes or more.
std::uint8_t* write_coded(const std::uint8_t* plane, std::size_t n, const std::uint32_t* counts,
                          std::size_t header, std::uint8_t* to) {
  const std::size_t before = header + kLengthBytes;
  if (n <= before) return nullptr;
  const std::size_t size = rans_encode({plane, n}, 8, counts, to + before, n - before - 1);
  if (size == 0) return nullptr;
  store(to + header, static_cast<std::uint16_t>(size));
  return to + before + size;
}

// Returns the number of bytes written, at most 1 + kPlanes * n. `planes` has room for kPlanes *
// kChunk bytes.
std::size_t encode_chunk(const float* x, std::size_t n, std::uint8_t* planes, std::uint8_t* out) {
  const PlaneBits bits = kernels().split_planes(x, planes, planes + kChunk, planes + 2 * kChunk,
                                                planes + 3 * kChunk, n);
  std::uint8_t* to = out + 1;
  std::size_t kept = n;  // elements with bytes in the planes from 1 on
  unsigned forms = 0;
  for (unsigned p = 0; p < kPlanes; ++p) {
    if ((bits.any >> (24 - 8 * p) & 0xFF) == 0) continue;
    std::uint8_t* const plane = planes + p * kChunk;
    if (kept != n) kernels().compress_bytes(planes, plane, n);
    Form form = Form::kRaw;
    if (p == 0 || repetitive(plane, kept)) {
      std::uint32_t counts[256];
      count_symbols({plane, kept}, counts);
      const std::size_t zeros = counts[0];
      const bool sparse = p == 0 && bits.of_zeros == 0 && kFewZeros * zeros >= n;
      std::uint8_t* const end = write_coded(plane, kept, counts, sparse ? kCountBytes : 0, to);
      if (end != nullptr) {
        form = sparse ? Form::kSparse : Form::kCoded;
        if (sparse) {
          kept = n - zeros;
          store(to, static_cast<std::uint16_t>(kept));
        }
        to = end;
      }
    }
    if (form == Form::kRaw) {
      std::memcpy(to, plane, kept);
      to += kept;
    }
    forms |= static_cast<unsigned>(form) << 2 * p;
  }
  out[0] = static_cast<std::uint8_t>(forms);
  return static_cast<std::size_t>(to - out);
}

Status bad_chunk(std::size_t chunk, const char* why) {
  return wire_error("chunk " + std::to_string(chunk) + " " + why);
}

struct Chunk {
  Plane planes[kPlanes];
  std::size_t kept;       // elements with bytes in the planes from 1 on
  std::uint8_t* decoded;  // room for the bytes of its coded planes
  bool sparse;
  bool valid;
};

// Finds the planes of all chunks of n elements; coded ones stay coded.
Status find_planes(Span<const std::uint8_t> in, std::size_t n, Chunk* chunks, std::size_t* coded) {
  const std::uint8_t* from = in.data();
  const auto left = [&] { return static_cast<std::size_t>(in.end() - from); };
  for (std::size_t c = 0; c < chunk_count(n); ++c) {
    if (left() == 0) return bad_chunk(c, "is missing");
    const std::size_t count = std::min(kChunk, n - c * kChunk);
    Chunk& chunk = chunks[c];
    chunk.kept = count;
    chunk.sparse = false;
    const unsigned forms = *from++;
    for (unsigned p = 0; p < kPlanes; ++p) {
      auto form = static_cast<Form>(forms >> 2 * p & 3);
      if (form == Form::kSparse) {
        if (p != 0) return bad_chunk(c, "has a form that does not exist");
        if (left() < kCountBytes) return bad_chunk(c, "ends within a count");
        chunk.kept = load<std::uint16_t>(from);
        from += kCountBytes;
        if (chunk.kept == 0 || chunk.kept >= count) return bad_chunk(c, "has an invalid count");
        chunk.sparse = true;
        form = Form::kCoded;
      }
      std::size_t size = 0;
      if (form == Form::kRaw) {
        size = chunk.kept;
      } else if (form == Form::kCoded) {
        if (left() < kLengthBytes) return bad_chunk(c, "ends within a length");
        size = load<std::uint16_t>(from);
        from += kLengthBytes;
        ++*coded;
      }
      if (left() < size) return bad_chunk(c, "is cut short");
      chunk.planes[p] = {form, {from, size}};
      from += size;
    }
  }
  if (left() == 0) return {};
  return wire_error(std::to_string(left()) + " bytes follow the last chunk");
}

// Replaces the codes of coded planes by their bytes.
bool decode_planes(Chunk* chunk, std::size_t n) {
  std::uint8_t* to = chunk->decoded;
  for (std::size_t p = 0; p < kPlanes; ++p) {
    Plane& plane = chunk->planes[p];
    if (plane.form != Form::kCoded) continue;
    const std::size_t size = p == 0 ? n : chunk->kept;
    if (!rans_decode(plane.bytes, 8, {to, size})) return false;
    if (p == 0 && chunk->sparse) {
      const auto zeros = static_cast<std::size_t>(std::count(to, to + n, std::uint8_t{0}));
      if (n - zeros != chunk->kept) return false;
    }
    plane.bytes = {to, size};
    to += size;
  }
  return true;
}

// Walks through the planes of a chunk, tile by tile.
class Tiles {
 public:
  explicit Tiles(const Chunk& chunk) : chunk_(chunk) {
    for (std::size_t p = 0; p < kPlanes; ++p) next_[p] = chunk.planes[p].bytes.data();
  }

  // Sets at[p] to the bytes of plane p of the next `count` <= kTile elements.
  void next(std::size_t count, const std::uint8_t** at) {
    static constexpr std::uint8_t kZeros[kTile] = {};
    for (std::size_t p = 0; p < kPlanes; ++p) {
      const Plane& plane = chunk_.planes[p];
      if (plane.form == Form::kZeros) {
        at[p] = kZeros;
      } else if (p != 0 && chunk_.sparse) {
        next_[p] =
            kernels().expand_bytes(at[0], next_[p], plane.bytes.end(), expanded_[p - 1], count);
        at[p] = expanded_[p - 1];
      } else {
        at[p] = next_[p];
        next_[p] += count;
      }
    }
  }

 private:
  const Chunk& chunk_;
  const std::uint8_t* next_[kPlanes];
  alignas(64) std::uint8_t expanded_[kPlanes - 1][kTile];
};

class Lossless final : public Codec {
 public:
  Caps caps() const noexcept override {
    Caps caps;
    caps.finite = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return kPlanes * n + chunk_count(n);
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    const std::size_t ranges = range_count(n);
    constexpr std::size_t kRoom = kPlanes * kChunk;
    const Span<std::uint8_t> planes = call.scratch->get<std::uint8_t>(kPlaneSlot, ranges * kRoom);
    if (planes.empty()) return capacity_error("out of memory while splitting floats");
    std::vector<Span<std::uint8_t>> parts(ranges);
    for_ranges(n, ranges, [&](std::size_t range, std::size_t begin, std::size_t end) {
      // Start of this range if all chunks before it have their greatest size.
      std::uint8_t* const start = out.data() + max_encoded_size(begin);
      std::uint8_t* to = start;
      for (; begin < end; begin += kChunk) {
        const std::size_t count = std::min(kChunk, end - begin);
        to += encode_chunk(x.data() + begin, count, planes.data() + range * kRoom, to);
      }
      parts[range] = {start, static_cast<std::size_t>(to - start)};
    });
    std::uint8_t* to = out.data();
    for (const Span<std::uint8_t>& part : parts) {
      if (to != part.data()) std::memmove(to, part.data(), part.size());
      to += part.size();
    }
    *written = static_cast<std::size_t>(to - out.data());
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    return expand(in, call, y.size(),
                  [&](const std::uint8_t* const* planes, std::size_t begin, std::size_t count) {
                    kernels().join_planes(planes[0], planes[1], planes[2], planes[3],
                                          y.data() + begin, count);
                  });
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    return expand(in, call, acc.size(),
                  [&](const std::uint8_t* const* planes, std::size_t begin, std::size_t count) {
                    alignas(64) float tile[kTile];
                    kernels().join_planes(planes[0], planes[1], planes[2], planes[3], tile, count);
                    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(tile), weight,
                                      acc.data() + begin, count);
                  });
  }

 private:
  // Calls sink(planes, begin, count) for tiles, on all threads, once the whole payload is known to
  // be valid.
  template <typename Sink>
  Status expand(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                const Sink& sink) const {
    const std::size_t count = chunk_count(n);
    const Span<Chunk> chunks = call.scratch->get<Chunk>(kPlaneSlot, count + 1);
    if (chunks.empty()) return capacity_error("out of memory while decoding floats");
    std::size_t coded = 0;
    GRADCOMP_TRY(find_planes(in, n, chunks.data(), &coded));
    const std::size_t bytes = std::min(kChunk, n);
    const Span<std::uint8_t> room =
        call.scratch->get<std::uint8_t>(kDecodedSlot, coded * bytes + 1);
    if (room.empty()) return capacity_error("out of memory while decoding floats");
    std::uint8_t* next = room.data();
    for (std::size_t c = 0; c < count; ++c) {
      chunks[c].decoded = next;
      for (const Plane& plane : chunks[c].planes) next += plane.form == Form::kCoded ? bytes : 0;
    }
    for_chunks(n, [&](std::size_t c, std::size_t begin, std::size_t end) {
      chunks[c].valid = decode_planes(&chunks[c], end - begin);
    });
    for (std::size_t c = 0; c < count; ++c) {
      if (!chunks[c].valid) return bad_chunk(c, "has an invalid code");
    }
    for_chunks(n, [&](std::size_t c, std::size_t begin, std::size_t end) {
      Tiles tiles(chunks[c]);
      for (; begin < end; begin += kTile) {
        const std::size_t size = std::min(kTile, end - begin);
        const std::uint8_t* at[kPlanes];
        tiles.next(size, at);
        sink(at, begin, size);
      }
    });
    return {};
  }
};

}  // namespace

StageInfo lossless_stage() {
  StageInfo stage;
  stage.name = "lossless";
  stage.id = 31;
  stage.summary = "exact float32 values with coded exponents; of bfloat16 values, their 16 bits";
  stage.paper =
      "Hershcovitch et al.: ZipNN: Lossless Compression for AI Models, arXiv 2411.05239, with the "
      "code of Duda: Asymmetric numeral systems, 2013";
  stage.nonfinite = "kept, with every bit of a NaN";
  stage.example = "lossless";
  stage.make = [](const Recipe&) -> std::unique_ptr<Codec> { return std::make_unique<Lossless>(); };
  return stage;
}

}  // namespace gradcomp
