// TTT-MLP forward, mini-batches of 16 tokens: the answer warps.
#pragma once

#include "block_rope_sm90.cuh"

namespace ttt::mlp_block {

template <bool ROPE> struct answer_warps {
    const arguments &a;
    uint32_t thread = thread_index() % WARPGROUP;
    const int warp = uniform(thread / 32);

    // X2bar = gelu(Z1bar) in registers, P2 = X2_KEPT^2 (X2bar X2^T + 1) and z = X2bar W2, both summed in f16
    __device__ void multiply_queries(uint32_t (&p)[16], uint32_t (&z)[16], uint32_t zbar, int group) const {
        uint32_t keys = operand(AT(x2)) + slot_of<2>(group) * (GROUP * TILE / UNIT), w2 = operand(AT(w2) + W2_BYTES);
        uint32_t one = F16_QUARTERS, zero = 0;  // X2_KEPT^2
        launder(one);                           // keeps the constants out of local memory
        launder(zero);
#pragma unroll
        for (int e = 0; e < 16; ++e) {
            p[e] = one;
            z[e] = zero;
        }
#pragma unroll 1
        for (int step = 0; step < 8; ++step) {
            uint32_t x[2][4];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                load_matrices(x[k], zbar ^ (k * K_STEP));
#pragma unroll
                for (int e = 0; e < 4; ++e) x[k][e] = half_gelu(x[k][e], gelu_tanh(x[k][e]));
            }
            begin_matmuls();
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                multiply<half, 0, 1>(p, x[k], tile(keys, k * K_STEP));
                multiply<half, 1, 1>(z, x[k], tile(w2, k * TILE));
            }
            commit_matmuls();
            zbar ^= 2 * K_STEP;
            keys += step & 1 ? (X2_BLOCK - 2 * K_STEP) / UNIT : 2 * K_STEP / UNIT;
            w2 += 2 * TILE / UNIT;
            if (step & 1) zbar += ZBAR_BLOCK;
            await_matmuls<0>();
        }
        pin(p);
        pin(z);
    }
    // Stores C P2 (C as in block_sm90.cuh): rows of this warp's mini-batch, columns of mini-batch n of the group
    __device__ void share_p2(const uint32_t (&p)[16], uint32_t to) const {
        to += warp * TILE + swizzled(thread % 16, thread % 32 / 16);
#pragma unroll
        for (int n = 0; n < GROUP; ++n) {
            uint32_t x[4];
            if (n == warp) {
                const uint4_ d = load_u4(AT(diagonal) + thread % 32 * 16);
                const uint32_t diagonal[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
                for (int e = 0; e < 4; ++e) x[e] = multiply_f16(p[4 * n + e], diagonal[e]);
            } else {
                const uint32_t factor = n > warp ? load_u(AT(later)) : 0u;
#pragma unroll
                for (int e = 0; e < 4; ++e) x[e] = multiply_f16(p[4 * n + e], factor);
            }
            store_matrices(to ^ (n * K_STEP), x);
        }
        publish();
        barrier_sync(ANSWER, WARPGROUP);
    }
    // z += P2 G2: Z2bar, without b2
    __device__ void multiply_gradients(float (&z)[32], uint32_t p2, int group) const {
        const uint32_t g2 = operand(AT(g2)) + slot_of<2>(group) * (GROUP * TILE / UNIT);
        begin_matmuls();
#pragma unroll
        for (int n = 0; n < GROUP; ++n) multiply<half, 0, 1, 1>(z, tile(operand(p2), n * K_STEP), tile(g2, n * TILE));
        commit_matmuls();
        await_matmuls<0>(z);
    }
    // Writes out = Q + LN(Z2bar + b2), in rows `row` and `row` + 8 of this warp's mini-batch
    __device__ void write(float (&z)[32], int group) const {
        const uint32_t column = thread_index() % 4 * 2, row = thread_index() % 32 / 4;
        float sums[4] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            float x, y;
            load_f2(x, y, AT(b2_end) + slot_of<2>(group) * B2_ROW + k * 32 + column * 4);
            z[4 * k] += x;
            z[4 * k + 1] += y;
            z[4 * k + 2] += x;
            z[4 * k + 3] += y;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                sums[e / 2] += z[4 * k + e];
                sums[2 + e / 2] = fmaf(z[4 * k + e], z[4 * k + e], sums[2 + e / 2]);
            }
        }
#pragma unroll
        for (int lane = 1; lane < 4; lane *= 2)
#pragma unroll
            for (int k = 0; k < 4; ++k) sums[k] += shuffle_xor(sums[k], lane);
        float shift[2], rstd[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float mean = sums[half] * (1.f / D);
            rstd[half] =
                inverse_root(fmaxf(fmaf(sums[2 + half], 1.f / D, -mean * mean), 0.f) + B2_KEPT * B2_KEPT * EPS);
            shift[half] = -mean * rstd[half];
        }
        const uint32_t at = row_byte(column);  // column + 8 k is 16 k bytes further
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {  // the second row moves into the registers of the first
            const int t = (GROUP * group + warp) * B + int(row) + half * 8;
            const bool there = t < a.T;
            const uint16_t *q = q_of(a, there ? t : 0) + column;
            uint16_t *out = out_of(a, t) + column;
            uint32_t x[8];
#pragma unroll
            for (int k = 0; k < 8; ++k) x[k] = load_global(q + 8 * k);
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                if constexpr (ROPE) x[k] = rotated(x[k], row + half * 8, column + 8 * k);
                float gx, gy, bx, by;
                load_f2(gx, gy, AT(gamma) + at + k * 16);
                load_f2(bx, by, AT(beta) + at + k * 16);
                const float first = fmaf(fmaf(z[4 * k], rstd[0], shift[0]), gx, bx + bf16_first(x[k]));
                const float second = fmaf(fmaf(z[4 * k + 1], rstd[0], shift[0]), gy, by + bf16_second(x[k]));
                store_global(out + 8 * k, to_bf16(first, second), there);
                z[4 * k] = z[4 * k + 2];
                z[4 * k + 1] = z[4 * k + 3];
            }
            rstd[0] = rstd[1];
            shift[0] = shift[1];
        }
    }

    __device__ void run() {
        uint32_t slot = warp;  // this warp's mini-batch in the ring of Z1bar
        mbarrier_wait(AT(group_ready), 0);
#pragma unroll 1
        for (int group = 0; GROUP * group < a.count; ++group) {
            launder(thread);
            uint32_t zbar = AT(zbar) + slot * TILE + swizzled(thread % 16, thread % 32 / 16);
            slot = slot >= ZBAR_SLOTS - GROUP ? slot - (ZBAR_SLOTS - GROUP) : slot + GROUP;
            const uint32_t p2 = AT(x2) + slot_of<2>(group) * (GROUP * TILE);  // over X2's first block, once read
            mbarrier_wait(AT(group_ready), parity_of<1>(group) ^ 1);
            uint32_t sum[16];
            {
                uint32_t p[16];
                multiply_queries(p, sum, zbar, group);
                barrier_sync(ANSWER, WARPGROUP);
                launder(thread);
                share_p2(p, p2);
            }
            float z[32];
#pragma unroll
            for (int e = 0; e < 16; ++e) {
                z[2 * e] = f16_first(sum[e]);
                z[2 * e + 1] = f16_second(sum[e]);
            }
            multiply_gradients(z, p2, group);
            mbarrier_arrive(AT(group_read));
            write(z, group);
        }
    }
};

}  // namespace ttt::mlp_block
