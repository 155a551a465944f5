#include <doctest/doctest.h>

#include "support.hpp"
#include "wire/parts.hpp"

namespace gradcomp::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

CompiledCodec compile(const std::string& spec) {
  CompiledCodec codec;
  const Status status = compile_codec(spec, &codec);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return codec;
}

Bytes encode(const CompiledCodec& codec, const std::vector<float>& x, std::uint64_t stream) {
  Scratch scratch;
  Call call;
  call.stream = stream;
  call.scratch = &scratch;
  Bytes out(max_frame_size(codec, x.size()));
  std::size_t written = 0;
  REQUIRE(encode_frame(codec, {x.data(), x.size()}, call, {out.data(), out.size()}, &written).ok());
  out.resize(written);
  return out;
}

}  // namespace

TEST_CASE("parts of a frame make the frame again") {
  std::size_t with_parts = 0;
  for (const std::string& spec : example_specs()) {
    const CompiledCodec codec = compile(spec);
    for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{70001}}) {
      CAPTURE(spec);
      CAPTURE(n);
      const Bytes frame = encode(codec, floats(n, n, true), 11);
      const Span<const std::uint8_t> bytes{frame.data(), frame.size()};
      Bytes again(max_frame_size(codec, n));
      const Span<std::uint8_t> to{again.data(), again.size()};
      std::size_t written = 0;

      Frame opened;
      REQUIRE(payload_of_frame(codec, bytes, n, &opened).ok());
      REQUIRE(frame_of_payload(codec, opened.payload, n, opened.stream, to, &written).ok());
      again.resize(written);
      CHECK(again == frame);

      Scratch scratch;
      KeptParts kept;
      const Status status = kept_of_frame(codec, bytes, n, &scratch, &kept);
      if (status.code() == Code::kSpec) continue;
      REQUIRE(status.ok());
      ++with_parts;
      if (codec.codec->caps().seeded) kept.indices = {kept.indices.data(), 0};
      again.assign(max_frame_size(codec, n), 0);
      const Span<std::uint8_t> room{again.data(), again.size()};
      REQUIRE(frame_of_kept(codec, kept, n, opened.stream, room, &written).ok());
      again.resize(written);
      CHECK(again == frame);  // the examples send values as float32
    }
  }
  CHECK(with_parts >= 4 * 8);  // of every sparse codec but blocktopk
}

TEST_CASE("a frame of parts needs as much room as an encoder") {
  const CompiledCodec codec = compile("topk(k=2)");
  const std::vector<std::uint32_t> indices = {1, 3};
  const std::vector<float> values = {1, 2};
  const KeptParts kept{{indices.data(), 2}, {values.data(), 2}};
  Bytes out(max_frame_size(codec, 8));
  std::size_t written = 0;
  CHECK(frame_of_kept(codec, kept, 8, 0, {out.data(), out.size()}, &written).ok());
  CHECK(frame_of_kept(codec, kept, 8, 0, {out.data(), out.size() - 1}, &written).code() ==
        Code::kCapacity);
}

}  // namespace gradcomp::test
