// TTT-MLP forward (dual form) on Hopper, mini-batches of 16 tokens: the work of one CTA, one (sequence, head). Four
// warpgroups of different registers:
//
//   state (two, 128 rows of F each): W1^T [f, d] with b1, and W2^T [d, f] with b2, float32, in registers but for b1. On the
//       chain from one mini-batch to the next: X2 = gelu(Z1), its part of Z2 = X2 W2 + b2 with W2 from registers (k: its
//       own f), G1 = (G2 W2^T) * gelu'(Z1), corrections, updates. W2 leaves as f16 [f, d] for G1 and the answers, Z1bar
//       as f16. While a fence takes its time they begin the loads of tokens by TMA.
//   loss (one): P1 (products of tokens with tokens), and the gradient G2 of LayerNorm, on the chain too.
//   answers (one): four mini-batches (64 queries) at once, a group of mini-batches behind, one mini-batch a warp: X2bar =
//       gelu(Z1bar), P2 = X2bar X2^T, Z2bar = X2bar W2 + P2 G2, LayerNorm, output.
//
// Other than in ttt_layer.md, B = 16 is the tokens of a mini-batch and i counts mini-batches. D = 64, F = 256. With F as an
// axis everything is transposed, F (or D) down the rows, so that a rounded accumulator is the next left operand. Layer 1
// has bf16 operands (K, Q, W1, G1, P1), layer 2 f16 (X2, W2, G2, P2); sums are float32, but those of P2 and of X2bar W2, which
// are f16. s_t: token_scale. Gradients are kept as -rho lr G, where rho = s_15 and
// u = s_15 / rho = 1, unless s_15 is below a 64th of the largest scale: then rho is s_15 times a power of two, so that
// s_t / rho stays in f16's range, and u is a power of two below 1, by which every update and correction is multiplied.
//   keys      Z1_{i+1} = K_{i+1} W1_i + b1_i + u (K_{i+1} K_i^T + 1) G1_i
//   queries   Z1bar_i = Q_i W1_{i+1} + b1_{i+1} + (s_t / rho [j <= t] - u) (Q_i K_i^T + 1) G1_i
//   answers   Z2bar_i = X2bar_i W2_end + b2_end + sum over n >= i of C_in (X2bar_i X2_n^T + 1) G2_n, end: after the group,
//             C = s_t / rho [j <= t] - u for n = i, -u for the group's later mini-batches
// What is at hand then is b1_{i-1}: for Z1_{i+1} and Z1bar_{i-1} the product with G1_{i-1} adds u times its sum over tokens.
// T is filled up with tokens of 0 whose lr is 0 to a whole number of groups; they change nothing. A short last mini-batch
// is applied inside, as its outputs need it, and the state is stored before that.
//
// Powers of two, all exact, which save multiplications. Kept: W1 / 4, b1 / 4, so z' = z / 4 and gelu / 2 = z' + z' tanh;
// 8 W2; 4 b2, so 4 Z2; 16 G2; G1 / 4.
#pragma once

namespace ttt::mlp_block {

using namespace ttt::sm90;

constexpr uint32_t D = 64, F = 256;
constexpr int B = 16, GROUP = 4;  // tokens of a mini-batch, mini-batches of a group
constexpr int THREADS = 512, WARPGROUP = 128;
constexpr int STATE_REGISTERS = 200, LOSS_REGISTERS = 40, ANSWER_REGISTERS = 72;  // a thread
static_assert(2 * STATE_REGISTERS + LOSS_REGISTERS + ANSWER_REGISTERS == 512);    // findings/setmaxnreg_pool.md
constexpr float EPS = 1e-6f;
constexpr float W1_KEPT = 0.25f, W2_KEPT = 8.f, B2_KEPT = 4.f, G1_KEPT = 0.25f, G2_KEPT = 16.f, X2_KEPT = 0.5f;
static_assert(X2_KEPT * W2_KEPT == B2_KEPT && X2_KEPT * G2_KEPT == W2_KEPT && G1_KEPT == W1_KEPT);
constexpr float LARGEST_RATIO = 64.f;  // of s_t / rho

struct arguments {
    tensor_map q_map, k_map, v_map;                // q, k, v: [batch, T, H, D] bfloat16
    const uint16_t *q, *k;
    uint16_t *out;                                 // the same, contiguous
    int64_t q_stride[3], k_stride[3];              // of batch, T and H
    const float *lr, *token_scale;                 // [batch, T, H], [B]
    const float *ln_weight, *ln_bias;              // [H, D]
    const float *W1, *b1, *W2, *b2;                // [batch, H, ..] of [D, F], [F], [F, D] and [D]
    float *W1_out, *b1_out, *W2_out, *b2_out;      // the same
    float *k_rows, *x2_rows, *g1_rows, *g2_rows;   // [batch, H, B, ..] of D, F, F and D: a short last mini-batch
    int T, H;
    int full, count;                               // mini-batches: whole ones; all that are gone through, whole groups

    void set_length(int tokens) { T = tokens, full = T / B, count = (T + GROUP * B - 1) / (GROUP * B) * GROUP; }
};

// ------------------------------------------------------------------------------------------------ RoPE
// By series, as there are no sine and cosine at compile time; within 1e-14 for the angles of a mini-batch, below 16
constexpr double sine(double x) {
    constexpr double PI = 3.14159265358979323846;
    while (x > PI) x -= 2 * PI;
    double sum = x, term = x;
    for (int n = 1; n < 14; ++n) term *= -x * x / ((2 * n) * (2 * n + 1)), sum += term;
    return sum;
}
struct rotations {
    float of[B][D];  // of each token of a mini-batch, cos and sin of each pair's angle: t 10000^(-2 pair / D)
};
constexpr rotations make_rotations() {
    rotations x{};
    for (int t = 0; t < B; ++t) {
        double angle = t;
        for (uint32_t even = 0; even < D; even += 2) {
            x.of[t][even] = float(sine(angle + 1.57079632679489661923)), x.of[t][even + 1] = float(sine(angle));
            angle *= 0.7498942093324559;  // 10000^(-1 / 32)
        }
    }
    return x;
}
__device__ constexpr rotations ROTATIONS = make_rotations();

// ------------------------------------------------------------------------------------------------ shared memory
constexpr uint32_t BASE = 1024;  // where dynamic shared memory begins
constexpr uint32_t SLOTS = 6;    // mini-batches of Z1bar: a group that is read, and two that are written meanwhile
constexpr uint32_t TILE = B * 128, KQ_TILE = 2 * TILE, BLOCK = 64 * 128;  // bytes: 16 tokens, queries over keys, 64 rows
constexpr uint32_t W2_BYTES = F * 128, X2_BLOCK = 2 * GROUP * TILE, ZBAR_BLOCK = SLOTS * TILE, P1Q_TILE = 2 * B * B * 2, P1K_TILE = B * B * 2;
// A row of D floats has a gap between its halves. `place` puts 4 of 8 neighbours into each half: eight threads that read
// eight neighbours each, 16 bytes at a time, then hit 32 banks, and so do the transposing stores of a warp.
constexpr uint32_t HALF_ROW = 36 * 4, ROW = 68 * 4;  // bytes

constexpr uint32_t W2 = BASE;                                // [current, as the last group ended][F][D] f16
constexpr uint32_t X2 = W2 + 2 * W2_BYTES;                   // [4 blocks of F][i % 8][t][64] f16
constexpr uint32_t ZBAR = X2 + 4 * X2_BLOCK;                 // [4][i % SLOTS][t][64] f16: Z1bar
constexpr uint32_t G2 = ZBAR + 4 * ZBAR_BLOCK;               // [i % 8][t][D] f16
constexpr uint32_t KQ = G2 + 2 * GROUP * TILE;               // [i % 4]: Q_{i-2} over K_i, bf16
constexpr uint32_t DIAGONAL = KQ + 4 * KQ_TILE;              // [lane]: C within a mini-batch, as a lane of a warp needs it
constexpr uint32_t B2_END = DIAGONAL + 512;                  // [group % 2][D] float: as a group ended
constexpr uint32_t V = B2_END + 2 * D * 4;                     // [i % 2][t][D] bf16
constexpr uint32_t P1Q = V + 2 * TILE;                       // [i % 2][32][16] bf16, not swizzled: queries; rows of keys: u
constexpr uint32_t P1K = P1Q + 2 * P1Q_TILE;                 // [i % 2][16][16]
constexpr uint32_t Z2 = P1K + 2 * P1K_TILE;                  // [state warpgroup][t] rows
constexpr uint32_t GAMMA = Z2 + 2 * B * ROW, BETA = GAMMA + ROW, GAMMA_GAMMA = BETA + ROW;  // of LayerNorm
constexpr uint32_t B1 = GAMMA_GAMMA + ROW;                   // [F] float, times W1_KEPT, in the order of b1_place
constexpr uint32_t LR = B1 + F * 4;                          // [i % 4][t] float
constexpr uint32_t RATIO = LR + 4 * B * 4;                   // [t] float: s_t / rho
constexpr uint32_t RHO = RATIO + B * 4, UPDATE = RHO + 4, SUM_GG = UPDATE + 4;  // rho, u, sum of gamma^2
constexpr uint32_t LATER = SUM_GG + 4;                       // -u, twice, f16: C of a later mini-batch
// Mbarriers. "a > b": all threads of warps a arrive, warps b wait.
// Completion n is awaited with parity n & 1. n of mini-batch i: KQ_FULL i / 4, V_FULL i / 2, P1_READY (i + 1) / 2,
// G2_READY i + 1, Z2_READY i; of group g of four: GROUP_READY g + 1, GROUP_READ g
constexpr uint32_t KQ_FULL = (LATER + 4 + 7) / 8 * 8;        // [i % 4] TMA > loss: Q_{i-2} and K_i
constexpr uint32_t V_FULL = KQ_FULL + 32;                    // [i % 2] TMA > loss
constexpr uint32_t P1_READY = V_FULL + 16;                   // [i % 2] loss > state: P1, K_{i+1} and Q_{i-1}; from i = -1 on
constexpr uint32_t G2_READY = P1_READY + 16;                 // loss > state: G2_i, from i = -1 on; Z2_i has been read
constexpr uint32_t Z2_READY = G2_READY + 8;                  // state > loss: both parts of Z2_i
constexpr uint32_t GROUP_READY = Z2_READY + 8;               // state > answers: all of a group; first of none
constexpr uint32_t GROUP_READ = GROUP_READY + 8;             // answers > state: its buffers have been read
constexpr uint32_t END = GROUP_READ + 8;
constexpr uint32_t BYTES = END - BASE;
static_assert(BYTES <= 232448 && V % 1024 == 0 && KQ % 1024 == 0);

// Named barriers: the loss warps, the answer warps, each state warpgroup among themselves
enum { LOSS = 1, ANSWER, STATE };

// Byte of an element of b1: what a lane needs is together, of f, f + 8, f + 64 and f + 72
__device__ inline uint32_t b1_place(uint32_t f) { return (f / 128 * 128 + (f % 64 / 16 * 8 + f % 8) * 4 + f / 64 % 2 * 2 + f / 8 % 2) * 4; }
__device__ inline uint32_t place(uint32_t d) { return d % 8 / 4 * HALF_ROW + d / 8 * 16 + d % 4 * 4; }
// Byte of a 16-byte piece of a row of 128 bytes, swizzled as wgmma and TMA have it
__device__ inline uint32_t swizzled(uint32_t row, uint32_t piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }
// Operands in shared memory: the lower word, to which addresses / 16 may be added, and descriptors of it: 128-byte rows,
// swizzled, 8 of them 1024 bytes apart; or 8 x 8 matrices of 128 contiguous bytes, k next to each other, then rows
__device__ constexpr uint32_t operand(uint32_t at, uint32_t leading = 16) { return at >> 4 | (leading >> 4) << 16; }
__device__ inline uint64_t tile(uint32_t lower, uint32_t plus = 0) { return words(lower + (plus >> 4), 1024 >> 4 | 1u << 30); }
__device__ inline uint64_t matrices(uint32_t lower) { return words(lower, 256 >> 4); }

// ------------------------------------------------------------------------------------------------ gelu, of z' = z / 4
constexpr uint32_t twice(uint32_t f16) { return f16 | f16 << 16; }
// tanh(A z + A 0.044715 z^3), A = sqrt(2 / pi): 4 A and 64 A 0.044715
__device__ inline uint32_t gelu_tanh(uint32_t z) {
    return tanh_f16(multiply_f16(z, fma_f16(multiply_f16(z, z), twice(0x4091), twice(0x4262))));
}
__device__ inline uint32_t half_gelu(uint32_t z, uint32_t t) { return fma_f16(z, t, z); }
// gelu' / 512 = 2^-10 (1 + t + z (1 - t^2) (A + 3 A 0.044715 z^2)); 1 - t^2 is 0 long before z'^2 reaches 16
__device__ inline uint32_t gelu_slope(uint32_t z, uint32_t t) {
    uint32_t squared = min_f16(multiply_f16(z, z), twice(0x4c00));
    uint32_t first = multiply_f16(fma_f16(negate_f16(t), t, twice(0x3c00)), z);
    return fma_f16(first, fma_f16(squared, twice(0x1eda), twice(0x1a62)), fma_f16(t, twice(0x1400), twice(0x1400)));
}

// The grid is [H, batch], batch next to each other
__device__ inline int head_index() { return block_y(); }
__device__ inline int batch_index() { return block_x(); }
__device__ inline int64_t state_index(const arguments &a) { return int64_t(batch_index()) * a.H + head_index(); }

// Tokens to shared memory, by a warp
enum { NOTHING, QUERIES, KEYS, VALUES };
__device__ inline void load_tile(uint32_t to, const tensor_map &from, int i, uint32_t full) {
    if (!elected()) return;
    mbarrier_expect(full, TILE);
    load_tokens(to, &from, batch_index(), i * B, head_index(), full);
}
__device__ inline void load_q(const arguments &a, int i) {  // Q_{i-2}, over K_i
    load_tile(KQ + (i & 3) * KQ_TILE, a.q_map, i - 2, KQ_FULL + (i & 3) * 8);
}
__device__ inline void load_k(const arguments &a, int i) { load_tile(KQ + (i & 3) * KQ_TILE + TILE, a.k_map, i, KQ_FULL + (i & 3) * 8); }
__device__ inline void load_v(const arguments &a, int i) { load_tile(V + (i & 1) * TILE, a.v_map, i, V_FULL + (i & 1) * 8); }

// ------------------------------------------------------------------------------------------------ state
// SCALED: W1 and W2 are kept divided by u, so that their updates are plain products
template <bool SCALED> struct state_warps {
    const arguments &a;
    int part, loads;  // loads: the tokens that this warp loads
    // Of this lane: where its row of a transposed matrix is stored, and its Z2. In one register: with two, others spill
    uint32_t both_at = swizzled((lane() & 7) + ((lane() >> 4) << 3), warp() * 2 + ((lane() >> 3) & 1)) << 18 |
                       (Z2 + part * (B * ROW) + column() * ROW + place(row()));
    __device__ uint32_t stored_at() { return launder(both_at), both_at >> 18; }
    __device__ uint32_t z2_at() { return launder(both_at), both_at & (1u << 18) - 1; }
    const uint32_t zbar_blocks = ZBAR + 2 * part * ZBAR_BLOCK, x2_blocks = operand(X2 + 2 * part * X2_BLOCK, X2_BLOCK);

    float W1t[2][32], W2t[64];
    float b2[2];                     // b2 in the first warpgroup, 0 in the other: rows row() and row() + 8, alike in a row's lanes
    float keys[2][8];                // Z1 of the next keys
    uint32_t g1[2][4], slope[2][4];
    uint32_t slot = SLOTS - 2;       // of Z1bar_{i-1}
    int i = -1;

    // Made anew at every use: there are no registers to keep them. Rows of F or D in an accumulator, an even column
    __device__ static uint32_t lane() { return thread_index() % 32; }
    __device__ static uint32_t warp() { return thread_index() / 32 % 4; }
    __device__ static uint32_t row() { return 16 * warp() + lane() / 4; }
    __device__ static uint32_t column() { return 2 * (lane() % 4); }
    // This lane's four of b1, rows row() and row() + 8 of either block
    __device__ uint32_t b1_at() const { return B1 + (128 * part) * 4 + (8 * warp() + lane() / 4) * 16; }

    __device__ void load() {
        const uint32_t row = this->row(), column = this->column();
        const float over_u = SCALED ? 1.f / load_f(UPDATE) : 1.f;
        const float *from = a.W1 + state_index(a) * (D * F) + 128 * part + row + column * F;
        // A barrier now and then: or all loads are begun first, and their registers spill
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    W1t[n][4 * j + e] = W1_KEPT * over_u * from[(8 * j + (e & 1)) * F + 64 * n + (e >> 1) * 8];
                if (j % 4 == 3) barrier_sync(STATE + part, WARPGROUP);
            }
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) b2[e] = part == 0 ? B2_KEPT * over_u * a.b2[state_index(a) * D + row + e * 8] : 0.f;
        from = a.W2 + state_index(a) * (F * D) + (128 * part + column) * D + row;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) W2t[4 * j + e] = W2_KEPT * over_u * from[(8 * j + (e & 1)) * D + (e >> 1) * 8];
            if (j % 4 == 3) barrier_sync(STATE + part, WARPGROUP);
        }
        // Zeros from memory: ptxas keeps constants of a loop's start in local memory, from before the registers are taken
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint4_ x = load_u4(G2 + n * 32), y = load_u4(G2 + n * 32 + 16);  // there is no G2 yet
            g1[n][0] = x.x, g1[n][1] = x.y, g1[n][2] = x.z, g1[n][3] = x.w;
            slope[n][0] = y.x, slope[n][1] = y.y, slope[n][2] = y.z, slope[n][3] = y.w;
        }
    }
    __device__ void store() {
        const uint32_t part = thread_index() / WARPGROUP, row = this->row(), column = this->column();
        const float u = SCALED ? load_f(UPDATE) : 1.f;
        float *to = a.W1_out + state_index(a) * (D * F) + 128 * part + row + column * F;
        float *bias = a.b1_out + state_index(a) * F + 128 * part + row;
        sync_warp();  // four lanes have written b1
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    to[(8 * j + (e & 1)) * F + 64 * n + (e >> 1) * 8] = u / W1_KEPT * W1t[n][4 * j + e];
            if (column == 0)
                for (int e = 0; e < 2; ++e) bias[64 * n + 8 * e] = load_f(B1 + b1_place(128 * part + row + n * 64 + e * 8)) / W1_KEPT;
        }
        if (part == 0 && column == 0) {
            bias = a.b2_out + state_index(a) * D + row;
            bias[0] = u / B2_KEPT * b2[0], bias[8] = u / B2_KEPT * b2[1];
        }
        to = a.W2_out + state_index(a) * (F * D) + (128 * part + column) * D + row;
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) to[(8 * j + (e & 1)) * D + (e >> 1) * 8] = u / W2_KEPT * W2t[4 * j + e];
    }
    // The rows of X2 and lr G1 of a short last mini-batch; 0 beyond them, as readers of the state may multiply them by 0
    __device__ void store_rows() {
        const int last = a.T / B, pending = a.T % B;
        const uint32_t part = thread_index() / WARPGROUP, row = this->row(), column = this->column();
        const float scale = -1.f / (G1_KEPT * load_f(RHO));
        const int64_t at = state_index(a) * (B * F) + column * F + 128 * part + row;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {  // registers of a pair of tokens: row + 8 (e & 1), column + 8 (e >> 1)
                const uint32_t token = column + (e >> 1) * 8, f = row + (e & 1) * 8;
                float *rows = a.g1_rows + at + (e >> 1) * 8 * F + 64 * n + (e & 1) * 8;
                rows[0] = int(token) < pending ? scale * bf16_first(g1[n][e]) : 0.f;
                rows[F] = int(token) + 1 < pending ? scale * bf16_second(g1[n][e]) : 0.f;
                rows += a.x2_rows - a.g1_rows;
                const uint32_t x2 = X2 + (2 * part + n) * X2_BLOCK + last % 8 * TILE;
#pragma unroll
                for (uint32_t one = 0; one < 2; ++one) {
                    const bool there = int(token + one) < pending;
                    const uint32_t word = there ? load_u((x2 + swizzled(token + one, f / 8) + f % 8 * 2) & ~3u) : 0;
                    rows[one * F] = (f % 2 ? f16_second(word) : f16_first(word)) / X2_KEPT;
                }
            }
    }

    // b1_i, from G1_{i-1}: project has begun with b1_{i-1}, and has the rest from P1Q
    __device__ void add_to_b1(float u) {
        const float4_ b1 = load_f4(b1_at());
        float sums[2][4] = {};
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply_warp<bf16>(sums[n], g1[n], twice(0x3f80), twice(0x3f80));  // 1
        sync_warp();  // four lanes share them
        if (!SCALED) u = 1.f;
        store_f4(b1_at(), {fused(u, sums[0][0], b1.x), fused(u, sums[0][2], b1.y), fused(u, sums[1][0], b1.z), fused(u, sums[1][2], b1.w)});
    }
    // Z1bar_{i-1} and Z1_{i+1} of block n with W1 as it is
    __device__ void project(int n, float u) {
        const uint32_t kq = operand(KQ) + ((i + 1) & 3) * (KQ_TILE >> 4), p1 = operand(P1Q, 128) + (i & 1) * (P1Q_TILE >> 4);
        uint32_t w[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float first = W1t[n][8 * k + 2 * e], second = W1t[n][8 * k + 2 * e + 1];
                w[k][e] = SCALED ? to_bf16(u * first, u * second) : to_bf16(first, second);
            }
        float z[16];
        begin_products();
        multiply<bf16, 0, 0>(z, w[0], tile(kq));
        multiply<bf16, 0, 1>(z, w[1], tile(kq, 32));
        multiply<bf16, 0, 1>(z, w[2], tile(kq, 64));
        multiply<bf16, 0, 1>(z, w[3], tile(kq, 96));
        multiply<bf16, 0, 1>(z, g1[n], matrices(p1));
        commit_products();
        float b1[2];
        load_f2(b1[0], b1[1], b1_at() + n * 8);
        if (n == 1) publish();  // W2, stored a while ago
        await_products<0>(z);
        uint32_t queries[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            queries[e] = to_f16(z[2 * e] + b1[e & 1], z[2 * e + 1] + b1[e & 1]);
            keys[n][2 * e] = z[8 + 2 * e] + b1[e & 1], keys[n][2 * e + 1] = z[8 + 2 * e + 1] + b1[e & 1];
        }
        store_transposed(zbar_blocks + slot * TILE + n * ZBAR_BLOCK + stored_at(), queries);
    }
    __device__ void project_both() {
        const float u = SCALED ? load_f(UPDATE) : 1.f;
        project(0, u);
        hold(i);  // or what block 1 needs is made while block 0 has the registers
        project(1, u);
        hold(i);  // or b1 is read before, and a register spills
        add_to_b1(u);
        slot = slot == SLOTS - 1 ? 0 : slot + 1;
    }

    // What the next mini-batch needs of G2_i: G1_i, the correction of Z1_{i+1}, W2's update
    __device__ void learn() {
        const uint32_t slot8 = (i & 7) * (TILE >> 4), g2 = operand(G2) + slot8;
        const uint32_t w2 = operand(W2 + part * (2 * BLOCK)) + ((i & 3) == 0 ? W2_BYTES >> 4 : 0);
        float gradient[2][8];
        begin_products();
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            multiply<half, 0, 0, 0>(gradient[n], tile(w2, n * BLOCK), tile(g2));
#pragma unroll
            for (int k = 1; k < 4; ++k) multiply<half, 0, 0, 1>(gradient[n], tile(w2, n * BLOCK + k * 32), tile(g2, k * 32));
            commit_products();
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            await_products<1>(gradient[n]);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                g1[n][e] = to_bf16(gradient[n][2 * e] * f16_first(slope[n][e]), gradient[n][2 * e + 1] * f16_second(slope[n][e]));
            begin_products();
            multiply<bf16, 0, 1>(keys[n], g1[n], matrices(operand(P1K, 128) + (i & 1) * (P1K_TILE >> 4)));
            commit_products();
        }
        multiply<half, 1, 1, 1>(W2t, tile(g2), tile(x2_blocks + slot8));
        commit_products();
    }

    // X2 = gelu(Z1) of a block to shared memory; z and t = tanh(..) are what the slopes need
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
    // W2 as f16, 16 of its f
    __device__ void convert(int k, uint32_t (&w)[4], float u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float first = W2t[8 * k + 2 * e], second = W2t[8 * k + 2 * e + 1];
            w[e] = SCALED ? to_f16(u * first, u * second) : to_f16(first, second);
        }
    }
    // X2 of mini-batch i, this warpgroup's part of Z2, updates of W1 and b2, W2 to shared memory; with Z2 on its way, slopes
    __device__ void answer_keys() {
        const uint32_t slot8 = (i & 7) * TILE, x2 = x2_blocks + (slot8 >> 4), x2_to = X2 + 2 * part * X2_BLOCK + slot8 + stored_at();
        const uint32_t k_before = operand(KQ + TILE) + ((i - 1) & 3) * (KQ_TILE >> 4);
        const float u = SCALED ? load_f(UPDATE) : 1.f;
        uint32_t z[2][4], t[2][4];
        await_products<2>(keys[0]);
        activate(0, x2_to, z, t);
        await_products<0>(keys[1], W2t);
        begin_products();
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply<bf16, 1, 1>(W1t[n], g1[n], tile(k_before));
        commit_products();
        activate(1, x2_to, z, t);
        publish();
        // Until the fence is through: tokens, over K_{i-2}, Q_{i-4} and V_{i-1}, which whoever sent G2_{i-1} has read
        if (loads != NOTHING) {
            if (loads == QUERIES) load_q(a, i + 2);
            if (loads == KEYS) load_k(a, i + 2);
            if (loads == VALUES) load_v(a, i + 1);
        }
        if (part == 0) {
            uint32_t g2[4];
            load_transposed(g2, G2 + ((i - 1) & 7) * TILE + stored_at());
            float bias[4] = {b2[0], b2[0], b2[1], b2[1]};  // b2 += G2_{i-1} summed over tokens
            multiply_warp<half>(bias, g2, twice(0x3400), twice(0x3400));  // B2_KEPT / G2_KEPT
            b2[0] = bias[0], b2[1] = bias[2];
        }
        constexpr int BUFFERS = SCALED ? 3 : 4, AHEAD = BUFFERS - 1;  // steps of k in registers; of them converted ahead
        uint32_t w[BUFFERS][4];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) convert(k, w[k], u);
        const uint32_t w2_to = W2 + part * (2 * BLOCK) + ((i & 3) == 0 ? W2_BYTES : 0) + stored_at();
        float z2[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) z2[e] = SCALED ? u * b2[e >> 1 & 1] : b2[e >> 1 & 1];
        barrier_sync(STATE + part, WARPGROUP);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            begin_products();
            multiply<half, 0, 1>(z2, w[k % BUFFERS], tile(x2, k / 4 * X2_BLOCK + k % 4 * 32));
            commit_products();
            if (k + AHEAD >= BUFFERS && k + AHEAD < 8) await_products<BUFFERS - AHEAD>();
            if (k + AHEAD < 8) convert(k + AHEAD, w[(k + AHEAD) % BUFFERS], u);
            store_transposed(w2_to + k * TILE, w[k % BUFFERS]);
        }
        await_products<0>(z2, W1t[0], W1t[1]);
        const uint32_t z2_at = this->z2_at();
#pragma unroll
        for (int e = 0; e < 8; ++e) store_f(z2_at + (e & 1) * ROW + (e >> 2) * (8 * ROW) + (e >> 1 & 1) * 16, z2[e]);
        mbarrier_arrive(Z2_READY);

        if ((i & 3) == 0 && part == 0) {
            const uint32_t end = B2_END + ((i >> 2) - 1 & 1) * (D * 4) + row() * 4;
            store_f(end, u * b2[0]), store_f(end + 32, u * b2[1]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) slope[n][e] = gelu_slope(z[n][e], t[n][e]);
    }

    __device__ void run() {
        load();
        // Mini-batch -1 learns nothing from zeros; the last leaves the last queries
#pragma unroll 1
        while (true) {
            mbarrier_wait(P1_READY + (i & 1) * 8, (i + 1) >> 1 & 1);
            if ((i & 3) == 3 && i >= 7) mbarrier_wait(GROUP_READ, ((i >> 2) - 1) & 1);
            project_both();
            if (i >= a.full) {
                if (i == a.full)
                    store();
                else if (i == a.full + 1)
                    store_rows();
            }
            if ((i & 3) == 0) {
                mbarrier_arrive(GROUP_READY);
                if (i == a.count) break;
            }
            barrier_sync(STATE + part, WARPGROUP);  // all of this part of W2 is in shared memory
            mbarrier_wait(G2_READY, (i + 1) & 1);
            learn();
            ++i;
            answer_keys();
        }
        if (i == a.full) store_rows();
    }
};

// ------------------------------------------------------------------------------------------------ loss
// Eight neighbours of a row of D floats; AGAIN: though they have been loaded before
template <bool AGAIN = false> __device__ inline void load_octet(float (&x)[8], uint32_t at) {
    const float4_ low = AGAIN ? load_f4_again(at) : load_f4(at), high = AGAIN ? load_f4_again(at + HALF_ROW) : load_f4(at + HALF_ROW);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
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
// Two elements rotated, rounded
__device__ inline uint32_t rotated_by(uint32_t x, float cosine, float sine) {
    const float first = bf16_first(x), second = bf16_second(x);
    return to_bf16(first * cosine - second * sine, second * cosine + first * sine);
}
// The same by the angle of their pair in token t of a mini-batch
__device__ inline uint32_t rotated(uint32_t x, int t, int even) {
    float cosine, sine;
    load_global_f2(cosine, sine, &ROTATIONS.of[t][even]);
    return rotated_by(x, cosine, sine);
}

// A thread has eight elements of one token: token thread / 8, from thread % 8 * 8 on
template <bool ROPE> struct loss_warps {
    const arguments &a;
    uint32_t thread = thread_index() % WARPGROUP;

    __device__ uint32_t token() const { return thread / 8; }
    __device__ uint32_t own() const { return swizzled(token(), thread % 8); }  // this thread's elements of a tile

    // lr of two mini-batches; each warp that of its own tokens
    __device__ void load_lr(int two) const {
        const uint32_t lane = thread % 32, at = lane / 4 * B + thread / 32 * 4 + lane % 4;
        const int t = two * (2 * B) + int(at);
        const bool there = t < a.T;
        if (lane < 2 * 4)
            copy_ahead(LR + (two & 1) * (2 * B * 4) + at * 4, a.lr + (there ? (int64_t(batch_index()) * a.T + t) * a.H + head_index() : 0), there);
    }
    __device__ void await_kq(int i) const {
        mbarrier_wait(KQ_FULL + (i & 3) * 8, i >> 2 & 1);
        if constexpr (ROPE) {
            const float *by = &ROTATIONS.of[token()][thread % 8 * 8];
            const float4_ low = load_global_f4(by), high = load_global_f4(by + 4);
#pragma unroll 1
            for (uint32_t at = KQ + (i & 3) * KQ_TILE + own(), half = 0; half < 2; ++half, at += TILE) {
                const uint4_ x = load_u4(at);
                store_u4(at, {rotated_by(x.x, low.x, low.y), rotated_by(x.y, low.z, low.w), rotated_by(x.z, high.x, high.y), rotated_by(x.w, high.z, high.w)});
            }
            publish();
            barrier_sync(LOSS, WARPGROUP);
        }
    }

    // Products of tokens with tokens: keys i + 1 with keys i, queries i - 1 with keys i - 1; of each warp one of the two
    // and eight columns
    __device__ void share_p1(int i) const {
        const uint32_t lane = thread % 32, keys = thread / 64, column0 = thread / 32 % 2 * 8;
        const uint32_t rows = KQ + ((i + 1) & 3) * KQ_TILE + keys * TILE + swizzled(lane % 16, lane / 16);
        const uint32_t columns = KQ + ((i - 1 + keys) & 3) * KQ_TILE + TILE + swizzled(column0 + lane % 8, lane / 8);
        float p[4] = {0, 0, 0, 0}, p_high[4] = {0, 0, 0, 0};
        uint32_t x[4][4], y[2][4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            load_matrices(y[k], columns ^ (k * 64));
            load_matrices(x[2 * k], rows ^ (k * 64)), load_matrices(x[2 * k + 1], rows ^ (k * 64 + 32));
        }
        multiply_warp<bf16>(p, x[0], y[0][0], y[0][1]);
        multiply_warp<bf16>(p_high, x[2], y[1][0], y[1][1]);
        multiply_warp<bf16>(p, x[1], y[0][2], y[0][3]);
        multiply_warp<bf16>(p_high, x[3], y[1][2], y[1][3]);
#pragma unroll
        for (int e = 0; e < 4; ++e) p[e] += p_high[e];
        const uint32_t j = column0 + lane % 4 * 2;
        const uint32_t to = (keys ? P1K + (i & 1) * P1K_TILE : P1Q + (i & 1) * P1Q_TILE) + column0 * 16 + lane * 4;
        const float u = load_f(UPDATE);
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t t = lane / 4 + half * 8;
            float first = u, second = u, more = 0;
            if (!keys) {
                const float ratio = load_f(RATIO + t * 4);
                first = (j <= t ? ratio : 0.f) - u, second = (j < t ? ratio : 0.f) - u, more = u;
            }
            store_u(to + half * 256, to_bf16(fused(first, p[2 * half], first + more), fused(second, p[2 * half + 1], second + more)));
        }
        publish();
        mbarrier_arrive(P1_READY + (i & 1) * 8);
    }

    // c = gamma (beta - (V - K)) and its sum
    __device__ void gradient_offset(int i, float (&c)[8], float &sum) const {
        mbarrier_wait(V_FULL + (i & 1) * 8, i >> 1 & 1);
        uint4_ k = load_u4(KQ + (i & 3) * KQ_TILE + TILE + own()), v = load_u4(V + (i & 1) * TILE + own());
        const uint32_t kk[4] = {k.x, k.y, k.z, k.w}, vv[4] = {v.x, v.y, v.z, v.w};
        float gamma[8];
        load_octet(gamma, GAMMA + thread % 8 * 16);
        load_octet(c, BETA + thread % 8 * 16);
        sum = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            c[2 * e] = gamma[2 * e] * (c[2 * e] + (bf16_first(kk[e]) - bf16_first(vv[e])));
            c[2 * e + 1] = gamma[2 * e + 1] * (c[2 * e + 1] + (bf16_second(kk[e]) - bf16_second(vv[e])));
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += c[e];
    }
    // step G2, where G2 = (g - mean(g) - xhat mean(g xhat)) / std and g = gamma^2 xhat + c, from the sums over the token of
    // z, z^2, w z, w z^2 and c z with w = gamma^2: one round of shuffles.
    __device__ void share_g2(int i, const float (&c)[8], float sum_c, float step) const {
        const uint32_t q16 = thread % 8 * 16, z_at = Z2 + token() * ROW + q16;
        float z[8], other[8], w[8], sums[6] = {0, 0, 0, 0, 0, sum_c};
        load_octet(z, z_at), load_octet(other, z_at + B * ROW), load_octet(w, GAMMA_GAMMA + q16);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            z[e] += other[e];
            const float wz = w[e] * z[e];
            sums[0] += z[e], sums[1] += wz;
            sums[2] = fused(z[e], z[e], sums[2]), sums[3] = fused(wz, z[e], sums[3]), sums[4] = fused(c[e], z[e], sums[4]);
        }
        sum_over_token(sums);
        const float sum_z = sums[0], sum_wz = sums[1], sum_zz = sums[2], sum_wzz = sums[3], sum_cz = sums[4], sum_w = load_f(SUM_GG);
        sum_c = sums[5];
        const float mean = sum_z * (1.f / D), variance = larger(fused(sum_zz, 1.f / D, -mean * mean), 0.f);
        const float rstd = inverse_root(variance + B2_KEPT * B2_KEPT * EPS);
        const float mean_g = fused(rstd, fused(-mean, sum_w, sum_wz), sum_c) * (1.f / D);
        const float dot =  // mean(g xhat)
            rstd * (rstd * fused(mean, fused(mean, sum_w, -2.f * sum_wz), sum_wzz) + fused(-mean, sum_c, sum_cz)) * (1.f / D);
        const float scale = rstd * step, aa = rstd * scale, bb = -dot * aa, dd = -mean_g * scale;
        load_octet<true>(w, GAMMA_GAMMA + q16);
        uint32_t g2[4];
#pragma unroll
        for (int e = 0; e < 8; ++e) z[e] = fused(z[e] - mean, fused(w[e], aa, bb), fused(c[e], scale, dd));
#pragma unroll
        for (int e = 0; e < 4; ++e) g2[e] = to_f16(z[2 * e], z[2 * e + 1]);
        launder(i);  // its slot is computed here again, which takes no register until now
        store_u4(G2 + (i & 7) * TILE + own(), {g2[0], g2[1], g2[2], g2[3]});
        publish();
        mbarrier_arrive(G2_READY);
    }

    // The rows of K and lr G2 of a short last mini-batch, 0 beyond them
    __device__ void store_rows() const {
        const int pending = a.T % B, last = a.T / B, t = last * B + int(token());
        const bool valid = int(token()) < pending;
        const int64_t to = (state_index(a) * B + token()) * D + thread % 8 * 8;
        const uint16_t *k = a.k + (valid ? batch_index() * a.k_stride[0] + t * a.k_stride[1] + head_index() * a.k_stride[2] : 0) + thread % 8 * 8;
        const float scale = -1.f / (G2_KEPT * load_f(RHO));
#pragma unroll 1
        for (int e = 0; e < 4; ++e) {
            uint32_t x = valid ? load_global(k + 2 * e) : 0, g2 = load_u(G2 + last % 8 * TILE + own() + e * 4);
            if constexpr (ROPE) x = rotated(x, token(), thread % 8 * 8 + 2 * e);
            a.k_rows[to + 2 * e] = bf16_first(x), a.k_rows[to + 2 * e + 1] = bf16_second(x);
            a.g2_rows[to + 2 * e] = valid ? scale * f16_first(g2) : 0.f;
            a.g2_rows[to + 2 * e + 1] = valid ? scale * f16_second(g2) : 0.f;
        }
    }

    __device__ void run() {
        const int count = a.count;
        load_lr(0);
        if (uniform(thread / 32) == 0) {
            load_q(a, 0), load_k(a, 0), load_q(a, 1), load_k(a, 1);
            load_v(a, 0);
        }
        await_kq(0);
        mbarrier_arrive(P1_READY + 8);
        mbarrier_arrive(G2_READY);  // of mini-batch -1
#pragma unroll 1
        for (int i = 0;; ++i) {
            launder(thread);
            await_kq(i + 1);
            share_p1(i);
            if (i == count) break;
            float c[8], sum_c;
            gradient_offset(i, c, sum_c);
            if ((i & 1) == 0) {
                await_copies();  // begun two mini-batches ago
                sync_warp();
                load_lr((i >> 1) + 1);
            }
            const float step = -B2_KEPT * G2_KEPT * load_f(RHO) * load_f(LR + (i & 3) * (B * 4) + token() * 4);
            need(sum_c);
            mbarrier_wait(Z2_READY, i & 1);
            share_g2(i, c, sum_c, step);
        }
        // Tokens that were loaded and are not needed
        mbarrier_wait(KQ_FULL + (count + 2 & 3) * 8, count + 2 >> 2 & 1);
        for (int i = count; i < count + 2; ++i) mbarrier_wait(V_FULL + (i & 1) * 8, i >> 1 & 1);
        store_rows();
    }
};

// ------------------------------------------------------------------------------------------------ answers
template <bool ROPE> struct answer_warps {
    const arguments &a;
    uint32_t thread = thread_index() % WARPGROUP;
    const int warp = uniform(thread / 32);

    // With X2bar = gelu(Z1bar) in registers: P2 = X2bar X2^T + 1 in its scale, and z = X2bar W2, both summed in f16
    __device__ void multiply_queries(uint32_t (&p)[16], uint32_t (&z)[16], uint32_t zbar, int group) const {
        uint32_t keys = operand(X2) + (group & 1) * (GROUP * TILE >> 4), w2 = operand(W2 + W2_BYTES);
        uint32_t one = twice(0x3400), zero = 0;  // X2_KEPT^2
        launder(one), launder(zero);             // or the constants lie in local memory
#pragma unroll
        for (int e = 0; e < 16; ++e) p[e] = one, z[e] = zero;
#pragma unroll 1
        for (int step = 0; step < 8; ++step) {
            uint32_t x[2][4];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                load_matrices(x[k], zbar ^ (k * 32));
#pragma unroll
                for (int e = 0; e < 4; ++e) x[k][e] = half_gelu(x[k][e], gelu_tanh(x[k][e]));
            }
            begin_products();
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                multiply<half, 0, 1>(p, x[k], tile(keys, k * 32));
                multiply<half, 1, 1>(z, x[k], tile(w2, k * TILE));
            }
            commit_products();
            zbar ^= 64;
            keys += step & 1 ? (X2_BLOCK - 64) >> 4 : 64 >> 4;
            w2 += 2 * TILE >> 4;
            if (step & 1) zbar += ZBAR_BLOCK;
            await_products<0>();
        }
        pin(p), pin(z);
    }
    // C P2 to shared memory. Rows: this warp's mini-batch; columns: mini-batch n
    __device__ void share_p2(const uint32_t (&p)[16], uint32_t to) const {
        to += warp * TILE + swizzled(thread % 16, thread % 32 / 16);
#pragma unroll
        for (int n = 0; n < GROUP; ++n) {
            uint32_t x[4];
            if (n == warp) {
                const uint4_ d = load_u4(DIAGONAL + thread % 32 * 16);
                const uint32_t diagonal[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
                for (int e = 0; e < 4; ++e) x[e] = multiply_f16(p[4 * n + e], diagonal[e]);
            } else {
                const uint32_t factor = n > warp ? load_u(LATER) : 0u;
#pragma unroll
                for (int e = 0; e < 4; ++e) x[e] = multiply_f16(p[4 * n + e], factor);
            }
            store_matrices(to ^ (n * 32), x);
        }
        publish();
        barrier_sync(ANSWER, WARPGROUP);
    }
    // z += P2 G2: Z2bar, without b2
    __device__ void multiply_gradients(float (&z)[32], uint32_t p2, int group) const {
        const uint32_t g2 = operand(G2) + (group & 1) * (GROUP * TILE >> 4);
        begin_products();
#pragma unroll
        for (int n = 0; n < GROUP; ++n) multiply<half, 0, 1, 1>(z, tile(operand(p2), n * 32), tile(g2, n * TILE));
        commit_products();
        await_products<0>(z);
    }
    // out = Q + LN(Z2bar + b2), rows r and r + 8 of a mini-batch
    __device__ void write(float (&z)[32], int group) const {
        const uint32_t column = thread_index() % 4 * 2, row = thread_index() % 32 / 4;
        float sums[4] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            float x, y;
            load_f2(x, y, B2_END + (group & 1) * (D * 4) + k * 32 + column * 4);
            z[4 * k] += x, z[4 * k + 1] += y, z[4 * k + 2] += x, z[4 * k + 3] += y;
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[e / 2] += z[4 * k + e], sums[2 + e / 2] = fused(z[4 * k + e], z[4 * k + e], sums[2 + e / 2]);
        }
#pragma unroll
        for (int lane = 1; lane < 4; lane *= 2)
#pragma unroll
            for (int k = 0; k < 4; ++k) sums[k] += shuffle_xor(sums[k], lane);
        float shift[2], rstd[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float mean = sums[half] * (1.f / D);
            rstd[half] = inverse_root(larger(fused(sums[2 + half], 1.f / D, -mean * mean), 0.f) + B2_KEPT * B2_KEPT * EPS);
            shift[half] = -mean * rstd[half];
        }
        const uint32_t at = place(column);  // column + 8 k is 16 k further
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
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
                load_f2(gx, gy, GAMMA + at + k * 16);
                load_f2(bx, by, BETA + at + k * 16);
                const float first = fused(fused(z[4 * k], rstd[0], shift[0]), gx, bx + bf16_first(x[k]));
                const float second = fused(fused(z[4 * k + 1], rstd[0], shift[0]), gy, by + bf16_second(x[k]));
                store_global(out + 8 * k, to_bf16(first, second), there);
                z[4 * k] = z[4 * k + 2], z[4 * k + 1] = z[4 * k + 3];
            }
            rstd[0] = rstd[1], shift[0] = shift[1];  // the other row in their place
        }
    }

    __device__ void run() {
        uint32_t slot = warp;  // of this warp's mini-batch
        mbarrier_wait(GROUP_READY, 0);
#pragma unroll 1
        for (int group = 0; GROUP * group < a.count; ++group) {
            launder(thread);
            uint32_t zbar = ZBAR + slot * TILE + swizzled(thread % 16, thread % 32 / 16);
            slot = slot >= SLOTS - GROUP ? slot - (SLOTS - GROUP) : slot + GROUP;
            const uint32_t p2 = X2 + (group & 1) * (GROUP * TILE);  // a block of X2 that is read by then
            mbarrier_wait(GROUP_READY, (group + 1) & 1);
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
            for (int e = 0; e < 16; ++e) z[2 * e] = f16_first(sum[e]), z[2 * e + 1] = f16_second(sum[e]);
            multiply_gradients(z, p2, group);
            mbarrier_arrive(GROUP_READ);
            write(z, group);
        }
    }
};

// ------------------------------------------------------------------------------------------------ all
__device__ inline void prepare(const arguments &a) {
    const int thread = thread_index(), head = head_index();
    for (uint32_t at = BASE + thread * 16; at < Z2; at += THREADS * 16) store_u4(at, {0, 0, 0, 0});
    // rho: s_15, or where that is small the power of two of it that keeps s_t / rho within LARGEST_RATIO; never 0
    float largest = 0, rho = larger(a.token_scale[B - 1], 0x1p-60f), u = 1.f;
    for (int t = 0; t < B; ++t) largest = larger(largest, a.token_scale[t]);
    while (largest > LARGEST_RATIO * rho) rho *= 2.f, u *= 0.5f;
    sync_block();
    if (thread < B) store_f(RATIO + thread * 4, a.token_scale[thread] / rho);
    if (thread == 0) {
        float sum = 0;
        for (uint32_t d = 0; d < D; ++d) sum = fused(a.ln_weight[head * D + d], a.ln_weight[head * D + d], sum);
        store_f(RHO, rho), store_f(UPDATE, u), store_f(SUM_GG, sum);
        store_u(LATER, to_f16(-u, -u));
    }
    if (thread < int(D)) {
        const float gamma = a.ln_weight[head * D + thread];
        store_f(GAMMA + place(thread), gamma), store_f(BETA + place(thread), a.ln_bias[head * D + thread]);
        store_f(GAMMA_GAMMA + place(thread), gamma * gamma);
    }
    // Rows of keys in P1Q: the sum over G1 that b1 lags behind
    if (thread < 2 * B * B / 2) store_u(P1Q + thread / 128 * P1Q_TILE + P1Q_TILE / 2 + thread % 128 * 4, to_bf16(u, u));
    if (thread < int(F)) store_f(B1 + b1_place(thread), W1_KEPT * a.b1[state_index(a) * F + thread]);
    if (thread < 32) {
        uint32_t d[4];
        for (int e = 0; e < 4; ++e) {
            const int row = thread / 4 + (e & 1) * 8, column = 2 * (thread % 4) + (e >> 1) * 8;
            const float ratio = a.token_scale[row] / rho;
            d[e] = to_f16((column <= row ? ratio : 0.f) - u, (column < row ? ratio : 0.f) - u);
        }
        store_u4(DIAGONAL + thread * 16, {d[0], d[1], d[2], d[3]});
    }
    if (thread == 0) {
        for (int k = 0; k < 4; ++k) mbarrier_init(KQ_FULL + k * 8, 2);
        for (int k = 0; k < 2; ++k) mbarrier_init(V_FULL + k * 8, 1), mbarrier_init(P1_READY + k * 8, WARPGROUP);
        mbarrier_init(G2_READY, WARPGROUP), mbarrier_init(GROUP_READ, WARPGROUP);
        mbarrier_init(Z2_READY, 2 * WARPGROUP), mbarrier_init(GROUP_READY, 2 * WARPGROUP);
    }
    publish();
    sync_block();
}

template <bool ROPE> __device__ inline void forward(const arguments &a) {
    prepare(a);
    const int warp = uniform(thread_index() / 32), role = warp / 4;
    if (role < 2) {
        take_registers<STATE_REGISTERS>();
        const int loads = warp == 0 ? QUERIES : warp == 4 ? KEYS : warp == 5 ? VALUES : NOTHING;
        if (load_f(UPDATE) == 1.f)
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
