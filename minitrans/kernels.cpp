// What training does between its matrix products, each in one pass over memory: dropout, layer norm, softmax.
//
// Rows are split among the threads; every result is the same for any number of them. bfloat16 and float32 are computed
// in float32, float64 in float64. All tensors are contiguous. Compiled and called by kernels.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

using std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t;

// bfloat16: the upper half of a float32, rounded to nearest, ties to even.
struct bf16 {
    uint16_t bits;
};

template <class T> struct arithmetic {
    using type = T;
};
template <> struct arithmetic<bf16> {
    using type = float;
};
template <class T> using computed = typename arithmetic<T>::type;

template <class To, class From> To bit_cast(From x) {
    To y;
    static_assert(sizeof x == sizeof y);
    std::memcpy(&y, &x, sizeof x);
    return y;
}

inline float load(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
inline float load(float x) { return x; }
inline double load(double x) { return x; }

inline void store(bf16 *to, float x) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    to->bits = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void store(float *to, float x) { *to = x; }
inline void store(double *to, double x) { *to = x; }

// e^x for x <= 0; in float32 at least e^-87, a normal number: 2^n e^r with |r| <= ln 2 / 2, and the series of e^r.
inline double exponential(double x) { return std::exp(x); }
inline float exponential(float x) {
    const float clamped = std::max(x, -87.0f);
    const int32_t n = int32_t(clamped * 1.442695041f - 0.5f);
    const float r = clamped - float(n) * 0.693145752f - float(n) * 1.42860677e-6f;  // ln 2 in two parts
    const float series = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r / 720)))));
    return series * bit_cast<float>((n + 127) << 23);
}

// Dropout. Element i is dropped if byte i of the seed's stream of random bytes is below `dropped`: p = dropped / 256.
// Word j of the stream is SplitMix64's (Steele et al. 2014); the same stream as in dropout.py.
inline uint64_t word(uint64_t seed, uint64_t j) {
    uint64_t z = seed + (j + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

constexpr int64_t BLOCK = 1024;  // elements

template <class T> computed<T> kept(int dropped) { return computed<T>(256) / computed<T>(256 - dropped); }

inline void random_bytes(uint8_t *bytes, uint64_t seed, int64_t first_word, int n_words) {
    for (int j = 0; j < n_words; j++) {
        const uint64_t w = word(seed, uint64_t(first_word + j));
        std::memcpy(bytes + 8 * j, &w, 8);
    }
}

// out = dropout(x) + residual; `residual` may be null.
template <class T>
void dropout_add(const T *x, const T *residual, T *out, int64_t n, uint64_t seed, int dropped) {
    using A = computed<T>;
    const A scale = kept<T>(dropped);
#pragma omp parallel for
    for (int64_t start = 0; start < n; start += BLOCK) {
        alignas(64) uint8_t bytes[BLOCK];
        random_bytes(bytes, seed, start / 8, BLOCK / 8);
        const int count = int(std::min(BLOCK, n - start));
        const T *__restrict from = x + start, *__restrict base = residual ? residual + start : nullptr;
        T *__restrict to = out + start;
        if (base)
            for (int i = 0; i < count; i++)
                store(to + i, load(base[i]) + (bytes[i] >= dropped ? load(from[i]) * scale : A(0)));
        else
            for (int i = 0; i < count; i++) store(to + i, bytes[i] >= dropped ? load(from[i]) * scale : A(0));
    }
}

// x = dropout(relu(x)), in place.
template <class T> void relu_dropout(T *x, int64_t n, uint64_t seed, int dropped) {
    using A = computed<T>;
    const A scale = kept<T>(dropped);
#pragma omp parallel for
    for (int64_t start = 0; start < n; start += BLOCK) {
        alignas(64) uint8_t bytes[BLOCK];
        random_bytes(bytes, seed, start / 8, BLOCK / 8);
        const int count = int(std::min(BLOCK, n - start));
        T *at = x + start;
        for (int i = 0; i < count; i++) {
            const A value = load(at[i]);
            store(at + i, bytes[i] >= dropped && value > 0 ? value * scale : A(0));
        }
    }
}

// grad = what `relu_dropout` passes back, in place; y is its result: where it is 0, nothing comes back.
template <class T> void relu_dropout_backward(T *grad, const T *y, int64_t n, int dropped) {
    using A = computed<T>;
    const A scale = kept<T>(dropped);
#pragma omp parallel for
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int count = int(std::min(BLOCK, n - start));
        const T *__restrict result = y + start;
        T *__restrict at = grad + start;
        for (int i = 0; i < count; i++) store(at + i, load(result[i]) > 0 ? load(at[i]) * scale : A(0));
    }
}

// y = gamma (x - mean) / sqrt(variance + eps) + beta for each of the rows of x (rows, D); mean and 1 / sqrt are kept.
template <class T>
void norm(const T *x, const computed<T> *gamma, const computed<T> *beta, T *y, computed<T> *mean, computed<T> *rstd,
          int64_t rows, int64_t D, double eps) {
    using A = computed<T>;
#pragma omp parallel
    {
        std::vector<A> buffer(D);
        A *__restrict v = buffer.data();
#pragma omp for
        for (int64_t r = 0; r < rows; r++) {
            A sum = 0, squares = 0;
            for (int64_t i = 0; i < D; i++) v[i] = load(x[r * D + i]), sum += v[i];
            const A m = sum / A(D);
            for (int64_t i = 0; i < D; i++) v[i] -= m, squares += v[i] * v[i];
            const A q = 1 / std::sqrt(squares / A(D) + A(eps));
            for (int64_t i = 0; i < D; i++) store(y + r * D + i, v[i] * q * gamma[i] + beta[i]);
            mean[r] = m, rstd[r] = q;
        }
    }
}

// dx = the gradient of `norm` at x, for the gradient dy, plus `residual` (may be null); d_gamma and d_beta likewise.
template <class T>
void norm_backward(const T *dy, const T *x, const computed<T> *gamma, const computed<T> *mean, const computed<T> *rstd,
                   const T *residual, T *dx, computed<T> *d_gamma, computed<T> *d_beta, int64_t rows, int64_t D) {
    using A = computed<T>;
    constexpr int PARTS = 64;  // sums of fixed parts: the same for any number of threads
    std::vector<A> parts(2 * PARTS * D, A(0));
#pragma omp parallel for
    for (int part = 0; part < PARTS; part++) {
        A *__restrict sum_gamma = parts.data() + 2 * part * D, *__restrict sum_beta = sum_gamma + D;
        std::vector<A> buffer(2 * D);
        A *__restrict normed = buffer.data(), *__restrict scaled = normed + D;
        for (int64_t r = rows * part / PARTS; r < rows * (part + 1) / PARTS; r++) {
            const T *__restrict grad = dy + r * D, *__restrict from = x + r * D;
            const A m = mean[r], q = rstd[r];
            A mean_scaled = 0, mean_product = 0;
            for (int64_t i = 0; i < D; i++) {
                const A g = load(grad[i]);
                normed[i] = (load(from[i]) - m) * q;
                scaled[i] = g * gamma[i];
                sum_gamma[i] += g * normed[i];
                sum_beta[i] += g;
                mean_scaled += scaled[i];
                mean_product += scaled[i] * normed[i];
            }
            mean_scaled /= A(D), mean_product /= A(D);
            for (int64_t i = 0; i < D; i++) {
                scaled[i] = q * (scaled[i] - mean_scaled - normed[i] * mean_product);
            }
            if (residual)
                for (int64_t i = 0; i < D; i++) scaled[i] += load(residual[r * D + i]);
            for (int64_t i = 0; i < D; i++) store(dx + r * D + i, scaled[i]);
        }
    }
    std::fill_n(d_gamma, D, A(0));
    std::fill_n(d_beta, D, A(0));
    for (int part = 0; part < PARTS; part++)
        for (int64_t i = 0; i < D; i++) {
            d_gamma[i] += parts[2 * part * D + i];
            d_beta[i] += parts[(2 * part + 1) * D + i];
        }
}

// Softmax of short rows. A row of Tk numbers is computed W at a time, W >= Tk, so that all loops are whole vectors.
// Reading and writing run over into the next row, which is read and written afterwards; `careful` where there is none.
template <class T, int W> struct Row {
    using A = computed<T>;
    alignas(64) A v[W];

    void read(const T *from, int64_t n, bool careful) {
        alignas(64) T copy[W] = {};
        if (careful) from = static_cast<const T *>(std::memcpy(copy, from, n * sizeof(T)));
        for (int k = 0; k < W; k++) v[k] = load(from[k]);
    }
    void write(T *to, int64_t n, bool careful) const {
        alignas(64) T copy[W];
        T *target = careful ? copy : to;
        for (int k = 0; k < W; k++) store(target + k, v[k]);
        if (careful) std::memcpy(to, copy, n * sizeof(T));
    }
    void drop(uint64_t seed, int64_t start, int dropped) {  // start: index of the row's first element
        alignas(64) uint8_t bytes[W + 8];
        random_bytes(bytes, seed, start / 8, W / 8 + 1);
        const uint8_t *byte = bytes + start % 8;
        const A scale = kept<T>(dropped);
        for (int k = 0; k < W; k++) v[k] = byte[k] >= dropped ? v[k] * scale : A(0);
    }
};

struct Shape {
    int64_t B, H, Tq, Tk;
};
struct Mask {  // true = may attend; strides of B, H, Tq, Tk, 0 where it is broadcast
    const uint8_t *admits;
    int64_t b, h, q, k;
};

// weights = softmax(scale * scores) over the admitted keys, 0 where there is none; kept_weights = dropout(weights).
template <class T, int W>
void masked_softmax(const T *scores, T *weights, T *kept_weights, Shape s, Mask m, double scale, uint64_t seed,
                    int dropped) {
    using A = computed<T>;
    const A lowest = std::numeric_limits<A>::lowest() / 2;  // a masked key's score; its weight is set to 0 besides
    const int64_t mask_rows = m.q ? s.Tq : 1;
#pragma omp parallel
    {
        std::vector<A> admitted(mask_rows * W, A(0));  // 1 or 0
        const uint8_t *before = nullptr;
#pragma omp for
        for (int64_t bh = 0; bh < s.B * s.H; bh++) {
            const uint8_t *here = m.admits + bh / s.H * m.b + bh % s.H * m.h;
            if (here != before)
                for (int64_t q = 0; q < mask_rows; q++)
                    for (int64_t k = 0; k < s.Tk; k++) admitted[q * W + k] = A(here[q * m.q + k * m.k]);
            before = here;
            Row<T, W> row;
            for (int64_t q = 0; q < s.Tq; q++) {
                const int64_t start = (bh * s.Tq + q) * s.Tk;
                const bool careful = (s.Tq - q) * s.Tk < W;
                const A *may = admitted.data() + (m.q ? q * W : 0);
                row.read(scores + start, s.Tk, careful);
                A top = lowest, sum = 0;
                for (int k = 0; k < W; k++) row.v[k] = may[k] * A(scale) * row.v[k] + (1 - may[k]) * lowest;
                for (int k = 0; k < W; k++) top = std::max(top, row.v[k]);
                for (int k = 0; k < W; k++) row.v[k] = may[k] * exponential(row.v[k] - top);
                for (int k = 0; k < W; k++) sum += row.v[k];
                const A over = sum > 0 ? 1 / sum : A(0);
                for (int k = 0; k < W; k++) row.v[k] *= over;
                row.write(weights + start, s.Tk, careful);
                row.drop(seed, start, dropped);
                row.write(kept_weights + start, s.Tk, careful);
            }
        }
    }
}

// out = what `masked_softmax` passes back to the scores, for the gradient of kept_weights.
template <class T, int W>
void masked_softmax_backward(const T *grad, const T *weights, T *out, Shape s, double scale, uint64_t seed,
                             int dropped) {
    using A = computed<T>;
#pragma omp parallel for
    for (int64_t bh = 0; bh < s.B * s.H; bh++) {
        Row<T, W> g, w;
        for (int64_t q = 0; q < s.Tq; q++) {
            const int64_t start = (bh * s.Tq + q) * s.Tk;
            const bool careful = (s.Tq - q) * s.Tk < W;
            g.read(grad + start, s.Tk, careful);
            w.read(weights + start, s.Tk, careful);
            g.drop(seed, start, dropped);
            A dot = 0;
            for (int k = 0; k < W; k++) w.v[k] = k < s.Tk ? w.v[k] : A(0);
            for (int k = 0; k < W; k++) dot += g.v[k] * w.v[k];
            for (int k = 0; k < W; k++) g.v[k] = A(scale) * w.v[k] * (g.v[k] - dot);
            g.write(out + start, s.Tk, careful);
        }
    }
}

// x (rows, V) = softmax of each row, in place.
template <class T> void softmax(T *x, int64_t rows, int64_t V) {
    using A = computed<T>;
#pragma omp parallel
    {
        std::vector<A> buffer(V);
        A *__restrict e = buffer.data();
#pragma omp for
        for (int64_t r = 0; r < rows; r++) {
            T *__restrict row = x + r * V;
            A top = std::numeric_limits<A>::lowest(), sum = 0;
            for (int64_t k = 0; k < V; k++) e[k] = load(row[k]), top = std::max(top, e[k]);
            for (int64_t k = 0; k < V; k++) e[k] = exponential(e[k] - top), sum += e[k];
            const A over = 1 / sum;
            for (int64_t k = 0; k < V; k++) store(row + k, e[k] * over);
        }
    }
}

// x (B, T, n, H, Dh) -> y (n, B, H, T, Dh), or back.
template <class T>
void split_heads(const T *x, T *y, int64_t B, int64_t L, int64_t n, int64_t H, int64_t Dh, bool back) {
#pragma omp parallel for
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < L; t++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t h = 0; h < H; h++) {
                    const int64_t merged = (((b * L + t) * n + i) * H + h) * Dh;
                    const int64_t split = (((i * B + b) * H + h) * L + t) * Dh;
                    std::memcpy(y + (back ? merged : split), x + (back ? split : merged), Dh * sizeof(T));
                }
}

// Calls f with the smallest of a few widths that holds a row.
template <class F> void by_width(int64_t Tk, F f) {
    if (Tk <= 16) f(std::integral_constant<int, 16>());
    else if (Tk <= 32) f(std::integral_constant<int, 32>());
    else if (Tk <= 64) f(std::integral_constant<int, 64>());
    else if (Tk <= 128) f(std::integral_constant<int, 128>());
    else if (Tk <= 256) f(std::integral_constant<int, 256>());
    else f(std::integral_constant<int, 1024>());
}

#define EXPORT(T, NAME)                                                                                                \
    extern "C" void dropout_add_##NAME(const T *x, const T *residual, T *out, int64_t n, uint64_t seed, int dropped) { \
        dropout_add(x, residual, out, n, seed, dropped);                                                               \
    }                                                                                                                  \
    extern "C" void relu_dropout_##NAME(T *x, int64_t n, uint64_t seed, int dropped) {                                 \
        relu_dropout(x, n, seed, dropped);                                                                             \
    }                                                                                                                  \
    extern "C" void relu_dropout_backward_##NAME(T *grad, const T *y, int64_t n, int dropped) {                        \
        relu_dropout_backward(grad, y, n, dropped);                                                                    \
    }                                                                                                                  \
    extern "C" void norm_##NAME(const T *x, const computed<T> *gamma, const computed<T> *beta, T *y,                   \
                                computed<T> *mean, computed<T> *rstd, int64_t rows, int64_t D, double eps) {           \
        norm(x, gamma, beta, y, mean, rstd, rows, D, eps);                                                             \
    }                                                                                                                  \
    extern "C" void norm_backward_##NAME(const T *dy, const T *x, const computed<T> *gamma, const computed<T> *mean,   \
                                         const computed<T> *rstd, const T *residual, T *dx, computed<T> *d_gamma,      \
                                         computed<T> *d_beta, int64_t rows, int64_t D) {                               \
        norm_backward(dy, x, gamma, mean, rstd, residual, dx, d_gamma, d_beta, rows, D);                               \
    }                                                                                                                  \
    extern "C" void masked_softmax_##NAME(const T *scores, T *weights, T *kept_weights, Shape s, Mask m, double scale, \
                                          uint64_t seed, int dropped) {                                                \
        by_width(s.Tk, [&](auto W) {                                                                                   \
            masked_softmax<T, W>(scores, weights, kept_weights, s, m, scale, seed, dropped);                           \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void masked_softmax_backward_##NAME(const T *grad, const T *weights, T *out, Shape s, double scale,     \
                                                   uint64_t seed, int dropped) {                                       \
        by_width(s.Tk, [&](auto W) { masked_softmax_backward<T, W>(grad, weights, out, s, scale, seed, dropped); });   \
    }                                                                                                                  \
    extern "C" void softmax_##NAME(T *x, int64_t rows, int64_t V) { softmax(x, rows, V); }                             \
    extern "C" void split_heads_##NAME(const T *x, T *y, int64_t B, int64_t L, int64_t n, int64_t H, int64_t Dh,       \
                                       bool back) {                                                                    \
        split_heads(x, y, B, L, n, H, Dh, back);                                                                       \
    }

EXPORT(bf16, bfloat16)
EXPORT(float, float32)
EXPORT(double, float64)
