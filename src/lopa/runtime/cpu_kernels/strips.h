// Strips of products, written once for all instruction sets. `Isa` supplies vectors and their operations.
//
// Every strip goes through its tiles, a few blocks of kBlock inputs at a time. It unpacks their weights to unsigned bytes,
// groups of four inputs side by side as 8-bit dot products require, and multiplies rows by them. A sum of a block is exact
// in int32, so results do not depend on the number of rows or threads.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "products.h"
#include "row_steps.h"

namespace lopa {
namespace {

#define LOPA_INLINE __attribute__((always_inline))

constexpr int64_t kGroups = kBlock / 4;
constexpr int64_t kMaxTogether = 4;  // blocks
constexpr int64_t kFloatPassRows = 6;  // of float weights, if there are more rows than one pass can have
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
    Cursor(const Strip& strip, const Strip& next, int64_t together) : strip(strip), next(next), together(together), tile(strip.first) {}

    bool done() const { return strip.product == nullptr; }
    int64_t row_bytes() const { return strip.product->columns * Format::kTileBytes / kTile; }
    int64_t blocks() const { return std::min(together, strip.product->blocks() - block); }
    const uint8_t* weights() const { return strip.product->weights + block * kBlock * row_bytes() + tile * Format::kTileBytes; }
    int64_t scale() const { return block * strip.product->columns + tile * kTile; }

    void advance() {
        if (++tile < strip.last) return;
        tile = strip.first;
        if ((block += together) >= strip.product->blocks()) *this = Cursor(next, {}, together);
    }

    Strip strip, next;
    int64_t together, block = 0, tile;
};

// Prefetches blocks of all tiles of a strip into the second-level cache, row by row, in parts: one for each tile. Rows of
// the next tile, which are there already, go on to the first-level cache.
template <class Format>
struct Prefetcher {
    static constexpr int64_t kTileLines = Format::kTileBytes / 64;

    Prefetcher(const Cursor<Format>& at, const Cursor<Format>& ahead) : row_bytes(ahead.row_bytes()) {
        const int64_t tiles = ahead.strip.last - ahead.strip.first;
        const uint32_t lines = static_cast<uint32_t>(tiles * kTileLines);
        const uint32_t first = static_cast<uint32_t>((ahead.tile - ahead.strip.first) * kTileLines * ahead.blocks() * kBlock);
        const uint8_t* row = ahead.strip.product->weights + (ahead.block * kBlock + first / lines) * row_bytes + ahead.strip.first * Format::kTileBytes;
        line = row + 64 * (first % lines), end = row + 64 * lines, skip = row_bytes - 64 * lines;
        const bool last = at.tile + 1 == at.strip.last;
        near = at.weights() + (last ? at.blocks() * kBlock * at.row_bytes() - (at.tile - at.strip.first) * Format::kTileBytes : Format::kTileBytes);
    }

    // Prefetch a step of `count` in which a tile's blocks are read, for each group of 4 inputs. `stride` is that of the weights
    // as they are read. In copies of partial tiles it is another, so nothing useful goes to the first-level cache then.
    template <int step, int count>
    LOPA_INLINE void fetch(int64_t stride) {
        constexpr int lines = std::max<int>(4 * kTileLines / count, 1), rows = std::max(4 / count, 1);
        if constexpr (step * lines < 4 * kTileLines)
            for (int i = 0; i < lines; ++i) {
                __builtin_prefetch(line, 0, 2);
                if (__builtin_expect((line += 64) == end, 0)) line += skip, end += row_bytes;
            }
        if constexpr (step * rows < 4)
            for (int i = 0; i < rows; ++i, near += stride)
                for (int64_t at = 0; at < Format::kTileBytes; at += 64) __builtin_prefetch(near + at, 0, 3);
    }

    const uint8_t *line, *end, *near;  // a line of a row of the strip, the end of that row, and a row of the next tile
    int64_t skip, row_bytes;
};

// Call `call` with the constants 0 to Count - 1. Loops would keep arrays of vectors in memory.
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

// Weights of blocks of a tile as they are stored.
template <class Isa, class Format>
struct Packed {
    // Unpack the next group of 4 inputs, for `wide` vectors of columns.
    template <int wide, int part>
    LOPA_INLINE void next(typename Isa::I* vectors) {
        if (fetches) prefetcher.template fetch<part, kTile / Isa::kLanes / wide>(stride);
        Isa::template unpack<Format, wide, part>(from, stride, vectors);
        from += 4 * stride;
    }

    const uint8_t *weights, *from;
    int64_t stride;
    Prefetcher<Format> prefetcher;
    bool fetches;
};

// Add the products of some blocks of a tile for `Rows` rows from `row` on, `wide` vectors of columns at a time. Dot products
// stay in registers. As a part of a larger function, GCC would keep them in memory.
template <class Isa, class Format, int Rows, int wide>
__attribute__((noinline)) void add_packed_rows(Packed<Isa, Format>& source, const Product& product, int64_t first, int64_t blocks, int64_t row,
                                               const float* scales, typename Format::Sum* sums) {
    constexpr bool int4 = std::is_same_v<Format, Int4>;
    constexpr int kSums = Rows * wide;
    constexpr bool kept = int4 && kSums <= 12;  // more totals beside as many dot products exceed the registers
    const int64_t rows = product.rows;
    Packed<Isa, Format> weights = source;  // a copy, which stores do not change
    unrolled<kTile / Isa::kLanes / wide>([&](auto part) LOPA_INLINE {
        const auto sum_at = [&](int i) LOPA_INLINE { return sums + i / wide * kTile + (part() * wide + i % wide) * Isa::kLanes; };
        typename Isa::I dots[kSums];
        typename Isa::F totals[kept ? kSums : 1];
        unrolled<kSums>([&](auto i) LOPA_INLINE {
            if constexpr (kept)
                totals[i()] = Isa::load(sum_at(i()));
            else if constexpr (!int4)
                dots[i()] = Isa::load(sum_at(i()));
        });
        weights.from = weights.weights;
        const int8_t* numbers = product.rounded.numbers + (first * rows + row) * kBlock;
        const int32_t* corrections = product.rounded.corrections + first * rows + row;
        const float *row_scales = product.rounded.scales + first * rows + row, *columns = scales + part() * wide * Isa::kLanes;
#pragma GCC unroll 1
        for (int64_t block = 0; block < blocks; ++block) {
            if constexpr (int4)
                unrolled<kSums>([&](auto i) LOPA_INLINE { dots[i()] = Isa::repeat(corrections[i() / wide]); });
#pragma GCC unroll 1
            for (int group = 0; group < kGroups; ++group, numbers += 4) {
                typename Isa::I vectors[wide];
                weights.template next<wide, part()>(vectors);
                unrolled<Rows>([&](auto r) LOPA_INLINE {
                    const typename Isa::I repeated = repeat_four<Isa>(numbers + r() * kBlock);
                    unrolled<wide>([&](auto v) LOPA_INLINE {
                        typename Isa::I& sum = dots[r() * wide + v()];
                        sum = dot<Isa, Format>(sum, vectors[v()], repeated);
                        asm("" : "+v"(sum));  // without it, GCC stores every sum, too
                    });
                });
            }
            if constexpr (int4)
                unrolled<kSums>([&](auto i) LOPA_INLINE {
                    if constexpr (kept) {
                        totals[i()] = Isa::add_scaled(totals[i()], dots[i()], row_scales[i() / wide], columns + i() % wide * Isa::kLanes);
                        asm("" : "+v"(totals[i()]));
                    } else {
                        const typename Isa::F total = Isa::load(sum_at(i()));
                        Isa::store(sum_at(i()), Isa::add_scaled(total, dots[i()], row_scales[i() / wide], columns + i() % wide * Isa::kLanes));
                    }
                });
            if constexpr (int4 && !kept) asm volatile("" ::: "memory");  // or GCC keeps totals in the stack until the end
            numbers += rows * kBlock - kBlock, corrections += rows, row_scales += rows, columns += kTile;
        }
        unrolled<kSums>([&](auto i) LOPA_INLINE {
            if constexpr (kept)
                Isa::store(sum_at(i()), totals[i()]);
            else if constexpr (!int4)
                Isa::store(sum_at(i()), dots[i()]);
        });
    });
    source = weights;
}

// Call add with the constant `count`, which is 1 to Most.
template <int Most, class Add>
inline void with_constant(int64_t count, const Add& add) {
    if constexpr (Most > 1)
        if (count < Most) return with_constant<Most - 1>(count, add);
    add(std::integral_constant<int, Most>());
}

// Call add with the constant number of rows and the first row of every pass of `size` rows, at most Most.
template <int Most, class Add>
inline void in_passes(int64_t rows, int64_t size, const Add& add) {
    for (int64_t first = 0; first < rows; first += size)
        with_constant<Most>(std::min(size, rows - first), [&](auto count) { add(count, first); });
}

// Copy of the part of some blocks that exists, in a tile of full size. Where nothing exists, numbers are zero.
template <class Format>
inline void copy_partial(const Cursor<Format>& at, uint8_t* copy) {
    const int64_t stride = at.row_bytes(), width = std::min(Format::kTileBytes, stride - at.tile * Format::kTileBytes);
    const int64_t inputs = std::min(at.blocks() * kBlock, at.strip.product->inputs - at.block * kBlock);
    std::memset(copy, 0, at.blocks() * kBlock * Format::kTileBytes);
    for (int64_t k = 0; k < inputs; ++k) std::memcpy(copy + k * Format::kTileBytes, at.weights() + k * stride, width);
}

// Blocks of a tile that are multiplied together, which reads and writes sums once for them. With few rows, memory is the
// limit, and it is read faster in single blocks.
template <class Isa, class Format>
inline int64_t blocks_together(int64_t rows) {
    if constexpr (!kIsFloat<Format>)
        if (rows > 2 && rows <= Isa::template max_packed_rows<Format>()) return rows < 16 ? 2 : kMaxTogether;
    return 1;
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
    const uint16_t* stored = pad_scales(product.half_scales + first, count, halves);
    for (int64_t at = 0; at < kTile; at += Isa::kLanes) Isa::store(floats + at, Isa::load_half(stored + at));
    Isa::order_scales(floats, scales);
}

inline void prefetch_scales(const Product& product, int64_t first) {
    if (product.half_scales != nullptr)
        for (int64_t i = 0; i < kTile; i += 32) __builtin_prefetch(product.half_scales + first + i);
    else
        for (int64_t i = 0; i < kTile; i += 16) __builtin_prefetch(product.scales + first + i);
}

// Add the products of a block of float weights of a tile for `Rows` rows. Their sums stay in registers.
template <class Isa, class Format, int Rows>
__attribute__((noinline)) void add_float_rows(const uint8_t* weights, int64_t stride, Prefetcher<Format>& source, bool fetches, const float* rows,
                                              float* sums) {
    constexpr int kWide = Isa::float_wide(Rows), kSums = Rows * kWide, kParts = kTile / Isa::kLanes / kWide;
    Prefetcher<Format> prefetcher = source;
    unrolled<kParts>([&](auto part) LOPA_INLINE {
        typename Isa::F dots[kSums];
        const auto sum_at = [&](int i) LOPA_INLINE { return sums + i / kWide * kTile + (part() * kWide + i % kWide) * Isa::kLanes; };
        unrolled<kSums>([&](auto i) LOPA_INLINE { dots[i()] = Isa::repeat(0.0f); });
        const uint8_t* from = weights + part() * kWide * Isa::kLanes * Format::kTileBytes / kTile;
#pragma GCC unroll 1
        for (int64_t group = 0; group < kBlock; group += 4) {
            if (fetches) prefetcher.template fetch<part(), kParts>(stride);
#pragma GCC unroll 4
            for (int64_t k = group; k < group + 4; ++k, from += stride) {
                typename Isa::F vectors[kWide];
                unrolled<kWide>([&](auto v) LOPA_INLINE {
                    if constexpr (std::is_same_v<Format, Float16>)
                        vectors[v()] = Isa::load_half(reinterpret_cast<const uint16_t*>(from) + v() * Isa::kLanes);
                    else
                        vectors[v()] = Isa::load(reinterpret_cast<const float*>(from) + v() * Isa::kLanes);
                    asm("" : "+v"(vectors[v()]));
                });
                unrolled<Rows>([&](auto r) LOPA_INLINE {
                    const typename Isa::F repeated = Isa::repeat(rows[r() * kBlock + k]);
                    unrolled<kWide>([&](auto v) LOPA_INLINE {
                        typename Isa::F& sum = dots[r() * kWide + v()];
                        sum = Isa::multiply_add(vectors[v()], repeated, sum);
                        asm("" : "+v"(sum));
                    });
                });
            }
        }
        unrolled<kSums>([&](auto i) LOPA_INLINE { Isa::store(sum_at(i()), Isa::add(Isa::load(sum_at(i())), dots[i()])); });
    });
    source = prefetcher;
}

// Add the products of a block for `Rows` rows and the unpacked weights of `wide` vectors of columns, [vector][group].
template <class Isa, class Format, int Rows, int wide>
__attribute__((noinline)) void add_unpacked_rows(const typename Isa::I* weights, const Product& product, int64_t at, const float* scales,
                                                 typename Format::Sum* sums) {
    constexpr bool int4 = std::is_same_v<Format, Int4>;
    constexpr int kSums = Rows * wide;
    const int8_t* numbers = product.rounded.numbers + at * kBlock;
    const auto sum_at = [&](int i) LOPA_INLINE { return sums + i / wide * kTile + i % wide * Isa::kLanes; };
    typename Isa::I dots[kSums];
    unrolled<kSums>([&](auto i) LOPA_INLINE {
        if constexpr (int4)
            dots[i()] = Isa::repeat(product.rounded.corrections[at + i() / wide]);
        else
            dots[i()] = Isa::load(sum_at(i()));
    });
#pragma GCC unroll 1
    for (int group = 0; group < kGroups; ++group, ++weights, numbers += 4)
        unrolled<Rows>([&](auto r) LOPA_INLINE {
            const typename Isa::I repeated = repeat_four<Isa>(numbers + r() * kBlock);
            unrolled<wide>([&](auto v) LOPA_INLINE {
                typename Isa::I& sum = dots[r() * wide + v()];
                sum = dot<Isa, Format>(sum, weights[v() * kGroups], repeated);
                asm("" : "+v"(sum));  // as above
            });
        });
    unrolled<kSums>([&](auto i) LOPA_INLINE {
        if constexpr (int4)
            Isa::store(sum_at(i()), Isa::add_scaled(Isa::load(sum_at(i())), dots[i()], product.rounded.scales[at + i() / wide],
                                                    scales + i() % wide * Isa::kLanes));
        else
            Isa::store(sum_at(i()), dots[i()]);
    });
}

// Unpack a block of a tile once, and add its products to the sums of rows.
template <class Isa, class Format>
inline void add_unpacked_block(Packed<Isa, Format> packed, const Product& product, int64_t at, int64_t rows, const float* scales,
                               typename Format::Sum* sums) {
    constexpr int kTogether = 4, kVectors = kTile / Isa::kLanes, kWide = Isa::kUnpackedWide;  // vectors
    alignas(64) typename Isa::I vectors[kVectors * kGroups];
    unrolled<kVectors / kTogether>([&](auto part) LOPA_INLINE {
        packed.from = packed.weights;
        for (int64_t group = 0; group < kGroups; ++group) {
            typename Isa::I some[kTogether];
            packed.template next<kTogether, part()>(some);
            for (int v = 0; v < kTogether; ++v) vectors[(part() * kTogether + v) * kGroups + group] = some[v];
        }
    });
    for (int v = 0; v < kVectors; v += kWide)
        in_passes<Isa::kUnpackedRows>(rows, Isa::kUnpackedRows, [&](auto count, int64_t first) {
            const int column = v * Isa::kLanes;
            add_unpacked_rows<Isa, Format, count(), kWide>(vectors + v * kGroups, product, at + first, scales + column, sums + first * kTile + column);
        });
}

// Add the products of blocks of integer weights of a tile to the sums of rows.
template <class Isa, class Format>
inline void add_integer_blocks(const Cursor<Format>& at, const Cursor<Format>& ahead, Packed<Isa, Format> packed, int64_t row, int64_t rows,
                               typename Format::Sum* sums) {
    const Product product = *at.strip.product;  // a copy, which stores of vectors do not change
    alignas(64) float scales[kMaxTogether * kTile];
    if constexpr (std::is_same_v<Format, Int4>) {
        for (int64_t i = 0; i < ahead.blocks(); ++i) prefetch_scales(*ahead.strip.product, ahead.scale() + i * ahead.strip.product->columns);
        for (int64_t i = 0; i < at.blocks(); ++i)
            load_scales<Isa>(product, at.scale() + i * product.columns, std::min(kTile, product.columns - at.tile * kTile), scales + i * kTile);
    }
    constexpr int kMost = Isa::template packed_rows<Format>();
    if constexpr (Isa::template max_packed_rows<Format>() < kMaxRows)
        if (rows > Isa::template max_packed_rows<Format>())
            return add_unpacked_block(packed, product, at.block * product.rows + row, rows, scales, sums);
    const int64_t passes = (rows + kMost - 1) / kMost;
    in_passes<kMost>(rows, (rows + passes - 1) / passes, [&](auto count, int64_t first) {
        packed.fetches = first == 0;
        add_packed_rows<Isa, Format, count(), Isa::template packed_wide<Format>(count())>(packed, product, at.block, at.blocks(), row + first, scales,
                                                                                            sums + first * kTile);
    });
}

// Add the products of some blocks of a tile to the sums of rows.
template <class Isa, class Format>
inline void add_blocks(const Cursor<Format>& at, const Cursor<Format>& ahead, int64_t row, int64_t rows, typename Format::Sum* sums) {
    alignas(64) uint8_t copy[(kIsFloat<Format> ? 1 : kMaxTogether) * kBlock * Format::kTileBytes];
    const Product& product = *at.strip.product;
    const uint8_t* weights = at.weights();
    int64_t stride = at.row_bytes();
    Prefetcher<Format> prefetcher(at, ahead);
    if ((at.tile + 1) * kTile > product.columns || (at.block + at.blocks()) * kBlock > product.inputs) {
        copy_partial(at, copy);
        weights = copy, stride = Format::kTileBytes;
    }
    if constexpr (kIsFloat<Format>)
        in_passes<Isa::kFloatRows>(rows, rows <= Isa::kFloatRows ? rows : kFloatPassRows, [&](auto count, int64_t first) {
            const float* numbers = product.floats + (at.block * product.rows + row + first) * kBlock;
            add_float_rows<Isa, Format, count()>(weights, stride, prefetcher, first == 0, numbers, sums + first * kTile);
        });
    else
        add_integer_blocks<Isa, Format>(at, ahead, {weights, weights, stride, prefetcher, true}, row, rows, sums);
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
        const int64_t together = blocks_together<Isa, Format>(rows);
        Cursor<Format> at(strip, {}, together), ahead(strip, row + rows < product.rows ? strip : next, together);
        for (int64_t i = 0; i < std::max(width, Format::kBlocksAhead / together / width * width) && !ahead.done(); ++i) ahead.advance();
        for (; product.inputs > 0 && !at.done(); at.advance()) {
            add_blocks<Isa, Format>(at, ahead.done() ? at : ahead, row, rows, sums(at.tile));
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
