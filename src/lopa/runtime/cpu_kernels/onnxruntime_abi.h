// The part of ONNX Runtime's C interface that custom operators need, in version 17 of that interface.
//
// Wheels of ONNX Runtime have no headers. The interface is a table of functions to which newer versions only append, so
// numbers of its slots never change.
#pragma once
#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;

namespace lopa {

constexpr uint32_t kApiVersion = 17;
constexpr int kFail = 1;
constexpr int kInvalidArgument = 2;
enum ElementType : int { kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kBool = 9, kFloat16 = 10, kBfloat16 = 16, kFloat8 = 17, kInt4 = 22 };

struct OrtApi;
struct OrtApiBase {
    const OrtApi* (*GetApi)(uint32_t version);
    const char* (*GetVersionString)();
};

// Function at `slot` of the table, with the type `Function`.
template <class Function>
Function function_at(const OrtApi* api, size_t slot) {
    return reinterpret_cast<Function>(reinterpret_cast<void* const*>(api)[slot]);
}

struct Api {
    explicit Api(const OrtApi* api)
        : create_status(function_at<decltype(create_status)>(api, 0)),
          create_domain(function_at<decltype(create_domain)>(api, 26)),
          add_op(function_at<decltype(add_op)>(api, 27)),
          add_domain(function_at<decltype(add_domain)>(api, 28)),
          tensor_data(function_at<decltype(tensor_data)>(api, 51)),
          dimensions_count(function_at<decltype(dimensions_count)>(api, 61)),
          dimensions(function_at<decltype(dimensions)>(api, 62)),
          type_and_shape(function_at<decltype(type_and_shape)>(api, 65)),
          float_attribute(function_at<decltype(float_attribute)>(api, 85)),
          int_attribute(function_at<decltype(int_attribute)>(api, 86)),
          input_count(function_at<decltype(input_count)>(api, 88)),
          input(function_at<decltype(input)>(api, 90)),
          output(function_at<decltype(output)>(api, 91)),
          release_status(function_at<decltype(release_status)>(api, 93)),
          release_type_and_shape(function_at<decltype(release_type_and_shape)>(api, 99)),
          stream(function_at<decltype(stream)>(api, 193)),
          config_entry(function_at<decltype(config_entry)>(api, 238)),
          parallel_for(function_at<decltype(parallel_for)>(api, 274)) {}

    OrtStatus* (*create_status)(int code, const char* message);
    OrtStatus* (*create_domain)(const char* name, OrtCustomOpDomain** domain);
    OrtStatus* (*add_op)(OrtCustomOpDomain* domain, const struct CustomOp* op);
    OrtStatus* (*add_domain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
    OrtStatus* (*tensor_data)(OrtValue* value, void** data);
    OrtStatus* (*dimensions_count)(const OrtTensorTypeAndShapeInfo* info, size_t* count);
    OrtStatus* (*dimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dimensions, size_t count);
    OrtStatus* (*type_and_shape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** info);
    OrtStatus* (*float_attribute)(const OrtKernelInfo* info, const char* name, float* number);
    OrtStatus* (*int_attribute)(const OrtKernelInfo* info, const char* name, int64_t* number);
    OrtStatus* (*input_count)(const OrtKernelContext* context, size_t* count);
    OrtStatus* (*input)(const OrtKernelContext* context, size_t index, const OrtValue** value);
    OrtStatus* (*output)(OrtKernelContext* context, size_t index, const int64_t* dimensions, size_t count, OrtValue** value);
    void (*release_status)(OrtStatus* status);
    void (*release_type_and_shape)(OrtTensorTypeAndShapeInfo* info);
    OrtStatus* (*stream)(const OrtKernelContext* context, void** stream);
    OrtStatus* (*config_entry)(const OrtSessionOptions* options, const char* name, char* text, size_t* size);
    OrtStatus* (*parallel_for)(const OrtKernelContext* context, void (*task)(void* data, size_t index), size_t tasks,
                               size_t batches, void* data);
};

// Description of an operator. ONNX Runtime reads the members that exist in version `version`.
struct CustomOp {
    uint32_t version = kApiVersion;
    void* (*create_kernel)(const CustomOp*, const OrtApi*, const OrtKernelInfo*) = nullptr;  // not read: there is a second version
    const char* (*name)(const CustomOp*) = nullptr;
    const char* (*provider)(const CustomOp*) = nullptr;  // a null name is the CPU provider
    int (*input_type)(const CustomOp*, size_t) = nullptr;
    size_t (*input_count)(const CustomOp*) = nullptr;
    int (*output_type)(const CustomOp*, size_t) = nullptr;
    size_t (*output_count)(const CustomOp*) = nullptr;
    void (*compute)(void*, OrtKernelContext*) = nullptr;  // not read: there is a second version
    void (*destroy_kernel)(void*) = nullptr;
    int (*input_kind)(const CustomOp*, size_t) = nullptr;
    int (*output_kind)(const CustomOp*, size_t) = nullptr;
    int (*input_memory)(const CustomOp*, size_t) = nullptr;
    int (*variadic_input[2])(const CustomOp*) = {};
    int (*variadic_output[2])(const CustomOp*) = {};
    OrtStatus* (*create_kernel_with_status)(const CustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel) = nullptr;
    OrtStatus* (*compute_with_status)(void* kernel, OrtKernelContext*) = nullptr;
    OrtStatus* (*infer_shape)(const CustomOp*, void*) = nullptr;
    int (*start_version)(const CustomOp*) = nullptr;
    int (*end_version)(const CustomOp*) = nullptr;
};

}  // namespace lopa
