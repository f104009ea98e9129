// How is the dual form of TTT-MLP computed on a Hopper GPU? One CTA carries one (sequence, head) through all its tokens.
//
// Notation of the layer: b = 16 tokens a mini-batch, D = 64, F = 256; i counts mini-batches, j and t tokens inside one.
// Everything that has F as an axis is held transposed, F down the rows: then the float32 accumulators of a product are,
// once rounded to bf16, the left operand of the next, and the float32 state never leaves the registers of its warps.
//
//   state warps (two warpgroups, 128 rows of F each): W1^T and W2 in registers, W2 also as bf16 in shared memory.
//       X2 = gelu(Z1), G1 = (G2 W2^T) * gelu'(Z1), both updates, and Z1 of the next keys together with Z1bar.
//   loss warps (one warpgroup), on the chain with them: Z2 and its LayerNorm gradient G2; they load K, V and lr.
//   answer warps (one warpgroup), a mini-batch behind: products of tokens with tokens, Z2bar and the outputs; they load Q.
//
// Two rearrangements, exact, take products off the chain from one mini-batch to the next. u is the scale of the update,
// s_{b-1}, or 0 for a short last mini-batch, whose gradients are kept and not applied:
//   keys:     K_{i+1} W1_{i+1} = K_{i+1} W1_i - u (K_{i+1} K_i^T * lr) G1_i
//   queries:  X2bar_i W2_i - tril(eta * (X2bar X2^T + 1)) G2_i = X2bar_i W2_{i+1} + ((u lr - eta) * (X2bar X2^T + 1)) G2_i
//
// gelu(z) = z/2 (1 + tanh) and its slope are kept doubled, and the state of W2 halved, which is exact and saves products.
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
    L::token_tile ks[2];  // -u lr_j K_i
    L::token_tile g2[4], g2_step[4];  // G2, and -u lr G2 / 4
    st_bf<2 * B, B> p1[2];            // coefficients of G1_i in Z1bar_i and in Z1 of K_{i+1}
    st_bf<B, B> p2;                   // coefficients of G2_i in Z2bar_i
    uint4 k_ahead[WARPGROUP_THREADS], v_ahead[WARPGROUP_THREADS], q_ahead[WARPGROUP_THREADS];  // each thread's own
    float z2[B][D + 4], z2bar[B][D + 4];  // 4: the transposing stores of a warp meet 32 banks
    float p2_part[4][B][B + 8];
    float lr[4][B], step[4][B];  // step = -u lr
    float b1[F], scale[B];
    float gamma[D], beta[D], gamma_gamma[D], gamma_beta[D];  // of the LayerNorm, and products
    float2 rope[B][D / 2];
};

// Named barriers; 0 is __syncthreads. Who arrives and who waits is said where they are used.
enum { X2_READY = 1, X2BAR_READY, G2_READY, KEYS_READY, TOKENS_READY, LOSS, ANSWER };
template <int WARPGROUPS> __device__ inline void arrive(int id) {
    group<4 * WARPGROUPS>::arrive(barrier<4 * WARPGROUPS>(id));
}
template <int WARPGROUPS> __device__ inline void await(int id) {
    group<4 * WARPGROUPS>::arrive_and_wait(barrier<4 * WARPGROUPS>(id));
}
// Shared memory written by ordinary stores is read by wgmma: each writer fences before the barrier.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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
// 2 gelu(z) = z + z t, t = tanh(A z + B z^3)
__device__ inline float twice_gelu(float z) { return fmaf(z, tanh_approx(z * fmaf(GELU_B, z * z, GELU_A)), z); }
// and 2 gelu'(z) = 1 + t + z (1 - t^2) (A + 3B z^2)
__device__ inline float2 twice_gelu_and_slope(float z) {
    float z_z = z * z, t = tanh_approx(z * fmaf(GELU_B, z_z, GELU_A));
    return {fmaf(z, t, z), fmaf(fmaf(-t, t, 1.f), z * fmaf(3 * GELU_B, z_z, GELU_A), t + 1.f)};
}

// Addresses inside tiles whose rows are 128 bytes: ThunderKittens swizzles the eight 16-byte pieces of a row by its
// number modulo 8. Computed from one lane offset, which `forget` keeps the compiler from holding in many registers.
__device__ inline int swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }
template <typename T> __device__ inline uint32_t address(const T &x) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&x));
}
// A value all lanes share, told to the compiler: what is computed from it may live in uniform registers
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }
__device__ inline void forget(int &x) { asm volatile("" : "+r"(x)); }

// The address of every lane's row for ldmatrix and stmatrix of a 16 x 16 piece at the left of a tile; 32 bytes a piece
__device__ inline int matrix_offset(int lane, int row0 = 0) { return swizzled(row0 + lane % 16, lane / 16); }
__device__ inline void load(rt_bf<16, 16> &x, uint32_t at) {
    auto &e = x.tiles[0][0].data;
    move<bf16_2>::ldsm4(e[0], e[1], e[2], e[3], at);
}

/* ------------------------------------------- the warps that hold the state ------------------------------------------- */

struct state_warps {
    L::state_rows W1t[L::BLOCKS_A_GROUP], W2[L::BLOCKS_A_GROUP];
    L::z1_rows z1[L::BLOCKS_A_GROUP];
    L::operand g1[L::BLOCKS_A_GROUP];
    L::operand slope[L::BLOCKS_A_GROUP];  // gelu'(Z1), rounded as G1 will be
    int block0 = uniform(warpgroup::groupid()) * L::BLOCKS_A_GROUP, thread = warpgroup::laneid();

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
        for (int f = threadIdx.x; f < F; f += L::STATE_GROUPS * WARPGROUP_THREADS) s.b1[f] = g.b1[head * F + f];
    }
    template <typename IO> __device__ void store(const globals<IO> &g, shared &s, int64_t head) {
        float *W1 = g.W1_out + head * D * F, *W2 = g.W2_out + head * F * D;
        each_state([&](int f, int d, float2 &w1, float2 &w2) {
            W1[d * F + f] = w1.x, W1[(d + 1) * F + f] = w1.y;
            *reinterpret_cast<float2 *>(W2 + f * D + d) = {2 * w2.x, 2 * w2.y};
        });
        if (column() == 0)
#pragma unroll
            for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
                g.b1_out[head * F + feature(n, 0)] = s.b1[feature(n, 0)];
                g.b1_out[head * F + feature(n, 1)] = s.b1[feature(n, 1)];
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
                    g.g1_rows[at] = valid ? s.lr[last % 4][token] * __bfloat162float(g1_value) : 0.f;
                }
    }

    // A block of W2 for the loss warps
    __device__ void share_w2(shared &s, int i, int n) {
        uint32_t at = address(block(s.w2[i % 2], block0 + n)) + matrix_offset(thread % 32, thread / 32 * 16);
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
            L::operand w;
            warp::copy(w.tiles[0][0], W2[n].tiles[0][j]);
            auto &e = w.tiles[0][0].data;
            move<bf16_2>::stsm4(at ^ (j * 32), e[0], e[1], e[2], e[3]);
        }
    }

    // Z1^T = b1 + W1^T [Q_{i-1}; K_i]^T, one block after the other: there are registers for one rounded block of W1
    __device__ void project(shared &s, int i) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
            float b1[2] = {s.b1[feature(n, 0)], s.b1[feature(n, 1)]};
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) z1[n].tiles[0][j].data[e] = {b1[e & 1], b1[e & 1]};
            rt_bf<16, D> w1;
            warp::copy(w1, W1t[n]);
            begin(z1[n]);
            mma_ABt(z1[n], w1, s.kq[i % 4]);
            wait_for<0>(z1[n]);
        }
    }

    // Rows of F down a warp's registers -> [tokens, F] in shared memory, K-major for wgmma
    __device__ void store_transposed(L::token_tile &tile, L::operand &x) {
        int lane = thread % 32, token = (lane & 7) + ((lane >> 4) << 3);
        uint32_t at = address(tile) + swizzled(token, thread / 32 * 2 + ((lane >> 3) & 1));
        auto &e = x.tiles[0][0].data;
        move<bf16_2>::stsm4t(at, e[0], e[1], e[2], e[3]);
    }

    // X2 = gelu(Z1)
    __device__ void activate_keys(shared &s, int i) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
            L::operand x2;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 z = z1[n].tiles[0][1].data[e];
                float2 a = twice_gelu_and_slope(z.x), c = twice_gelu_and_slope(z.y);
                x2.tiles[0][0].data[e] = __floats2bfloat162_rn(a.x, c.x);
                slope[n].tiles[0][0].data[e] = __floats2bfloat162_rn(a.y, c.y);
            }
            store_transposed(block(s.x2[i % 4], block0 + n), x2);
        }
        publish();
    }

    // X2bar = gelu(Z1bar)
    __device__ void activate_queries(shared &s, int i) {
#pragma unroll
        for (int n = 0; n < L::BLOCKS_A_GROUP; ++n) {
            L::operand x2bar;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 z = z1[n].tiles[0][0].data[e];
                x2bar.tiles[0][0].data[e] = __floats2bfloat162_rn(twice_gelu(z.x), twice_gelu(z.y));
            }
            store_transposed(block(s.x2bar[i & 1], block0 + n), x2bar);
        }
        publish();
    }

    // G1^T = (W2 G2^T) * gelu'(Z1)^T, and with it everything that waits for G2
    __device__ void learn(shared &s, int i) {
        L::token_rows grad[2];
        begin(grad[0], grad[1], W2[0], W2[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_ABt<0>(grad[n], block(s.w2[i % 2], block0 + n), s.g2[i % 4]);
        // W2 / 2 += (2 X2)^T (-u lr G2 / 4)
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_AtB(W2[n], block(s.x2[i % 4], block0 + n), s.g2_step[i % 4]);
        float2 step[2] = {*reinterpret_cast<float2 *>(&s.step[i % 4][column()]),
                          *reinterpret_cast<float2 *>(&s.step[i % 4][column() + 8])};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            if (n == 0) wait_for<3>(grad[0]);
            else wait_for<3>(grad[1]);
            float db1[2] = {};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float2 x = grad[n].tiles[0][0].data[e], d = __bfloat1622float2(slope[n].tiles[0][0].data[e]);
                x.x *= d.x, x.y *= d.y;
                g1[n].tiles[0][0].data[e] = __floats2bfloat162_rn(x.x, x.y);
                db1[e & 1] = fmaf(x.x, step[e >> 1].x, fmaf(x.y, step[e >> 1].y, db1[e & 1]));
            }
            // [Z1bar_i; Z1_{i+1}]^T += G1^T P1^T
            begin(z1[n], W1t[n]);
            mma_ABt(z1[n], g1[n], s.p1[i % 2]);
            // b1 += (-u lr) G1
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                db1[half] += __shfl_xor_sync(0xffffffff, db1[half], 1);
                db1[half] += __shfl_xor_sync(0xffffffff, db1[half], 2);
                float b1 = s.b1[feature(n, half)] + db1[half];  // four lanes, the same value
                __syncwarp();
                s.b1[feature(n, half)] = b1;
            }
        }
        // W1^T += G1^T (-u lr K)
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_AB(W1t[n], g1[n], s.ks[i % 2]);
        wait_for<2>(W2[0], W2[1], z1[0], z1[1]);
        share_w2(s, i + 1, 0);
        wait_for<0>(W1t[0], W1t[1]);
        share_w2(s, i + 1, 1);
    }

    template <typename IO> __device__ void run(const globals<IO> &g, shared &s, int head) {
        int last = g.mini_batches() - 1;
        load(g, s, head);
        share_w2(s, 0, 0);
        share_w2(s, 0, 1);
        publish();
        __syncthreads();  // also orders b1
        project(s, 0);
        for (int i = 0; i <= last; ++i) {
            forget(thread);
            activate_keys(s, i);
            arrive<3>(X2_READY);
            activate_queries(s, i - 1);
            await<4>(TOKENS_READY);
            arrive<3>(X2BAR_READY);
            project(s, i + 1);
            await<3>(G2_READY);
            learn(s, i);
        }
        activate_queries(s, last);
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

__device__ inline uint4 load_shared(uint32_t at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}
__device__ inline void store_shared(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

template <typename IO> struct token_warps {
    using IO2 = typename base_types::packing<IO>::packed_type;
    static constexpr uint32_t LOWER = B * 128;  // bytes from the upper to the lower half of a tile of queries over keys
    const globals<IO> &g;
    shared &s;
    int head, batch, h, mini_batches, thread = warpgroup::laneid();
    float b2[2];  // of this lane's rows of Z2^T: row and row + 8

    __device__ token_warps(const globals<IO> &g, shared &s, int head)
        : g(g), s(s), head(head), batch(head / g.H), h(head % g.H), mini_batches(g.mini_batches()) {
        b2[0] = g.b2[head * D + row()], b2[1] = g.b2[head * D + row() + 8];
    }

    __device__ int token() const { return thread / 8; }
    __device__ int column() const { return thread % 8 * 8; }
    __device__ int lane() const { return thread % 32; }
    __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }  // of the accumulator of Z2^T
    // This thread's elements of a tile
    template <typename Tile> __device__ uint32_t mine(Tile &tile) const { return address(tile) + swizzled(token(), thread % 8); }
    // u of mini-batch i
    __device__ float update_scale(int i) const { return i == mini_batches - 1 && g.pending() ? 0.f : s.scale[B - 1]; }

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
        int d = row(), t = lane() % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            by[t + (e >> 1) * 8][d + (e & 1) * 8] = z.tiles[0][0].data[e].x;
            by[t + (e >> 1) * 8 + 1][d + (e & 1) * 8] = z.tiles[0][0].data[e].y;
        }
        await<1>(id);
        return octet::of(&by[token()][column()]);
    }
    // b2 += -u lr G2 of mini-batch i
    __device__ void update_b2(int i) {
        uint32_t at = address(s.g2_step[i % 4]) + swizzled(lane() % 16, thread / 32 * 2 + lane() / 16);
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
    float lr_next;  // lr of mini-batch i + 1
    float sum_w;  // of gamma^2

    __device__ void constants() {
        for (int at = thread; at < B * D / 2; at += WARPGROUP_THREADS) {
            float2 &turn = s.rope[at / (D / 2)][at % (D / 2)];
            sincospif((at / (D / 2)) * exp2f((at % (D / 2)) * ROPE_STEP) * ONE_OVER_PI, &turn.y, &turn.x);
        }
        if (thread < B) s.scale[thread] = g.token_scale[thread];
        if (thread < D) {
            float gamma = g.ln_weight[this->h * D + thread], beta = g.ln_bias[this->h * D + thread];
            s.gamma[thread] = gamma, s.beta[thread] = beta;
            s.gamma_gamma[thread] = gamma * gamma, s.gamma_beta[thread] = gamma * beta;
        }
    }
    // K and lr of mini-batch i + 1, and V of mini-batch i
    __device__ void load_ahead(int i) {
        this->copy_ahead(s.k_ahead[thread], g.k, g.k_stride, i + 1);
        if (i >= 0) this->copy_ahead(s.v_ahead[thread], g.v, g.v_stride, i);
        this->commit_copies();
        int t = (i + 1) * B + token();
        lr_next = g.lr[(int64_t(this->batch) * g.T + min(t, g.T - 1)) * g.H + this->h];
        lr_next = t < g.T ? lr_next : 0.f;
    }
    __device__ octet keys(int i) { return octet::of<bf16_2>(load_shared(mine(s.kq[i % 4]) + base::LOWER)); }
    // K_{i+1} and its lr to shared memory, and K_i scaled for the update of W1
    __device__ void share_keys(int i) {
        this->await_copies();
        if (i >= 0) {
            octet scaled = keys(i);
            float step = s.step[i % 4][token()];
            scaled.each([&](int, float &x) { x *= step; });
            store_shared(mine(s.ks[i % 2]), scaled.pack<bf16_2>());
        }
        uint4 k_next = this->as_bf16(load_shared(address(s.k_ahead[thread])));
        store_shared(mine(s.kq[(i + 1) % 4]) + base::LOWER, k_next);
        s.lr[(i + 1) % 4][token()] = lr_next;  // eight threads write the same
        s.step[(i + 1) % 4][token()] = -this->update_scale(i + 1) * lr_next;
        publish();
    }
    // G2 = (g - mean(g) - xhat mean(g xhat)) / std with g = gamma^2 xhat + c and c = gamma (beta - (V - K)), from the
    // sums of z, z^2, gamma^2 z, gamma^2 z^2 and c z over the token: one round of shuffles
    __device__ void share_g2(int i, L::token_rows &z_rows, octet &c, float sum_c) {
        octet z = this->turn(z_rows, s.z2, LOSS), w = octet::of(&s.gamma_gamma[column()]);
        float sum_z = 0, sum_zz = 0, sum_wz = 0, sum_wzz = 0, sum_cz = 0;
        z.each([&](int e, float x) {
            float wz = w.x[e] * x;
            sum_z += x, sum_wz += wz;
            sum_zz = fmaf(x, x, sum_zz), sum_wzz = fmaf(wz, x, sum_wzz), sum_cz = fmaf(c.x[e], x, sum_cz);
        });
        sum_over_token(sum_z, sum_zz, sum_wz, sum_wzz, sum_cz);
        float mean = sum_z * (1.f / D), variance = fmaxf(fmaf(sum_zz, 1.f / D, -mean * mean), 0.f);
        float rstd = rsqrt_approx(variance + EPS);
        float mean_g = fmaf(rstd, fmaf(-mean, sum_w, sum_wz), sum_c) * (1.f / D);
        float dot = rstd * (rstd * fmaf(mean, fmaf(mean, sum_w, -2.f * sum_wz), sum_wzz) + fmaf(-mean, sum_c, sum_cz)) * (1.f / D);
        float a = rstd * rstd, b = -dot * a, d = -mean_g * rstd;
        z.each([&](int e, float &x) { x = fmaf(x - mean, fmaf(w.x[e], a, b), fmaf(c.x[e], rstd, d)); });
        store_shared(mine(s.g2[i % 4]), z.pack<bf16_2>());
        float quarter = 0.25f * s.step[i % 4][token()];
        z.each([&](int, float &x) { x *= quarter; });
        store_shared(mine(s.g2_step[i % 4]), z.pack<bf16_2>());
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
        g2.each([&](int e, float x) { g.g2_rows[row + e] = valid ? s.lr[last % 4][token()] * x : 0.f; });
    }

    __device__ void run() {
        constants();
        load_ahead(-1);
        await<1>(LOSS);
        octet w = octet::of(&s.gamma_gamma[column()]);
        sum_w = 0;
        w.each([&](int, float x) { sum_w += x; });
        sum_over_token(sum_w);
        share_keys(-1);
        __syncthreads();
        load_ahead(0);
        for (int i = 0; i < this->mini_batches; ++i) {
            forget(thread);
            share_keys(i);
            arrive<2>(KEYS_READY);
            octet c = octet::of(&s.gamma_beta[column()]), gamma = octet::of(&s.gamma[column()]), k = keys(i);
            octet v = octet::of<typename base::IO2>(load_shared(address(s.v_ahead[thread])));
            float sum_c = 0;
            c.each([&](int e, float &x) { sum_c += x = fmaf(gamma.x[e], k.x[e] - v.x[e], x); });
            sum_over_token(sum_c);
            if (i > 0) this->update_b2(i - 1);
            load_ahead(i + 1);
            await<3>(X2_READY);
            L::token_rows z;
            this->start_z2(z, s.w2[i % 2], s.x2[i % 4]);
            await<4>(TOKENS_READY);  // the answer warps are done with all but the last mini-batch
            wait_for<0>(z);
            share_g2(i, z, c, sum_c);
            arrive<3>(G2_READY);
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

    // Rows of Q_i: P1 = -tril(eta * (Q_i K_i^T + 1)); rows of K_{i+1}: P1 = -u lr (K_{i+1} K_i^T + 1).
    // A warp computes 16 of the 32 rows and 8 of the 16 columns.
    __device__ void share_p1(int i, int warp) {
        int lane = this->lane(), keys = warp / 2, column0 = warp % 2 * 8;
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
        int j = column0 + lane % 4 * 2;
        float2 lr = *reinterpret_cast<float2 *>(&s.lr[i % 4][j]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int t = lane / 4 + half * 8;
            float scale = keys ? -this->update_scale(i) : -s.scale[t];
            float first = keys || j <= t ? scale * lr.x : 0.f, second = keys || j + 1 <= t ? scale * lr.y : 0.f;
            bf16_2 pair = __floats2bfloat162_rn(first * (p[half].x + 1), second * (p[half].y + 1));
            move<bf16_2>::sts(s.p1[0].idx(address(s.p1[i % 2]), {keys * B + t, j}), pair);
        }
        publish();
    }

    // P2 = (u lr - eta) * (X2bar X2^T + 1)
    __device__ void share_p2(int i, int warp) {
        int lane = this->lane();
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
        int j = thread % 8 * 2;
        float2 x = {4, 4};  // X2bar and X2 are doubled
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            float2 y = *reinterpret_cast<float2 *>(&s.p2_part[part][token()][j]);
            x.x += y.x, x.y += y.y;
        }
        float u = 0.25f * this->update_scale(i), scale = 0.25f * s.scale[token()];
        float2 lr = *reinterpret_cast<float2 *>(&s.lr[i % 4][j]);
        x.x *= lr.x * (j <= token() ? u - scale : u);
        x.y *= lr.y * (j + 1 <= token() ? u - scale : u);
        bf16_2 pair = __floats2bfloat162_rn(x.x, x.y);
        move<bf16_2>::sts(s.p2.idx(address(s.p2), {token(), j}), pair);
        publish();
        await<1>(ANSWER);
    }

    // out = Q + LN(Z2bar)
    __device__ void answer(int i, int warp) {
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
        int warp = uniform(thread / 32);
        this->copy_ahead(s.q_ahead[thread], g.q, g.q_stride, 0);
        this->commit_copies();
        store_shared(mine(s.kq[0]), {0, 0, 0, 0});
        publish();
        __syncthreads();
        for (int i = 0; i <= this->mini_batches; ++i) {
            forget(thread);
            if (i < this->mini_batches) {
                this->await_copies();
                store_shared(mine(s.kq[(i + 1) % 4]), this->as_bf16(load_shared(address(s.q_ahead[thread]))));
                await<2>(KEYS_READY);
                share_p1(i, warp);
                arrive<4>(TOKENS_READY);
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
