// Operators of ONNX Runtime's CUDA provider that launch the kernels of lopa.plugins.kernels. T is float32, float16 or
// bfloat16. N are the packed rows of all windows, and Q of them are sampled. Axes [..] have N rows, as [1, N] or [N].
//
// Rows that are rounded to 8 bits, e4m3 with the attribute `e4m3`, otherwise int8, are uint8 [.., K] with scales float [N].
// Products of rounded rows still need these scales and those of columns, float [O]. Operators that take a product have both
// as their last inputs, which are optional.
//
// lopa.cuda::RmsNorm(x T [.., H], weight T [H]) -> T [.., H]
// lopa.cuda::SkipRmsNorm(x, delta T [.., H], weight T [H], row_scales, column_scales) -> normed, total T [.., H]
// lopa.cuda::RoundedRmsNorm, RoundedSkipRmsNorm: normed becomes rounded rows and their scales.
// lopa.cuda::SplitRotary(query T [.., (Hq + 2 Hkv) D] without key and value, or query T [.., Hq D], cos, sin T [N, rotated / 2],
//     key, value T [.., Hkv D], bias T [(Hq + 2 Hkv) D], query_norm, key_norm T [D], row_scales, column_scales)
//     -> query T [.., Hq D], key, value T [N, Hkv, D]. Inputs behind `sin` are optional. Canvases: with `value_norm` the heads
//     of values have a norm without a weight, with `shared_value` values are made of the product of keys, which have Hkv heads
//     then, and `width` makes keys and values T [N, 1, width], with zeros behind the heads.
// lopa.cuda::BranchAttention(query T [.., Hq D], key, value T [N, Hkv, D], cache T [C], work int32 [A], scratch float [S])
//     -> T [.., Hq D]. Scores have the factor `scale`, D^-0.5 without it. Canvases: `width` as above, and with `sliding` rows
//     have a start, in the second lists. attention_tasks.py makes the lists in `work`, which lie in device memory: their counts are not known
//     here, so the grid has as many programs as the device runs at once. `scratch` is overwritten.
// lopa.cuda::SwiGlu(gate T [.., 2 I] without up, or gate T [.., I], up T [.., I], row_scales, column_scales) -> T [.., I]
//     With `gelu` it is gelu(gate) * up, also in RoundedSwiGlu and Experts.
// lopa.cuda::RoundedSwiGlu: the result becomes rounded rows and their scales.
// lopa.cuda::RoundRows(x T [.., K]) -> rounded rows and their scales
// lopa.cuda::ScaleRows(product T [.., O], row_scales, column_scales) -> T [.., O]
// lopa.cuda::Int4Product(x T [.., K], weight uint8 [K, O / 2], scales T [K / 32, O]) -> T [.., O] and a workspace
// lopa.cuda::RoundedProductFloat, RoundedProductFloat16, RoundedProductBfloat16(rounded rows, weight uint8: e4m3 [O, K] or
//     int8 [K, O]) -> T [.., O] and a workspace. Scales of rows have the inverse of the factor of such a product, which
//     keeps any sum of K numbers within float16.
// lopa.cuda::TokenStatistics(logits T [Q, V], temperature float [Q]) -> topk_ids int64, topk_logprobs float [Q, K], entropy
//     float [Q] and a workspace.
// lopa.cuda::Experts(rows T [.., H], ids int64 [.., k], weights float [.., k], gate, up T [E, H, I], down T [E, I, H])
//     -> T [.., H], the weighted sum of the chosen experts' outputs, and a workspace.
// lopa.cuda::ExpertsInt4, ExpertsInt8, ExpertsFp8: each matrix has another type, and its scales follow it: int4 [E, H, I] and
//     T [E, H / 32, I], int8 [E, H, I] and float [E, I], e4m3 [E, I, H] and float [E, I]. Rows are rounded to int8 and e4m3.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "../cpu_kernels/onnxruntime_abi.h"
#include "../cpu_kernels/tensors.h"
#include "cublaslt.h"
#include "driver.h"

namespace lopa {
namespace {

constexpr int64_t kMergePrograms = 4;        // that share the pairs of a merge
constexpr int64_t kProgramsOfProcessor = 2;  // of the attention, that a multiprocessor runs at once
constexpr int64_t kHeaderWords = 8;          // of the attention's work
constexpr int64_t kSwiGluColumns = 1024;     // numbers of a row that a program of SwiGlu has
constexpr int64_t kRowColumns = 1024;        // numbers that a program has of ScaleRows, of a merge of a product, and of the experts' sum
constexpr int64_t kProductColumns = 128;     // of a tile of a product
constexpr int64_t kProductRows[] = {32, 64, 128};
constexpr int64_t kProductPrograms = 2;      // that a multiprocessor should have, for which inputs are split into parts
constexpr int64_t kMostParts = 8;            // of the inputs
constexpr int64_t kLeastInputs = 256;        // of a part, a multiple of the inputs of a step
constexpr int64_t kStepInputs = 64;
constexpr int64_t kRowsOfParts = 256;        // of a launch with several parts, for which there is scratch memory
constexpr int64_t kInputsOfScale = 32;       // of an int4 matrix
constexpr int64_t kNormBlocks[] = {1024, 4096};
constexpr int64_t kChannels[] = {64, 128, 256, 512};
constexpr int64_t kSlidingChannels[] = {256};
constexpr int64_t kChunkRows = 64;           // of a cache
constexpr int64_t kMaxSplits = 32;           // of a row of logits
constexpr int64_t kSplitColumns = 4096;      // least columns of a split
constexpr int64_t kMaxExperts = 512;
constexpr int64_t kExpertTile = 32;          // pairs of a row and an expert in a task
constexpr int64_t kTaskWords = 3;
const char* g_provider = "CUDAExecutionProvider";

constexpr int kT = -1;                       // the type of an operator's rows

class Call;

// A node of a graph. Attributes that its operator does not have are 0.
struct Operator {
    Operator(const OrtApi* table, void (*run)(Call&), const char* type, const OrtKernelInfo* info) : api(table), run(run), type(type) {
        const std::pair<const char*, int64_t*> numbers[] = {
            {"heads", &heads}, {"kv_heads", &kv_heads}, {"head_size", &size}, {"layer", &layer}, {"candidates", &candidates}, {"e4m3", &is_e4m3},
            {"width", &width}, {"sliding", &is_sliding}, {"value_norm", &value_norm}, {"shared_value", &shared_value}, {"gelu", &is_gelu}};
        for (const auto& [name, number] : numbers) api.release_status(api.int_attribute(info, name, number));
        api.release_status(api.float_attribute(info, "scale", &scale));
        api.release_status(api.float_attribute(info, "epsilon", &epsilon));
    }

    size_t element_size() const { return type == "fp32" ? 4 : 2; }
    int element() const { return type == "fp32" ? kFloat : type == "fp16" ? kFloat16 : kBfloat16; }
    float step() const { return static_cast<float>(is_e4m3 ? 1 / 448.0 : 1 / 127.0); }

    const Api api;
    void (*const run)(Call&);
    const std::string type;  // as in the names of kernels
    int64_t heads = 0, kv_heads = 0, size = 0, layer = 0, candidates = 0, is_e4m3 = 0;
    int64_t width = 0, is_sliding = 0, value_norm = 0, shared_value = 0, is_gelu = 0;
    float epsilon = 0, scale = 0;
};

// One call of an operator. After the first error, nothing more is done, and `status` has it.
class Call {
   public:
    Call(const Operator& op, OrtKernelContext* context) : op(op), context_(context) {}

    const Operator& op;
    OrtStatus* status = nullptr;

    // Return an input, or one without data if it is absent.
    Input input(size_t index) {
        Input read;
        const OrtValue* value = nullptr;
        size_t count = 0;
        if (!failed(status) && !failed(op.api.input_count(context_, &count)) && index < count && !failed(op.api.input(context_, index, &value)) &&
            value != nullptr)
            failed(read_input(op.api, context_, index, &read));
        return read;
    }

    void* output(size_t index, std::initializer_list<int64_t> dimensions) {
        Shape shape;
        shape.count = dimensions.size();
        std::copy(dimensions.begin(), dimensions.end(), shape.dimensions);
        return output(index, shape);
    }

    void* output(size_t index, const Shape& shape) {
        OrtValue* value = nullptr;
        void* data = nullptr;
        if (status == nullptr && !failed(op.api.output(context_, index, shape.dimensions, shape.count, &value))) failed(op.api.tensor_data(value, &data));
        return data;
    }

    void require(bool holds, const char* expected) {
        if (status == nullptr && !holds) fail(std::string("inputs of other shapes; expected ") + expected);
    }

    void multiply(const Fp8Plan& plan, const void* rows, const void* matrix, void* output, float factor, void* workspace) {
        void* stream = nullptr;
        if (status != nullptr || failed(op.api.stream(context_, &stream))) return;
        const std::string error = multiply_fp8(plan, rows, matrix, output, factor, workspace, stream);
        if (!error.empty()) fail(error);
    }

    template <class... Arguments>
    void launch(const std::string& variant, Grid grid, Arguments... arguments) {
        if (status != nullptr || grid.x == 0 || grid.y == 0) return;
        const Kernel* kernel = find_kernel(variant);
        void* stream = nullptr;
        if (kernel == nullptr) return fail("no kernel " + variant + " is loaded for the current device");
        if (failed(op.api.stream(context_, &stream))) return;
        void* list[] = {static_cast<void*>(&arguments)...};
        const std::string error = launch_kernel(*kernel, grid, stream, list, sizeof...(arguments));
        if (!error.empty()) fail(variant + ": " + error);
    }

   private:
    void fail(const std::string& message) { status = op.api.create_status(kFail, ("lopa.cuda: " + message).c_str()); }

    bool failed(OrtStatus* result) {
        if (result != nullptr && status == nullptr) status = result;
        return status != nullptr;
    }

    OrtKernelContext* context_;
};

int narrow(int64_t number) { return static_cast<int>(number); }

// Name of the smallest variant that is not below `size`, or of the largest.
template <size_t kCount>
std::string fitting(const int64_t (&sizes)[kCount], int64_t size) {
    const int64_t* found = std::find_if(std::begin(sizes), std::end(sizes) - 1, [&](int64_t each) { return each >= size; });
    return std::to_string(*found);
}

bool has(const Input& input, std::initializer_list<int64_t> dimensions) {
    return input.shape.count == dimensions.size() && std::equal(dimensions.begin(), dimensions.end(), input.shape.dimensions);
}

int64_t rounded_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Factor of a product of rounded rows. No sum of numbers up to 448 * 448 exceeds 65504, the largest of float16, with it.
float product_factor(int64_t inputs) { return static_cast<float>(std::exp2(-std::ceil(std::log2(std::max(1.0, 448.0 * 448.0 * inputs / 65504.0))))); }

// Scales of a product: of rows and of columns, or none.
struct Scales {
    Scales(Call& call, size_t index, int64_t count_of_rows, int64_t columns) : row(call.input(index)), column(call.input(index + 1)) {
        const bool fits = row.data == nullptr ? column.data == nullptr : has(row, {count_of_rows}) && has(column, {columns});
        call.require(fits, "scales of all rows and columns");
    }

    int are_there() const { return row.data == nullptr ? 0 : 1; }

    const Input row, column;
};

// Rounded rows, the first two outputs, or none.
struct RoundedRows {
    RoundedRows(Call& call, const Shape& shape, bool are_there = true)
        : data(are_there ? call.output(0, shape) : nullptr), scales(are_there ? call.output(1, {shape.rows()}) : nullptr), step(call.op.step()),
          factor(1 / product_factor(shape.last())), is_e4m3(static_cast<int>(call.op.is_e4m3)) {}

    void *data, *scales;
    float step, factor;
    int is_e4m3;
};

void normalize(Call& call, bool skip, bool rounds) {
    const Input x = call.input(0), delta = skip ? call.input(1) : x, weight = call.input(skip ? 2 : 1);
    const int64_t size = x.shape.count == 0 ? 0 : x.shape.last();
    call.require(size > 0 && weight.shape.count == 1 && weight.shape.last() == size && delta.shape.rows() == x.shape.rows() && delta.shape.last() == size,
                 "rows and a weight of the same size");
    if (call.status != nullptr) return;
    const Scales scales(call, 3, x.shape.rows(), size);
    const RoundedRows rounded(call, x.shape, rounds);
    void* normed = rounds ? nullptr : call.output(0, x.shape);
    void* total = skip ? call.output(rounds ? 2 : 1, x.shape) : nullptr;
    call.launch("rms_norm." + call.op.type + (rounds ? ".rounded" : "") + (skip ? ".skip." : ".") + fitting(kNormBlocks, size), {x.shape.rows()}, x.data,
                delta.data, weight.data, scales.row.data, scales.column.data, scales.are_there(), normed, total, rounded.data, rounded.scales, narrow(size),
                call.op.epsilon, rounded.step, rounded.factor, rounded.is_e4m3);
}

void round_rows(Call& call) {
    const Input x = call.input(0);
    if (call.status != nullptr) return;
    const RoundedRows rounded(call, x.shape);
    call.launch("round_rows." + call.op.type, {x.shape.rows()}, x.data, rounded.data, rounded.scales, narrow(x.shape.last()), rounded.step, rounded.factor,
                rounded.is_e4m3);
}

void scale_rows(Call& call) {
    const Input product = call.input(0);
    if (call.status != nullptr) return;
    const int64_t rows = product.shape.rows(), columns = product.shape.last();
    const Scales scales(call, 1, rows, columns);
    void* scaled = call.output(0, product.shape);
    call.launch("scale_rows." + call.op.type, {rows, rounded_up(columns, kRowColumns) / kRowColumns}, product.data, scales.row.data, scales.column.data, scaled,
                narrow(columns));
}

// Run `launch` for rows of a product, with a grid and scratch memory: at once or, if the inputs are in several parts, some
// rows at a time, and merge the parts. Parts depend on the matrix and the device alone, and so does the result of a row.
template <class Launch>
void multiply_in_tiles(Call& call, const Input& x, size_t row_bytes, int64_t outputs, const Launch& launch) {
    const int64_t rows = x.shape.rows(), inputs = x.shape.last(), tiles = rounded_up(outputs, kProductColumns) / kProductColumns;
    const int64_t wanted = std::min({kMostParts, kProductPrograms * multiprocessors() / tiles, inputs / kLeastInputs});
    const int64_t each = rounded_up(inputs, kStepInputs * std::max<int64_t>(1, wanted)) / std::max<int64_t>(1, wanted);
    const int64_t parts = (inputs + each - 1) / each, rows_at_once = parts == 1 ? rows : std::min(rows, kRowsOfParts);
    Shape shape = x.shape;
    shape.dimensions[shape.count - 1] = outputs;
    char* output = static_cast<char*>(call.output(0, shape));
    void* scratch = call.output(1, {parts == 1 ? 0 : parts * rows_at_once * outputs});
    for (int64_t first = 0; first < rows; first += rows_at_once) {
        const int64_t count = std::min(rows_at_once, rows - first), tile = std::stoi(fitting(kProductRows, count));
        void* target = output + first * outputs * call.op.element_size();
        const Grid grid = {tiles, rounded_up(count, tile) / tile, parts};
        launch("." + std::to_string(tile), grid, static_cast<const char*>(x.data) + first * row_bytes, target, scratch, narrow(count), narrow(each));
        if (parts > 1)
            call.launch("product_merge." + call.op.type, {rounded_up(count * outputs, kRowColumns) / kRowColumns}, scratch, target, narrow(parts),
                        narrow(count * outputs));
    }
}

void multiply_int4(Call& call) {
    const Input x = call.input(0), weight = call.input(1), scales = call.input(2);
    if (call.status != nullptr) return;
    const int64_t inputs = x.shape.last(), outputs = scales.shape.last();
    call.require(has(scales, {inputs / kInputsOfScale, outputs}) && has(weight, {inputs, outputs / 2}) && inputs % kInputsOfScale == 0 && outputs % 16 == 0,
                 "rows, and an int4 matrix with its scales");
    if (call.status != nullptr) return;
    multiply_in_tiles(call, x, inputs * call.op.element_size(), outputs,
                      [&](const std::string& rows, Grid grid, const void* from, void* target, void* scratch, int count, int each) {
                          call.launch("int4_product." + call.op.type + rows, grid, from, weight.data, scales.data, target, scratch, count, narrow(inputs),
                                      narrow(outputs), each);
                      });
}

void multiply_rounded(Call& call) {
    const Input x = call.input(0), weight = call.input(1);
    if (call.status != nullptr) return;
    const bool is_e4m3 = call.op.is_e4m3 != 0;
    const int64_t rows = x.shape.rows(), inputs = x.shape.last(), outputs = is_e4m3 ? weight.shape.dimensions[0] : weight.shape.last();
    call.require(has(weight, {is_e4m3 ? outputs : inputs, is_e4m3 ? inputs : outputs}) && inputs % 16 == 0 && outputs % 16 == 0,
                 "rounded rows and a matrix of their size");
    if (call.status != nullptr) return;
    const float factor = product_factor(inputs);
    const std::shared_ptr<const Fp8Plan> plan = is_e4m3 && rows > 0 ? plan_fp8(rows, inputs, outputs, call.op.element()) : nullptr;
    if (plan == nullptr)
        return multiply_in_tiles(call, x, inputs, outputs,
                                 [&](const std::string& tile, Grid grid, const void* from, void* target, void* scratch, int count, int each) {
                                     call.launch("rounded_product." + call.op.type + (is_e4m3 ? ".e4m3" : ".int8") + tile, grid, from, weight.data, target, scratch,
                                                 count, narrow(inputs), narrow(outputs), each, factor);
                                 });
    Shape shape = x.shape;
    shape.dimensions[shape.count - 1] = outputs;
    void* output = call.output(0, shape);
    void* workspace = call.output(1, {static_cast<int64_t>((workspace_bytes(*plan) + kWorkspaceAlignment) / sizeof(float) + 1)});
    const uintptr_t aligned = rounded_up(reinterpret_cast<uintptr_t>(workspace), kWorkspaceAlignment);
    call.multiply(*plan, x.data, weight.data, output, factor, reinterpret_cast<void*>(aligned));
}

// Numbers of a row of keys or values, and the shape of `rows` of them.
int64_t row_width(const Call& call) { return std::max(call.op.width, call.op.kv_heads * call.op.size); }

Shape row_shape(const Call& call, int64_t rows) {
    const bool wide = call.op.width != 0;
    return {{rows, wide ? 1 : call.op.kv_heads, wide ? row_width(call) : call.op.size}, 3};
}

void split_rotary(Call& call) {
    const Input query = call.input(0), cos = call.input(1), sin = call.input(2), key = call.input(3), value = call.input(4), bias = call.input(5),
                query_norm = call.input(6), key_norm = call.input(7);
    const int64_t heads = call.op.heads, kv_heads = call.op.kv_heads, size = call.op.size, width = row_width(call);
    const int64_t value_head = call.op.shared_value != 0 ? heads : heads + kv_heads, all = (value_head + kv_heads) * size;
    if (call.status != nullptr) return;
    const bool fused = key.data == nullptr;
    const int64_t stride = fused ? all : heads * size, kv_stride = fused ? all : kv_heads * size;
    call.require(query.shape.count > 0 && query.shape.last() == stride, "a query of all heads");
    if (call.status != nullptr) return;
    const int64_t rows = query.shape.rows();
    const Input& values = call.op.shared_value != 0 ? key : value;
    call.require((values.data == nullptr) == fused && (fused || (key.shape.last() == kv_stride && key.shape.rows() == rows && values.shape.last() == kv_stride &&
                                                                values.shape.rows() == rows)),
                 "keys and values of all rows and heads");
    call.require(bias.data == nullptr || bias.shape.last() == all, "a bias of all heads");
    call.require((query_norm.data == nullptr) == (key_norm.data == nullptr) &&
                     (query_norm.data == nullptr || (query_norm.shape.last() == size && key_norm.shape.last() == size)),
                 "norms of a head");
    call.require(cos.shape.count > 0 && cos.shape.rows() == rows && sin.shape.rows() == rows && sin.shape.last() == cos.shape.last() &&
                     2 * cos.shape.last() <= size,
                 "a cosine and a sine of each row");
    if (call.status != nullptr) return;
    const auto behind = [&](int64_t count) { return static_cast<const void*>(static_cast<const char*>(query.data) + count * call.op.element_size()); };
    const void* key_rows = fused ? behind(heads * size) : key.data;
    const void* value_rows = fused ? behind(value_head * size) : values.data;
    const Scales scales(call, 8, rows, all);
    const bool norm = query_norm.data != nullptr;
    Shape shape = query.shape;
    shape.dimensions[shape.count - 1] = heads * size;
    void* rotated = call.output(0, shape);
    void* new_key = call.output(1, row_shape(call, rows));
    void* new_value = call.output(2, row_shape(call, rows));
    call.launch("split_rotary." + call.op.type + (norm ? ".norm." : ".") + fitting(kChannels, size), {rows, heads + 2 * kv_heads}, query.data, key_rows,
                value_rows, narrow(stride), narrow(kv_stride), scales.row.data, scales.column.data, scales.are_there(), bias.data, bias.data == nullptr ? 0 : 1, query_norm.data, key_norm.data, cos.data, sin.data,
                rotated, new_key, new_value, narrow(heads), narrow(kv_heads), narrow(value_head), narrow(size), narrow(width), narrow(2 * cos.shape.last()),
                narrow(call.op.value_norm), call.op.epsilon);
}

void attend(Call& call) {
    const Input query = call.input(0), key = call.input(1), value = call.input(2), cache = call.input(3), work = call.input(4), scratch = call.input(5);
    const int64_t heads = call.op.heads, kv_heads = call.op.kv_heads, size = call.op.size;
    if (call.status != nullptr) return;
    call.require(query.shape.count > 0 && query.shape.last() == heads * size, "a query of all heads");
    if (call.status != nullptr) return;
    const int64_t rows = query.shape.rows();
    const Shape of_rows = row_shape(call, rows);
    const int64_t* sizes = of_rows.dimensions;
    call.require(has(key, {rows, sizes[1], sizes[2]}) && has(value, {rows, sizes[1], sizes[2]}), "keys and values of all rows and heads");
    call.require(cache.shape.count == 1 && scratch.shape.count == 1 && work.shape.count == 1 && work.shape.last() >= kHeaderWords,
                 "a cache, the attention's work and its scratch memory");
    if (call.status != nullptr) return;
    void* attended = call.output(0, query.shape);
    const int64_t programs = rows == 0 ? 0 : std::max<int64_t>(1, kProgramsOfProcessor * multiprocessors() / kv_heads);
    const std::string name = "." + call.op.type, channels = "." + fitting(kChannels, size);
    const bool wide = call.op.width != 0, slides = call.op.is_sliding != 0;
    call.launch("branch_attention" + name + (slides ? ".sliding." + fitting(kSlidingChannels, size) : channels), {programs, kv_heads}, query.data, key.data, value.data, cache.data, work.data, attended, scratch.data,
                narrow(heads), narrow(kv_heads), narrow(size), narrow(row_width(call)), narrow(sizes[2]), narrow(wide ? size : kChunkRows * size),
                narrow(call.op.layer), call.op.scale != 0 ? call.op.scale : 1.0f / std::sqrt(static_cast<float>(size)));
    call.launch("attention_merge" + name + channels, {programs, kv_heads, kMergePrograms}, scratch.data, work.data, attended, narrow(heads), narrow(kv_heads),
                narrow(size), narrow(call.op.is_sliding));
}

void multiply_gate(Call& call, bool rounds) {
    const Input gate = call.input(0), up = call.input(1);
    const bool fused = up.data == nullptr;
    if (call.status != nullptr) return;
    call.require(gate.shape.count > 0 && (fused ? gate.shape.last() % 2 == 0 : up.shape.last() == gate.shape.last() && up.shape.rows() == gate.shape.rows()),
                 "a gate and a factor of the same size");
    if (call.status != nullptr) return;
    const int64_t rows = gate.shape.rows(), stride = gate.shape.last(), size = fused ? stride / 2 : stride;
    const Scales scales(call, 2, rows, 2 * size);
    const void* factor = fused ? static_cast<const char*>(gate.data) + size * call.op.element_size() : up.data;
    Shape shape = gate.shape;
    shape.dimensions[shape.count - 1] = size;
    if (rounds) {
        const RoundedRows rounded(call, shape);
        call.launch("rounded_swiglu." + call.op.type, {rows}, gate.data, factor, scales.row.data, scales.column.data, scales.are_there(), rounded.data,
                    rounded.scales, narrow(stride), narrow(size), rounded.step, rounded.factor, rounded.is_e4m3, narrow(call.op.is_gelu));
    } else {
        void* product = call.output(0, shape);
        call.launch("swiglu." + call.op.type, {rows, rounded_up(size, kSwiGluColumns) / kSwiGluColumns}, gate.data, factor, scales.row.data,
                    scales.column.data, scales.are_there(), product, narrow(stride), narrow(size), narrow(call.op.is_gelu));
    }
}

void find_statistics(Call& call) {
    const Input logits = call.input(0), temperature = call.input(1);
    if (call.status != nullptr) return;
    const int64_t top = call.op.candidates;
    call.require(logits.shape.count == 2 && logits.shape.last() >= top && has(temperature, {logits.shape.rows()}), "logits of rows, and a temperature of each");
    if (call.status != nullptr) return;
    const int64_t vocabulary = logits.shape.last(), rows = logits.shape.rows();
    const int64_t splits = std::min(kMaxSplits, (vocabulary + kSplitColumns - 1) / kSplitColumns), each = (vocabulary + splits - 1) / splits;
    void* ids = call.output(0, {rows, top});
    void* logprobs = call.output(1, {rows, top});
    void* entropy = call.output(2, {rows});
    const int64_t parts = (rows * splits + 3) / 4 * 4;  // kernels take arrays at multiples of 16 bytes
    float* scratch = static_cast<float*>(call.output(3, {parts * (3 + 2 * top)}));
    if (call.status != nullptr) return;
    float *greatest = scratch, *total = greatest + parts, *weighted = total + parts, *numbers = weighted + parts, *values = numbers + parts * top;
    call.launch("statistics_partials." + call.op.type + "." + std::to_string(top), {rows, splits}, logits.data, temperature.data, 1, narrow(vocabulary), narrow(each), greatest, total, weighted, numbers, values);
    call.launch("statistics_merge." + std::to_string(top), {rows}, greatest, total, weighted, numbers, values, narrow(splits), ids, logprobs, entropy);
}

// Return true for matrices [inputs, outputs] of all experts, whose stored numbers have the type `element`.
bool is_stacked(const Input& stored, const Input& scales, int64_t experts, int64_t inputs, int64_t outputs, int element) {
    if (element == kT) return has(stored, {experts, inputs, outputs});
    if (element == kInt4) return inputs % kInputsOfScale == 0 && has(stored, {experts, inputs, outputs}) && has(scales, {experts, inputs / kInputsOfScale, outputs});
    return has(scales, {experts, outputs}) && (element == kFloat8 ? has(stored, {experts, outputs, inputs}) : has(stored, {experts, inputs, outputs}));
}

void mix_experts(Call& call, int element) {
    const bool is_rounded = element == kInt8 || element == kFloat8;
    const Input rows = call.input(0), ids = call.input(1), weights = call.input(2);
    Input stored[3], scales[3];  // of gate, up and down
    for (size_t i = 0; i < 3; ++i) {
        stored[i] = call.input(element == kT ? 3 + i : 3 + 2 * i);
        scales[i] = element == kT ? stored[i] : call.input(4 + 2 * i);
    }
    if (call.status != nullptr) return;
    call.require(rows.shape.count > 0 && ids.shape.count > 0 && weights.shape.count > 0 && stored[0].shape.count == 3 && stored[2].shape.count == 3,
                 "rows, their experts and stacked matrices");
    if (call.status != nullptr) return;
    const int64_t count = rows.shape.rows(), hidden = rows.shape.last(), each = ids.shape.last(), pairs = count * each;
    const int64_t experts = stored[0].shape.dimensions[0], size = stored[2].shape.dimensions[element == kFloat8 ? 2 : 1];
    call.require(ids.shape.rows() == count && weights.shape.rows() == count && weights.shape.last() == each && each > 0, "experts and weights of each row");
    call.require(experts <= kMaxExperts && hidden % 16 == 0 && size % 16 == 0 && is_stacked(stored[0], scales[0], experts, hidden, size, element) &&
                     is_stacked(stored[1], scales[1], experts, hidden, size, element) && is_stacked(stored[2], scales[2], experts, size, hidden, element),
                 "matrices of up to 512 experts that fit the rows");
    if (call.status != nullptr) return;
    void* total = call.output(0, rows.shape);
    // Arrays of the workspace, in words of 4 bytes.
    int64_t words = 0;
    const auto take = [&](int64_t numbers) { return std::exchange(words, words + (numbers + 3) / 4 * 4); };
    const int64_t tasks = take(1 + kTaskWords * (std::min(experts, pairs) + pairs / kExpertTile)), order = take(pairs), outputs = take(pairs * hidden),
                  inner = take(pairs * size), row_scales = take(count), inner_scales = take(pairs);
    const int64_t rounded_rows = take(is_rounded ? count * hidden / 4 : 0), rounded_inner = take(is_rounded ? pairs * size / 4 : 0);
    float* space = static_cast<float*>(call.output(1, {words}));
    if (call.status != nullptr) return;
    const std::string kind = element == kInt8 ? ".int8" : element == kFloat8 ? ".fp8" : "." + call.op.type;
    const std::string product = is_rounded ? "_rounded" + kind : (element == kInt4 ? "_int4" : "") + kind;
    const int64_t programs = pairs == 0 ? 0 : kProgramsOfProcessor * multiprocessors();
    const void *x = rows.data, *y = space + inner;
    call.launch("expert_tasks", {pairs == 0 ? 0 : experts}, ids.data, space + tasks, space + order, narrow(pairs));
    const auto round_rows = [&](const std::string& type, int64_t number, const void* from, int64_t length, int64_t to, int64_t to_scales) {
        const float step = 1.0f / (element == kFloat8 ? 448.0f : 127.0f);
        call.launch("round_rows." + type, {number}, from, space + to, space + to_scales, narrow(length), step, 1.0f, element == kFloat8 ? 1 : 0);
        return space + to;
    };
    if (is_rounded) x = round_rows(call.op.type, count, x, hidden, rounded_rows, row_scales);
    call.launch("expert_gate_up" + product, {programs}, x, space + row_scales, stored[0].data, scales[0].data, stored[1].data, scales[1].data, space + tasks,
                space + order, space + inner, narrow(each), narrow(hidden), narrow(size), narrow(call.op.is_gelu));
    if (is_rounded) y = round_rows("fp32", pairs, y, size, rounded_inner, inner_scales);
    call.launch("expert_down" + product, {programs}, y, space + inner_scales, weights.data, stored[2].data, scales[2].data, space + tasks, space + order,
                space + outputs, narrow(size), narrow(hidden));
    call.launch("expert_sum." + call.op.type, {count, (hidden + kRowColumns - 1) / kRowColumns}, space + outputs, total, narrow(each), narrow(hidden));
}

// An operator. Inputs and outputs have the type T (kT) or a fixed one; inputs beyond `required` are optional.
struct Description {
    const char* name;
    void (*run)(Call& call);
    std::initializer_list<int> inputs;
    size_t required;
    std::initializer_list<int> outputs;
    bool is_named = false;  // by its type too, as no input has it
};

const Description kDescriptions[] = {
    {"RmsNorm", [](Call& call) { normalize(call, false, false); }, {kT, kT}, 2, {kT}},
    {"RoundedRmsNorm", [](Call& call) { normalize(call, false, true); }, {kT, kT}, 2, {kUint8, kFloat}},
    {"SkipRmsNorm", [](Call& call) { normalize(call, true, false); }, {kT, kT, kT, kFloat, kFloat}, 3, {kT, kT}},
    {"RoundedSkipRmsNorm", [](Call& call) { normalize(call, true, true); }, {kT, kT, kT, kFloat, kFloat}, 3, {kUint8, kFloat, kT}},
    {"SplitRotary", split_rotary, {kT, kT, kT, kT, kT, kT, kT, kT, kFloat, kFloat}, 3, {kT, kT, kT}},
    {"BranchAttention", attend, {kT, kT, kT, kT, kInt32, kFloat}, 6, {kT}},
    {"SwiGlu", [](Call& call) { multiply_gate(call, false); }, {kT, kT, kFloat, kFloat}, 1, {kT}},
    {"RoundedSwiGlu", [](Call& call) { multiply_gate(call, true); }, {kT, kT, kFloat, kFloat}, 1, {kUint8, kFloat}},
    {"RoundRows", round_rows, {kT}, 1, {kUint8, kFloat}},
    {"ScaleRows", scale_rows, {kT, kFloat, kFloat}, 3, {kT}},
    {"Int4Product", multiply_int4, {kT, kUint8, kT}, 3, {kT, kFloat}},
    {"RoundedProduct", multiply_rounded, {kUint8, kUint8}, 2, {kT, kFloat}, true},
    {"TokenStatistics", find_statistics, {kT, kFloat}, 2, {kInt64, kFloat, kFloat, kFloat}},
    {"Experts", [](Call& call) { mix_experts(call, kT); }, {kT, kInt64, kFloat, kT, kT, kT}, 6, {kT, kFloat}},
    {"ExpertsInt4", [](Call& call) { mix_experts(call, kInt4); }, {kT, kInt64, kFloat, kInt4, kT, kInt4, kT, kInt4, kT}, 9, {kT, kFloat}},
    {"ExpertsInt8", [](Call& call) { mix_experts(call, kInt8); }, {kT, kInt64, kFloat, kInt8, kFloat, kInt8, kFloat, kInt8, kFloat}, 9, {kT, kFloat}},
    {"ExpertsFp8", [](Call& call) { mix_experts(call, kFloat8); }, {kT, kInt64, kFloat, kFloat8, kFloat, kFloat8, kFloat, kFloat8, kFloat}, 9, {kT, kFloat}},
};
constexpr struct {
    int element;
    const char* name;
    const char* suffix;
} kTypes[] = {{kFloat, "fp32", "Float"}, {kFloat16, "fp16", "Float16"}, {kBfloat16, "bf16", "Bfloat16"}};

// An operator for one type. ONNX Runtime passes it to each of its functions.
struct TypedOp : CustomOp {
    TypedOp(const Description& description, int element, const char* type, const char* suffix)
        : description(description), element(element), type(type), full_name(std::string(description.name) + (description.is_named ? suffix : "")) {
        name = [](const CustomOp* op) { return of(op).full_name.c_str(); };
        provider = [](const CustomOp*) { return g_provider; };
        input_type = [](const CustomOp* op, size_t index) { return of(op).resolved(of(op).description.inputs.begin()[index]); };
        input_count = [](const CustomOp* op) { return of(op).description.inputs.size(); };
        output_type = [](const CustomOp* op, size_t index) { return of(op).resolved(of(op).description.outputs.begin()[index]); };
        output_count = [](const CustomOp* op) { return of(op).description.outputs.size(); };
        input_kind = [](const CustomOp* op, size_t index) { return index < of(op).description.required ? 0 : 1; };
        output_kind = input_memory = [](const CustomOp*, size_t) { return 0; };
        create_kernel_with_status = [](const CustomOp* op, const OrtApi* table, const OrtKernelInfo* info, void** kernel) -> OrtStatus* {
            *kernel = new (std::nothrow) Operator(table, of(op).description.run, of(op).type, info);
            return *kernel == nullptr ? out_of_memory(Api(table)) : nullptr;
        };
        compute_with_status = [](void* kernel, OrtKernelContext* context) {
            Call call(*static_cast<Operator*>(kernel), context);
            call.op.run(call);
            return call.status;
        };
        destroy_kernel = [](void* kernel) { delete static_cast<Operator*>(kernel); };
    }

    static const TypedOp& of(const CustomOp* op) { return *static_cast<const TypedOp*>(op); }
    int resolved(int wanted) const { return wanted == kT ? element : wanted; }

    const Description& description;
    const int element;
    const char* const type;
    const std::string full_name;
};

}  // namespace
}  // namespace lopa

#define LOPA_EXPORT extern "C" __attribute__((visibility("default")))

// Called by ONNX Runtime's SessionOptions.register_custom_ops_library.
LOPA_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const lopa::OrtApiBase* base) {
    using namespace lopa;
    const Api api(base->GetApi(kApiVersion));
    static OrtStatus* failure = nullptr;
    static OrtCustomOpDomain* const domain = [&api] {  // lives as long as the process: sessions refer to it
        OrtCustomOpDomain* made = nullptr;
        failure = api.create_domain("lopa.cuda", &made);
        for (const Description& description : kDescriptions)
            for (const auto& type : kTypes)
                if (failure == nullptr) failure = api.add_op(made, new TypedOp(description, type.element, type.name, type.suffix));
        return made;
    }();
    if (failure != nullptr) return api.create_status(kFail, "lopa.cuda: the operators could not be registered");
    return api.add_domain(options, domain);
}

// Load kernels for a device, whose context is current. Writes what went wrong into `message`, or an empty text.
LOPA_EXPORT void lopa_cuda_load(int device, const lopa::KernelImage* images, size_t count, char* message, size_t size) {
    std::snprintf(message, size, "%s", lopa::load_kernels(device, images, count).c_str());
}

// Enqueue a kernel of the current device. Writes what went wrong into `message`, or an empty text.
LOPA_EXPORT void lopa_cuda_launch(const char* variant, const int64_t* grid, void* stream, void* const* arguments, int count, char* message, size_t size) {
    const lopa::Kernel* kernel = lopa::find_kernel(variant);
    const std::string error = kernel == nullptr ? std::string("no kernel ") + variant + " is loaded"
                                                : lopa::launch_kernel(*kernel, {grid[0], grid[1], grid[2]}, stream, arguments, count);
    std::snprintf(message, size, "%s", error.c_str());
}

// Register the operators for another provider, for tests without a GPU. Has an effect before the first registration.
LOPA_EXPORT void lopa_cuda_select_provider(const char* name) { lopa::g_provider = name; }
