// The Transformer's forward and backward pass in training, and the loss of its hidden states.
//
// Only the rows of real tokens are computed, none of the padding. Each thread gets some of the sentences and takes them
// through all layers, a block of rows at a time, which stays in the processor's caches. A tape keeps what the
// backward pass needs. The same number of threads gives the same bits. bfloat16 and float32 are computed in float32,
// float64 in float64; parameters and their gradients have the dtype of the computation. All tensors are contiguous.
// Called by training.py.

#include "shared.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <omp.h>
#include <vector>

namespace {

void report_no_memory() {  // exits at once: an exception cannot leave a parallel region
    std::fputs("minitrans: error: there is not enough memory; lower data.batch_tokens or use fewer threads\n", stderr);
    std::_Exit(2);
}

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
};
// The factor by which dropout multiplies the elements that it keeps.
template <class A> A scale_of(Dropout dropout) { return A(256) / A(256 - dropout.dropped); }

// The parameters of a sub-layer or of a norm alone, in the order of the pass, and its dropout: of the attention weights
// or the hidden layer, and of what is added to x. Both stacks end with a norm.
enum Kind : int64_t { SELF, CAUSAL, CROSS, FEED_FORWARD, NORM };
template <class A> struct Part {
    Kind kind;
    Parameters<A> p;
    Dropout inside, end;
};

// H heads of Dh, F hidden units, V words.
struct Sizes {
    int64_t D, H, Dh, F, V;

    int64_t E() const { return H * Dh; }
    // The rows of a part's w_in that make queries, or the hidden layer; and those that make keys and values.
    template <class A> int64_t n_in(const Part<A> &part) const {
        return part.kind == NORM ? 0 : part.kind == FEED_FORWARD ? F : E();
    }
    template <class A> int64_t n_kv(const Part<A> &part) const { return part.kind <= CROSS ? 2 * E() : 0; }
};

// The embeddings of the source and of the target (V, D) and the positions (max_len, D).
template <class A> struct Model {
    const Part<A> *parts;
    int64_t n_parts, encoder_end;  // how many, and which of them is the encoder's norm
    Sizes sizes;
    const A *source, *target, *positions;
    Dropout of_source, of_target;
};

// Ids (B, S) and (B, T), and how many of the T are real. Source ids equal to `pad` are left out.
struct Batch {
    const int64_t *src_ids, *tgt_in, *tgt_lengths;
    int64_t B, S, T, pad;
};

// The rows of one side of a batch that are computed, sentence after sentence.
struct Rows {
    int64_t length = 0;                      // of a sentence with its padding
    std::vector<int64_t> id, place, column;  // of each row: its token, its place in (B, length), and its column
    std::vector<int64_t> first;              // of each sentence: its first row; at the end, the number of rows

    void clear(int64_t new_length) {
        length = new_length;
        id.clear(), place.clear(), column.clear(), first.assign(1, 0);
    }
    void add(int64_t token, int64_t sentence, int64_t at) {
        id.push_back(token), place.push_back(sentence * length + at), column.push_back(at);
    }
    void end_sentence() { first.push_back(int64_t(id.size())); }
    int64_t size(int64_t sentence) const { return first[sentence + 1] - first[sentence]; }
    int64_t count() const { return int64_t(id.size()); }
    // Dropout's bytes for the D numbers of a row.
    const uint8_t *bytes(Dropout dropout, Buffer<uint64_t> &words, int64_t row, int64_t D) const {
        return dropout.bytes(words, place[row] * D, D);
    }
};

// `begin` to `end`, of sentences or words.
struct Range {
    int64_t begin, end;
};

// What a thread computes of a part: for some sentences, with rows that attend and rows that are attended to.
struct Task {
    const Sizes &sizes;
    const Rows &rows, &keys;
    Range mine;

    int64_t begin() const { return rows.first[mine.begin]; }
    int64_t end() const { return rows.first[mine.end]; }
    // How many sentences, from `first` on, an attention takes at a time.
    int64_t at_once(int64_t first) const {
        int64_t n = 1;
        for (; first + n < mine.end; n++)
            for (const Rows *side : {&rows, &keys})
                if (side->first[first + n + 1] - side->first[first] > ROWS) return n;
        return n;
    }
};

// What a layer norm saves for its gradient.
template <class A> struct Normed {
    Matrix<A> x, rstd;
};

// y = gamma (x - mean) / sqrt(variance + eps) + beta for each row of x.
template <class T, class A = computed<T>>
void norm(View<T> x, const Parameters<A> &p, Normed<A> &normed, Matrix<A> &y) {
    const int64_t D = x.columns;
    normed.x.resize(x.rows, D), normed.rstd.resize(1, x.rows), y.resize(x.rows, D);
    for (int64_t r = 0; r < x.rows; r++) {
        A *__restrict v = normed.x[r], *__restrict to = y[r];
        const T *__restrict from = x[r];
        A sum = 0, squares = 0;
        for (int64_t i = 0; i < D; i++) v[i] = load(from[i]), sum += v[i];
        const A mean = sum / A(D);
        for (int64_t i = 0; i < D; i++) v[i] -= mean, squares += v[i] * v[i];
        const A rstd = 1 / std::sqrt(squares / A(D) + A(p.eps));
        for (int64_t i = 0; i < D; i++) v[i] *= rstd, to[i] = v[i] * p.gamma[i] + p.beta[i];
        normed.rstd[0][r] = rstd;
    }
}

// The gradients at the parameters, as summed up so far by a thread: at gamma, beta, w_in, w_kv, b_in, b_kv, w_out and
// b_out, in the order in which they are returned. w_kv are the rows of keys and values of an attention's w_in.
template <class A> struct Gradients : std::array<Matrix<A>, 8> {
    void clear(const Part<A> &part, const Sizes &s) {
        const int64_t n_in = s.n_in(part), n_kv = s.n_kv(part), linear = part.kind != NORM;
        const int64_t rows[] = {1, 1, n_in, n_kv, linear, linear, linear * s.D, linear};
        const int64_t columns[] = {s.D, s.D, s.D, s.D, n_in, n_kv, n_in, s.D};
        for (int i = 0; i < 8; i++) (*this)[i].clear(rows[i], columns[i]);
    }
};

// dx += the gradient of `norm` at x, given the one at y; those at gamma and beta are added to `sums`.
template <class A>
void norm_backward(const Matrix<A> &dy, const Normed<A> &normed, const A *gamma, View<A> dx, Gradients<A> &sums) {
    const int64_t D = dy.columns;
    A *__restrict sum_gamma = sums[0][0], *__restrict sum_beta = sums[1][0];
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
        A *__restrict to = dx[r];
        for (int64_t i = 0; i < D; i++) to[i] += rstd * (g[i] * gamma[i] - mean - x[i] * mean_product);
    }
}

// What a tape keeps of a part: its input; of a feed-forward network, the hidden layer; of an attention, queries, keys,
// values, its weights (each row those of all heads) and the heads' outputs; and the weights of its linear layers as
// right sides of products, for the forward and the backward pass.
template <class T> struct Kept {
    using A = computed<T>;
    Matrix<T> x, u, q, kv, heads;
    Matrix<A> weights;
    Operand<T> w_in, w_kv, w_out, w_in_back, w_kv_back, w_out_back;

    void resize(const Part<A> &part, const Task &task) {
        const int64_t n = task.rows.count(), E = task.sizes.E();
        x.resize(n, task.sizes.D);
        if (part.kind == FEED_FORWARD) u.resize(n, task.sizes.F);
        if (part.kind <= CROSS) {
            q.resize(n, E), heads.resize(n, E), kv.resize(task.keys.count(), 2 * E);
            weights.resize(task.keys.count(), task.sizes.H * padded(task.rows.length));
        }
    }
    void pack(const Part<A> &part, const Sizes &s, bool back) {
        if (part.kind == NORM) return;
        const View<const A> first{part.p.w_in, s.n_in(part), s.D, s.D};
        const View<const A> second{part.p.w_in + s.E() * s.D, s.n_kv(part), s.D, s.D};
        const View<const A> last{part.p.w_out, s.D, s.n_in(part), s.n_in(part)};
        (back ? w_in_back : w_in).pack(RIGHT, first, !back);
        (back ? w_kv_back : w_kv).pack(RIGHT, second, !back);
        (back ? w_out_back : w_out).pack(RIGHT, last, !back);
    }
};

// Scratch space for what a thread computes. Each thread has its own, and keeps it.
template <class T> struct Workspace {
    using A = computed<T>;
    Normed<A> normed;
    Matrix<A> h, u, f, d_f, d_u, d_h;
    Operand<T> left, right;
    Buffer<uint64_t> words;
    // of attention alone
    Matrix<A> q, kv, d_heads, d_q, d_kv, d_source, scores, dropped, result, of_query;
    Matrix<A> d_hidden;  // of the loss alone
    std::vector<Gradients<A>> sums;  // at the parameters of each part

    static Workspace &mine() {
        static thread_local Workspace workspace;
        return workspace;
    }
    // The same, also listed in `threads`, complete once all threads have called this; inside a parallel region.
    static Workspace &mine(std::vector<Workspace *> &threads) {
#pragma omp single
        threads.resize(omp_get_num_threads());
        return *(threads[omp_get_thread_num()] = &mine());
    }
    // y = x w, for w packed on the right.
    template <class From> void multiply_by(const Operand<T> &w, View<From> x, Matrix<A> &y, bool add = false) {
        left.pack(LEFT, x);
        multiply(left, w, y, add);
    }
    // Adds the gradients of y = x w^T + b at w and b, given the one at y.
    template <class From> void add_gradients(const Matrix<A> &d_y, View<From> x, Matrix<A> &d_w, Matrix<A> &d_b) {
        right.pack(RIGHT, x);
        left.pack(LEFT, d_y.all(), true);
        multiply(left, right, d_w, true);
        for (int64_t r = 0; r < d_y.rows; r++)
            for (int64_t c = 0; c < d_y.columns; c++) d_b[0][c] += d_y[r][c];
    }
};

// The sum of the threads' rows of n numbers, in the threads' order; it overwrites the first thread's row.
template <class T, class Row> computed<T> *sum_of(const std::vector<Workspace<T> *> &threads, Row row, int64_t n) {
    computed<T> *__restrict sum = row(*threads[0]);
    for (size_t k = 1; k < threads.size(); k++)
        for (int64_t i = 0; i < n; i++) sum[i] += row(*threads[k])[i];
    return sum;
}

// The rows from `row` on, n of them.
template <class M> auto rows_of(M &matrix, int64_t row, int64_t n) { return matrix.part(row, 0, n, matrix.columns); }

// to = from, or from + bias
template <class T, class A> void put(const Matrix<A> &from, View<T> to, const A *bias = nullptr) {
    for (int64_t r = 0; r < from.rows; r++)
        for (int64_t c = 0; c < from.columns; c++) store(to[r] + c, from[r][c] + (bias ? bias[c] : A(0)));
}

// y = x + dropout(f + bias) for rows from `first` on.
template <class T, class A>
void add_dropped(View<T> x, const Matrix<A> &f, const A *bias, Dropout dropout, const Rows &rows, int64_t first,
                 View<T> y, Buffer<uint64_t> &words) {
    const A scale = scale_of<A>(dropout);
    for (int64_t r = 0; r < f.rows; r++) {
        const uint8_t *bytes = rows.bytes(dropout, words, first + r, f.columns);
        const T *from = x[r];
        const A *row = f[r];
        T *to = y[r];
        for (int64_t c = 0; c < f.columns; c++)
            store(to + c, load(from[c]) + (bytes[c] >= dropout.dropped ? (row[c] + bias[c]) * scale : A(0)));
    }
}

// d_f = the gradient at f through the dropout of `add_dropped`, given the one at y.
template <class A>
void drop_gradient(View<A> d_y, Dropout dropout, const Rows &rows, int64_t first, Matrix<A> &d_f,
                   Buffer<uint64_t> &words) {
    d_f.resize(d_y.rows, d_y.columns);
    const A scale = scale_of<A>(dropout);
    for (int64_t r = 0; r < d_f.rows; r++) {
        const uint8_t *bytes = rows.bytes(dropout, words, first + r, d_f.columns);
        const A *from = d_y[r];
        A *to = d_f[r];
        for (int64_t c = 0; c < d_f.columns; c++) to[c] = bytes[c] >= dropout.dropped ? from[c] * scale : A(0);
    }
}

// y = x + dropout(w_out dropout(relu(w_in norm(x)))) (biases not shown).
template <class T, class A = computed<T>>
void feed_forward(Workspace<T> &w, const Part<A> &part, Kept<T> &kept, const Task &task, Matrix<T> &y) {
    const A scale = scale_of<A>(part.inside);
    for (int64_t row = task.begin(), end = task.end(); row < end; row += ROWS) {
        const int64_t n = std::min(ROWS, end - row);
        norm(rows_of(kept.x, row, n), part.p, w.normed, w.h);
        w.multiply_by(kept.w_in, w.h.all(), w.u);
        for (int64_t r = 0; r < n; r++) {
            const uint8_t *bytes = task.rows.bytes(part.inside, w.words, row + r, w.u.columns);
            A *u = w.u[r];
            T *to = kept.u[row + r];
            for (int64_t c = 0; c < w.u.columns; c++) {
                const A value = u[c] + part.p.b_in[c];
                u[c] = bytes[c] >= part.inside.dropped && !(value <= 0) ? value * scale : A(0);  // NaN stays NaN
                store(to + c, u[c]);
            }
        }
        w.multiply_by(kept.w_out, w.u.all(), w.f);
        add_dropped(rows_of(kept.x, row, n), w.f, part.p.b_out, part.end, task.rows, row, rows_of(y, row, n), w.words);
    }
}

// d is the gradient at y, and becomes the one at x.
template <class T, class A = computed<T>>
void feed_forward_backward(Workspace<T> &w, const Part<A> &part, Kept<T> &kept, const Task &task, Matrix<A> &d,
                           Gradients<A> &sums) {
    const A scale = scale_of<A>(part.inside);
    for (int64_t row = task.begin(), end = task.end(); row < end; row += ROWS) {
        const int64_t n = std::min(ROWS, end - row);
        norm(rows_of(kept.x, row, n), part.p, w.normed, w.h);
        drop_gradient(rows_of(d, row, n), part.end, task.rows, row, w.d_f, w.words);
        w.add_gradients(w.d_f, rows_of(kept.u, row, n), sums[6], sums[7]);
        w.multiply_by(kept.w_out_back, w.d_f.all(), w.d_u);
        for (int64_t r = 0; r < n; r++) {
            A *d_u = w.d_u[r];
            const T *u = kept.u[row + r];
            for (int64_t c = 0; c < w.d_u.columns; c++) d_u[c] = !(load(u[c]) <= 0) ? d_u[c] * scale : A(0);
        }
        w.add_gradients(w.d_u, w.h.all(), sums[2], sums[4]);
        w.multiply_by(kept.w_in_back, w.d_u.all(), w.d_h);
        norm_backward(w.d_h, w.normed, part.p.gamma, rows_of(d, row, n), sums);
    }
}

// One head of one sentence: queries (T, Dh), keys and values (S, Dh), and what is made of them. Its weights have a
// row for each key, so that the softmax of many queries is taken at once.
template <class T> struct Head {
    View<T> q, k, v, heads;
    View<computed<T>> weights;
    const int64_t *query_columns, *key_columns;  // positions in the padded sentences
    int64_t first_byte, key_length;              // of dropout's bytes: the first one, and how many a query has

    // Multiplies x by the dropout's scale where it is kept, else by 0.
    template <class A> void drop(Dropout dropout, View<A> x, Buffer<uint64_t> &words) const {
        const A scale = scale_of<A>(dropout);
        for (int64_t t = 0; dropout.dropped && t < q.rows; t++) {
            const uint8_t *bytes = dropout.bytes(words, first_byte + query_columns[t] * key_length, key_length);
            for (int64_t s = 0; s < k.rows; s++)
                x[s][t] = bytes[key_columns[s]] >= dropout.dropped ? x[s][t] * scale : A(0);
        }
    }
};

// The weights after dropout.
template <class T, class A = computed<T>>
View<const A> dropped_weights(Workspace<T> &w, const Head<T> &head, Dropout dropout) {
    const View<A> &p = head.weights;
    if (!dropout.dropped) return {p.data, p.rows, p.columns, p.stride, true};
    w.dropped.resize(p.rows, p.columns);
    for (int64_t s = 0; s < p.rows; s++) std::copy_n(p[s], p.columns, w.dropped[s]);
    head.drop(dropout, w.dropped.part(0, 0, p.rows, p.columns), w.words);
    return w.dropped.all();
}

// weights = softmax(q k^T / sqrt(Dh)) over all keys, or over those up to the query's; heads = dropout(weights) v.
template <class T> void attend(Workspace<T> &w, const Head<T> &head, bool causal, Dropout dropout) {
    using A = computed<T>;
    const A lowest = std::numeric_limits<A>::lowest() / 2, scale = 1 / std::sqrt(A(head.q.columns));
    const int32_t width = int32_t(Operand<T>::whole(head.q.rows)), n_keys = int32_t(head.k.rows);
    w.right.pack(RIGHT, head.q, true);
    w.multiply_by(w.right, head.k, w.scores);
    w.of_query.resize(2, width);
    A *__restrict top = w.of_query[0], *__restrict sum = w.of_query[1];
    std::fill_n(top, width, lowest), std::fill_n(sum, width, A(0));
    for (int32_t s = 0; s < n_keys; s++) {
        A *__restrict row = w.scores[s];
        const int32_t first = causal ? s : 0;  // the first query that sees this key
        for (int32_t t = 0; t < width; t++) {
            row[t] = t >= first ? scale * row[t] : lowest;
            top[t] = row[t] > top[t] ? row[t] : top[t];
        }
    }
    for (int32_t s = 0; s < n_keys; s++) {
        A *__restrict row = w.scores[s];
        const int32_t first = causal ? s : 0;
        for (int32_t t = 0; t < width; t++) {
            const A e = exponential(row[t] - top[t]);
            row[t] = t >= first ? e : A(0);
            sum[t] += row[t];
        }
    }
    for (int32_t t = 0; t < width; t++) sum[t] = 1 / sum[t];
    for (int32_t s = 0; s < n_keys; s++) {
        const A *__restrict row = w.scores[s];
        A *__restrict to = head.weights[s];
        for (int32_t t = 0; t < width; t++) to[t] = row[t] * sum[t];
    }
    w.right.pack(RIGHT, head.v);
    w.left.pack(LEFT, dropped_weights(w, head, dropout), true);
    multiply(w.left, w.right, w.result);
    put(w.result, head.heads);
}

// The gradients at q, k and v, given the one at the head's output.
template <class T, class A = computed<T>>
void attend_backward(Workspace<T> &w, const Head<T> &head, Dropout dropout, View<A> d_head, View<A> d_q, View<A> d_k,
                     View<A> d_v) {
    const A scale = 1 / std::sqrt(A(head.q.columns));
    const int64_t width = Operand<T>::whole(head.q.rows);
    w.right.pack(RIGHT, d_head);
    w.multiply_by(w.right, dropped_weights(w, head, dropout), w.result);
    put(w.result, d_v);

    w.right.pack(RIGHT, d_head, true);
    w.multiply_by(w.right, head.v, w.scores);
    head.drop(dropout, w.scores.part(0, 0, head.k.rows, head.q.rows), w.words);
    w.of_query.resize(1, width);
    A *__restrict dot = w.of_query[0];
    std::fill_n(dot, width, A(0));
    for (int64_t s = 0; s < head.k.rows; s++)
        for (int64_t t = 0; t < width; t++) dot[t] += w.scores[s][t] * head.weights[s][t];
    for (int64_t s = 0; s < head.k.rows; s++) {
        A *__restrict row = w.scores[s];
        const A *__restrict p = head.weights[s];
        for (int64_t t = 0; t < width; t++) row[t] = scale * p[t] * (row[t] - dot[t]);
    }
    w.right.pack(RIGHT, head.k);
    w.left.pack(LEFT, w.scores.all(), true);
    multiply(w.left, w.right, w.result);
    put(w.result, d_q);

    w.right.pack(RIGHT, head.q);
    w.multiply_by(w.right, w.scores.all(), w.result);
    put(w.result, d_k);
}

template <class T> Head<T> head_of(Kept<T> &kept, const Task &task, int64_t sentence, int64_t h) {
    const int64_t E = task.sizes.E(), Dh = task.sizes.Dh, pitch = kept.weights.columns / task.sizes.H;
    const int64_t row = task.rows.first[sentence], n = task.rows.size(sentence);
    const int64_t key = task.keys.first[sentence], n_keys = task.keys.size(sentence);
    return {kept.q.part(row, h * Dh, n, Dh),
            kept.kv.part(key, h * Dh, n_keys, Dh),
            kept.kv.part(key, E + h * Dh, n_keys, Dh),
            kept.heads.part(row, h * Dh, n, Dh),
            kept.weights.part(key, h * pitch, n_keys, n),
            task.rows.column.data() + row,
            task.keys.column.data() + key,
            (sentence * task.sizes.H + h) * task.rows.length * task.keys.length,
            task.keys.length};
}

// y = x + dropout(w_out attention(norm(x), memory)); without a memory, norm(x) attends to itself.
template <class T, class A = computed<T>>
void attention(Workspace<T> &w, const Part<A> &part, Kept<T> &kept, Matrix<T> *memory, const Task &task, Matrix<T> &y) {
    for (int64_t first = task.mine.begin, next; first < task.mine.end; first = next) {
        next = first + task.at_once(first);
        const int64_t row = task.rows.first[first], n = task.rows.first[next] - row;
        const int64_t key = task.keys.first[first], n_keys = task.keys.first[next] - key;
        norm(rows_of(kept.x, row, n), part.p, w.normed, w.h);
        w.multiply_by(kept.w_in, w.h.all(), w.q);
        if (memory) w.left.pack(LEFT, rows_of(*memory, key, n_keys));
        multiply(w.left, kept.w_kv, w.kv);
        put(w.q, rows_of(kept.q, row, n), part.p.b_in);
        put(w.kv, rows_of(kept.kv, key, n_keys), part.p.b_in + task.sizes.E());
        for (int64_t b = first; b < next; b++)
            for (int64_t h = 0; h < task.sizes.H; h++)
                attend(w, head_of(kept, task, b, h), part.kind == CAUSAL, part.inside);
        w.multiply_by(kept.w_out, rows_of(kept.heads, row, n), w.f);
        add_dropped(rows_of(kept.x, row, n), w.f, part.p.b_out, part.end, task.rows, row, rows_of(y, row, n), w.words);
    }
}

// d is the gradient at y, and becomes the one at x; that at the memory, if there is one, is added to d_memory.
template <class T, class A = computed<T>>
void attention_backward(Workspace<T> &w, const Part<A> &part, Kept<T> &kept, Matrix<T> *memory, const Task &task,
                        Matrix<A> &d, Matrix<A> &d_memory, Gradients<A> &sums) {
    const int64_t E = task.sizes.E(), Dh = task.sizes.Dh;
    for (int64_t first = task.mine.begin, next; first < task.mine.end; first = next) {
        next = first + task.at_once(first);
        const int64_t row = task.rows.first[first], n = task.rows.first[next] - row;
        const int64_t key = task.keys.first[first], n_keys = task.keys.first[next] - key;
        norm(rows_of(kept.x, row, n), part.p, w.normed, w.h);
        drop_gradient(rows_of(d, row, n), part.end, task.rows, row, w.d_f, w.words);
        w.add_gradients(w.d_f, rows_of(kept.heads, row, n), sums[6], sums[7]);
        w.multiply_by(kept.w_out_back, w.d_f.all(), w.d_heads);
        w.d_q.resize(n, E), w.d_kv.resize(n_keys, 2 * E);
        for (int64_t b = first; b < next; b++)
            for (int64_t h = 0; h < task.sizes.H; h++) {
                const int64_t at = task.rows.first[b] - row, size = task.rows.size(b);
                const int64_t key_at = task.keys.first[b] - key, key_size = task.keys.size(b);
                attend_backward(w, head_of(kept, task, b, h), part.inside, w.d_heads.part(at, h * Dh, size, Dh),
                                w.d_q.part(at, h * Dh, size, Dh), w.d_kv.part(key_at, h * Dh, key_size, Dh),
                                w.d_kv.part(key_at, E + h * Dh, key_size, Dh));
            }
        w.add_gradients(w.d_q, w.h.all(), sums[2], sums[4]);
        w.multiply_by(kept.w_in_back, w.d_q.all(), w.d_h);
        if (memory) {
            w.add_gradients(w.d_kv, rows_of(*memory, key, n_keys), sums[3], sums[5]);
            w.multiply_by(kept.w_kv_back, w.d_kv.all(), w.d_source);
            for (int64_t r = 0; r < n_keys; r++)
                for (int64_t c = 0; c < w.d_source.columns; c++) d_memory[key + r][c] += w.d_source[r][c];
        } else {
            w.add_gradients(w.d_kv, w.h.all(), sums[3], sums[5]);
            w.multiply_by(kept.w_kv_back, w.d_kv.all(), w.d_h, true);
        }
        norm_backward(w.d_h, w.normed, part.p.gamma, rows_of(d, row, n), sums);
    }
}

// y = norm(x)
template <class T, class A = computed<T>>
void norm_alone(Workspace<T> &w, const Part<A> &part, Kept<T> &kept, const Task &task, Matrix<T> &y) {
    for (int64_t row = task.begin(), end = task.end(); row < end; row += ROWS) {
        const int64_t n = std::min(ROWS, end - row);
        norm(rows_of(kept.x, row, n), part.p, w.normed, w.h);
        put(w.h, rows_of(y, row, n));
    }
}

// dx = the gradient at x, given the one at y, which may be the same matrix.
template <class T, class A = computed<T>>
void norm_alone_backward(Workspace<T> &w, const Part<A> &part, Kept<T> &kept, const Task &task, Matrix<A> &dy,
                         Matrix<A> &dx, Gradients<A> &sums) {
    for (int64_t row = task.begin(), end = task.end(); row < end; row += ROWS) {
        const int64_t n = std::min(ROWS, end - row);
        norm(rows_of(kept.x, row, n), part.p, w.normed, w.h);
        w.d_h.resize(n, dy.columns);
        for (int64_t r = 0; r < n; r++)
            for (int64_t c = 0; c < dy.columns; c++) w.d_h[r][c] = dy[row + r][c], dx[row + r][c] = A(0);
        norm_backward(w.d_h, w.normed, part.p.gamma, rows_of(dx, row, n), sums);
    }
}

// y = dropout(sqrt(D) table[ids] + positions)
template <class T, class A = computed<T>>
void embed(Workspace<T> &w, const A *table, const A *positions, Dropout dropout, const Task &task, Matrix<T> &y) {
    const Rows &rows = task.rows;
    const int64_t D = y.columns;
    const A root = std::sqrt(A(D)), scale = scale_of<A>(dropout);
    for (int64_t r = task.begin(); r < task.end(); r++) {
        const A *vector = table + rows.id[r] * D, *position = positions + rows.column[r] * D;
        const uint8_t *bytes = rows.bytes(dropout, w.words, r, D);
        T *to = y[r];
        for (int64_t c = 0; c < D; c++)
            store(to + c, bytes[c] >= dropout.dropped ? (root * vector[c] + position[c]) * scale : A(0));
    }
}

// Adds the gradient at the words `mine` of the table, given the one at y, to d_table (V, D).
template <class T, class A = computed<T>>
void embed_backward(Workspace<T> &w, const Rows &rows, Matrix<A> &d_y, Dropout dropout, Range mine, A *d_table) {
    const int64_t D = d_y.columns;
    const A root = std::sqrt(A(D));
    for (int64_t r = 0; r < rows.count(); r++) {
        if (rows.id[r] < mine.begin || rows.id[r] >= mine.end) continue;
        drop_gradient(rows_of(d_y, r, 1), dropout, rows, r, w.d_f, w.words);
        for (int64_t c = 0; c < D; c++) d_table[rows.id[r] * D + c] += root * w.d_f[0][c];
    }
}

// One batch's pass: what the forward pass computes and the backward pass needs.
template <class T> struct Tape {
    using A = computed<T>;
    Rows src, tgt;
    std::vector<Kept<T>> kept;  // of each part
    Matrix<T> memory, last;
    Matrix<A> d_src, d_tgt, d_memory;

    // A thread's task for a part: a share of the sentences, with about as many rows as the other threads' shares.
    Task task(const Model<A> &m, int64_t part) const {
        const auto end = [&](int64_t thread) {
            const int64_t rows = (src.count() + tgt.count()) * thread / omp_get_num_threads();
            int64_t sentence = 0, n = src.first.size() - 1;
            while (sentence < n && src.first[sentence + 1] + tgt.first[sentence + 1] <= rows) sentence++;
            return sentence;
        };
        const bool decoding = part > m.encoder_end, cross = m.parts[part].kind == CROSS;
        const Rows &rows = decoding ? tgt : src;
        const int64_t thread = omp_get_thread_num();
        return {m.sizes, rows, cross ? src : rows, {end(thread), end(thread + 1)}};
    }

    // Writes the hidden states (N, D) of the N rows of the targets.
    void forward(const Model<A> &m, const Batch &batch, T *hidden) {
        src.clear(batch.S), tgt.clear(batch.T);
        for (int64_t b = 0; b < batch.B; b++) {
            for (int64_t s = 0; s < batch.S; s++)
                if (batch.src_ids[b * batch.S + s] != batch.pad) src.add(batch.src_ids[b * batch.S + s], b, s);
            for (int64_t t = 0; t < batch.tgt_lengths[b]; t++) tgt.add(batch.tgt_in[b * batch.T + t], b, t);
            src.end_sentence(), tgt.end_sentence();
        }
        if (int64_t(kept.size()) != m.n_parts) kept = std::vector<Kept<T>>(m.n_parts);
        for (int64_t i = 0; i < m.n_parts; i++) kept[i].resize(m.parts[i], task(m, i));
        memory.resize(src.count(), m.sizes.D), last.resize(tgt.count(), m.sizes.D);
#pragma omp parallel
        {
            const TileUnit unit;
            Workspace<T> &w = Workspace<T>::mine();
#pragma omp for schedule(static, 1)
            for (int64_t i = 0; i < m.n_parts; i++) kept[i].pack(m.parts[i], m.sizes, false);
            for (int64_t i = 0; i < m.n_parts; i++) {
                const Part<A> &part = m.parts[i];
                const Task mine = task(m, i);
                Matrix<T> &y = i == m.encoder_end ? memory : i + 1 == m.n_parts ? last : kept[i + 1].x;
                if (i == 0) embed(w, m.source, m.positions, m.of_source, mine, kept[i].x);
                if (i == m.encoder_end + 1) embed(w, m.target, m.positions, m.of_target, mine, kept[i].x);
                if (part.kind == NORM)
                    norm_alone(w, part, kept[i], mine, y);
                else if (part.kind == FEED_FORWARD)
                    feed_forward(w, part, kept[i], mine, y);
                else
                    attention(w, part, kept[i], part.kind == CROSS ? &memory : nullptr, mine, y);
            }
        }
        for (int64_t r = 0; r < last.rows; r++) std::copy_n(last[r], last.columns, hidden + r * last.columns);
    }

    // Given the gradient at the hidden states, writes those at the parameters of all parts, one after the other, and
    // adds those at the tables.
    void backward(const Model<A> &m, const T *grad, A *d_parameters, A *d_source, A *d_target) {
        const int64_t D = m.sizes.D, V = m.sizes.V;
        d_src.resize(src.count(), D), d_memory.clear(src.count(), D), d_tgt.resize(tgt.count(), D);
        std::vector<Workspace<T> *> threads;
#pragma omp parallel
        {
            const TileUnit unit;
            const int64_t thread = omp_get_thread_num(), n_threads = omp_get_num_threads();
            Workspace<T> &w = Workspace<T>::mine(threads);
            if (int64_t(w.sums.size()) != m.n_parts) w.sums = std::vector<Gradients<A>>(m.n_parts);
#pragma omp for schedule(static, 1) nowait
            for (int64_t i = 0; i < m.n_parts; i++) kept[i].pack(m.parts[i], m.sizes, true);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < tgt.count(); r++)
                for (int64_t c = 0; c < D; c++) d_tgt[r][c] = load(grad[r * D + c]);
            for (int64_t i = m.n_parts - 1; i >= 0; i--) {
                const Part<A> &part = m.parts[i];
                const Task mine = task(m, i);
                Matrix<A> &d = i > m.encoder_end ? d_tgt : d_src;
                w.sums[i].clear(part, m.sizes);
                if (part.kind == NORM)
                    norm_alone_backward(w, part, kept[i], mine, i > m.encoder_end ? d_tgt : d_memory, d, w.sums[i]);
                else if (part.kind == FEED_FORWARD)
                    feed_forward_backward(w, part, kept[i], mine, d, w.sums[i]);
                else
                    attention_backward(w, part, kept[i], part.kind == CROSS ? &memory : nullptr, mine, d, d_memory,
                                       w.sums[i]);
            }
#pragma omp barrier
            A *to = d_parameters;
            for (int64_t i = 0; i < m.n_parts; i++)
                for (size_t j = 0; j < w.sums[i].size(); j++) {
                    const Matrix<A> &first = threads[0]->sums[i][j];
#pragma omp for schedule(static) nowait
                    for (int64_t r = 0; r < first.rows; r++)
                        std::copy_n(sum_of(threads, [&](auto &of) { return of.sums[i][j][r]; }, first.columns),
                                    first.columns, to + r * first.columns);
                    to += first.rows * first.columns;
                }
            const Range words{V * thread / n_threads, V * (thread + 1) / n_threads};
            embed_backward(w, tgt, d_tgt, m.of_target, words, d_target);
            embed_backward(w, src, d_src, m.of_source, words, d_source);
        }
    }
};

// Tapes not in use, kept so that their memory is reused.
template <class T> struct Spare {
    std::mutex guard;
    std::vector<std::unique_ptr<Tape<T>>> tapes;

    static Spare &all() {
        static Spare spare;
        return spare;
    }
    std::unique_ptr<Tape<T>> take() {
        const std::lock_guard<std::mutex> lock(guard);
        if (tapes.empty()) return std::make_unique<Tape<T>>();
        std::unique_ptr<Tape<T>> tape = std::move(tapes.back());
        tapes.pop_back();
        return tape;
    }
    void give(Tape<T> *tape) {
        const std::lock_guard<std::mutex> lock(guard);
        tapes.emplace_back(tape);
    }
};

// Memory for the loss of some rows at once, kept for reuse: the rows and the words as sides of products; for each
// block of words and of rows a matrix of e^(logit - highest); and for each block of words and each row the highest
// logit, the sum of these exponentials, and the sum of the logits.
template <class T> struct LossMemory {
    using A = computed<T>;
    std::vector<Operand<T>> left, right, words, words_back;
    std::vector<Matrix<A>> exponentials;
    Matrix<A> highest, sums, totals;
    std::vector<A> z, losses;  // of each row; its loss at first has only the right word's part

    void reserve(int64_t word_blocks, int64_t row_blocks, int64_t rows) {
        const auto have = [](auto &list, size_t n) {
            if (list.size() < n) list = std::decay_t<decltype(list)>(n);
        };
        have(left, row_blocks), have(right, row_blocks), have(words, word_blocks), have(words_back, word_blocks);
        have(exponentials, word_blocks * row_blocks), have(losses, rows), have(z, rows);
        highest.resize(word_blocks, rows), sums.resize(word_blocks, rows), totals.resize(word_blocks, rows);
    }
};

// The label-smoothed cross entropy of logits = h w^T, summed over h's rows (rows, D); w is (V, D), e the smoothing.
// Where d_w is not null, also scale times its gradients: d_h (rows, D) and d_w (V, D).
//
// With z = the logarithm of the sum of a row's e^logits, its loss is z - (1 - e) logit_y - e mean(logits), and the
// gradient at its logits is softmax(logits) - (1 - e) onehot(y) - e / V. The exponentials are kept until then, four
// million at a time or those of a block of rows. In bfloat16 it is quicker to compute all logits twice.
template <class T, class A = computed<T>>
double linear_cross_entropy(const T *h, const A *w, const int64_t *target, T *d_h, A *d_w, int64_t all_rows, int64_t D,
                            int64_t V, double smoothing, double scale) {
    const A e = A(smoothing);
    constexpr bool KEEPS = std::is_same_v<T, A>;
    const int64_t word_blocks = (V + WORDS - 1) / WORDS;
    const int64_t at_once = std::max(ROWS, KEEPS ? (1 << 22) / V / ROWS * ROWS : all_rows);
    static thread_local LossMemory<T> memory;
    LossMemory<T> &m = memory;
    std::vector<Workspace<T> *> threads;
    double loss = 0;
    for (int64_t begin = 0; begin == 0 || begin < all_rows; begin += at_once) {
        const int64_t rows = std::min(at_once, all_rows - begin), row_blocks = (rows + ROWS - 1) / ROWS;
        m.reserve(word_blocks, row_blocks, rows);
#pragma omp parallel
        {
            const TileUnit unit;
            Workspace<T> &work = Workspace<T>::mine(threads);
            Matrix<A> &d_hidden = work.d_hidden, &d_words = work.d_u, &sum = work.f;
#pragma omp for schedule(static)
            for (int64_t b = 0; b < row_blocks; b++) {
                const View<const T> block{h + (begin + b * ROWS) * D, std::min(ROWS, rows - b * ROWS), D, D};
                m.left[b].pack(LEFT, block);
                if (d_w) m.right[b].pack(RIGHT, block);
            }
#pragma omp for schedule(static)
            for (int64_t k = 0; k < word_blocks; k++) {
                const int64_t word = k * WORDS, words = std::min(WORDS, V - word);
                if (begin == 0) m.words[k].pack(RIGHT, View<const A>{w + word * D, words, D, D}, true);
                for (int64_t b = 0; b < row_blocks; b++) {
                    Matrix<A> &block = KEEPS ? m.exponentials[k * row_blocks + b] : work.u;
                    multiply(m.left[b], m.words[k], block);
                    for (int64_t i = 0; i < block.rows; i++) {
                        const int64_t r = b * ROWS + i, y = target[begin + r] - word;
                        A *__restrict row = block[i];
                        if (0 <= y && y < words) m.losses[r] = -(1 - e) * row[y];
                        const A top = highest(row, words, std::numeric_limits<A>::lowest());
                        A exponentials = 0, total = 0;
                        for (int64_t j = 0; j < words; j++) {
                            const A x = exponential(row[j] - top);
                            exponentials += x, total += row[j];
                            if (KEEPS) row[j] = x;
                        }
                        m.highest[k][r] = top, m.sums[k][r] = exponentials, m.totals[k][r] = total;
                    }
                }
            }
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++) {
                A top = m.highest[0][r], exponentials = 0, total = 0;
                for (int64_t k = 1; k < word_blocks; k++) top = std::max(top, m.highest[k][r]);
                for (int64_t k = 0; k < word_blocks; k++) {
                    exponentials += m.sums[k][r] * exponential(m.highest[k][r] - top);
                    total += m.totals[k][r];
                }
                m.z[r] = top + std::log(exponentials);
                m.losses[r] += m.z[r] - e * total / A(V);
            }
            if (d_w) {
                d_hidden.clear(rows, D);
#pragma omp for schedule(static)
                for (int64_t k = 0; k < word_blocks; k++) {
                    const int64_t word = k * WORDS, words = std::min(WORDS, V - word);
                    if (begin == 0) m.words_back[k].pack(RIGHT, View<const A>{w + word * D, words, D, D});
                    if (begin == 0) std::fill_n(d_w + word * D, words * D, A(0));
                    d_words.clear(words, D);
                    for (int64_t b = 0; b < row_blocks; b++) {
                        Matrix<A> &block = KEEPS ? m.exponentials[k * row_blocks + b] : work.u;
                        if (!KEEPS) multiply(m.left[b], m.words[k], block);
                        for (int64_t i = 0; i < block.rows; i++) {
                            const int64_t r = b * ROWS + i, y = target[begin + r] - word;
                            A *__restrict row = block[i];
                            const A factor = exponential(m.highest[k][r] - m.z[r]);
                            for (int64_t j = 0; j < words; j++)
                                row[j] = (KEEPS ? row[j] * factor : exponential(row[j] - m.z[r])) - e / A(V);
                            if (0 <= y && y < words) row[y] -= 1 - e;
                        }
                        work.multiply_by(m.words_back[k], block.all(), sum);
                        for (int64_t i = 0; i < sum.rows; i++)
                            for (int64_t c = 0; c < D; c++) d_hidden[b * ROWS + i][c] += sum[i][c];
                        work.left.pack(LEFT, block.all(), true);
                        multiply(work.left, m.right[b], d_words, true);
                    }
                    for (int64_t i = 0; i < words; i++)
                        for (int64_t c = 0; c < D; c++)
                            d_w[(word + i) * D + c] += A(scale) * d_words[i][c];
                }
#pragma omp for schedule(static)
                for (int64_t r = 0; r < rows; r++) {
                    const A *total = sum_of(threads, [&](auto &of) { return of.d_hidden[r]; }, D);
                    for (int64_t c = 0; c < D; c++) store(d_h + (begin + r) * D + c, A(scale) * total[c]);
                }
            }
        }
        for (int64_t r = 0; r < rows; r++) loss += m.losses[r];
    }
    return loss;
}

}  // namespace

// Sets how many threads share the work of later calls. PyTorch's OpenMP may be another library than this compiler's.
extern "C" void use_threads(int n) { omp_set_num_threads(n); }

#define EXPORT(T, NAME)                                                                                                \
    extern "C" void *forward_##NAME(const Model<computed<T>> *m, Batch batch, T *hidden) {                             \
        std::unique_ptr<Tape<T>> tape = Spare<T>::all().take();                                                        \
        tape->forward(*m, batch, hidden);                                                                              \
        return tape.release();                                                                                         \
    }                                                                                                                  \
    extern "C" void backward_##NAME(const Model<computed<T>> *m, void *tape, const T *grad, computed<T> *d_parameters, \
                                    computed<T> *d_source, computed<T> *d_target) {                                    \
        static_cast<Tape<T> *>(tape)->backward(*m, grad, d_parameters, d_source, d_target);                            \
    }                                                                                                                  \
    extern "C" void release_##NAME(void *tape) { Spare<T>::all().give(static_cast<Tape<T> *>(tape)); }                 \
    extern "C" double linear_cross_entropy_##NAME(const T *h, const computed<T> *w, const int64_t *target, T *d_h,     \
                                                  computed<T> *d_w, int64_t rows, int64_t D, int64_t V, double e,      \
                                                  double scale) {                                                      \
        return linear_cross_entropy(h, w, target, d_h, d_w, rows, D, V, e, scale);                                     \
    }

EXPORT(bf16, bfloat16)
EXPORT(float, float32)
EXPORT(double, float64)
