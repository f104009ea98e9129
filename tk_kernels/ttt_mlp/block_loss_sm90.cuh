// TTT-MLP forward, mini-batches of 16 tokens: the loss warps.
#pragma once

#include "block_rope_sm90.cuh"

namespace ttt::mlp_block {

// A thread has eight neighbouring elements of one token
template <bool ROPE> struct loss_warps {
    const arguments &a;
    uint32_t thread = thread_index() % WARPGROUP;

    __device__ uint32_t token() const { return thread / 8; }
    __device__ uint32_t element() const { return thread % 8 * 8; }   // the first of the eight
    __device__ uint32_t in_row() const { return thread % 8 * 16; }   // byte of the eight in a padded row
    __device__ uint32_t own() const { return swizzled(token(), thread % 8); }  // byte of the eight in a tile

    // lr of two mini-batches. Each warp loads lr of its own four tokens of both.
    __device__ void load_lr(int two) const {
        const uint32_t lane = thread % 32, at = lane / 4 * B + thread / 32 * 4 + lane % 4;
        const int t = two * (2 * B) + int(at);
        const bool there = t < a.T;
        if (lane < 2 * 4)
            copy_ahead(AT(lr) + slot_of<LR_SLOTS / 2>(two) * (2 * LR_ROW) + at * 4,
                       a.lr + (there ? (int64_t(batch_index()) * a.T + t) * a.H + head_index() : 0), there);
    }
    __device__ void await_kq(int i) const {
        mbarrier_wait(kq_full(i), parity_of<KQ_SLOTS>(i));
        if constexpr (ROPE) {
            const float *by = &ROTATIONS.cos_sin[token()][element()];
            const float4_ low = load_global_f4(by), high = load_global_f4(by + 4);
#pragma unroll 1
            for (uint32_t at = kq_tile(i) + own(), half = 0; half < 2; ++half, at += TILE) {
                const uint4_ x = load_u4(at);
                store_u4(at, {rotated_by(x.x, low.x, low.y), rotated_by(x.y, low.z, low.w),
                              rotated_by(x.z, high.x, high.y), rotated_by(x.w, high.z, high.w)});
            }
            publish();
            barrier_sync(LOSS, WARPGROUP);
        }
    }

    // Stores P1, from K_{i+1} K_i^T and Q_{i-1} K_{i-1}^T. A warp computes eight columns of one of the two matmuls.
    __device__ void share_p1(int i) const {
        const uint32_t lane = thread % 32, keys = thread / 64, column0 = thread / 32 % 2 * 8;
        const uint32_t rows = kq_tile(i + 1) + keys * TILE + swizzled(lane % 16, lane / 16);
        const uint32_t columns = k_tile(i - 1 + keys) + swizzled(column0 + lane % 8, lane / 8);
        float p[4] = {0, 0, 0, 0}, p_high[4] = {0, 0, 0, 0};
        uint32_t x[4][4], y[2][4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            load_matrices(y[k], columns ^ (k * 2 * K_STEP));
            load_matrices(x[2 * k], rows ^ (k * 2 * K_STEP));
            load_matrices(x[2 * k + 1], rows ^ ((k * 2 + 1) * K_STEP));
        }
        multiply_warp<bf16>(p, x[0], y[0][0], y[0][1]);
        multiply_warp<bf16>(p_high, x[2], y[1][0], y[1][1]);
        multiply_warp<bf16>(p, x[1], y[0][2], y[0][3]);
        multiply_warp<bf16>(p_high, x[3], y[1][2], y[1][3]);
#pragma unroll
        for (int e = 0; e < 4; ++e) p[e] += p_high[e];
        const uint32_t j = column0 + lane % 4 * 2;
        const uint32_t slot = slot_of<P1_SLOTS>(i);
        const uint32_t to = (keys ? AT(p1k) + slot * P1K_TILE : AT(p1q) + slot * P1Q_TILE) + column0 * 16 + lane * 4;
        const float u = load_f(AT(update));
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t t = lane / 4 + half * 8;
            float first = u, second = u, more = 0;
            if (!keys) {
                const float ratio = load_f(AT(ratio) + t * 4);
                first = (j <= t ? ratio : 0.f) - u;
                second = (j < t ? ratio : 0.f) - u;
                more = u;
            }
            store_u(to + half * 256,
                    to_bf16(fmaf(first, p[2 * half], first + more), fmaf(second, p[2 * half + 1], second + more)));
        }
        publish();
        mbarrier_arrive(p1_ready(i));
    }

    // c = gamma (beta - (V - K)) and its sum
    __device__ void gradient_offset(int i, float (&c)[8], float &sum) const {
        mbarrier_wait(v_full(i), parity_of<V_SLOTS>(i));
        uint4_ k = load_u4(k_tile(i) + own()), v = load_u4(v_tile(i) + own());
        const uint32_t kk[4] = {k.x, k.y, k.z, k.w}, vv[4] = {v.x, v.y, v.z, v.w};
        float gamma[8];
        load_octet(gamma, AT(gamma) + in_row());
        load_octet(c, AT(beta) + in_row());
        sum = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            c[2 * e] = gamma[2 * e] * (c[2 * e] + (bf16_first(kk[e]) - bf16_first(vv[e])));
            c[2 * e + 1] = gamma[2 * e + 1] * (c[2 * e + 1] + (bf16_second(kk[e]) - bf16_second(vv[e])));
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += c[e];
    }
    // Stores step * G2, where G2 = (g - mean(g) - xhat mean(g xhat)) / std and g = gamma^2 xhat + c.
    // One round of shuffles sums z, z^2, w z, w z^2, c z and c over the token, with w = gamma^2.
    __device__ void share_g2(int i, const float (&c)[8], float sum_c, float step) const {
        const uint32_t q16 = in_row(), z_at = AT(z2) + token() * ROW + q16;
        float z[8], other[8], w[8], sums[6] = {0, 0, 0, 0, 0, sum_c};
        load_octet(z, z_at);
        load_octet(other, z_at + B * ROW);
        load_octet(w, AT(gamma_gamma) + q16);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            z[e] += other[e];
            const float wz = w[e] * z[e];
            sums[0] += z[e];
            sums[1] += wz;
            sums[2] = fmaf(z[e], z[e], sums[2]);
            sums[3] = fmaf(wz, z[e], sums[3]);
            sums[4] = fmaf(c[e], z[e], sums[4]);
        }
        sum_over_token(sums);
        const float sum_z = sums[0], sum_wz = sums[1], sum_zz = sums[2], sum_wzz = sums[3], sum_cz = sums[4];
        const float sum_w = load_f(AT(sum_gg));
        sum_c = sums[5];
        const float mean = sum_z * (1.f / D), variance = fmaxf(fmaf(sum_zz, 1.f / D, -mean * mean), 0.f);
        const float rstd = inverse_root(variance + B2_KEPT * B2_KEPT * EPS);
        const float mean_g = fmaf(rstd, fmaf(-mean, sum_w, sum_wz), sum_c) * (1.f / D);
        const float from_z = fmaf(mean, fmaf(mean, sum_w, -2.f * sum_wz), sum_wzz);
        const float dot = rstd * (rstd * from_z + fmaf(-mean, sum_c, sum_cz)) * (1.f / D);  // mean(g xhat)
        const float scale = rstd * step, aa = rstd * scale, bb = -dot * aa, dd = -mean_g * scale;
        load_octet<true>(w, AT(gamma_gamma) + q16);
        uint32_t g2[4];
#pragma unroll
        for (int e = 0; e < 8; ++e) z[e] = fmaf(z[e] - mean, fmaf(w[e], aa, bb), fmaf(c[e], scale, dd));
#pragma unroll
        for (int e = 0; e < 4; ++e) g2[e] = to_f16(z[2 * e], z[2 * e + 1]);
        launder(i);  // recompute the slot here, so that no register holds it before
        store_u4(AT(g2) + slot_of<X2_SLOTS>(i) * TILE + own(), {g2[0], g2[1], g2[2], g2[3]});
        publish();
        mbarrier_arrive(AT(g2_ready));
    }

    // Stores the rows of K and lr G2 of a short last mini-batch; the rows after them are 0
    __device__ void store_rows() const {
        const int pending = a.T % B, last = a.T / B, t = last * B + int(token());
        const bool valid = int(token()) < pending;
        const int64_t to = (state_index(a) * B + token()) * D + element();
        const uint16_t *k = a.k;
        k += valid ? batch_index() * a.k_stride[0] + t * a.k_stride[1] + head_index() * a.k_stride[2] : 0;
        k += element();
        const float scale = -1.f / (G2_KEPT * load_f(AT(rho)));
#pragma unroll 1
        for (int e = 0; e < 4; ++e) {
            uint32_t x = valid ? load_global(k + 2 * e) : 0;
            uint32_t g2 = load_u(AT(g2) + last % int(X2_SLOTS) * TILE + own() + e * 4);
            if constexpr (ROPE) x = rotated(x, token(), element() + 2 * e);
            a.k_rows[to + 2 * e] = bf16_first(x);
            a.k_rows[to + 2 * e + 1] = bf16_second(x);
            a.g2_rows[to + 2 * e] = valid ? scale * f16_first(g2) : 0.f;
            a.g2_rows[to + 2 * e + 1] = valid ? scale * f16_second(g2) : 0.f;
        }
    }

    __device__ void run() {
        const int count = a.count;
        load_lr(0);
        if (uniform(thread / 32) == 0) {
            load_q(a, 0);
            load_k(a, 0);
            load_q(a, 1);
            load_k(a, 1);
            load_v(a, 0);
        }
        await_kq(0);
        mbarrier_arrive(p1_ready(-1));
        mbarrier_arrive(AT(g2_ready));  // mini-batch -1
#pragma unroll 1
        for (int i = 0;; ++i) {
            launder(thread);
            await_kq(i + 1);
            share_p1(i);
            if (i == count) break;
            float c[8], sum_c;
            gradient_offset(i, c, sum_c);
            if (slot_of<2>(i) == 0) {
                await_copies();  // started two mini-batches ago
                __syncwarp();
                load_lr((i >> 1) + 1);
            }
            const float scale = -B2_KEPT * G2_KEPT * load_f(AT(rho));
            const float step = scale * load_f(AT(lr) + slot_of<LR_SLOTS>(i) * LR_ROW + token() * 4);
            need(sum_c);
            mbarrier_wait(AT(z2_ready), parity_of<1>(i));
            share_g2(i, c, sum_c, step);
        }
        // The last loads, of tokens beyond the end, must complete before the CTA exits
        mbarrier_wait(kq_full(count + 2), parity_of<KQ_SLOTS>(count + 2));
        for (int i = count; i < count + 2; ++i) mbarrier_wait(v_full(i), parity_of<V_SLOTS>(i));
        store_rows();
    }
};

}  // namespace ttt::mlp_block
