#include "experts.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "products.h"
#include "tensors.h"

namespace lopa {
namespace {

constexpr int64_t kWindowNumbers = 6 << 20;    // numbers of a buffer, at most: larger ones go back to the system after each use
constexpr int64_t kMinWindowRows = 128;        // rows that are computed together, if there are as many
constexpr int64_t kParallelNumbers = 1 << 15;  // numbers of a step from which threads pay
constexpr size_t kMaxInputs = 9;

enum class Numbers { kInt4, kInt8, kFloat };

// What differs between the operators.
struct Form {
    const char* name;
    Numbers numbers;
    int64_t bits;  // of a weight
    bool half_scales;
    ComputeStrip* Kernels::*strip;

    bool has_scales() const { return numbers != Numbers::kFloat; }
    size_t inputs() const { return has_scales() ? 9 : 6; }
};
constexpr Form kInt4Form = {"ExpertsInt4", Numbers::kInt4, 4, false, &Kernels::int4_strip};
constexpr Form kInt4HalfScalesForm = {"ExpertsInt4HalfScales", Numbers::kInt4, 4, true, &Kernels::int4_strip};
constexpr Form kInt8Form = {"ExpertsInt8", Numbers::kInt8, 8, false, &Kernels::int8_strip};
constexpr Form kFloatForm = {"ExpertsFloat", Numbers::kFloat, 32, false, &Kernels::float_strip};
constexpr Form kFloat16Form = {"ExpertsFloat16", Numbers::kFloat, 16, false, &Kernels::float16_strip};

// One matrix of every expert.
struct Stack {
    const uint8_t* weights;
    const void* scales;
    int64_t inputs, columns;
};

struct Layer {
    Form form;
    int64_t rows, hidden, inner, experts, choices;
    const float* x;        // [rows, hidden]
    const int64_t* ids;    // [rows, choices]
    const float* weights;  // [rows, choices]
    Stack gate, up, down;
};

// An expert that rows have chosen. A pair is one choice of one row. Pairs of an expert are neighbours.
struct Expert {
    int64_t id, first, count;  // of pairs
};

struct Pairs {
    Buffer<Expert> experts;
    int64_t chosen = 0;      // experts
    Buffer<int64_t> rows;    // row of each pair, within the window
    Buffer<int64_t> places;  // pair of [row, choice]
};

// Sort the pairs of rows [first, first + count) by expert. Returns false without memory.
bool sort_pairs(const Layer& layer, int64_t first, int64_t count, Pairs* pairs) {
    const int64_t total = count * layer.choices;
    const int64_t* ids = layer.ids + first * layer.choices;
    pairs->experts = buffer_of<Expert>(std::min(total, layer.experts));
    pairs->rows = buffer_of<int64_t>(total);
    pairs->places = buffer_of<int64_t>(total);
    const auto ends = buffer_of<int64_t>(layer.experts);
    if (!pairs->experts || !pairs->rows || !pairs->places || !ends) return false;
    std::fill_n(ends.get(), layer.experts, 0);
    for (int64_t i = 0; i < total; ++i) ++ends[ids[i]];
    int64_t place = 0;
    pairs->chosen = 0;
    for (int64_t id = 0; id < layer.experts; ++id) {
        const int64_t size = ends[id];
        ends[id] = place;
        if (size != 0) pairs->experts[pairs->chosen++] = {id, place, size};
        place += size;
    }
    for (int64_t i = 0; i < total; ++i) {
        pairs->places[i] = ends[ids[i]]++;
        pairs->rows[pairs->places[i]] = i / layer.choices;
    }
    return true;
}

// Rows as the kernels read them: in blocks, and rounded for quantized matrices.
struct OrderedRows {
    Form form;
    int64_t blocks;
    Buffer<int8_t> numbers;
    Buffer<float> floats, scales;
    Buffer<int32_t> corrections;

    int64_t scales_per_row() const { return form.numbers == Numbers::kInt4 ? blocks : 1; }
    bool allocate(int64_t rows) {
        if (!form.has_scales()) return static_cast<bool>(floats = buffer_of<float>(rows * blocks * kBlock));
        numbers = buffer_of<int8_t>(rows * blocks * kBlock);
        scales = buffer_of<float>(rows * scales_per_row());
        corrections = buffer_of<int32_t>(rows * scales_per_row());
        return numbers && scales && corrections;
    }
    RoundedRows rounded(int64_t row) const {
        if (!form.has_scales()) return {};
        const int64_t scale = row * scales_per_row();
        return {numbers.get() + row * blocks * kBlock, scales.get() + scale, corrections.get() + scale};
    }
    float* float_rows(int64_t row) const { return form.has_scales() ? nullptr : floats.get() + row * blocks * kBlock; }
};

OrderedRows rows_of(const Form& form, int64_t inputs) { return {form, (inputs + kBlock - 1) / kBlock, {}, {}, {}, {}}; }

// Product of the pairs of an expert with one of its matrices.
Product product_of(const Form& form, const Stack& stack, const Expert& expert, const OrderedRows& rows, float* output) {
    const int64_t scales = expert.id * stack.columns * (form.numbers == Numbers::kInt4 ? stack.inputs / kBlock : 1);
    Product product = {};
    product.rows = expert.count;
    product.inputs = stack.inputs;
    product.columns = stack.columns;
    product.weights = stack.weights + expert.id * stack.inputs * stack.columns * form.bits / 8;
    if (form.half_scales)
        product.half_scales = static_cast<const uint16_t*>(stack.scales) + scales;
    else if (form.has_scales())
        product.scales = static_cast<const float*>(stack.scales) + scales;
    product.rounded = rows.rounded(expert.first);
    product.floats = rows.float_rows(expert.first);
    product.output = output + expert.first * stack.columns;
    return product;
}

// Order blocks [first, last) of float rows, and round those for int4 matrices.
void order_blocks(const Form& form, const Product& product, const float* rows, float* floats, int64_t first, int64_t last) {
    if (form.numbers == Numbers::kInt4) return g_kernels->round_rows(product, rows, first, last);
    for (int64_t block = first; block < last; ++block) {
        const int64_t width = std::min(kBlock, product.inputs - block * kBlock);
        for (int64_t row = 0; row < product.rows; ++row) {
            float* ordered = floats + (block * product.rows + row) * kBlock;
            std::memcpy(ordered, rows + row * product.inputs + block * kBlock, width * sizeof(float));
            std::fill_n(ordered + width, kBlock - width, 0.0f);
        }
    }
}

// Order one row, and round it for int8 matrices. `step` is the distance of its blocks.
void order_int8_row(const float* row, int64_t inputs, const RoundedRows& rounded, int64_t step) {
    int32_t sum = 0;
    g_kernels->round_row(row, inputs, rounded.numbers, step, rounded.scales, &sum);
    *rounded.corrections = -g_kernels->int8_offset * sum;
}

// Copy the rows of an expert's pairs, block by block.
void gather(const Pairs& pairs, const Expert& expert, const OrderedRows& from, const OrderedRows& to) {
    const int64_t blocks = from.blocks, per_row = from.scales_per_row();
    const int64_t* rows = pairs.rows.get() + expert.first;
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < expert.count; ++i) {
            const int64_t source = rows[i] * blocks + block, target = expert.first * blocks + block * expert.count + i;
            if (!from.form.has_scales()) {
                std::memcpy(&to.floats[target * kBlock], &from.floats[source * kBlock], kBlock * sizeof(float));
                continue;
            }
            std::memcpy(&to.numbers[target * kBlock], &from.numbers[source * kBlock], kBlock);
            if (block < per_row) {
                const int64_t scale = expert.first * per_row + block * expert.count + i;
                to.scales[scale] = from.scales[rows[i] * per_row + block];
                to.corrections[scale] = from.corrections[rows[i] * per_row + block];
            }
        }
}

// Computation of some rows of a layer.
class Window {
   public:
    Window(const SessionApi& api, OrtKernelContext* context, const Layer& layer, int64_t first, int64_t rows, float* output)
        : api_(api),
          context_(context),
          layer_(layer),
          first_(first),
          rows_(rows),
          output_(output),
          staged_(rows_of(layer.form, layer.hidden)),
          outer_(rows_of(layer.form, layer.hidden)),
          inner_(rows_of(layer.form, layer.inner)) {}

    OrtStatus* compute() {
        const int64_t pairs = rows_ * layer_.choices;
        gates_ = buffer_of<float>(pairs * layer_.inner);
        ups_ = buffer_of<float>(pairs * layer_.inner);
        results_ = buffer_of<float>(pairs * layer_.hidden);
        if (!sort_pairs(layer_, first_, rows_, &pairs_) || !staged_.allocate(rows_) || !outer_.allocate(pairs) || !inner_.allocate(pairs) ||
            !gates_ || !ups_ || !results_)
            return out_of_memory(api_);
        if (OrtStatus* status = order_rows()) return status;
        if (OrtStatus* status = compute_inner()) return status;
        if (OrtStatus* status = round_inner()) return status;
        if (OrtStatus* status = compute_down()) return status;
        return add_choices();
    }

   private:
    // Order each row once, then copy it to each of its experts.
    OrtStatus* order_rows() {
        const auto stage = [&](int64_t row) {
            const float* x = layer_.x + (first_ + row) * layer_.hidden;
            if (layer_.form.numbers == Numbers::kInt8) return order_int8_row(x, layer_.hidden, staged_.rounded(row), kBlock);
            Product product = {};
            product.rows = 1, product.inputs = layer_.hidden, product.rounded = staged_.rounded(row);
            order_blocks(layer_.form, product, x, staged_.float_rows(row), 0, staged_.blocks);
        };
        if (OrtStatus* status = run(rows_, layer_.hidden, stage)) return status;
        return run(pairs_.chosen, pairs_per_expert() * layer_.hidden, [&](int64_t i) { gather(pairs_, pairs_.experts[i], staged_, outer_); });
    }

    // gates_ = activation(rows @ gate) * (rows @ up), ordered for the last product.
    OrtStatus* compute_inner() {
        const auto compute = layer_.form.strip;
        const auto activate = api_.gelu ? g_kernels->geglu : g_kernels->swiglu;
        const Strips strips(layer_.inner, pairs_, api_.tasks());
        const auto task = [&](int64_t index) {
            const Expert& expert = expert_at(strips, index);
            const auto [first, last] = strips.tiles(index);
            const Product gate = product_of(layer_.form, layer_.gate, expert, outer_, gates_.get());
            const Product up = product_of(layer_.form, layer_.up, expert, outer_, ups_.get());
            const Strip up_strip = {&up, first, last};
            (g_kernels->*compute)({&gate, first, last}, up_strip);
            Product after = {};
            if (index + 1 < strips.count()) after = product_of(layer_.form, layer_.gate, expert_at(strips, index + 1), outer_, gates_.get());
            (g_kernels->*compute)(up_strip, strips.strip(after, index + 1));
            const int64_t column = first * kTile, width = std::min(last * kTile, layer_.inner) - column;
            for (int64_t row = 0; row < expert.count; ++row)
                activate(gate.output + row * layer_.inner + column, up.output + row * layer_.inner + column, width);
            if (layer_.form.numbers == Numbers::kInt8) return;  // rounds whole rows
            const Product down = product_of(layer_.form, layer_.down, expert, inner_, results_.get());
            order_blocks(layer_.form, down, gate.output, inner_.float_rows(expert.first), column / kBlock, (column + width + kBlock - 1) / kBlock);
        };
        return run_tasks(api_, context_, strips.count(), task);
    }

    OrtStatus* round_inner() {
        if (layer_.form.numbers != Numbers::kInt8) return nullptr;
        return run(pairs_.chosen, pairs_per_expert() * layer_.inner, [&](int64_t i) {
            const Expert& expert = pairs_.experts[i];
            for (int64_t row = 0; row < expert.count; ++row) {
                RoundedRows rounded = inner_.rounded(expert.first);
                rounded = {rounded.numbers + row * kBlock, rounded.scales + row, rounded.corrections + row};
                order_int8_row(&gates_[(expert.first + row) * layer_.inner], layer_.inner, rounded, expert.count * kBlock);
            }
        });
    }

    OrtStatus* compute_down() {
        const auto compute = layer_.form.strip;
        const Strips strips(layer_.hidden, pairs_, api_.tasks());
        const auto task = [&](int64_t index) {
            const Product down = product_of(layer_.form, layer_.down, expert_at(strips, index), inner_, results_.get());
            Product after = {};
            if (index + 1 < strips.count()) after = product_of(layer_.form, layer_.down, expert_at(strips, index + 1), inner_, results_.get());
            (g_kernels->*compute)(strips.strip(down, index), strips.strip(after, index + 1));
        };
        return run_tasks(api_, context_, strips.count(), task);
    }

    OrtStatus* add_choices() {
        return run(rows_, layer_.choices * layer_.hidden, [&](int64_t row) {
            float* sum = output_ + (first_ + row) * layer_.hidden;
            std::fill_n(sum, layer_.hidden, 0.0f);
            for (int64_t choice = row * layer_.choices; choice < (row + 1) * layer_.choices; ++choice)
                g_kernels->add_weighted(sum, &results_[pairs_.places[choice] * layer_.hidden], layer_.weights[first_ * layer_.choices + choice],
                                        layer_.hidden);
        });
    }

    // Strips of the products of all chosen experts with matrices of `columns` columns. Tasks go through them in order.
    struct Strips {
        Strips(int64_t columns, const Pairs& pairs, int64_t tasks) : all((columns + kTile - 1) / kTile), experts(pairs.chosen) {
            int64_t rows = 1;
            for (int64_t i = 0; i < experts; ++i) rows = std::max(rows, pairs.experts[i].count);
            width = std::min(all, strip_tiles(all * experts, rows, tasks));
            per_expert = (all + width - 1) / width;
        }

        int64_t count() const { return experts * per_expert; }
        std::pair<int64_t, int64_t> tiles(int64_t index) const {
            const int64_t first = index % per_expert * width;
            return {first, std::min(all, first + width)};
        }
        Strip strip(const Product& product, int64_t index) const {
            if (index >= count()) return {};
            const auto [first, last] = tiles(index);
            return {&product, first, last};
        }
        int64_t all, experts, width, per_expert;  // tiles, experts, tiles of a strip, strips of an expert
    };

    const Expert& expert_at(const Strips& strips, int64_t index) const { return pairs_.experts[index / strips.per_expert]; }
    int64_t pairs_per_expert() const { return rows_ * layer_.choices / pairs_.chosen; }

    // Run tasks that work on about `numbers` numbers each.
    template <class Task>
    OrtStatus* run(int64_t tasks, int64_t numbers, const Task& task) {
        if (tasks * numbers >= kParallelNumbers) return run_tasks(api_, context_, tasks, task);
        for (int64_t i = 0; i < tasks; ++i) task(i);
        return nullptr;
    }

    const SessionApi& api_;
    OrtKernelContext* context_;
    const Layer& layer_;
    const int64_t first_, rows_;
    float* const output_;
    Pairs pairs_;
    OrderedRows staged_, outer_, inner_;  // rows, rows of pairs, and activation(gate) * up of pairs
    Buffer<float> gates_, ups_, results_;
};

OrtStatus* wrong_shape(const Api& api, const Form& form, const char* input, const Shape& shape, const char* expected) {
    char found[128] = "", message[320];
    for (size_t i = 0, at = 0; i < shape.count; ++i)
        at += std::snprintf(found + at, sizeof found - at, i == 0 ? "%lld" : ", %lld", static_cast<long long>(shape.dimensions[i] % 1000000000000));
    std::snprintf(message, sizeof message, "lopa.cpu::%s: %s has shape [%s], expected %s", form.name, input, found, expected);
    return api.create_status(kInvalidArgument, message);
}

// Check that `shape` is [a, b, c], or [a, c] if b is negative.
OrtStatus* check_shape(const Api& api, const Form& form, const char* input, const Shape& shape, int64_t a, int64_t b, int64_t c) {
    const bool flat = b < 0;
    if (flat && shape.count == 2 && shape.dimensions[0] == a && shape.dimensions[1] == c) return nullptr;
    if (!flat && shape.count == 3 && shape.dimensions[0] == a && shape.dimensions[1] == b && shape.dimensions[2] == c) return nullptr;
    char expected[128];
    if (flat)
        std::snprintf(expected, sizeof expected, "[%lld, %lld]", static_cast<long long>(a), static_cast<long long>(c));
    else
        std::snprintf(expected, sizeof expected, "[%lld, %lld, %lld]", static_cast<long long>(a), static_cast<long long>(b), static_cast<long long>(c));
    return wrong_shape(api, form, input, shape, expected);
}

bool same_leading(const Shape& a, const Shape& b) {
    return a.count == b.count && std::equal(a.dimensions, a.dimensions + a.count - 1, b.dimensions);
}

// Read a layer and check it.
OrtStatus* read_layer(const Api& api, const Form& form, const Input* inputs, Layer* layer) {
    static const char* const kNames[2][6] = {{"gate", "up", "down"}, {"gate", "gate_scales", "up", "up_scales", "down", "down_scales"}};
    const Shape &rows = inputs[0].shape, &ids = inputs[1].shape, &weights = inputs[2].shape, &gate = inputs[3].shape;
    if (!same_leading(rows, ids) || ids.last() < 1) return wrong_shape(api, form, "ids", ids, "a row of at least 1 number for each of rows");
    if (!same_leading(ids, weights) || weights.last() != ids.last()) return wrong_shape(api, form, "weights", weights, "the shape of ids");
    const int64_t hidden = rows.last();
    if (gate.count != 3 || gate.dimensions[0] < 1 || gate.dimensions[1] != hidden || gate.dimensions[2] < 1 || hidden < 1)
        return wrong_shape(api, form, "gate", gate, "[experts, numbers of a row, inner numbers], all at least 1");
    const int64_t experts = gate.dimensions[0], inner = gate.dimensions[2];
    if (form.numbers == Numbers::kInt4 && (hidden % kBlock != 0 || inner % kBlock != 0))
        return wrong_shape(api, form, "gate", gate, "multiples of 32 inputs and columns");
    if (form.numbers == Numbers::kInt8 && std::max(hidden, inner) > kMaxInt8Inputs)
        return wrong_shape(api, form, "gate", gate, "at most 131071 inputs and columns, because sums are 32 bits");
    Stack stacks[3];
    for (size_t i = 0; i < 3; ++i) {
        const size_t index = 3 + i * (form.has_scales() ? 2 : 1);
        stacks[i] = {static_cast<const uint8_t*>(inputs[index].data), nullptr, i < 2 ? hidden : inner, i < 2 ? inner : hidden};
        const Stack& stack = stacks[i];
        if (OrtStatus* status = check_shape(api, form, kNames[form.has_scales()][index - 3], inputs[index].shape, experts, stack.inputs, stack.columns))
            return status;
        if (!form.has_scales()) continue;
        stacks[i].scales = inputs[index + 1].data;
        const int64_t blocks = form.numbers == Numbers::kInt4 ? stack.inputs / kBlock : -1;
        if (OrtStatus* status = check_shape(api, form, kNames[1][index - 2], inputs[index + 1].shape, experts, blocks, stack.columns)) return status;
    }
    *layer = {form,
              rows.rows(),
              hidden,
              inner,
              experts,
              ids.last(),
              static_cast<const float*>(inputs[0].data),
              static_cast<const int64_t*>(inputs[1].data),
              static_cast<const float*>(inputs[2].data),
              stacks[0],
              stacks[1],
              stacks[2]};
    const int64_t* end = layer->ids + layer->rows * layer->choices;
    const int64_t* wrong = std::find_if(layer->ids, end, [&](int64_t id) { return id < 0 || id >= experts; });
    if (wrong == end) return nullptr;
    char message[160];
    std::snprintf(message, sizeof message, "lopa.cpu::%s: id %lld of row %lld is not one of %lld experts", form.name, static_cast<long long>(*wrong),
                  static_cast<long long>((wrong - layer->ids) / layer->choices), static_cast<long long>(experts));
    return api.create_status(kInvalidArgument, message);
}

OrtStatus* compute_experts(const Form& form, void* kernel, OrtKernelContext* context) {
    const SessionApi& api = *static_cast<SessionApi*>(kernel);
    Input inputs[kMaxInputs];
    for (size_t i = 0; i < form.inputs(); ++i)
        if (OrtStatus* status = read_input(api, context, i, &inputs[i])) return status;
    Layer layer;
    if (OrtStatus* status = read_layer(api, form, inputs, &layer)) return status;
    float* output = nullptr;
    if (OrtStatus* status = open_output(api, context, inputs[0].shape, layer.hidden, &output)) return status;
    const int64_t per_row = layer.choices * std::max(layer.hidden, layer.inner);
    const int64_t most = std::max(kMinWindowRows, kWindowNumbers / per_row), windows = (layer.rows + most - 1) / most;
    for (int64_t i = 0; i < windows; ++i) {
        const int64_t first = layer.rows * i / windows, end = layer.rows * (i + 1) / windows;
        if (OrtStatus* status = Window(api, context, layer, first, end - first, output).compute()) return status;
    }
    return nullptr;
}

}  // namespace

OrtStatus* compute_experts_int4(void* kernel, OrtKernelContext* context) { return compute_experts(kInt4Form, kernel, context); }
OrtStatus* compute_experts_int4_half_scales(void* kernel, OrtKernelContext* context) {
    return compute_experts(kInt4HalfScalesForm, kernel, context);
}
OrtStatus* compute_experts_int8(void* kernel, OrtKernelContext* context) { return compute_experts(kInt8Form, kernel, context); }
OrtStatus* compute_experts_float(void* kernel, OrtKernelContext* context) { return compute_experts(kFloatForm, kernel, context); }
OrtStatus* compute_experts_float16(void* kernel, OrtKernelContext* context) { return compute_experts(kFloat16Form, kernel, context); }

}  // namespace lopa
