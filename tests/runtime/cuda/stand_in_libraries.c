/* Stands in for the CUDA runtime's library, so that the real onnxruntime-gpu opens and runs graphs on a machine without
   a GPU. Device memory is host memory, kernels do nothing, nothing is asynchronous; calls are kept by name, so that
   their order can be looked at. What is not here, and all other libraries, is generated: functions that return 0. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define MOST (1L << 20)
static const char *kept[MOST];
static long count;
static int capturing;

long stand_in_count(void) { return count; }
const char *stand_in_call(long number) { return kept[number]; }

#define KEEP() do { if (count < MOST) kept[count++] = __func__; } while (0)
#define GIVES(name, type, value, ...) \
    cudaError_t name(type *given, ##__VA_ARGS__) { KEEP(); *given = value; return cudaSuccess; }
#define DOES(name, ...) cudaError_t name(__VA_ARGS__) { KEEP(); return cudaSuccess; }
#define HANDLE malloc(64)

GIVES(cudaGetDeviceCount, int, 1)
GIVES(cudaGetDevice, int, 0)
GIVES(cudaRuntimeGetVersion, int, CUDART_VERSION)
GIVES(cudaDriverGetVersion, int, CUDART_VERSION)
GIVES(cudaStreamCreate, cudaStream_t, HANDLE)
GIVES(cudaStreamCreateWithFlags, cudaStream_t, HANDLE, unsigned flags)
GIVES(cudaEventCreate, cudaEvent_t, HANDLE)
GIVES(cudaEventCreateWithFlags, cudaEvent_t, HANDLE, unsigned flags)
GIVES(cudaMemPoolCreate, cudaMemPool_t, HANDLE, const struct cudaMemPoolProps *wanted)
GIVES(cudaGraphInstantiate, cudaGraphExec_t, HANDLE, cudaGraph_t graph, unsigned long long flags)
GIVES(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int, 2, const void *f, int b, size_t m, unsigned flags)
DOES(cudaStreamSynchronize, cudaStream_t stream)
DOES(cudaEventSynchronize, cudaEvent_t event)
DOES(cudaDeviceSynchronize, void)
DOES(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t stream)
DOES(__cudaLaunchKernel, cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
DOES(cudaLaunchKernel, const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)

const char *cudaGetErrorName(cudaError_t code) { return "an error of the stand-in"; }
const char *cudaGetErrorString(cudaError_t code) { return "an error of the stand-in"; }

cudaError_t cudaMalloc(void **given, size_t size) {
    KEEP();
    *given = aligned_alloc(512, (size + 1023) / 512 * 512);
    return *given ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMallocHost(void **given, size_t size) { return cudaMalloc(given, size); }
cudaError_t cudaHostAlloc(void **given, size_t size, unsigned flags) { return cudaMalloc(given, size); }
cudaError_t cudaMallocFromPoolAsync(void **given, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    return cudaMalloc(given, size);
}
cudaError_t cudaFree(void *address) { KEEP(); free(address); return cudaSuccess; }
cudaError_t cudaFreeHost(void *address) { return cudaFree(address); }
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) { return cudaFree(address); }

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    KEEP();
    memcpy(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    KEEP();
    memcpy(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t size) { KEEP(); memset(to, value, size); return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    KEEP();
    memset(to, value, size);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *given) {
    *given = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    KEEP();
    capturing = 1;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *given) {
    KEEP();
    capturing = 0;
    *given = HANDLE;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = (size_t)64 << 30;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *given, const void *address) {
    memset(given, 0, sizeof *given);
    given->type = cudaMemoryTypeDevice;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *given, const void *kernel) {
    memset(given, 0, sizeof *given);
    given->maxThreadsPerBlock = 1024;
    given->binaryVersion = given->ptxVersion = 90;
    return cudaSuccess;
}
/* As of an H100, since kernels are chosen by these. */
cudaError_t cudaDeviceGetAttribute(int *given, enum cudaDeviceAttr attribute, int device) {
    *given = attribute == cudaDevAttrComputeCapabilityMajor             ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor           ? 0
             : attribute == cudaDevAttrMultiProcessorCount              ? 132
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin     ? 232448
             : attribute == cudaDevAttrWarpSize                         ? 32
                                                                        : 1024;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *given, int device) {
    memset(given, 0, sizeof *given);
    strcpy(given->name, "stand-in");
    given->major = 9;
    given->multiProcessorCount = 132;
    given->warpSize = 32;
    given->totalGlobalMem = (size_t)64 << 30;
    given->sharedMemPerBlock = 49152;
    given->sharedMemPerBlockOptin = 232448;
    given->sharedMemPerMultiprocessor = 233472;
    given->regsPerBlock = 65536;
    given->maxThreadsPerBlock = given->maxThreadsDim[0] = given->maxThreadsDim[1] = 1024;
    given->maxThreadsDim[2] = 64;
    given->maxThreadsPerMultiProcessor = 2048;
    given->maxGridSize[0] = 2147483647;
    given->maxGridSize[1] = given->maxGridSize[2] = 65535;
    return cudaSuccess;
}
static int nothing(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **given, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    *given = (void *)nothing;
    if (found)
        *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
