// Hopper's instructions, one function each, through ThunderKittens' wrappers where it has them. Addresses in shared
// memory are absolute bytes. The emulator of the tests has a second version of these functions, for a CPU.
#pragma once

#include "forward/common.cuh"

namespace ttt::sm90 {

using tensor_map = CUtensorMap;
// Tensor map of bfloat16 tokens [B, T, H, 64] for `load_tokens`: 16 tokens of one head, zeros beyond T
inline tensor_map map_tokens(const TensorView &x) {
    using tile = st_bf<16, 64>;
    return strided_tokens<gl<bf16, -1, -1, -1, 64, tma::descriptor<tile, dim::DEPTH>>, tile>(x).tma_descs.tma_desc;
}

__device__ inline int block_x() { return blockIdx.x; }
__device__ inline int block_y() { return blockIdx.y; }
__device__ inline uint32_t thread_index() {  // read at every use, so that no register holds it
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
template <int REGISTERS> __device__ inline void take_registers() { warpgroup::increase_registers<REGISTERS>(); }
template <int REGISTERS> __device__ inline void give_registers() { warpgroup::decrease_registers<REGISTERS>(); }

// ---- synchronization
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ inline float shuffle_xor(float x, int lane) { return __shfl_xor_sync(0xffffffffu, x, lane); }
__device__ inline bool elected() {  // one lane of a warp
    uint32_t x;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(x));
    return x;
}
// Named barrier of `threads` threads
__device__ inline void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void mbarrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ inline void mbarrier_expect(uint32_t at, int bytes) {  // one arrival, and `bytes` bytes by TMA
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ inline void mbarrier_wait(uint32_t at, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end;\nbra again;\nend:\n}"
        ::"r"(at), "r"(parity) : "memory");
}
// Makes this thread's writes visible to wgmma and TMA of all threads that synchronize with it afterwards
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- global memory
__device__ inline void load_tokens(uint32_t to, const tensor_map *x, int batch, int t, int head, uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {0, %2, 0, %3, %4}], [%5];"
        ::"r"(to), "l"(x), "r"(t), "r"(head), "r"(batch), "r"(mbarrier) : "memory");
}
// Starts a copy of four bytes to shared memory; zeros if not `there`
__device__ inline void copy_ahead(uint32_t to, const float *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ inline uint32_t load_global(const void *from) { return __ldg(static_cast<const uint32_t *>(from)); }
__device__ inline void store_global(void *to, uint32_t x, bool there) {
    asm volatile("{.reg .pred there; setp.ne.s32 there, %0, 0; @there st.global.u32 [%1], %2;}"
                 ::"r"(int(there)), "l"(to), "r"(x) : "memory");
}

// ---- shared memory
struct float4_ { float x, y, z, w; };
using uint4_ = uint4;
__device__ inline uint4_ load_u4(uint32_t at) {
    uint4_ v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
__device__ inline float4_ load_f4(uint32_t at) {
    float4_ v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
// Loads even if the same address was loaded before, so the registers of the first load are free in between
__device__ inline float4_ load_f4_again(uint32_t at) {
    float4_ v;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
__device__ inline float2 load_global_f2(const float *from) { return __ldg(reinterpret_cast<const float2 *>(from)); }
__device__ inline float4_ load_global_f4(const float *from) {
    float4 v = __ldg(reinterpret_cast<const float4 *>(from));
    return {v.x, v.y, v.z, v.w};
}
__device__ inline void load_f2(float &x, float &y, uint32_t at) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
}
__device__ inline uint32_t load_u(uint32_t at) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ inline float load_f(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}
__device__ inline void store_f(uint32_t at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
__device__ inline void store_u(uint32_t at, uint32_t x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void store_f4(uint32_t at, float4_ v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ inline void store_u4(uint32_t at, uint4_ v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ inline bf16_2 &pair(uint32_t &x) { return reinterpret_cast<bf16_2 &>(x); }
// Four 8 x 8 matrices of 16-bit elements; `at`: this lane's row
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t at) {
    move<bf16_2>::ldsm4(pair(x[0]), pair(x[1]), pair(x[2]), pair(x[3]), at);
}
__device__ inline void load_transposed(uint32_t (&x)[4], uint32_t at) {
    move<bf16_2>::ldsm4t(pair(x[0]), pair(x[1]), pair(x[2]), pair(x[3]), at);
}
__device__ inline void store_matrices(uint32_t at, uint32_t (&x)[4]) {
    move<bf16_2>::stsm4(at, pair(x[0]), pair(x[1]), pair(x[2]), pair(x[3]));
}
__device__ inline void store_transposed(uint32_t at, uint32_t (&x)[4]) {
    move<bf16_2>::stsm4t(at, pair(x[0]), pair(x[1]), pair(x[2]), pair(x[3]));
}

// ---- wgmma: d [64, N] (16 rows per warp) = a b, plus d with ADD; one asynchronous step of k = 16
// Compiles to nothing. Without it the old values of d, which the matmul ignores, would occupy registers.
template <int n> __device__ inline void clear(float (&d)[n]) {
#pragma unroll
    for (int e = 0; e < n; ++e) d[e] = 0.f;
}
template <typename T, int TRANSPOSE_B, int ADD, int n>  // a in registers
__device__ inline void multiply(float (&d)[n], uint32_t (&a)[4], uint64_t b) {
    if constexpr (!ADD) clear(d);
    auto &sum = reinterpret_cast<rt_fl<16, 2 * n> &>(d);
    auto &left = reinterpret_cast<rt_base<T, ducks::rt_layout::row> &>(a);
    kittens::detail::wgmma::base<float, T, 2 * n, 0, TRANSPOSE_B>::rt_st(sum, left, b, ADD);
}
template <typename T, int TRANSPOSE_A, int TRANSPOSE_B, int ADD, int n>  // a in shared memory
__device__ inline void multiply(float (&d)[n], uint64_t a, uint64_t b) {
    if constexpr (!ADD) clear(d);
    auto &sum = reinterpret_cast<rt_fl<16, 2 * n> &>(d);
    kittens::detail::wgmma::base<float, T, 2 * n, TRANSPOSE_A, TRANSPOSE_B>::st_st(sum, a, b, ADD);
}
template <typename T, int TRANSPOSE_B, int ADD, int n>  // sums in f16, two in a word
__device__ inline void multiply(uint32_t (&d)[n], uint32_t (&a)[4], uint64_t b) {
    auto &sum = reinterpret_cast<rt_hf<16, 4 * n> &>(d);
    auto &left = reinterpret_cast<rt_base<T, ducks::rt_layout::row> &>(a);
    kittens::detail::wgmma::base<half, T, 4 * n, 0, TRANSPOSE_B>::rt_st(sum, left, b, ADD);
}
// wgmma.fence: orders earlier register accesses before the matmuls
__device__ inline void begin_matmuls() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_matmuls() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> __device__ inline void pin(float (&x)[n]) {
#pragma unroll
    for (int e = 0; e < n; ++e) asm volatile("" : "+f"(x[e])::"memory");
}
template <int n> __device__ inline void pin(uint32_t (&x)[n]) {
#pragma unroll
    for (int e = 0; e < n; ++e) asm volatile("" : "+r"(x[e])::"memory");
}
// Waits for all commits except the last PENDING; d: the accumulators that are then complete
template <int PENDING, int... n> __device__ inline void await_matmuls(float (&...d)[n]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (pin(d), ...);
}
// One warp, synchronous: d [16, 8] += a [16, 16] b [16, 8]
template <typename T> __device__ inline void multiply_warp(float (&d)[4], uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    using two = typename base_types::packing<T>::packed_type;
    auto &d0 = reinterpret_cast<float2 &>(d[0]);
    auto &d1 = reinterpret_cast<float2 &>(d[2]);
    const auto &x = reinterpret_cast<const two(&)[4]>(a);
    warp::hmma16816(d0, d1, x[0], x[1], x[2], x[3], reinterpret_cast<two &>(b0), reinterpret_cast<two &>(b1), d0, d1);
}

// ---- numbers. A word holds two 16-bit numbers, the first in its lower half.
__device__ inline half_2 halves(uint32_t x) { return reinterpret_cast<half_2 &>(x); }
__device__ inline uint32_t word(half_2 x) { return reinterpret_cast<uint32_t &>(x); }
__device__ inline uint32_t to_f16(float first, float second) {  // saturates
    uint32_t d;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(second), "f"(first));
    return d;
}
__device__ inline uint32_t to_bf16(float first, float second) {
    bf16_2 x = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<uint32_t &>(x);
}
__device__ inline float f16_first(uint32_t x) { return __low2float(halves(x)); }
__device__ inline float f16_second(uint32_t x) { return __high2float(halves(x)); }
__device__ inline float bf16_first(uint32_t x) { return __uint_as_float(x << 16); }
__device__ inline float bf16_second(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
__device__ inline uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) {
    return word(__hfma2(halves(a), halves(b), halves(c)));
}
__device__ inline uint32_t multiply_f16(uint32_t a, uint32_t b) { return word(__hmul2_rn(halves(a), halves(b))); }
__device__ inline uint32_t negate_f16(uint32_t a) { return word(__hneg2(halves(a))); }
__device__ inline uint32_t min_f16(uint32_t a, uint32_t b) { return word(__hmin2(halves(a), halves(b))); }
__device__ inline uint32_t tanh_f16(uint32_t a) {  // two scalars: ptxas repacks tanh.approx.f16x2 at every use
    uint32_t d;
    asm("{.reg .b16 l, h;\n.reg .b32 x, y;\nmov.b32 {l, h}, %1;\ntanh.approx.f16 l, l;\ntanh.approx.f16 h, h;\n"
        "cvt.u32.u16 x, l;\ncvt.u32.u16 y, h;\nprmt.b32 %0, x, y, 0x5410;}" : "=r"(d) : "r"(a));
    return d;
}
__device__ inline float inverse_root(float x) { return reciprocal_root(x); }
__device__ inline uint64_t words(uint32_t low, uint32_t high) {
    uint64_t d;
    asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(high));
    return d;
}

// ---- constraints on ptxas
// Forces the computation of x here, by a branch that is never taken. Otherwise ptxas delays arithmetic past barriers.
__device__ inline void need(float x) {
    if (__float_as_uint(x) == 0x7fc12345u) asm volatile("trap;");
}
// Makes x opaque to the compiler, so that addresses are computed from x again instead of held in registers
template <typename Int> __device__ inline void launder(Int &x) { asm volatile("" : "+r"(x)); }
// A never-taken branch, past which ptxas moves nothing. x must change in the loop: otherwise ptxas hoists the branch.
__device__ inline void hold(int x) {
    if (x == 0x7ffffffe) asm volatile("trap;");
}

}  // namespace ttt::sm90
