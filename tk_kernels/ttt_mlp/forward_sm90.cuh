// What the forward kernels of TTT-MLP share: arguments and their checks, GELU, rows of tokens, products.
#pragma once

#include "forward/common.cuh"

namespace ttt::mlp {

constexpr int D = 64, F = 256;  // head dimension, hidden units
constexpr int BLOCK = 64;       // rows of F in one product of a warpgroup
constexpr float EPS = 1e-6f;

// Arguments of a kernel for mini-batches of m tokens
struct arguments {
    const bf16 *q, *k, *v;  // [batch, T, H, D]
    bf16 *out;              // the same, contiguous
    int64_t q_stride[3], k_stride[3], v_stride[3];      // of batch, T and H
    const float *lr, *token_scale;                      // [batch, T, H], [m]
    const float *ln_weight, *ln_bias;                   // [H, D]
    const float *W1, *b1, *W2, *b2;                     // [batch, H, ..] of [D, F], [F], [F, D] and [D]
    float *W1_out, *b1_out, *W2_out, *b2_out;           // the same
    float *k_rows, *x2_rows, *g1_rows, *g2_rows;        // [batch, H, m, ..] of D, F, F and D: a short last mini-batch
    int T, H;
    bool rope;
};

// All tensors but q, k and v are contiguous; all but q, k, v and out are float32.
struct tensors {
    TensorView q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2;
    TensorView out, W1_out, b1_out, W2_out, b2_out, k_rows, x2_rows, g1_rows, g2_rows;
};

template <typename T> T *checked(const char *name, const TensorView &x, std::initializer_list<int64_t> shape) {
    check_shape(name, x, shape);
    check_contiguous(name, x);
    return pointer<T>(x);
}
inline const bf16 *tokens(const char *name, const TensorView &x, std::initializer_list<int64_t> shape, int64_t (&stride)[3]) {
    check_shape(name, x, shape);
    for (int axis = 0; axis < 3; ++axis) stride[axis] = x.stride(axis);
    return pointer<const bf16>(x);
}
inline arguments arguments_of(const tensors &x, int64_t m, bool rope) {
    const int64_t batch = x.q.size(0), T = x.q.size(1), H = x.q.size(2);
    TVM_FFI_ICHECK(is_bf16(x.q)) << "q, k, v must be bfloat16";
    arguments a;
    a.q = tokens("q", x.q, {batch, T, H, D}, a.q_stride);
    a.k = tokens("k", x.k, {batch, T, H, D}, a.k_stride);
    a.v = tokens("v", x.v, {batch, T, H, D}, a.v_stride);
    a.lr = checked<const float>("lr", x.lr, {batch, T, H});
    a.token_scale = checked<const float>("token_scale", x.token_scale, {m});
    a.ln_weight = checked<const float>("ln_weight", x.ln_weight, {H, D});
    a.ln_bias = checked<const float>("ln_bias", x.ln_bias, {H, D});
    a.W1 = checked<const float>("W1", x.W1, {batch, H, D, F});
    a.b1 = checked<const float>("b1", x.b1, {batch, H, F});
    a.W2 = checked<const float>("W2", x.W2, {batch, H, F, D});
    a.b2 = checked<const float>("b2", x.b2, {batch, H, D});
    a.out = checked<bf16>("out", x.out, {batch, T, H, D});
    a.W1_out = checked<float>("W1_out", x.W1_out, {batch, H, D, F});
    a.b1_out = checked<float>("b1_out", x.b1_out, {batch, H, F});
    a.W2_out = checked<float>("W2_out", x.W2_out, {batch, H, F, D});
    a.b2_out = checked<float>("b2_out", x.b2_out, {batch, H, D});
    a.k_rows = checked<float>("k_rows", x.k_rows, {batch, H, m, D});
    a.x2_rows = checked<float>("x2_rows", x.x2_rows, {batch, H, m, F});
    a.g1_rows = checked<float>("g1_rows", x.g1_rows, {batch, H, m, F});
    a.g2_rows = checked<float>("g2_rows", x.g2_rows, {batch, H, m, D});
    a.T = T, a.H = H, a.rope = rope;
    return a;
}

// What Python calls. LAUNCH takes (arguments, [tensors,] batch, stream); m: tokens of a mini-batch
template <int m, auto LAUNCH>
void forward(TensorView q, TensorView k, TensorView v, TensorView lr, TensorView token_scale, TensorView ln_weight,
             TensorView ln_bias, TensorView W1, TensorView b1, TensorView W2, TensorView b2, TensorView out,
             TensorView W1_out, TensorView b1_out, TensorView W2_out, TensorView b2_out, TensorView k_rows,
             TensorView x2_rows, TensorView g1_rows, TensorView g2_rows, bool rope) {
    const tensors x{q,   k,      v,      lr,     token_scale, ln_weight, ln_bias, W1,      b1,     W2,
                    b2,  out,    W1_out, b1_out, W2_out,      b2_out,    k_rows,  x2_rows, g1_rows, g2_rows};
    if constexpr (std::is_invocable_v<decltype(LAUNCH), arguments, tensors, int, cudaStream_t>)
        LAUNCH(arguments_of(x, m, rope), x, q.size(0), stream_of(q));  // that makes descriptors of tensors
    else
        LAUNCH(arguments_of(x, m, rope), q.size(0), stream_of(q));
}

// wgmma reads shared memory through the async proxy: whoever wrote it with ordinary stores fences before the barrier.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps reads of an accumulator behind the wait for the product that writes it.
template <typename RT> __device__ inline void pin(RT &x) {
#pragma unroll
    for (int j = 0; j < RT::width; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            asm volatile("" : "+f"(x.tiles[0][j].data[e].x), "+f"(x.tiles[0][j].data[e].y)::"memory");
}
// Waits for the products that write x; the PENDING products begun last may still run
template <int PENDING = 0, typename... RT> __device__ inline void wait_for(RT &...x) {
    warpgroup::mma_async_wait<PENDING>();
    (pin(x), ...);
}

// gelu(z) = z/2 (1 + t) with t = tanh(A z + B z^3), and gelu'(z) = 1/2 (1 + t + z (1 - t^2) (A + 3B z^2))
constexpr float GELU_A = 0.7978845608028654f, GELU_B = 0.7978845608028654f * 0.044715f;
__device__ inline float tanh_approx(float x) {  // 2^-11 relative: below the rounding of X2 to bf16
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Byte offset in a tile with rows of 128 bytes: ThunderKittens swizzles the eight 16-byte pieces of a row by the row's
// number modulo 8. `Int` is int or unsigned, whichever a kernel counts in.
template <typename Int> __device__ inline Int swizzled(Int row, Int piece) {
    return row * 128 + ((piece ^ (row & 7)) << 4);
}
// Offset of a lane's row for ldmatrix and stmatrix of the leftmost 16 x 16 piece of a tile; the next is 32 bytes on
template <typename Int> __device__ inline Int matrix_offset(Int lane, Int row0 = 0) {
    return swizzled(row0 + lane % 16, lane / 16);
}
__device__ inline void load(rt_bf<16, 16> &x, uint32_t at) {
    auto &e = x.tiles[0][0].data;
    move<bf16_2>::ldsm4(e[0], e[1], e[2], e[3], at);
}
__device__ inline uint4 load_shared(uint32_t at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}
__device__ inline void store_shared(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// Tells the compiler that all lanes have the same x, so that what is computed from it may use uniform registers
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }
// Makes x opaque: the compiler computes addresses from it again instead of keeping them in registers
template <typename Int> __device__ inline void launder(Int &x) { asm volatile("" : "+r"(x)); }

// Eight neighbouring elements of a token, which one thread loads, normalises and writes; eight threads share a token.
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
    __device__ static vec8 of(uint4 packed) {  // of bfloat16
        vec8 o;
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float2 two = base_types::convertor<float2, bf16_2>::convert(*reinterpret_cast<const bf16_2 *>(&words[e]));
            o.x[2 * e] = two.x, o.x[2 * e + 1] = two.y;
        }
        return o;
    }
    __device__ uint4 pack() const {  // to bfloat16
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            bf16_2 two = base_types::convertor<bf16_2, float2>::convert(float2{x[2 * e], x[2 * e + 1]});
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

// cos and sin of RoPE's angle of a position in the mini-batch and a pair of elements, by `threads` threads
template <int m> __device__ inline void fill_rope(float2 (&rope)[m][D / 2], int thread, int threads) {
    constexpr float STEP = -2 * 13.287712379549449f / D;  // log2 of the ratio of neighbouring frequencies, 10000^(-2/D)
    constexpr float ONE_OVER_PI = 0.3183098861837907f;
    for (int at = thread; at < m * D / 2; at += threads) {
        float2 &rotation = rope[at / (D / 2)][at % (D / 2)];
        sincospif((at / (D / 2)) * exp2f((at % (D / 2)) * STEP) * ONE_OVER_PI, &rotation.y, &rotation.x);
    }
}
// Eight elements rotated by RoPE where `rope`; `rotation_of(e)` is the cos and sin of pair e
template <typename Fn> __device__ inline uint4 rotated(uint4 x, bool rope, Fn rotation_of) {
    if (!rope) return x;
    vec8 o = vec8::of(x);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        float2 rotation = rotation_of(e);
        float even = o.x[2 * e], odd = o.x[2 * e + 1];
        o.x[2 * e] = even * rotation.x - odd * rotation.y;
        o.x[2 * e + 1] = odd * rotation.x + even * rotation.y;
    }
    return o.pack();
}

}  // namespace ttt::mlp
