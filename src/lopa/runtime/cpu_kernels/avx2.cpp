// Kernels for processors with AVX2.
#include "ymm.h"

namespace lopa {
namespace {

struct Avx2 : Ymm {
    // Weights are signed. Products of two pairs stay within int16, because no number of a row is below -127.
    static I dot(I sum, I weights, I rows) { return add_pairs(sum, _mm256_abs_epi8(weights), _mm256_sign_epi8(rows, weights)); }
    // Weights are 0 to 15.
    static I dot_small(I sum, I weights, I rows) { return add_pairs(sum, weights, rows); }

    static I add_pairs(I sum, I first, I second) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(first, second), _mm256_set1_epi16(1)));
    }

    template <class Format, int wide, int part>
    LOPA_INLINE static void unpack(const uint8_t* weights, int64_t stride, I* out) {
        unpack_with<Format, wide, part>(_mm256_setzero_si256(), weights, stride, out);
    }
};

}  // namespace

const Kernels kAvx2 = kernels_of<Avx2>("avx2", 0);

}  // namespace lopa
