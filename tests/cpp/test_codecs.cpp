#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/chunks.hpp"
#include "base/thread_pool.hpp"
#include "codec/frame_layout.hpp"
#include "support.hpp"
#include "wire/batch.hpp"
#include "wire/frame.hpp"

namespace gradcomp::test {
namespace {

std::vector<std::uint8_t> encode(const CompiledCodec& codec, const std::vector<float>& x,
                                 std::uint64_t stream) {
  Scratch scratch;
  Call call;
  call.stream = stream;
  call.scratch = &scratch;
  std::vector<std::uint8_t> out(max_frame_size(codec, x.size()));
  std::size_t written = 0;
  const Status status =
      encode_frame(codec, {x.data(), x.size()}, call, {out.data(), out.size()}, &written);
  REQUIRE_MESSAGE(status.ok(), status.message());
  out.resize(written);
  return out;
}

CompiledCodec compile(const std::string& spec) {
  CompiledCodec codec;
  const Status status = compile_codec(spec, &codec);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return codec;
}

}  // namespace

TEST_CASE("the same bytes at every level and thread count") {
  const ThreadScope thread_scope;
  for (const std::string& spec : example_specs()) {
    const CompiledCodec codec = compile(spec);
    for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, 3 * kChunk + 5}) {
      const std::vector<float> x = floats(n, n);
      set_thread_count(1);
      const std::vector<std::uint8_t> expected = encode(codec, x, 11);
      for (const std::string& level : level_names()) {
        LevelScope scope(level);
        for (std::size_t threads : {1, 3, 8}) {
          set_thread_count(threads);
          CAPTURE(spec);
          CAPTURE(level);
          CHECK(encode(codec, x, 11) == expected);
        }
      }
    }
  }
}

TEST_CASE("exactly the codecs that look at whole buckets have the interface for them") {
  for (const std::string& spec : example_specs()) {
    CAPTURE(spec);
    const CompiledCodec codec = compile(spec);
    CHECK((codec.codec->bucket() != nullptr) == codec.codec->caps().whole_bucket);
  }
}

TEST_CASE("exactly the sparse codecs have the interface for sparse payloads") {
  for (const std::string& spec : example_specs()) {
    CAPTURE(spec);
    const CompiledCodec codec = compile(spec);
    CHECK((codec.codec->sparse() != nullptr) == codec.codec->caps().sparse);
  }
}

TEST_CASE("a batch is its tensors, with error feedback fused or not") {
  const ThreadScope thread_scope;
  std::vector<CompiledCodec> codecs;
  for (const std::string& spec : example_specs()) codecs.push_back(compile(spec));
  const std::size_t sizes[] = {0, 1, 1000, kChunk, 2 * kChunk + 77};
  for (std::size_t threads : {1, 8}) {
    set_thread_count(threads);
    for (const CompiledCodec& codec : codecs) {
      if (codec.codec->caps().whole_bucket) continue;
      CAPTURE(codec.spec);
      std::vector<std::vector<float>> grads, residuals, expected;
      std::vector<std::uint8_t> frames;
      std::deque<Feedback> feedbacks;
      std::vector<EncodeItem> items;
      for (std::size_t n : sizes) {
        grads.push_back(floats(n, n));
        residuals.push_back(floats(n, n + 1));
        std::vector<float> corrected(n);
        for (std::size_t i = 0; i < n; ++i) {
          const float kept = 0.5f * residuals.back()[i];
          corrected[i] = kept + 1.0f * grads.back()[i];
        }
        const std::vector<std::uint8_t> frame = encode(codec, corrected, 3);
        frames.insert(frames.end(), frame.begin(), frame.end());
        Frame opened;
        REQUIRE(open_frame(codec, {frame.data(), frame.size()}, &opened).ok());
        Scratch scratch;
        Call call;
        call.stream = 3;
        call.scratch = &scratch;
        REQUIRE(codec.codec->decode_add(opened.payload, call, -1.0f, {corrected.data(), n}).ok());
        for (float& value : corrected) value = std::isfinite(value) ? value : 0.0f;
        expected.push_back(corrected);
      }
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const Span<float> residual{residuals[i].data(), residuals[i].size()};
        feedbacks.emplace_back(residual, grads[i].data(), 0.5f, 1.0f);
        items.push_back({&codec, {residual.data(), residual.size()}, 3, &feedbacks.back()});
      }
      const Span<const EncodeItem> all{items.data(), items.size()};
      std::vector<std::uint8_t> out(max_batch_size(all));
      std::vector<std::size_t> written(items.size());
      REQUIRE(encode_batch(all, {out.data(), out.size()}, {written.data(), written.size()}).ok());
      out.resize(frames.size());
      CHECK(out == frames);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(std::equal(expected[i].begin(), expected[i].end(), residuals[i].begin()));
      }
    }
  }
}

TEST_CASE("top-k is exact for every order of the input") {
  const ThreadScope thread_scope;
  // Ascending magnitudes defeat the sampled threshold and fill the candidate buffer again and
  // again.
  const std::size_t n = 300000;
  std::vector<float> ascending(n), descending(n), constant(n, -3.0f), late(n, 0.0f);
  for (std::size_t i = 0; i < n; ++i) {
    ascending[i] = static_cast<float>(i);
    descending[i] = static_cast<float>(n - i);
  }
  // Large values where the sample (the first 16 of every run) does not look.
  for (std::size_t i = 0; i < 40; ++i) late[i * 7001 + 6900] = 1.0f + static_cast<float>(i);
  for (const std::vector<float>* x : {&ascending, &descending, &constant, &late}) {
    for (std::size_t k : {1u, 10u, 30u, 3000u, 60000u, 200000u}) {
      for (std::size_t threads : {1, 8}) {
        set_thread_count(threads);
        const CompiledCodec codec = compile("topk(k=" + std::to_string(k) + ")|raw32");
        const std::vector<std::uint8_t> frame = encode(codec, *x, 0);
        std::vector<std::uint32_t> order(n);
        for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::uint32_t>(i);
        std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
          return std::fabs((*x)[a]) > std::fabs((*x)[b]);
        });
        order.resize(k);
        std::sort(order.begin(), order.end());
        bool equal = true;
        for (std::size_t i = 0; i < k; ++i) {
          equal = equal && load<std::uint32_t>(frame.data() + kFrameHeader + 8 + 4 * i) == order[i];
        }
        CHECK(equal);
      }
    }
  }
}

TEST_CASE("a buffer that is too small is refused") {
  Scratch scratch;
  Call call;
  call.scratch = &scratch;
  const std::vector<float> x(100, 1.0f);
  for (const std::string& spec : example_specs()) {
    const CompiledCodec codec = compile(spec);
    const std::size_t size = codec.codec->max_encoded_size(x.size());
    std::vector<std::uint8_t> out(size - 1);
    std::size_t written = 0;
    CHECK(codec.codec->encode({x.data(), x.size()}, call, {out.data(), out.size()}, &written)
              .code() == Code::kCapacity);
  }
}

}  // namespace gradcomp::test
