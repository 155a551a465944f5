#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/chunks.hpp"
#include "base/logarithm.hpp"
#include "base/thread_pool.hpp"
#include "stages/registry.hpp"
#include "stages/spec.hpp"
#include "support.hpp"

namespace gradcomp::test {

TEST_CASE("Philox4x32-10 gives the published known answers") {
  // Random123, kat_vectors.
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) ==
        PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) ==
        PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u,
                   0x299f31d0u) == PhiloxBlock{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("a bounded draw stays below its bound and reaches all of it") {
  Stream stream(3);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) ++seen[stream.below(7)];
  for (int count : seen) CHECK(count > 800);
}

TEST_CASE("portable logarithms and powers agree with the library up to rounding") {
  for (int exponent = -1000; exponent <= 1000; exponent += 125) {
    CHECK(portable_log2(std::ldexp(1, exponent)) == exponent);
    CHECK(portable_exp2(exponent) == std::ldexp(1, exponent));
  }
  for (double x = 1e-30; x < 1e30; x *= 1.37) {
    CHECK(std::fabs(portable_log2(x) - std::log2(x)) < 1e-13);
    CHECK(std::fabs(portable_exp2(std::log2(x)) / x - 1) < 1e-13);
  }
}

TEST_CASE("specs have one canonical form") {
  Spec spec;
  REQUIRE(parse_spec(" residual( gamma = 2 , beta=0.50 ) | topk( ratio=1e-2 )", &spec).ok());
  CHECK(spec.text() == "residual(beta=0.5,gamma=2.0)|topk(ratio=0.01,values=fp32)");
  REQUIRE(spec.find(StageKind::kMemory) != nullptr);
  Spec again;
  REQUIRE(parse_spec(spec.text(), &again).ok());
  CHECK(again.text() == spec.text());
}

TEST_CASE("a wrong spec is refused with a caret under the mistake") {
  Spec spec;
  const Status status = parse_spec("topk(ration=0.1)", &spec);
  CHECK(status.code() == Code::kSpec);
  CHECK(status.message().find("did you mean 'ratio'?") != std::string::npos);
  CHECK(status.message().find("\n  topk(ration=0.1)\n       ^") != std::string::npos);
}

TEST_CASE("every registry row is complete and its example parses") {
  for (const StageInfo& info : registry()) {
    CAPTURE(info.name);
    CHECK((info.kind == StageKind::kCodec) == (info.make != nullptr));
    CHECK(find_stage(std::string_view(info.name)) == &info);
    CompiledCodec codec;
    Spec spec;
    CHECK(parse_spec(info.example, &spec).ok());
    if (info.kind == StageKind::kCodec) {
      CHECK(find_stage(info.id) == &info);
      CHECK(info.id > 0);
      CHECK(info.id < kFirstPluginId);
      CHECK(compile_codec(info.example, &codec).ok());
    } else {
      CHECK(info.id == 0);
    }
  }
}

TEST_CASE("the pool runs every task once, also from several threads at a time") {
  const ThreadScope thread_scope;
  set_thread_count(8);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([] {
      for (int repeat = 0; repeat < 200; ++repeat) {
        const std::size_t n = 5 * kChunk + 17;
        std::vector<std::atomic<int>> per_range(range_count(n));
        std::atomic<std::size_t> covered{0};
        for_ranges(n, per_range.size(), [&](std::size_t range, std::size_t begin, std::size_t end) {
          ++per_range[range];
          covered += end - begin;
        });
        CHECK(covered == n);
        for (std::atomic<int>& count : per_range) CHECK(count == 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_CASE("short jobs that follow each other at once get their own tasks, and no others") {
  const ThreadScope thread_scope;
  for (std::size_t job = 0; job < 20000; ++job) {
    set_thread_count(2 + job % 7);
    std::vector<std::atomic<std::size_t>> runs(1 + job % 5);
    for_tasks(runs.size(), [&](std::size_t task) { runs[task] += job + 1; });
    for (const std::atomic<std::size_t>& found : runs) REQUIRE(found == job + 1);
  }
}

}  // namespace gradcomp::test
