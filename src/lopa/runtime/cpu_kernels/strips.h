// Strips of products, written once for all instruction sets. `Isa` supplies vectors and their operations.
//
// Every strip unpacks one block of kBlock inputs of one tile to unsigned bytes in the cache, groups of four inputs side by
// side as 8-bit dot products require, and multiplies all rows by it. A sum of a block is exact in int32, so results do not
// depend on the number of rows or threads.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "products.h"
#include "row_steps.h"

namespace lopa {
namespace {

constexpr int64_t kGroups = kBlock / 4;
constexpr int32_t kInt4Offset = 8;  // int4 numbers are unpacked to 0 .. 15

constexpr float kSumUnit = 65536.0f;  // int4 sums are in multiples of it, so that they overflow only where results do

// Scale of a block of a row / kSumUnit, NaN if a number is not finite, and the inverse, 0 for blocks of (nearly) zeros.
struct RowScale {
    float scale, inverse;
};

inline RowScale row_scale(int32_t largest_bits) {
    float largest;
    std::memcpy(&largest, &largest_bits, 4);
    return {nan_if_infinite(largest) / 127.0f / kSumUnit, largest < 1e-30f ? 0.0f : 127.0f / largest};
}

// Number type of sums between blocks, layout of a tile in memory, and blocks of tiles between prefetching and reading
// weights, which is about the latency of memory.
struct Int4 {
    using Sum = float;
    static constexpr int64_t kTileBytes = kTile / 2, kBlocksAhead = 4;
};
struct Int8 {
    using Sum = int32_t;
    static constexpr int64_t kTileBytes = kTile, kBlocksAhead = 4;
};
struct Float {
    using Sum = float;
    static constexpr int64_t kTileBytes = 4 * kTile, kBlocksAhead = 1;
};
struct Float16 {
    using Sum = float;
    static constexpr int64_t kTileBytes = 2 * kTile, kBlocksAhead = 2;
};
template <class Format>
constexpr bool kIsFloat = std::is_same_v<Format, Float> || std::is_same_v<Format, Float16>;

// Position in a strip and the strip after it, in the order of computation.
template <class Format>
struct Cursor {
    Cursor(const Strip& strip, const Strip& next) : strip(strip), next(next), tile(strip.first) {}

    bool done() const { return strip.product == nullptr; }
    int64_t row_bytes() const { return strip.product->columns * Format::kTileBytes / kTile; }
    const uint8_t* weights() const { return strip.product->weights + block * kBlock * row_bytes() + tile * Format::kTileBytes; }
    int64_t scale() const { return block * strip.product->columns + tile * kTile; }

    void advance() {
        if (++tile < strip.last) return;
        tile = strip.first;
        if (++block == strip.product->blocks()) *this = Cursor(next, {});
    }

    Strip strip, next;
    int64_t block = 0, tile;
};

// Prefetches a block of all tiles of a strip, row by row, in parts: one for each tile.
template <class Format>
struct Prefetcher {
    static constexpr uint32_t kTileLines = Format::kTileBytes / 64;

    explicit Prefetcher(const Cursor<Format>& at) : row_bytes(at.row_bytes()), lines(static_cast<uint32_t>(at.strip.last - at.strip.first) * kTileLines) {
        const uint32_t first = static_cast<uint32_t>(at.tile - at.strip.first) * kBlock * kTileLines;
        line = first % lines;
        row = at.strip.product->weights + (at.block * kBlock + first / lines) * row_bytes + at.strip.first * Format::kTileBytes;
    }

    void fetch(uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) {
            __builtin_prefetch(row + 64 * line, 0, 2);
            if (++line == lines) line = 0, row += row_bytes;
        }
    }

    const uint8_t* row;
    int64_t row_bytes;
    uint32_t lines, line;  // of a row of the strip
};

// Vectors that are unpacked together: those of 4 inputs of a part of a tile.
constexpr int kPartVectors = 4;

// Call `call` with the constants 0 to Count - 1. Loops would keep arrays of vectors in memory.
#define LOPA_INLINE __attribute__((always_inline))
template <class Call, int... Numbers>
LOPA_INLINE inline void for_each_constant(const Call& call, std::integer_sequence<int, Numbers...>) {
    (call(std::integral_constant<int, Numbers>()), ...);
}
template <int Count, class Call>
LOPA_INLINE inline void unrolled(const Call& call) {
    for_each_constant(call, std::make_integer_sequence<int, Count>());
}

template <class Isa>
inline typename Isa::I repeat_four(const int8_t* numbers) {
    int32_t four;
    std::memcpy(&four, numbers, 4);
    return Isa::repeat(four);
}

template <class Isa, class Format>
inline typename Isa::I dot(typename Isa::I sum, typename Isa::I weights, typename Isa::I rows) {
    if constexpr (std::is_same_v<Format, Int4>)
        return Isa::dot_small(sum, weights, rows);
    else
        return Isa::dot(sum, weights, rows);
}

// Sums of a row that a block's products are added to.
template <class Isa, class Format>
inline typename Isa::I first_dots(const Product& product, int64_t block, int64_t row, const typename Format::Sum* sums) {
    if constexpr (std::is_same_v<Format, Int4>)
        return Isa::repeat(product.rounded.corrections[block * product.rows + row]);
    else
        return Isa::load(sums);
}

template <class Isa, class Format>
inline void add_dots(typename Isa::I dots, const Product& product, int64_t block, int64_t row, const float* scales,
                     typename Format::Sum* sums) {
    if constexpr (std::is_same_v<Format, Int4>)
        Isa::add_scaled(sums, dots, product.rounded.scales[block * product.rows + row], scales);
    else
        Isa::store(sums, dots);
}

template <class Isa, class Format, int Rows>
inline void add_rows(const typename Isa::I* const* weights, const Product& product, int64_t block, int64_t row, const float* scales,
                     typename Format::Sum* sums) {
    using I = typename Isa::I;
    constexpr int kWide = Isa::kVectorsPerPass;
    const int8_t* numbers = product.rounded.numbers + (block * product.rows + row) * kBlock;
    I dots[Rows][kWide];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kWide; ++v)
            dots[r][v] = first_dots<Isa, Format>(product, block, row + r, sums + r * kTile + v * Isa::kLanes);
#pragma GCC unroll 8
    for (int group = 0; group < kGroups; ++group)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const I repeated = repeat_four<Isa>(numbers + r * kBlock + 4 * group);
#pragma GCC unroll 2
            for (int v = 0; v < kWide; ++v) dots[r][v] = dot<Isa, Format>(dots[r][v], weights[v][group], repeated);
        }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < kWide; ++v)
            add_dots<Isa, Format>(dots[r][v], product, block, row + r, scales + v * Isa::kLanes, sums + r * kTile + v * Isa::kLanes);
}

// Add the products of a block and a part of a tile for so few rows that the unpacked weights stay in registers.
// `unpack(group, vectors)` supplies them. As a part of a larger function, GCC would keep sums in memory.
template <class Isa, class Format, int Rows, class Unpack>
__attribute__((noinline)) void add_few_rows(const Unpack& unpack, const Product& product, int64_t block, int64_t row, const float* scales, typename Format::Sum* sums) {
    using I = typename Isa::I;
    const int8_t* numbers = product.rounded.numbers + (block * product.rows + row) * kBlock;
    I dots[Rows * kPartVectors];
    unrolled<Rows * kPartVectors>([&](auto i) LOPA_INLINE {
        constexpr int r = i() / kPartVectors, v = i() % kPartVectors;
        dots[i()] = first_dots<Isa, Format>(product, block, row + r, sums + r * kTile + v * Isa::kLanes);
    });
#pragma GCC unroll 1
    for (int group = 0; group < kGroups; ++group) {
        I weights[kPartVectors];
        unpack(group, weights);
        unrolled<Rows>([&](auto r) LOPA_INLINE {
            const I repeated = repeat_four<Isa>(numbers + r() * kBlock + 4 * group);
            unrolled<kPartVectors>([&](auto v) LOPA_INLINE {
                I& sum = dots[r() * kPartVectors + v()];
                sum = dot<Isa, Format>(sum, weights[v()], repeated);
                asm("" : "+v"(sum));  // without it, GCC stores every sum, too
            });
        });
    }
    unrolled<Rows * kPartVectors>([&](auto i) LOPA_INLINE {
        constexpr int r = i() / kPartVectors, v = i() % kPartVectors;
        add_dots<Isa, Format>(dots[i()], product, block, row + r, scales + v * Isa::kLanes, sums + r * kTile + v * Isa::kLanes);
    });
}

// Call add with the constant `count`, which is 1 to Most.
template <int Most, class Add>
inline void with_constant(int64_t count, const Add& add) {
    if constexpr (Most > 1)
        if (count < Most) return with_constant<Most - 1>(count, add);
    add(std::integral_constant<int, Most>());
}

// Copy of the part of a block that exists, in a tile of full size. Where nothing exists, numbers are zero.
template <class Format>
inline void copy_partial(const Product& product, int64_t block, int64_t tile, uint8_t* copy) {
    const int64_t stride = product.columns * Format::kTileBytes / kTile, first = tile * Format::kTileBytes;
    const int64_t width = std::min(Format::kTileBytes, stride - first), inputs = std::min(kBlock, product.inputs - block * kBlock);
    std::memset(copy, 0, kBlock * Format::kTileBytes);
    for (int64_t k = 0; k < inputs; ++k)
        std::memcpy(copy + k * Format::kTileBytes, product.weights + (block * kBlock + k) * stride + first, width);
}

// Copy of the scales of a tile that exist. The others are zero.
template <class Number>
inline const Number* pad_scales(const Number* stored, int64_t count, Number* padded) {
    if (count == kTile) return stored;
    std::fill_n(padded + count, kTile - count, Number{0});
    std::memcpy(padded, stored, count * sizeof(Number));
    return padded;
}

template <class Isa>
inline void load_scales(const Product& product, int64_t first, int64_t count, float* scales) {
    alignas(64) float floats[kTile];
    uint16_t halves[kTile];
    if (product.half_scales == nullptr) return Isa::order_scales(pad_scales(product.scales + first, count, floats), scales);
    Isa::widen(pad_scales(product.half_scales + first, count, halves), floats);
    Isa::order_scales(floats, scales);
}

inline void prefetch_scales(const Product& product, int64_t first) {
    if (product.half_scales != nullptr)
        for (int64_t i = 0; i < kTile; i += 32) __builtin_prefetch(product.half_scales + first + i);
    else
        for (int64_t i = 0; i < kTile; i += 16) __builtin_prefetch(product.scales + first + i);
}

template <class Isa, int Rows, int Wide>
inline void add_float_rows(const float* weights, int64_t stride, const float* rows, float* sums) {
    typename Isa::F dots[Rows][Wide];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Wide; ++v) dots[r][v] = Isa::repeat(0.0f);
    for (int64_t k = 0; k < kBlock; ++k)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const typename Isa::F repeated = Isa::repeat(rows[r * kBlock + k]);
#pragma GCC unroll 8
            for (int v = 0; v < Wide; ++v)
                dots[r][v] = Isa::multiply_add(Isa::load(weights + k * stride + v * Isa::kLanes), repeated, dots[r][v]);
        }
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Wide; ++v) {
            float* sum = sums + r * kTile + v * Isa::kLanes;
            Isa::store(sum, Isa::add(Isa::load(sum), dots[r][v]));
        }
}

// Add the products of a block of inputs of a tile to the sums of rows.
template <class Isa, class Format>
inline void add_block(const Cursor<Format>& at, const Cursor<Format>& ahead, int64_t row, int64_t rows, typename Format::Sum* sums) {
    constexpr int64_t kTileBytes = Format::kTileBytes;
    alignas(64) uint8_t copy[kBlock * kTileBytes];
    const Product product = *at.strip.product;  // a copy, which stores of vectors do not change
    const int64_t block = at.block, width = std::min(kTile, product.columns - at.tile * kTile);
    const uint8_t* weights = at.weights();
    int64_t stride = at.row_bytes();
    Prefetcher<Format> prefetcher(ahead);
    if (width < kTile || (block + 1) * kBlock > product.inputs) {
        copy_partial<Format>(product, block, at.tile, copy);
        weights = copy, stride = kTileBytes;
    }
    if constexpr (kIsFloat<Format>) {
        alignas(64) float widened[std::is_same_v<Format, Float16> ? kBlock * kTile : 1];
        for (int64_t k = 0; k < kBlock; ++k) {
            prefetcher.fetch(prefetcher.kTileLines);
            if constexpr (std::is_same_v<Format, Float16>)
                Isa::widen(reinterpret_cast<const uint16_t*>(weights + k * stride), widened + k * kTile);
        }
        const bool wide = std::is_same_v<Format, Float16>;
        const float *matrix = wide ? widened : reinterpret_cast<const float*>(weights), *numbers = product.floats + (block * product.rows + row) * kBlock;
        const int64_t step = wide ? kTile : stride / 4;
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            for (int64_t column = 0; column < kTile; column += 2 * Isa::kLanes)
                add_float_rows<Isa, 4, 2>(matrix + column, step, numbers + r * kBlock, sums + r * kTile + column);
        for (; r < rows; ++r)
            for (int64_t column = 0; column < kTile; column += 4 * Isa::kLanes)
                add_float_rows<Isa, 1, 4>(matrix + column, step, numbers + r * kBlock, sums + r * kTile + column);
    } else {
        using I = typename Isa::I;
        constexpr int kParts = kTile / kPartVectors / Isa::kLanes, kMost = Isa::kFewRows;
        alignas(64) float scales[kTile];
        if constexpr (std::is_same_v<Format, Int4>) {
            prefetch_scales(*ahead.strip.product, ahead.scale());
            load_scales<Isa>(product, at.scale(), width, scales);
        }
        alignas(64) I unpacked[kTile / Isa::kLanes * kGroups];  // [vector][group]
        unrolled<kParts>([&](auto part) {
            constexpr int first = part() * kPartVectors;
            const auto unpack = [&](int group, I* vectors) LOPA_INLINE {
                prefetcher.fetch(4 * prefetcher.kTileLines / kParts);
                Isa::template unpack<Format, part()>(weights + 4 * group * stride, stride, vectors);
            };
            if (rows <= kMost)
                return with_constant<kMost>(rows, [&](auto count) {
                    constexpr int column = first * Isa::kLanes;
                    add_few_rows<Isa, Format, count()>(unpack, product, block, row, scales + column, sums + column);
                });
            for (int group = 0; group < kGroups; ++group) {
                I vectors[kPartVectors];
                unpack(group, vectors);
                for (int v = 0; v < kPartVectors; ++v) unpacked[(first + v) * kGroups + group] = vectors[v];
            }
        });
        if (rows <= kMost) return;
        for (int v = 0; v < kTile / Isa::kLanes; v += Isa::kVectorsPerPass) {
            const I* matrix[Isa::kVectorsPerPass];
            for (int w = 0; w < Isa::kVectorsPerPass; ++w) matrix[w] = unpacked + (v + w) * kGroups;
            for (int64_t r = 0; r < rows; r += 4)
                with_constant<4>(std::min<int64_t>(4, rows - r), [&](auto count) {
                    const int column = v * Isa::kLanes;
                    add_rows<Isa, Format, count()>(matrix, product, block, row + r, scales + column, sums + r * kTile + column);
                });
        }
    }
}

// Write the sums of one tile to the output, in the order of the columns.
template <class Isa, class Format>
inline void write_tile(const Product& product, int64_t tile, int64_t row, int64_t rows, const typename Format::Sum* sums) {
    const int64_t first = tile * kTile, width = std::min(kTile, product.columns - first);
    alignas(64) float ordered[kTile], scales[kTile];
    if constexpr (std::is_same_v<Format, Int8>) {
        std::memset(scales, 0, sizeof scales);
        std::memcpy(scales, product.scales + first, width * sizeof(float));
    }
    for (int64_t r = 0; r < rows; ++r) {
        const float* numbers = ordered;
        if constexpr (std::is_same_v<Format, Int4>)
            Isa::order_int4(sums + r * kTile, ordered);
        else if constexpr (std::is_same_v<Format, Int8>)
            Isa::order_int8(sums + r * kTile, scales, ordered);
        else
            numbers = sums + r * kTile;
        if constexpr (std::is_same_v<Format, Int4>)
            for (float& number : ordered) number *= kSumUnit;
        if (std::is_same_v<Format, Int8> && product.rounded.scales != nullptr)
            for (float& number : ordered) number *= product.rounded.scales[row + r];
        std::memcpy(product.output + (row + r) * product.columns + first, numbers, width * sizeof(float));
    }
}

// Write NaN to columns [first, last): what a session then reports is an error.
inline void fill_nan(const Product& product, int64_t first, int64_t last) {
    for (int64_t row = 0; row < product.rows; ++row)
        std::fill_n(product.output + row * product.columns + first, last - first, __builtin_nanf(""));
}

template <class Isa, class Format>
void compute_strip(const Strip& strip, const Strip& next) {
    using Sum = typename Format::Sum;
    const Product& product = *strip.product;
    Sum* const all_sums = static_cast<Sum*>(strip_memory());
    if (all_sums == nullptr) return fill_nan(product, strip.first * kTile, std::min(strip.last * kTile, product.columns));
    for (int64_t row = 0; row < product.rows; row += kMaxRows) {
        const int64_t rows = std::min(kMaxRows, product.rows - row), width = strip.last - strip.first;
        const auto sums = [&](int64_t tile) { return all_sums + (tile - strip.first) * rows * kTile; };
        for (int64_t tile = strip.first; tile < strip.last; ++tile)
            for (int64_t r = 0; r < rows; ++r) {
                const Sum start = std::is_same_v<Format, Int8> ? static_cast<Sum>(product.rounded.corrections[row + r]) : 0;
                std::fill_n(sums(tile) + r * kTile, kTile, start);
            }
        Cursor<Format> at(strip, {}), ahead(strip, row + rows < product.rows ? strip : next);
        for (int64_t i = 0; i < std::max(width, Format::kBlocksAhead / width * width) && !ahead.done(); ++i) ahead.advance();
        for (; product.inputs > 0 && !at.done(); at.advance()) {
            add_block<Isa, Format>(at, ahead.done() ? at : ahead, row, rows, sums(at.tile));
            if (!ahead.done()) ahead.advance();
        }
        for (int64_t tile = strip.first; tile < strip.last; ++tile)
            write_tile<Isa, Format>(product, tile, row, rows, sums(tile));
    }
}

template <class Isa>
void round_rows(const Product& product, const float* rows, int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
        for (int64_t row = 0; row < product.rows; ++row) {
            const int64_t at = block * product.rows + row;
            int32_t sum;
            Isa::round_block(rows + row * product.inputs + block * kBlock, product.rounded.numbers + at * kBlock,
                             product.rounded.scales + at, &sum);
            product.rounded.corrections[at] = -kInt4Offset * sum;
        }
}

template <class Isa>
constexpr Kernels kernels_of(const char* name, int32_t int8_offset) {
    return {name,
            round_rows<Isa>,
            round_row,
            order_row,
            activate<false>,
            activate<true>,
            add_weighted,
            compute_strip<Isa, Int4>,
            compute_strip<Isa, Int8>,
            compute_strip<Isa, Float>,
            compute_strip<Isa, Float16>,
            int8_offset};
}

}  // namespace
}  // namespace lopa
