// Strips of products, written once for all instruction sets. `Isa` supplies vectors and their operations.
//
// Every strip unpacks one block of kBlock inputs of one tile to unsigned bytes in the cache, groups of four inputs side by
// side as 8-bit dot products require, and multiplies all rows by it. A sum of a block is exact in int32, so results do not
// depend on the number of rows or threads.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "products.h"

namespace lopa {
namespace {

constexpr int64_t kMaxRows = 128;  // rows per pass: their sums of a strip fit into the second-level cache
constexpr int64_t kChunk = 8;      // blocks of a tile before the next tile: their pages stay in the address cache
constexpr int64_t kBlocksAhead = 4;  // blocks between prefetching and reading weights: about the latency of memory
constexpr int64_t kGroups = kBlock / 4;
constexpr int32_t kInt4Offset = 8;  // int4 numbers are unpacked to 0 .. 15

struct Position {
    int64_t block, tile;
};

// Scale of a block of a row, and its inverse, which is 0 for blocks of (nearly) zeros.
struct RowScale {
    float scale, inverse;
};

inline RowScale row_scale(int32_t largest_bits) {
    float largest;
    std::memcpy(&largest, &largest_bits, 4);
    return {largest / 127.0f, largest < 1e-30f ? 0.0f : 127.0f / largest};
}

// Number type of sums between blocks and the layout of a tile in memory.
struct Int4 {
    using Sum = float;
    static constexpr int64_t kTileBytes = kTile / 2;
};
struct Int8 {
    using Sum = int32_t;
    static constexpr int64_t kTileBytes = kTile;
};

template <class Isa, class Format, int Rows>
inline void add_rows(const typename Isa::I* const* weights, const Product& product, int64_t block, int64_t row, const float* scales,
                     typename Format::Sum* sums) {
    using I = typename Isa::I;
    constexpr int kWide = Isa::kVectorsPerPass;
    const int8_t* numbers = product.rounded.numbers + (block * product.rows + row) * kBlock;
    I dots[Rows][kWide];
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kWide; ++v) {
            if constexpr (std::is_same_v<Format, Int4>)
                dots[r][v] = Isa::repeat(product.rounded.corrections[block * product.rows + row + r]);
            else
                dots[r][v] = Isa::load(sums + r * kTile + v * Isa::kLanes);
        }
#pragma GCC unroll 8
    for (int group = 0; group < kGroups; ++group)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            int32_t four;
            std::memcpy(&four, numbers + r * kBlock + 4 * group, 4);
            const I repeated = Isa::repeat(four);
#pragma GCC unroll 2
            for (int v = 0; v < kWide; ++v)
                if constexpr (std::is_same_v<Format, Int4>)
                    dots[r][v] = Isa::dot_small(dots[r][v], weights[v][group], repeated);
                else
                    dots[r][v] = Isa::dot(dots[r][v], weights[v][group], repeated);
        }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < kWide; ++v) {
            typename Format::Sum* sum = sums + r * kTile + v * Isa::kLanes;
            if constexpr (std::is_same_v<Format, Int4>)
                Isa::add_scaled(sum, dots[r][v], product.rounded.scales[block * product.rows + row + r], scales + v * Isa::kLanes);
            else
                Isa::store(sum, dots[r][v]);
        }
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

template <class Isa, class Format>
inline void add_block(const Product& product, Position at, Position next, int64_t row, int64_t rows, typename Format::Sum* sums) {
    using I = typename Isa::I;
    constexpr int64_t kTileBytes = Format::kTileBytes;
    constexpr int kVectors = kTile / Isa::kLanes, kWide = Isa::kVectorsPerPass;
    alignas(64) I unpacked[kVectors * kGroups];  // [vector][group]
    alignas(64) uint8_t copy[kBlock * kTileBytes];
    alignas(64) float scales[kTile];
    const auto [block, tile] = at;
    const int64_t row_bytes = product.columns * kTileBytes / kTile;
    int64_t stride = row_bytes;
    const uint8_t* weights = product.weights + block * kBlock * row_bytes + tile * kTileBytes;
    const uint8_t* prefetched = product.weights + next.block * kBlock * row_bytes + next.tile * kTileBytes;
    const bool whole = (tile + 1) * kTile <= product.columns;
    if (!whole || (block + 1) * kBlock > product.inputs) {
        copy_partial<Format>(product, block, tile, copy);
        weights = copy, stride = kTileBytes;
    }
    for (int group = 0; group < kGroups; ++group) {
        for (int i = 0; i < 4; ++i)
            for (int64_t line = 0; line < kTileBytes; line += 64) __builtin_prefetch(prefetched + (4 * group + i) * row_bytes + line);
        Isa::template unpack<Format>(weights + 4 * group * stride, stride, unpacked + group, kGroups);
    }
    if constexpr (std::is_same_v<Format, Int4>) {
        const int64_t first = block * product.columns + tile * kTile, ahead = next.block * product.columns + next.tile * kTile;
        const int64_t count = std::min(kTile, product.columns - tile * kTile);
        alignas(64) float padded[kTile];
        const float* stored = product.scales + first;
        if (product.half_scales != nullptr) {
            for (int64_t line = 0; line < kTile; line += 32) __builtin_prefetch(product.half_scales + ahead + line);
            alignas(64) uint16_t halves[kTile] = {};
            std::memcpy(halves, product.half_scales + first, count * sizeof(uint16_t));
            Isa::widen(halves, padded);
            stored = padded;
        } else {
            for (int64_t line = 0; line < kTile; line += 16) __builtin_prefetch(product.scales + ahead + line);
            if (!whole) {
                std::memset(padded, 0, sizeof padded);
                std::memcpy(padded, stored, count * sizeof(float));
                stored = padded;
            }
        }
        Isa::order_scales(stored, scales);
    }
    for (int v = 0; v < kVectors; v += kWide) {
        const I* matrix[kWide];
        for (int w = 0; w < kWide; ++w) matrix[w] = unpacked + (v + w) * kGroups;
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            add_rows<Isa, Format, 4>(matrix, product, block, row + r, scales + v * Isa::kLanes, sums + r * kTile + v * Isa::kLanes);
        for (; r < rows; ++r)
            add_rows<Isa, Format, 1>(matrix, product, block, row + r, scales + v * Isa::kLanes, sums + r * kTile + v * Isa::kLanes);
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
        if constexpr (std::is_same_v<Format, Int4>)
            Isa::order_int4(sums + r * kTile, ordered);
        else
            Isa::order_int8(sums + r * kTile, scales, ordered);
        std::memcpy(product.output + (row + r) * product.columns + first, ordered, width * sizeof(float));
    }
}

template <class Isa, class Format>
void strip(const Product& product, int64_t first, int64_t last) {
    using Sum = typename Format::Sum;
    alignas(64) Sum sums[kMaxStripTiles][kMaxRows * kTile];
    const int64_t blocks = product.blocks();
    for (int64_t row = 0; row < product.rows; row += kMaxRows) {
        const int64_t rows = std::min(kMaxRows, product.rows - row);
        for (int64_t tile = first; tile < last; ++tile)
            for (int64_t r = 0; r < rows; ++r) {
                const Sum start = std::is_same_v<Format, Int4> ? 0 : static_cast<Sum>(product.rounded.corrections[row + r]);
                std::fill_n(sums[tile - first] + r * kTile, kTile, start);
            }
        for (int64_t chunk = 0; chunk < blocks; chunk += kChunk) {
            const int64_t end = std::min(blocks, chunk + kChunk);
            for (int64_t tile = first; tile < last; ++tile)
                for (int64_t block = chunk; block < end; ++block) {
                    int64_t ahead = (tile - first) * (end - chunk) + block - chunk + kBlocksAhead;
                    Position next = {chunk + ahead % (end - chunk), first + ahead / (end - chunk)};
                    if (next.tile >= last) next = {std::min(end, blocks - 1), first};
                    add_block<Isa, Format>(product, {block, tile}, next, row, rows, sums[tile - first]);
                }
        }
        for (int64_t tile = first; tile < last; ++tile) write_tile<Isa, Format>(product, tile, row, rows, sums[tile - first]);
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

}  // namespace
}  // namespace lopa
