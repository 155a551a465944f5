// Members of Kernels except the name. Every level gives its functions the same names.
#pragma once

// clang-format off
#define GRADCOMP_EACH_KERNEL(X) \
  X(f32_to_f16) X(f16_to_f32) X(f16_add) X(f32_to_bf16) X(bf16_to_f32) X(bf16_add) X(split_planes) \
  X(join_planes) X(compress_bytes) X(expand_bytes) X(f32_add) \
  X(compensate) X(correct_momentum) X(zero) X(copy_uncached) X(zero_nonfinite) X(collect) X(max_magnitude) \
  X(sum_magnitudes) X(sum_squares) \
  X(random_words) X(rounding_words) X(pack_negative) X(select_bits) X(select_bits_add) \
  X(sum_by_sign) X(moments) X(quantize) X(quantize_randomly) X(scale_levels) \
  X(scale_levels_add) X(fp8_encode) X(fp8_encode_randomly) X(fp8_decode) X(fp8_add) \
  X(ternarize) X(natural_encode) X(natural_decode) X(natural_add) \
  X(dynamic8_encode) X(dynamic8_decode) X(dynamic8_add) X(f32_to_zigzag) \
  X(f32_to_natural_zigzag) X(zigzag_to_f32) X(zigzag_add) X(flip_signs) X(hadamard) \
  X(level_error) X(quantize_uniform) X(quantize_centroids) X(look_up) X(draw_words) X(choose_places) \
  X(fixed_encode) X(fixed_decode) X(fixed_count) X(crc32c) X(coding) X(polar) X(linalg)
// clang-format on

// Table of the level whose functions are in scope.
#define GRADCOMP_SET_KERNEL(member) kernels.member = member;
#define GRADCOMP_KERNEL_TABLE(level)          \
  [] {                                        \
    Kernels kernels{};                        \
    kernels.name = level;                     \
    GRADCOMP_EACH_KERNEL(GRADCOMP_SET_KERNEL) \
    return kernels;                           \
  }()
