// Products of float or rounded rows with quantized matrices, one strip of columns at a time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lopa {

constexpr int64_t kBlock = 32;         // inputs that share a scale in an int4 matrix, and inputs of one unpacking step
constexpr int64_t kTile = 128;         // columns that are unpacked together: one cache line of int4 numbers per input
constexpr int64_t kMaxStripTiles = 4;  // tiles of a strip: neighbouring lines of a page are used while its address is cached

// Rows rounded to 8 bits, ordered [block][row][kBlock], so that one block of all rows is contiguous.
struct RoundedRows {
    int8_t* numbers;       // [blocks, rows, kBlock], from -127 to 127 in int4 products, zero beyond the last input
    float* scales;         // [blocks, rows]; only in int4 products
    int32_t* corrections;  // int4: [blocks, rows]; int8: [rows]. Added because the weights are unpacked with an offset
};

// output[row, n] = sum over k of row[k] * weight[k, n]
struct Product {
    int64_t rows;
    int64_t inputs;
    int64_t columns;
    const uint8_t* weights;  // int4: [inputs, columns / 2], the first of two numbers in the low half; int8: [inputs, columns]
    const float* scales;     // int4: [inputs / kBlock, columns]; int8: [columns]
    const uint16_t* half_scales;  // int4: float16 [inputs / kBlock, columns] in place of `scales`, or null
    RoundedRows rounded;
    float* output;  // [rows, columns]

    int64_t blocks() const { return (inputs + kBlock - 1) / kBlock; }
    int64_t tiles() const { return (columns + kTile - 1) / kTile; }
};

// Implementation for one instruction set.
struct Kernels {
    const char* name;
    // Round blocks [first, last) of float rows [rows, inputs] to `product.rounded`, each block with its own scale.
    void (*round_rows)(const Product& product, const float* rows, int64_t first, int64_t last);
    // Compute the columns of tiles [first, last), at most kMaxStripTiles.
    void (*int4_strip)(const Product& product, int64_t first, int64_t last);
    void (*int8_strip)(const Product& product, int64_t first, int64_t last);
    int32_t int8_offset;  // offset of unpacked int8 weights: corrections are -int8_offset times the sum of a row
};

extern const Kernels kAvx512Vnni;
extern const Kernels kAvxVnni;
extern const Kernels kAvx2;

}  // namespace lopa
