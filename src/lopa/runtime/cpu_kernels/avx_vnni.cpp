// Kernels for processors with AVX-VNNI, such as Intel's laptops since 2021.
#include "ymm.h"

namespace lopa {
namespace {

struct AvxVnni : Ymm {
    static I dot(I sum, I weights, I rows) { return _mm256_dpbusd_avx_epi32(sum, weights, rows); }
    static I dot_small(I sum, I weights, I rows) { return dot(sum, weights, rows); }

    template <class Format, int wide, int part>
    LOPA_INLINE static void unpack(const uint8_t* weights, int64_t stride, I* out) {
        unpack_with<Format, wide, part>(_mm256_set1_epi8(char(0x80)), weights, stride, out);
    }
};

}  // namespace

const Kernels kAvxVnni = kernels_of<AvxVnni>("avx-vnni", 128);

}  // namespace lopa
