// TTT-MLP forward (dual form) on Hopper, mini-batches of 16 tokens: the work of one CTA on one (sequence, head).
//
// Four warpgroups with different register counts:
//   state (two, each 128 hidden units): W1^T [f, d], W2^T [d, f] and b2 in float32 registers, b1 in shared memory. On
//       the chain from one mini-batch to the next: X2 = gelu(Z1), half of Z2 = X2 W2 + b2, G1 = (G2 W2^T) * gelu'(Z1),
//       corrections and updates. They write W2 as f16 [f, d] for G1 and the answers, and Z1bar as f16. They start the
//       TMA loads of tokens while a fence completes.
//   loss (one): P1, and the gradient G2 of the loss through LayerNorm. Also on the chain.
//   answers (one): the outputs of four mini-batches (64 queries) at once, one group late, one mini-batch per warp:
//       X2bar = gelu(Z1bar), P2 = X2bar X2^T, Z2bar = X2bar W2 + P2 G2, LayerNorm, output.
//
// Notation. B = 16 is the number of tokens per mini-batch and i counts mini-batches; ttt_layer.md defines the rest.
// D = 64, F = 256. Matrices with F as an axis are transposed, with F (or D) down the rows. A rounded accumulator is
// then the left operand of the next matmul. Operands of layer 1 are bf16 (K, Q, W1, G1, P1), of layer 2 f16 (X2, W2,
// G2, P2). Sums are float32; sums of P2 and of X2bar W2 are f16. s_t is token_scale.
//
// Gradients are stored as -rho lr G with rho = s_15, and u = s_15 / rho = 1. If s_15 is below a 64th of the largest
// scale, rho is s_15 times a power of two: s_t / rho then stays in the range of f16. u is then a power of two below 1,
// and every update and correction is multiplied by it.
//   keys      Z1_{i+1} = K_{i+1} W1_i + b1_i + u (K_{i+1} K_i^T + 1) G1_i
//   queries   Z1bar_i = Q_i W1_{i+1} + b1_{i+1} + (s_t / rho [j <= t] - u) (Q_i K_i^T + 1) G1_i
//   answers   Z2bar_i = X2bar_i W2_end + b2_end + sum over n >= i of C_in (X2bar_i X2_n^T + 1) G2_n
//             end: after the group. C = s_t / rho [j <= t] - u for n = i, and -u for later mini-batches of the group.
// b1 is one mini-batch late: the matmul with G1_{i-1} adds the missing u sum_t G1_{i-1} to Z1_{i+1} and Z1bar_{i-1}.
// Tokens of 0 with lr 0 fill T up to whole groups; they change nothing. A short last mini-batch is applied inside the
// CTA, because its outputs need it. The state is stored before that.
//
// Values are stored times a constant *_KEPT: W1 / 4 and b1 / 4, so z' = z / 4 and gelu / 2 = z' + z' tanh; 8 W2; 4 b2,
// so 4 Z2; 16 G2; G1 / 4.
#pragma once

#include "block_answers_sm90.cuh"
#include "block_loss_sm90.cuh"
#include "block_state_sm90.cuh"

namespace ttt::mlp_block {

__device__ inline void prepare(const arguments &a) {
    const int thread = thread_index(), head = head_index();
    for (uint32_t at = BASE + thread * 16; at < AT(z2); at += THREADS * 16) store_u4(at, {0, 0, 0, 0});
    // rho: s_15 times the smallest power of two that keeps s_t / rho within LARGEST_RATIO; never 0
    constexpr float SMALLEST_RHO = 0x1p-60f;
    float largest = 0, rho = fmaxf(a.token_scale[B - 1], SMALLEST_RHO), u = 1.f;
    for (int t = 0; t < B; ++t) largest = fmaxf(largest, a.token_scale[t]);
    while (largest > LARGEST_RATIO * rho) {
        rho *= 2.f;
        u *= 0.5f;
    }
    __syncthreads();
    if (thread < B) store_f(AT(ratio) + thread * 4, a.token_scale[thread] / rho);
    if (thread == 0) {
        float sum = 0;
        for (uint32_t d = 0; d < D; ++d) sum = fmaf(a.ln_weight[head * D + d], a.ln_weight[head * D + d], sum);
        store_f(AT(rho), rho);
        store_f(AT(update), u);
        store_f(AT(sum_gg), sum);
        store_u(AT(later), to_f16(-u, -u));
    }
    if (thread < int(D)) {
        const float gamma = a.ln_weight[head * D + thread];
        store_f(AT(gamma) + row_byte(thread), gamma);
        store_f(AT(beta) + row_byte(thread), a.ln_bias[head * D + thread]);
        store_f(AT(gamma_gamma) + row_byte(thread), gamma * gamma);
    }
    // u in P1Q's rows of keys: the matmul with G1 adds u times its sum, which b1 lacks
    constexpr int WORDS = B * B / 2;
    if (thread < int(P1_SLOTS) * WORDS)
        store_u(AT(p1q) + thread / WORDS * P1Q_TILE + P1Q_TILE / 2 + thread % WORDS * 4, to_bf16(u, u));
    if (thread < int(F)) store_f(AT(b1) + b1_byte(thread), W1_KEPT * a.b1[state_index(a) * F + thread]);
    if (thread < 32) {
        uint32_t d[4];
        for (int e = 0; e < 4; ++e) {
            const int row = thread / 4 + (e & 1) * 8, column = 2 * (thread % 4) + (e >> 1) * 8;
            const float ratio = a.token_scale[row] / rho;
            d[e] = to_f16((column <= row ? ratio : 0.f) - u, (column < row ? ratio : 0.f) - u);
        }
        store_u4(AT(diagonal) + thread * 16, {d[0], d[1], d[2], d[3]});
    }
    if (thread == 0) {
        for (int i = 0; i < int(KQ_SLOTS); ++i) mbarrier_init(kq_full(i), 2);
        for (int i = 0; i < int(V_SLOTS); ++i) {
            mbarrier_init(v_full(i), 1);
            mbarrier_init(p1_ready(i), WARPGROUP);
        }
        mbarrier_init(AT(g2_ready), WARPGROUP);
        mbarrier_init(AT(group_read), WARPGROUP);
        mbarrier_init(AT(z2_ready), 2 * WARPGROUP);
        mbarrier_init(AT(group_ready), 2 * WARPGROUP);
    }
    publish();
    __syncthreads();
}

template <bool ROPE> __device__ inline void forward(const arguments &a) {
    prepare(a);
    const int warp = uniform(thread_index() / 32), role = warp / 4;
    if (role < 2) {  // which half of F
        take_registers<STATE_REGISTERS>();
        const int loads = warp == 0 ? QUERIES : warp == 4 ? KEYS : warp == 5 ? VALUES : NOTHING;
        if (load_f(AT(update)) == 1.f)
            state_warps<false>{a, role, loads}.run();
        else
            state_warps<true>{a, role, loads}.run();
    } else if (role == 2) {
        give_registers<LOSS_REGISTERS>();
        loss_warps<ROPE>{a}.run();
    } else {
        give_registers<ANSWER_REGISTERS>();
        answer_warps<ROPE>{a}.run();
    }
}

}  // namespace ttt::mlp_block
