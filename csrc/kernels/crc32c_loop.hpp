// CRC-32C by a processor's instruction. No include guard: a file defines crc_word(crc, word),
// crc_byte(crc, byte) and CrcWord, the type of a register of the first, and includes this one in
// its namespace, with GRADCOMP_LEVEL as the function's attribute.

// The instruction takes three cycles but starts one per cycle: three lanes keep it busy.
GRADCOMP_LEVEL std::uint32_t crc32c_lanes(std::uint32_t crc, const std::uint8_t* data,
                                          std::size_t size) {
  if (size >= 3 * kCrcLaneBytes) {
    const Crc32cTables& tables = crc32c_tables();
    do {
      CrcWord lane0 = crc;
      CrcWord lane1 = 0;
      CrcWord lane2 = 0;
      for (std::size_t i = 0; i < kCrcLaneBytes; i += 8) {
        lane0 = crc_word(lane0, load<std::uint64_t>(data + i));
        lane1 = crc_word(lane1, load<std::uint64_t>(data + kCrcLaneBytes + i));
        lane2 = crc_word(lane2, load<std::uint64_t>(data + 2 * kCrcLaneBytes + i));
      }
      crc =
          tables.shift_lane(static_cast<std::uint32_t>(lane0)) ^ static_cast<std::uint32_t>(lane1);
      crc = tables.shift_lane(crc) ^ static_cast<std::uint32_t>(lane2);
      data += 3 * kCrcLaneBytes;
      size -= 3 * kCrcLaneBytes;
    } while (size >= 3 * kCrcLaneBytes);
  }
  CrcWord wide = crc;
  for (; size >= 8; size -= 8, data += 8) wide = crc_word(wide, load<std::uint64_t>(data));
  crc = static_cast<std::uint32_t>(wide);
  for (; size > 0; --size, ++data) crc = crc_byte(crc, *data);
  return crc;
}
