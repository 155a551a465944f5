// Times compressors of BytePS' registry in one process; see byteps_encode.py.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "byteps/common/compressor/compressor_registry.h"
#include "byteps/common/compressor/utils.h"

// The seconds of each of so many calls of Compress for n floats; returns the bytes of the last one.
extern "C" __attribute__((visibility("default"))) std::size_t byteps_encode(const char* arguments,
                                                                            float* x, std::size_t n,
                                                                            double* seconds,
                                                                            std::size_t calls) {
  using namespace byteps::common;
  const auto kwargs = compressor::Deserialize(arguments);
  const std::size_t size = n * sizeof(float);
  const auto one = compressor::CompressorRegistry::Create(kwargs, size, BYTEPS_FLOAT32);
  // BytePS rounds the sizes of buffers up, and some of its compressors write beyond the end.
  std::vector<float> own(n + 1024);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < calls; ++i) {
    std::copy(x, x + n, own.begin());  // some of its compressors change their input
    const auto begin = std::chrono::steady_clock::now();
    bytes = one->Compress({reinterpret_cast<char*>(own.data()), size, BYTEPS_FLOAT32}).size;
    seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return bytes;
}
