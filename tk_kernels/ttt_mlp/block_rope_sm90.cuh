// TTT-MLP forward, mini-batches of 16 tokens: RoPE and rows of tokens, for the loss and answer warps.
#pragma once

#include "block_memory_sm90.cuh"

namespace ttt::mlp_block {

// A Taylor series, because std::sin is not constexpr. The error is below 1e-14 for angles below 16.
constexpr double PI = 3.14159265358979323846;
constexpr double sine(double x) {
    while (x > PI) x -= 2 * PI;
    double sum = x, term = x;
    for (int n = 1; n < 14; ++n) {
        term *= -x * x / ((2 * n) * (2 * n + 1));
        sum += term;
    }
    return sum;
}
struct rotations {
    float cos_sin[B][D];  // of the angle t 10000^(-2 pair / D) of each pair, by position t in a mini-batch
};
constexpr double RATIO_OF_ANGLES = 0.7498942093324559;  // 10000^(-2 / D)
constexpr rotations make_rotations() {
    rotations x{};
    for (int t = 0; t < B; ++t) {
        double angle = t;
        for (uint32_t even = 0; even < D; even += 2) {
            x.cos_sin[t][even] = float(sine(angle + PI / 2));
            x.cos_sin[t][even + 1] = float(sine(angle));
            angle *= RATIO_OF_ANGLES;
        }
    }
    return x;
}
__device__ constexpr rotations ROTATIONS = make_rotations();

// Eight neighbours of a padded row. AGAIN: load them even if the same address was loaded before.
template <bool AGAIN = false> __device__ inline void load_octet(float (&x)[8], uint32_t at) {
    auto &halves = reinterpret_cast<float4_(&)[2]>(x);
#pragma unroll
    for (int k = 0; k < 2; ++k) halves[k] = AGAIN ? load_f4_again(at + k * HALF_ROW) : load_f4(at + k * HALF_ROW);
}
// Sum over the eight threads of a token
template <int n> __device__ inline void sum_over_token(float (&x)[n]) {
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2)
#pragma unroll
        for (int k = 0; k < n; ++k) x[k] += shuffle_xor(x[k], lane);
}
__device__ inline const uint16_t *q_of(const arguments &a, int t) {
    return a.q + batch_index() * a.q_stride[0] + t * a.q_stride[1] + head_index() * a.q_stride[2];
}
__device__ inline uint16_t *out_of(const arguments &a, int t) {
    return a.out + ((int64_t(batch_index()) * a.T + t) * a.H + head_index()) * D;
}
// RoPE of a pair by cos and sin of its angle, rounded
__device__ inline uint32_t rotated_by(uint32_t x, float cosine, float sine) {
    const float first = bf16_first(x), second = bf16_second(x);
    return to_bf16(first * cosine - second * sine, second * cosine + first * sine);
}
// RoPE of the pair (even, even + 1) of token t in a mini-batch
__device__ inline uint32_t rotated(uint32_t x, int t, int even) {
    const float2 turn = load_global_f2(&ROTATIONS.cos_sin[t][even]);
    return rotated_by(x, turn.x, turn.y);
}

}  // namespace ttt::mlp_block
