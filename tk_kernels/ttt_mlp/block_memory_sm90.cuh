// TTT-MLP forward, mini-batches of 16 tokens: constants, arguments and the shared-memory map of a CTA.
// block_sm90.cuh describes the design and the notation.
#pragma once

#include <bit>
#include <cstddef>

namespace ttt::mlp_block {

using namespace ttt::sm90;

constexpr uint32_t D = 64, F = 256;  // head dimension, hidden units
constexpr int B = 16;                // tokens per mini-batch
constexpr int GROUP = 4;             // mini-batches per group
constexpr int THREADS = 512, WARPGROUP = 128;
constexpr int STATE_REGISTERS = 200, LOSS_REGISTERS = 40, ANSWER_REGISTERS = 72;  // per thread
static_assert(2 * STATE_REGISTERS + LOSS_REGISTERS + ANSWER_REGISTERS == 512);    // findings/setmaxnreg_pool.md
constexpr float EPS = 1e-6f;
constexpr float LARGEST_RATIO = 64.f;  // largest s_t / rho

// Factors of stored values: W1_KEPT * W1 is stored, and so on. Powers of two are exact and save multiplications.
constexpr float W1_KEPT = 0.25f, W2_KEPT = 8.f, B2_KEPT = 4.f, G1_KEPT = 0.25f, G2_KEPT = 16.f, X2_KEPT = 0.5f;
static_assert(X2_KEPT * W2_KEPT == B2_KEPT && X2_KEPT * G2_KEPT == W2_KEPT && G1_KEPT == W1_KEPT);
constexpr uint32_t twice(uint32_t x) { return x | x << 16; }   // a word with the 16-bit value in both halves
constexpr uint32_t F16_ONES = twice(0x3c00), BF16_ONES = twice(0x3f80);
constexpr uint32_t F16_QUARTERS = twice(0x3400);
static_assert(B2_KEPT / G2_KEPT == 0.25f && X2_KEPT * X2_KEPT == 0.25f);  // F16_QUARTERS

struct arguments {
    tensor_map q_map, k_map, v_map;               // q, k, v: [batch, T, H, D] bfloat16
    const uint16_t *q, *k;                        // [batch, T, H, D] bfloat16
    uint16_t *out;                                // [batch, T, H, D] bfloat16, contiguous
    int64_t q_stride[3], k_stride[3];             // of batch, T and H
    const float *lr, *token_scale;                // [batch, T, H], [B]
    const float *ln_weight, *ln_bias;             // [H, D]
    const float *W1, *b1, *W2, *b2;               // [batch, H, D, F], [batch, H, F], [batch, H, F, D], [batch, H, D]
    float *W1_out, *b1_out, *W2_out, *b2_out;     // the same shapes
    float *k_rows, *x2_rows, *g1_rows, *g2_rows;  // [batch, H, B, D or F]: rows of a short last mini-batch
    int T, H;
    int full, count;  // whole mini-batches; mini-batches that the loop covers, a multiple of GROUP

    void set_length(int tokens) {
        T = tokens;
        full = T / B;
        count = (T + GROUP * B - 1) / (GROUP * B) * GROUP;
    }
};

// ------------------------------------------------------------------------------------------------ shared memory
constexpr uint32_t BASE = 1024;        // first address of dynamic shared memory
constexpr uint32_t LARGEST = 232448;   // bytes of dynamic shared memory that a CTA may have
constexpr uint32_t COLUMNS = 64;       // 16-bit elements in a swizzled row of 128 bytes
constexpr uint32_t BLOCKS = F / COLUMNS;
constexpr uint32_t KQ_SLOTS = 4, V_SLOTS = 2, P1_SLOTS = 2, LR_SLOTS = 4;  // mini-batches in each ring
constexpr uint32_t X2_SLOTS = 2 * GROUP;                                   // the same for X2 and G2
constexpr uint32_t ZBAR_SLOTS = 6;  // one group that the answer warps read, two mini-batches that the state warps write

// D floats with padding after the first half. `row_byte` puts 4 of 8 neighbours into each half. Eight threads that each
// read eight neighbours, 16 bytes at a time, then hit all 32 banks. So do the transposing stores of a warp.
struct padded_row {
    float low[D / 2], padding[4], high[D / 2];
};
struct queries_and_keys {
    uint16_t q[B][D], k[B][D];
};
struct query_scores {
    uint16_t queries[B][B], keys[B][B];
};
struct shared_map {
    uint16_t w2[2][F][D];  // f16: [1] at a group's start, kept for the answers of the group before; [0] later
    uint16_t x2[BLOCKS][X2_SLOTS][B][COLUMNS];  // f16
    uint16_t zbar[BLOCKS][ZBAR_SLOTS][B][COLUMNS];  // f16: Z1bar
    uint16_t g2[X2_SLOTS][B][D];  // f16
    queries_and_keys kq[KQ_SLOTS];  // bf16: Q_{i-2} and K_i
    uint32_t diagonal[32][4];  // f16 pairs for each lane: C for n = i
    float b2_end[2][D];  // b2 when each of the last two groups ended, by group % 2
    uint16_t v[V_SLOTS][B][D];  // bf16
    query_scores p1q[P1_SLOTS];  // bf16, not swizzled: P1 of queries; u in the rows of keys
    uint16_t p1k[P1_SLOTS][B][B];  // bf16, not swizzled
    padded_row z2[2][B];  // the part of each state warpgroup
    padded_row gamma, beta, gamma_gamma;  // LayerNorm
    float b1[F];  // times W1_KEPT, in the order of b1_byte
    float lr[LR_SLOTS][B];
    float ratio[B];  // s_t / rho
    float rho, update, sum_gg;  // rho, u, sum of gamma^2
    uint32_t later;  // two f16 of -u: C of a later mini-batch
    // Mbarriers. "a > b": all threads of warps a arrive, warps b wait. Completion n has parity n % 2.
    // n for mini-batch i: kq_full i / 4, v_full i / 2, p1_ready (i + 1) / 2, g2_ready i + 1, z2_ready i.
    // n for group g: group_ready g + 1, group_read g.
    uint64_t kq_full[KQ_SLOTS];  // TMA > loss: Q_{i-2} and K_i
    uint64_t v_full[V_SLOTS];  // TMA > loss
    uint64_t p1_ready[P1_SLOTS];  // loss > state: P1, K_{i+1} and Q_{i-1}; from i = -1 on
    uint64_t g2_ready;  // loss > state: G2_i, from i = -1 on; Z2_i is free
    uint64_t z2_ready;  // state > loss: both parts of Z2_i
    uint64_t group_ready;  // state > answers: a whole group; the first completion has none
    uint64_t group_read;  // answers > state: the buffers of a group are free
};

#define AT(field) uint32_t(BASE + offsetof(shared_map, field))  // a field's address
constexpr uint32_t BYTES = sizeof(shared_map);
static_assert(BYTES <= LARGEST);
static_assert((AT(v) | AT(kq) | AT(x2) | AT(zbar) | AT(g2)) % 1024 == 0);

// Sizes in bytes
constexpr uint32_t SWIZZLED_ROW = COLUMNS * 2;
constexpr uint32_t TILE = sizeof(shared_map::g2[0]);  // 16 swizzled rows
constexpr uint32_t BLOCK = 64 * SWIZZLED_ROW;  // 64 swizzled rows
constexpr uint32_t W2_BYTES = sizeof(shared_map::w2[0]);
constexpr uint32_t X2_BLOCK = sizeof(shared_map::x2[0]);
constexpr uint32_t ZBAR_BLOCK = sizeof(shared_map::zbar[0]);
constexpr uint32_t KQ_TILE = sizeof(queries_and_keys);
constexpr uint32_t P1Q_TILE = sizeof(query_scores);
constexpr uint32_t P1K_TILE = sizeof(shared_map::p1k[0]);
constexpr uint32_t ROW = sizeof(padded_row), HALF_ROW = offsetof(padded_row, high);
constexpr uint32_t LR_ROW = sizeof(shared_map::lr[0]);
constexpr uint32_t B2_ROW = sizeof(shared_map::b2_end[0]);
constexpr uint32_t MBARRIER = sizeof(uint64_t);

// Named barriers: the loss warps, the answer warps, the warps of each state warpgroup
enum { LOSS = 1, ANSWER, STATE };

// Slot of mini-batch (or group) i in a ring of SLOTS, and the parity with which the slot's mbarrier completes
template <uint32_t SLOTS> __device__ constexpr int slot_of(int i) {
    static_assert(std::has_single_bit(SLOTS));
    return i & int(SLOTS - 1);
}
template <uint32_t SLOTS> __device__ constexpr int parity_of(int i) { return i >> std::countr_zero(SLOTS) & 1; }
__device__ constexpr int group_of(int i) { return i >> std::countr_zero(uint32_t(GROUP)); }
__device__ constexpr uint32_t kq_tile(int i) { return AT(kq) + slot_of<KQ_SLOTS>(i) * KQ_TILE; }  // Q_{i-2}
__device__ constexpr uint32_t k_tile(int i) { return kq_tile(i) + TILE; }
__device__ constexpr uint32_t v_tile(int i) { return AT(v) + slot_of<V_SLOTS>(i) * TILE; }
__device__ constexpr uint32_t kq_full(int i) { return AT(kq_full) + slot_of<KQ_SLOTS>(i) * MBARRIER; }
__device__ constexpr uint32_t v_full(int i) { return AT(v_full) + slot_of<V_SLOTS>(i) * MBARRIER; }
__device__ constexpr uint32_t p1_ready(int i) { return AT(p1_ready) + slot_of<P1_SLOTS>(i) * MBARRIER; }

// Byte of an element of b1. The four elements of a lane are neighbours: f, f + 8, f + 64 and f + 72.
__device__ inline uint32_t b1_byte(uint32_t f) {
    return (f / 128 * 128 + (f % 64 / 16 * 8 + f % 8) * 4 + f / 64 % 2 * 2 + f / 8 % 2) * 4;
}
// Byte of element d in a padded row
__device__ inline uint32_t row_byte(uint32_t d) { return d % 8 / 4 * HALF_ROW + d / 8 * 16 + d % 4 * 4; }
// Byte of a 16-byte piece in rows of 128 bytes, in the swizzle of wgmma and TMA
__device__ inline uint32_t swizzled(uint32_t row, uint32_t piece) {
    return row * SWIZZLED_ROW + ((piece ^ (row & 7)) << 4);
}

// Descriptors of wgmma operands. They count in units of 16 bytes.
constexpr uint32_t UNIT = 16;
constexpr uint32_t SWIZZLE_128_BYTES = 1u << 30;
constexpr uint32_t K_STEP = 32;  // bytes of 16 elements along k in a swizzled row
// The lower word. To move the operand by n bytes, add n / UNIT.
__device__ constexpr uint32_t operand(uint32_t at, uint32_t leading = 16) { return at / UNIT | leading / UNIT << 16; }
// 128-byte rows, swizzled, eight of them 1024 bytes apart
__device__ inline uint64_t tile(uint32_t lower, uint32_t plus = 0) {
    return words(lower + plus / UNIT, 1024 / UNIT | SWIZZLE_128_BYTES);
}
// 8 x 8 matrices of 128 contiguous bytes: neighbours along k first, then along rows
__device__ inline uint64_t matrices(uint32_t lower) { return words(lower, 256 / UNIT); }

// ---------------------------------------------------------------------------------------------- tokens
// The grid is [H, batch]; neighbouring CTAs have neighbouring sequences
__device__ inline int head_index() { return block_y(); }
__device__ inline int batch_index() { return block_x(); }
__device__ inline int64_t state_index(const arguments &a) { return int64_t(batch_index()) * a.H + head_index(); }

// One warp loads tokens into shared memory by TMA; `full`: the mbarrier that completes
enum { NOTHING, QUERIES, KEYS, VALUES };
__device__ inline void load_tile(uint32_t to, const tensor_map &from, int i, uint32_t full) {
    if (!elected()) return;
    mbarrier_expect(full, TILE);
    load_tokens(to, &from, batch_index(), i * B, head_index(), full);
}
__device__ inline void load_q(const arguments &a, int i) { load_tile(kq_tile(i), a.q_map, i - 2, kq_full(i)); }
__device__ inline void load_k(const arguments &a, int i) { load_tile(k_tile(i), a.k_map, i, kq_full(i)); }
__device__ inline void load_v(const arguments &a, int i) { load_tile(v_tile(i), a.v_map, i, v_full(i)); }

// ------------------------------------------------------------------------------------------------ gelu of z' = z / 4
// A = sqrt(2 / pi), C = 0.044715
constexpr uint32_t GELU_LINEAR = twice(0x4262), GELU_CUBIC = twice(0x4091);  // 4 A, 64 A C
constexpr uint32_t SLOPE_LINEAR = twice(0x1a62), SLOPE_CUBIC = twice(0x1eda);  // 2^-10 4 A, 2^-10 3 * 64 A C
constexpr uint32_t SLOPE_UNIT = twice(0x1400), LARGEST_SQUARE = twice(0x4c00);  // 2^-10, 16
// tanh(A z + A C z^3)
__device__ inline uint32_t gelu_tanh(uint32_t z) {
    return tanh_f16(multiply_f16(z, fma_f16(multiply_f16(z, z), GELU_CUBIC, GELU_LINEAR)));
}
__device__ inline uint32_t half_gelu(uint32_t z, uint32_t t) { return fma_f16(z, t, z); }
// gelu' / 512 = 2^-10 (1 + t + z (1 - t^2) (A + 3 A C z^2)). 1 - t^2 is 0 long before z'^2 reaches 16.
__device__ inline uint32_t gelu_slope(uint32_t z, uint32_t t) {
    uint32_t squared = min_f16(multiply_f16(z, z), LARGEST_SQUARE);
    uint32_t first = multiply_f16(fma_f16(negate_f16(t), t, F16_ONES), z);
    return fma_f16(first, fma_f16(squared, SLOPE_CUBIC, SLOPE_LINEAR), fma_f16(t, SLOPE_UNIT, SLOPE_UNIT));
}

}  // namespace ttt::mlp_block
