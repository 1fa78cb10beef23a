#include <dlfcn.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <map>
#include <mutex>

#include "driver.h"

#if defined(__x86_64__) && defined(__GLIBC__)
// Versions that every glibc has, before 2.34 in the libdl that Python loads. By default they would be those of 2.34.
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5\n.symver dlsym,dlsym@GLIBC_2.2.5");
#endif

namespace lopa {
namespace {

constexpr int kMaxSharedBytesAttribute = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kMultiprocessorsAttribute = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kMajorAttribute = 75, kMinorAttribute = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
constexpr int kDefaultSharedBytes = 48 * 1024;  // of any launch; more must be allowed by the attribute
constexpr int kMaxDevices = 64;

struct Device {
    std::map<std::string, Kernel> kernels;
    int multiprocessors = 0;
    int major = 0;
    int minor = 0;
};
std::atomic<const Device*> g_devices[kMaxDevices];  // live as long as the process: sessions and graphs refer to them

// The driver's functions. A missing one is null.
struct Driver {
    template <class Function>
    static void find(void* library, const char* name, Function* function) {
        *function = reinterpret_cast<Function>(find_function(library, name));
    }

    Driver() {
        void* library = open_library({"libcuda.so.1"});
        find(library, "cuCtxGetDevice", &current_device);
        find(library, "cuDeviceGetAttribute", &device_attribute);
        find(library, "cuGetErrorName", &error_name);
        find(library, "cuLibraryLoadData", &load_library);
        find(library, "cuLibraryGetKernel", &get_kernel);
        find(library, "cuKernelGetFunction", &get_function);
        find(library, "cuKernelSetAttribute", &set_attribute);
        find(library, "cuLaunchKernel", &launch);
    }

    bool is_complete() const {
        return current_device && device_attribute && error_name && load_library && get_kernel && get_function && set_attribute && launch;
    }

    std::string error(const std::string& call, int code) const {
        const char* name = nullptr;
        error_name(code, &name);
        return call + " returned " + (name == nullptr ? std::to_string(code) : name);
    }

    int (*current_device)(int* device);
    int (*device_attribute)(int* value, int attribute, int device);
    int (*error_name)(int code, const char** name);
    int (*load_library)(void** library, const void* image, void*, void*, unsigned, void*, void*, unsigned);
    int (*get_kernel)(void** kernel, void* library, const char* name);
    int (*get_function)(void** function, void* kernel);
    int (*set_attribute)(int attribute, int value, void* kernel, int device);
    int (*launch)(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared_bytes,
                  void* stream, void** arguments, void** extra);
};

const Driver& driver() {
    static const Driver found;
    return found;
}

// Return the current device, or null if it has no kernels.
const Device* current() {
    const int device = current_device();
    return device < 0 ? nullptr : g_devices[device].load();
}

// Load one kernel. cuLibraryLoadData is bound to no context; cuKernelGetFunction loads the code into the current one, so
// that nothing is loaded during the capture of a CUDA graph.
std::string load_kernel(int device, const KernelImage& image, std::map<const void*, void*>* libraries, Kernel* loaded) {
    const Driver& cuda = driver();
    void*& library = (*libraries)[image.image];
    if (library == nullptr)
        if (const int code = cuda.load_library(&library, image.image, nullptr, nullptr, 0, nullptr, nullptr, 0))
            return cuda.error(std::string("cuLibraryLoadData of ") + image.variant, code);
    void* kernel = nullptr;
    if (const int code = cuda.get_kernel(&kernel, library, image.entry)) return cuda.error(std::string("cuLibraryGetKernel of ") + image.variant, code);
    if (image.shared_bytes > kDefaultSharedBytes)
        if (const int code = cuda.set_attribute(kMaxSharedBytesAttribute, image.shared_bytes, kernel, device))
            return cuda.error(std::string("cuKernelSetAttribute of ") + image.variant, code);
    *loaded = {nullptr, image.arguments, image.scratch, image.threads, image.shared_bytes};
    if (const int code = cuda.get_function(&loaded->function, kernel)) return cuda.error(std::string("cuKernelGetFunction of ") + image.variant, code);
    return "";
}

}  // namespace

void* open_library(std::initializer_list<const char*> names) {
    void* library = nullptr;
    for (const char* name : names)
        if (library == nullptr) library = dlopen(name, RTLD_NOW);
    return library;
}

void* find_function(void* library, const char* name) { return library == nullptr ? nullptr : dlsym(library, name); }

std::string load_kernels(int device, const KernelImage* images, size_t count) {
    static std::mutex loading;
    const std::lock_guard<std::mutex> alone(loading);
    if (!driver().is_complete()) return "libcuda.so.1 is missing or older than CUDA 12.0";
    if (device < 0 || device >= kMaxDevices) return "devices have numbers from 0 to 63";
    if (g_devices[device] != nullptr) return "";
    std::map<const void*, void*> libraries;
    Device loaded;
    const std::pair<int*, int> attributes[] = {
        {&loaded.multiprocessors, kMultiprocessorsAttribute}, {&loaded.major, kMajorAttribute}, {&loaded.minor, kMinorAttribute}};
    for (const auto& [value, attribute] : attributes)
        if (const int code = driver().device_attribute(value, attribute, device)) return driver().error("cuDeviceGetAttribute", code);
    for (const KernelImage* image = images; image != images + count; ++image) {
        if (image->arguments + image->scratch > kMaxParameters) return std::string(image->variant) + " has too many parameters";
        const std::string error = load_kernel(device, *image, &libraries, &loaded.kernels[image->variant]);
        if (!error.empty()) return error;
    }
    g_devices[device] = new Device(std::move(loaded));
    return "";
}

const Kernel* find_kernel(const std::string& variant) {
    const Device* loaded = current();
    if (loaded == nullptr) return nullptr;
    const auto found = loaded->kernels.find(variant);
    return found == loaded->kernels.end() ? nullptr : &found->second;
}

int current_device() {
    int device = 0;
    const bool found = driver().is_complete() && !driver().current_device(&device) && device >= 0 && device < kMaxDevices;
    return found && g_devices[device] != nullptr ? device : -1;
}

int compute_capability() {
    const Device* loaded = current();
    return loaded == nullptr ? 0 : 10 * loaded->major + loaded->minor;
}

int multiprocessors() {
    const Device* loaded = current();
    return loaded == nullptr ? 0 : loaded->multiprocessors;
}

std::string launch_kernel(const Kernel& kernel, Grid grid, void* stream, void* const* arguments, int count) {
    static void* const kNull = nullptr;
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > INT_MAX || grid.y > UINT16_MAX || grid.z > UINT16_MAX) return "a grid that CUDA does not allow";
    if (count != kernel.arguments) return "another number of arguments than the kernel takes";
    void* all[kMaxParameters];
    for (int i = 0; i < count + kernel.scratch; ++i) all[i] = i < count ? arguments[i] : const_cast<void**>(&kNull);
    const int code = driver().launch(kernel.function, static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z),
                                     kernel.threads, 1, 1, kernel.shared_bytes, stream, all, nullptr);
    return code == 0 ? "" : driver().error("cuLaunchKernel", code);
}

}  // namespace lopa
