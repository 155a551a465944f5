#include "codecs/polar/block_cut.hpp"

namespace gradcomp {

unsigned polar_block_log2(const std::string& parameter, std::size_t numel) {
  if (parameter != "auto") return floor_log2(std::stoul(parameter));
  unsigned log2 = kMinPolarLog2;
  for (unsigned longer = log2 + 2; longer <= kMaxPolarLog2; longer += 2) {
    if (numel >> longer >= kLanes) log2 = longer;
  }
  return log2;
}

BlockCut::BlockCut(std::size_t n, unsigned log2)
    : n_(n),
      log2_(log2),
      rows_((n + kLanes - 1) / kLanes),
      tile_rows_(n / kRotationBlock * kTileRows),
      full_(tile_rows_ >> log2),
      mains_(full_) {
  for (std::size_t rest = tile_rows_ - (full_ << log2); rest != 0; rest &= rest - 1) ++mains_;
  blocks_ = mains_ + (rows_ > tile_rows_ ? 1 : 0);
}

Block BlockCut::block(std::size_t index) const {
  if (index < full_) return {index << log2_, (index + 1) << log2_, log2_};
  std::size_t begin = full_ << log2_;
  for (std::size_t i = full_; begin < tile_rows_; ++i) {
    const unsigned log2 = floor_log2(tile_rows_ - begin);
    const std::size_t end = begin + (std::size_t{1} << log2);
    if (i == index) return {begin, end, log2};
    begin = end;
  }
  const std::size_t rest = rows_ - begin;
  const unsigned log2 = floor_log2(rest);
  return {begin, rows_, rest == std::size_t{1} << log2 ? log2 : log2 + 1};
}

Segment BlockCut::segment(std::size_t index) const {
  const bool last = index + 1 == segments();
  return {block(index).begin, last ? rows_ : block(index).end, index, last ? blocks_ - 1 : index};
}

}  // namespace gradcomp
