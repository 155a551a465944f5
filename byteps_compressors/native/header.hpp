// Header of coded messages between workers and servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradcomp_byteps {

// Header of a coded message: the data that decoding needs besides the payload.
struct Header {
  // Registered number of elements minus the actual one: BytePS rounds sizes up, and tells
  // compressors only the rounded sizes.
  std::uint8_t rounding = 0;
  std::uint32_t step = 0;
  std::uint16_t epoch = 0;
  std::uint16_t partition = 0;
  std::uint16_t sender = kShared;  // rank that seeds the random numbers, or a constant below

  static constexpr std::size_t kSize = 11;
  static constexpr std::uint16_t kShared = 0xFFFF;  // seed shared by all workers
  static constexpr std::uint16_t kServer = 0xFFFE;
  // Not a gradient, but piece `step` of the server's residual.
  static constexpr std::uint16_t kRead = 0xFFFD;
  static constexpr std::uint16_t kWrite = 0xFFFC;
  // Not a sum: the workers' steps or epochs differ. An Apart follows.
  static constexpr std::uint16_t kApart = 0xFFFB;
  bool is_piece() const { return sender == kRead || sender == kWrite; }

  void write(std::uint8_t* to) const {
    to[0] = rounding;
    std::memcpy(to + 1, &step, 4);
    std::memcpy(to + 5, &epoch, 2);
    std::memcpy(to + 7, &partition, 2);
    std::memcpy(to + 9, &sender, 2);
  }
  void read(const std::uint8_t* from) {
    rounding = from[0];
    std::memcpy(&step, from + 1, 4);
    std::memcpy(&epoch, from + 5, 2);
    std::memcpy(&partition, from + 7, 2);
    std::memcpy(&sender, from + 9, 2);
  }
};

// Answer of a server whose workers are apart: step, epoch and sender of two messages of one round.
struct Apart {
  std::uint32_t step[2] = {};
  std::uint16_t epoch[2] = {};
  std::uint16_t sender[2] = {};

  static constexpr std::size_t kSize = 16;

  void set(std::size_t i, const Header& header) {
    step[i] = header.step;
    epoch[i] = header.epoch;
    sender[i] = header.sender;
  }
  void write(std::uint8_t* to) const {
    std::memcpy(to, step, 8);
    std::memcpy(to + 8, epoch, 4);
    std::memcpy(to + 12, sender, 4);
  }
  void read(const std::uint8_t* from) {
    std::memcpy(step, from, 8);
    std::memcpy(epoch, from + 8, 4);
    std::memcpy(sender, from + 12, 4);
  }
};

}  // namespace gradcomp_byteps
