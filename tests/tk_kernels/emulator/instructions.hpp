// The functions of tk_kernels/ttt_mlp/instructions_sm90.cuh, under the same names, for the emulator of machine.hpp.
#pragma once
#include "machine.hpp"

namespace ttt::sm90 {

using namespace machine;
using tensor_map = TokenMap;
struct half {};
struct bf16 {};
template <typename T> constexpr int type_of = 0;
template <> inline constexpr int type_of<bf16> = 1;

inline int block_x() { return M->block[0]; }
inline int block_y() { return M->block[1]; }
inline uint32_t thread_index() { return M->thread; }
template <int> void take_registers() {}
template <int> void give_registers() {}

inline int uniform(int x) { return x; }
inline Together &own_warp() { return M->warp[warp_index()]; }
inline float shuffle_xor(float x, int lane) {
    const int thread = M->thread, first = thread / 32 * 32;
    M->given_f[thread] = x;
    together(own_warp(), 32, "a shuffle", [first, lane] {
        for (int k = 0; k < 32; ++k) M->taken_f[first + k] = M->given_f[first + (k ^ lane)];
    });
    return M->taken_f[thread];
}
inline bool elected() { return lane_index() == 0; }
inline void __syncwarp() { together(own_warp(), 32, "a warp's barrier", [warp = warp_index()] { join_lanes(warp); }); }
inline void barrier_sync(int id, int threads) {
    Named &x = M->named[id];
    const long generation = x.generation;
    if (x.arrived && x.expected != threads) fail("a named barrier of two sizes");
    x.expected = threads, x.known.join(M->known[warp_index()]), event(warp_index()), release_lane(x.lanes);
    if (++x.arrived == threads) x.arrived = 0, x.released = x.known, ++x.generation;
    block_until([&x, generation] { return x.generation != generation; });
    M->known[warp_index()].join(x.released), acquire_lane(x.lanes);
}
inline void __syncthreads() { barrier_sync(0, THREADS); }
inline void mbarrier_init(uint32_t at, int arrivals) {
    Mbarrier &x = M->mbarriers.at(at / 8);
    if (at % 8 || x.live) fail("an mbarrier that is made twice or not at a multiple of 8");
    x.live = true, x.arrivals = x.pending = arrivals;
}
inline void mbarrier_arrive(uint32_t at) { arrive(mbarrier(at)); }
inline void mbarrier_expect(uint32_t at, int bytes) {
    Mbarrier &x = mbarrier(at);
    x.bytes += bytes, arrive(x);
}
inline void mbarrier_wait(uint32_t at, int parity) {
    Mbarrier &x = mbarrier(at);
    block_until([&x, parity] { return x.phase != parity; });
    M->known[warp_index()].join(x.released[parity]), acquire_lane(x.lanes);
}
inline void publish() {  // all of a warp together: a lane that runs ahead publishes nothing that others arrive with
    together(own_warp(), 32, "a fence", [warp = warp_index()] {
        M->known[warp].published[warp] = M->known[warp].seen[warp], event(warp);
    });
}

inline void load_tokens(uint32_t to, const tensor_map *x, int batch, int t, int head, uint32_t barrier) {
    if (to % 1024) fail("TMA writes tiles at multiples of 1024");
    M->copies.push_back({to, x, batch, t, head, barrier, M->known[warp_index()]});
}
inline void copy_ahead(uint32_t to, const float *from, bool there) {
    M->fibres[M->thread].ahead.push_back({to, there ? as_bits(*from) : 0u});
}
inline void await_copies() {
    auto &ahead = M->fibres[M->thread].ahead;
    for (auto [to, x] : ahead) write(to, x);
    ahead.clear();
}
inline uint32_t load_global(const void *from) { uint32_t x; memcpy(&x, from, 4); return x; }
inline void store_global(void *to, uint32_t x, bool there) { if (there) memcpy(to, &x, 4); }

struct float2 { float x, y; };
struct float4_ { float x, y, z, w; };
struct uint4_ { uint32_t x, y, z, w; };
inline uint32_t load_u(uint32_t at) { return read<uint32_t>(at); }
inline float load_f(uint32_t at) { return as_float(load_u(at)); }
inline void load_f2(float &x, float &y, uint32_t at) { check_range(at, 8), x = load_f(at), y = load_f(at + 4); }
inline float2 load_global_f2(const float *from) { return {from[0], from[1]}; }
inline float4_ load_global_f4(const float *from) { return {from[0], from[1], from[2], from[3]}; }
inline uint4_ load_u4(uint32_t at) { check_range(at, 16); return {load_u(at), load_u(at + 4), load_u(at + 8), load_u(at + 12)}; }
inline float4_ load_f4(uint32_t at) { check_range(at, 16); return {load_f(at), load_f(at + 4), load_f(at + 8), load_f(at + 12)}; }
inline float4_ load_f4_again(uint32_t at) { return load_f4(at); }
inline void store_u(uint32_t at, uint32_t x) { write(at, x); }
inline void store_f(uint32_t at, float x) { write(at, as_bits(x)); }
inline void store_f4(uint32_t at, float4_ v) { check_range(at, 16), store_f(at, v.x), store_f(at + 4, v.y), store_f(at + 8, v.z), store_f(at + 12, v.w); }
inline void store_u4(uint32_t at, uint4_ v) { check_range(at, 16), write(at, v.x), write(at + 4, v.y), write(at + 8, v.z), write(at + 12, v.w); }

// A lane gives the address of row lane % 8 of matrix lane / 8, and has elements (r, c) and (r, c + 1), or transposed
struct Place { int row, column; };
inline Place place_of(int lane, int which, bool transposed) {
    return transposed ? Place{lane % 4 * 2 + which, lane / 4} : Place{lane / 4, lane % 4 * 2 + which};
}
inline void exchange_matrices(uint32_t (&x)[4], uint32_t at, bool transposed, bool store) {
    const int thread = M->thread, first = thread / 32 * 32;
    check_range(at, 16);
    M->given[thread][0] = at, memcpy(&M->given[thread][1], x, 16);
    together(own_warp(), 32, store ? "a store of matrices" : "a load of matrices", [=] {
        for (int matrix = 0; matrix < 4; ++matrix)
            for (int lane = 0; lane < 32; ++lane) {
                const int thread = first + lane;
                uint32_t loaded = 0;
                for (int which = 0; which < 2; ++which) {
                    const Place p = place_of(lane, which, transposed);
                    const uint32_t at = M->given[first + 8 * matrix + p.row][0] + 2 * p.column;
                    if (store) {
                        on_write(warp_index(), M->known[warp_index()], at, 8 * matrix + p.row);
                        const uint16_t half = M->given[thread][1 + matrix] >> 16 * which;
                        memcpy(&M->shared[at], &half, 2);
                    } else {
                        on_read(warp_index(), M->known[warp_index()], at, false, 8 * matrix + p.row);
                        loaded |= uint32_t(peek<uint16_t>(at)) << 16 * which;
                    }
                }
                M->taken[thread][matrix] = loaded;
            }
    });
    if (!store) memcpy(x, M->taken[thread], 16);
}
inline void load_matrices(uint32_t (&x)[4], uint32_t at) { exchange_matrices(x, at, false, false); }
inline void load_transposed(uint32_t (&x)[4], uint32_t at) { exchange_matrices(x, at, true, false); }
inline void store_matrices(uint32_t at, uint32_t (&x)[4]) { exchange_matrices(x, at, false, true); }
inline void store_transposed(uint32_t at, uint32_t (&x)[4]) { exchange_matrices(x, at, true, true); }

template <typename T, int TRANSPOSE_B, int ADD, int n> void multiply(float (&d)[n], uint32_t (&a)[4], uint64_t b) {
    Product x{};
    x.registers = true, x.n = 2 * n, x.type = type_of<T>, x.transpose_b = TRANSPOSE_B, x.add = ADD, x.b = b;
    issue(x, d, a);
}
template <typename T, int TRANSPOSE_A, int TRANSPOSE_B, int ADD, int n> void multiply(float (&d)[n], uint64_t a, uint64_t b) {
    Product x{};
    x.n = 2 * n, x.type = type_of<T>, x.transpose_a = TRANSPOSE_A, x.transpose_b = TRANSPOSE_B, x.add = ADD, x.a = a, x.b = b;
    issue(x, d, nullptr);
}
template <typename T, int TRANSPOSE_B, int ADD, int n> void multiply(uint32_t (&d)[n], uint32_t (&a)[4], uint64_t b) {
    Product x{};
    x.registers = x.f16_sum = true, x.n = 4 * n, x.type = type_of<T>, x.transpose_b = TRANSPOSE_B, x.add = ADD, x.b = b;
    issue(x, d, a);
}
inline void begin_matmuls() {}
inline void commit_matmuls() { ++M->fibres[M->thread].commits; }
template <typename T, int n> void pin(T (&x)[n]) { asm volatile("" ::"r"(x) : "memory"); }
template <int PENDING, int... n> void await_matmuls(float (&...d)[n]) {
    await(PENDING);
    (pin(d), ...);
}
template <typename T> void multiply_warp(float (&d)[4], uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    constexpr auto from = type_of<T> == 1 ? from_bf16 : from_f16;
    const int thread = M->thread, first = thread / 32 * 32;
    memcpy(M->given[thread], a, 16), M->given[thread][4] = b0, M->given[thread][5] = b1, M->sums[thread] = d;
    together(own_warp(), 32, "a warp's product", [first] {
        for (int m = 0; m < 16; ++m)
            for (int n = 0; n < 8; ++n) {
                float &sum = M->sums[first + m % 8 * 4 + n / 2][m / 8 * 2 + n % 2], s = sum;
                for (int k = 0; k < 16; ++k) {
                    const int shift = 16 * (k % 2);
                    s += from(M->given[first + m % 8 * 4 + k % 8 / 2][m / 8 + k / 8 * 2] >> shift) *
                         from(M->given[first + n * 4 + k % 8 / 2][4 + k / 8] >> shift);
                }
                sum = s;
            }
    });
}

inline float saturated(float x) { return x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x; }
inline uint32_t to_f16(float first, float second) { return packed(round_f16(saturated(first)), round_f16(saturated(second))); }
inline uint32_t to_bf16(float first, float second) { return packed(round_bf16(first), round_bf16(second)); }
inline float f16_first(uint32_t x) { return from_f16(x); }
inline float f16_second(uint32_t x) { return from_f16(x >> 16); }
inline float bf16_first(uint32_t x) { return from_bf16(x); }
inline float bf16_second(uint32_t x) { return from_bf16(x >> 16); }
template <typename Function> uint32_t each_f16(Function f, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
    return packed(round_f16(f(f16_first(a), f16_first(b), f16_first(c))), round_f16(f(f16_second(a), f16_second(b), f16_second(c))));
}
inline uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) { return each_f16([](double x, double y, double z) { return x * y + z; }, a, b, c); }
inline uint32_t multiply_f16(uint32_t a, uint32_t b) { return each_f16([](double x, double y, double) { return x * y; }, a, b); }
inline uint32_t min_f16(uint32_t a, uint32_t b) { return each_f16([](double x, double y, double) { return std::fmin(x, y); }, a, b); }
inline uint32_t tanh_f16(uint32_t a) { return each_f16([](double x, double, double) { return std::tanh(x); }, a); }
inline uint32_t negate_f16(uint32_t a) { return a ^ 0x80008000u; }
inline float inverse_root(float x) { return 1.f / std::sqrt(x); }
inline uint64_t words(uint32_t low, uint32_t high) { return low | uint64_t(high) << 32; }

template <typename T> void need(T) {}
template <typename Int> void launder(Int &) {}
inline void hold(int) {}

}  // namespace ttt::sm90
