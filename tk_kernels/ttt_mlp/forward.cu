// How is the dual form of TTT-MLP computed on a Hopper GPU? One CTA carries one (sequence, head) through all its tokens.
//
// Notation of the layer: b = 16 tokens a mini-batch, D = 64, F = 256; i counts mini-batches, j and t tokens inside one.
// Everything that has F as an axis is held transposed, F down the rows: then the float32 accumulators of a product are,
// once rounded to bf16, the left operand of the next, and the float32 state never leaves the registers of its warps.
//
//   state warps (two warpgroups, 128 rows of F each): W1^T and W2 in registers, W2 also as bf16 in shared memory.
//       X2 = gelu(Z1), their rows' part of Z2 = X2 W2, G1 = (G2 W2^T) * gelu'(Z1), both updates, and Z1 of the next keys
//       together with Z1bar.
//   loss warps (one warpgroup), on the chain with them: the LayerNorm gradient G2; they load K, V and lr.
//   answer warps (one warpgroup), a mini-batch behind: products of tokens with tokens, Z2bar and the outputs; they load Q.
//
// Two rearrangements, exact, take products off the chain from one mini-batch to the next. sigma is the scale of the update,
// s_{b-1}; a short last mini-batch has sigma = 0 here, as its gradients are kept and not applied:
//   keys:     K_{i+1} W1_{i+1} = K_{i+1} W1_i - sigma (K_{i+1} K_i^T * lr) G1_i
//   queries:  X2bar_i W2_i - tril(eta * (X2bar X2^T + 1)) G2_i = X2bar_i W2_{i+1} + ((sigma lr - eta) * (X2bar X2^T + 1)) G2_i
//
// Gradients are kept as -sigma lr G, so that updates are plain products and coefficients need the ratios s_t / sigma alone.
// gelu(z) = z/2 (1 + tanh) is kept doubled, the state of W2 halved, G2 quartered: exact, and it saves products.
#include "common.cuh"

using namespace kittens;

namespace {

constexpr int B = 16, D = 64, F = 256, BLOCK = 64, BLOCKS = F / BLOCK;
constexpr float EPS = 1e-6f, ONE_OVER_PI = 0.3183098861837907f;
constexpr float ROPE_STEP = -2 * 13.287712379549449f / D;  // log2 of the ratio of neighbouring frequencies, 10000^(-2/D)

struct layout {
    using kq_tile = st_bf<2 * B, D>;      // queries of one mini-batch over the keys of the next
    using token_tile = st_bf<B, D>;  // [tokens, D], or a block [tokens, 64 of F]
    // A matrix as the products that sum over F read it, and its four blocks of 64 of F, which lie one after the other
    using weights = st_bf<F, D>;
    using weight_block = st_bf<BLOCK, D>;
    using hidden_tile = st_bf<B, F>;
    using half_weights = st_bf<F / 2, D>;  // what one warpgroup of state warps has
    using half_hidden = st_bf<B, F / 2>;
    using state_rows = rt_fl<16, D>;      // a warp's rows of W1^T or of W2, of one block of F
    using z1_rows = rt_fl<16, 2 * B>;     // a warp's rows of Z1^T: columns of queries, then of keys
    using token_rows = rt_fl<16, B>;
    using operand = rt_bf<16, B>;
    static constexpr int STATE_GROUPS = 2, BLOCKS_A_GROUP = BLOCKS / STATE_GROUPS;
    static constexpr int THREADS = (STATE_GROUPS + 2) * WARPGROUP_THREADS;
    static constexpr int STATE_REGISTERS = 208, LOSS_REGISTERS = 48, ANSWER_REGISTERS = 48;  // a thread of each of the four warpgroups: 512 in all
};
using L = layout;

template <typename IO> struct globals {
    const IO *q, *k, *v;  // [batch, T, H, D]
    IO *out;              // the same, contiguous
    int64_t q_stride[3], k_stride[3], v_stride[3];  // of batch, T and H
    const float *lr, *token_scale, *ln_weight, *ln_bias;
    const float *W1, *b1, *W2, *b2;
    float *W1_out, *b1_out, *W2_out, *b2_out, *k_rows, *x2_rows, *g1_rows, *g2_rows;
    int T, H;
    bool rope;
    __device__ int mini_batches() const { return (T + B - 1) / B; }
    __device__ int pending() const { return T % B; }  // tokens of a short last mini-batch
};

// Buffers are as many as mini-batches a slow reader can be behind a writer; each is indexed by its mini-batch.
struct shared {
    L::weights w2[2];                   // W2 / 2
    L::hidden_tile x2[4], x2bar[2];     // doubled
    L::kq_tile kq[4];     // [i % 4]: Q_{i-1} over K_i
    L::token_tile g2[4];  // -sigma lr G2 / 4
    L::token_tile zero;
    st_bf<2 * B, B> p1[2];            // coefficients of g1_i in Z1bar_i and in Z1 of K_{i+1}
    st_bf<B, B> p2;                   // coefficients of g2_i in Z2bar_i
    uint4 k_ahead[WARPGROUP_THREADS], v_ahead[WARPGROUP_THREADS], q_ahead[WARPGROUP_THREADS];  // each thread's own
    float z2[L::STATE_GROUPS][B][D + 4], z2bar[B][D + 4];  // 4: the transposing stores of a warp meet 32 banks
    float p2_part[4][B][B + 8];
    float ratio[B];  // s_t / sigma
    float gamma[D], beta[D], gamma_gamma[D], gamma_beta[D];  // of the LayerNorm, and products
    float b2[D];
    float2 rope[B][D / 2];
    uint4 slope[L::STATE_GROUPS][L::BLOCKS_A_GROUP][WARPGROUP_THREADS];  // 8 gelu'(Z1), each thread's own
    float sigma;
    semaphore keys_ready;
};

// Named barriers. Who arrives and who waits is said where they are used.
enum { START = 1, Z2_READY, X2BAR_READY, G2_READY, TOKENS_READY, TOKENS_DONE, LOSS, ANSWER, STATE };  // STATE: and STATE + 1
template <int WARPGROUPS> __device__ inline void arrive(int id) {
    group<4 * WARPGROUPS>::arrive(barrier<4 * WARPGROUPS>(id));
}
template <int WARPGROUPS> __device__ inline void await(int id) {
    group<4 * WARPGROUPS>::arrive_and_wait(barrier<4 * WARPGROUPS>(id));
}
// Shared memory written by ordinary stores is read by wgmma: each writer fences before the barrier.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline L::token_tile &keys_of(L::kq_tile &kq) { return reinterpret_cast<L::token_tile *>(&kq)[1]; }
__device__ inline L::weight_block &block(L::weights &w, int n) { return reinterpret_cast<L::weight_block *>(&w)[n]; }
__device__ inline L::token_tile &block(L::hidden_tile &x, int n) { return reinterpret_cast<L::token_tile *>(&x)[n]; }

// Reads of an accumulator must stay behind the wait for the product that writes it.
template <typename RT> __device__ inline void pin(RT &x) {
#pragma unroll
    for (int j = 0; j < RT::width; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            asm volatile("" : "+f"(x.tiles[0][j].data[e].x), "+f"(x.tiles[0][j].data[e].y)::"memory");
}
// ThunderKittens' own fence before a product also fences shared memory, which `publish` has done where it is needed.
template <typename... RT> __device__ inline void begin(RT &...x) {
    (pin(x), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
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
template <int PENDING, typename... RT> __device__ inline void wait_for(RT &...x) {
    warpgroup::mma_async_wait<PENDING>();
    (pin(x), ...);
}

__device__ inline float tanh_approx(float x) {  // 2^-11 relative: below the rounding of X2 to bf16
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Of a variance plus EPS, which is never denormal
__device__ inline float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float GELU_A = 0.7978845608028654f, GELU_B = 0.7978845608028654f * 0.044715f;
// t of 2 gelu(z) = z + z t: t = tanh(A z + B z^3)
__device__ inline float gelu_tanh(float z) { return tanh_approx(z * fmaf(GELU_B, z * z, GELU_A)); }
// 8 gelu'(z) = 4 (1 + t + z (1 - t^2) (A + 3B z^2)). Not of z * z, which would be kept in a register from gelu_tanh on
__device__ inline float eightfold_slope(float z, float t) {
    return fmaf(fmaf(-t, t, 1.f), z * fmaf(12 * GELU_B * z, z, 4 * GELU_A), fmaf(4.f, t, 4.f));
}

// Addresses inside tiles whose rows are 128 bytes: ThunderKittens swizzles the eight 16-byte pieces of a row by its
// number modulo 8. Computed from one lane offset, which `forget` keeps the compiler from holding in many registers.
__device__ inline unsigned swizzled(unsigned row, unsigned piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }
template <typename T> __device__ inline uint32_t address(const T &x) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&x));
}
// A value all lanes share, told to the compiler: what is computed from it may live in uniform registers
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }
__device__ inline void forget(unsigned &x) { asm volatile("" : "+r"(x)); }

// The address of every lane's row for ldmatrix and stmatrix of a 16 x 16 piece at the left of a tile; 32 bytes a piece
__device__ inline unsigned matrix_offset(unsigned lane, unsigned row0 = 0) { return swizzled(row0 + lane % 16, lane / 16); }
__device__ inline void load(rt_bf<16, 16> &x, uint32_t at) {
    auto &e = x.tiles[0][0].data;
    move<bf16_2>::ldsm4(e[0], e[1], e[2], e[3], at);
}

__device__ inline uint4 load_shared(uint32_t at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}
__device__ inline void store_shared(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

/* ------------------------------------------- the warps that hold the state ------------------------------------------- */

struct state_warps {
    L::state_rows W1t[L::BLOCKS_A_GROUP], W2[L::BLOCKS_A_GROUP];
    L::z1_rows z1[L::BLOCKS_A_GROUP];
    L::operand g1[L::BLOCKS_A_GROUP];
    half2 t[L::BLOCKS_A_GROUP][4];        // of gelu(Z1)
    float b1[L::BLOCKS_A_GROUP][2];       // of this lane's rows, its part: four lanes add up
    int group = uniform(warpgroup::groupid()), block0 = group * L::BLOCKS_A_GROUP;
    unsigned thread = warpgroup::laneid();

    __device__ static float sum_over_row(float x) {  // of an accumulator: four lanes
        x += __shfl_xor_sync(0xffffffff, x, 1);
        return x + __shfl_xor_sync(0xffffffff, x, 2);
    }
    // This lane's row of F in a block, and its (even) column of a 16 x 16 tile
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ int column() const { return thread % 4 * 2; }
    __device__ int feature(int n, int e) const { return (block0 + n) * BLOCK + row() + (e & 1) * 8; }

    // f(feature, d, two neighbouring elements of W1^T or W2) over what this lane holds
    template <typename Fn> __device__ void each_state(Fn f) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int j = 0; j < D / 16; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    f(feature(n, e), j * 16 + column() + (e >> 1) * 8, W1t[n].tiles[0][j].data[e], W2[n].tiles[0][j].data[e]);
    }

    template <typename IO> __device__ void load(const globals<IO> &g, shared &s, int64_t head) {
        const float *W1 = g.W1 + head * D * F, *W2 = g.W2 + head * F * D;
        each_state([&](int f, int d, float2 &w1, float2 &w2) {
            w1 = {W1[d * F + f], W1[(d + 1) * F + f]};
            float2 w = *reinterpret_cast<const float2 *>(W2 + f * D + d);
            w2 = {0.5f * w.x, 0.5f * w.y};
        });
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) b1[n][half] = column() == 0 ? g.b1[head * F + feature(n, half)] : 0.f;
    }
    template <typename IO> __device__ void store(const globals<IO> &g, shared &s, int64_t head) {
        float *W1 = g.W1_out + head * D * F, *W2 = g.W2_out + head * F * D;
        each_state([&](int f, int d, float2 &w1, float2 &w2) {
            W1[d * F + f] = w1.x, W1[(d + 1) * F + f] = w1.y;
            *reinterpret_cast<float2 *>(W2 + f * D + d) = {2 * w2.x, 2 * w2.y};
        });
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = sum_over_row(b1[n][half]);
                if (column() == 0) g.b1_out[head * F + feature(n, half)] = sum;
            }
    }
    // The rows of X2 and lr G1 of a short last mini-batch; 0 beyond them, as whoever reads the state may multiply by 0
    template <typename IO> __device__ void store_rows(const globals<IO> &g, int64_t head, shared &s, int last) {
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
                    g.x2_rows[at] = valid ? 0.5f * __bfloat162float(block(s.x2[last % 4], block0 + n)[int2{token, f % BLOCK}]) : 0.f;
                    g.g1_rows[at] = valid ? __bfloat162float(g1_value) / -s.sigma : 0.f;
                }
    }

    // A block of W2 for the loss warps
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

    // Z1^T = b1 + W1^T [Q_{i-1}; K_i]^T of a block, in flight
    __device__ void project(shared &s, unsigned i, int n, rt_bf<16, D> &w1) {
        float whole[2] = {sum_over_row(b1[n][0]), sum_over_row(b1[n][1])};
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

    // X2 = gelu(Z1)
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
    // gelu'(Z1), rounded as G1 will be, while no one waits for it: kept in shared memory for want of registers
    __device__ void share_slopes(shared &s) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
            bf16_2 slope[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 z = z1[n].tiles[0][1].data[e], y = __half22float2(t[n][e]);
                slope[e] = __floats2bfloat162_rn(eightfold_slope(z.x, y.x), eightfold_slope(z.y, y.y));
            }
            store_shared(address(s.slope[group][n][thread]), *reinterpret_cast<uint4 *>(slope));
        }
    }
    // X2bar = gelu(Z1bar) of a block
    __device__ void activate_queries(shared &s, unsigned i, int n) {
        L::operand x2bar;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float2 z = z1[n].tiles[0][0].data[e];
            x2bar.tiles[0][0].data[e] = __floats2bfloat162_rn(fmaf(z.x, gelu_tanh(z.x), z.x), fmaf(z.y, gelu_tanh(z.y), z.y));
        }
        store_transposed(block(s.x2bar[i & 1], block0 + n), x2bar);
    }

    // This warpgroup's part of Z2^T = W2^T X2^T, for the loss warps; the slopes are computed meanwhile
    __device__ void share_z2(shared &s, unsigned i) {
        L::token_rows z;
        asm volatile("bar.sync %0, %1;" ::"r"(STATE + group), "n"(WARPGROUP_THREADS) : "memory");
        begin(z);
        mma_AtBt<0>(z, reinterpret_cast<L::half_weights *>(&s.w2[i % 2])[group], reinterpret_cast<L::half_hidden *>(&s.x2[i % 4])[group]);
        share_slopes(s);
        wait_for<0>(z, W1t[0], W1t[1]);
        int d = row(), token = column();
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            s.z2[group][token + (e >> 1) * 8][d + (e & 1) * 8] = z.tiles[0][0].data[e].x;
            s.z2[group][token + (e >> 1) * 8 + 1][d + (e & 1) * 8] = z.tiles[0][0].data[e].y;
        }
    }

    // G1^T = (W2 G2^T) * gelu'(Z1)^T, and with it everything that waits for G2. G1 is scaled as G2 is: -sigma lr G1
    __device__ void learn(shared &s, unsigned i, bool applied) {
        L::token_rows grad[2];
        uint4 slope[2];
        begin(grad[0], grad[1], W2[0], W2[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_ABt<0>(grad[n], block(s.w2[i % 2], block0 + n), s.g2[i % 4]);
        // W2 / 2 += (2 X2)^T (-sigma lr G2 / 4)
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_AtB(W2[n], block(s.x2[i % 4], block0 + n), applied ? s.g2[i % 4] : s.zero);
#pragma unroll
        for (int n = 0; n < 2; ++n) slope[n] = load_shared(address(s.slope[group][n][thread]));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            if (n == 0) wait_for<3>(grad[0]);
            else wait_for<3>(grad[1]);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 x = grad[n].tiles[0][0].data[e], d = __bfloat1622float2(reinterpret_cast<bf16_2 *>(&slope[n])[e]);
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
        share_w2(s, i + 1, 1);
        wait_for<2>(z1[0], z1[1]);
    }

    template <typename IO> __device__ void run(const globals<IO> &g, shared &s, int head) {
        int last = g.mini_batches() - 1;
        load(g, s, head);
        share_w2(s, 0, 0);
        share_w2(s, 0, 1);
        publish();
        await<3>(G2_READY);  // the first keys are there
        rt_bf<16, D> w1;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            project(s, 0, n, w1);
            wait_for<0>(z1[n]);
        }
        for (int i = 0; i <= last; ++i) {
            forget(thread);
            activate_keys(s, i);
            share_z2(s, i);
            arrive<3>(Z2_READY);
            activate_queries(s, i - 1, 0);
            await<3>(TOKENS_READY);
            project(s, i + 1, 0, w1);
            activate_queries(s, i - 1, 1);
            publish();
            arrive<3>(X2BAR_READY);
            wait_for<0>(z1[0]);
            project(s, i + 1, 1, w1);
            wait_for<0>(z1[1]);
            await<3>(G2_READY);
            learn(s, i, i < last || !g.pending());
        }
        forget(thread);
        wait_for<0>(W1t[0], W1t[1]);
        activate_queries(s, last, 0);
        activate_queries(s, last, 1);
        publish();
        arrive<3>(X2BAR_READY);
        store(g, s, head);
        store_rows(g, head, s, last);
    }
};

/* ------------------------------------ what the loss warps and the answer warps share ------------------------------------ */

// Eight neighbouring elements of a token: what one thread loads, normalises and writes; eight threads a token.
struct octet {
    float x[8];
    template <typename Fn> __device__ void each(Fn f) {
#pragma unroll
        for (int e = 0; e < 8; ++e) f(e, x[e]);
    }
    __device__ static octet of(const float *p) {
        float4 low = *reinterpret_cast<const float4 *>(p), high = *reinterpret_cast<const float4 *>(p + 4);
        return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    }
    template <typename T> __device__ static octet of(uint4 packed) {
        octet o;
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float2 two = base_types::convertor<float2, T>::convert(*reinterpret_cast<const T *>(&words[e]));
            o.x[2 * e] = two.x, o.x[2 * e + 1] = two.y;
        }
        return o;
    }
    template <typename T> __device__ uint4 pack() const {
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            T two = base_types::convertor<T, float2>::convert(float2{x[2 * e], x[2 * e + 1]});
            words[e] = *reinterpret_cast<uint32_t *>(&two);
        }
        return {words[0], words[1], words[2], words[3]};
    }
};

// Sums over the eight threads of a token, several at once so that their shuffles overlap
template <typename... Float> __device__ inline void sum_over_token(Float &...x) {
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2) ((x += __shfl_xor_sync(0xffffffff, x, lane)), ...);
}

template <typename IO> struct token_warps {
    using IO2 = typename base_types::packing<IO>::packed_type;
    static constexpr uint32_t LOWER = B * 128;  // bytes from the upper to the lower half of a tile of queries over keys
    const globals<IO> &g;
    shared &s;
    int head, batch, h, mini_batches;
    unsigned thread = warpgroup::laneid();
    float b2[2];  // of this lane's rows of Z2^T: row and row + 8

    __device__ token_warps(const globals<IO> &g, shared &s, int head)
        : g(g), s(s), head(head), batch(head / g.H), h(head % g.H), mini_batches(g.mini_batches()) {
        b2[0] = g.b2[head * D + row()], b2[1] = g.b2[head * D + row() + 8];
    }

    __device__ unsigned token() const { return thread / 8; }
    __device__ unsigned column() const { return thread % 8 * 8; }
    __device__ unsigned lane() const { return thread % 32; }
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }  // of the accumulator of Z2^T
    // This thread's elements of a tile
    template <typename Tile> __device__ uint32_t mine(Tile &tile) const { return address(tile) + swizzled(token(), thread % 8); }
    // Is the gradient of mini-batch i added to the state?
    __device__ bool applied(unsigned i) const { return int(i) < mini_batches - 1 || !g.pending(); }

    // This thread's part of mini-batch i into shared memory; tokens that are not there are 0
    __device__ void copy_ahead(uint4 &to, const IO *x, const int64_t (&stride)[3], int i) {
        int t = i * B + token(), bytes = t < g.T ? 16 : 0;
        const IO *from = x + batch * stride[0] + min(t, g.T - 1) * stride[1] + h * stride[2] + column();
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from), "r"(bytes) : "memory");
    }
    __device__ static void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    __device__ static void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

    // RoPE at position token(), and to bf16
    __device__ uint4 as_bf16(uint4 x) {
        if (std::is_same_v<IO, bf16> && !g.rope) return x;
        octet o = octet::of<IO2>(x);
        if (g.rope)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 turn = s.rope[token()][column() / 2 + e];
                float even = o.x[2 * e], odd = o.x[2 * e + 1];
                o.x[2 * e] = even * turn.x - odd * turn.y;
                o.x[2 * e + 1] = odd * turn.x + even * turn.y;
            }
        return o.pack<bf16_2>();
    }

    // Z2^T = b2 + W2^T X2^T, columns of tokens, in flight
    __device__ void start_z2(L::token_rows &z, L::weights &w2, L::hidden_tile &x) {
#pragma unroll
        for (int e = 0; e < 4; ++e) z.tiles[0][0].data[e] = {b2[e & 1], b2[e & 1]};
        begin(z);
        mma_AtBt(z, w2, x);
    }
    // This thread's eight elements of Z2, from rows of D to rows of tokens by way of shared memory
    __device__ octet turn(L::token_rows &z, float (&by)[B][D + 4], int id) {
        unsigned d = row(), t = lane() % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            by[t + (e >> 1) * 8][d + (e & 1) * 8] = z.tiles[0][0].data[e].x;
            by[t + (e >> 1) * 8 + 1][d + (e & 1) * 8] = z.tiles[0][0].data[e].y;
        }
        await<1>(id);
        return octet::of(&by[token()][column()]);
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
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            b2[half] = fmaf(4.f, sum, b2[half]);
        }
    }
};

/* ------------------------------------------ the warps on the chain: the gradient G2 ------------------------------------------ */

template <typename IO> struct loss_warps : token_warps<IO> {
    using base = token_warps<IO>;
    using base::base, base::g, base::s, base::thread, base::token, base::column, base::mine;
    float lr;     // of this token, loaded ahead
    float sum_w;  // of gamma^2

    __device__ void constants() {
        for (int at = thread; at < B * D / 2; at += WARPGROUP_THREADS) {
            float2 &turn = s.rope[at / (D / 2)][at % (D / 2)];
            sincospif((at / (D / 2)) * exp2f((at % (D / 2)) * ROPE_STEP) * ONE_OVER_PI, &turn.y, &turn.x);
        }
        // Gradients are kept as -sigma lr G with sigma = s_{b-1}; where that is 0, so little that no state sees it
        float sigma = fmaxf(g.token_scale[B - 1], 0x1p-60f);
        if (thread < B) s.ratio[thread] = g.token_scale[thread] / sigma;
        if (thread == 0) s.sigma = sigma;
        if (thread == 0) init_semaphore(s.keys_ready, WARPGROUP_THREADS);
        store_shared(mine(s.zero), {0, 0, 0, 0});
        store_shared(mine(s.kq[0]), {0, 0, 0, 0});
        if (thread < D) {
            float gamma = g.ln_weight[this->h * D + thread], beta = g.ln_bias[this->h * D + thread];
            s.gamma[thread] = gamma, s.beta[thread] = beta;
            s.gamma_gamma[thread] = gamma * gamma, s.gamma_beta[thread] = gamma * beta;
        }
    }
    // K of mini-batch i + 1, V and lr of mini-batch i
    __device__ void load_ahead(int i) {
        this->copy_ahead(s.k_ahead[thread], g.k, g.k_stride, i + 1);
        if (i >= 0) this->copy_ahead(s.v_ahead[thread], g.v, g.v_stride, i);
        this->commit_copies();
        if (i >= 0) lr = g.lr[(int64_t(this->batch) * g.T + min(i * B + int(token()), g.T - 1)) * g.H + this->h];
    }
    __device__ octet keys(unsigned i) { return octet::of<bf16_2>(load_shared(mine(s.kq[i % 4]) + base::LOWER)); }
    // K_{i+1} to shared memory
    __device__ void share_keys(unsigned i) {
        this->await_copies();
        store_shared(mine(s.kq[(i + 1) % 4]) + base::LOWER, this->as_bf16(load_shared(address(s.k_ahead[thread]))));
        publish();
    }
    // step G2, G2 = (g - mean(g) - xhat mean(g xhat)) / std with g = gamma^2 xhat + c and c = gamma (beta - (V - K)), from the
    // sums of z, z^2, gamma^2 z, gamma^2 z^2 and c z over the token: one round of shuffles
    __device__ void share_g2(unsigned i, octet &z, octet &c, float sum_c, float step) {
        octet w = octet::of(&s.gamma_gamma[column()]), first = octet::of(&s.z2[0][token()][column()]), second = octet::of(&s.z2[1][token()][column()]);
        float sum_z = 0, sum_zz = 0, sum_wz = 0, sum_wzz = 0, sum_cz = 0;
        z.each([&](int e, float &x) {
            x += first.x[e] + second.x[e];
            float wz = w.x[e] * x;
            sum_z += x, sum_wz += wz;
            sum_zz = fmaf(x, x, sum_zz), sum_wzz = fmaf(wz, x, sum_wzz), sum_cz = fmaf(c.x[e], x, sum_cz);
        });
        sum_over_token(sum_z, sum_zz, sum_wz, sum_wzz, sum_cz);
        float mean = sum_z * (1.f / D), variance = fmaxf(fmaf(sum_zz, 1.f / D, -mean * mean), 0.f);
        float rstd = rsqrt_approx(variance + EPS);
        float mean_g = fmaf(rstd, fmaf(-mean, sum_w, sum_wz), sum_c) * (1.f / D);
        float dot = rstd * (rstd * fmaf(mean, fmaf(mean, sum_w, -2.f * sum_wz), sum_wzz) + fmaf(-mean, sum_c, sum_cz)) * (1.f / D);
        float scale = rstd * step, a = rstd * scale, b = -dot * a, d = -mean_g * scale;
        z.each([&](int e, float &x) { x = fmaf(x - mean, fmaf(w.x[e], a, b), fmaf(c.x[e], scale, d)); });
        store_shared(mine(s.g2[i % 4]), z.pack<bf16_2>());
        publish();
    }

    __device__ void store() {
        int last = this->mini_batches - 1;
        if (this->lane() % 4 == 0)
            g.b2_out[this->head * D + this->row()] = this->b2[0], g.b2_out[this->head * D + this->row() + 8] = this->b2[1];
        bool valid = token() < g.pending();
        octet k = keys(last);
        octet g2 = octet::of<bf16_2>(load_shared(mine(s.g2[last % 4])));
        int64_t row = (int64_t(this->head) * B + token()) * D + column();
        k.each([&](int e, float x) { g.k_rows[row + e] = valid ? x : 0.f; });
        g2.each([&](int e, float x) { g.g2_rows[row + e] = valid ? x * (-4.f / s.sigma) : 0.f; });
    }

    __device__ void share_b2() {
        if (this->lane() % 4 == 0) s.b2[this->row()] = this->b2[0], s.b2[this->row() + 8] = this->b2[1];
        await<1>(LOSS);
    }

    __device__ void run() {
        constants();
        load_ahead(-1);
        await<1>(LOSS);
        octet w = octet::of(&s.gamma_gamma[column()]);
        sum_w = 0;
        w.each([&](int, float x) { sum_w += x; });
        sum_over_token(sum_w);
        float negative_quarter = -0.25f * s.sigma;
        share_keys(-1u);
        arrive<2>(START);
        arrive<3>(G2_READY);
        load_ahead(0);
        for (int i = 0; i < this->mini_batches; ++i) {
            forget(thread);
            share_keys(i);
            kittens::arrive(s.keys_ready);
            octet c = octet::of(&s.gamma_beta[column()]), gamma = octet::of(&s.gamma[column()]), k = keys(i);
            octet v = octet::of<typename base::IO2>(load_shared(address(s.v_ahead[thread])));
            float sum_c = 0, step = i * B + int(token()) < g.T ? negative_quarter * lr : 0.f;
            c.each([&](int e, float &x) { sum_c += x = fmaf(gamma.x[e], k.x[e] - v.x[e], x); });
            sum_over_token(sum_c);
            if (i > 0) this->update_b2(i - 1);
            share_b2();
            load_ahead(i + 1);
            octet z = octet::of(&s.b2[column()]);
            await<3>(Z2_READY);
            share_g2(i, z, c, sum_c, step);
            arrive<3>(G2_READY);
            await<2>(TOKENS_DONE);  // the answer warps are done with all but the last mini-batch
            await<1>(LOSS);
        }
        this->update_b2(this->mini_batches - 1);
        store();
    }
};

/* -------------------------------------- the warps behind the chain: tokens and outputs -------------------------------------- */

template <typename IO> struct answer_warps : token_warps<IO> {
    using base = token_warps<IO>;
    using base::base, base::g, base::s, base::thread, base::token, base::column, base::mine;

    // Rows of Q_i: P1 = tril(s_t / sigma (Q_i K_i^T + 1)); rows of K_{i+1}: P1 = K_{i+1} K_i^T + 1.
    // A warp computes 16 of the 32 rows and 8 of the 16 columns.
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

    // P2 = (s_t / sigma [j <= t] - 1) 4 (X2bar X2^T + 1); a gradient that is not applied has 0 for the 1
    __device__ void share_p2(unsigned i, unsigned warp) {
        unsigned lane = this->lane();
        rt_fl<16, 16> p;
        kittens::warp::zero(p);
        uint32_t rows = address(block(s.x2bar[i % 2], warp)) + matrix_offset(lane), columns = address(block(s.x2[i % 4], warp)) + matrix_offset(lane);
#pragma unroll
        for (int f = 0; f < BLOCK / 16; ++f) {
            rt_bf<16, 16> queries, keys;
            load(queries, rows ^ (f * 32));
            load(keys, columns ^ (f * 32));
            kittens::warp::mma_ABt(p, queries, keys, p);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e)
            *reinterpret_cast<float2 *>(&s.p2_part[warp][lane / 4 + (e & 1) * 8][lane % 4 * 2 + (e >> 1) * 8]) = p.tiles[0][0].data[e];
        await<1>(ANSWER);
        unsigned j = thread % 8 * 2;
        float2 x = {4, 4};  // X2bar and X2 are doubled
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            float2 y = *reinterpret_cast<float2 *>(&s.p2_part[part][token()][j]);
            x.x += y.x, x.y += y.y;
        }
        float u = this->applied(i) ? 1.f : 0.f, ratio = s.ratio[token()];
        x.x *= j <= token() ? ratio - u : -u;
        x.y *= j + 1 <= token() ? ratio - u : -u;
        bf16_2 pair = __floats2bfloat162_rn(x.x, x.y);
        move<bf16_2>::sts(s.p2.idx(address(s.p2), {int(token()), int(j)}), pair);
        publish();
        await<1>(ANSWER);
    }

    // out = Q + LN(Z2bar)
    __device__ void answer(unsigned i, unsigned warp) {
        L::token_rows z_rows;
        this->update_b2(i);
        this->start_z2(z_rows, s.w2[(i + 1) % 2], s.x2bar[i % 2]);
        share_p2(i, warp);
        // Z2bar^T += G2^T P2^T
        begin(z_rows);
        mma_AtBt(z_rows, s.g2[i % 4], s.p2);
        wait_for<0>(z_rows);
        octet z = this->turn(z_rows, s.z2bar, ANSWER), gamma = octet::of(&s.gamma[column()]), out = octet::of(&s.beta[column()]);
        octet q = octet::of<bf16_2>(load_shared(mine(s.kq[(i + 1) % 4])));
        float sum = 0, squares = 0;
        z.each([&](int, float x) { sum += x, squares = fmaf(x, x, squares); });
        sum_over_token(sum, squares);
        float mean = sum * (1.f / D), rstd = rsqrt_approx(fmaxf(fmaf(squares, 1.f / D, -mean * mean), 0.f) + EPS);
        out.each([&](int e, float &x) { x = fmaf((z.x[e] - mean) * rstd, gamma.x[e], x + q.x[e]); });
        uint4 packed = out.pack<typename base::IO2>();
        int t = i * B + token();
        asm volatile("{.reg .pred there; setp.lt.s32 there, %0, %1; @there st.global.v4.u32 [%2], {%3, %4, %5, %6};}" ::"r"(t), "r"(g.T),
                     "l"(g.out + ((int64_t(this->batch) * g.T + t) * g.H + this->h) * D + column()), "r"(packed.x), "r"(packed.y),
                     "r"(packed.z), "r"(packed.w) : "memory");
    }

    __device__ void run() {
        unsigned warp = uniform(thread / 32);
        this->copy_ahead(s.q_ahead[thread], g.q, g.q_stride, 0);
        this->commit_copies();
        await<2>(START);
        for (int i = 0; i <= this->mini_batches; ++i) {
            forget(thread);
            if (i < this->mini_batches) {
                this->await_copies();
                store_shared(mine(s.kq[(i + 1) % 4]), this->as_bf16(load_shared(address(s.q_ahead[thread]))));
                await<1>(ANSWER);
                wait(s.keys_ready, i % 2);
                share_p1(i, warp);
                arrive<3>(TOKENS_READY);
                arrive<2>(TOKENS_DONE);
                this->copy_ahead(s.q_ahead[thread], g.q, g.q_stride, i + 1);
                this->commit_copies();
            }
            await<3>(X2BAR_READY);
            if (i > 0) answer(i - 1, warp);
        }
    }
};

template <typename IO> __global__ __launch_bounds__(L::THREADS, 1) void forward_kernel(const __grid_constant__ globals<IO> g) {
    extern __shared__ __align__(1024) uint8_t memory[];
    shared &s = *reinterpret_cast<shared *>(memory);
    int head = blockIdx.x, role = uniform(warpgroup::groupid());
    if (role < L::STATE_GROUPS) {
        warpgroup::increase_registers<L::STATE_REGISTERS>();
        state_warps().run(g, s, blockIdx.x);
    } else if (role == L::STATE_GROUPS) {
        warpgroup::decrease_registers<L::LOSS_REGISTERS>();
        loss_warps<IO>(g, s, head).run();
    } else {
        warpgroup::decrease_registers<L::ANSWER_REGISTERS>();
        answer_warps<IO>(g, s, head).run();
    }
}

/* ------------------------------------------------------ the launcher ------------------------------------------------------ */

using ttt::TensorView;

template <typename IO> void launch(const globals<IO> &g, int heads, cudaStream_t stream) {
    ttt::check_cuda(
        cudaFuncSetAttribute(forward_kernel<IO>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(shared)), "shared memory");
    forward_kernel<IO><<<heads, L::THREADS, sizeof(shared), stream>>>(g);
    ttt::check_cuda(cudaGetLastError(), "launch");
}

// Every tensor but q, k and v is contiguous, every one but q, k, v and out float32.
template <typename T> T *checked(const char *name, const TensorView &x, std::initializer_list<int64_t> shape) {
    ttt::check_shape(name, x, shape);
    ttt::check_contiguous(name, x);
    return ttt::pointer<T>(x);
}
template <typename IO> const IO *tokens(const char *name, const TensorView &x, const TensorView &q, int64_t (&stride)[3]) {
    ttt::check_shape(name, x, {q.size(0), q.size(1), q.size(2), D});
    for (int axis = 0; axis < 3; ++axis) stride[axis] = x.stride(axis);
    return ttt::pointer<const IO>(x);
}

template <typename IO>
void forward_of(TensorView q, TensorView k, TensorView v, TensorView lr, TensorView token_scale, TensorView ln_weight,
                TensorView ln_bias, TensorView W1, TensorView b1, TensorView W2, TensorView b2, TensorView out,
                TensorView W1_out, TensorView b1_out, TensorView W2_out, TensorView b2_out, TensorView k_rows,
                TensorView x2_rows, TensorView g1_rows, TensorView g2_rows, bool rope) {
    int64_t batch = q.size(0), T = q.size(1), H = q.size(2);
    globals<IO> g;
    g.q = tokens<IO>("q", q, q, g.q_stride);
    g.k = tokens<IO>("k", k, q, g.k_stride);
    g.v = tokens<IO>("v", v, q, g.v_stride);
    g.lr = checked<const float>("lr", lr, {batch, T, H});
    g.token_scale = checked<const float>("token_scale", token_scale, {B});
    g.ln_weight = checked<const float>("ln_weight", ln_weight, {H, D});
    g.ln_bias = checked<const float>("ln_bias", ln_bias, {H, D});
    g.W1 = checked<const float>("W1", W1, {batch, H, D, F});
    g.b1 = checked<const float>("b1", b1, {batch, H, F});
    g.W2 = checked<const float>("W2", W2, {batch, H, F, D});
    g.b2 = checked<const float>("b2", b2, {batch, H, D});
    g.out = checked<IO>("out", out, {batch, T, H, D});
    g.W1_out = checked<float>("W1_out", W1_out, {batch, H, D, F});
    g.b1_out = checked<float>("b1_out", b1_out, {batch, H, F});
    g.W2_out = checked<float>("W2_out", W2_out, {batch, H, F, D});
    g.b2_out = checked<float>("b2_out", b2_out, {batch, H, D});
    g.k_rows = checked<float>("k_rows", k_rows, {batch, H, B, D});
    g.x2_rows = checked<float>("x2_rows", x2_rows, {batch, H, B, F});
    g.g1_rows = checked<float>("g1_rows", g1_rows, {batch, H, B, F});
    g.g2_rows = checked<float>("g2_rows", g2_rows, {batch, H, B, D});
    g.T = T, g.H = H, g.rope = rope;
    launch(g, batch * H, ttt::stream_of(q));
}

void forward(TensorView q, TensorView k, TensorView v, TensorView lr, TensorView token_scale, TensorView ln_weight,
             TensorView ln_bias, TensorView W1, TensorView b1, TensorView W2, TensorView b2, TensorView out,
             TensorView W1_out, TensorView b1_out, TensorView W2_out, TensorView b2_out, TensorView k_rows,
             TensorView x2_rows, TensorView g1_rows, TensorView g2_rows, bool rope) {
    auto run = ttt::is_bf16(q) ? forward_of<bf16> : forward_of<half>;
    run(q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, out, W1_out, b1_out, W2_out, b2_out, k_rows, x2_rows,
        g1_rows, g2_rows, rope);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);
