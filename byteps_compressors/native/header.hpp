// Header of coded messages between workers and servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

namespace gradcomp_byteps {

// Header of a coded message: the data that decoding needs besides the payload.
struct Header {
  // Registered number of elements minus the actual one: BytePS rounds sizes up, and tells
  // compressors only the rounded sizes.
  std::uint8_t rounding = 0;
  std::uint32_t step = 0;
  std::uint16_t epoch = 0;
  std::uint16_t partition = 0;
  std::uint16_t sender = kCommonSeed;  // rank that seeds the random numbers, or a constant below
  // Unit of the gradients, for the server's residual; if the spec has lr=scale or a loss scale was
  // set.
  struct Unit {
    double value = 1;         // the learning rate over the loss scale; 0: the residual waits
    std::uint32_t steps = 0;  // number of steps before this message
    // While steps are kept: bit i tells whether all workers skipped or discarded step
    // `steps - 1 - i`.
    std::uint32_t skips = 0;
    bool scaled = false;  // whether steps are kept, as with a loss scale

    // Whether `step` was skipped.
    bool skipped(std::uint32_t step) const {
      const std::uint32_t age = steps - 1 - step;
      return scaled && step < steps && age < 32 && (skips >> age & 1) != 0;
    }
  };
  bool has_unit = false;
  Unit unit;

  static constexpr std::size_t kSize = 11;
  static constexpr std::size_t kUnitSize = 16;
  // Added to `rounding`, which is below them.
  static constexpr std::uint8_t kHasUnit = 0x80;
  static constexpr std::uint8_t kScaled = 0x40;
  static constexpr std::uint16_t kCommonSeed = 0xFFFF;  // all workers have the same seed
  static constexpr std::uint16_t kServer = 0xFFFE;
  // Not a gradient, but piece `step` of the server's residual.
  static constexpr std::uint16_t kRead = 0xFFFD;
  static constexpr std::uint16_t kWrite = 0xFFFC;
  // Not a sum: the workers' steps or epochs differ. An Apart follows.
  static constexpr std::uint16_t kApart = 0xFFFB;
  // A gradient or sum with a NaN or Inf, under a loss scale. No payload follows.
  static constexpr std::uint16_t kOverflow = 0xFFFA;
  bool is_piece() const { return sender == kRead || sender == kWrite; }

  std::size_t size() const { return kSize + (has_unit ? kUnitSize : 0); }
  // Whether two workers' messages belong to one round.
  bool same_point(const Header& other) const {
    const auto point = [](const Header& one) {
      return std::make_tuple(one.step, one.epoch, one.unit.value, one.unit.scaled, one.unit.skips);
    };
    return point(*this) == point(other);
  }

  void write(std::uint8_t* to) const {
    const int flags = has_unit ? kHasUnit | (unit.scaled ? kScaled : 0) : 0;
    to[0] = static_cast<std::uint8_t>(rounding | flags);
    std::memcpy(to + 1, &step, 4);
    std::memcpy(to + 5, &epoch, 2);
    std::memcpy(to + 7, &partition, 2);
    std::memcpy(to + 9, &sender, 2);
    if (has_unit) {
      std::memcpy(to + kSize, &unit.value, 8);
      std::memcpy(to + kSize + 8, &unit.steps, 4);
      std::memcpy(to + kSize + 12, &unit.skips, 4);
    }
  }
  // Reads kSize bytes.
  void read(const std::uint8_t* from) {
    rounding = static_cast<std::uint8_t>(from[0] & ~(kHasUnit | kScaled));
    has_unit = (from[0] & kHasUnit) != 0;
    unit.scaled = (from[0] & kScaled) != 0;
    std::memcpy(&step, from + 1, 4);
    std::memcpy(&epoch, from + 5, 2);
    std::memcpy(&partition, from + 7, 2);
    std::memcpy(&sender, from + 9, 2);
  }
  // Reads the kUnitSize bytes after them.
  void read_unit(const std::uint8_t* from) {
    std::memcpy(&unit.value, from, 8);
    std::memcpy(&unit.steps, from + 8, 4);
    std::memcpy(&unit.skips, from + 12, 4);
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
