// Products of rows with matrices, one strip of columns at a time, and the steps between the products of expert layers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lopa {

constexpr int64_t kBlock = 32;         // inputs that share a scale in an int4 matrix, and inputs of one unpacking step
constexpr int64_t kTile = 128;         // columns that are unpacked together: one cache line of int4 numbers per input
constexpr int64_t kMaxRows = 128;      // rows per pass
constexpr int64_t kMaxStripTiles = 32;
constexpr int64_t kMaxStripRows = 256;  // tiles times rows of a strip: the sums fit into the second-level cache
constexpr int64_t kMaxInt8Inputs = INT32_MAX / (128 * 128);  // sums are int32

// Rows rounded to 8 bits, ordered [block][row][kBlock], so that one block of all rows is contiguous.
struct RoundedRows {
    int8_t* numbers;       // [blocks, rows, kBlock], from -127 to 127, zero beyond the last input
    float* scales;         // int4: [blocks, rows], in units; int8: [rows], or null if the result is not scaled
    int32_t* corrections;  // int4: [blocks, rows]; int8: [rows]. Added because the weights are unpacked with an offset
};

// output[row, n] = sum over k of row[k] * weight[k, n]
struct Product {
    int64_t rows;
    int64_t inputs;
    int64_t columns;
    const uint8_t* weights;  // int4: [inputs, columns / 2], the first of two numbers in the low half; others: [inputs, columns]
    const float* scales;     // int4: [inputs / kBlock, columns]; int8: [columns]
    const uint16_t* half_scales;  // int4: float16 [inputs / kBlock, columns] in place of `scales`, or null
    RoundedRows rounded;
    float* output;                  // [rows, columns]
    const float* floats = nullptr;  // float: rows in place of `rounded`, ordered like its numbers

    int64_t blocks() const { return (inputs + kBlock - 1) / kBlock; }
    int64_t tiles() const { return (columns + kTile - 1) / kTile; }
};

// Columns of the tiles [first, last) of a product, at most max_strip_tiles.
struct Strip {
    const Product* product = nullptr;
    int64_t first = 0;
    int64_t last = 0;
};

inline int64_t max_strip_tiles(int64_t rows) {
    const int64_t tiles = kMaxStripRows / (rows < 1 ? 1 : rows < kMaxRows ? rows : kMaxRows);
    return tiles < kMaxStripTiles ? tiles : kMaxStripTiles;
}

// Number of tiles of a strip, given all tiles and the smallest number of tasks. Wide strips read memory in longer runs.
// Narrow ones share few tiles evenly among threads.
inline int64_t strip_tiles(int64_t tiles, int64_t rows, int64_t tasks) {
    const int64_t share = tiles / tasks, most = max_strip_tiles(rows);
    return share < 1 ? 1 : share < most ? share : most;
}

// Compute a strip. At its end, prefetch the weights of `next`, which the same thread probably computes then. It has the
// same number type, or no product.
using ComputeStrip = void(const Strip& strip, const Strip& next);

// Implementation for one instruction set. All have the same results.
struct Kernels {
    const char* name;
    // Round blocks [first, last) of float rows [rows, inputs] to `product.rounded`, each block with its own scale.
    void (*round_rows)(const Product& product, const float* rows, int64_t first, int64_t last);
    // Round a row of `count` numbers with one scale. Its block b starts at numbers[b * step]. `sum` is that of the integers.
    void (*round_row)(const float* row, int64_t count, int8_t* numbers, int64_t step, float* scale, int32_t* sum);
    // Order a row of `count` uint8 numbers around 128 as signed ones, in blocks as above. `sum` is theirs.
    void (*order_row)(const uint8_t* row, int64_t count, int8_t* numbers, int64_t step, int32_t* sum);
    // gate[i] = silu(gate[i]) * up[i], or gelu(gate[i]) * up[i]
    void (*swiglu)(float* gate, const float* up, int64_t count);
    void (*geglu)(float* gate, const float* up, int64_t count);
    // sum[i] += weight * row[i]
    void (*add_weighted)(float* sum, const float* row, float weight, int64_t count);
    ComputeStrip *int4_strip, *int8_strip, *float_strip, *float16_strip;
    int32_t int8_offset;  // offset of unpacked int8 weights: corrections are -int8_offset times the sum of a row
};

// Memory of this thread for the sums of a strip, or null if there is none. The stack of a thread may be smaller.
void* strip_memory();

extern const Kernels* g_kernels;  // in use, or null if this processor has none of the instruction sets

extern const Kernels kAvx512Vnni;
extern const Kernels kAvxVnni;
extern const Kernels kAvx2;

}  // namespace lopa
