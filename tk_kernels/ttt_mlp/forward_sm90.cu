// TTT-MLP forward (dual form) on Hopper: one CTA carries one (sequence, head) through all its tokens.
//
// Notation of the layer: m = 16 tokens a mini-batch, D = 64, F = 256; i counts mini-batches, j and t tokens inside one.
// Everything with F as an axis is kept transposed, F down the rows: then the float32 accumulators of a product, rounded to
// bf16, are the left operand of the next, and the float32 state never leaves the registers of its warps.
//
//   state warps (two warpgroups, 128 rows of F each): W1^T and W2 in registers, W2 also as bf16 in shared memory.
//       X2 = gelu(Z1), their rows' part of Z2 = X2 W2, G1 = (G2 W2^T) * gelu'(Z1), both updates, and, stacked into one
//       product, Z1bar of these queries and Z1 of the next keys.
//   loss warps (one warpgroup), on the critical chain too: Z2 from its parts and b2, its gradient G2; they load all tokens.
//   output warps (one warpgroup): P1, products of tokens with tokens, for the state warps; and, one mini-batch behind,
//       P2, Z2bar and the outputs.
//
// Two exact rearrangements take products off the chain from one mini-batch to the next. sigma = s_{m-1}; u, the scale
// of the update, is sigma, or 0 for a short last mini-batch, whose gradients are kept and not applied:
//   keys:     K_{i+1} W1_{i+1} + b1_{i+1} = K_{i+1} W1_i + b1_i - (u lr * (K_{i+1} K_i^T + 1)) G1_i
//   queries:  X2bar_i W2_i + b2_i - tril(eta * (X2bar_i X2_i^T + 1)) G2_i
//                 = X2bar_i W2_{i+1} + b2_{i+1} + ((u lr - tril(eta)) * (X2bar_i X2_i^T + 1)) G2_i
//
// Gradients are kept as -sigma lr G, so that updates are plain products, and coefficients need the ratios s_t / sigma
// alone. X2 = gelu(z) = z/2 (1 + tanh) is kept doubled, the state of W2 halved, G2 quartered (X2_SCALE, W2_SCALE, G2_SCALE):
// powers of two, so exact, and they save multiplications.
#include "forward_sm90.cuh"

using namespace ttt;
using namespace ttt::mlp;
using namespace kittens;

namespace {

constexpr int B = 16;

// How much larger than in ttt_layer.md the kernel keeps a tensor. Powers of two change no rounding.
constexpr float X2_SCALE = 2.f;     // 2 gelu(z) = z + z tanh(..) takes one fma
constexpr float W2_SCALE = 0.5f;    // so that X2 W2 is at scale 1
constexpr float G2_SCALE = 0.25f;   // so that X2^T G2 is at the scale of W2
constexpr float SLOPE_SCALE = 8.f;  // of gelu', so that (G2 W2^T) * gelu' is at scale 1
static_assert(X2_SCALE * W2_SCALE == 1.f && X2_SCALE * G2_SCALE == W2_SCALE && G2_SCALE * W2_SCALE * SLOPE_SCALE == 1.f);

// A row of D floats has padding between its halves. `place` puts 4 of 8 neighbours into each half: eight threads that
// read eight neighbours each, 16 bytes at a time, then hit 32 banks, and so do the transposing stores of a warp.
constexpr int HALF_ROW = D / 2 + 4, ROW = HALF_ROW + D / 2;
__device__ inline int place(int d) { return d % 8 / 4 * HALF_ROW + d / 8 * 4 + d % 4; }
__device__ inline vec8 vec8_of(const float (&row)[ROW], unsigned thread) {  // from d = thread % 8 * 8 on
    const float4 *at = reinterpret_cast<const float4 *>(row) + thread % 8;
    float4 low = at[0], high = at[HALF_ROW / 4];
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

struct layout {
    static constexpr int STATE_GROUPS = 2, BLOCKS_A_GROUP = F / BLOCK / STATE_GROUPS;
    static constexpr int THREADS = (STATE_GROUPS + 2) * WARPGROUP_THREADS;
    // Registers of a thread of each of the four warpgroups; they add up to 512
    static constexpr int STATE_REGISTERS = 208, LOSS_REGISTERS = 48, OUTPUT_REGISTERS = 48;

    using kq_tile = st_bf<2 * B, D>;  // queries of one mini-batch over the keys of the next
    using token_tile = st_bf<B, D>;   // [tokens, D], or a block [tokens, 64 of F]
    // Operands of products that sum over F: whole, the half of one warpgroup of state warps, a block of 64 of F.
    // Halves and blocks are contiguous.
    using weights = st_bf<F, D>;
    using half_weights = st_bf<F / STATE_GROUPS, D>;
    using weight_block = st_bf<BLOCK, D>;
    using hidden_tile = st_bf<B, F>;
    using half_hidden = st_bf<B, F / STATE_GROUPS>;

    using state_rows = rt_fl<16, D>;   // a warp's rows of W1^T or of W2, of one block of F
    using z1_rows = rt_fl<16, 2 * B>;  // a warp's rows of Z1^T: columns of queries, then of keys
    using token_rows = rt_fl<16, B>;   // a warp's rows, of a block of F or of D
    using operand = rt_bf<16, B>;
};
using L = layout;

struct globals : arguments {
    __device__ int mini_batches() const { return (T + B - 1) / B; }
    __device__ int pending() const { return T % B; }  // tokens of a short last mini-batch
};

// Buffers are indexed by mini-batch modulo their number, a power of two that is enough for the slowest reader.
struct shared {
    L::weights w2[2];                // times W2_SCALE
    L::hidden_tile x2[4], x2bar[2];  // times X2_SCALE
    L::kq_tile kq[4];                // [i % 4]: Q_{i-1} over K_i
    L::token_tile g2[4];             // -sigma lr G2, times G2_SCALE
    L::token_tile zero;              // replaces a gradient that is not applied
    st_bf<2 * B, B> p1[2];           // coefficients of G1_i in Z1bar_i and in Z1_{i+1}
    st_bf<B, B> p2[F / BLOCK];       // coefficients of G2_i in Z2bar_i: one summand per block of F
    uint4 k_ahead[WARPGROUP_THREADS], v_ahead[WARPGROUP_THREADS], q_ahead[WARPGROUP_THREADS];  // private to each thread
    float z2[L::STATE_GROUPS][B][ROW], z2bar[B][ROW];
    float ratio[B];                                                  // s_t / sigma
    float gamma[ROW], beta[ROW], gamma_gamma[ROW], gamma_beta[ROW];  // of the LayerNorm, and their products
    float b2[4][ROW];
    float sum_c[WARPGROUP_THREADS];  // private to each thread
    float2 rope[B][D / 2];           // cos, sin
    float sigma;
    // Indexed by i % 2, as those who arrive may be a mini-batch ahead of those who wait. Every thread of the warps
    // named first arrives. Mbarriers, because racecheck does not follow named barriers (see findings/).
    semaphore tokens_ready[2];  // loss > state and output: Q_i, K_{i+2} and b2_i
    semaphore g2_ready[2];      // output and loss > state: P1_i and G2_i, z2 has been read, and output i - 2 is written
};

// Named barriers. "a > b": warps a arrive and continue, warps b wait.
enum {
    START = 1,     // loss > state: constants and the first keys
    OUTPUT_START,  // loss > output: the same
    Z2_READY,      // state > loss: both parts of Z2_i
    X2BAR_READY,   // and the next, used alternately; state > output: X2bar_{i-1} and W2_i
    LOSS = X2BAR_READY + 2,  // the loss warps among themselves
    OUTPUT,        // the output warps among themselves
    STATE,         // and STATE + 1: each warpgroup of state warps among itself
};
// WARPGROUPS: the number of warpgroups that arrive or wait
template <int WARPGROUPS> __device__ inline void arrive(int id) {
    group<4 * WARPGROUPS>::arrive(barrier<4 * WARPGROUPS>(id));
}
template <int WARPGROUPS> __device__ inline void await(int id) {
    group<4 * WARPGROUPS>::arrive_and_wait(barrier<4 * WARPGROUPS>(id));
}

__device__ inline L::token_tile &keys_of(L::kq_tile &kq) { return reinterpret_cast<L::token_tile *>(&kq)[1]; }
__device__ inline L::weight_block &block(L::weights &w, int n) { return reinterpret_cast<L::weight_block *>(&w)[n]; }
__device__ inline L::token_tile &block(L::hidden_tile &x, int n) { return reinterpret_cast<L::token_tile *>(&x)[n]; }

// ThunderKittens' own fence before a product also fences shared memory; here `publish` does that where it is needed.
template <typename... RT> __device__ inline void begin(RT &...x) {
    (pin(x), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// d = ADD d + a b, in flight
template <int ADD = 1, typename RT, typename A, typename B> __device__ inline void mma_AB(RT &d, A &a, B &b) {
    warpgroup::mma_AB<RT, A, B, 0, ADD>(d, a, b);
}
template <int ADD = 1, typename RT, typename A, typename B> __device__ inline void mma_ABt(RT &d, A &a, B &b) {
    warpgroup::mma_ABt<RT, A, B, 0, ADD>(d, a, b);
}
template <int ADD = 1, typename RT, typename A, typename B> __device__ inline void mma_AtB(RT &d, A &a, B &b) {
    warpgroup::mma_AtB<RT, A, B, 0, ADD>(d, a, b);
}
template <int ADD = 1, typename RT, typename A, typename B> __device__ inline void mma_AtBt(RT &d, A &a, B &b) {
    warpgroup::mma_AtBt<RT, A, B, 0, ADD>(d, a, b);
}

// t of X2_SCALE gelu(z) = z + z t: t = tanh(A z + B z^3)
__device__ inline float gelu_tanh(float z) { return tanh_approx(z * fmaf(GELU_B, z * z, GELU_A)); }
// gelu'(z) = 1/2 (1 + t + z (1 - t^2) (A + 3B z^2)) of two elements, times SLOPE_SCALE. If z is finite, 1 - t^2 is 0 long
// before z^2 overflows.
__device__ inline half2 gelu_slope(half2 z, half2 t) {
    constexpr float HALF = SLOPE_SCALE / 2;
    const half2 half = __float2half2_rn(HALF), a = __float2half2_rn(HALF * GELU_A), b = __float2half2_rn(3 * HALF * GELU_B);
    half2 first = __hmul2(__hfma2(__hneg2(t), t, __float2half2_rn(1.f)), z), third = __hmul2(__hmul2(first, z), z);
    return __hfma2(b, third, __hfma2(a, first, __hfma2(half, t, half)));
}
__device__ inline half2 finite_half2(float2 x) {
    uint32_t y;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x.y), "f"(x.x));
    return *reinterpret_cast<half2 *>(&y);
}

// A branch that is never taken: ptxas moves nothing past it
__device__ inline void never_taken_branch(int count) {
    if (count < 0) asm volatile("trap;");
}

struct state_warps {
    L::state_rows W1t[L::BLOCKS_A_GROUP], W2[L::BLOCKS_A_GROUP];
    L::z1_rows z1[L::BLOCKS_A_GROUP];
    L::operand g1[L::BLOCKS_A_GROUP];
    half2 t[L::BLOCKS_A_GROUP][4];   // gelu_tanh(Z1)
    half2 slope[L::BLOCKS_A_GROUP][4];  // gelu'(Z1) of keys, times SLOPE_SCALE
    float b1[L::BLOCKS_A_GROUP][2];  // this lane's summand for its rows: four lanes add up to b1
    int group = uniform(warpgroup::groupid()), block0 = group * L::BLOCKS_A_GROUP;
    unsigned thread = warpgroup::laneid();

    // This lane's row of F in a block, and its (even) column of a 16 x 16 tile
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ int column() const { return thread % 4 * 2; }
    __device__ int feature(int n, int e) const { return (block0 + n) * BLOCK + row() + (e & 1) * 8; }

    // Calls f(feature, d, W1^T's pair at d and d + 1, W2's pair) for all that this lane holds
    template <typename Fn> __device__ void each_state(Fn f) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int j = 0; j < D / 16; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    f(feature(n, e), j * 16 + column() + (e >> 1) * 8, W1t[n].tiles[0][j].data[e],
                      W2[n].tiles[0][j].data[e]);
    }

    __device__ void load(const globals &g, int64_t head) {
        const float *W1 = g.W1 + head * D * F, *W2 = g.W2 + head * F * D;
        each_state([&](int f, int d, float2 &w1, float2 &w2) {
            w1 = {W1[d * F + f], W1[(d + 1) * F + f]};
            float2 w = *reinterpret_cast<const float2 *>(W2 + f * D + d);
            w2 = {W2_SCALE * w.x, W2_SCALE * w.y};
        });
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) b1[n][half] = column() == 0 ? g.b1[head * F + feature(n, half)] : 0.f;
    }
    __device__ void store(const globals &g, int64_t head) {
        float *W1 = g.W1_out + head * D * F, *W2 = g.W2_out + head * F * D;
        each_state([&](int f, int d, float2 &w1, float2 &w2) {
            W1[d * F + f] = w1.x, W1[(d + 1) * F + f] = w1.y;
            *reinterpret_cast<float2 *>(W2 + f * D + d) = {w2.x / W2_SCALE, w2.y / W2_SCALE};
        });
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = row_sum(b1[n][half]);
                if (column() == 0) g.b1_out[head * F + feature(n, half)] = sum;
            }
    }
    // The rows of X2 and lr G1 of a short last mini-batch; 0 beyond them, as readers of the state may multiply them by 0
    __device__ void store_rows(const globals &g, shared &s, int64_t head, int last) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int one = 0; one < 2; ++one) {
                    int token = column() + (e >> 1) * 8 + one, f = feature(n, e);
                    bool valid = token < g.pending();
                    int64_t at = (head * B + token) * F + f;
                    bf16 g1_value = one ? g1[n].tiles[0][0].data[e].y : g1[n].tiles[0][0].data[e].x;
                    g.x2_rows[at] =
                        valid ? 1 / X2_SCALE * __bfloat162float(block(s.x2[last % 4], block0 + n)[int2{token, f % BLOCK}]) : 0.f;
                    g.g1_rows[at] = valid ? __bfloat162float(g1_value) / -s.sigma : 0.f;
                }
    }

    // A block of W2 for the products that sum over F or D: Z2, G1, and the output warps' Z2bar
    __device__ void share_w2(shared &s, unsigned i, int n) {
        uint32_t at = address(block(s.w2[i % 2], block0 + n)) + matrix_offset(thread % 32, thread / 32 * 16);
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
            L::operand w;
            warp::copy(w.tiles[0][0], W2[n].tiles[0][j]);
            auto &e = w.tiles[0][0].data;
            move<bf16_2>::stsm4(at ^ (j * 32), e[0], e[1], e[2], e[3]);
        }
    }

    // Z1^T = b1 + W1^T [Q_{i-1}; K_i]^T of a block, in flight; w1 is its operand until the wait
    __device__ void project(shared &s, unsigned i, int n, rt_bf<16, D> &w1) {
        float whole[2] = {row_sum(b1[n][0]), row_sum(b1[n][1])};
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) z1[n].tiles[0][j].data[e] = {whole[e & 1], whole[e & 1]};
        warp::copy(w1, W1t[n]);
        begin(z1[n]);
        mma_ABt(z1[n], w1, s.kq[i % 4]);
    }

    // Rows of F down a warp's registers -> [tokens, F] in shared memory, K-major for wgmma
    __device__ void store_transposed(L::token_tile &tile, L::operand &x) {
        unsigned lane = thread % 32, token = (lane & 7) + ((lane >> 4) << 3);
        uint32_t at = address(tile) + swizzled(token, thread / 32 * 2 + ((lane >> 3) & 1));
        auto &e = x.tiles[0][0].data;
        move<bf16_2>::stsm4t(at, e[0], e[1], e[2], e[3]);
    }

    // X2 = gelu(Z1), of keys
    __device__ void activate_keys(shared &s, unsigned i) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
            L::operand x2;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 z = z1[n].tiles[0][1].data[e], y = {gelu_tanh(z.x), gelu_tanh(z.y)};
                x2.tiles[0][0].data[e] = __floats2bfloat162_rn(fmaf(z.x, y.x, z.x), fmaf(z.y, y.y, z.y));
                t[n][e] = __floats2half2_rn(y.x, y.y);
            }
            store_transposed(block(s.x2[i % 4], block0 + n), x2);
        }
        publish();
    }
    // gelu'(Z1), at a time when nothing waits for it
    __device__ void compute_slopes() {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                slope[n][e] = gelu_slope(finite_half2(z1[n].tiles[0][1].data[e]), t[n][e]);
            }
        }
    }
    // X2bar = gelu(Z1bar) of a block
    __device__ void activate_queries(shared &s, unsigned i, int n) {
        L::operand x2bar;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float2 z = z1[n].tiles[0][0].data[e];
            float2 y = {fmaf(z.x, gelu_tanh(z.x), z.x), fmaf(z.y, gelu_tanh(z.y), z.y)};
            x2bar.tiles[0][0].data[e] = __floats2bfloat162_rn(y.x, y.y);
        }
        store_transposed(block(s.x2bar[i % 2], block0 + n), x2bar);
    }

    // This warpgroup's part of Z2^T = W2^T X2^T, for the loss warps; the slopes are computed meanwhile
    __device__ void share_z2(shared &s, unsigned i) {
        L::token_rows z;
        asm volatile("bar.sync %0, %1;" ::"r"(STATE + group), "n"(WARPGROUP_THREADS) : "memory");
        begin(z);
        mma_AtBt<0>(z, reinterpret_cast<L::half_weights *>(&s.w2[i % 2])[group],
                    reinterpret_cast<L::half_hidden *>(&s.x2[i % 4])[group]);
        compute_slopes();
        wait_for<0>(z, W1t[0], W1t[1]);  // W1^T: begun by learn
        int d = place(row()), token = column();  // row() + 8 is 4 further
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            s.z2[group][token + (e >> 1) * 8][d + (e & 1) * 4] = z.tiles[0][0].data[e].x;
            s.z2[group][token + (e >> 1) * 8 + 1][d + (e & 1) * 4] = z.tiles[0][0].data[e].y;
        }
    }

    // G1^T = (W2 G2^T) * gelu'(Z1)^T and everything else that needs G2; G1 is kept as -sigma lr G1. The update of W1^T is
    // left in flight. The numbers of products still pending at each wait are those of two blocks.
    __device__ void learn(shared &s, unsigned i, bool applied) {
        static_assert(L::BLOCKS_A_GROUP == 2);
        L::token_rows grad[2];
        begin(grad[0], grad[1], W2[0], W2[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_ABt<0>(grad[n], block(s.w2[i % 2], block0 + n), s.g2[i % 4]);
        // W2 += X2^T (-sigma lr G2), in their scales
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_AtB(W2[n], block(s.x2[i % 4], block0 + n), applied ? s.g2[i % 4] : s.zero);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            wait_for<3>(grad[n]);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 x = grad[n].tiles[0][0].data[e], d = __half22float2(slope[n][e]);
                x.x *= d.x, x.y *= d.y;
                g1[n].tiles[0][0].data[e] = __floats2bfloat162_rn(x.x, x.y);
                if (applied) b1[n][e & 1] += x.x + x.y;
            }
            // [Z1bar_i; Z1_{i+1}]^T += G1^T P1^T
            begin(z1[n]);
            mma_ABt(z1[n], g1[n], s.p1[i % 2]);
        }
        // W1^T += G1^T K
        begin(W1t[0], W1t[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_AB(W1t[n], g1[n], applied ? keys_of(s.kq[i % 4]) : s.zero);
        wait_for<4>(W2[0], W2[1]);
        share_w2(s, i + 1, 0);
        wait_for<2>(z1[0], z1[1]);
        share_w2(s, i + 1, 1);
    }

    __device__ void run(const globals &g, shared &s, int head) {
        int last = g.mini_batches() - 1;
        load(g, head);
        share_w2(s, 0, 0);
        share_w2(s, 0, 1);
        publish();
        await<3>(START);
        rt_bf<16, D> w1;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            project(s, 0, n, w1);
            wait_for<0>(z1[n]);
        }
        for (int i = 0; i <= last; ++i) {
            launder(thread);
            activate_keys(s, i);
            share_z2(s, i);
            arrive<3>(Z2_READY);
            never_taken_branch(g.H);
            activate_queries(s, i - 1, 0);
            wait(s.tokens_ready[i % 2], i / 2 % 2);
            project(s, i + 1, 0, w1);
            activate_queries(s, i - 1, 1);
            publish();
            arrive<3>(X2BAR_READY + i % 2);
            wait_for<0>(z1[0]);
            project(s, i + 1, 1, w1);
            wait_for<0>(z1[1]);
            wait(s.g2_ready[i % 2], i / 2 % 2);
            learn(s, i, i < last || !g.pending());
        }
        launder(thread);
        wait_for<0>(W1t[0], W1t[1]);
        activate_queries(s, last, 0);
        activate_queries(s, last, 1);
        publish();
        arrive<3>(X2BAR_READY + (last + 1) % 2);
        store(g, head);
        store_rows(g, s, head, last);
    }
};

// What the loss warps and the output warps have in common: a thread has eight elements of one token.
struct token_warps {
    static constexpr uint32_t LOWER = B * 128;  // bytes from the upper to the lower half of a tile of queries over keys
    const globals &g;
    shared &s;
    int head, batch, h, mini_batches;
    unsigned thread = warpgroup::laneid();

    __device__ token_warps(const globals &g, shared &s, int head)
        : g(g), s(s), head(head), batch(head / g.H), h(head % g.H), mini_batches(g.mini_batches()) {}

    __device__ unsigned token() const { return thread / 8; }
    __device__ unsigned column() const { return thread % 8 * 8; }
    __device__ unsigned lane() const { return thread % 32; }
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }  // of D, in an accumulator with D down its rows
    // This thread's elements of a tile
    template <typename Tile> __device__ uint32_t mine(Tile &tile) const {
        return address(tile) + swizzled(token(), thread % 8);
    }
    // Is the gradient of mini-batch i added to the state?
    __device__ bool applied(unsigned i) const { return int(i) < mini_batches - 1 || !g.pending(); }

    // Start copying this thread's part of mini-batch i to shared memory; tokens beyond the end are 0
    __device__ void copy_ahead(uint4 &to, const bf16 *x, const int64_t (&stride)[3], int i) {
        int t = i * B + token();
        const bf16 *from = x + batch * stride[0] + min(t, g.T - 1) * stride[1] + h * stride[2] + column();
        ttt::copy_ahead(to, from, t < g.T);
    }
    __device__ static void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    __device__ static void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

    // Rotated by RoPE for position token()
    __device__ uint4 rotated(uint4 x) {
        return ttt::mlp::rotated(x, g.rope, [&](int e) { return s.rope[token()][column() / 2 + e]; });
    }
};

struct loss_warps : token_warps {
    using token_warps::token_warps;
    float lr;     // of this token, loaded ahead
    float sum_w;  // of gamma^2
    float b2[2];  // of row() and row() + 8

    __device__ void constants() {
        b2[0] = g.b2[head * D + row()], b2[1] = g.b2[head * D + row() + 8];
        fill_rope(s.rope, thread, WARPGROUP_THREADS);
        // Gradients are kept as -sigma lr G with sigma = s_{m-1}; where that is 0, it becomes too small to change a state
        float sigma = fmaxf(g.token_scale[B - 1], 0x1p-60f);
        if (thread < B) s.ratio[thread] = g.token_scale[thread] / sigma;
        if (thread == 0) s.sigma = sigma;
        if (thread == 0) {
            for (semaphore &ready : s.tokens_ready) init_semaphore(ready, WARPGROUP_THREADS);
            for (semaphore &ready : s.g2_ready) init_semaphore(ready, 2 * WARPGROUP_THREADS);
        }
        store_shared(mine(s.zero), {0, 0, 0, 0});
        store_shared(mine(s.kq[0]), {0, 0, 0, 0});  // queries before the first; their Z1bar is not used
        if (thread < D) {
            float gamma = g.ln_weight[h * D + thread], beta = g.ln_bias[h * D + thread];
            int at = place(thread);
            s.gamma[at] = gamma, s.beta[at] = beta, s.gamma_gamma[at] = gamma * gamma, s.gamma_beta[at] = gamma * beta;
        }
    }
    // K of mini-batch i + 2; Q, V and lr of mini-batch i, where there is one
    __device__ void load_ahead(int i) {
        copy_ahead(s.k_ahead[thread], g.k, g.k_stride, i + 2);
        i = max(i, 0);
        copy_ahead(s.q_ahead[thread], g.q, g.q_stride, i);
        copy_ahead(s.v_ahead[thread], g.v, g.v_stride, i);
        commit_copies();
        lr = g.lr[(int64_t(batch) * g.T + min(i * B + int(token()), g.T - 1)) * g.H + h];
    }
    __device__ vec8 keys(unsigned i) { return vec8::of(load_shared(mine(s.kq[i % 4]) + LOWER)); }
    // K_i to shared memory
    __device__ void share_keys(unsigned i) {
        await_copies();
        store_shared(mine(s.kq[i % 4]) + LOWER, rotated(load_shared(address(s.k_ahead[thread]))));
        publish();
    }
    // K_{i+2} and Q_i to shared memory
    __device__ void share_tokens(unsigned i) {
        await_copies();
        uint4 k = load_shared(address(s.k_ahead[thread])), q = load_shared(address(s.q_ahead[thread]));
        store_shared(mine(s.kq[(i + 2) % 4]) + LOWER, rotated(k));
        store_shared(mine(s.kq[(i + 1) % 4]), rotated(q));
        publish();
    }
    // b2 += -sigma lr G2 of mini-batch i
    __device__ void update_b2(unsigned i) {
        if (!applied(i)) return;
        uint32_t at = address(s.g2[i % 4]) + swizzled(lane() % 16, thread / 32 * 2 + lane() / 16);
        bf16_2 x[4];  // [row | row + 8] x [tokens 0-7 | 8-15]
        move<bf16_2>::ldsm4t(x[0], x[1], x[2], x[3], at);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float2 low = __bfloat1622float2(x[2 * half]), high = __bfloat1622float2(x[2 * half + 1]);
            float sum = low.x + low.y + high.x + high.y;
            b2[half] = fmaf(1 / G2_SCALE, row_sum(sum), b2[half]);
        }
    }
    // step G2, where G2 = (g - mean(g) - xhat mean(g xhat)) / std, g = gamma^2 xhat + c and c = gamma (beta - (V - K)), from
    // the sums of z, z^2, gamma^2 z, gamma^2 z^2 and c z over the token: one round of shuffles. z holds b2 at first. The
    // sum of c goes through shared memory, or ptxas would delay its shuffles until Z2 is there.
    __device__ void share_g2(unsigned i, vec8 &z, vec8 &c, float sum_c, float step) {
        vec8 w = vec8_of(s.gamma_gamma, thread);
        vec8 first = vec8_of(s.z2[0][token()], thread), second = vec8_of(s.z2[1][token()], thread);
        float sum_z = 0, sum_zz = 0, sum_wz = 0, sum_wzz = 0, sum_cz = 0;
        z.each([&](int e, float &x) {
            x += first.x[e] + second.x[e];
            float wz = w.x[e] * x;
            sum_z += x, sum_wz += wz;
            sum_zz = fmaf(x, x, sum_zz), sum_wzz = fmaf(wz, x, sum_wzz), sum_cz = fmaf(c.x[e], x, sum_cz);
        });
        sum_over_token(sum_z, sum_zz, sum_wz, sum_wzz, sum_cz);
        float mean = sum_z * (1.f / D), variance = fmaxf(fmaf(sum_zz, 1.f / D, -mean * mean), 0.f);
        float rstd = reciprocal_root(variance + EPS);
        float mean_g = fmaf(rstd, fmaf(-mean, sum_w, sum_wz), sum_c) * (1.f / D);
        float dot =  // mean(g xhat)
            rstd * (rstd * fmaf(mean, fmaf(mean, sum_w, -2.f * sum_wz), sum_wzz) + fmaf(-mean, sum_c, sum_cz)) * (1.f / D);
        float scale = rstd * step, a = rstd * scale, b = -dot * a, d = -mean_g * scale;
        z.each([&](int e, float &x) { x = fmaf(x - mean, fmaf(w.x[e], a, b), fmaf(c.x[e], scale, d)); });
        store_shared(mine(s.g2[i % 4]), z.pack());
        publish();
    }

    // b2, and the rows of K and lr G2 of a short last mini-batch, 0 beyond them
    __device__ void store() {
        int last = mini_batches - 1;
        if (lane() % 4 == 0)
            g.b2_out[head * D + row()] = b2[0], g.b2_out[head * D + row() + 8] = b2[1];
        bool valid = token() < g.pending();
        vec8 k = keys(last);
        vec8 g2 = vec8::of(load_shared(mine(s.g2[last % 4])));
        int64_t row = (int64_t(head) * B + token()) * D + column();
        k.each([&](int e, float x) { g.k_rows[row + e] = valid ? x : 0.f; });
        g2.each([&](int e, float x) { g.g2_rows[row + e] = valid ? x * (-1 / G2_SCALE / s.sigma) : 0.f; });
    }

    // b2_i, from the lanes that hold it to shared memory
    __device__ void share_b2(unsigned i) {
        if (lane() % 4 == 0) {
            float *row = &s.b2[i % 4][place(this->row())];  // row() + 8 is 4 further
            row[0] = b2[0], row[4] = b2[1];
        }
    }

    __device__ void run() {
        constants();
        load_ahead(-2);
        await<1>(LOSS);
        vec8 w = vec8_of(s.gamma_gamma, thread);
        sum_w = 0;
        w.each([&](int, float x) { sum_w += x; });
        sum_over_token(sum_w);
        share_keys(0);
        load_ahead(-1);
        share_keys(1);
        load_ahead(0);
        arrive<3>(START);
        arrive<2>(OUTPUT_START);
        for (int i = 0; i < mini_batches; ++i) {
            launder(thread);
            if (i > 0) update_b2(i - 1);
            share_b2(i);
            share_tokens(i);
            await<1>(LOSS);
            kittens::arrive(s.tokens_ready[i % 2]);
            vec8 c = vec8_of(s.gamma_beta, thread), gamma = vec8_of(s.gamma, thread), k = keys(i);
            vec8 v = vec8::of(load_shared(address(s.v_ahead[thread])));
            float sum_c = 0, step = i * B + int(token()) < g.T ? -G2_SCALE * s.sigma * lr : 0.f;
            c.each([&](int e, float &x) { sum_c += x = fmaf(gamma.x[e], k.x[e] - v.x[e], x); });
            sum_over_token(sum_c);
            s.sum_c[thread] = sum_c;
            load_ahead(i + 1);
            vec8 z = vec8_of(s.b2[i % 4], thread);
            await<3>(Z2_READY);
            share_g2(i, z, c, s.sum_c[thread], step);
            kittens::arrive(s.g2_ready[i % 2]);
            await<1>(LOSS);  // all of G2_i is there for update_b2
        }
        update_b2(mini_batches - 1);
        share_b2(mini_batches);
        kittens::arrive(s.tokens_ready[mini_batches % 2]);
        store();
    }
};

struct output_warps : token_warps {
    using token_warps::token_warps;

    // Rows of Q_i: P1 = tril(s_t / sigma (Q_i K_i^T + 1)); rows of K_{i+1}: P1 = K_{i+1} K_i^T + 1, as u = sigma
    // wherever there is a mini-batch i + 1. A warp computes 16 of the 32 rows and 8 of the 16 columns.
    __device__ void share_p1(unsigned i, unsigned warp) {
        unsigned lane = this->lane(), keys = warp / 2, column0 = warp % 2 * 8;
        uint32_t rows = address(s.kq[(i + 1) % 4]) + matrix_offset(lane, keys * B);
        uint32_t columns = address(s.kq[i % 4]) + swizzled(B + column0 + lane % 8, lane / 8);
        float2 p[2] = {};
#pragma unroll
        for (int d = 0; d < D / 32; ++d) {
            bf16_2 b[4];
            move<bf16_2>::ldsm4(b[0], b[1], b[2], b[3], columns ^ (d * 64));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                bf16_2 a[4];
                move<bf16_2>::ldsm4(a[0], a[1], a[2], a[3], rows ^ (d * 64 + half * 32));
                warp::hmma16816(p[0], p[1], a[0], a[1], a[2], a[3], b[2 * half], b[2 * half + 1], p[0], p[1]);
            }
        }
        unsigned j = column0 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unsigned t = lane / 4 + half * 8;
            float scale = keys ? 1.f : s.ratio[t], first = keys || j <= t ? scale : 0.f, second = keys || j + 1 <= t ? scale : 0.f;
            bf16_2 pair = __floats2bfloat162_rn(first * (p[half].x + 1), second * (p[half].y + 1));
            move<bf16_2>::sts(s.p1[0].idx(address(s.p1[i % 2]), {int(keys * B + t), int(j)}), pair);
        }
        publish();
    }

    // P2 = (s_t / sigma [j <= t] - u / sigma) (X2bar X2^T + 1) / G2_SCALE, of each warp the part from its block of F: the
    // products of X2bar and X2 have that scale, and each of the F / BLOCK warps adds 1.
    __device__ void share_p2(unsigned i, unsigned warp) {
        unsigned lane = this->lane(), t = lane / 4, j = lane % 4 * 2;
        static_assert(X2_SCALE * X2_SCALE == 1 / G2_SCALE && F / BLOCK == 1 / G2_SCALE);
        rt_fl<16, 16> p;
        bf16_2 part[4];
        kittens::warp::one(p);
        uint32_t rows = address(block(s.x2bar[i % 2], warp)) + matrix_offset(lane);
        uint32_t columns = address(block(s.x2[i % 4], warp)) + matrix_offset(lane);
#pragma unroll
        for (int f = 0; f < BLOCK / 16; ++f) {
            rt_bf<16, 16> queries, keys;
            load(queries, rows ^ (f * 32));
            load(keys, columns ^ (f * 32));
            kittens::warp::mma_ABt(p, queries, keys, p);
        }
        float later = applied(i) ? -1.f : 0.f;  // -u / sigma
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            unsigned row = t + (e & 1) * 8, column = j + (e >> 1) * 8;
            float upto = s.ratio[row] + later;
            auto [first, second] = p.tiles[0][0].data[e];
            first *= column <= row ? upto : later, second *= column < row ? upto : later;
            part[e] = __floats2bfloat162_rn(first, second);
        }
        uint32_t at = s.p2[warp].idx(address(s.p2[warp]), {int(lane % 16), int(lane / 16 * 8)});
        move<bf16_2>::stsm4(at, part[0], part[1], part[2], part[3]);
        publish();
        await<1>(OUTPUT);
    }

    // Z2bar^T = b2_{i+1} + W2_{i+1}^T X2bar_i^T, columns of tokens, in flight
    __device__ void start_z2bar(L::token_rows &z, unsigned i) {
        const float *row = &s.b2[(i + 1) % 4][place(this->row())], b2[2] = {row[0], row[4]};  // 4: of row() + 8
#pragma unroll
        for (int e = 0; e < 4; ++e) z.tiles[0][0].data[e] = {b2[e & 1], b2[e & 1]};
        begin(z);
        mma_AtBt(z, s.w2[(i + 1) % 2], s.x2bar[i % 2]);
    }
    // This thread's eight elements of Z2bar, from rows of D to rows of tokens through shared memory
    __device__ vec8 transpose(L::token_rows &z) {
        unsigned d = place(row()), t = lane() % 4 * 2;  // row() + 8 is 4 further
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            s.z2bar[t + (e >> 1) * 8][d + (e & 1) * 4] = z.tiles[0][0].data[e].x;
            s.z2bar[t + (e >> 1) * 8 + 1][d + (e & 1) * 4] = z.tiles[0][0].data[e].y;
        }
        await<1>(OUTPUT);
        return vec8_of(s.z2bar[token()], thread);
    }

    // out = Q + LN(Z2bar)
    __device__ void write_output(unsigned i, unsigned warp) {
        L::token_rows z_rows;
        start_z2bar(z_rows, i);
        share_p2(i, warp);
        // Z2bar^T += G2^T P2^T
        begin(z_rows);
#pragma unroll
        for (int part = 0; part < F / BLOCK; ++part) mma_AtBt(z_rows, s.g2[i % 4], s.p2[part]);
        wait_for<0>(z_rows);
        vec8 z = transpose(z_rows), gamma = vec8_of(s.gamma, thread), out = vec8_of(s.beta, thread);
        vec8 q = vec8::of(load_shared(mine(s.kq[(i + 1) % 4])));
        float sum = 0, squares = 0;
        z.each([&](int, float x) { sum += x, squares = fmaf(x, x, squares); });
        sum_over_token(sum, squares);
        float mean = sum * (1.f / D), rstd = reciprocal_root(fmaxf(fmaf(squares, 1.f / D, -mean * mean), 0.f) + EPS);
        out.each([&](int e, float &x) { x = fmaf((z.x[e] - mean) * rstd, gamma.x[e], x + q.x[e]); });
        uint4 packed = out.pack();
        int t = i * B + token();
        bf16 *to = g.out + ((int64_t(batch) * g.T + t) * g.H + h) * D + column();
        asm volatile("{.reg .pred there; setp.lt.s32 there, %0, %1; @there st.global.v4.u32 [%2], {%3, %4, %5, %6};}"
                     ::"r"(t), "r"(g.T), "l"(to), "r"(packed.x), "r"(packed.y), "r"(packed.z), "r"(packed.w) : "memory");
    }

    __device__ void run() {
        unsigned warp = uniform(thread / 32);
        await<2>(OUTPUT_START);
        for (int i = 0; i <= mini_batches; ++i) {
            launder(thread);
            wait(s.tokens_ready[i % 2], i / 2 % 2);
            if (i < mini_batches) {
                share_p1(i, warp);
                kittens::arrive(s.g2_ready[i % 2]);
            }
            await<3>(X2BAR_READY + i % 2);
            if (i > 0) write_output(i - 1, warp);
        }
    }
};

__global__ __launch_bounds__(L::THREADS, 1) void forward_kernel(const __grid_constant__ globals g) {
    extern __shared__ __align__(1024) uint8_t memory[];
    shared &s = *reinterpret_cast<shared *>(memory);
    int head = blockIdx.x, role = uniform(warpgroup::groupid());
    if (role < L::STATE_GROUPS) {
        warpgroup::increase_registers<L::STATE_REGISTERS>();
        state_warps().run(g, s, head);
    } else if (role == L::STATE_GROUPS) {
        warpgroup::decrease_registers<L::LOSS_REGISTERS>();
        loss_warps(g, s, head).run();
    } else {
        warpgroup::decrease_registers<L::OUTPUT_REGISTERS>();
        output_warps(g, s, head).run();
    }
}

void launch(const arguments &a, int batch, cudaStream_t stream) {
    constexpr int BYTES = sizeof(shared);
    const auto kernel = forward_kernel;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES), "shared memory");
    kernel<<<batch * a.H, L::THREADS, BYTES, stream>>>({a});
    check_cuda(cudaGetLastError(), "launch");
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, (ttt::mlp::forward<B, launch>));
