// Inference: from a batch of sources to the keys and values that the decoder attends to, and one step of decoding.
//
// A stepper packs the weights once and never writes to itself again, so several threads may use one at the same time,
// each with a batch of its own: they never wait for each other. There is no padding: the tokens of all sentences lie
// one after another, those of sentence b from offsets[b] to offsets[b + 1]. No row depends on those beside it: the same
// sentence gives the same bits in every batch. Called by stepper.py.

#include "shared.h"

#include <cmath>
#include <limits>
#include <vector>

namespace {

void report_no_memory() { throw std::bad_alloc(); }

struct Sizes {
    int64_t D, H, Dh, F, L, V, pad, bos;
};

// The model's parameters: its tables, and its sub-layers in the order in which they run, encoder first; each stack ends
// with its norm.
template <class A> struct Model {
    const A *source, *target, *output, *positions;
    const Parameters<A> *sublayers;
};

// The keys and values made at one step, (L, rows, 2E): for each layer and row, the keys of all heads, then the values.
template <class T> struct Block {
    T *data;
    int64_t rows;
};

// Scratch space for what a thread computes. Each thread has its own, and keeps it.
template <class T> struct Workspace {
    using A = computed<T>;
    Matrix<A> x, h, u, f, q, kv, weights, scores, result, top;
    std::vector<const T *> keys;
    Operand<T> left, right;

    static Workspace &mine() {
        static thread_local Workspace workspace;
        return workspace;
    }
};

// Inserts a logit into the n highest of its row, the highest first; of equal ones, the first to come.
template <class A> void insert(A logit, int64_t id, int64_t n, A *best, int64_t *ids) {
    if (logit <= best[n - 1]) return;
    const int64_t at = std::upper_bound(best, best + n - 1, logit, [](A a, A b) { return a > b; }) - best;
    std::copy_backward(best + at, best + n - 1, best + n), best[at] = logit;
    std::copy_backward(ids + at, ids + n - 1, ids + n), ids[at] = id;
}

// A row of n scores becomes softmax(scale * scores). It is worked on up to a multiple of PAD, in whole vectors.
template <class A> void softmax(A *scores, int64_t n, A scale) {
    const A lowest = std::numeric_limits<A>::lowest() / 2;
    const int64_t width = padded(n);
    std::fill(scores + n, scores + width, lowest);
    const A top = highest(scores, width, lowest);
    A sum = 0;
    for (int64_t i = 0; i < width; i++) scores[i] = exponential(scale * (scores[i] - top)), sum += scores[i];
    for (int64_t i = 0; i < width; i++) scores[i] /= sum;
}

template <class T> class Stepper {
    using A = computed<T>;

  public:
    Stepper(Sizes sizes, Model<A> weights)
        : s(sizes), E(s.H * s.Dh), model(weights), encoder_norm(model.sublayers[2 * s.L]),
          decoder_norm(model.sublayers[5 * s.L + 1]), encoder(2 * s.L), decoder(3 * s.L), cross_kv(s.L),
          output((s.V + WORDS - 1) / WORDS) {
        const Parameters<A> *p = model.sublayers;
        for (int64_t i = 0; i < 2 * s.L; i++, p++) encoder[i].pack(*p, i % 2 ? s.F : 3 * E, i % 2 ? s.F : E, s.D);
        p++;  // the encoder's norm
        for (int64_t i = 0; i < 3 * s.L; i++, p++) {
            const bool cross = i % 3 == 1, last = i % 3 == 2;
            decoder[i].pack(*p, last ? s.F : cross ? E : 3 * E, last ? s.F : E, s.D);
            if (cross) cross_kv[i / 3].pack(p->w_in + E * s.D, p->b_in + E, 2 * E, s.D);
        }
        for (int64_t b = 0; b < int64_t(output.size()); b++) {
            const int64_t words = std::min(WORDS, s.V - b * WORDS);
            output[b].pack(RIGHT, View<const A>{model.output + b * WORDS * s.D, words, s.D, s.D}, true);
        }
    }

    // cross (L, tokens, 2E) = the keys and values of `batch` sentences for each decoder layer.
    void encode(const int64_t *tokens, const int64_t *offsets, int64_t batch, T *cross) const {
        const TileUnit unit;
        for (int64_t first = 0, next; first < batch; first = next) {  // a few sentences at a time
            for (next = first + 1; next < batch && offsets[next + 1] - offsets[first] <= ROWS;) next++;
            encode_group(tokens, offsets + first, next - first, offsets[batch], cross);
        }
    }

    // The n best continuations of each row: their log-probabilities and ids (rows, n), PAD and BOS left out.
    //
    // tokens (rows) are each row's newest, at position t. blocks: t + 1 of them, the last one to be filled. Row r's
    // keys of position i < t are in row slots[r * steps + i] of blocks[i], where steps > t; it attends to sentence
    // sources[r] of `cross`.
    void step(const int64_t *tokens, int64_t rows, int64_t t, int64_t steps, const Block<T> *blocks,
              const int32_t *slots, const int64_t *sources, const int64_t *offsets, const Block<const T> &cross,
              int64_t n, A *log_p, int64_t *ids) const {
        const TileUnit unit;
        Workspace<T> &w = Workspace<T>::mine();
        for (int64_t first = 0; first < rows; first += ROWS) {
            const int64_t count = std::min(ROWS, rows - first);
            embed(w, tokens + first, count, model.target, [&](int64_t) { return t; });
            for (int64_t l = 0; l < s.L; l++) {
                begin(w, decoder[3 * l], w.q);
                for (int64_t r = 0; r < count; r++) {
                    T *own = blocks[t].data + (l * rows + first + r) * 2 * E;
                    for (int64_t i = 0; i < 2 * E; i++) store(own + i, w.q[r][E + i]);
                    const int32_t *slot = slots + (first + r) * steps;
                    attend(w, r, t + 1, [&](int64_t i) -> const T * {
                        return i == t ? own : blocks[i].data + (l * blocks[i].rows + slot[i]) * 2 * E;
                    });
                }
                end(w, decoder[3 * l]);
                begin(w, decoder[3 * l + 1], w.q);
                for (int64_t r = 0; r < count; r++) {
                    const int64_t start = offsets[sources[first + r]], end = offsets[sources[first + r] + 1];
                    const T *keys = cross.data + (l * cross.rows + start) * 2 * E;
                    attend(w, r, end - start, [&](int64_t i) { return keys + i * 2 * E; });
                }
                end(w, decoder[3 * l + 1]);
                feed_forward(w, decoder[3 * l + 2]);
            }
            norm(w.x, decoder_norm.gamma, decoder_norm.beta, decoder_norm.eps, w.h);
            choose(w, n, log_p + first * n, ids + first * n);
        }
    }

  private:
    struct Linear {
        Operand<T> w;
        std::vector<A> b;

        void pack(const A *weight, const A *bias, int64_t out, int64_t in) {
            w.pack(RIGHT, View<const A>{weight, out, in, in}, true);
            b.assign(bias, bias + out);
        }
    };
    struct Sublayer {
        std::vector<A> gamma, beta;
        double eps;
        Linear in, out;

        void pack(const Parameters<A> &p, int64_t into, int64_t from, int64_t D) {
            gamma.assign(p.gamma, p.gamma + D), beta.assign(p.beta, p.beta + D), eps = p.eps;
            in.pack(p.w_in, p.b_in, into, D);
            out.pack(p.w_out, p.b_out, D, from);
        }
    };

    const Sizes s;
    const int64_t E;
    const Model<A> model;  // only its tables are read later
    const Parameters<A> encoder_norm, decoder_norm;
    std::vector<Sublayer> encoder, decoder;
    std::vector<Linear> cross_kv;
    std::vector<Operand<T>> output;

    // x = sqrt(D) table[tokens] + positions
    template <class Position>
    void embed(Workspace<T> &w, const int64_t *tokens, int64_t count, const A *table, Position position) const {
        const A scale = std::sqrt(A(s.D));
        w.x.resize(count, s.D);
        for (int64_t r = 0; r < count; r++) {
            const A *word = table + tokens[r] * s.D, *at = model.positions + position(r) * s.D;
            for (int64_t i = 0; i < s.D; i++) w.x[r][i] = scale * word[i] + at[i];
        }
    }

    void norm(const Matrix<A> &x, const A *gamma, const A *beta, double eps, Matrix<A> &y) const {
        y.resize(x.rows, s.D);
        for (int64_t r = 0; r < x.rows; r++) {
            const A *__restrict from = x[r];
            A *__restrict to = y[r];
            A sum = 0, squares = 0;
            for (int64_t i = 0; i < s.D; i++) sum += from[i];
            const A mean = sum / A(s.D);
            for (int64_t i = 0; i < s.D; i++) to[i] = from[i] - mean, squares += to[i] * to[i];
            const A rstd = 1 / std::sqrt(squares / A(s.D) + A(eps));
            for (int64_t i = 0; i < s.D; i++) to[i] = to[i] * rstd * gamma[i] + beta[i];
        }
    }

    void apply(Workspace<T> &w, const Linear &linear, const Matrix<A> &x, Matrix<A> &y) const {
        w.left.pack(LEFT, x.all());
        multiply(w.left, linear.w, y);
        for (int64_t r = 0; r < y.rows; r++)
            for (int64_t i = 0; i < y.columns; i++) y[r][i] += linear.b[i];
    }

    // What a sub-layer begins and ends with: y = w_in norm(x), and x += w_out heads.
    void begin(Workspace<T> &w, const Sublayer &layer, Matrix<A> &y) const {
        norm(w.x, layer.gamma.data(), layer.beta.data(), layer.eps, w.h);
        apply(w, layer.in, w.h, y);
        w.u.resize(w.x.rows, E);
    }
    void end(Workspace<T> &w, const Sublayer &layer) const {
        apply(w, layer.out, w.u, w.f);
        for (int64_t r = 0; r < w.x.rows; r++)
            for (int64_t i = 0; i < s.D; i++) w.x[r][i] += w.f[r][i];
    }
    void feed_forward(Workspace<T> &w, const Sublayer &layer) const {
        norm(w.x, layer.gamma.data(), layer.beta.data(), layer.eps, w.h);
        apply(w, layer.in, w.h, w.u);
        for (int64_t r = 0; r < w.u.rows; r++)
            for (int64_t i = 0; i < w.u.columns; i++) w.u[r][i] = std::max(w.u[r][i], A(0));
        end(w, layer);
    }

    // All heads of the query in row r: row r of u = the values of n tokens, weighted by how well their keys match.
    // keys(i): the keys of token i, followed by its values.
    template <class Keys> void attend(Workspace<T> &w, int64_t r, int64_t n, Keys keys) const {
        w.keys.resize(n);
        for (int64_t i = 0; i < n; i++) w.keys[i] = keys(i);
        w.scores.resize(s.H, n);
        const auto heads = s.Dh == 32 ? &Stepper::attend_heads<32> : s.Dh == 64 ? &Stepper::attend_heads<64>
                                                                                 : &Stepper::attend_heads<0>;
        (this->*heads)(w, w.q[r], w.u[r]);
    }
    // For heads of size SIZE; 0 is any. The compiler makes far better code for a size that it knows.
    template <int64_t SIZE> void attend_heads(Workspace<T> &w, const A *__restrict q, A *__restrict heads) const {
        constexpr int64_t AHEAD = 4;  // tokens prefetched before they are needed: they lie anywhere
        const int64_t Dh = SIZE ? SIZE : s.Dh, n = int64_t(w.keys.size());
        const auto prefetch = [&](int64_t i, int64_t from) {
            for (int64_t c = 0; i < n && c < E; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(w.keys[i] + from + c);
        };
        for (int64_t i = 0; i < AHEAD; i++) prefetch(i, 0);
        for (int64_t i = 0; i < n; i++) {
            prefetch(i + AHEAD, 0), prefetch(i, E);
            for (int64_t h = 0; h < s.H; h++) {
                A score = 0;
                for (int64_t c = h * Dh; c < (h + 1) * Dh; c++) score += q[c] * load(w.keys[i][c]);
                w.scores[h][i] = score;
            }
        }
        for (int64_t h = 0; h < s.H; h++) softmax(w.scores[h], n, 1 / std::sqrt(A(Dh)));
        std::fill_n(heads, E, A(0));
        for (int64_t i = 0; i < n; i++)
            for (int64_t h = 0; h < s.H; h++) {
                const A weight = w.scores[h][i];
                const T *value = w.keys[i] + E;
                for (int64_t c = h * Dh; c < (h + 1) * Dh; c++) heads[c] += weight * load(value[c]);
            }
    }

    void encode_group(const int64_t *tokens, const int64_t *offsets, int64_t batch, int64_t total, T *cross) const {
        Workspace<T> &w = Workspace<T>::mine();
        const int64_t first = offsets[0], count = offsets[batch] - first;
        std::vector<int64_t> position(count);
        for (int64_t b = 0; b < batch; b++)
            for (int64_t i = offsets[b]; i < offsets[b + 1]; i++) position[i - first] = i - offsets[b];
        embed(w, tokens + first, count, model.source, [&](int64_t r) { return position[r]; });
        for (int64_t l = 0; l < s.L; l++) {
            begin(w, encoder[2 * l], w.q);
            for (int64_t b = 0; b < batch; b++)
                for (int64_t h = 0; h < s.H; h++) {
                    const int64_t start = offsets[b] - first, n = offsets[b + 1] - offsets[b], column = h * s.Dh;
                    w.right.pack(RIGHT, w.q.part(start, E + column, n, s.Dh), true);
                    w.left.pack(LEFT, w.q.part(start, column, n, s.Dh));
                    multiply(w.left, w.right, w.weights);
                    for (int64_t i = 0; i < n; i++) softmax(w.weights[i], n, 1 / std::sqrt(A(s.Dh)));
                    w.right.pack(RIGHT, w.q.part(start, 2 * E + column, n, s.Dh));
                    w.left.pack(LEFT, w.weights.all());
                    multiply(w.left, w.right, w.result);
                    for (int64_t i = 0; i < n; i++) std::copy_n(w.result[i], s.Dh, w.u[start + i] + column);
                }
            end(w, encoder[2 * l]);
            feed_forward(w, encoder[2 * l + 1]);
        }
        norm(w.x, encoder_norm.gamma, encoder_norm.beta, encoder_norm.eps, w.h);
        for (int64_t l = 0; l < s.L; l++) {
            apply(w, cross_kv[l], w.h, w.kv);
            for (int64_t r = 0; r < count; r++)
                for (int64_t i = 0; i < 2 * E; i++) store(cross + ((l * total + first + r) * 2 * E + i), w.kv[r][i]);
        }
    }

    // The n best words after each row of h, and their log-probabilities. PAD if a logit is NaN or +inf.
    void choose(Workspace<T> &w, int64_t n, A *log_p, int64_t *ids) const {
        const A lowest = std::numeric_limits<A>::lowest() / 2;
        const int64_t rows = w.h.rows;
        std::fill_n(log_p, rows * n, lowest);
        std::fill_n(ids, rows * n, s.pad);
        w.top.resize(rows, 2);  // each row's highest logit so far, and the sum of e^(logit - highest)
        for (int64_t r = 0; r < rows; r++) w.top[r][0] = lowest, w.top[r][1] = 0;
        w.left.pack(LEFT, w.h.all());
        for (int64_t word = 0; word < s.V; word += WORDS) {
            const int64_t words = std::min(WORDS, s.V - word);
            multiply(w.left, output[word / WORDS], w.f);
            for (int64_t r = 0; r < rows; r++) {
                const A *__restrict logits = w.f[r];
                A top = highest(logits, words, lowest), sum = 0;
                if (top > log_p[r * n + n - 1])
                    for (int64_t i = 0; i < words; i++)
                        if (word + i != s.pad && word + i != s.bos)
                            insert(logits[i], word + i, n, log_p + r * n, ids + r * n);
                top = std::max(top, w.top[r][0]);
                for (int64_t i = 0; i < words; i++) sum += exponential(logits[i] - top);
                w.top[r][1] = w.top[r][1] * exponential(w.top[r][0] - top) + sum;
                w.top[r][0] = top;
            }
        }
        for (int64_t r = 0; r < rows; r++) {
            const A log_sum = w.top[r][0] + std::log(w.top[r][1]);
            if (!std::isfinite(log_sum)) std::fill_n(ids + r * n, n, s.pad);
            for (int64_t i = 0; i < n; i++) log_p[r * n + i] -= log_sum;
        }
    }
};

}  // namespace

#define EXPORT(T, NAME)                                                                                                \
    extern "C" void *make_##NAME(Sizes sizes, Model<computed<T>> model) try {                                          \
        return new Stepper<T>(sizes, model);                                                                           \
    } catch (const std::bad_alloc &) { return {}; }                                                                    \
    extern "C" void free_##NAME(void *stepper) { delete static_cast<Stepper<T> *>(stepper); }                          \
    extern "C" bool encode_##NAME(void *stepper, const int64_t *tokens, const int64_t *offsets, int64_t batch,         \
                                  T *cross) try {                                                                      \
        static_cast<const Stepper<T> *>(stepper)->encode(tokens, offsets, batch, cross);                               \
        return true;                                                                                                   \
    } catch (const std::bad_alloc &) { return {}; }                                                                    \
    extern "C" bool step_##NAME(void *stepper, const int64_t *tokens, int64_t rows, int64_t t, int64_t steps,          \
                                const Block<T> *blocks, const int32_t *slots, const int64_t *sources,                  \
                                const int64_t *offsets, Block<const T> cross, int64_t n, computed<T> *log_p,           \
                                int64_t *ids) try {                                                                    \
        static_cast<const Stepper<T> *>(stepper)->step(tokens, rows, t, steps, blocks, slots, sources, offsets, cross, \
                                                     n, log_p, ids);                                                   \
        return true;                                                                                                   \
    } catch (const std::bad_alloc &) { return {}; }

EXPORT(bf16, bfloat16)
EXPORT(float, float32)
EXPORT(double, float64)
