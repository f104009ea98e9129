// TTT-MLP forward, mini-batches of 16 tokens: the state warps.
#pragma once

#include "block_memory_sm90.cuh"

namespace ttt::mlp_block {

constexpr int OWN = BLOCKS / 2;    // blocks of F per state warpgroup
constexpr int PART = OWN * COLUMNS;  // hidden units per state warpgroup

// SCALED: W1 and W2 are stored divided by u, so their updates are plain matmuls
template <bool SCALED> struct state_warps {
    const arguments &a;
    int part, loads;  // which half of F; which tokens this warp loads
    // Two offsets in one register, else others spill: this lane's row of a transposed matrix, and its part of Z2
    static constexpr int Z2_BITS = 18;
    static_assert(BASE + BYTES <= 1u << Z2_BITS);
    uint32_t both_at = swizzled((lane() & 7) + ((lane() >> 4) << 3), warp() * 2 + ((lane() >> 3) & 1)) << Z2_BITS |
                       (AT(z2) + part * (B * ROW) + column() * ROW + row_byte(row()));
    __device__ uint32_t stored_at() {
        launder(both_at);
        return both_at >> Z2_BITS;
    }
    __device__ uint32_t z2_at() {
        launder(both_at);
        return both_at & (1u << Z2_BITS) - 1;
    }
    const uint32_t zbar_blocks = AT(zbar) + OWN * part * ZBAR_BLOCK;
    const uint32_t x2_blocks = operand(AT(x2) + OWN * part * X2_BLOCK, X2_BLOCK);

    float W1t[OWN][32], W2t[64];
    float b2[2];         // rows row() and row() + 8, the same in all lanes of a row; 0 in the second warpgroup
    float keys[OWN][8];  // Z1 of the next keys
    uint32_t g1[OWN][4], slope[OWN][4];
    uint32_t slot = ZBAR_SLOTS - 2;  // of Z1bar_{i-1}
    int i = -1;

    // Recomputed at every use, because no registers are free. Row: of F or D in an accumulator; column: even.
    __device__ static uint32_t lane() { return thread_index() % 32; }
    __device__ static uint32_t warp() { return thread_index() / 32 % 4; }
    __device__ static uint32_t row() { return 16 * warp() + lane() / 4; }
    __device__ static uint32_t column() { return 2 * (lane() % 4); }
    // This lane's four elements of b1: rows row() and row() + 8 of both blocks
    __device__ uint32_t b1_at() const { return AT(b1) + (PART * part) * 4 + (8 * warp() + lane() / 4) * 16; }

    __device__ void load() {
        const uint32_t row = this->row(), column = this->column();
        const float over_u = SCALED ? 1.f / load_f(AT(update)) : 1.f;
        const float *from = a.W1 + state_index(a) * (D * F) + PART * part + row + column * F;
        // Barriers limit the loads in flight: without them their registers spill
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    W1t[n][4 * j + e] =
                        W1_KEPT * over_u * from[(8 * j + (e & 1)) * F + int(COLUMNS) * n + (e >> 1) * 8];
                if (j % 4 == 3) barrier_sync(STATE + part, WARPGROUP);
            }
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) b2[e] = part == 0 ? B2_KEPT * over_u * a.b2[state_index(a) * D + row + e * 8] : 0.f;
        from = a.W2 + state_index(a) * (F * D) + (PART * part + column) * D + row;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) W2t[4 * j + e] = W2_KEPT * over_u * from[(8 * j + (e & 1)) * D + (e >> 1) * 8];
            if (j % 4 == 3) barrier_sync(STATE + part, WARPGROUP);
        }
        // Zeros come from memory: ptxas would spill a loop's initial constants before the warps take their registers
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            reinterpret_cast<uint4_ &>(g1[n]) = load_u4(AT(g2) + n * 32);  // G2 is still zero
            reinterpret_cast<uint4_ &>(slope[n]) = load_u4(AT(g2) + n * 32 + 16);
        }
    }
    __device__ void store() {
        const uint32_t part = thread_index() / WARPGROUP, row = this->row(), column = this->column();
        const float u = SCALED ? load_f(AT(update)) : 1.f;
        float *to = a.W1_out + state_index(a) * (D * F) + PART * part + row + column * F;
        float *bias = a.b1_out + state_index(a) * F + PART * part + row;
        __syncwarp();  // four lanes wrote b1
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    to[(8 * j + (e & 1)) * F + int(COLUMNS) * n + (e >> 1) * 8] = u / W1_KEPT * W1t[n][4 * j + e];
            if (column == 0)
                for (int e = 0; e < 2; ++e)
                    bias[int(COLUMNS) * n + 8 * e] =
                        load_f(AT(b1) + b1_byte(PART * part + row + n * COLUMNS + e * 8)) / W1_KEPT;
        }
        if (part == 0 && column == 0) {
            bias = a.b2_out + state_index(a) * D + row;
            bias[0] = u / B2_KEPT * b2[0];
            bias[8] = u / B2_KEPT * b2[1];
        }
        to = a.W2_out + state_index(a) * (F * D) + (PART * part + column) * D + row;
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) to[(8 * j + (e & 1)) * D + (e >> 1) * 8] = u / W2_KEPT * W2t[4 * j + e];
    }
    // Stores the rows of X2 and lr G1 of a short last mini-batch. The rows after are 0: readers may multiply them by 0.
    __device__ void store_rows() {
        const int last = a.T / B, pending = a.T % B;
        const uint32_t part = thread_index() / WARPGROUP, row = this->row(), column = this->column();
        const float scale = -1.f / (G1_KEPT * load_f(AT(rho)));
        const int64_t at = state_index(a) * (B * F) + column * F + PART * part + row;
#pragma unroll
        for (int n = 0; n < OWN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {  // registers of a pair of tokens: row + 8 (e & 1), column + 8 (e >> 1)
                const uint32_t token = column + (e >> 1) * 8, f = row + (e & 1) * 8;
                float *rows = a.g1_rows + at + (e >> 1) * 8 * F + int(COLUMNS) * n + (e & 1) * 8;
                rows[0] = int(token) < pending ? scale * bf16_first(g1[n][e]) : 0.f;
                rows[F] = int(token) + 1 < pending ? scale * bf16_second(g1[n][e]) : 0.f;
                rows += a.x2_rows - a.g1_rows;
                const uint32_t x2 = AT(x2) + (OWN * part + n) * X2_BLOCK + last % int(X2_SLOTS) * TILE;
#pragma unroll
                for (uint32_t one = 0; one < 2; ++one) {
                    const bool there = int(token + one) < pending;
                    const uint32_t word = there ? load_u((x2 + swizzled(token + one, f / 8) + f % 8 * 2) & ~3u) : 0;
                    rows[one * F] = (f % 2 ? f16_second(word) : f16_first(word)) / X2_KEPT;
                }
            }
    }

    // Computes b1_i from b1_{i-1} and G1_{i-1}. `project` starts from b1_{i-1}; P1Q adds the missing part there.
    __device__ void add_to_b1(float u) {
        const float4_ b1 = load_f4(b1_at());
        float sums[2][4] = {};
#pragma unroll
        for (int n = 0; n < OWN; ++n) multiply_warp<bf16>(sums[n], g1[n], BF16_ONES, BF16_ONES);
        __syncwarp();  // four lanes share the sums
        if (!SCALED) u = 1.f;
        store_f4(b1_at(), {fmaf(u, sums[0][0], b1.x), fmaf(u, sums[0][2], b1.y),  //
                           fmaf(u, sums[1][0], b1.z), fmaf(u, sums[1][2], b1.w)});
    }
    // Computes Z1bar_{i-1} and Z1_{i+1} of block n with the present W1
    __device__ void project(int n, float u) {
        const uint32_t kq = operand(AT(kq)) + slot_of<KQ_SLOTS>(i + 1) * (KQ_TILE / UNIT);
        const uint32_t p1 = operand(AT(p1q), 128) + slot_of<P1_SLOTS>(i) * (P1Q_TILE / UNIT);
        uint32_t w[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float first = W1t[n][8 * k + 2 * e], second = W1t[n][8 * k + 2 * e + 1];
                w[k][e] = SCALED ? to_bf16(u * first, u * second) : to_bf16(first, second);
            }
        float z[16];
        begin_matmuls();
        multiply<bf16, 0, 0>(z, w[0], tile(kq));
        multiply<bf16, 0, 1>(z, w[1], tile(kq, K_STEP));
        multiply<bf16, 0, 1>(z, w[2], tile(kq, 2 * K_STEP));
        multiply<bf16, 0, 1>(z, w[3], tile(kq, 3 * K_STEP));
        multiply<bf16, 0, 1>(z, g1[n], matrices(p1));
        commit_matmuls();
        float b1[2];
        load_f2(b1[0], b1[1], b1_at() + n * 8);
        if (n == 1) publish();  // W2, which answer_keys stored
        await_matmuls<0>(z);
        uint32_t queries[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            queries[e] = to_f16(z[2 * e] + b1[e & 1], z[2 * e + 1] + b1[e & 1]);
            keys[n][2 * e] = z[8 + 2 * e] + b1[e & 1];
            keys[n][2 * e + 1] = z[8 + 2 * e + 1] + b1[e & 1];
        }
        store_transposed(zbar_blocks + slot * TILE + n * ZBAR_BLOCK + stored_at(), queries);
    }
    __device__ void project_both() {
        const float u = SCALED ? load_f(AT(update)) : 1.f;
        project(0, u);
        hold(i);  // keep the operands of block 1 out of the registers of block 0
        project(1, u);
        hold(i);  // loading b1 earlier would spill a register
        add_to_b1(u);
        slot = slot == ZBAR_SLOTS - 1 ? 0 : slot + 1;
    }

    // Computes, from G2_i: G1_i, the correction of Z1_{i+1} and the update of W2
    __device__ void learn() {
        const uint32_t slot8 = slot_of<X2_SLOTS>(i) * (TILE / UNIT), g2 = operand(AT(g2)) + slot8;
        const uint32_t w2 = operand(AT(w2) + part * (2 * BLOCK)) + (slot_of<GROUP>(i) == 0 ? W2_BYTES / UNIT : 0);
        float gradient[2][8];
        begin_matmuls();
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            multiply<half, 0, 0, 0>(gradient[n], tile(w2, n * BLOCK), tile(g2));
#pragma unroll
            for (int k = 1; k < 4; ++k)
                multiply<half, 0, 0, 1>(gradient[n], tile(w2, n * BLOCK + k * K_STEP), tile(g2, k * K_STEP));
            commit_matmuls();
        }
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            await_matmuls<1>(gradient[n]);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                g1[n][e] = to_bf16(gradient[n][2 * e] * f16_first(slope[n][e]),
                                   gradient[n][2 * e + 1] * f16_second(slope[n][e]));
            begin_matmuls();
            multiply<bf16, 0, 1>(keys[n], g1[n],
                                 matrices(operand(AT(p1k), 128) + slot_of<P1_SLOTS>(i) * (P1K_TILE / UNIT)));
            commit_matmuls();
        }
        multiply<half, 1, 1, 1>(W2t, tile(g2), tile(x2_blocks + slot8));
        commit_matmuls();
    }

    // Stores X2 = gelu(Z1) of block n in shared memory; z and t = tanh(..) are for the slopes
    __device__ void activate(int n, uint32_t to, uint32_t (&z)[2][4], uint32_t (&t)[2][4]) {
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            z[n][e] = to_f16(keys[n][2 * e], keys[n][2 * e + 1]);
            t[n][e] = gelu_tanh(z[n][e]);
            x[e] = half_gelu(z[n][e], t[n][e]);
        }
        store_transposed(to + n * X2_BLOCK, x);
    }
    // Sets w to hidden units 16 k to 16 k + 15 of W2, as f16
    __device__ void convert(int k, uint32_t (&w)[4], float u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float first = W2t[8 * k + 2 * e], second = W2t[8 * k + 2 * e + 1];
            w[e] = SCALED ? to_f16(u * first, u * second) : to_f16(first, second);
        }
    }
    // Computes X2_i, this warpgroup's part of Z2_i and the slopes; updates W1 and b2; stores W2 in shared memory
    __device__ void answer_keys() {
        const uint32_t slot8 = slot_of<X2_SLOTS>(i) * TILE;
        const uint32_t x2 = x2_blocks + slot8 / UNIT, x2_to = AT(x2) + OWN * part * X2_BLOCK + slot8 + stored_at();
        const uint32_t k_before = operand(AT(kq) + TILE) + slot_of<KQ_SLOTS>(i - 1) * (KQ_TILE / UNIT);
        const float u = SCALED ? load_f(AT(update)) : 1.f;
        uint32_t z[2][4], t[2][4];
        await_matmuls<2>(keys[0]);
        activate(0, x2_to, z, t);
        await_matmuls<0>(keys[1], W2t);
        begin_matmuls();
#pragma unroll
        for (int n = 0; n < OWN; ++n) multiply<bf16, 1, 1>(W1t[n], g1[n], tile(k_before));
        commit_matmuls();
        activate(1, x2_to, z, t);
        publish();
        // Load tokens while the fence completes. They replace K_{i-2}, Q_{i-4} and V_{i-1}: G2_{i-1} is ready, so the
        // loss warps have read those.
        if (loads != NOTHING) {
            if (loads == QUERIES) load_q(a, i + 2);
            if (loads == KEYS) load_k(a, i + 2);
            if (loads == VALUES) load_v(a, i + 1);
        }
        if (part == 0) {
            uint32_t g2[4];
            load_transposed(g2, AT(g2) + slot_of<X2_SLOTS>(i - 1) * TILE + stored_at());
            // b2 += G2_{i-1} summed over tokens, times B2_KEPT / G2_KEPT
            float bias[4] = {b2[0], b2[0], b2[1], b2[1]};
            multiply_warp<half>(bias, g2, F16_QUARTERS, F16_QUARTERS);
            b2[0] = bias[0];
            b2[1] = bias[2];
        }
        constexpr int BUFFERS = SCALED ? 3 : 4;  // steps of k whose operands are in registers
        constexpr int AHEAD = BUFFERS - 1;       // steps converted before their matmul
        uint32_t w[BUFFERS][4];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) convert(k, w[k], u);
        const uint32_t w2_to = AT(w2) + part * (2 * BLOCK) + (slot_of<GROUP>(i) == 0 ? W2_BYTES : 0) + stored_at();
        float z2[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) z2[e] = SCALED ? u * b2[e >> 1 & 1] : b2[e >> 1 & 1];
        barrier_sync(STATE + part, WARPGROUP);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            begin_matmuls();
            multiply<half, 0, 1>(z2, w[k % BUFFERS], tile(x2, k / 4 * X2_BLOCK + k % 4 * K_STEP));
            commit_matmuls();
            if (k + AHEAD >= BUFFERS && k + AHEAD < 8) await_matmuls<BUFFERS - AHEAD>();
            if (k + AHEAD < 8) convert(k + AHEAD, w[(k + AHEAD) % BUFFERS], u);
            store_transposed(w2_to + k * TILE, w[k % BUFFERS]);
        }
        await_matmuls<0>(z2, W1t[0], W1t[1]);
        const uint32_t z2_at = this->z2_at();
#pragma unroll
        for (int e = 0; e < 8; ++e) store_f(z2_at + (e & 1) * ROW + (e >> 2) * (8 * ROW) + (e >> 1 & 1) * 16, z2[e]);
        mbarrier_arrive(AT(z2_ready));

        if (slot_of<GROUP>(i) == 0 && part == 0) {
            const uint32_t end = AT(b2_end) + slot_of<2>(group_of(i) - 1) * B2_ROW + row() * 4;
            store_f(end, u * b2[0]);
            store_f(end + 32, u * b2[1]);
        }
#pragma unroll
        for (int n = 0; n < OWN; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) slope[n][e] = gelu_slope(z[n][e], t[n][e]);
    }

    __device__ void run() {
        load();
        // Mini-batch -1 has zero gradients. The last iteration handles the last queries.
#pragma unroll 1
        while (true) {
            mbarrier_wait(p1_ready(i), parity_of<P1_SLOTS>(i + 1));
            if (i >= 2 * GROUP - 1 && slot_of<GROUP>(i) == GROUP - 1)
                mbarrier_wait(AT(group_read), parity_of<1>(group_of(i) - 1));
            project_both();
            if (i >= a.full) {
                if (i == a.full)
                    store();
                else if (i == a.full + 1)
                    store_rows();
            }
            if (slot_of<GROUP>(i) == 0) {
                mbarrier_arrive(AT(group_ready));
                if (i == a.count) break;
            }
            barrier_sync(STATE + part, WARPGROUP);  // all of this part of W2 is in shared memory
            mbarrier_wait(AT(g2_ready), parity_of<1>(i + 1));
            learn();
            ++i;
            answer_keys();
        }
        if (i == a.full) store_rows();
    }
};

}  // namespace ttt::mlp_block
