// Operators of ONNX Runtime for products with matrices that stay in the bundle's mapped file.
//
// lopa.cpu::MatMulInt4(rows float [.., K], weights int4 [K, N], scales float [K / 32, N]) -> float [.., N]
//     Every block of 32 numbers of a row is rounded to 8 bits with its own scale.
// lopa.cpu::MatMulInt4HalfScales: the same with float16 scales.
// lopa.cpu::MatMulInt8(rows uint8 around 128 [.., K], weights int8 [K, N], scales float [N]) -> float [.., N]
//     The sum is exact in int32, as in com.microsoft::MatMulIntegerToFloat. Rows are 1 to 255, as rounding with a maximum of
//     127 makes them: the dot products of AVX2 do not have -128.
//
// lopa.cpu::ExpertsInt4, ExpertsInt4HalfScales, ExpertsInt8, ExpertsFloat, ExpertsFloat16: the expert layers of experts.h.
#include <cpuid.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

#include "experts.h"
#include "onnxruntime_abi.h"
#include "products.h"
#include "tensors.h"

namespace lopa {
namespace {

constexpr int64_t kParallelNumbers = 1 << 16;  // numbers to round from which threads pay
constexpr int64_t kSharedBlocks = 16;          // blocks that one task rounds
constexpr int64_t kSharedRows = 4;             // rows that one task orders
constexpr const char* kThreadsEntry = "lopa.cpu.threads";  // of a session's options (kernel_library.py)

// AVX-VNNI is bit 4 of EAX in subleaf 1 of leaf 7.
bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}

// F16C is bit 29 of ECX in leaf 1.
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

const Kernels* best_kernels() {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &kAvx512Vnni;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return nullptr;
    return has_avx_vnni() ? &kAvxVnni : &kAvx2;
}

OrtStatus* round_blocks(const Api& api, OrtKernelContext* context, const Product& product, const float* rows) {
    const int64_t blocks = product.blocks(), shared = product.rows * product.inputs < kParallelNumbers ? std::max<int64_t>(blocks, 1) : kSharedBlocks;
    return run_tasks(api, context, (blocks + shared - 1) / shared, [&](int64_t index) {
        g_kernels->round_rows(product, rows, index * shared, std::min(blocks, (index + 1) * shared));
    });
}

OrtStatus* compute_strips(const SessionApi& api, OrtKernelContext* context, const Product& product, ComputeStrip* compute) {
    const int64_t tiles = strip_tiles(product.tiles(), product.rows, api.tasks());
    const auto strip = [&](int64_t index) -> Strip {
        const int64_t first = index * tiles;
        if (first >= product.tiles()) return {};
        return {&product, first, std::min(product.tiles(), first + tiles)};
    };
    return run_tasks(api, context, (product.tiles() + tiles - 1) / tiles, [&](int64_t index) { compute(strip(index), strip(index + 1)); });
}

OrtStatus* wrong_shapes(const Api& api, const char* name, const Input (&inputs)[3]) {
    char message[256];
    std::snprintf(message, sizeof message, "lopa.cpu::%s: rows of %lld numbers do not fit a matrix [%lld, %lld] with %lld scales", name,
                  static_cast<long long>(inputs[0].shape.last()), static_cast<long long>(inputs[1].shape.dimensions[0]),
                  static_cast<long long>(inputs[1].shape.last()), static_cast<long long>(inputs[2].shape.rows() * inputs[2].shape.last()));
    return api.create_status(kInvalidArgument, message);
}

template <class Scale>
OrtStatus* multiply_int4(void* kernel, OrtKernelContext* context) {
    const SessionApi& api = *static_cast<SessionApi*>(kernel);
    Input inputs[3];
    if (OrtStatus* status = read_inputs(api, context, inputs)) return status;
    const int64_t k = inputs[0].shape.last(), n = inputs[1].shape.last(), rows = inputs[0].shape.rows(), blocks = k / kBlock;
    if (inputs[1].shape.count != 2 || inputs[2].shape.count != 2 || inputs[1].shape.dimensions[0] != k || k % kBlock != 0 || n % 2 != 0 ||
        inputs[2].shape.dimensions[0] != blocks || inputs[2].shape.last() != n)
        return wrong_shapes(api, "MatMulInt4", inputs);
    float* output = nullptr;
    if (OrtStatus* status = open_output(api, context, inputs[0].shape, n, &output)) return status;
    if (rows == 0 || n == 0) return nullptr;
    const auto numbers = buffer_of<int8_t>(rows * k);
    const auto scales = buffer_of<float>(rows * blocks);
    const auto corrections = buffer_of<int32_t>(rows * blocks);
    if (!numbers || !scales || !corrections) return out_of_memory(api);
    constexpr bool half = std::is_same_v<Scale, uint16_t>;
    const Product product = {rows,
                             k,
                             n,
                             static_cast<const uint8_t*>(inputs[1].data),
                             half ? nullptr : static_cast<const float*>(inputs[2].data),
                             half ? static_cast<const uint16_t*>(inputs[2].data) : nullptr,
                             {numbers.get(), scales.get(), corrections.get()},
                             output};
    if (OrtStatus* status = round_blocks(api, context, product, static_cast<const float*>(inputs[0].data))) return status;
    return compute_strips(api, context, product, g_kernels->int4_strip);
}

// Order the rows in blocks, as signed numbers, and sum them.
OrtStatus* order_rows(const Api& api, OrtKernelContext* context, const Product& product, const uint8_t* rows) {
    const int64_t shared = product.rows * product.inputs < kParallelNumbers ? product.rows : kSharedRows;
    return run_tasks(api, context, (product.rows + shared - 1) / shared, [&](int64_t index) {
        for (int64_t row = index * shared; row < std::min(product.rows, (index + 1) * shared); ++row) {
            int32_t sum;
            g_kernels->order_row(rows + row * product.inputs, product.inputs, product.rounded.numbers + row * kBlock, product.rows * kBlock, &sum);
            product.rounded.corrections[row] = -g_kernels->int8_offset * sum;
        }
    });
}

OrtStatus* multiply_int8(void* kernel, OrtKernelContext* context) {
    const SessionApi& api = *static_cast<SessionApi*>(kernel);
    Input inputs[3];
    if (OrtStatus* status = read_inputs(api, context, inputs)) return status;
    const int64_t k = inputs[0].shape.last(), n = inputs[1].shape.last(), rows = inputs[0].shape.rows();
    if (inputs[1].shape.count != 2 || inputs[2].shape.count != 1 || inputs[1].shape.dimensions[0] != k || inputs[2].shape.last() != n)
        return wrong_shapes(api, "MatMulInt8", inputs);
    if (k > kMaxInt8Inputs)
        return api.create_status(kInvalidArgument, "lopa.cpu::MatMulInt8: a row has more than 131071 numbers, whose sum may exceed 32 bits");
    float* output = nullptr;
    if (OrtStatus* status = open_output(api, context, inputs[0].shape, n, &output)) return status;
    if (rows == 0 || n == 0) return nullptr;
    const auto numbers = buffer_of<int8_t>(rows * ((k + kBlock - 1) / kBlock) * kBlock);
    const auto corrections = buffer_of<int32_t>(rows);
    if (!numbers || !corrections) return out_of_memory(api);
    const Product product = {rows,
                             k,
                             n,
                             static_cast<const uint8_t*>(inputs[1].data),
                             static_cast<const float*>(inputs[2].data),
                             nullptr,
                             {numbers.get(), nullptr, corrections.get()},
                             output};
    if (OrtStatus* status = order_rows(api, context, product, static_cast<const uint8_t*>(inputs[0].data))) return status;
    return compute_strips(api, context, product, g_kernels->int8_strip);
}

// An operator of sessions with a number of threads.
struct Operator : CustomOp {
    int64_t threads;
};

template <int... Types>
Operator operator_with(const char* (*name)(const CustomOp*), OrtStatus* (*compute)(void*, OrtKernelContext*), int64_t threads) {
    Operator op;
    op.threads = threads;
    op.name = name;
    op.provider = [](const CustomOp*) -> const char* { return nullptr; };
    op.input_type = [](const CustomOp*, size_t index) -> int {
        constexpr int types[] = {Types...};
        return types[index];
    };
    op.input_count = [](const CustomOp*) -> size_t { return sizeof...(Types); };
    op.output_type = [](const CustomOp*, size_t) -> int { return kFloat; };
    op.output_count = [](const CustomOp*) -> size_t { return 1; };
    op.destroy_kernel = [](void* kernel) { delete static_cast<SessionApi*>(kernel); };
    op.input_kind = op.output_kind = op.input_memory = [](const CustomOp*, size_t) -> int { return 0; };  // required, in host memory
    op.create_kernel_with_status = [](const CustomOp* op, const OrtApi* table, const OrtKernelInfo* info, void** kernel) -> OrtStatus* {
        const Api api(table);
        int64_t gelu = 0;
        api.release_status(api.int_attribute(info, "gelu", &gelu));
        *kernel = new (std::nothrow) SessionApi(table, static_cast<const Operator*>(op)->threads, gelu != 0);
        return *kernel == nullptr ? out_of_memory(Api(table)) : nullptr;
    };
    op.compute_with_status = compute;
    return op;
}

// The operators of sessions with a number of threads.
struct Domain {
    Domain(const Api& api, int64_t threads)
        : operators{
              operator_with<kFloat, kInt4, kFloat>([](const CustomOp*) { return "MatMulInt4"; }, multiply_int4<float>, threads),
              operator_with<kFloat, kInt4, kFloat16>([](const CustomOp*) { return "MatMulInt4HalfScales"; }, multiply_int4<uint16_t>, threads),
              operator_with<kUint8, kInt8, kFloat>([](const CustomOp*) { return "MatMulInt8"; }, multiply_int8, threads),
              operator_with<kFloat, kInt64, kFloat, kInt4, kFloat, kInt4, kFloat, kInt4, kFloat>(  //
                  [](const CustomOp*) { return "ExpertsInt4"; }, compute_experts_int4, threads),
              operator_with<kFloat, kInt64, kFloat, kInt4, kFloat16, kInt4, kFloat16, kInt4, kFloat16>(
                  [](const CustomOp*) { return "ExpertsInt4HalfScales"; }, compute_experts_int4_half_scales, threads),
              operator_with<kFloat, kInt64, kFloat, kInt8, kFloat, kInt8, kFloat, kInt8, kFloat>(  //
                  [](const CustomOp*) { return "ExpertsInt8"; }, compute_experts_int8, threads),
              operator_with<kFloat, kInt64, kFloat, kFloat, kFloat, kFloat>(  //
                  [](const CustomOp*) { return "ExpertsFloat"; }, compute_experts_float, threads),
              operator_with<kFloat, kInt64, kFloat, kFloat16, kFloat16, kFloat16>(
                  [](const CustomOp*) { return "ExpertsFloat16"; }, compute_experts_float16, threads),
          } {
        if (api.create_domain("lopa.cpu", &made)) return;
        for (const Operator& op : operators)
            if (made != nullptr && api.add_op(made, &op)) made = nullptr;
    }

    const Operator operators[8];
    OrtCustomOpDomain* made = nullptr;  // null if it failed
};

// Number of threads of sessions with `options`. ONNX Runtime's own default is one per core.
int64_t session_threads(const Api& api, const OrtSessionOptions* options) {
    char text[24] = "";
    size_t size = sizeof text;
    if (OrtStatus* status = api.config_entry(options, kThreadsEntry, text, &size)) api.release_status(status);
    const int64_t threads = std::atoll(text);
    return threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

void* strip_memory() {
    static thread_local Buffer<float> memory;
    if (!memory) memory = buffer_of<float>(kMaxStripRows * kTile);
    return memory.get();
}

const Kernels* g_kernels = best_kernels();

}  // namespace lopa

#define LOPA_EXPORT extern "C" __attribute__((visibility("default")))

// Called by ONNX Runtime's SessionOptions.register_custom_ops_library.
LOPA_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const lopa::OrtApiBase* base) {
    using namespace lopa;
    const Api api(base->GetApi(kApiVersion));
    static std::mutex lock;
    static std::map<int64_t, Domain> domains;  // by threads. They live as long as the process: sessions refer to them
    const std::lock_guard<std::mutex> guard(lock);
    const int64_t threads = session_threads(api, options);
    OrtCustomOpDomain* const domain = domains.try_emplace(threads, api, threads).first->second.made;
    if (domain == nullptr) return api.create_status(1, "lopa.cpu: the operators could not be registered");
    return api.add_domain(options, domain);
}

// Name of the instruction set in use, or null if this processor has none that the kernels need.
LOPA_EXPORT const char* lopa_instruction_set() { return lopa::g_kernels == nullptr ? nullptr : lopa::g_kernels->name; }

// Use another instruction set of this processor in the whole process, for tests. Returns 0 if the name is unknown.
LOPA_EXPORT int lopa_select_instruction_set(const char* name) {
    for (const lopa::Kernels* kernels : {&lopa::kAvx512Vnni, &lopa::kAvxVnni, &lopa::kAvx2})
        if (std::strcmp(kernels->name, name) == 0) {
            lopa::g_kernels = kernels;
            return 1;
        }
    return 0;
}
