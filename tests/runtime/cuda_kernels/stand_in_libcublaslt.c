// A stand-in for NVIDIA's cuBLASLt: products of e4m3 matrices on host memory. It is not vendor software. It refuses what
// cublasLt.h and the documentation of cublasLtMatmul forbid for these products on the compute capabilities 8.9 and 9.0.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { FLOAT = 0, E4M3 = 28, COMPUTE_FLOAT = 68, TRANSPOSED = 1, MAGIC = 0x10be117, WORKSPACE = 4096 };

typedef struct {
    int transpose[2];
    int fast;
} Product;
typedef struct {
    int type;
    uint64_t rows, columns;
    int64_t stride;
} Layout;
typedef struct {
    uint64_t most_workspace;
    uint32_t alignments[4];
} Preference;
typedef struct {
    uint64_t data[8];
} Algorithm;
typedef struct {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} Heuristic;

static int capturing, refuses, context;
static int products, live;

void stand_in_lt_set_capturing(int value) { capturing = value; }
void stand_in_lt_refuse(int value) { refuses = value; }
int stand_in_lt_products(void) { return products; }

int stand_in_lt_live(void) { return live; }

static int destroyed(void* memory, size_t size) { return memset(memory, 0xdd, size), free(memory), --live, SUCCESS; }

static void* made(size_t size, void* initial) {
    void* memory = malloc(size);
    ++live;
    return memcpy(memory, initial, size);
}

int cublasLtCreate(void** handle) { return capturing ? ALLOC_FAILED : (*handle = &context, SUCCESS); }

int cublasLtMatmulDescCreate(void** product, int compute, int scale) {
    if (compute != COMPUTE_FLOAT || scale != FLOAT) return NOT_SUPPORTED;
    Product initial = {{0, 0}, 0};
    return *product = made(sizeof(initial), &initial), SUCCESS;
}

int cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t size) {
    if ((attribute != 3 && attribute != 4) || size != 4) return INVALID_VALUE;
    return memcpy(&((Product*)product)->transpose[attribute - 3], value, size), SUCCESS;
}

int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    Layout initial = {type, rows, columns, stride};
    if (stride < (int64_t)rows || rows == 0 || columns == 0) return INVALID_VALUE;
    return *layout = made(sizeof(initial), &initial), SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void** preference) {
    Preference initial = {0, {256, 256, 256, 256}};
    return *preference = made(sizeof(initial), &initial), SUCCESS;
}

int cublasLtMatmulDescDestroy(void* product) { return destroyed(product, sizeof(Product)); }
int cublasLtMatrixLayoutDestroy(void* layout) { return destroyed(layout, sizeof(Layout)); }
int cublasLtMatmulPreferenceDestroy(void* preference) { return destroyed(preference, sizeof(Preference)); }

int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
    Preference* own = preference;
    if (attribute == 1 && size == 8) return memcpy(&own->most_workspace, value, 8), SUCCESS;
    if (attribute < 5 || attribute > 8 || size != 4) return INVALID_VALUE;
    return memcpy(&own->alignments[attribute - 5], value, 4), SUCCESS;
}

static int forbidden(const Product* product, const Layout* a, const Layout* b, const Layout* c, const Layout* d) {
    if (a->type != E4M3 || b->type != E4M3 || product->transpose[0] != TRANSPOSED || product->transpose[1] != 0) return NOT_SUPPORTED;
    if (d->type != FLOAT && d->type != 2 && d->type != 14) return NOT_SUPPORTED;
    if (a->rows % 16 || d->rows % 16 || a->stride % 16 || b->stride % 16 || d->stride % 16) return NOT_SUPPORTED;
    if (a->rows != b->rows || a->columns != d->rows || b->columns != d->columns || memcmp(c, d, sizeof(*c)) != 0) return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int wanted, Heuristic* found, int* count) {
    const Preference* own = preference;
    const int code = forbidden(product, a, b, c, d);
    *count = 0;
    if (handle != &context || wanted < 1) return INVALID_VALUE;
    if (code != SUCCESS || refuses || capturing) return code == SUCCESS ? NOT_SUPPORTED : code;
    memset(found, 0, sizeof(*found));
    found->workspace = own->most_workspace < WORKSPACE ? own->most_workspace : WORKSPACE;
    found->algorithm.data[0] = MAGIC, found->algorithm.data[1] = found->workspace, found->algorithm.data[2] = own->alignments[0];
    return *count = 1, SUCCESS;
}

static float number_of(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float magnitude = (code & 127) == 127 ? NAN : exponent == 0 ? ldexpf(fraction, -9) : ldexpf(8 + fraction, exponent - 10);
    return code & 128 ? -magnitude : magnitude;
}

int cublasLtMatmul(void* handle, void* product, const float* alpha, const uint8_t* a, const Layout* a_layout, const uint8_t* b, const Layout* b_layout, const float* beta,
                   const void* c, const Layout* c_layout, float* d, const Layout* d_layout, const Algorithm* algorithm, void* workspace, size_t size, void* stream) {
    static float number[256];
    for (int code = 0; code < 256; ++code) number[code] = number_of(code);
    (void)stream;
    const uint64_t alignment = algorithm->data[2];
    if (handle != &context || algorithm->data[0] != MAGIC || size < algorithm->data[1] || (uintptr_t)workspace % 256 || *beta != 0 || c != d) return INVALID_VALUE;
    if ((uintptr_t)a % alignment || (uintptr_t)b % alignment || (uintptr_t)d % alignment || d_layout->type != FLOAT) return INVALID_VALUE;
    if (forbidden(product, a_layout, b_layout, c_layout, d_layout)) return INVALID_VALUE;
    memset(workspace, 0xff, size);
    for (uint64_t row = 0; row < d_layout->columns; ++row)
        for (uint64_t column = 0; column < d_layout->rows; ++column) {
            float sum = 0;
            for (uint64_t k = 0; k < a_layout->rows; ++k) sum += number[a[column * a_layout->stride + k]] * number[b[row * b_layout->stride + k]];
            d[row * d_layout->stride + column] = *alpha * sum;
        }
    return ++products, SUCCESS;
}
