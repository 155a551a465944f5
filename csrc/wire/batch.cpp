#include "wire/batch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/chunks.hpp"
#include "base/scratch.hpp"
#include "codec/bucket_codec.hpp"
#include "codec/sparse_interface.hpp"
#include "kernels/kernels.hpp"
#include "wire/averaging.hpp"
#include "wire/frame.hpp"
#include "wire/frame_rooms.hpp"
#include "wire/parts.hpp"

namespace gradcomp {
namespace {

// Slots of own_scratch().
constexpr std::size_t kCountSlot = 0, kDecodedSlot = 1, kPieceSlot = 2;

Status out_of_memory(std::size_t n) {
  return capacity_error("out of memory: an average of " + std::to_string(n) + " elements");
}

// Calls plan() for the items of each bucket: items of the same spec, whose codec has BucketCodec.
Status find_plans(Span<const EncodeItem> items, Span<BucketCall> calls,
                  std::vector<std::unique_ptr<BucketWork>>* works) {
  std::vector<bool> done(items.size(), false);
  for (std::size_t first = 0; first < items.size(); ++first) {
    const CompiledCodec* const codec = items[first].codec;
    const BucketCodec* const planner = codec->codec->bucket();
    if (done[first] || planner == nullptr) continue;
    std::vector<std::size_t> bucket;
    std::vector<BucketTensor> tensors;
    for (std::size_t i = first; i < items.size(); ++i) {
      if (items[i].codec->spec != codec->spec) continue;
      done[i] = true;
      if (items[i].feedback != nullptr) items[i].feedback->correct_all();
      bucket.push_back(i);
      tensors.push_back(
          {items[i].x, items[i].cols, items[i].carried, items[i].basis, items[i].feedback});
    }
    std::vector<std::uint64_t> found(bucket.size());
    Call call;
    call.scratch = &thread_scratch();
    std::unique_ptr<BucketWork> work;
    GRADCOMP_TRY(
        planner->plan({tensors.data(), tensors.size()}, call, {found.data(), found.size()}, &work));
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      calls[bucket[i]] = {found[i], work.get(), items[bucket[i]].basis};
    }
    works->push_back(std::move(work));
  }
  return {};
}

// Working memory apart from that of codecs, which use thread_scratch().
Scratch& own_scratch() noexcept {
  thread_local Scratch scratch;
  return scratch;
}

// Calls fn(payload, call) for the frame `at` of an item.
template <typename Fn>
Status of_frame(const DecodeItem& item, std::size_t at, Scratch* scratch, const Fn& fn) {
  Frame frame;
  GRADCOMP_TRY(payload_of_frame(*item.codec, item.frames[at], item.acc.size(), &frame));
  BucketCall bucket;
  bucket.basis = item.basis;
  Call call;
  call.stream = frame.stream;
  call.scratch = scratch;
  call.bucket = &bucket;
  return fn(frame.payload, call);
}

// Calls fn(payload, call) for each frame of an item; `at` is the frame that was refused.
template <typename Fn>
Status for_frames(const DecodeItem& item, std::size_t* at, const Fn& fn) {
  for (*at = 0; *at < item.frames.size(); ++*at) {
    GRADCOMP_TRY(of_frame(item, *at, &thread_scratch(), fn));
  }
  return {};
}

void zero(Span<float> acc) {
  for_ranges(acc.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    kernels().zero(acc.data() + begin, end - begin);
  });
}

// Adds open payloads piece after piece, so that memory is read and written once. With `replaces`
// the former elements do not count: a large tensor is only written.
void add_pieces(Span<const OpenPayload> payloads, float weight, bool replaces, Span<float> acc) {
  const bool uncached = replaces && acc.size() >= kUncachedFrom;
  const std::size_t size = payloads[0].piece();
  for_blocks(acc.size(), size, [&](std::size_t, std::size_t begin, std::size_t count) {
    const Span<float> cached = own_scratch().get<float>(kPieceSlot, uncached ? size : 1);
    float* const piece = uncached && !cached.empty() ? cached.data() : acc.data() + begin;
    if (replaces) std::memset(piece, 0, 4 * count);
    for (const OpenPayload& payload : payloads) payload.add(begin, count, weight, piece);
    if (piece == cached.data()) kernels().copy_uncached(piece, acc.data() + begin, count);
  });
}

// A payload whose elements are known.
OpenPayload in_memory(Span<const float> decoded) {
  return {1, [decoded](std::size_t begin, std::size_t count, float weight, float* acc) {
            const auto* const bytes = reinterpret_cast<const std::uint8_t*>(decoded.data() + begin);
            kernels().f32_add(bytes, weight, acc, count);
          }};
}

// Payloads that are open at once; each keeps working memory of its own.
constexpr std::size_t kTogether = 8;

Scratch& scratch_of_payload(std::size_t place) noexcept {
  thread_local std::array<Scratch, kTogether - 1> others;
  return place == 0 ? thread_scratch() : others[place - 1];
}

// decode_add of all frames of an item.
Status add_frames(const DecodeItem& item, float weight, std::size_t* at) {
  const Codec& codec = *item.codec->codec;
  std::vector<OpenPayload> opened;
  bool replaces = item.replaces;
  const auto add_waiting = [&] {
    if (opened.empty()) return;
    add_pieces({opened.data(), opened.size()}, weight, replaces, item.acc);
    replaces = false;
    opened.clear();
  };
  const auto add_whole = [&](Span<const std::uint8_t> payload, const Call& call) {
    add_waiting();
    if (replaces) zero(item.acc);
    replaces = false;
    return codec.decode_add(payload, call, weight, item.acc);
  };
  for (*at = 0; *at < item.frames.size(); ++*at) {
    const auto add = [&](Span<const std::uint8_t> payload, const Call& call) -> Status {
      OpenPayload one;
      if (*at == item.own && !item.decoded.empty()) {
        one = in_memory(item.decoded);
      } else {
        GRADCOMP_TRY(codec.open(payload, call, item.acc.size(), &one));
      }
      if (one.unit == 0) return add_whole(payload, call);
      opened.push_back(std::move(one));
      if (opened.size() == kTogether) add_waiting();
      return {};
    };
    GRADCOMP_TRY(of_frame(item, *at, &scratch_of_payload(opened.size()), add));
  }
  add_waiting();
  if (replaces) zero(item.acc);
  return {};
}

Status find_factors(const DecodeItem& item, std::size_t* at, std::vector<double>* factors) {
  const Codec& codec = *item.codec->codec;
  const SparseInterface* const sparse = codec.sparse();
  const std::size_t n = item.acc.size();
  std::vector<double> norms(item.frames.size());
  GRADCOMP_TRY(for_frames(item, at, [&](Span<const std::uint8_t> payload, const Call& call) {
    double sum = 0;
    if (sparse != nullptr) {
      GRADCOMP_TRY(sparse->sum_squares(payload, call, n, &sum));
    } else {
      const Span<float> decoded = own_scratch().get<float>(kDecodedSlot, n + 1);
      if (decoded.empty()) return out_of_memory(n);
      GRADCOMP_TRY(codec.decode(payload, call, {decoded.data(), n}));
      sum = kernels().sum_squares(decoded.data(), n);
    }
    norms[*at] = std::sqrt(sum);
    return Status();
  }));
  factors->resize(norms.size());
  median_factors({norms.data(), norms.size()}, {factors->data(), factors->size()});
  return {};
}

Status decode_item(const DecodeItem& item, float weight, std::size_t* at) {
  if (!item.clips && !item.over_senders) return add_frames(item, weight, at);
  const Codec& codec = *item.codec->codec;
  const std::size_t n = item.acc.size();
  if (item.replaces) zero(item.acc);
  std::vector<double> factors;
  if (item.clips) GRADCOMP_TRY(find_factors(item, at, &factors));
  const auto weight_of = [&](std::size_t frame) {
    const double factor = item.clips ? factors[frame] : 1.0;
    if (item.over_senders) return static_cast<float>(factor);
    return item.clips ? static_cast<float>(factor / static_cast<double>(factors.size())) : weight;
  };
  if (!item.over_senders) {
    return for_frames(item, at, [&](Span<const std::uint8_t> payload, const Call& call) {
      return codec.decode_add(payload, call, weight_of(*at), item.acc);
    });
  }
  const SparseInterface* const sparse = codec.sparse();
  if (sparse == nullptr) return {Code::kSpec, "this codec's payloads carry all elements"};
  if (item.frames.size() > std::numeric_limits<std::uint16_t>::max()) {
    return capacity_error("an average over senders takes at most 65535 frames, not " +
                          std::to_string(item.frames.size()));
  }
  const Span<std::uint16_t> counts = own_scratch().get<std::uint16_t>(kCountSlot, n + 1);
  if (counts.empty()) return out_of_memory(n);
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    std::fill(counts.begin() + begin, counts.begin() + end, std::uint16_t{0});
  });
  GRADCOMP_TRY(for_frames(item, at, [&](Span<const std::uint8_t> payload, const Call& call) {
    return sparse->decode_add_count(payload, call, weight_of(*at), item.acc, {counts.data(), n});
  }));
  divide_by_counts({counts.data(), n}, item.acc);
  return {};
}

}  // namespace

std::size_t max_batch_size(Span<const EncodeItem> items) noexcept {
  std::size_t total = 0;
  for (const EncodeItem& item : items) total += max_frame_size(*item.codec, item.x.size());
  return total;
}

Status encode_batch(Span<const EncodeItem> items, Span<std::uint8_t> out, Span<std::size_t> sizes) {
  std::vector<std::size_t> largest;
  for (const EncodeItem& item : items) {
    largest.push_back(max_frame_size(*item.codec, item.x.size()));
  }
  FrameRooms rooms;
  GRADCOMP_TRY(rooms.open(out, {largest.data(), largest.size()}));
  std::vector<BucketCall> bucket_calls(items.size());
  std::vector<std::unique_ptr<BucketWork>> works;
  GRADCOMP_TRY(find_plans(items, {bucket_calls.data(), bucket_calls.size()}, &works));
  std::vector<Status> statuses(items.size());
  for_tensors(
      items.size(), [&](std::size_t i) { return items[i].x.size(); },
      [&](std::size_t i) {
        Call call;
        call.stream = items[i].stream;
        call.scratch = &thread_scratch();
        call.feedback = items[i].feedback;
        call.cols = items[i].cols;
        call.bucket = &bucket_calls[i];
        statuses[i] = encode_frame(*items[i].codec, items[i].x, call, rooms[i], &sizes[i]);
      });
  return rooms.close({statuses.data(), statuses.size()}, {sizes.data(), sizes.size()});
}

Status decode_batch_add(Span<const DecodeItem> items, float weight, BatchFault* fault) {
  std::vector<Status> statuses(items.size());
  std::vector<std::size_t> at(items.size(), 0);
  for_tensors(
      items.size(), [&](std::size_t i) { return items[i].acc.size(); },
      [&](std::size_t i) { statuses[i] = decode_item(items[i], weight, &at[i]); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (statuses[i].ok()) continue;
    *fault = {i, at[i]};
    return statuses[i];
  }
  return {};
}

}  // namespace gradcomp
