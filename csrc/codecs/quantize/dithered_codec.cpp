#include "codecs/quantize/dithered_codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kWords = 1024;  // random words at a time

constexpr std::size_t kChunkSlot = 0;
constexpr std::size_t kMeasureSlot = 1;
constexpr std::size_t kSymbolSlot = 2;

float unit_of(Partition partition, unsigned levels, float norm) {
  return partition == Partition::kLinear ? norm / static_cast<float>(levels) : norm;
}

}  // namespace

const char* const kDitheredNonfinite =
    "a bucket that holds NaN or Inf decodes to NaN, on every rank";

const char* refuse_dithered(Norm norm, Partition partition, const Params& params,
                            const StageInfo* memory) {
  if (norm != Norm::kL2 || memory == nullptr || !memory->feeds_back) return nullptr;
  const double root = std::sqrt(static_cast<double>(params.integer("bucket")));
  const auto levels = static_cast<int>(params.integer("levels"));
  if (partition == Partition::kLinear) {
    if (root < levels) return nullptr;
    return "error feedback diverges with few levels of an l2 norm, whose error exceeds the "
           "gradient; use more levels than sqrt(bucket), the norm max, or no memory";
  }
  const double t = std::ldexp(root, 1 - levels);
  if (0.125 + t * std::min(1.0, t) < 1) return nullptr;
  return "error feedback diverges with few levels of an l2 norm, whose error exceeds the gradient; "
         "use more levels than 1.1 + log2(bucket) / 2, the norm max, or no memory";
}

ParamInfo levels_param(const char* default_text, const char* doc) {
  return integer_param("levels", default_text, 1, 127, doc);
}

ParamInfo bucket_param(const char* default_text, const char* doc) {
  return integer_param("bucket", default_text, 16, kMaxNumel, doc);
}

DitheredCodec::DitheredCodec(const Recipe& recipe, Norm norm, Partition partition)
    : levels_(static_cast<unsigned>(recipe.params.integer("levels"))),
      bits_(symbol_bits(2 * levels_)),
      bucket_(static_cast<std::size_t>(recipe.params.integer("bucket"))),
      norms_{bucket_, norm},
      partition_(partition),
      coder_(LevelCoder::named(recipe.coder_name("packed"))) {
  for (int symbol = 0; symbol < 256; ++symbol) {
    const int level = (symbol + 1) / 2;
    const float magnitude = partition == Partition::kLinear ? static_cast<float>(level)
                            : level == 0 ? 0.0f
                                         : std::ldexp(1.0f, level - static_cast<int>(levels_));
    values_[symbol] = symbol % 2 == 0 ? magnitude : -magnitude;
  }
}

Caps DitheredCodec::caps() const noexcept {
  Caps caps;
  caps.private_noise = true;
  // Fused only if no bucket crosses a chunk's border: else two threads may need its norm.
  caps.fuses_feedback = bucket_ > kChunk || kChunk % bucket_ == 0;
  return caps;
}

std::size_t DitheredCodec::max_encoded_size(std::size_t n) const noexcept {
  return 4 * norms_.buckets(n) + coder_.max_bytes(n, bits_);
}

// Norms ------------------------------------------------------------------------------------------

// Writes the norms of buckets that are longer than a chunk.
Status DitheredCodec::write_long_norms(Span<const float> x, const Call& call,
                                       std::uint8_t* out) const {
  const std::size_t n = x.size();
  // Piece i of the tensor is in chunk c and bucket b with c + b = i; if a bucket and a chunk begin
  // together, one i is skipped.
  const std::size_t pieces = (n + kChunk - 1) / kChunk + norms_.buckets(n);
  Span<double> measures = call.scratch->get<double>(kMeasureSlot, pieces + 1);
  if (measures.empty()) return capacity_error("out of memory while measuring buckets");
  std::fill(measures.begin(), measures.end(), 0.0);
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    while (begin < end) {
      const std::size_t chunk = begin / kChunk;
      const std::size_t bucket = begin / bucket_;
      const std::size_t stop = std::min({end, (chunk + 1) * kChunk, (bucket + 1) * bucket_});
      correct(call, begin, stop);
      measures[chunk + bucket] = norms_.measure(x.data() + begin, stop - begin);
      begin = stop;
    }
  });
  for (std::size_t bucket = 0; bucket < norms_.buckets(n); ++bucket) {
    const std::size_t last = std::min((bucket + 1) * bucket_, n) - 1;
    double total = 0;
    for (std::size_t chunk = bucket * bucket_ / kChunk; chunk <= last / kChunk; ++chunk) {
      total = norms_.join(total, measures[chunk + bucket]);
    }
    store(out + 4 * bucket, norms_.norm_of(total));
  }
  return {};
}

// Encoding ---------------------------------------------------------------------------------------

void DitheredCodec::round(const float* x, const std::uint32_t* words, float norm,
                          std::uint8_t* symbols, std::size_t n) const {
  if (!(norm > 0)) {
    std::memset(symbols, 0, n);
  } else if (partition_ == Partition::kLinear) {
    const float scale = static_cast<float>(levels_) * 0x1p24f / norm;
    kernels().f32_to_zigzag(x, words, scale, levels_, symbols, n);
  } else {
    kernels().f32_to_natural_zigzag(x, words, 1.0f / norm, levels_, symbols, n);
  }
}

// Writes the symbols of one chunk, x[begin, end), and the norms of buckets that begin in it. Norms
// of buckets longer than a chunk are already written.
void DitheredCodec::write_symbols(Span<const float> x, const Call& call, std::size_t begin,
                                  std::size_t end, std::uint8_t* norms,
                                  std::uint8_t* symbols) const {
  alignas(64) std::uint32_t words[kWords];
  std::size_t bucket_end = begin;
  float* const residual = residual_of(call);
  std::size_t words_begin = begin;
  float norm = 0;
  for (std::size_t at = begin; at < end;) {
    if (at == bucket_end) {
      const std::size_t bucket = at / bucket_;
      bucket_end = (bucket + 1) * bucket_;
      if (bucket_ > kChunk) {
        norm = load<float>(norms + 4 * bucket);
      } else {
        correct(call, at, std::min(bucket_end, end));
        norm = norms_.bucket_norm(x, bucket);
        if (bucket * bucket_ >= begin) store(norms + 4 * bucket, norm);
      }
    }
    if ((at - begin) % kWords == 0) {
      words_begin = at;
      const std::size_t count = std::min(kWords, end - at);
      kernels().rounding_words(call.stream, at, words, count, x.data() + at + count);
    }
    const std::size_t stop = std::min({bucket_end, words_begin + kWords, end});
    round(x.data() + at, words + (at - words_begin), norm, symbols + (at - begin), stop - at);
    if (residual != nullptr) {
      add(symbols + (at - begin), norm, -1.0f, residual + at, stop - at);
    }
    at = stop;
  }
}

Status DitheredCodec::encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                             std::size_t* written) const {
  const std::size_t n = x.size();
  GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
  const std::size_t ranges = range_count(n);
  Span<std::uint8_t> chunks = call.scratch->get<std::uint8_t>(kChunkSlot, ranges * kChunk);
  if (chunks.empty()) return capacity_error("out of memory while encoding levels");
  std::uint8_t* const norms = out.data();
  std::uint8_t* const coded = norms + 4 * norms_.buckets(n);
  if (bucket_ > kChunk) GRADCOMP_TRY(write_long_norms(x, call, norms));

  std::vector<Span<std::uint8_t>> parts(ranges);
  for_ranges(n, ranges, [&](std::size_t range, std::size_t begin, std::size_t end) {
    // Start of this range's code if all codes before it have their greatest length.
    std::uint8_t* const start = coded + coder_.max_bytes(begin, bits_);
    std::uint8_t* to = start;
    std::uint8_t* const chunk = chunks.data() + range * kChunk;
    for (; begin < end; begin += kChunk) {
      const std::size_t stop = std::min(begin + kChunk, end);
      std::uint8_t* const symbols = coder_.plain(bits_) ? to : chunk;
      write_symbols(x, call, begin, stop, norms, symbols);
      to += symbols == to ? stop - begin : coder_.encode({symbols, stop - begin}, bits_, to);
    }
    parts[range] = {start, static_cast<std::size_t>(to - start)};
  });
  std::uint8_t* to = coded;
  for (const Span<std::uint8_t>& part : parts) {
    if (to != part.data()) std::memmove(to, part.data(), part.size());
    to += part.size();
  }
  *written = static_cast<std::size_t>(to - out.data());
  return {};
}

// Decoding ---------------------------------------------------------------------------------------

Status DitheredCodec::read(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                           Span<const std::uint8_t>* symbols) const {
  GRADCOMP_TRY(norms_.check(in, n));
  const std::size_t head = 4 * norms_.buckets(n);
  const Span<const std::uint8_t> coded{in.data() + head, in.size() - head};
  if (coder_.plain(bits_)) {
    GRADCOMP_TRY(check_payload_size(in, head + n, n));
    *symbols = coded;
  } else {
    Span<std::uint8_t> decoded = call.scratch->get<std::uint8_t>(kSymbolSlot, n + 1);
    if (decoded.empty()) return capacity_error("out of memory while decoding levels");
    GRADCOMP_TRY(coder_.decode(coded, bits_, {decoded.data(), n}));
    *symbols = {decoded.data(), n};
  }
  std::uint8_t largest = 0;
  for (std::uint8_t symbol : *symbols) largest = symbol > largest ? symbol : largest;
  if (largest <= 2 * levels_) return {};
  return wire_error("level symbol " + std::to_string(largest) + "; " + std::to_string(levels_) +
                    " levels have symbols up to " + std::to_string(2 * levels_));
}

Status DitheredCodec::check(Span<const std::uint8_t> in, const Call& call, std::size_t n) const {
  Span<const std::uint8_t> symbols;
  return read(in, call, n, &symbols);
}

// Calls fn(bucket, begin, end) for the part of each bucket in each range of elements.
template <typename Fn>
void DitheredCodec::for_buckets(std::size_t n, const Fn& fn) const {
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    while (begin < end) {
      const std::size_t bucket = begin / bucket_;
      const std::size_t stop = std::min(end, (bucket + 1) * bucket_);
      fn(bucket, begin, stop);
      begin = stop;
    }
  });
}

Status DitheredCodec::decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
  Span<const std::uint8_t> symbols;
  GRADCOMP_TRY(read(in, call, y.size(), &symbols));
  for_buckets(y.size(), [&](std::size_t bucket, std::size_t begin, std::size_t end) {
    const float unit = unit_of(partition_, levels_, load<float>(in.data() + 4 * bucket));
    if (partition_ == Partition::kLinear) {
      kernels().zigzag_to_f32(symbols.data() + begin, unit, y.data() + begin, end - begin);
    } else {
      for (std::size_t i = begin; i < end; ++i) y[i] = unit * values_[symbols[i]];
    }
  });
  return {};
}

void DitheredCodec::add(const std::uint8_t* symbols, float norm, float weight, float* acc,
                        std::size_t n) const {
  const float unit = unit_of(partition_, levels_, norm);
  if (partition_ == Partition::kLinear) {
    kernels().zigzag_add(symbols, unit, weight, acc, n);
  } else {
    for (std::size_t i = 0; i < n; ++i) acc[i] += weight * (unit * values_[symbols[i]]);
  }
}

Status DitheredCodec::decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                                 Span<float> acc) const {
  Span<const std::uint8_t> symbols;
  GRADCOMP_TRY(read(in, call, acc.size(), &symbols));
  for_buckets(acc.size(), [&](std::size_t bucket, std::size_t begin, std::size_t end) {
    add(symbols.data() + begin, load<float>(in.data() + 4 * bucket), weight, acc.data() + begin,
        end - begin);
  });
  return {};
}

}  // namespace gradcomp
