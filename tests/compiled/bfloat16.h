// AVX-512's bfloat16 instructions in software, for processors with AVX-512 but without these. Included before all else.

#include <immintrin.h>

#ifndef __AVX512BF16__
#include <cstdint>
#include <cstring>

// sum + a b, of the pairs of numbers in each 32 bits of a and b
static inline __m512 add_products_of_pairs(__m512 sum, __m512bh a, __m512bh b) {
    __m512i left, right;
    std::memcpy(&left, &a, 64), std::memcpy(&right, &b, 64);
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    const auto low = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
    const auto high = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, upper)); };
    return _mm512_fmadd_ps(low(left), low(right), _mm512_fmadd_ps(high(left), high(right), sum));
}

// the numbers of b, then those of a, rounded to nearest, ties to even
static inline __m512bh rounded_to_pairs(__m512 a, __m512 b) {
    uint32_t bits[32];
    uint16_t halves[32];
    std::memcpy(bits, &b, 64), std::memcpy(bits + 16, &a, 64);
    for (int i = 0; i < 32; i++) {
        const bool nan = (bits[i] & 0x7fffffff) > 0x7f800000;
        halves[i] = uint16_t(nan ? bits[i] >> 16 | 0x40 : (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
    }
    __m512bh result;
    std::memcpy(&result, halves, 64);
    return result;
}

#define __AVX512BF16__ 1
#define _mm512_dpbf16_ps add_products_of_pairs
#define _mm512_cvtne2ps_pbh rounded_to_pairs
#endif
