// Products of e4m3 matrices by NVIDIA's cuBLASLt, the library that ONNX Runtime's CUDA provider uses too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lopa {

constexpr size_t kWorkspaceAlignment = 256;

struct Fp8Plan;

// Return how to multiply rows [rows, inputs] by a matrix [outputs, inputs] into [rows, outputs] of a type of ONNX, on the
// current device, or null if it or the library has no products of e4m3. The choice is kept, without work on the device.
// A captured graph has the launches that cuBLASLt made, so it outlives the plan.
std::shared_ptr<const Fp8Plan> plan_fp8(int64_t rows, int64_t inputs, int64_t outputs, int element);

// Return the bytes of scratch memory that a product takes, at an address that is a multiple of kWorkspaceAlignment.
size_t workspace_bytes(const Fp8Plan& plan);

// Enqueue a product, times `factor`. Returns what went wrong, or an empty text.
std::string multiply_fp8(const Fp8Plan& plan, const void* rows, const void* matrix, void* output, float factor, void* workspace, void* stream);

}  // namespace lopa
