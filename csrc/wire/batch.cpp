#include "wire/batch.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/chunks.hpp"
#include "codec/bucket_codec.hpp"
#include "wire/frame.hpp"

namespace gradcomp {
namespace {

// Calls fn(i) for all items: for large ones on this thread, as fn itself uses the others; for those
// that are a single range, on all threads.
template <typename SizeOf, typename Fn>
void for_items(std::size_t count, const SizeOf& size_of, const Fn& fn) {
  std::vector<std::size_t> small;
  for (std::size_t i = 0; i < count; ++i) {
    if (size_of(i) <= kChunk) {
      small.push_back(i);
    } else {
      fn(i);
    }
  }
  for_tasks(small.size(), [&](std::size_t i) { fn(small[i]); });
}

// Calls share() for the items of each bucket: items of the same spec, whose codec has BucketCodec.
Status find_shares(Span<const EncodeItem> items, Span<BucketCall> calls,
                   std::vector<std::unique_ptr<BucketWork>>* works) {
  std::vector<bool> done(items.size(), false);
  for (std::size_t first = 0; first < items.size(); ++first) {
    const CompiledCodec* const codec = items[first].codec;
    const BucketCodec* const sharing = codec->codec->bucket();
    if (done[first] || sharing == nullptr) continue;
    std::vector<std::size_t> bucket;
    std::vector<BucketTensor> tensors;
    for (std::size_t i = first; i < items.size(); ++i) {
      if (items[i].codec->spec != codec->spec) continue;
      done[i] = true;
      if (items[i].feedback != nullptr) items[i].feedback->correct_all();
      bucket.push_back(i);
      tensors.push_back({items[i].x, items[i].cols, items[i].carried, items[i].basis});
    }
    std::vector<std::uint64_t> found(bucket.size());
    Call call;
    call.scratch = &thread_scratch();
    std::unique_ptr<BucketWork> work;
    GRADCOMP_TRY(sharing->share({tensors.data(), tensors.size()}, call,
                                {found.data(), found.size()}, &work));
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      calls[bucket[i]] = {found[i], work.get(), items[bucket[i]].basis};
    }
    works->push_back(std::move(work));
  }
  return {};
}

Status open(const DecodeItem& item, Span<const std::uint8_t> bytes, Frame* frame) {
  GRADCOMP_TRY(open_frame(*item.codec, bytes, frame));
  if (frame->numel == item.acc.size()) return {};
  return wire_error("the frame holds " + std::to_string(frame->numel) + " elements, not " +
                    std::to_string(item.acc.size()));
}

}  // namespace

std::size_t max_batch_size(Span<const EncodeItem> items) noexcept {
  std::size_t total = 0;
  for (const EncodeItem& item : items) total += max_frame_size(*item.codec, item.x.size());
  return total;
}

Status encode_batch(Span<const EncodeItem> items, Span<std::uint8_t> out, Span<std::size_t> sizes) {
  const std::size_t needed = max_batch_size(items);
  if (out.size() < needed) {
    return capacity_error("the output buffer has " + std::to_string(out.size()) +
                          " bytes; these frames may need " + std::to_string(needed));
  }
  std::vector<BucketCall> bucket_calls(items.size());
  std::vector<std::unique_ptr<BucketWork>> works;
  GRADCOMP_TRY(find_shares(items, {bucket_calls.data(), bucket_calls.size()}, &works));
  std::vector<Span<std::uint8_t>> rooms;
  for (std::size_t i = 0, begin = 0; i < items.size(); ++i) {
    const std::size_t room = max_frame_size(*items[i].codec, items[i].x.size());
    rooms.push_back({out.data() + begin, room});
    begin += room;
  }
  std::vector<Status> statuses(items.size());
  for_items(
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
  std::uint8_t* to = out.data();
  for (std::size_t i = 0; i < items.size(); ++i) {
    GRADCOMP_TRY(statuses[i]);
    if (to != rooms[i].data()) std::memmove(to, rooms[i].data(), sizes[i]);
    to += sizes[i];
  }
  return {};
}

Status decode_batch_add(Span<const DecodeItem> items, float weight, BatchFault* fault) {
  std::vector<Status> statuses(items.size());
  std::vector<std::size_t> at(items.size(), 0);
  for_items(
      items.size(), [&](std::size_t i) { return items[i].acc.size(); },
      [&](std::size_t i) {
        const DecodeItem& item = items[i];
        BucketCall bucket;
        bucket.basis = item.basis;
        for (; at[i] < item.frames.size(); ++at[i]) {
          Frame frame;
          statuses[i] = open(item, item.frames[at[i]], &frame);
          if (!statuses[i].ok()) return;
          Call call;
          call.stream = frame.stream;
          call.scratch = &thread_scratch();
          call.bucket = &bucket;
          const Codec& codec = *item.codec->codec;
          const float own = item.weights.empty() ? weight : item.weights[at[i]];
          statuses[i] = codec.decode_add(frame.payload, call, own, item.acc);
          if (statuses[i].ok() && !item.counts.empty()) {
            statuses[i] = codec.count_sent(frame.payload, call, item.counts);
          }
          if (!statuses[i].ok()) return;
        }
      });
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (statuses[i].ok()) continue;
    *fault = {i, at[i]};
    return statuses[i];
  }
  return {};
}

}  // namespace gradcomp
