// Damages frames and spec strings in many ways and decodes them. Built with sanitizers, it checks
// that no byte from the wire is trusted: every outcome must be a Status, and a refused decode_add
// must leave its accumulator unchanged.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "codec/bucket_codec.hpp"
#include "codec/frame_layout.hpp"
#include "codec/sparse_interface.hpp"
#include "kernels/crc32c.hpp"
#include "stages/compile.hpp"
#include "stages/registry.hpp"
#include "stages/spec.hpp"
#include "wire/frame.hpp"

namespace {

using namespace gradcomp;

// Sizes of tensors of arbitrary bits, where larger tensors would mostly decode to NaN, and of
// tensors like gradients.
constexpr std::size_t kAnyBits[] = {0, 1, 17};
constexpr std::size_t kGradients[] = {300, 1200};
constexpr std::size_t kCols = 20;

struct Subject {
  CompiledCodec codec;
  std::size_t numel;
  std::vector<std::uint8_t> frame;
  std::vector<float> basis = {};
};

Subject make_subject(const char* spec, const std::vector<float>& x, std::size_t cols,
                     std::uint64_t stream, Scratch* scratch) {
  Subject subject;
  subject.numel = x.size();
  if (!compile_codec(spec, &subject.codec).ok()) std::abort();
  const Codec& codec = *subject.codec.codec;
  Call call;
  call.stream = stream;
  call.scratch = scratch;
  call.cols = cols;
  subject.basis.resize(basis_size(codec, x.size(), cols));
  const Span<float> basis{subject.basis.data(), subject.basis.size()};
  if (!basis.empty() && !learn(codec, {x.data(), x.size()}, call, basis).ok()) std::abort();
  BucketCall bucket;
  bucket.basis = {basis.data(), basis.size()};
  call.bucket = &bucket;
  subject.frame.resize(max_frame_size(subject.codec, x.size()));
  std::size_t written = 0;
  if (!encode_frame(subject.codec, {x.data(), x.size()}, call,
                    {subject.frame.data(), subject.frame.size()}, &written)
           .ok()) {
    std::abort();
  }
  subject.frame.resize(written);
  return subject;
}

// A case beyond the registry's examples: a matrix with little randomness.
Subject make_matrix(const char* spec, std::size_t rows, std::size_t cols, Stream* stream,
                    Scratch* scratch) {
  std::vector<float> x(rows * cols);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<float>(i / cols);
    const auto noise = static_cast<float>(stream->below(1000)) / 1000;
    x[i] = row * static_cast<float>(i % cols) + noise * noise * noise * 40;
  }
  return make_subject(spec, x, cols, 0, scratch);
}

// Finite values with heavy tails.
float element(Stream* stream) {
  const float x = static_cast<float>(stream->below(2001)) / 1000 - 1;
  return x * x * x;
}

std::vector<Subject> make_subjects(Scratch* scratch) {
  std::vector<Subject> subjects;
  Stream stream(1);
  for (const StageInfo& info : registry()) {
    if (info.kind != StageKind::kCodec && info.kind != StageKind::kCoder) continue;
    for (std::size_t n : kAnyBits) {
      std::vector<float> x(n);
      for (float& value : x) value = bits_float(static_cast<std::uint32_t>(stream.next()));
      subjects.push_back(make_subject(info.example, x, 0, stream.next(), scratch));
    }
    for (std::size_t n : kGradients) {
      std::vector<float> x(n);
      for (float& value : x) value = element(&stream);
      subjects.push_back(make_subject(info.example, x, kCols, stream.next(), scratch));
    }
  }
  for (const char* spec : {"adaptive(rate=3,rank=2)", "adaptive(rate=3,rank=2,coder=polar)",
                           "adaptive(rate=3,preset=basis)"}) {
    subjects.push_back(make_matrix(spec, 20, 45, &stream, scratch));
    subjects.push_back(make_matrix(spec, 7, 64, &stream, scratch));
  }
  // Zeros have a form of their own in `lossless`.
  std::vector<float> sparse(1200);
  for (std::size_t i = 0; i < sparse.size(); ++i) sparse[i] = i % 3 == 0 ? 0 : element(&stream);
  subjects.push_back(make_subject("lossless", sparse, 0, 0, scratch));
  return subjects;
}

void mutate(std::vector<std::uint8_t>* bytes, Stream* random) {
  const std::uint64_t edits = 1 + random->below(4);
  for (std::uint64_t i = 0; i < edits && !bytes->empty(); ++i) {
    const auto at = static_cast<std::size_t>(random->below(bytes->size()));
    switch (random->below(6)) {
      case 0:
        (*bytes)[at] ^= static_cast<std::uint8_t>(1u << random->below(8));
        break;
      case 1:
        (*bytes)[at] = static_cast<std::uint8_t>(random->next());
        break;
      case 2:
        bytes->resize(at);
        break;
      case 3: {
        const auto length = static_cast<std::size_t>(1 + random->below(9));
        const auto value = static_cast<std::uint8_t>(random->next());
        bytes->insert(bytes->begin() + static_cast<std::ptrdiff_t>(at), length, value);
        break;
      }
      case 4:
        if (at + 4 <= bytes->size())
          store(bytes->data() + at, static_cast<std::uint32_t>(random->next()));
        break;
      default:
        if (at + 4 <= bytes->size()) store(bytes->data() + at, ~std::uint32_t{0});
        break;
    }
  }
  // A correct length and CRC let the damage reach the payload.
  if (random->below(2) == 0 && bytes->size() >= kFrameHeader + 4) {
    const bool stream = ((*bytes)[5] & kFlagStream) != 0;
    const std::size_t head = kFrameHeader + (stream ? 8 : 0);
    if (bytes->size() >= head + 4) {
      store(bytes->data() + 12, static_cast<std::uint32_t>(bytes->size() - head - 4));
      store(bytes->data() + bytes->size() - 4, crc32c(bytes->data(), bytes->size() - 4));
    }
  }
}

// Counts refuse a payload where decode does; else counts and norms are those of decoded elements.
void check_counted(const Subject& subject, Span<const std::uint8_t> payload, const Call& call,
                   const std::vector<float>& decoded, const Status& expected) {
  const SparseInterface& sparse = *subject.codec.codec->sparse();
  std::vector<float> acc(decoded.size());
  std::vector<std::uint16_t> counts(decoded.size());
  const Status counted = sparse.decode_add_count(payload, call, 1.0f, {acc.data(), acc.size()},
                                                 {counts.data(), counts.size()});
  double sum = 0;
  const Status summed = sparse.sum_squares(payload, call, decoded.size(), &sum);
  bool agrees = counted.ok() == expected.ok() && (summed.ok() || !expected.ok());
  double squares = 0;
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    if (!expected.ok()) {
      agrees = agrees && acc[i] == 0 && counts[i] == 0;
    } else if (std::isfinite(decoded[i])) {
      agrees = agrees && counts[i] <= 1 && acc[i] == decoded[i] && (counts[i] || decoded[i] == 0);
    }
    squares += static_cast<double>(decoded[i]) * decoded[i];
  }
  if (expected.ok() && std::isfinite(squares)) {
    agrees = agrees && std::abs(sum - squares) <= 1e-6 * squares;
  }
  if (agrees) return;
  std::fprintf(stderr, "counts or norms of %s disagree with decode\n", subject.codec.spec.c_str());
  std::abort();
}

// True if the damaged frame still decodes.
bool decode(const Subject& subject, const std::vector<std::uint8_t>& bytes, Scratch* scratch) {
  // A copy of exact size, so that the sanitizer sees every access beyond it.
  std::vector<std::uint8_t> exact(bytes);
  exact.shrink_to_fit();
  Frame frame;
  if (!open_frame(subject.codec, {exact.data(), exact.size()}, &frame).ok()) return false;
  Call call;
  call.stream = frame.stream;
  call.scratch = scratch;
  BucketCall bucket;
  bucket.basis = {subject.basis.data(), subject.basis.size()};
  call.bucket = &bucket;
  std::vector<float> acc(subject.numel, 1.5f);
  const std::vector<float> before = acc;
  const Status added =
      subject.codec.codec->decode_add(frame.payload, call, 2.0f, {acc.data(), acc.size()});
  if (!added.ok() && acc != before) {
    std::fprintf(stderr, "a refused decode_add changed its accumulator\n");
    std::abort();
  }
  const Status decoded = subject.codec.codec->decode(frame.payload, call, {acc.data(), acc.size()});
  if (decoded.ok() != added.ok()) {
    std::fprintf(stderr, "decode and decode_add disagree: %s%s\n", decoded.message().c_str(),
                 added.message().c_str());
    std::abort();
  }
  if (subject.codec.codec->sparse() != nullptr) {
    check_counted(subject, frame.payload, call, acc, added);
  }
  return decoded.ok();
}

void parse_mutated_spec(Stream* random) {
  std::string text = "residual(beta=0.5,gamma=1.0)|topk(ratio=0.01)";
  const std::string alphabet = "abkortz0159.,=()|-+e_ \xC3\n";
  for (std::uint64_t i = 0; i < 1 + random->below(5) && !text.empty(); ++i) {
    const auto at = static_cast<std::size_t>(random->below(text.size()));
    const char letter = alphabet[static_cast<std::size_t>(random->below(alphabet.size()))];
    if (random->below(3) == 0) {
      text.erase(at, 1 + random->below(4));
    } else if (random->below(2) == 0) {
      text.insert(at, 1, letter);
    } else {
      text[at] = letter;
    }
  }
  Spec spec;
  if (!parse_spec(text, &spec).ok()) return;
  Spec again;
  if (!parse_spec(spec.text(), &again).ok() || again.text() != spec.text()) {
    std::fprintf(stderr, "not a canonical form: %s\n", spec.text().c_str());
    std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long count = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 0;
  if (count <= 0) {
    std::fprintf(stderr, "usage: mutate COUNT\n");
    return 2;
  }
  gradcomp::Scratch scratch;
  const std::vector<Subject> subjects = make_subjects(&scratch);
  gradcomp::Stream random(42);
  long survivors = 0;
  for (long i = 0; i < count; ++i) {
    const Subject& subject = subjects[static_cast<std::size_t>(random.below(subjects.size()))];
    std::vector<std::uint8_t> bytes = subject.frame;
    mutate(&bytes, &random);
    survivors += decode(subject, bytes, &scratch) ? 1 : 0;
    parse_mutated_spec(&random);
  }
  std::printf("%ld mutated frames and specs: %ld frames still decoded\n", count, survivors);
  return survivors > 0 ? 0 : 1;  // 0 would mean that payload checks were never reached
}
