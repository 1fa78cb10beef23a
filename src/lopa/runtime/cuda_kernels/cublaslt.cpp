// The interface is that of cublasLt.h in the package nvidia-cublas 13.10, which has no other form since CUDA 12.0.
#include "cublaslt.h"

#include <map>
#include <mutex>
#include <tuple>

#include "../cpu_kernels/onnxruntime_abi.h"
#include "driver.h"

namespace lopa {
namespace {

constexpr int kFloatType = 0, kHalfType = 2, kBfloat16Type = 14, kE4m3Type = 28;  // cudaDataType
constexpr int kComputeFloat = 68;                                                // cublasComputeType_t
constexpr int kTransposed = 1;                                                   // cublasOperation_t
constexpr int kTransposeA = 3;                                                   // cublasLtMatmulDescAttributes_t
constexpr int kMaxWorkspace = 1, kMinAlignments[] = {5, 6, 7, 8};                // cublasLtMatmulPreferenceAttributes_t
constexpr uint32_t kAlignment = 16;                                              // that products of e4m3 need
constexpr uint64_t kMostWorkspace = 32 << 20;                                    // that NVIDIA advises for the capability 9.0
constexpr int kFirstCapability = 89;                                             // with products of e4m3
constexpr size_t kMostPlans = 1024;  // a forward that is not captured may have any number of rows

struct Algorithm {
    uint64_t data[8];
};

struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

// The library's functions. A missing one is null.
struct Library {
    template <class Function>
    bool find(const char* name, Function* function) {
        *function = reinterpret_cast<Function>(find_function(handle, name));
        return *function != nullptr;
    }

    Library() : handle(open_library({"libcublasLt.so.13", "libcublasLt.so.12"})) {
        is_complete = find("cublasLtCreate", &create) && find("cublasLtMatmulDescCreate", &create_product) &&
                      find("cublasLtMatmulDescSetAttribute", &set_of_product) && find("cublasLtMatrixLayoutCreate", &create_layout) &&
                      find("cublasLtMatmulPreferenceCreate", &create_preference) &&
                      find("cublasLtMatmulPreferenceSetAttribute", &set_of_preference) &&
                      find("cublasLtMatmulDescDestroy", &destroy_product) && find("cublasLtMatrixLayoutDestroy", &destroy_layout) &&
                      find("cublasLtMatmulPreferenceDestroy", &destroy_preference) && find("cublasLtMatmulAlgoGetHeuristic", &choose) && find("cublasLtMatmul", &multiply);
    }

    void* const handle;
    bool is_complete;
    int (*create)(void** context);
    int (*create_product)(void** product, int compute_type, int scale_type);
    int (*set_of_product)(void* product, int attribute, const void* value, size_t size);
    int (*create_layout)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int (*create_preference)(void** preference);
    int (*set_of_preference)(void* preference, int attribute, const void* value, size_t size);
    int (*destroy_product)(void* product);
    int (*destroy_layout)(void* layout);
    int (*destroy_preference)(void* preference);
    int (*choose)(void* context, void* product, void* a, void* b, void* c, void* d, void* preference, int wanted, Heuristic* found, int* count);
    int (*multiply)(void* context, void* product, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                    const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                    size_t workspace_bytes, void* stream);
};

const Library& library() {
    static Library found;
    return found;
}

}  // namespace

// Matrices of cuBLASLt have columns side by side: our rows. D = A^T B has the matrix as A, [inputs, outputs], rows as B,
// [inputs, rows], and the output as D, [outputs, rows]. The capabilities 8.9 and 9.0 have no other product of e4m3.
struct Fp8Plan {
    void *context = nullptr, *product = nullptr, *a = nullptr, *b = nullptr, *d = nullptr;
    Heuristic chosen = {};

    ~Fp8Plan() {
        if (product != nullptr) library().destroy_product(product);
        for (void* layout : {a, b, d})
            if (layout != nullptr) library().destroy_layout(layout);
    }
};

namespace {

bool make_plan(void* context, int64_t rows, int64_t inputs, int64_t outputs, int type, Fp8Plan* plan) {
    const Library& lt = library();
    void* preference = nullptr;
    int count = 0;
    plan->context = context;
    bool ok = !lt.create_product(&plan->product, kComputeFloat, kFloatType) &&
              !lt.set_of_product(plan->product, kTransposeA, &kTransposed, sizeof(kTransposed)) &&
              !lt.create_layout(&plan->a, kE4m3Type, inputs, outputs, inputs) && !lt.create_layout(&plan->b, kE4m3Type, inputs, rows, inputs) &&
              !lt.create_layout(&plan->d, type, outputs, rows, outputs) && !lt.create_preference(&preference) &&
              !lt.set_of_preference(preference, kMaxWorkspace, &kMostWorkspace, sizeof(kMostWorkspace));
    for (const int attribute : kMinAlignments) ok = ok && !lt.set_of_preference(preference, attribute, &kAlignment, sizeof(kAlignment));
    ok = ok && !lt.choose(context, plan->product, plan->a, plan->b, plan->d, plan->d, preference, 1, &plan->chosen, &count);
    if (preference != nullptr) lt.destroy_preference(preference);
    return ok && count > 0 && plan->chosen.state == 0;
}

}  // namespace

std::shared_ptr<const Fp8Plan> plan_fp8(int64_t rows, int64_t inputs, int64_t outputs, int element) {
    static std::mutex planning;
    static std::map<int, void*> contexts;
    // Null: there is none. Never destroyed, because the library may be gone when the process ends.
    static auto& plans = *new std::map<std::tuple<int, int64_t, int64_t, int64_t, int>, std::shared_ptr<Fp8Plan>>;
    const int device = current_device();
    if (compute_capability() < kFirstCapability || !library().is_complete) return nullptr;
    const std::lock_guard<std::mutex> alone(planning);
    if (plans.size() == kMostPlans) plans.clear();
    const auto [found, is_new] = plans.try_emplace({device, rows, inputs, outputs, element});
    if (is_new) {
        void*& context = contexts[device];
        auto plan = std::make_shared<Fp8Plan>();
        const int type = element == kFloat ? kFloatType : element == kFloat16 ? kHalfType : kBfloat16Type;
        if ((context != nullptr || !library().create(&context)) && make_plan(context, rows, inputs, outputs, type, plan.get()))
            found->second = std::move(plan);
    }
    return found->second;
}

size_t workspace_bytes(const Fp8Plan& plan) { return plan.chosen.workspace; }

std::string multiply_fp8(const Fp8Plan& plan, const void* rows, const void* matrix, void* output, float factor, void* workspace, void* stream) {
    const float beta = 0;
    const int code = library().multiply(plan.context, plan.product, &factor, matrix, plan.a, rows, plan.b, &beta, output, plan.d, output, plan.d,
                                        &plan.chosen.algorithm, workspace, plan.chosen.workspace, stream);
    return code == 0 ? "" : "cublasLtMatmul returned " + std::to_string(code);
}

}  // namespace lopa
