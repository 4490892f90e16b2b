/* Vectors of floats as wide as the machine's registers, and the functions of them that the kernels need.

   Written with the compiler's vector types, which every architecture has. Where a machine has a good instruction that
   the compiler does not find by itself, it is named below; the last branch of each #if is plain C. Polynomials are
   minimax fits over the ranges given with them; README.md has their errors. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define AVX512
#elif defined(__AVX2__)
#define AVX2
#endif
#if defined(AVX512) || defined(AVX2)
#include <immintrin.h>
#endif

#if defined(AVX512)
#define LANES 16
#define ROWS 6 /* rows of a tile: ROWS * 4 sums, 4 weights and 1 input must fit the registers */
#elif defined(AVX2)
#define LANES 8
#define ROWS 3
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 6
#else
#define LANES 4
#define ROWS 3
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef float vf_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p) { return *(const vf_anywhere *)p; }
INLINE void store(float *p, vf x) { *(vf_anywhere *)p = x; }
INLINE vf all(float x) { return x - (vf){0}; }
INLINE vi bits(vf x) { return (vi)x; }

/* The first n lanes, zeros in the others; n may be more than there are. */
INLINE vf load_some(const float *p, int64_t n) {
    if (n >= LANES) return load(p);
#if defined(AVX512)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    float part[LANES] = {0};
    for (int64_t j = 0; j < n; j++) part[j] = p[j];
    return load(part);
#endif
}

INLINE void store_some(float *p, vf x, int64_t n) {
    if (n >= LANES) {
        store(p, x);
        return;
    }
#if defined(AVX512)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    float part[LANES];
    store(part, x);
    for (int64_t j = 0; j < n; j++) p[j] = part[j];
#endif
}

INLINE vf where(vi mask, vf yes, vf no) { /* mask: all ones or all zeros in each lane */
#if defined(AVX512)
    return (vf)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)no, (__m512)yes);
#elif defined(AVX2)
    return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
#endif
}

/* Of the two the second where one is no number, so that a bound given first lets NaN through. */
INLINE vf larger(vf x, vf y) {
#if defined(AVX512)
    return (vf)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(AVX2)
    return (vf)_mm256_max_ps((__m256)x, (__m256)y);
#else
    return where(x > y, x, y);
#endif
}

INLINE vf smaller(vf x, vf y) {
#if defined(AVX512)
    return (vf)_mm512_min_ps((__m512)x, (__m512)y);
#elif defined(AVX2)
    return (vf)_mm256_min_ps((__m256)x, (__m256)y);
#else
    return where(x < y, x, y);
#endif
}

INLINE vf inverse(vf x) { /* 1 / x for ordinary x: an estimate and one step of Newton's where there is one */
#if defined(AVX512)
    vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.0f - x * y);
#else
    return 1.0f / x;
#endif
}

INLINE vf root(vf x) {
#if defined(AVX512)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(AVX2)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    vf y;
    for (int j = 0; j < LANES; j++) y[j] = __builtin_sqrtf(x[j]);
    return y;
#endif
}

INLINE vf magnitude(vf x) { return (vf)(bits(x) & 0x7fffffff); }

INLINE double total(vf x) {
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += x[j];
    return sum;
}

/* x = n log 2 + r with |r| <= log(2) / 2: gives expm1(r) and 2^n. */
INLINE vf expm1_reduced(vf x, vf *power) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to whole numbers */
    vf shifted = x * 1.442695041f + shift;
    vf n = shifted - shift;
    vf r = x - n * 0.693145752f;
    r = r - n * 1.428606765e-06f;
    *power = (vf)((bits(shifted) << 23) + 0x3f800000);
    vf p = r * 1.388887289e-03f + 8.369140149e-03f;
    p = p * r + 4.166713809e-02f;
    p = p * r + 1.666650558e-01f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    return p * r;
}

INLINE vf exponential(vf x) { /* -87 <= x <= 88 */
    vf power, tail = expm1_reduced(x, &power);
    return tail * power + power;
}

INLINE vf sigmoid(vf x) {
    vf e = exponential(smaller(all(87.0f), larger(all(-87.0f), -x)));
    return inverse(1.0f + e);
}

INLINE vf hyperbolic(vf x) { /* tanh, to a few units in the last place near 0 too: expm1(2x) / (expm1(2x) + 2) */
    vf power, twice = smaller(all(18.5f), larger(all(-18.5f), 2.0f * x));
    vf tail = expm1_reduced(twice, &power);
    vf less_one = tail * power + (power - 1.0f);
    return less_one * inverse(less_one + 2.0f);
}

/* log(1 + u) / u for 0 <= u <= 1 */
INLINE vf log1p_ratio(vf u) {
    vf p = u * 5.232693686e-03f - 2.950524005e-02f;
    p = p * u + 7.822596082e-02f;
    p = p * u - 1.366324727e-01f;
    p = p * u + 1.910600790e-01f;
    p = p * u - 2.484298267e-01f;
    p = p * u + 3.331909690e-01f;
    p = p * u - 4.999949315e-01f;
    return p * u + 9.999999699e-01f;
}

INLINE vf logarithm(vf x) { /* of ordinary positive numbers */
    vi e = (bits(x) - 0x3f3504f3) >> 23; /* so that the rest lies in sqrt(1/2) .. sqrt(2) */
    vf f = (vf)(bits(x) - (e << 23)) - 1.0f;
    vf p = f * 8.722358734e-02f - 1.436684883e-01f;
    p = p * f + 1.495226814e-01f;
    p = p * f - 1.656239240e-01f;
    p = p * f + 1.995683335e-01f;
    p = p * f - 2.500207409e-01f;
    p = p * f + 3.333418563e-01f;
    p = p * f - 4.999998796e-01f;
    p = p * f + 1.0f;
    return p * f + __builtin_convertvector(e, vf) * 0.693147181f;
}

/* Rows become columns: x[j][k] and x[k][j] change places. */
INLINE void transpose(vf x[LANES]) {
#if defined(AVX512)
    __m512 a[16], b[16];
    for (int j = 0; j < 16; j += 2) {
        a[j] = _mm512_unpacklo_ps((__m512)x[j], (__m512)x[j + 1]);
        a[j + 1] = _mm512_unpackhi_ps((__m512)x[j], (__m512)x[j + 1]);
    }
    for (int j = 0; j < 16; j += 4)
        for (int k = 0; k < 2; k++) {
            __m512d p = (__m512d)a[j + k], q = (__m512d)a[j + k + 2];
            b[j + 2 * k] = (__m512)_mm512_unpacklo_pd(p, q);
            b[j + 2 * k + 1] = (__m512)_mm512_unpackhi_pd(p, q);
        }
    for (int j = 0; j < 4; j++) { /* b[4 i + j] has columns j, j + 4, j + 8, j + 12 of rows 4 i .. 4 i + 3 */
        __m512 low = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88), high = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd);
        __m512 low2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
        __m512 high2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
        x[j] = (vf)_mm512_shuffle_f32x4(low, low2, 0x88);
        x[j + 8] = (vf)_mm512_shuffle_f32x4(low, low2, 0xdd);
        x[j + 4] = (vf)_mm512_shuffle_f32x4(high, high2, 0x88);
        x[j + 12] = (vf)_mm512_shuffle_f32x4(high, high2, 0xdd);
    }
#else
    vf y[LANES];
    for (int j = 0; j < LANES; j++)
        for (int k = 0; k < LANES; k++) y[j][k] = x[k][j];
    for (int j = 0; j < LANES; j++) x[j] = y[j];
#endif
}
