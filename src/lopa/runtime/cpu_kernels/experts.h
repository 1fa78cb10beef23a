// Layers of a mixture of experts in one operator each, without the router.
//
// lopa.cpu::ExpertsInt4(rows float [.., H], ids int64 [.., k], weights float [.., k],
//                       gate int4 [E, H, I], gate_scales float [E, H / 32, I],
//                       up int4 [E, H, I], up_scales float [E, H / 32, I],
//                       down int4 [E, I, H], down_scales float [E, I / 32, H]) -> float [.., H]
// lopa.cpu::ExpertsInt4HalfScales: the same with float16 scales.
// lopa.cpu::ExpertsInt8: the same with int8 matrices and float scales [E, columns].
// lopa.cpu::ExpertsFloat(rows, ids, weights, gate float [E, H, I], up, down), and ExpertsFloat16 with float16 matrices.
//
//     result[r] = sum over j of weights[r, j] * (silu(rows[r] @ gate[e]) * (rows[r] @ up[e])) @ down[e]  with e = ids[r, j]
//
// With the attribute gelu = 1, gelu in its approximation by tanh replaces silu.
// The sum over j is in this order. Rows, and the numbers before `down`, are rounded as in MatMulInt4, or for int8 as in
// lopa.export.graph.quantize_pass. Float products have float32 sums. A row's result depends neither on the number of
// threads nor on the other rows.
//
// Rows are grouped by expert, so the weights of a chosen expert are read once for up to kMaxRows rows of it, and those of
// other experts not at all.
#pragma once
#include "onnxruntime_abi.h"

namespace lopa {

OrtStatus* compute_experts_int4(void* kernel, OrtKernelContext* context);
OrtStatus* compute_experts_int4_half_scales(void* kernel, OrtKernelContext* context);
OrtStatus* compute_experts_int8(void* kernel, OrtKernelContext* context);
OrtStatus* compute_experts_float(void* kernel, OrtKernelContext* context);
OrtStatus* compute_experts_float16(void* kernel, OrtKernelContext* context);

}  // namespace lopa
