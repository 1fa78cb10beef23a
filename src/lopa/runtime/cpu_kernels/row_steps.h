// Steps on rows between the products of expert layers.
//
// Every operation is exact or rounded once, and sums are fused explicitly, so results do not depend on the instruction set.
#pragma once
#include <cstring>

#include "products.h"

namespace lopa {
namespace {

constexpr float kMinMagnitude = 1e-30f;      // lower bound for the largest magnitude of a row, for rows of zeros
constexpr float kRoundToInteger = 12582912;  // 1.5 * 2^23: adding it rounds a number half to even and leaves it in the low bits
constexpr uint32_t kRoundToIntegerBits = 0x4b400000;

inline uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
}

inline float nan_if_infinite(float number) { return number - number + number; }

void round_row(const float* row, int64_t count, int8_t* numbers, int64_t step, float* scale, int32_t* sum) {
    int32_t largest_bits = 0;  // as integers, so that NaN is the largest
    for (int64_t i = 0; i < count; ++i) {
        const int32_t bits = static_cast<int32_t>(bits_of(row[i]) & 0x7fffffff);
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    const float largest = float_of(static_cast<uint32_t>(largest_bits));
    const float unit = (largest < kMinMagnitude ? kMinMagnitude : nan_if_infinite(largest)) * (1.0f / 127.0f);
    int32_t total = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
        int8_t* block = numbers + first / kBlock * step;
        const int64_t width = count - first < kBlock ? count - first : kBlock;
        float padded[kBlock] = {};
        const float* from = row + first;
        if (width < kBlock) from = static_cast<const float*>(std::memcpy(padded, from, width * sizeof(float)));
        for (int64_t i = 0; i < kBlock; ++i) {
            block[i] = static_cast<int8_t>(bits_of(from[i] / unit + kRoundToInteger) - kRoundToIntegerBits);
            total += block[i];
        }
    }
    *scale = unit;
    *sum = total;
}

void order_row(const uint8_t* row, int64_t count, int8_t* numbers, int64_t step, int32_t* sum) {
    int32_t total = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
        int8_t* block = numbers + first / kBlock * step;
        const int64_t width = count - first < kBlock ? count - first : kBlock;
        uint8_t padded[kBlock];
        const uint8_t* from = row + first;
        if (width < kBlock) from = static_cast<const uint8_t*>(std::memcpy(std::memset(padded, 0x80, kBlock), from, width));
        for (int64_t i = 0; i < kBlock; ++i) {
            block[i] = static_cast<int8_t>(from[i] ^ 0x80);
            total += block[i];
        }
    }
    *sum = total;
}

// exp(x) for x from -87 to 88, within 2 units in the last place (the polynomial is that of the Cephes library).
inline float exponential(float x) {
    const float shifted = __builtin_fmaf(x, 1.44269504f, kRoundToInteger), n = shifted - kRoundToInteger;
    const float rest = __builtin_fmaf(n, 2.12194440e-4f, __builtin_fmaf(n, -0.693359375f, x));
    float sum = 1.9875691500e-4f;
    sum = __builtin_fmaf(sum, rest, 1.3981999507e-3f);
    sum = __builtin_fmaf(sum, rest, 8.3334519073e-3f);
    sum = __builtin_fmaf(sum, rest, 4.1665795894e-2f);
    sum = __builtin_fmaf(sum, rest, 1.6666665459e-1f);
    sum = __builtin_fmaf(sum, rest, 5.0000001201e-1f);
    sum = __builtin_fmaf(sum, rest * rest, rest) + 1.0f;
    return sum * float_of((bits_of(shifted) - kRoundToIntegerBits + 127) << 23);
}

// silu(x) is x * sigmoid(x). gelu(x), with its approximation by tanh, is x * sigmoid(x * (2 + 0.08943 * x^2) * sqrt(2 / pi)).
template <bool gelu>
void activate(float* gate, const float* up, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const float x = gate[i], z = gelu ? x * __builtin_fmaf(x * x, 0.0713548163f, 1.59576912f) : x;
        const float low = z < -88.0f ? -88.0f : z, clamped = low > 87.0f ? 87.0f : low;
        const float kept = z < -88.0f ? x * 0.0f : x;  // NaN for -infinity, as in the float graph
        gate[i] = kept / (1.0f + exponential(-clamped)) * up[i];
    }
}

void add_weighted(float* sum, const float* row, float weight, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] = __builtin_fmaf(weight, row[i], sum[i]);
}

}  // namespace
}  // namespace lopa
