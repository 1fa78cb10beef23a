// Tensors of operators: inputs, outputs and buffers.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "onnxruntime_abi.h"

namespace lopa {

constexpr int64_t kMaxDimensions = 8;

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
template <class Number>
using Buffer = std::unique_ptr<Number[], Free>;

template <class Number>
Buffer<Number> buffer_of(int64_t count) {
    const size_t bytes = (count * sizeof(Number) + 63) / 64 * 64;
    return Buffer<Number>(static_cast<Number*>(std::aligned_alloc(64, std::max<size_t>(bytes, 64))));
}

struct Shape {
    int64_t dimensions[kMaxDimensions] = {};
    size_t count = 0;

    int64_t last() const { return dimensions[count - 1]; }
    int64_t rows() const {
        int64_t rows = 1;
        for (size_t i = 0; i + 1 < count; ++i) rows *= dimensions[i];
        return rows;
    }
};

struct Input {
    const void* data = nullptr;
    Shape shape;
};

inline OrtStatus* read_input(const Api& api, OrtKernelContext* context, size_t index, Input* read) {
    const OrtValue* value = nullptr;
    if (OrtStatus* status = api.input(context, index, &value)) return status;
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (OrtStatus* status = api.type_and_shape(value, &info)) return status;
    OrtStatus* status = api.dimensions_count(info, &read->shape.count);
    if (status == nullptr && (read->shape.count == 0 || read->shape.count > kMaxDimensions))
        status = api.create_status(kInvalidArgument, "lopa: inputs must have 1 to 8 dimensions");
    if (status == nullptr) status = api.dimensions(info, read->shape.dimensions, read->shape.count);
    api.release_type_and_shape(info);
    if (status != nullptr) return status;
    void* data = nullptr;
    status = api.tensor_data(const_cast<OrtValue*>(value), &data);
    read->data = data;
    return status;
}

template <size_t kCount>
OrtStatus* read_inputs(const Api& api, OrtKernelContext* context, Input (&inputs)[kCount]) {
    for (size_t i = 0; i < kCount; ++i)
        if (OrtStatus* status = read_input(api, context, i, &inputs[i])) return status;
    return nullptr;
}

inline OrtStatus* open_output(const Api& api, OrtKernelContext* context, const Shape& rows, int64_t columns, float** data) {
    Shape shape = rows;
    shape.dimensions[shape.count - 1] = columns;
    OrtValue* value = nullptr;
    if (OrtStatus* status = api.output(context, 0, shape.dimensions, shape.count, &value)) return status;
    return api.tensor_data(value, reinterpret_cast<void**>(data));
}

// The interface for a kernel of a session with a number of threads.
struct SessionApi : Api {
    SessionApi(const OrtApi* api, int64_t threads, bool gelu) : Api(api), threads(threads), gelu(gelu) {}

    // Number of tasks of a product from which all threads of the session have work to the end.
    int64_t tasks() const { return threads == 1 ? 1 : 4 * threads; }
    int64_t threads;
    bool gelu;  // of a node of experts
};

// Call task(0) to task(count - 1), shared among the threads of the session.
template <class Task>
OrtStatus* run_tasks(const Api& api, OrtKernelContext* context, int64_t count, const Task& task) {
    if (count < 2) {
        for (int64_t i = 0; i < count; ++i) task(i);
        return nullptr;
    }
    const auto call = [](void* data, size_t index) { (*static_cast<const Task*>(data))(static_cast<int64_t>(index)); };
    return api.parallel_for(context, call, count, 0, const_cast<Task*>(&task));
}

inline OrtStatus* out_of_memory(const Api& api) { return api.create_status(1, "lopa.cpu: not enough memory for rounded rows"); }

}  // namespace lopa
