// Kernels for processors with AVX-512 VNNI.
#include <immintrin.h>

#include <type_traits>

#include "strips.h"

namespace lopa {
namespace {

struct Avx512Vnni {
    using I = __m512i;
    using F = __m512;
    static constexpr int kLanes = 16, kUnpackedRows = 12, kUnpackedWide = 2, kFloatRows = 12;
    static constexpr int float_wide(int rows) { return rows < 3 || rows > 6 ? 2 : 4; }
    // Rows of a pass over packed weights, rows up to which every pass unpacks them, and vectors of a pass. Measured.
    template <class Format>
    static constexpr int packed_rows() { return std::is_same_v<Format, Int4> ? 6 : 8; }
    template <class Format>
    static constexpr int max_packed_rows() { return std::is_same_v<Format, Int4> ? 12 : kMaxRows; }
    template <class Format>
    static constexpr int packed_wide(int rows) { return rows <= 6 ? 4 : 2; }

    static I repeat(int32_t number) { return _mm512_set1_epi32(number); }
    static I load(const int32_t* from) { return _mm512_load_si512(from); }
    static void store(int32_t* to, I numbers) { _mm512_store_si512(to, numbers); }
    static F repeat(float number) { return _mm512_set1_ps(number); }
    static F load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, F numbers) { _mm512_storeu_ps(to, numbers); }
    static F load_half(const uint16_t* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F multiply_add(F a, F b, F sum) { return _mm512_fmadd_ps(a, b, sum); }
    static I dot(I sum, I weights, I rows) { return _mm512_dpbusd_epi32(sum, weights, rows); }
    static I dot_small(I sum, I weights, I rows) { return _mm512_dpbusd_epi32(sum, weights, rows); }

    static F add_scaled(F sum, I dots, float row_scale, const float* scales) {
        return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), _mm512_set1_ps(row_scale)), _mm512_load_ps(scales), sum);
    }

    // Unpack 4 inputs of `wide` vectors, 2 or 4, of a tile: vectors wide * part and after. int8: vector 4 h + q has columns
    // 64 h + 16 L + 4 q + i in lane 4 L + i. int4: vector 4 h + 2 q + odd has columns 32 L + 16 h + 8 q + 2 i + odd.
    template <class Format, int wide, int part>
    LOPA_INLINE static void unpack(const uint8_t* weights, int64_t stride, I* out) {
        constexpr int first = wide * part, half = first / 4;
        constexpr bool int4 = std::is_same_v<Format, Int4>;
        I rows[4];
        for (int i = 0; i < 4; ++i) rows[i] = _mm512_loadu_si512(weights + i * stride + (int4 ? 0 : 64 * half));
        for (int pair = 0; pair < wide / 2; ++pair) {
            const bool q = first / 2 % 2 + pair != 0, high = int4 ? half : q;
            const I a = high ? _mm512_unpackhi_epi8(rows[0], rows[1]) : _mm512_unpacklo_epi8(rows[0], rows[1]);
            const I b = high ? _mm512_unpackhi_epi8(rows[2], rows[3]) : _mm512_unpacklo_epi8(rows[2], rows[3]);
            I* const to = out + 2 * pair;
            if constexpr (int4) {
                const I both = q ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
                to[0] = unsigned_low(both), to[1] = unsigned_low(_mm512_srli_epi16(both, 4));
            } else {
                const I offset = _mm512_set1_epi8(char(0x80));
                to[0] = _mm512_xor_si512(_mm512_unpacklo_epi16(a, b), offset), to[1] = _mm512_xor_si512(_mm512_unpackhi_epi16(a, b), offset);
            }
        }
    }

    // The low half of every byte, plus 8: (a ^ 8) & 15.
    static I unsigned_low(I a) { return _mm512_ternarylogic_epi32(a, _mm512_set1_epi8(8), _mm512_set1_epi8(15), 0x28); }

    // Scales of a tile in the order of unpacked int4 vectors.
    static void order_scales(const float* stored, float* ordered) {
        for (int half = 0; half < 2; ++half) {
            const __m512 a = _mm512_loadu_ps(stored + 16 * half), b = _mm512_loadu_ps(stored + 32 + 16 * half);
            const __m512 c = _mm512_loadu_ps(stored + 64 + 16 * half), d = _mm512_loadu_ps(stored + 96 + 16 * half);
            for (int q = 0; q < 2; ++q)
                for (int odd = 0; odd < 2; ++odd) {
                    const int at = 8 * q + odd;
                    const I columns = _mm512_setr_epi32(at, at + 2, at + 4, at + 6, at + 16, at + 18, at + 20, at + 22, at, at + 2,
                                                        at + 4, at + 6, at + 16, at + 18, at + 20, at + 22);
                    const __m512 low = _mm512_permutex2var_ps(a, columns, b), high = _mm512_permutex2var_ps(c, columns, d);
                    _mm512_store_ps(ordered + (4 * half + 2 * q + odd) * kLanes, _mm512_mask_blend_ps(0xff00, low, high));
                }
        }
    }

    // Write lane L of a, b, c and d to out + L * step.
    static void write_lanes(__m512 a, __m512 b, __m512 c, __m512 d, float* out, int64_t step) {
        const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), cd = _mm512_shuffle_f32x4(c, d, 0x44);
        const __m512 ab_high = _mm512_shuffle_f32x4(a, b, 0xee), cd_high = _mm512_shuffle_f32x4(c, d, 0xee);
        _mm512_store_ps(out, _mm512_shuffle_f32x4(ab, cd, 0x88));
        _mm512_store_ps(out + step, _mm512_shuffle_f32x4(ab, cd, 0xdd));
        _mm512_store_ps(out + 2 * step, _mm512_shuffle_f32x4(ab_high, cd_high, 0x88));
        _mm512_store_ps(out + 3 * step, _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd));
    }

    static void order_int4(const float* sums, float* ordered) {
        for (int half = 0; half < 2; ++half) {
            __m512 parts[4];
            for (int q = 0; q < 2; ++q) {
                const __m512 even = _mm512_load_ps(sums + (4 * half + 2 * q) * kLanes), odd = _mm512_load_ps(sums + (4 * half + 2 * q + 1) * kLanes);
                parts[2 * q] = _mm512_unpacklo_ps(even, odd), parts[2 * q + 1] = _mm512_unpackhi_ps(even, odd);
            }
            write_lanes(parts[0], parts[1], parts[2], parts[3], ordered + 16 * half, 32);
        }
    }

    static void order_int8(const int32_t* sums, const float* scales, float* ordered) {
        for (int half = 0; half < 2; ++half) {
            __m512 parts[4];
            for (int q = 0; q < 4; ++q) parts[q] = _mm512_cvtepi32_ps(load(sums + (4 * half + q) * kLanes));
            write_lanes(parts[0], parts[1], parts[2], parts[3], ordered + 64 * half, 16);
        }
        for (int64_t column = 0; column < kTile; column += kLanes)
            _mm512_store_ps(ordered + column, _mm512_mul_ps(_mm512_load_ps(ordered + column), _mm512_load_ps(scales + column)));
    }

    static void round_block(const float* row, int8_t* numbers, float* scale, int32_t* sum) {
        const __m512 first = _mm512_loadu_ps(row), second = _mm512_loadu_ps(row + 16);
        const I magnitude = _mm512_set1_epi32(0x7fffffff);  // as integers, so that NaN is the largest
        const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_epi32(_mm512_castps_si512(first), magnitude),
                                                                      _mm512_and_epi32(_mm512_castps_si512(second), magnitude)));
        const RowScale found = row_scale(bits);
        const __m512 inverse = _mm512_set1_ps(found.inverse), most = _mm512_set1_ps(127.0f);  // also of NaN
        const I a = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(first, inverse), most));
        const I b = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(second, inverse), most));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers), _mm512_cvtsepi32_epi8(a));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + 16), _mm512_cvtsepi32_epi8(b));
        *scale = found.scale;
        *sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
    }
};

}  // namespace

const Kernels kAvx512Vnni = kernels_of<Avx512Vnni>("avx512-vnni", 128);

}  // namespace lopa
