// Kernels of each device, loaded and launched through NVIDIA's driver library. CUDA's headers are not needed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace lopa {

// What lopa_cuda_load takes for each kernel (cuda_library.py has the same structure).
struct KernelImage {
    const char* variant;   // name of the kernel with its type and constants
    const char* entry;     // name in the image
    const void* image;     // cubin, or PTX with a zero at its end
    int arguments;         // of the entry
    int scratch;           // pointers behind them that Triton adds and these kernels do not use
    int threads;           // of a block, along x
    int shared_bytes;      // dynamic shared memory of a block
};

struct Kernel {
    void* function = nullptr;
    int arguments = 0;
    int scratch = 0;
    int threads = 0;
    int shared_bytes = 0;
};

struct Grid {
    int64_t x = 1;
    int64_t y = 1;
    int64_t z = 1;
};

constexpr int kMaxParameters = 32;

// Return the first of these libraries that can be loaded, or null, and a function of a library, or null.
void* open_library(std::initializer_list<const char*> names);
void* find_function(void* library, const char* name);

// Load images for a device, whose context is current. Returns what went wrong, or an empty text. A second call for the
// same device changes nothing.
std::string load_kernels(int device, const KernelImage* images, size_t count);

// Return a kernel of the current device, or null if it has none of this name.
const Kernel* find_kernel(const std::string& variant);

// Return the current device, or -1 if it has no kernels.
int current_device();

// Return the compute capability of the current device, e.g. 90, or 0 if it has no kernels.
int compute_capability();

// Return the number of multiprocessors of the current device, or 0 if it has no kernels.
int multiprocessors();

// Enqueue a kernel. `arguments` are pointers to its `count` arguments. Returns what went wrong, or an empty text.
std::string launch_kernel(const Kernel& kernel, Grid grid, void* stream, void* const* arguments, int count);

}  // namespace lopa
