// TTT-MLP forward (dual form) on Hopper for mini-batches of 32 tokens, all warps in step.
//
// One CTA carries one (sequence, head) through all its tokens. Two warpgroups hold 128 rows of F each. As in
// `block_sm90.cuh` matrices with F as an axis are transposed, with F down the rows. An accumulator, rounded to bf16, is
// the left operand of the next matmul. The float32 weights never leave registers. W2 is also in shared memory as bf16.
//
// The steps, in order; each waits for the one before:
//     Z1 = K W1 + b1, X2 = gelu(Z1), Z2 = X2 W2 + b2, G2 = ln_l2_grad(Z2, V - K), G1 = (G2 W2^T) * gelu'(Z1)
//     Z1bar = Q W1 + b1 + P1 G1, X2bar = gelu(Z1bar), Z2bar = X2bar W2 + b2 + P2 G2, out = Q + LN(Z2bar)
//     W1 += (-u lr K)^T G1, W2 += X2^T (-u lr G2), and so the biases
// with P1 = -tril(eta * (Q K^T + 1)), P2 = -tril(eta * (X2bar X2^T + 1)), and u the scale of the update:
// s_{m-1}, or 0 for a short last mini-batch, whose gradients are stored but not applied.
// Z2 and Z2bar are sums over both halves of F.
#include "arguments_sm90.cuh"
#include "instructions_sm90.cuh"

using namespace ttt;
using namespace ttt::mlp;
using namespace kittens;

namespace {

using sm90::launder, sm90::load_u4, sm90::publish, sm90::store_u4, sm90::uniform;

constexpr int BLOCK = 64;  // rows of F in one matmul of a warpgroup
constexpr float EPS = 1e-6f;

// Keeps reads of an accumulator behind the wait for the matmul that writes it.
template <typename RT> __device__ inline void pin(RT &x) {
#pragma unroll
    for (int j = 0; j < RT::width; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            asm volatile("" : "+f"(x.tiles[0][j].data[e].x), "+f"(x.tiles[0][j].data[e].y)::"memory");
}
// Waits for the matmuls that write x
template <typename... RT> __device__ inline void wait_for(RT &...x) {
    warpgroup::mma_async_wait<0>();
    (pin(x), ...);
}

// gelu(z) = z/2 (1 + t) with t = tanh(A z + B z^3), and gelu'(z) = 1/2 (1 + t + z (1 - t^2) (A + 3B z^2))
constexpr float GELU_A = 0.7978845608028654f, GELU_B = 0.7978845608028654f * 0.044715f;
__device__ inline float tanh_approx(float x) {  // 2^-11 relative: below the rounding of X2 to bf16
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Byte offset in a tile with rows of 128 bytes. ThunderKittens swizzles the eight 16-byte pieces of a row by the row's
// number modulo 8.
__device__ inline int swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }
// Offset of a lane's row for ldmatrix and stmatrix of the leftmost 16 x 16 piece of a tile. The next piece is 32 bytes
// further.
__device__ inline int matrix_offset(int lane, int row0) { return swizzled(row0 + lane % 16, lane / 16); }

// Eight neighbouring elements of a token: one thread loads, normalises and writes them. Eight threads share a token.
struct vec8 {
    float x[8];
    template <typename Fn> __device__ void each(Fn f) {
#pragma unroll
        for (int e = 0; e < 8; ++e) f(e, x[e]);
    }
    __device__ static vec8 of(const float *p) {
        float4 low = *reinterpret_cast<const float4 *>(p), high = *reinterpret_cast<const float4 *>(p + 4);
        return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    }
    __device__ static vec8 of(uint4 packed) {  // from bfloat16
        vec8 o;
        const auto *pairs = reinterpret_cast<const bf16_2 *>(&packed);
#pragma unroll
        for (int e = 0; e < 4; ++e) reinterpret_cast<float2 *>(o.x)[e] = __bfloat1622float2(pairs[e]);
        return o;
    }
    __device__ uint4 pack() const {  // to bfloat16
        uint4 packed;
        auto *pairs = reinterpret_cast<bf16_2 *>(&packed);
#pragma unroll
        for (int e = 0; e < 4; ++e) pairs[e] = __floats2bfloat162_rn(x[2 * e], x[2 * e + 1]);
        return packed;
    }
};

// Sums over the eight threads of a token, several at once so that their shuffles overlap
template <typename... Float> __device__ inline void sum_over_token(Float &...x) {
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2) ((x += __shfl_xor_sync(0xffffffff, x, lane)), ...);
}


constexpr int B = 32, GROUPS = 2, OWN = F / BLOCK / GROUPS;  // OWN: blocks of F per warpgroup
constexpr int THREADS = GROUPS * WARPGROUP_THREADS;
static_assert(THREADS == F && THREADS == 8 * B);  // a thread per bias; eight threads per token, eight elements each

struct globals {
    const bf16 *q, *k, *v;  // [batch, T, H, D]
    bf16 *out;              // [batch, T, H, D], contiguous
    int64_t q_stride[3], k_stride[3], v_stride[3];  // in elements, of batch, T and H
    const float *lr, *token_scale;                  // [batch, T, H]; [B], no value below 0
    const float *ln_weight, *ln_bias;               // [H, D]
    const float *W1, *b1, *W2, *b2;                 // [batch, H, D, F], [batch, H, F], [batch, H, F, D], [batch, H, D]
    float *W1_out, *b1_out, *W2_out, *b2_out;       // the same shapes
    float *k_rows, *x2_rows, *g1_rows, *g2_rows;    // [batch, H, B, D or F]: rows of a short last mini-batch
    int T, H;
    bool rope;

    __device__ int pending() const { return T % B; }  // tokens of a short last mini-batch
};

struct layout {
    using token_tile = st_bf<B, D>;            // [tokens, D], or a block [tokens, 64 of F]
    using hidden_tile = st_bf<B, F>;           // [tokens, F]: its blocks one after the other
    using hidden_half = st_bf<B, OWN * BLOCK>; // the half of one warpgroup
    using weight_half = st_bf<OWN * BLOCK, D>;
    using weight_block = st_bf<BLOCK, D>;
    using coefficients = st_bf<B, B>;
    using state_rows = rt_fl<16, D>;  // a warp's rows of W1^T or of W2, of one block of F
    using token_rows = rt_fl<16, B>;
    using operand = rt_bf<16, B>;
};
using L = layout;

struct shared {
    L::weight_half w2[GROUPS];
    L::hidden_tile x2, x2bar;
    L::token_tile k, q, k_step, g2, g2_step;  // _step: times -u lr
    L::coefficients p;                        // P1, then P2; 0 above the diagonal
    uint4 k_ahead[THREADS], v_ahead[THREADS], q_ahead[THREADS];  // private to each thread
    uint4 slope[OWN][B / 16][THREADS];        // private to each thread: gelu'(Z1), in bf16
    float z2[GROUPS][B][D + 4];               // 4: padding, so that the transposing stores of a warp hit 32 banks
    float lr_ahead[B], lr[B], step[B], scale[B];  // step = -u lr
    float b1[F], b2[D], gamma[D], beta[D];
    float2 rope[B][D / 2];  // cos and sin, by position and pair of elements
};

__device__ inline float gelu(float z) {
    float half = 0.5f * z;
    return fmaf(half, tanh_approx(z * fmaf(GELU_B, z * z, GELU_A)), half);
}
__device__ inline float2 gelu_and_slope(float z) {
    float z_z = z * z, t = tanh_approx(z * fmaf(GELU_B, z_z, GELU_A)), half = 0.5f * z;
    return {fmaf(half, t, half), fmaf(fmaf(-t, t, 1.f), half * fmaf(3 * GELU_B, z_z, GELU_A), fmaf(0.5f, t, 0.5f))};
}

struct chain {
    const globals &g;
    shared &s;
    const int group = uniform(warpgroup::groupid());
    int thread = warpgroup::laneid();

    L::state_rows W1t[OWN], W2[OWN];
    L::operand g1[OWN];

    __device__ chain(const globals &g, shared &s) : g(g), s(s) {}

    // The grid is heads x sequences, so these need no registers
    __device__ int h() const { return blockIdx.x; }
    __device__ int batch() const { return blockIdx.y; }
    __device__ int head() const { return batch() * g.H + h(); }

    // This lane's row in a block (of F, or of D where D is down the rows), and its column in a 16 x 16 tile
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ int column() const { return thread % 4 * 2; }
    __device__ int feature(int n, int e) const { return (group * OWN + n) * BLOCK + row() + (e & 1) * 8; }
    // This thread's number in the block, its token, and the first of its eight elements
    __device__ int id() const { return group * WARPGROUP_THREADS + thread; }
    __device__ int token() const { return id() / 8; }
    __device__ int element() const { return id() % 8 * 8; }
    __device__ uint32_t mine(L::token_tile &tile) const { return address(tile) + swizzled(token(), id() % 8); }
    __device__ L::token_tile &block(L::hidden_tile &x, int n) const { return reinterpret_cast<L::token_tile *>(&x)[n]; }
    __device__ L::token_tile &own_block(L::hidden_tile &x, int n) const { return block(x, group * OWN + n); }
    __device__ L::hidden_half &own_half(L::hidden_tile &x) const {
        return reinterpret_cast<L::hidden_half *>(&x)[group];
    }
    __device__ L::weight_block &block(L::weight_half &w, int n) const {
        return reinterpret_cast<L::weight_block *>(&w)[n];
    }
    __device__ float update_scale(int i) const { return (i + 1) * B > g.T ? 0.f : s.scale[B - 1]; }
    // Syncs one warpgroup: no other warpgroup uses its halves of X2, X2bar and W2
    __device__ void sync_group() const {
        asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(WARPGROUP_THREADS) : "memory");
    }

    // Calls f(W1^T's pair, its offset, W2's pair, its offset) for all pairs of this lane. Offsets in global memory
    // count from the lane's first element, so they are constants: the compiler needs no address per element.
    template <typename Fn> __device__ void each_state(Fn f) {
#pragma unroll
        for (int n = 0; n < OWN; ++n)
#pragma unroll
            for (int j = 0; j < D / 16; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int down = n * BLOCK + (e & 1) * 8, across = j * 16 + (e >> 1) * 8;
                    f(W1t[n].tiles[0][j].data[e], across * F + down, W2[n].tiles[0][j].data[e], down * D + across);
                }
    }
    __device__ int64_t first_of_W1() const { return (int64_t(head()) * D + column()) * F + feature(0, 0); }
    __device__ int64_t first_of_W2() const { return (int64_t(head()) * F + feature(0, 0)) * D + column(); }
    __device__ void load_state() {
        const float *W1_in = g.W1 + first_of_W1(), *W2_in = g.W2 + first_of_W2();
        each_state([&](float2 &w1, int at1, float2 &w2, int at2) {
            w1 = {W1_in[at1], W1_in[at1 + F]};
            w2 = *reinterpret_cast<const float2 *>(W2_in + at2);
        });
        s.b1[id()] = g.b1[head() * F + id()];
    }
    __device__ void store_state() {
        float *W1_out = g.W1_out + first_of_W1(), *W2_out = g.W2_out + first_of_W2();
        each_state([&](float2 &w1, int at1, float2 &w2, int at2) {
            W1_out[at1] = w1.x;
            W1_out[at1 + F] = w1.y;
            *reinterpret_cast<float2 *>(W2_out + at2) = w2;
        });
        g.b1_out[head() * F + id()] = s.b1[id()];
        if (id() < D) g.b2_out[head() * D + id()] = s.b2[id()];
    }
    // Stores the rows of a short last mini-batch. The rows after them are 0: readers may multiply them by 0.
    __device__ void store_rows() {
#pragma unroll
        for (int n = 0; n < OWN; ++n)
#pragma unroll
            for (int j = 0; j < B / 16; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float2 g1_pair = __bfloat1622float2(g1[n].tiles[0][j].data[e]);
#pragma unroll
                    for (int one = 0; one < 2; ++one) {
                        int t = j * 16 + column() + (e >> 1) * 8 + one, f = feature(n, e);
                        int64_t at = (int64_t(head()) * B + t) * F + f;
                        float x2 = __bfloat162float(own_block(s.x2, n)[int2{t, f % BLOCK}]);
                        g.x2_rows[at] = t < g.pending() ? x2 : 0.f;
                        g.g1_rows[at] = t < g.pending() ? s.lr[t] * (one ? g1_pair.y : g1_pair.x) : 0.f;
                    }
                }
        int64_t at = (int64_t(head()) * B + token()) * D + element();
        bool valid = token() < g.pending();
        vec8 k = vec8::of(load_u4(mine(s.k))), g2 = vec8::of(load_u4(mine(s.g2)));
        k.each([&](int e, float x) { g.k_rows[at + e] = valid ? x : 0.f; });
        g2.each([&](int e, float x) { g.g2_rows[at + e] = valid ? s.lr[token()] * x : 0.f; });
    }
    __device__ void load_parameters() {
        for (int at = id(); at < B * D / 2; at += THREADS) {
            const int t = at / (D / 2), i = at % (D / 2);
            const float angle = t * exp2f(i * (-2 * 13.287712379549449f / D));  // t 10000^(-2 i / D); log2(10000)
            sincospif(angle * 0.3183098861837907f, &s.rope[t][i].y, &s.rope[t][i].x);
        }
        for (int at = id(); at < B * B / 2; at += THREADS) reinterpret_cast<uint32_t *>(&s.p)[at] = 0;
        if (id() < B) s.scale[id()] = g.token_scale[id()];
        if (id() < D) {
            s.gamma[id()] = g.ln_weight[h() * D + id()];
            s.beta[id()] = g.ln_bias[h() * D + id()];
            s.b2[id()] = g.b2[head() * D + id()];
        }
    }
    // Stores this warpgroup's half of W2 in shared memory as bf16, for its matmuls that sum over F
    __device__ void share_w2() {
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            uint32_t at = address(block(s.w2[group], n)) + matrix_offset(thread % 32, thread / 32 * 16);
#pragma unroll
            for (int j = 0; j < D / 16; ++j) {
                rt_bf<16, 16> w;
                warp::copy(w.tiles[0][0], W2[n].tiles[0][j]);
                auto &e = w.tiles[0][0].data;
                move<bf16_2>::stsm4(at ^ (j * 32), e[0], e[1], e[2], e[3]);
            }
        }
    }

    __device__ void copy_ahead(uint4 &to, const bf16 *x, const int64_t (&stride)[3], int t) {
        const bf16 *from = x + batch() * stride[0] + min(t, g.T - 1) * stride[1] + h() * stride[2] + element();
        ttt::copy_ahead(to, from, t < g.T);
    }
    // Starts copies of this thread's parts of mini-batch i to shared memory; tokens beyond the end are 0
    __device__ void load_ahead(int i) {
        int t = i * B + token();
        copy_ahead(s.k_ahead[id()], g.k, g.k_stride, t);
        copy_ahead(s.v_ahead[id()], g.v, g.v_stride, t);
        copy_ahead(s.q_ahead[id()], g.q, g.q_stride, t);
        if (element() == 0) {
            const float *lr = g.lr + (int64_t(batch()) * g.T + min(t, g.T - 1)) * g.H + h();
            ttt::copy_ahead(s.lr_ahead[token()], lr, t < g.T);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    // Applies RoPE for position token() to eight elements
    __device__ uint4 rotated(uint4 x) {
        if (!g.rope) return x;
        vec8 o = vec8::of(x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float2 rotation = s.rope[token()][element() / 2 + e];
            float even = o.x[2 * e], odd = o.x[2 * e + 1];
            o.x[2 * e] = even * rotation.x - odd * rotation.y;
            o.x[2 * e + 1] = odd * rotation.x + even * rotation.y;
        }
        return o.pack();
    }
    // Stores K, Q, lr and -u lr K of mini-batch i in shared memory
    __device__ void share_tokens(int i) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();  // one thread copied lr for eight
        int t = token();
        uint4 k = rotated(load_u4(address(s.k_ahead[id()])));
        store_u4(mine(s.k), k);
        store_u4(mine(s.q), rotated(load_u4(address(s.q_ahead[id()]))));
        vec8 scaled = vec8::of(k);
        float lr = s.lr_ahead[t], step = -update_scale(i) * lr;
        scaled.each([&](int, float &x) { x *= step; });
        store_u4(mine(s.k_step), scaled.pack());
        if (element() == 0) {
            s.lr[t] = lr;
            s.step[t] = step;
        }
    }

    // Z^T = b1 + W1^T X^T, for the rows of block n of F
    __device__ void project(L::token_rows &z, L::token_tile &x, int n) {
        float b1[2] = {s.b1[feature(n, 0)], s.b1[feature(n, 1)]};
#pragma unroll
        for (int j = 0; j < B / 16; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) z.tiles[0][j].data[e] = {b1[e & 1], b1[e & 1]};
        rt_bf<16, D> w1;
        warp::copy(w1, W1t[n]);
        warpgroup::mma_ABt(z, w1, x);
        wait_for(z);
    }
    // Stores x [F, tokens] as [tokens, F] in shared memory, K-major for wgmma
    __device__ void store_transposed(L::token_tile &tile, L::operand &x) {
        int lane = thread % 32;
#pragma unroll
        for (int j = 0; j < B / 16; ++j) {
            int t = j * 16 + (lane & 7) + ((lane >> 4) << 3);
            auto &e = x.tiles[0][j].data;
            const uint32_t to = address(tile) + swizzled(t, thread / 32 * 2 + ((lane >> 3) & 1));
            move<bf16_2>::stsm4t(to, e[0], e[1], e[2], e[3]);
        }
    }
    // X2 = gelu(Z1), and the slope gelu'(Z1) for G1
    __device__ void activate_keys() {
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            L::token_rows z;
            project(z, s.k, n);
            L::operand x2;
#pragma unroll
            for (int j = 0; j < B / 16; ++j) {
                alignas(16) bf16_2 slope[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float2 a = gelu_and_slope(z.tiles[0][j].data[e].x), c = gelu_and_slope(z.tiles[0][j].data[e].y);
                    x2.tiles[0][j].data[e] = __floats2bfloat162_rn(a.x, c.x);
                    slope[e] = __floats2bfloat162_rn(a.y, c.y);
                }
                store_u4(address(s.slope[n][j][id()]), *reinterpret_cast<uint4 *>(slope));
            }
            store_transposed(own_block(s.x2, n), x2);
        }
    }
    // X2bar = gelu(Z1bar), Z1bar = Q W1 + b1 + P1 G1
    __device__ void activate_queries() {
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            L::token_rows z;
            project(z, s.q, n);
            warpgroup::mma_ABt(z, g1[n], s.p);
            wait_for(z);
            L::operand x2bar;
#pragma unroll
            for (int j = 0; j < B / 16; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float2 x = z.tiles[0][j].data[e];
                    x2bar.tiles[0][j].data[e] = __floats2bfloat162_rn(gelu(x.x), gelu(x.y));
                }
            store_transposed(own_block(s.x2bar, n), x2bar);
        }
    }
    // G1^T = (W2 G2^T) * gelu'(Z1)^T
    __device__ void backward() {
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            L::token_rows grad;
            warpgroup::mm_ABt(grad, block(s.w2[group], n), s.g2);
            wait_for(grad);
#pragma unroll
            for (int j = 0; j < B / 16; ++j) {
                uint4 packed = load_u4(address(s.slope[n][j][id()]));
                const bf16_2 *slope = reinterpret_cast<const bf16_2 *>(&packed);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float2 x = grad.tiles[0][j].data[e], d = __bfloat1622float2(slope[e]);
                    g1[n].tiles[0][j].data[e] = __floats2bfloat162_rn(x.x * d.x, x.y * d.y);
                }
            }
        }
    }
    // W1^T += G1^T (-u lr K), W2 += X2^T (-u lr G2), b1 += (-u lr) G1
    __device__ void update() {
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            warpgroup::mma_AB(W1t[n], g1[n], s.k_step);
            warpgroup::mma_AtB(W2[n], own_block(s.x2, n), s.g2_step);
        }
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            float db1[2] = {};
#pragma unroll
            for (int j = 0; j < B / 16; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float2 x = __bfloat1622float2(g1[n].tiles[0][j].data[e]);
                    float2 step = *reinterpret_cast<float2 *>(&s.step[j * 16 + column() + (e >> 1) * 8]);
                    db1[e & 1] = fmaf(x.x, step.x, fmaf(x.y, step.y, db1[e & 1]));
                }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = row_sum(db1[half]);
                __syncwarp();
                if (column() == 0) s.b1[feature(n, half)] += sum;  // next read after a barrier
            }
        }
        wait_for(W1t[0], W1t[1], W2[0], W2[1]);
    }
    __device__ void update_b2() {
        if (id() >= D) return;
        float sum = 0;
#pragma unroll
        for (int t = 0; t < B; ++t) sum += __bfloat162float(s.g2_step[int2{t, id()}]);
        s.b2[id()] += sum;
    }

    // P = -tril(eta * (X Y^T + 1)). Three of its four 16 x 16 tiles are not 0; one warp computes each.
    // `add_scores(tile, row of X, row of Y)` adds that tile of X Y^T.
    template <typename Scores> __device__ void share_coefficients(Scores add_scores) {
        static_assert(B == 32);
        int tile = id() / 32, lane = thread % 32, row0 = tile > 0 ? 16 : 0, column0 = tile > 1 ? 16 : 0;
        if (tile > 2) return;
        rt_fl<16, 16> p;
        warp::zero(p);
        add_scores(p, row0, column0);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            int t = row0 + lane / 4 + (e & 1) * 8, j = column0 + lane % 4 * 2 + (e >> 1) * 8;
            float2 x = p.tiles[0][0].data[e], lr = *reinterpret_cast<float2 *>(&s.lr[j]);
            float first = j <= t ? -s.scale[t] * lr.x : 0.f, second = j + 1 <= t ? -s.scale[t] * lr.y : 0.f;
            bf16_2 pair = __floats2bfloat162_rn(first * (x.x + 1), second * (x.y + 1));
            move<bf16_2>::sts(s.p.idx(address(s.p), {t, j}), pair);
        }
    }
    // p += x y^T, 16 rows of each, over 64 columns
    __device__ void add_matmul(rt_fl<16, 16> &p, L::token_tile &x, L::token_tile &y, int x_row, int y_row) {
        uint32_t rows = address(x) + matrix_offset(thread % 32, x_row);
        uint32_t columns = address(y) + matrix_offset(thread % 32, y_row);
#pragma unroll
        for (int d = 0; d < BLOCK / 16; ++d) {
            rt_bf<16, 16> a, b;
            auto &left = a.tiles[0][0].data, &right = b.tiles[0][0].data;
            move<bf16_2>::ldsm4(left[0], left[1], left[2], left[3], rows ^ (d * 32));
            move<bf16_2>::ldsm4(right[0], right[1], right[2], right[3], columns ^ (d * 32));
            warp::mma_ABt(p, a, b, p);
        }
    }
    __device__ void share_p1() {
        share_coefficients([&](rt_fl<16, 16> &p, int x, int y) { add_matmul(p, s.q, s.k, x, y); });
    }
    __device__ void share_p2() {
        share_coefficients([&](rt_fl<16, 16> &p, int x, int y) {
#pragma unroll 1  // saves registers
            for (int n = 0; n < F / BLOCK; ++n) add_matmul(p, block(s.x2bar, n), block(s.x2, n), x, y);
        });
    }

    // Stores this warpgroup's part of Z2 or Z2bar, transposed from rows of D to rows of tokens
    __device__ void share_z2(L::token_rows &z) {
#pragma unroll
        for (int j = 0; j < B / 16; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int t = j * 16 + column() + (e >> 1) * 8, d = row() + (e & 1) * 8;
                s.z2[group][t][d] = z.tiles[0][j].data[e].x;
                s.z2[group][t + 1][d] = z.tiles[0][j].data[e].y;
            }
    }
    // This thread's elements of Z2 or Z2bar: b2 and the parts of both warpgroups
    __device__ vec8 gather_z2() {
        vec8 z = vec8::of(&s.b2[element()]);
#pragma unroll
        for (int part = 0; part < GROUPS; ++part) {
            vec8 other = vec8::of(&s.z2[part][token()][element()]);
            z.each([&](int e, float &x) { x += other.x[e]; });
        }
        return z;
    }
    // z -> xhat; returns 1 / std
    __device__ float normalise(vec8 &z) {
        float sum = 0, squares = 0;
        z.each([&](int, float x) { sum += x; });
        sum_over_token(sum);
        z.each([&](int, float &x) {
            x -= sum * (1.f / D);
            squares = fmaf(x, x, squares);
        });
        sum_over_token(squares);
        float rstd = rsqrtf(fmaf(squares, 1.f / D, EPS));
        z.each([&](int, float &x) { x *= rstd; });
        return rstd;
    }
    // G2 = (g - mean(g) - xhat mean(g xhat)) / std with g = gamma (gamma xhat + beta - (V - K))
    __device__ void share_g2() {
        vec8 z = gather_z2(), gamma = vec8::of(&s.gamma[element()]), target = vec8::of(&s.beta[element()]);
        vec8 k = vec8::of(load_u4(mine(s.k)));
        vec8 v = vec8::of(load_u4(address(s.v_ahead[id()])));
        float rstd = normalise(z), sum = 0, dot = 0;
        vec8 g;
        g.each([&](int e, float &x) {
            x = gamma.x[e] * (fmaf(gamma.x[e], z.x[e], target.x[e]) - (v.x[e] - k.x[e]));
            sum += x;
            dot = fmaf(x, z.x[e], dot);
        });
        sum_over_token(sum, dot);
        g.each([&](int e, float &x) { x = (x - sum * (1.f / D) - z.x[e] * (dot * (1.f / D))) * rstd; });
        store_u4(mine(s.g2), g.pack());
        float step = s.step[token()];
        g.each([&](int, float &x) { x *= step; });
        store_u4(mine(s.g2_step), g.pack());
    }
    // out = Q + LN(Z2bar)
    __device__ void write_output(int i) {
        vec8 z = gather_z2(), gamma = vec8::of(&s.gamma[element()]), out = vec8::of(&s.beta[element()]);
        vec8 q = vec8::of(load_u4(mine(s.q)));
        normalise(z);
        out.each([&](int e, float &x) { x = fmaf(z.x[e], gamma.x[e], x + q.x[e]); });
        int t = i * B + token();
        if (t < g.T)
            *reinterpret_cast<uint4 *>(g.out + ((int64_t(batch()) * g.T + t) * g.H + h()) * D + element()) = out.pack();
    }

    // Syncs all warps. Addresses that depend on the thread's number are recomputed afterwards and occupy no registers.
    __device__ void sync() {
        __syncthreads();
        launder(thread);
    }
    __device__ void run() {
        load_ahead(0);
        load_parameters();
        load_state();
        share_w2();
        sync();
        for (int i = 0; i * B < g.T; ++i) {
            share_tokens(i);
            publish();
            sync();
            activate_keys();
            publish();
            sync_group();
            L::token_rows z;
            warpgroup::mm_AtBt(z, s.w2[group], own_half(s.x2));
            share_p1();
            wait_for(z);
            share_z2(z);
            sync();
            share_g2();
            publish();
            sync();
            load_ahead(i + 1);
            backward();
            activate_queries();
            update();
            publish();
            sync();
            warpgroup::mm_AtBt(z, s.w2[group], own_half(s.x2bar));
            share_p2();
            publish();
            wait_for(z);
            sync();
            if (group == 0) {  // Z2bar += P2 G2
                warpgroup::mma_AtBt(z, s.g2, s.p);
                wait_for(z);
            }
            share_z2(z);
            share_w2();
            sync();
            write_output(i);
            sync();
            update_b2();
        }
        sync();
        store_state();
        store_rows();
    }
};

__global__ __launch_bounds__(THREADS, 1) void forward_32_kernel(const __grid_constant__ globals g) {
    extern __shared__ __align__(1024) uint8_t memory[];
    chain(g, *reinterpret_cast<shared *>(memory)).run();
}

void launch(const tensors &x, bool rope, cudaStream_t stream) {
    globals g{.rope = rope};
    set_arguments(g, x, B);
    set_tokens(g.v, g.v_stride, "v", x.v, {x.q.size(0), g.T, g.H, D});
    launch_kernel(forward_32_kernel, dim3(g.H, x.q.size(0)), THREADS, sizeof(shared), stream, g);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, ttt::mlp::forward<launch>);
