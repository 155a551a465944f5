// Streams of bits, least significant first, padded with zeros to whole bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/span.hpp"

namespace gradcomp {

// Bytes that n bits fill.
inline std::size_t bit_bytes(std::size_t n) noexcept { return (n + 7) / 8; }

// Writes without bounds checks: the caller makes sure that everything fits.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* out) noexcept : begin_(out), out_(out) {}

  // Writes the lower `bits` bits of value; bits <= 32, and higher bits of value are 0.
  void put(std::uint64_t value, unsigned bits) noexcept {
    pending_ |= value << fill_;
    fill_ += bits;
    if (fill_ >= 32) {
      store(out_, static_cast<std::uint32_t>(pending_));
      out_ += 4;
      pending_ >>= 32;
      fill_ -= 32;
    }
  }

  // Writes `count` ones and a zero.
  void put_unary(std::uint64_t count) noexcept {
    for (; count >= 31; count -= 31) put(0x7FFFFFFFu, 31);
    put((std::uint64_t{1} << count) - 1, static_cast<unsigned>(count) + 1);
  }

  std::size_t finish() noexcept {
    for (; fill_ > 0; fill_ = fill_ > 8 ? fill_ - 8 : 0) {
      *out_++ = static_cast<std::uint8_t>(pending_);
      pending_ >>= 8;
    }
    return static_cast<std::size_t>(out_ - begin_);
  }

 private:
  std::uint8_t* begin_;
  std::uint8_t* out_;
  std::uint64_t pending_ = 0;
  unsigned fill_ = 0;
};

// Beyond the end it reads zeros; finished() is false then.
class BitReader {
 public:
  explicit BitReader(Span<const std::uint8_t> in) noexcept : in_(in.begin()), end_(in.end()) {}

  std::uint32_t get(unsigned bits) noexcept {  // bits <= 32
    if (fill_ < bits) refill();
    const auto value = static_cast<std::uint32_t>(pending_ & ((std::uint64_t{1} << bits) - 1));
    skip(bits);
    return value;
  }

  // Number of ones before the next zero, which is read too. Above `limit`, the result may be any
  // number above it.
  std::uint64_t get_unary(std::uint64_t limit) noexcept {
    std::uint64_t count = 0;
    for (;;) {
      if (fill_ < 32) refill();
      const auto ones = static_cast<unsigned>(__builtin_ctzll(~(pending_ & 0xFFFFFFFFu)));
      if (ones < 32) {
        skip(ones + 1);
        return count + ones;
      }
      skip(32);
      count += 32;
      if (count > limit) return count;
    }
  }

  // True if nothing was read beyond the end, and less than a byte of zeros is left.
  bool finished() const noexcept {
    return read_beyond_ == 0 && in_ == end_ && fill_ < 8 && pending_ == 0;
  }

 private:
  void skip(unsigned bits) noexcept {
    if (bits > fill_) {
      read_beyond_ += bits - fill_;
      pending_ = 0;
      fill_ = 0;
      return;
    }
    pending_ >>= bits;
    fill_ -= bits;
  }

  void refill() noexcept {
    if (end_ - in_ >= 4 && fill_ <= 32) {
      pending_ |= static_cast<std::uint64_t>(load<std::uint32_t>(in_)) << fill_;
      in_ += 4;
      fill_ += 32;
      return;
    }
    for (; in_ != end_ && fill_ <= 56; fill_ += 8) {
      pending_ |= static_cast<std::uint64_t>(*in_++) << fill_;
    }
  }

  const std::uint8_t* in_;
  const std::uint8_t* end_;
  std::uint64_t pending_ = 0;
  std::uint64_t read_beyond_ = 0;
  unsigned fill_ = 0;
};

}  // namespace gradcomp
