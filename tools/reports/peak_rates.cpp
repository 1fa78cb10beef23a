// Peak rates of one thread, which bound every kernel: 8-bit dot products and reading memory (kernel_rates.py).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#if defined __AVX512VNNI__
using Vector = __m512i;
static Vector repeat(int number) { return _mm512_set1_epi32(number); }
static Vector load(const void* from) { return _mm512_loadu_si512(from); }
static Vector add(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
static Vector dot(Vector sum, Vector a, Vector b) { return _mm512_dpbusd_epi32(sum, a, b); }
#else
using Vector = __m256i;
static Vector repeat(int number) { return _mm256_set1_epi32(number); }
static Vector load(const void* from) { return _mm256_loadu_si256(static_cast<const Vector*>(from)); }
static Vector add(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
#ifdef __AVXVNNI__
static Vector dot(Vector sum, Vector a, Vector b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#else
static Vector dot(Vector sum, Vector a, Vector b) { return add(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))); }
#endif
#endif
static volatile int sink;

// Compute `count` times 12 independent dot products. Returns the operations of one: a multiplication and an addition per byte.
extern "C" int64_t dots(int64_t count) {
    Vector sums[12], a = repeat(static_cast<int>(count)), b = repeat(1);
    for (int i = 0; i < 12; ++i) sums[i] = repeat(i);  // so that none equals another
    for (int64_t i = 0; i < count; ++i) {
        asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
        for (Vector& sum : sums) sum = dot(sum, a, b);
    }
    for (const Vector& sum : sums) a = add(a, sum);
    sink = reinterpret_cast<const int&>(a);
    return 2 * sizeof(Vector);
}

extern "C" void read(const char* memory, int64_t bytes) {
    Vector sums[4] = {};
    for (int64_t at = 0; at < bytes; at += sizeof sums) {
        __builtin_prefetch(memory + at + 4096);
        __builtin_prefetch(memory + at + 4096 + 64);
        __builtin_prefetch(memory + at + 4096 + sizeof sums - 64);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[i] = add(sums[i], load(memory + at + i * sizeof(Vector)));
    }
    const Vector sum = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    sink = reinterpret_cast<const int&>(sum);
}
