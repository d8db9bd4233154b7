// What both libraries share: number formats, matrices, their products in a processor's caches, a sub-layer's parameters.
//
// bfloat16 is multiplied by the processor's tile unit (AMX) if it has one, else by its bfloat16 vectors, else as
// float32. Sums are in float32; for float64, in float64.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_BF16 1
#endif
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define HAS_TILE_UNIT 1
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if HAS_BF16 || HAS_TILE_UNIT
#include <immintrin.h>
#endif

namespace {  // private to each library, in case a process loads two that were compiled differently

using std::int32_t, std::int64_t, std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;
[[noreturn]] void report_no_memory();  // each library has its own

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

// e^x for x <= 0; in float32 at least e^-87, a normal number: 2^n e^r with |r| <= ln 2 / 2, and the series of e^r.
inline double exponential(double x) { return std::exp(x); }
inline float exponential(float x) {
    const float clamped = std::max(x, -87.0f);  // NaN stays NaN; as the second argument, below, it becomes -87
    const int32_t n = int32_t(std::max(-87.0f, x) * 1.442695041f - 0.5f);
    const float r = clamped - float(n) * 0.693147181f;  // ln 2
    const float series = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r / 720)))));
    return series * bit_cast<float>((n + 127) << 23);
}

inline uint32_t rounded(float x) {  // to bfloat16, in the upper half
    const uint32_t bits = bit_cast<uint32_t>(x);
    return bits + 0x7fff + (bits >> 16 & 1);
}
inline void store(bf16 *to, float x) { to->bits = uint16_t(rounded(x) >> 16); }
inline void store(float *to, float x) { *to = x; }
inline void store(double *to, double x) { *to = x; }

// Bytes of a vector, and rows of a product that are summed up at once, two vectors of each: as many as registers allow.
#if defined(__AVX512F__)
constexpr int VECTOR = 64, ROWS_AT_ONCE = 8;
#elif defined(__AVX__)
constexpr int VECTOR = 32, ROWS_AT_ONCE = 6;
#else
constexpr int VECTOR = 16, ROWS_AT_ONCE = 6;
#endif

constexpr int64_t PAD = 32;  // rows and columns have room up to a multiple of it, so that all loops are whole vectors
inline int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }

// Memory that grows and never shrinks, on a boundary of cache lines.
template <class T> struct Buffer {
    T *data = nullptr;
    int64_t size = 0;

    Buffer() = default;
    Buffer(const Buffer &) = delete;
    ~Buffer() { std::free(data); }
    void reserve(int64_t n) {
        if (n <= size) return;
        std::free(data), size = 0;
        const size_t bytes = (size_t(n) * sizeof(T) + 63) / 64 * 64;
        data = static_cast<T *>(std::aligned_alloc(64, bytes));
        if (!data) report_no_memory();
        std::memset(data, 0, bytes);
        size = n;
    }
};

// A matrix somewhere in memory: rows of numbers, `stride` apart. If there is `room`, a panel beyond its last row and
// column may be read, whatever it holds.
template <class T> struct View {
    T *data;
    int64_t rows, columns, stride;
    bool room = false;

    T *operator[](int64_t row) const { return data + row * stride; }
};

// A matrix of numbers as they are computed with; beyond its last row and column there is room up to a multiple of PAD
// and more. Rows lie a cache line further apart: at a power of two, they would compete for a few cache sets.
template <class A> class Matrix {
  public:
    int64_t rows = 0, columns = 0, stride = 0;

    void resize(int64_t new_rows, int64_t new_columns) {  // what it held is lost
        rows = new_rows, columns = new_columns, stride = padded(columns) + 64 / int64_t(sizeof(A));
        buffer.reserve((padded(rows) + ROWS_AT_ONCE) * stride);
    }
    void clear(int64_t new_rows, int64_t new_columns) {
        resize(new_rows, new_columns);
        std::fill_n(buffer.data, padded(rows) * stride, A(0));
    }
    A *operator[](int64_t row) { return buffer.data + row * stride; }
    const A *operator[](int64_t row) const { return buffer.data + row * stride; }
    View<const A> all() const { return {buffer.data, rows, columns, stride, true}; }
    View<A> part(int64_t row, int64_t column, int64_t n_rows, int64_t n_columns) {
        return {(*this)[row] + column, n_rows, n_columns, stride, true};
    }

  private:
    Buffer<A> buffer;
};

enum Side { LEFT, RIGHT };

template <class A> struct Vector {
    typedef A Lanes __attribute__((vector_size(VECTOR), aligned(sizeof(A)), may_alias));
    static constexpr int LANES = VECTOR / sizeof(A);
};

// The highest of x[0] to x[n - 1] and of `least`; NaN is passed over.
template <class A> A highest(const A *x, int64_t n, A least) {
    using Lanes = typename Vector<A>::Lanes;
    constexpr int LANES = Vector<A>::LANES;
    Lanes top = least - Lanes{};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const Lanes next = *reinterpret_cast<const Lanes *>(x + i);
        top = next > top ? next : top;
    }
    for (int lane = 0; lane < LANES; lane++) least = top[lane] > least ? top[lane] : least;
    for (; i < n; i++) least = x[i] > least ? x[i] : least;
    return least;
}

// One side of a product by the processor's vectors. The left side is read number by number, the right side in panels of
// a few columns. Both are read in place if possible, and must stay there until the product is made; else copied: the
// left side row by row; the right side panel by panel, each row by row, the last one filled up with zeros.
template <class A> class VectorOperand {
  public:
    static constexpr int64_t WIDTH = 2 * VECTOR / int64_t(sizeof(A));
    int64_t outer = 0, inner = 0;  // its rows and columns if it is the left side, columns and rows if it is the right
    int64_t step = 0;              // from one number, or row of a panel, to the next one along the inner side

    // Takes a matrix, or its transpose.
    template <class From> void pack(Side side, View<From> from, bool transposed = false) {
        const bool rows_are_outer = (side == LEFT) != transposed;
        outer = rows_are_outer ? from.rows : from.columns, inner = rows_are_outer ? from.columns : from.rows;
        if constexpr (std::is_same_v<std::remove_const_t<From>, A>)
            if (side == LEFT || (from.room && !transposed)) {
                data = from.data;
                outer_step = rows_are_outer ? from.stride : 1, step = rows_are_outer ? 1 : from.stride;
                return;
            }
        buffer.reserve(padded(outer) * inner);
        data = buffer.data, outer_step = inner, step = side == LEFT ? 1 : WIDTH;
        for (int64_t o = 0; o < outer; o += step) {
            A *__restrict to = buffer.data + o * inner;
            const auto *__restrict at = from.data + o * (rows_are_outer ? from.stride : 1);
            const int64_t n = std::min(step, outer - o);
            if (n < step) std::fill_n(to, inner * step, A(0));
            if (rows_are_outer)
                for (int64_t k = 0; k < n; k++)
                    for (int64_t i = 0; i < inner; i++) to[i * step + k] = load(at[k * from.stride + i]);
            else
                for (int64_t i = 0; i < inner; i++)
                    for (int64_t k = 0; k < n; k++) to[i * step + k] = load(at[i * from.stride + k]);
        }
    }
    const A *at(int64_t o) const { return data + o * outer_step; }
    // How many columns a product of n columns writes.
    static int64_t whole(int64_t n) { return (n + WIDTH / 2 - 1) / (WIDTH / 2) * (WIDTH / 2); }

  private:
    const A *data = nullptr;
    int64_t outer_step = 0;
    Buffer<A> buffer;
};

// R rows of c, from row i on, and the columns of V vectors, two of a panel, from column j on. Each number is one sum from
// the first of the inner side to the last, whatever R and V are, so that no row depends on those beside it.
template <int R, int V, class A>
void multiply_block(const VectorOperand<A> &left, const VectorOperand<A> &right, int64_t i, int64_t j, Matrix<A> &c,
                    bool add) {
    using Lanes = typename Vector<A>::Lanes;
    constexpr int LANES = Vector<A>::LANES, P = (V + 1) / 2;
    Lanes sum[R][V] = {};
    const A *rows[R], *panels[P];
    for (int r = 0; r < R; r++) rows[r] = left.at(std::min(i + r, left.outer - 1));
    for (int p = 0; p < P; p++) panels[p] = right.at(j + p * right.WIDTH);
    for (int64_t k = 0, at = 0, from = 0; k < left.inner; k++, at += left.step, from += right.step) {
        Lanes column[V];
        for (int v = 0; v < V; v++)
            column[v] = *reinterpret_cast<const Lanes *>(panels[v / 2] + from + v % 2 * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sum[r][v] += rows[r][at] * column[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            Lanes *to = reinterpret_cast<Lanes *>(c[i + r] + j) + v;
            *to = add ? *to + sum[r][v] : sum[r][v];
        }
}

// c = left right, or c += left right.
template <class A>
void multiply(const VectorOperand<A> &left, const VectorOperand<A> &right, Matrix<A> &c, bool add = false) {
    constexpr int64_t WIDTH = VectorOperand<A>::WIDTH;
    if (!add) c.resize(left.outer, right.outer);
    int64_t j = 0;
    if (left.outer == 1)  // as in translating one sentence: more columns keep the processor busy
        for (; j + 3 * WIDTH < right.outer; j += 4 * WIDTH) multiply_block<1, 8>(left, right, 0, j, c, add);
    for (; j < right.outer; j += WIDTH)
        for (int64_t i = 0; i < left.outer; i += ROWS_AT_ONCE)
            if (right.outer - j > WIDTH / 2)
                multiply_block<ROWS_AT_ONCE, 2>(left, right, i, j, c, add);
            else  // as in the attention of short sentences
                multiply_block<ROWS_AT_ONCE, 1>(left, right, i, j, c, add);
}

#if HAS_TILE_UNIT
// Keeps this thread's tile unit configured; a thread that multiplies makes one first.
class TileUnit {
  public:
    TileUnit() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = 16;
        asm volatile("ldtilecfg %0" : : "m"(shape));  // GCC 12's _tile_loadconfig declares only 8 of these 64 bytes
    }
    ~TileUnit() { _tile_release(); }
    static bool allowed() {  // Linux wants to be asked for permission
        constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
        return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }
};
#else
struct [[maybe_unused]] TileUnit {
    static bool allowed() { return true; }
};
#endif

#if HAS_BF16
// bfloat16 is multiplied by tiles, 16 x 32 by 32 x 16 numbers. A tile is 16 rows of 64 bytes: of the left side a row
// holds 32 numbers; of the right side two rows' numbers, column by column.
constexpr int64_t OUTER = 16, INNER = 32, TILE = OUTER * INNER;

class TileOperand {
  public:
    int64_t outer = 0, inner = 0;  // its rows and columns if it is the left side, columns and rows if it is the right
    int64_t depth = 0;             // tiles along the inner side

    // Takes a matrix, or its transpose.
    template <class From> void pack(Side side, View<From> from, bool transposed = false) {
        const bool rows_are_outer = (side == LEFT) != transposed;
        outer = rows_are_outer ? from.rows : from.columns, inner = rows_are_outer ? from.columns : from.rows;
        depth = (inner + INNER - 1) / INNER;
        buffer.reserve(padded(outer) / OUTER * depth * TILE);
        bf16 *tile = buffer.data;
        for (int64_t o = 0; o < outer; o += OUTER)
            for (int64_t i = 0; i < inner; i += INNER, tile += TILE) {
                const int64_t row = rows_are_outer ? o : i, column = rows_are_outer ? i : o;
                const int64_t height = from.rows - row, width = from.columns - column;  // what is left; beyond is 0
                __m512i line[OUTER];
                for (int64_t r = 0; r < OUTER; r++)
                    if (rows_are_outer) {
                        const auto *at = from[row + r] + column;
                        line[r] = pair(read(at, r < height ? width : 0), read(at + 16, r < height ? width - 16 : 0));
                    } else {
                        const auto *at = from[row + 2 * r] + column;
                        line[r] = by_turns(pair(read(at, 2 * r < height ? width : 0),
                                                read(at + from.stride, 2 * r + 1 < height ? width : 0)));
                    }
                if (transposed) transpose(line);
                for (int r = 0; r < OUTER; r++) _mm512_store_si512(tile + r * INNER, line[r]);
            }
    }
    const bf16 *tiles(int64_t i) const { return buffer.data + i * depth * TILE; }
    // How many columns a product of n columns writes.
    static int64_t whole(int64_t n) { return (n + OUTER - 1) / OUTER * OUTER; }

  private:
    Buffer<bf16> buffer;

    // The first n of 16 numbers, 0 for the others.
    static __m512 read(const float *from, int64_t n) { return _mm512_maskz_loadu_ps(first(n), from); }
    static __m512 read(const bf16 *from, int64_t n) {  // masked again: else GCC 12 warns of values not set
        const __m512i wide = _mm512_maskz_cvtepu16_epi32(first(n), _mm256_maskz_loadu_epi16(first(n), from));
        return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(first(n), wide, 16));
    }
    static __mmask16 first(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1; }

    // The 16 numbers of a, then those of b, in bfloat16.
    static __m512i pair(__m512 a, __m512 b) {
        const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
        return bit_cast<__m512i>(both);
    }
    static __m512i by_turns(__m512i both) {  // a0 b0 a1 b1 ...
        const __m512i first_half = lanes(), second_half = _mm512_add_epi32(lanes(), _mm512_set1_epi32(16));
        const __m512i places = _mm512_or_si512(first_half, _mm512_slli_epi32(second_half, 16));
        return _mm512_permutexvar_epi16(places, both);
    }
    static __m512i lanes() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

    // Transposes a tile as 16 x 16 pairs of numbers: blocks beside the diagonal change places, from large to small.
    static void transpose(__m512i *row) {
        const __m512i lane = lanes();
#pragma GCC unroll 4
        for (int size = 8; size > 0; size /= 2) {
            const __m512i by = _mm512_set1_epi32(size), other = _mm512_set1_epi32(16);
            const __mmask16 right = _mm512_test_epi32_mask(lane, by);
            const __m512i above = _mm512_mask_add_epi32(lane, right, _mm512_sub_epi32(lane, by), other);
            const __m512i below = _mm512_mask_add_epi32(_mm512_add_epi32(lane, by), right, lane, other);
#pragma GCC unroll 16
            for (int r = 0; r < 16; r++)
                if (!(r & size)) {
                    const __m512i a = row[r], b = row[r + size];
                    row[r] = _mm512_permutex2var_epi32(a, above, b);
                    row[r + size] = _mm512_permutex2var_epi32(a, below, b);
                }
        }
    }
};

#if HAS_TILE_UNIT
// M x N tiles of c, M and N at most 2; `left` and `right` are their first tiles.
template <int M, int N>
void multiply_tiles(const bf16 *left, const bf16 *right, int64_t depth, float *c, int64_t stride, bool add) {
    const int64_t bytes = stride * sizeof(float);
    float *below = c + OUTER * stride;
    asm volatile("" : : : "memory");  // GCC 12's _tile_loadd declares no memory: all it reads must be written by now
    if (add) {
        _tile_loadd(0, c, bytes);
        if constexpr (N > 1) _tile_loadd(1, c + OUTER, bytes);
        if constexpr (M > 1) _tile_loadd(2, below, bytes);
        if constexpr (M > 1 && N > 1) _tile_loadd(3, below + OUTER, bytes);
    } else {
        _tile_zero(0);
        if constexpr (N > 1) _tile_zero(1);
        if constexpr (M > 1) _tile_zero(2);
        if constexpr (M > 1 && N > 1) _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k++) {
        _tile_loadd(4, left + k * TILE, 64);
        _tile_loadd(6, right + k * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (N > 1) {
            _tile_loadd(7, right + (depth + k) * TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (M > 1) {
            _tile_loadd(5, left + (depth + k) * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (M > 1 && N > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, bytes);
    if constexpr (N > 1) _tile_stored(1, c + OUTER, bytes);
    if constexpr (M > 1) _tile_stored(2, below, bytes);
    if constexpr (M > 1 && N > 1) _tile_stored(3, below + OUTER, bytes);
}
#else
// R rows of N tiles of c, summed up in registers; `left` is the first row's first tile, `right` the first tile.
template <int R, int N>
void multiply_rows(const bf16 *left, const bf16 *right, int64_t depth, float *c, int64_t stride, bool add) {
    __m512 sum[R][N] = {};
    if (add)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            for (int n = 0; n < N; n++) sum[r][n] = _mm512_loadu_ps(c + r * stride + n * OUTER);
    for (int64_t k = 0; k < depth; k++)
        for (int64_t i = 0; i < INNER; i += 2) {  // two of the inner side at once
            __m512i b[N];
            for (int n = 0; n < N; n++) b[n] = _mm512_load_si512(right + (n * depth + k) * TILE + i * OUTER);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                int32_t both;
                std::memcpy(&both, left + k * TILE + r * INNER + i, sizeof both);
                const __m512bh two = bit_cast<__m512bh>(_mm512_set1_epi32(both));
                for (int n = 0; n < N; n++) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], two, bit_cast<__m512bh>(b[n]));
            }
        }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) _mm512_storeu_ps(c + r * stride + n * OUTER, sum[r][n]);
}

// M x N tiles of c, M and N at most 2; `left` and `right` are their first tiles.
template <int M, int N>
void multiply_tiles(const bf16 *left, const bf16 *right, int64_t depth, float *c, int64_t stride, bool add) {
    constexpr int R = 8;
    for (int64_t row = 0; row < M * OUTER; row += R)
        multiply_rows<R, N>(left + row / OUTER * depth * TILE + row % OUTER * INNER, right, depth, c + row * stride,
                            stride, add);
}
#endif

inline void multiply(const TileOperand &left, const TileOperand &right, Matrix<float> &c, bool add = false) {
    if (!add) c.resize(left.outer, right.outer);
    const int64_t m = (left.outer + OUTER - 1) / OUTER, n = (right.outer + OUTER - 1) / OUTER;
    int64_t j = 0;
#if !HAS_TILE_UNIT
    if (left.outer == 1)  // as in translating one sentence: more columns keep the processor busy
        for (; j + 3 < n; j += 4) multiply_rows<1, 4>(left.tiles(0), right.tiles(j), left.depth, c[0] + j * OUTER, 0, add);
#endif
    for (; j < n; j += 2)
        for (int64_t i = 0; i < m; i += 2) {
            const auto block = i + 1 < m ? (j + 1 < n ? multiply_tiles<2, 2> : multiply_tiles<2, 1>)
                                         : (j + 1 < n ? multiply_tiles<1, 2> : multiply_tiles<1, 1>);
            block(left.tiles(i), right.tiles(j), left.depth, c[i * OUTER] + j * OUTER, c.stride, add);
        }
}

template <class T> using Operand = std::conditional_t<std::is_same_v<T, bf16>, TileOperand, VectorOperand<computed<T>>>;
#else
template <class T> using Operand = VectorOperand<computed<T>>;
#endif

constexpr int64_t ROWS = 128 / ROWS_AT_ONCE * ROWS_AT_ONCE;  // positions taken through a sub-layer at a time
constexpr int64_t WORDS = 256;  // of the vocabulary, scored at a time

// The parameters of a sub-layer: of its norm, of the linear layers it begins with, and of the one at its end.
template <class A> struct Parameters {
    const A *gamma, *beta, *w_in, *b_in, *w_out, *b_out;
    double eps;  // of the norm
};

}  // namespace

extern "C" bool usable() { return TileUnit::allowed(); }
