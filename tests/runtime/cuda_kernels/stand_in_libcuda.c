// A stand-in for NVIDIA's driver library: kernels are loaded from real cubins, and a launch calls a function of the tests
// with the kernel's image and arguments. It is not vendor software, and executes no cubin. It refuses what the driver's
// documentation forbids. It cannot show what ONNX Runtime does with CUDA's memory and streams.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, NOT_FOUND = 500, LAUNCH_OUT_OF_RESOURCES = 701 };
enum { MAX_SHARED_BYTES = 8, DEFAULT_SHARED_BYTES = 48 * 1024, MOST_SHARED_BYTES = 227 * 1024 };

typedef struct {
    const void* image;
    int allowed_shared_bytes;
    int is_loaded;
} Kernel;
typedef int Launch(const void* image, unsigned x, unsigned y, unsigned z, void* stream, void** arguments);

static Launch* launch_kernel;
static __thread int current_device;
static int capturing;

void stand_in_set_launch(Launch* launch) { launch_kernel = launch; }
void stand_in_set_device(int device) { current_device = device; }
void stand_in_set_capturing(int value) { capturing = value; }

int cuCtxGetDevice(int* device) {
    *device = current_device;
    return SUCCESS;
}

int cuGetErrorName(int code, const char** name) {
    *name = code == INVALID_VALUE               ? "CUDA_ERROR_INVALID_VALUE"
            : code == INVALID_IMAGE             ? "CUDA_ERROR_INVALID_IMAGE"
            : code == NOT_FOUND                 ? "CUDA_ERROR_NOT_FOUND"
            : code == LAUNCH_OUT_OF_RESOURCES   ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
                                                : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

int cuLibraryLoadData(void** library, const void* image, void* options, void* values, unsigned count, void* more, void* others, unsigned other_count) {
    (void)options, (void)values, (void)more, (void)others;
    if (count || other_count || capturing) return INVALID_VALUE;
    if (memcmp(image, "\177ELF", 4) != 0) return INVALID_IMAGE;
    *library = (void*)image;
    return SUCCESS;
}

// Names of functions are in the section ".text.NAME" of a cubin, whose ELF header says where its section names are.
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    const unsigned char* elf = library;
    uint64_t sections;
    uint16_t size, count, names;
    memcpy(&sections, elf + 0x28, 8), memcpy(&size, elf + 0x3a, 2), memcpy(&count, elf + 0x3c, 2), memcpy(&names, elf + 0x3e, 2);
    uint64_t texts;
    memcpy(&texts, elf + sections + (uint64_t)names * size + 0x18, 8);
    for (int i = 0; i < count; ++i) {
        uint32_t at;
        memcpy(&at, elf + sections + (uint64_t)i * size, 4);
        const char* text = (const char*)elf + texts + at;
        if (strncmp(text, ".text.", 6) == 0 && strcmp(text + 6, name) == 0) {
            Kernel* made = calloc(1, sizeof(Kernel));
            made->image = library;
            made->allowed_shared_bytes = DEFAULT_SHARED_BYTES;
            *kernel = made;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    if (attribute != MAX_SHARED_BYTES || value > MOST_SHARED_BYTES || device != current_device) return INVALID_VALUE;
    ((Kernel*)kernel)->allowed_shared_bytes = value;
    return SUCCESS;
}

int cuKernelGetFunction(void** function, void* kernel) {
    if (capturing) return INVALID_VALUE;
    ((Kernel*)kernel)->is_loaded = 1;
    *function = kernel;
    return SUCCESS;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                   void* stream, void** arguments, void** extra) {
    const Kernel* kernel = function;
    if (!kernel->is_loaded || x == 0 || y == 0 || y > 65535 || z == 0 || z > 65535 || threads_y != 1 || threads_z != 1 || extra != NULL || threads % 32 != 0) return INVALID_VALUE;
    if ((int)shared_bytes > kernel->allowed_shared_bytes || threads == 0 || threads > 1024) return LAUNCH_OUT_OF_RESOURCES;
    return launch_kernel(kernel->image, x, y, z, stream, arguments);
}

// Devices: eight of the compute capability 9.0, with 7 multiprocessors and 80 GiB.
int cuInit(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }
int cuDeviceGetCount(int* count) { return *count = 8, SUCCESS; }
int cuDeviceGet(int* device, int number) { return *device = number, SUCCESS; }
int cuDeviceGetName(char* name, int size, int device) { return (void)device, strncpy(name, "stand-in", size), SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { return (void)device, *value = attribute == 75 ? 9 : attribute == 16 ? 7 : 0, SUCCESS; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return (void)device, *bytes = (size_t)80 << 30, SUCCESS; }
int cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
