// Vectors of 256 bits, for AVX2 with and without VNNI.
#pragma once
#include <immintrin.h>

#include <type_traits>

#include "strips.h"

namespace lopa {
namespace {

struct Ymm {
    using I = __m256i;
    using F = __m256;
    static constexpr int kLanes = 8, kUnpackedRows = 4, kUnpackedWide = 2, kFloatRows = 6;
    static constexpr int float_wide(int rows) { return rows == 3 ? 4 : 2; }
    // As in avx512_vnni.cpp.
    template <class Format>
    static constexpr int packed_rows() { return 4; }
    template <class Format>
    static constexpr int max_packed_rows() { return 8; }
    template <class Format>
    static constexpr int packed_wide(int rows) { return rows > (std::is_same_v<Format, Int4> ? 1 : 2) ? 2 : 4; }

    static I repeat(int32_t number) { return _mm256_set1_epi32(number); }
    static I load(const int32_t* from) { return _mm256_load_si256(reinterpret_cast<const I*>(from)); }
    static void store(int32_t* to, I numbers) { _mm256_store_si256(reinterpret_cast<I*>(to), numbers); }

    static F repeat(float number) { return _mm256_set1_ps(number); }
    static F load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(float* to, F numbers) { _mm256_storeu_ps(to, numbers); }
    static F load_half(const uint16_t* from) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F multiply_add(F a, F b, F sum) { return _mm256_fmadd_ps(a, b, sum); }

    static F add_scaled(F sum, I dots, float row_scale, const float* scales) {
        return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(row_scale)), _mm256_load_ps(scales), sum);
    }

    // Unpack 4 inputs of `wide` vectors, 2 or 4, of a tile: vectors wide * part and after. int8: vector 4 h + q has columns
    // 32 h + 16 L + 4 q + i in lane 4 L + i, with `sign`. int4: vector 8 p + 4 h + 2 q + odd has columns
    // 64 p + 32 L + 16 h + 8 q + 2 i + odd.
    template <class Format, int wide, int part>
    LOPA_INLINE static void unpack_with(I sign, const uint8_t* weights, int64_t stride, I* out) {
        constexpr int first = wide * part, half = first / 4;
        constexpr bool int4 = std::is_same_v<Format, Int4>;
        I rows[4];
        for (int i = 0; i < 4; ++i) rows[i] = _mm256_loadu_si256(reinterpret_cast<const I*>(weights + i * stride + 32 * (int4 ? half / 2 : half)));
        for (int pair = 0; pair < wide / 2; ++pair, out += 2) {
            const bool q = first / 2 % 2 + pair != 0, high = int4 ? half % 2 : q;
            const I a = high ? _mm256_unpackhi_epi8(rows[0], rows[1]) : _mm256_unpacklo_epi8(rows[0], rows[1]);
            const I b = high ? _mm256_unpackhi_epi8(rows[2], rows[3]) : _mm256_unpacklo_epi8(rows[2], rows[3]);
            if constexpr (int4) {
                const I both = _mm256_xor_si256(q ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b), _mm256_set1_epi8(char(0x88)));
                out[0] = _mm256_and_si256(both, _mm256_set1_epi8(15)), out[1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
            } else {
                out[0] = _mm256_xor_si256(_mm256_unpacklo_epi16(a, b), sign), out[1] = _mm256_xor_si256(_mm256_unpackhi_epi16(a, b), sign);
            }
        }
    }

    // Scales of a tile in the order of unpacked int4 vectors.
    static void order_scales(const float* stored, float* ordered) {
        for (int part = 0; part < 2; ++part)
            for (int q = 0; q < 4; ++q) {
                const __m256 a = _mm256_loadu_ps(stored + 64 * part + 8 * q), b = _mm256_loadu_ps(stored + 64 * part + 32 + 8 * q);
                float* even = ordered + (8 * part + 2 * q) * kLanes;
                write_halves(even, _mm256_shuffle_ps(a, b, 0x88));
                write_halves(even + kLanes, _mm256_shuffle_ps(a, b, 0xdd));
            }
    }

    // Write the first and third, then the second and fourth pair of numbers.
    static void write_halves(float* out, __m256 pairs) {
        _mm256_store_pd(reinterpret_cast<double*>(out), _mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8));
    }

    static void order_int4(const float* sums, float* ordered) {
        for (int part = 0; part < 2; ++part)
            for (int q = 0; q < 4; ++q) {
                const float* from = sums + (8 * part + 2 * q) * kLanes;
                const __m256 even = _mm256_load_ps(from), odd = _mm256_load_ps(from + kLanes);
                const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
                _mm256_store_ps(ordered + 64 * part + 8 * q, _mm256_permute2f128_ps(low, high, 0x20));
                _mm256_store_ps(ordered + 64 * part + 32 + 8 * q, _mm256_permute2f128_ps(low, high, 0x31));
            }
    }

    static void order_int8(const int32_t* sums, const float* scales, float* ordered) {
        for (int64_t at = 0; at < kTile; at += 2 * kLanes) {  // two vectors: columns 4 q to 4 q + 7 of both lanes
            const __m256 a = _mm256_cvtepi32_ps(load(sums + at)), b = _mm256_cvtepi32_ps(load(sums + at + kLanes));
            const int64_t column = at / 32 * 32 + at % 32 / 2;
            for (int lane = 0; lane < 2; ++lane) {
                const __m256 both = lane == 0 ? _mm256_permute2f128_ps(a, b, 0x20) : _mm256_permute2f128_ps(a, b, 0x31);
                _mm256_store_ps(ordered + column + 16 * lane, _mm256_mul_ps(both, _mm256_load_ps(scales + column + 16 * lane)));
            }
        }
    }

    static void round_block(const float* row, int8_t* numbers, float* scale, int32_t* sum) {
        const I magnitude = _mm256_set1_epi32(0x7fffffff);  // as integers, so that NaN is the largest
        __m256 parts[4];
        I largest = _mm256_setzero_si256();
        for (int i = 0; i < 4; ++i) {
            parts[i] = _mm256_loadu_ps(row + 8 * i);
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(parts[i]), magnitude));
        }
        alignas(32) int32_t lanes[8];
        store(lanes, largest);
        const RowScale found = row_scale(*std::max_element(lanes, lanes + 8));
        I total = _mm256_setzero_si256(), rounded[4];
        for (int i = 0; i < 4; ++i) {
            const __m256 exact = _mm256_mul_ps(parts[i], _mm256_set1_ps(found.inverse));
            rounded[i] = _mm256_cvtps_epi32(_mm256_min_ps(exact, _mm256_set1_ps(127.0f)));  // also of NaN
            total = _mm256_add_epi32(total, rounded[i]);
        }
        const I words = _mm256_packs_epi32(rounded[0], rounded[1]), more = _mm256_packs_epi32(rounded[2], rounded[3]);
        const I bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, more), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<I*>(numbers), bytes);
        store(lanes, total);
        *scale = found.scale;
        *sum = 0;
        for (int32_t lane : lanes) *sum += lane;
    }
};

}  // namespace
}  // namespace lopa
