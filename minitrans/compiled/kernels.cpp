// The sub-layers of the Transformer in training, each forward and backward, and what training does beside them.
//
// A sub-layer takes a few sentences through all it does while they are in the processor's caches. It keeps nothing for
// the way back: there everything is computed again from the sub-layer's input. Sentences are split among the threads;
// the same number of threads gives the same bits. bfloat16 and float32 are computed in float32, float64 in float64;
// parameters and their gradients have the dtype of the computation. All tensors are contiguous. Called by kernels.py.

#include "shared.h"

#include <array>
#include <cmath>
#include <limits>
#include <omp.h>
#include <vector>

namespace {

// Dropout. Element i is dropped if byte i of the seed's stream of random bytes is below `dropped`: p = dropped / 256.
// Word j of the stream is SplitMix64's (Steele et al. 2014); the same stream as in dropout.py.
struct Dropout {
    uint64_t seed;
    int32_t dropped;

    uint64_t word(uint64_t j) const {
        uint64_t z = seed + (j + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    // Bytes `first` to `first` + `count` of the stream, and room after them.
    const uint8_t *bytes(Buffer<uint64_t> &words, int64_t first, int64_t count) const {
        const int64_t start = first / 8, n = (first + count + 7) / 8 - start;
        words.reserve(n + 2 * PAD);
        if (dropped)
            for (int64_t j = 0; j < n; j++) words.data[j] = word(uint64_t(start + j));
        return reinterpret_cast<const uint8_t *>(words.data) + first % 8;
    }
    // What is left of each of n numbers.
    template <class A> void apply(A *x, const uint8_t *byte, int64_t n) const {
        if (!dropped) return;
        const A scale = A(256) / A(256 - dropped);
        for (int64_t i = 0; i < n; i++) x[i] = byte[i] >= dropped ? x[i] * scale : A(0);
    }
};

// What a layer norm leaves for its gradient.
template <class A> struct Normed {
    Matrix<A> x, rstd;
};

// y = gamma (x - mean) / sqrt(variance + eps) + beta for each row of x (rows, D).
template <class T, class A = computed<T>>
void norm(const T *x, int64_t rows, int64_t D, const A *gamma, const A *beta, A eps, Normed<A> &normed, Matrix<A> &y) {
    normed.x.resize(rows, D), normed.rstd.resize(1, rows), y.resize(rows, D);
    for (int64_t r = 0; r < rows; r++) {
        A *__restrict v = normed.x[r], *__restrict to = y[r];
        const T *__restrict from = x + r * D;
        A sum = 0, squares = 0;
        for (int64_t i = 0; i < D; i++) v[i] = load(from[i]), sum += v[i];
        const A mean = sum / A(D);
        for (int64_t i = 0; i < D; i++) v[i] -= mean, squares += v[i] * v[i];
        const A rstd = 1 / std::sqrt(squares / A(D) + eps);
        for (int64_t i = 0; i < D; i++) v[i] *= rstd, to[i] = v[i] * gamma[i] + beta[i];
        normed.rstd[0][r] = rstd;
    }
}

// dx = `residual` (may be null) plus the gradient of `norm` at x, for the one at y; those at gamma and beta are added.
template <class T, class A = computed<T>>
void norm_backward(const Matrix<A> &dy, const Normed<A> &normed, const A *gamma, const T *residual, T *dx,
                   Matrix<A> &d_gamma, Matrix<A> &d_beta) {
    const int64_t D = dy.columns;
    A *__restrict sum_gamma = d_gamma[0], *__restrict sum_beta = d_beta[0];
    for (int64_t r = 0; r < dy.rows; r++) {
        const A *__restrict g = dy[r], *__restrict x = normed.x[r];
        A mean = 0, mean_product = 0;
        for (int64_t i = 0; i < D; i++) {
            sum_gamma[i] += g[i] * x[i];
            sum_beta[i] += g[i];
            mean += g[i] * gamma[i];
            mean_product += g[i] * gamma[i] * x[i];
        }
        mean /= A(D), mean_product /= A(D);
        const A rstd = normed.rstd[0][r];
        T *__restrict to = dx + r * D;
        if (residual)
            for (int64_t i = 0; i < D; i++)
                store(to + i, load(residual[r * D + i]) + rstd * (g[i] * gamma[i] - mean - x[i] * mean_product));
        else
            for (int64_t i = 0; i < D; i++) store(to + i, rstd * (g[i] * gamma[i] - mean - x[i] * mean_product));
    }
}

// Inside a parallel region: `out` becomes what the threads' matrices add up to, one matrix after the other.
template <class A, size_t N> void sum_up(const std::vector<std::array<Matrix<A>, N> *> &threads, A *out) {
    for (size_t i = 0; i < N; i++) {
        const Matrix<A> &first = (*threads[0])[i];
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < first.rows; r++)
            for (int64_t c = 0; c < first.columns; c++) {
                A sum = 0;
                for (const auto *thread : threads) sum += (*thread)[i][r][c];
                out[r * first.columns + c] = sum;
            }
        out += first.rows * first.columns;
    }
}

// y += bias, row by row.
template <class A> void add_bias(Matrix<A> &y, const A *bias) {
    for (int64_t r = 0; r < y.rows; r++)
        for (int64_t c = 0; c < y.columns; c++) y[r][c] += bias[c];
}

// y = x + dropout(f + bias) for rows that begin at row `first` of the tensor.
template <class T, class A = computed<T>>
void add_dropped(const T *x, const Matrix<A> &f, const A *bias, Dropout dropout, int64_t first, T *y,
                 Buffer<uint64_t> &words) {
    const uint8_t *bytes = dropout.bytes(words, first * f.columns, f.rows * f.columns);
    const A scale = A(256) / A(256 - dropout.dropped);
    for (int64_t r = 0; r < f.rows; r++, x += f.columns, y += f.columns, bytes += f.columns) {
        const A *row = f[r];
        for (int64_t c = 0; c < f.columns; c++)
            store(y + c, load(x[c]) + (bytes[c] >= dropout.dropped ? (row[c] + bias[c]) * scale : A(0)));
    }
}

// d_f = what comes back through the dropout of `add_dropped`, for the gradient at y.
template <class T, class A = computed<T>>
void drop_gradient(const T *grad, int64_t rows, int64_t D, Dropout dropout, int64_t first, Matrix<A> &d_f,
                   Buffer<uint64_t> &words) {
    d_f.resize(rows, D);
    const uint8_t *bytes = dropout.bytes(words, first * D, rows * D);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < D; c++) d_f[r][c] = load(grad[r * D + c]);
        dropout.apply(d_f[r], bytes + r * D, D);
    }
}

// Room for what a thread computes. Each thread has its own, and keeps it.
template <class T> struct Workspace {
    using A = computed<T>;
    Normed<A> normed;
    Matrix<A> h, u, f, d_f, d_u, d_h;
    Operand<T> left, right;
    Buffer<uint64_t> words;
    // of attention alone
    Matrix<A> q, kv, heads, d_heads, d_q, d_kv, d_source, weights, dropped, d_scores, result, may;
    // of the loss alone
    Matrix<A> top, d_hidden;  // rows of top: each position's highest logit, sum of e^(logit - highest), sum of logits
    Operand<T> back;
    // The gradients at the parameters, as far as this thread has summed them up.
    std::array<Matrix<A>, 2> of_norm;
    std::array<Matrix<A>, 6> of_feed_forward;
    std::array<Matrix<A>, 8> of_attention;

    static Workspace &mine() {
        static thread_local Workspace workspace;
        return workspace;
    }
    // y = x w, for w packed on the right.
    void multiply_by(const Operand<T> &w, View<const A> x, Matrix<A> &y, bool add = false) {
        left.pack(LEFT, x);
        multiply(left, w, y, add);
    }
    // The gradients of y = x w^T + b at w and b, for the one at y; x is packed on the right.
    void add_gradients(const Matrix<A> &d_y, const Operand<T> &x, Matrix<A> &d_w, Matrix<A> &d_b) {
        left.pack(LEFT, d_y.all(), true);
        multiply(left, x, d_w, true);
        for (int64_t r = 0; r < d_y.rows; r++)
            for (int64_t c = 0; c < d_y.columns; c++) d_b[0][c] += d_y[r][c];
    }
};

// u = dropout(relu(u + bias))
template <class A>
void relu_dropped(Matrix<A> &u, const A *bias, Dropout dropout, int64_t first, Buffer<uint64_t> &words) {
    const uint8_t *bytes = dropout.bytes(words, first * u.columns, u.rows * u.columns);
    const A scale = A(256) / A(256 - dropout.dropped);
    for (int64_t r = 0; r < u.rows; r++, bytes += u.columns) {
        A *row = u[r];
        for (int64_t c = 0; c < u.columns; c++) {
            const A value = row[c] + bias[c];
            row[c] = bytes[c] >= dropout.dropped && value > 0 ? value * scale : A(0);
        }
    }
}

// y = x + dropout(w_out dropout(relu(w_in norm(x)))) for x (rows, D), F hidden units; biases are left out here.
template <class T, class A = computed<T>>
void feed_forward(const T *x, T *y, int64_t rows, int64_t D, int64_t F, Parameters<A> p, Dropout inside,
                  Dropout end) {
    static thread_local Operand<T> weights[2];
    Operand<T> &w_in = weights[0], &w_out = weights[1];
    w_in.pack(RIGHT, View<const A>{p.w_in, F, D, D}, true);
    w_out.pack(RIGHT, View<const A>{p.w_out, D, F, F}, true);
#pragma omp parallel
    {
        const TileUnit unit;
        Workspace<T> &w = Workspace<T>::mine();
#pragma omp for schedule(static)
        for (int64_t start = 0; start < rows; start += ROWS) {
            norm(x + start * D, std::min(ROWS, rows - start), D, p.gamma, p.beta, A(p.eps), w.normed, w.h);
            w.multiply_by(w_in, w.h.all(), w.u);
            relu_dropped(w.u, p.b_in, inside, start, w.words);
            w.multiply_by(w_out, w.u.all(), w.f);
            add_dropped(x + start * D, w.f, p.b_out, end, start, y + start * D, w.words);
        }
    }
}

// dx, and the gradients at the parameters one after the other, for the gradient at y.
template <class T, class A = computed<T>>
void feed_forward_backward(const T *x, const T *grad, T *dx, A *d_parameters, int64_t rows, int64_t D, int64_t F,
                           Parameters<A> p, Dropout inside, Dropout end) {
    static thread_local Operand<T> weights[3];
    Operand<T> &w_in = weights[0], &w_in_back = weights[1], &w_out_back = weights[2];
    w_in.pack(RIGHT, View<const A>{p.w_in, F, D, D}, true);
    w_in_back.pack(RIGHT, View<const A>{p.w_in, F, D, D});
    w_out_back.pack(RIGHT, View<const A>{p.w_out, D, F, F});
    std::vector<std::array<Matrix<A>, 6> *> threads;
#pragma omp parallel
    {
#pragma omp single
        threads.resize(omp_get_num_threads());
        const TileUnit unit;
        Workspace<T> &w = Workspace<T>::mine();
        std::array<Matrix<A>, 6> &sums = *(threads[omp_get_thread_num()] = &w.of_feed_forward);
        Matrix<A> &d_gamma = sums[0], &d_beta = sums[1];
        Matrix<A> &d_w_in = sums[2], &d_b_in = sums[3], &d_w_out = sums[4], &d_b_out = sums[5];
        d_gamma.clear(1, D), d_beta.clear(1, D);
        d_w_in.clear(F, D), d_b_in.clear(1, F), d_w_out.clear(D, F), d_b_out.clear(1, D);
        const A scale = A(256) / A(256 - inside.dropped);
#pragma omp for schedule(static)
        for (int64_t start = 0; start < rows; start += ROWS) {
            const int64_t n = std::min(ROWS, rows - start);
            norm(x + start * D, n, D, p.gamma, p.beta, A(p.eps), w.normed, w.h);
            w.multiply_by(w_in, w.h.all(), w.u);
            relu_dropped(w.u, p.b_in, inside, start, w.words);

            drop_gradient(grad + start * D, n, D, end, start, w.d_f, w.words);
            w.right.pack(RIGHT, w.u.all());
            w.add_gradients(w.d_f, w.right, d_w_out, d_b_out);
            w.multiply_by(w_out_back, w.d_f.all(), w.d_u);
            for (int64_t r = 0; r < n; r++)
                for (int64_t c = 0; c < F; c++) w.d_u[r][c] = w.u[r][c] > 0 ? w.d_u[r][c] * scale : A(0);
            w.right.pack(RIGHT, w.h.all());
            w.add_gradients(w.d_u, w.right, d_w_in, d_b_in);
            w.multiply_by(w_in_back, w.d_u.all(), w.d_h);
            norm_backward(w.d_h, w.normed, p.gamma, grad + start * D, dx + start * D, d_gamma, d_beta);
        }
        sum_up(threads, d_parameters);
    }
}

struct Mask {  // true = may attend; strides of B and Tq, 0 where it is broadcast; keys lie side by side
    const uint8_t *admits;
    int64_t b, q;
};

// The sizes of attention: B sentences, of T positions that attend to S each; H heads of Dh.
struct Sizes {
    int64_t B, T, S, D, H, Dh;
};

template <class A> void put(const Matrix<A> &from, View<A> to) {
    for (int64_t r = 0; r < from.rows; r++) std::copy_n(from[r], from.columns, to[r]);
}

// One head of one sentence: w.weights = softmax(q k^T / sqrt(Dh)) over the keys that w.may admits, 0 where there is
// none; w.dropped = dropout(weights); head = dropped v. q is (T, Dh), k and v are (S, Dh). `index` counts all heads.
template <class T, class A = computed<T>>
void attend(Workspace<T> &w, View<A> q, View<A> k, View<A> v, View<A> head, Dropout dropout, int64_t index) {
    const A lowest = std::numeric_limits<A>::lowest() / 2, scale = 1 / std::sqrt(A(q.columns));
    const int64_t width = Operand<T>::whole(k.rows);
    w.right.pack(RIGHT, k, true);
    w.left.pack(LEFT, q);
    multiply(w.left, w.right, w.weights);
    w.dropped.resize(q.rows, k.rows);
    const uint8_t *bytes = dropout.bytes(w.words, index * q.rows * k.rows, q.rows * k.rows);
    for (int64_t t = 0; t < q.rows; t++, bytes += k.rows) {
        A *__restrict row = w.weights[t], *__restrict kept = w.dropped[t];
        const A *__restrict may = w.may[w.may.rows > 1 ? t : 0];
        for (int64_t i = 0; i < width; i++) row[i] = may[i] > 0 ? scale * row[i] : lowest;
        const A top = highest(row, width, lowest);
        A sum = 0;
        for (int64_t i = 0; i < width; i++) row[i] = may[i] * exponential(row[i] - top), sum += row[i];
        const A over = sum > 0 ? 1 / sum : A(0);
        for (int64_t i = 0; i < width; i++) row[i] *= over, kept[i] = row[i];
        dropout.apply(kept, bytes, width);
    }
    w.right.pack(RIGHT, v);
    w.multiply_by(w.right, w.dropped.all(), w.result);
    put(w.result, head);
}

// After `attend`: the gradients at q, k and v, for the one at its head.
template <class T, class A = computed<T>>
void attend_backward(Workspace<T> &w, View<A> q, View<A> k, View<A> v, View<A> d_head, View<A> d_q, View<A> d_k,
                     View<A> d_v, Dropout dropout, int64_t index) {
    const A scale = 1 / std::sqrt(A(q.columns));
    const int64_t width = Operand<T>::whole(k.rows);
    w.right.pack(RIGHT, d_head);
    w.left.pack(LEFT, w.dropped.all(), true);
    multiply(w.left, w.right, w.result);
    put(w.result, d_v);

    w.right.pack(RIGHT, v, true);
    w.left.pack(LEFT, d_head);
    multiply(w.left, w.right, w.d_scores);
    const uint8_t *bytes = dropout.bytes(w.words, index * q.rows * k.rows, q.rows * k.rows);
    for (int64_t t = 0; t < q.rows; t++, bytes += k.rows) {
        A *__restrict row = w.d_scores[t];
        const A *__restrict p = w.weights[t];
        dropout.apply(row, bytes, width);
        A dot = 0;
        for (int64_t i = 0; i < width; i++) dot += row[i] * p[i];
        for (int64_t i = 0; i < width; i++) row[i] = scale * p[i] * (row[i] - dot);
    }
    w.right.pack(RIGHT, k);
    w.multiply_by(w.right, w.d_scores.all(), w.result);
    put(w.result, d_q);

    w.right.pack(RIGHT, q);
    w.left.pack(LEFT, w.d_scores.all(), true);
    multiply(w.left, w.right, w.result);
    put(w.result, d_k);
}

// w.may = 1 or 0 for each query (or for all, in one row) and key of sentence b.
template <class A> void read_mask(Matrix<A> &may, const Mask &mask, const Sizes &s, int64_t b) {
    may.clear(mask.q ? s.T : 1, s.S);
    for (int64_t t = 0; t < may.rows; t++)
        for (int64_t i = 0; i < s.S; i++) may[t][i] = A(mask.admits[b * mask.b + t * mask.q + i]);
}

// What both directions begin with, for n sentences from `first` on: the norm, and the projections of what attends and
// of what is attended to.
template <class T, class A = computed<T>>
void project(Workspace<T> &w, const T *x, const T *memory, int64_t first, int64_t n, const Sizes &s,
             const Parameters<A> &p, const Operand<T> &w_q, const Operand<T> &w_kv) {
    norm(x + first * s.T * s.D, n * s.T, s.D, p.gamma, p.beta, A(p.eps), w.normed, w.h);
    w.multiply_by(w_q, w.h.all(), w.q);
    if (memory) w.left.pack(LEFT, View<const T>{memory + first * s.S * s.D, n * s.S, s.D, s.D});
    multiply(w.left, w_kv, w.kv);
    add_bias(w.q, p.b_in);
    add_bias(w.kv, p.b_in + s.H * s.Dh);
    w.heads.resize(n * s.T, s.H * s.Dh);
}

// y = x + dropout(w_out attention(norm(x))): x (B, T, D) attends to memory (B, S, D), or to norm(x) if that is null.
template <class T, class A = computed<T>>
void attention(const T *x, const T *memory, T *y, Sizes s, Mask mask, Parameters<A> p, Dropout inside,
               Dropout end) {
    static thread_local Operand<T> weights[3];
    Operand<T> &w_q = weights[0], &w_kv = weights[1], &w_out = weights[2];
    const int64_t E = s.H * s.Dh, D = s.D;
    w_q.pack(RIGHT, View<const A>{p.w_in, E, D, D}, true);
    w_kv.pack(RIGHT, View<const A>{p.w_in + E * D, 2 * E, D, D}, true);
    w_out.pack(RIGHT, View<const A>{p.w_out, D, E, E}, true);
    const int64_t sentences = std::max<int64_t>(1, ROWS / std::max(s.T, s.S));
#pragma omp parallel
    {
        const TileUnit unit;
        Workspace<T> &w = Workspace<T>::mine();
        if (!mask.b) read_mask(w.may, mask, s, 0);
#pragma omp for schedule(static)
        for (int64_t first = 0; first < s.B; first += sentences) {
            const int64_t n = std::min(sentences, s.B - first), start = first * s.T;
            project(w, x, memory, first, n, s, p, w_q, w_kv);
            for (int64_t b = 0; b < n; b++) {
                if (mask.b) read_mask(w.may, mask, s, first + b);
                for (int64_t h = 0; h < s.H; h++) {
                    const View<A> q = w.q.part(b * s.T, h * s.Dh, s.T, s.Dh);
                    const View<A> k = w.kv.part(b * s.S, h * s.Dh, s.S, s.Dh);
                    const View<A> v = w.kv.part(b * s.S, h * s.Dh + E, s.S, s.Dh);
                    attend(w, q, k, v, w.heads.part(b * s.T, h * s.Dh, s.T, s.Dh), inside, (first + b) * s.H + h);
                }
            }
            w.multiply_by(w_out, w.heads.all(), w.f);
            add_dropped(x + start * D, w.f, p.b_out, end, start, y + start * D, w.words);
        }
    }
}

// dx, d_memory (if there is a memory), and the gradients at the parameters one after the other, for the gradient at y.
template <class T, class A = computed<T>>
void attention_backward(const T *x, const T *memory, const T *grad, T *dx, T *d_memory, A *d_parameters, Sizes s,
                        Mask mask, Parameters<A> p, Dropout inside, Dropout end) {
    static thread_local Operand<T> weights[5];
    Operand<T> &w_q = weights[0], &w_kv = weights[1];
    Operand<T> &w_q_back = weights[2], &w_kv_back = weights[3], &w_out_back = weights[4];
    const int64_t E = s.H * s.Dh, D = s.D;
    w_q.pack(RIGHT, View<const A>{p.w_in, E, D, D}, true);
    w_kv.pack(RIGHT, View<const A>{p.w_in + E * D, 2 * E, D, D}, true);
    w_q_back.pack(RIGHT, View<const A>{p.w_in, E, D, D});
    w_kv_back.pack(RIGHT, View<const A>{p.w_in + E * D, 2 * E, D, D});
    w_out_back.pack(RIGHT, View<const A>{p.w_out, D, E, E});
    const int64_t sentences = std::max<int64_t>(1, ROWS / std::max(s.T, s.S));
    std::vector<std::array<Matrix<A>, 8> *> threads;
#pragma omp parallel
    {
#pragma omp single
        threads.resize(omp_get_num_threads());
        const TileUnit unit;
        Workspace<T> &w = Workspace<T>::mine();
        std::array<Matrix<A>, 8> &sums = *(threads[omp_get_thread_num()] = &w.of_attention);
        Matrix<A> &d_gamma = sums[0], &d_beta = sums[1], &d_w_q = sums[2], &d_w_kv = sums[3];
        Matrix<A> &d_b_q = sums[4], &d_b_kv = sums[5], &d_w_out = sums[6], &d_b_out = sums[7];
        d_gamma.clear(1, D), d_beta.clear(1, D), d_w_q.clear(E, D), d_w_kv.clear(2 * E, D);
        d_b_q.clear(1, E), d_b_kv.clear(1, 2 * E), d_w_out.clear(D, E), d_b_out.clear(1, D);
        if (!mask.b) read_mask(w.may, mask, s, 0);
#pragma omp for schedule(static)
        for (int64_t first = 0; first < s.B; first += sentences) {
            const int64_t n = std::min(sentences, s.B - first), start = first * s.T;
            project(w, x, memory, first, n, s, p, w_q, w_kv);
            drop_gradient(grad + start * D, n * s.T, D, end, start, w.d_f, w.words);
            w.multiply_by(w_out_back, w.d_f.all(), w.d_heads);
            w.d_q.resize(n * s.T, E), w.d_kv.resize(n * s.S, 2 * E);
            for (int64_t b = 0; b < n; b++) {
                if (mask.b) read_mask(w.may, mask, s, first + b);
                for (int64_t h = 0; h < s.H; h++) {
                    const auto of_query = [&](Matrix<A> &m) { return m.part(b * s.T, h * s.Dh, s.T, s.Dh); };
                    const auto of_key = [&](Matrix<A> &m, int64_t column) {
                        return m.part(b * s.S, h * s.Dh + column, s.S, s.Dh);
                    };
                    const View<A> q = of_query(w.q), k = of_key(w.kv, 0), v = of_key(w.kv, E);
                    const int64_t index = (first + b) * s.H + h;
                    attend(w, q, k, v, of_query(w.heads), inside, index);
                    attend_backward(w, q, k, v, of_query(w.d_heads), of_query(w.d_q), of_key(w.d_kv, 0),
                                    of_key(w.d_kv, E), inside, index);
                }
            }
            w.right.pack(RIGHT, w.heads.all());
            w.add_gradients(w.d_f, w.right, d_w_out, d_b_out);
            w.right.pack(RIGHT, w.h.all());
            w.add_gradients(w.d_q, w.right, d_w_q, d_b_q);
            w.multiply_by(w_q_back, w.d_q.all(), w.d_h);
            if (memory) w.right.pack(RIGHT, View<const T>{memory + first * s.S * D, n * s.S, D, D});
            w.add_gradients(w.d_kv, w.right, d_w_kv, d_b_kv);
            w.multiply_by(w_kv_back, w.d_kv.all(), memory ? w.d_source : w.d_h, !memory);
            if (memory)
                for (int64_t r = 0; r < n * s.S; r++)
                    for (int64_t c = 0; c < D; c++) store(d_memory + (first * s.S + r) * D + c, w.d_source[r][c]);
            norm_backward(w.d_h, w.normed, p.gamma, grad + start * D, dx + start * D, d_gamma, d_beta);
        }
        sum_up(threads, d_parameters);
    }
}

// y = norm(x) for x (rows, D).
template <class T, class A = computed<T>>
void norm_alone(const T *x, T *y, int64_t rows, int64_t D, const A *gamma, const A *beta, double eps) {
#pragma omp parallel
    {
        Workspace<T> &w = Workspace<T>::mine();
#pragma omp for schedule(static)
        for (int64_t start = 0; start < rows; start += ROWS) {
            norm(x + start * D, std::min(ROWS, rows - start), D, gamma, beta, A(eps), w.normed, w.h);
            for (int64_t r = 0; r < w.h.rows; r++)
                for (int64_t c = 0; c < D; c++) store(y + (start + r) * D + c, w.h[r][c]);
        }
    }
}

// dx, and the gradients at gamma and beta one after the other, for the gradient at y.
template <class T, class A = computed<T>>
void norm_alone_backward(const T *x, const T *grad, T *dx, A *d_parameters, int64_t rows, int64_t D, const A *gamma,
                         const A *beta, double eps) {
    std::vector<std::array<Matrix<A>, 2> *> threads;
#pragma omp parallel
    {
#pragma omp single
        threads.resize(omp_get_num_threads());
        Workspace<T> &w = Workspace<T>::mine();
        std::array<Matrix<A>, 2> &sums = *(threads[omp_get_thread_num()] = &w.of_norm);
        Matrix<A> &d_gamma = sums[0], &d_beta = sums[1];
        d_gamma.clear(1, D), d_beta.clear(1, D);
#pragma omp for schedule(static)
        for (int64_t start = 0; start < rows; start += ROWS) {
            const int64_t n = std::min(ROWS, rows - start);
            norm(x + start * D, n, D, gamma, beta, A(eps), w.normed, w.h);
            w.d_h.resize(n, D);
            for (int64_t r = 0; r < n; r++)
                for (int64_t c = 0; c < D; c++) w.d_h[r][c] = load(grad[(start + r) * D + c]);
            norm_backward<T>(w.d_h, w.normed, gamma, nullptr, dx + start * D, d_gamma, d_beta);
        }
        sum_up(threads, d_parameters);
    }
}

// y = dropout(scale table[ids] + positions): ids (B, T), table (V, D), positions (T, D).
template <class T, class A = computed<T>>
void embed(const int64_t *ids, const A *table, const A *positions, T *y, int64_t batch, int64_t length, int64_t D,
           double scale, Dropout dropout) {
#pragma omp parallel
    {
        Workspace<T> &w = Workspace<T>::mine();
        w.f.resize(1, D);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < batch * length; r++) {
            const A *__restrict vector = table + ids[r] * D, *__restrict position = positions + r % length * D;
            A *__restrict sum = w.f[0];
            for (int64_t c = 0; c < D; c++) sum[c] = A(scale) * vector[c] + position[c];
            dropout.apply(sum, dropout.bytes(w.words, r * D, D), D);
            for (int64_t c = 0; c < D; c++) store(y + r * D + c, sum[c]);
        }
    }
}

// Adds the gradient at the table, for the one at y, to d_table; each thread sums up a part of the vocabulary.
template <class T, class A = computed<T>>
void add_embed_backward(const int64_t *ids, const T *grad, A *d_table, int64_t rows, int64_t V, int64_t D,
                        double scale, Dropout dropout) {
#pragma omp parallel
    {
        Workspace<T> &w = Workspace<T>::mine();
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const int64_t first = V * thread / threads, end = V * (thread + 1) / threads;
        for (int64_t r = 0; r < rows; r++) {
            if (ids[r] < first || ids[r] >= end) continue;
            drop_gradient(grad + r * D, 1, D, dropout, r, w.d_f, w.words);
            for (int64_t c = 0; c < D; c++) d_table[ids[r] * D + c] += A(scale) * w.d_f[0][c];
        }
    }
}

// Room for one packed operand for each block of rows, kept from call to call.
template <class T>
std::vector<Operand<T>> &packed_blocks(Side side, int64_t rows) {
    static thread_local std::vector<Operand<T>> packed[2];
    const size_t blocks = (rows + ROWS - 1) / ROWS;
    if (packed[side].size() < blocks) packed[side] = std::vector<Operand<T>>(blocks);
    return packed[side];
}

// Fills them with h (rows, D); all threads together.
template <class T>
void pack_blocks(std::vector<Operand<T>> &packed, Side side, const T *h, int64_t rows, int64_t D) {
#pragma omp for schedule(static)
    for (int64_t first = 0; first < rows; first += ROWS)
        packed[first / ROWS].pack(side, View<const T>{h + first * D, std::min(ROWS, rows - first), D, D});
}

// The label-smoothed cross entropy of logits = h w^T, summed over h's rows (rows, D); w is (V, D), e the smoothing.
//
// With z = the logarithm of the sum of a row's e^logits, its loss is z - (1 - e) logit_y - e mean(logits), and the
// gradient at its logits is softmax(logits) - (1 - e) onehot(y) - e / V. A few hundred words are taken at a time, with
// all rows, so that no more than a small block of logits exists at any time; the way back computes them again. z (rows)
// is all that it needs besides.
template <class T, class A = computed<T>>
double linear_cross_entropy(const T *h, const A *w, const int64_t *target, A *z, int64_t rows, int64_t D, int64_t V,
                            double smoothing) {
    const A lowest = std::numeric_limits<A>::lowest() / 2, e = A(smoothing);
    std::vector<Operand<T>> &left = packed_blocks<T>(LEFT, rows);
    std::vector<Workspace<T> *> threads;
    std::vector<A> of_target(rows), mean(rows);
#pragma omp parallel
    {
#pragma omp single
        threads.resize(omp_get_num_threads());
        const TileUnit unit;
        Workspace<T> &work = Workspace<T>::mine();
        threads[omp_get_thread_num()] = &work;
        Matrix<A> &top = work.top, &logits = work.u;
        top.resize(3, rows);
        for (int64_t r = 0; r < rows; r++) top[0][r] = lowest, top[1][r] = top[2][r] = 0;
        pack_blocks(left, LEFT, h, rows, D);
#pragma omp for schedule(static)
        for (int64_t word = 0; word < V; word += WORDS) {
            const int64_t words = std::min(WORDS, V - word);
            work.right.pack(RIGHT, View<const A>{w + word * D, words, D, D}, true);
            for (int64_t r = 0, b = 0; r < rows; b++) {
                multiply(left[b], work.right, logits);
                for (int64_t i = 0; i < logits.rows; i++, r++) {
                    const A *__restrict row = logits[i];
                    const A now = highest(row, words, top[0][r]);
                    A exponentials = 0, total = 0;
                    for (int64_t j = 0; j < words; j++) exponentials += exponential(row[j] - now), total += row[j];
                    top[1][r] = top[1][r] * exponential(top[0][r] - now) + exponentials;
                    top[0][r] = now;
                    top[2][r] += total;
                    if (word <= target[r] && target[r] < word + words) of_target[r] = row[target[r] - word];
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            A most = lowest, exponentials = 0, total = 0;
            for (Workspace<T> *of : threads) most = std::max(most, of->top[0][r]), total += of->top[2][r];
            for (Workspace<T> *of : threads) exponentials += of->top[1][r] * exponential(of->top[0][r] - most);
            z[r] = most + std::log(exponentials);
            mean[r] = total / A(V);
        }
    }
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) loss += z[r] - (1 - e) * of_target[r] - e * mean[r];
    return loss;
}

// The gradients of scale times that loss: d_h (rows, D) and d_w (V, D).
template <class T, class A = computed<T>>
void linear_cross_entropy_backward(const T *h, const A *w, const int64_t *target, const A *z, T *d_h, A *d_w,
                                   int64_t rows, int64_t D, int64_t V, double smoothing, double scale) {
    const A e = A(smoothing);
    std::vector<Operand<T>> &left = packed_blocks<T>(LEFT, rows), &right = packed_blocks<T>(RIGHT, rows);
    std::vector<Workspace<T> *> threads;
#pragma omp parallel
    {
#pragma omp single
        threads.resize(omp_get_num_threads());
        const TileUnit unit;
        Workspace<T> &work = Workspace<T>::mine();
        threads[omp_get_thread_num()] = &work;
        Matrix<A> &d_hidden = work.d_hidden, &logits = work.u, &d_words = work.d_u, &sum = work.f;
        d_hidden.clear(rows, D);
        pack_blocks(left, LEFT, h, rows, D);
        pack_blocks(right, RIGHT, h, rows, D);
#pragma omp for schedule(static)
        for (int64_t word = 0; word < V; word += WORDS) {
            const int64_t words = std::min(WORDS, V - word);
            work.right.pack(RIGHT, View<const A>{w + word * D, words, D, D}, true);
            work.back.pack(RIGHT, View<const A>{w + word * D, words, D, D});
            d_words.clear(words, D);
            for (int64_t first = 0, b = 0; first < rows; first += ROWS, b++) {
                multiply(left[b], work.right, logits);
                for (int64_t i = 0; i < logits.rows; i++) {
                    const int64_t r = first + i, y = target[r] - word;
                    A *__restrict row = logits[i];
                    for (int64_t j = 0; j < words; j++) row[j] = exponential(row[j] - z[r]) - e / A(V);
                    if (0 <= y && y < words) row[y] -= 1 - e;
                }
                work.multiply_by(work.back, logits.all(), sum);
                for (int64_t i = 0; i < sum.rows; i++)
                    for (int64_t c = 0; c < D; c++) d_hidden[first + i][c] += sum[i][c];
                work.left.pack(LEFT, logits.all(), true);
                multiply(work.left, right[b], d_words, true);
            }
            for (int64_t i = 0; i < words; i++)
                for (int64_t c = 0; c < D; c++) d_w[(word + i) * D + c] = A(scale) * d_words[i][c];
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < D; c++) {
                A total = 0;
                for (Workspace<T> *of : threads) total += of->d_hidden[r][c];
                store(d_h + r * D + c, A(scale) * total);
            }
    }
}

}  // namespace

// How many threads share what is asked for from here on. PyTorch's OpenMP may be another one than this compiler's.
extern "C" void use_threads(int n) { omp_set_num_threads(n); }

#define EXPORT(T, NAME)                                                                                                \
    extern "C" void feed_forward_##NAME(const T *x, T *y, int64_t rows, int64_t D, int64_t F,                          \
                                        Parameters<computed<T>> p, Dropout inside, Dropout end) {                      \
        feed_forward(x, y, rows, D, F, p, inside, end);                                                                \
    }                                                                                                                  \
    extern "C" void feed_forward_backward_##NAME(const T *x, const T *grad, T *dx, computed<T> *d_p, int64_t rows,     \
                                                 int64_t D, int64_t F, Parameters<computed<T>> p,                      \
                                                 Dropout inside, Dropout end) {                                        \
        feed_forward_backward(x, grad, dx, d_p, rows, D, F, p, inside, end);                                           \
    }                                                                                                                  \
    extern "C" void attention_##NAME(const T *x, const T *memory, T *y, Sizes s, Mask mask,                            \
                                     Parameters<computed<T>> p, Dropout inside, Dropout end) {                         \
        attention(x, memory, y, s, mask, p, inside, end);                                                              \
    }                                                                                                                  \
    extern "C" void attention_backward_##NAME(const T *x, const T *memory, const T *grad, T *dx, T *d_memory,          \
                                              computed<T> *d_p, Sizes s, Mask mask, Parameters<computed<T>> p,         \
                                              Dropout inside, Dropout end) {                                           \
        attention_backward(x, memory, grad, dx, d_memory, d_p, s, mask, p, inside, end);                               \
    }                                                                                                                  \
    extern "C" void norm_##NAME(const T *x, T *y, int64_t rows, int64_t D, const computed<T> *gamma,                   \
                                const computed<T> *beta, double eps) {                                                 \
        norm_alone(x, y, rows, D, gamma, beta, eps);                                                                   \
    }                                                                                                                  \
    extern "C" void norm_backward_##NAME(const T *x, const T *grad, T *dx, computed<T> *d_p, int64_t rows, int64_t D,  \
                                         const computed<T> *gamma, const computed<T> *beta, double eps) {              \
        norm_alone_backward(x, grad, dx, d_p, rows, D, gamma, beta, eps);                                              \
    }                                                                                                                  \
    extern "C" void embed_##NAME(const int64_t *ids, const computed<T> *table, const computed<T> *positions, T *y,     \
                                 int64_t batch, int64_t length, int64_t D, double scale, Dropout dropout) {            \
        embed(ids, table, positions, y, batch, length, D, scale, dropout);                                             \
    }                                                                                                                  \
    extern "C" void add_embed_backward_##NAME(const int64_t *ids, const T *grad, computed<T> *d_table, int64_t rows,   \
                                              int64_t V, int64_t D, double scale, Dropout dropout) {                   \
        add_embed_backward(ids, grad, d_table, rows, V, D, scale, dropout);                                            \
    }                                                                                                                  \
    extern "C" double linear_cross_entropy_##NAME(const T *h, const computed<T> *w, const int64_t *target,             \
                                                  computed<T> *z, int64_t rows, int64_t D, int64_t V, double e) {      \
        return linear_cross_entropy(h, w, target, z, rows, D, V, e);                                                   \
    }                                                                                                                  \
    extern "C" void linear_cross_entropy_backward_##NAME(                                                              \
        const T *h, const computed<T> *w, const int64_t *target, const computed<T> *z, T *d_h, computed<T> *d_w,       \
        int64_t rows, int64_t D, int64_t V, double e, double scale) {                                                  \
        linear_cross_entropy_backward(h, w, target, z, d_h, d_w, rows, D, V, e, scale);                                \
    }

EXPORT(bf16, bfloat16)
EXPORT(float, float32)
EXPORT(double, float64)
