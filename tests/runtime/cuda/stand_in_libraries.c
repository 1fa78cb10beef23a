/* A stand-in for the CUDA runtime library, so that the real onnxruntime-gpu opens and runs graphs without a GPU.
   Device memory is host memory, kernels do nothing, and nothing is asynchronous. Calls are recorded by name and order.
   All other functions and libraries are generated: functions that return 0. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CALLS (1L << 20)
static const char *recorded[MAX_CALLS];
static long count;
static int capturing;

long stand_in_count(void) { return count; }
const char *stand_in_call(long number) { return recorded[number]; }

#define RECORD() do { if (count < MAX_CALLS) recorded[count++] = __func__; } while (0)
#define RETURNS(name, type, value, ...) \
    cudaError_t name(type *result, ##__VA_ARGS__) { RECORD(); *result = value; return cudaSuccess; }
#define SUCCEEDS(name, ...) cudaError_t name(__VA_ARGS__) { RECORD(); return cudaSuccess; }
#define HANDLE malloc(64)

RETURNS(cudaGetDeviceCount, int, 1)
RETURNS(cudaGetDevice, int, 0)
RETURNS(cudaRuntimeGetVersion, int, CUDART_VERSION)
RETURNS(cudaDriverGetVersion, int, CUDART_VERSION)
RETURNS(cudaStreamCreate, cudaStream_t, HANDLE)
RETURNS(cudaStreamCreateWithFlags, cudaStream_t, HANDLE, unsigned flags)
RETURNS(cudaEventCreate, cudaEvent_t, HANDLE)
RETURNS(cudaEventCreateWithFlags, cudaEvent_t, HANDLE, unsigned flags)
RETURNS(cudaMemPoolCreate, cudaMemPool_t, HANDLE, const struct cudaMemPoolProps *properties)
RETURNS(cudaGraphInstantiate, cudaGraphExec_t, HANDLE, cudaGraph_t graph, unsigned long long flags)
RETURNS(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int, 2, const void *f, int b, size_t m, unsigned flags)
SUCCEEDS(cudaStreamSynchronize, cudaStream_t stream)
SUCCEEDS(cudaEventSynchronize, cudaEvent_t event)
SUCCEEDS(cudaDeviceSynchronize, void)
SUCCEEDS(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t stream)
SUCCEEDS(__cudaLaunchKernel, cudaKernel_t kernel, dim3 grid, dim3 block, void **values, size_t size, cudaStream_t s)
SUCCEEDS(cudaLaunchKernel, const void *kernel, dim3 grid, dim3 block, void **values, size_t size, cudaStream_t s)

const char *cudaGetErrorName(cudaError_t code) { return "an error of the stand-in"; }
const char *cudaGetErrorString(cudaError_t code) { return "an error of the stand-in"; }

cudaError_t cudaMalloc(void **result, size_t size) {
    RECORD();
    *result = aligned_alloc(512, (size + 1023) / 512 * 512);
    return *result ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMallocHost(void **result, size_t size) { return cudaMalloc(result, size); }
cudaError_t cudaHostAlloc(void **result, size_t size, unsigned flags) { return cudaMalloc(result, size); }
cudaError_t cudaMallocFromPoolAsync(void **result, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    return cudaMalloc(result, size);
}
cudaError_t cudaFree(void *address) { RECORD(); free(address); return cudaSuccess; }
cudaError_t cudaFreeHost(void *address) { return cudaFree(address); }
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) { return cudaFree(address); }

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    RECORD();
    memcpy(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    RECORD();
    memcpy(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t size) { RECORD(); memset(to, value, size); return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    RECORD();
    memset(to, value, size);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *result) {
    *result = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    RECORD();
    capturing = 1;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *result) {
    RECORD();
    capturing = 0;
    *result = HANDLE;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = (size_t)64 << 30;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *result, const void *address) {
    memset(result, 0, sizeof *result);
    result->type = cudaMemoryTypeDevice;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *result, const void *kernel) {
    memset(result, 0, sizeof *result);
    result->maxThreadsPerBlock = 1024;
    result->binaryVersion = result->ptxVersion = 90;
    return cudaSuccess;
}
/* Attributes of an H100, because they determine the choice of kernels. */
cudaError_t cudaDeviceGetAttribute(int *result, enum cudaDeviceAttr attribute, int device) {
    *result = attribute == cudaDevAttrComputeCapabilityMajor             ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor           ? 0
             : attribute == cudaDevAttrMultiProcessorCount              ? 132
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin     ? 232448
             : attribute == cudaDevAttrWarpSize                         ? 32
                                                                        : 1024;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *result, int device) {
    memset(result, 0, sizeof *result);
    strcpy(result->name, "stand-in");
    result->major = 9;
    result->multiProcessorCount = 132;
    result->warpSize = 32;
    result->totalGlobalMem = (size_t)64 << 30;
    result->sharedMemPerBlock = 49152;
    result->sharedMemPerBlockOptin = 232448;
    result->sharedMemPerMultiprocessor = 233472;
    result->regsPerBlock = 65536;
    result->maxThreadsPerBlock = result->maxThreadsDim[0] = result->maxThreadsDim[1] = 1024;
    result->maxThreadsDim[2] = 64;
    result->maxThreadsPerMultiProcessor = 2048;
    result->maxGridSize[0] = 2147483647;
    result->maxGridSize[1] = result->maxGridSize[2] = 65535;
    return cudaSuccess;
}
static int return_zero(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **result, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    *result = (void *)return_zero;
    if (found)
        *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
