// TTT-Linear forward (dual form) on Hopper: one pass over the tokens of each head, W in registers throughout.
//
// For each mini-batch of 16 or 32 tokens (rows), with W [64, 64] and b [64] at its start and s the token scale:
//     Z    = K W + b                          G = ln_l2_grad(Z, V - K)
//     Zbar = Q W + b - tril(s_i lr_j (Q K^T + 1)) G
//     out  = Q + LN(Zbar)
//     W   -= s_last K^T (lr G)                b -= s_last sum_j lr_j G_j
// From `gradient` on, G in the code is -s_last lr G, so the code adds where these equations subtract.
//
// Every row of G sums to zero over its columns, so the mean of W over its columns never changes. LN ignores that mean.
// The kernel subtracts it at the start and adds it at the end. In between, the rows of Z and Zbar have mean zero, and
// LN needs only their squares. Rounding lets the mean drift, so it is subtracted again every DRIFT_PERIOD
// mini-batches.
//
// `WARPS` warps share a head. Each owns 64 / WARPS columns of W as an accumulator of W^T. In that orientation no
// operand on the chain W -> Z -> G -> W leaves the registers. The accumulator of W^T is the B operand of K W. The
// transposed G is the A operand of W^T += G^T K and the B operand of tril(..) G. Only row sums cross warps.
#include "forward/common.cuh"

using namespace kittens;

namespace ttt {

constexpr int HEAD_DIM = 64;
constexpr float LN_EPS = 1e-6f;

template <int ROWS_, int WARPS_, int HEADS_, bool ROPE_> struct linear_layout {
    static constexpr int ROWS = ROWS_;                   // tokens in a mini-batch
    static constexpr bool ROPE = ROPE_;                  // rotate q and k inside the kernel
    static constexpr int WARPS = WARPS_;                 // warps per head
    static constexpr int HEADS = HEADS_;                 // heads per block
    static constexpr int STAGES = 8;
    // Rounding lets the mean of W drift; it is removed again every DRIFT_PERIOD mini-batches (see findings/).
    static constexpr unsigned DRIFT_PERIOD = 64;
    static constexpr int COLS = HEAD_DIM / WARPS;        // columns of W per warp
    // The producers are one warpgroup, one warp per head. They give most of their registers to the consumers
    // (setmaxnreg): at launch all threads have the same number, so the producers have a third or half of them.
    static constexpr int CONSUMERS = WARPS * HEADS;
    static constexpr int THREADS = (CONSUMERS + 4) * WARP_THREADS;
    static constexpr int BLOCKS = HEADS == 1 && ROWS == 16 ? 2 : 1;  // per SM
    static constexpr bool MOVE_REGISTERS = ROWS == 16;  // otherwise registers suffice
    static constexpr int PRODUCER_REGISTERS = HEADS == 1 ? 32 : 40;
    static constexpr int CONSUMER_REGISTERS = HEADS == 1 ? 224 : 232;  // at launch 128 (256 threads) or 168 (384)

    using tile = st<bf16, ROWS, HEAD_DIM>;
    using tokens = gl<bf16, -1, -1, -1, HEAD_DIM, tma::descriptor<tile, dim::DEPTH>>;  // [B, T, H, D]

    struct globals {
        tokens q, k, v, out;
        const float *lr, *token_scale, *ln_weight, *ln_bias, *W_in, *b_in;  // [B,T,H] [m] [H,D] [H,D] [B,H,D,D] [B,H,D]
        float *W_out, *b_out, *k_rows, *g_rows;                            // rows: [B, H, m, D]
        int length, heads, sequences;                                      // T, H, B * H
    };
    struct stage { tile k, v, q; };  // out is written over q
    using mean_parts = float[WARPS][HEAD_DIM + 1];  // of 64 rows of W and of b: the part of a warp's columns

    struct alignas(1024) head_shared {
        stage stages[STAGES];
        float4 moments[2][WARPS][ROWS][2];   // sums over a warp's columns, by moments()
        float squares[2][WARPS][ROWS];       // sums of zbar^2, by leave_squares()
        mean_parts mean, drift;
        float lr[STAGES][ROWS];
        semaphore landed[STAGES], arrived[STAGES], finished[STAGES];  // tiles loaded; RoPE applied too; output written
    };
    using rotations = float2[ROWS][HEAD_DIM / 2];  // cos and sin per position and pair of columns
    static constexpr int SHARED_BYTES = HEADS * sizeof(head_shared) + (ROPE ? sizeof(rotations) : 0) + 1024;
};

// Sum over the eight lanes that share a column.
__device__ inline float column_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

// A bf16 is the upper half of a float: two instructions, one fewer than the library's conversion.
__device__ inline float2 widen(const bf16_2 &x) {
    const uint32_t bits = *reinterpret_cast<const uint32_t *>(&x);
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
__device__ inline bf16_2 narrow(float2 x) { return __float22bfloat162_rn(x); }

// One warp per head: loads, RoPE, stores. A block of one head has three more warps for RoPE.
template <typename L> struct linear_producer {
    static constexpr int ROWS = L::ROWS, LEAD = L::STAGES / 2;  // mini-batches between RoPE and the store
    static constexpr int ROTATING_WARPS = 3;
    static constexpr bool ROTATES_TOO = L::ROPE && L::HEADS > 1;
    static_assert(ROWS <= WARP_THREADS);  // each lane loads one learning rate
    const typename L::globals &g;
    typename L::head_shared &shared;
    const typename L::rotations &rotations;
    const int sequence, batch = sequence / g.heads, head = sequence % g.heads, lane = ::kittens::laneid();

    // A stage is refilled after its output is stored. The wait for that store comes one mini-batch later.
    __device__ void run(int warp) {
        const int batches = (g.length + ROWS - 1) / ROWS;
        if (L::HEADS == 1 && warp > 0) {
            for (int n = warp - 1; n < batches; n += ROTATING_WARPS) rotate(n);
            return;
        }
        for (int n = -L::STAGES; n < batches; ++n) {
            if (n >= 0) store(n);
            const int next = n > 0 ? n - 1 + L::STAGES : n < 0 ? n + L::STAGES : batches;
            if (next < batches) load(next);
            if (ROTATES_TOO && n + LEAD >= 0 && n + LEAD < batches) rotate(n + LEAD);
        }
        if (lane == 0) tma::store_async_wait<0>();
    }
    __device__ void store(int n) {
        const int stage = n % L::STAGES;
        wait(shared.finished[stage], n / L::STAGES & 1);
        if (lane == 0) {  // store_async starts with the fence between the consumers' writes and TMA
            tma::store_async<dim::DEPTH, cache_policy::NORMAL>(g.out, shared.stages[stage].q, {batch, n, head, 0});
            tma::store_async_read_wait<1>();
        }
        __syncwarp();
    }
    __device__ void load(int n) {
        const int stage = n % L::STAGES;
        auto &in = shared.stages[stage];
        auto &landed = L::ROPE ? shared.landed[stage] : shared.arrived[stage];
        if (lane < ROWS) {  // learning rates beyond the end are 0: their rows change nothing
            const int token = n * ROWS + lane;
            const float *rate = g.lr + (size_t(batch) * g.length + min(token, g.length - 1)) * g.heads + head;
            copy_ahead(shared.lr[stage][lane], rate, token < g.length);
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address(landed)) : "memory");
        }
        if (lane == 0) {
            const coord<typename L::tile> at = {batch, n, head, 0};
            tma::expect_bytes(landed, sizeof(in));
            tma::load_async<dim::DEPTH, cache_policy::NORMAL>(in.k, g.k, at, landed);
            tma::load_async<dim::DEPTH, cache_policy::NORMAL>(in.v, g.v, at, landed);
            tma::load_async<dim::DEPTH, cache_policy::NORMAL>(in.q, g.q, at, landed);
        }
    }
    // (x, y) -> (x cos - y sin, x sin + y cos) for every pair of columns of q and k; a lane has four pairs of each row.
    __device__ void rotate(int n) {
        const int stage = n % L::STAGES, chunk = lane % 8;
        wait(shared.landed[stage], n / L::STAGES & 1);
        #pragma unroll 1  // saves registers
        for (int i = 0; i < ROWS / 2; ++i) {  // rows of q, then of k
            const int row = (lane / 8 + 4 * i) % ROWS;
            const int at = row * 128 + ((chunk ^ (row & 7)) << 4);  // the 128-byte swizzle of st
            auto &tile = i < ROWS / 4 ? shared.stages[stage].q : shared.stages[stage].k;
            auto *x = reinterpret_cast<uint4 *>(reinterpret_cast<char *>(&tile) + at);
            const float4 *angles = reinterpret_cast<const float4 *>(&rotations[row][4 * chunk]);
            const float4 first = angles[0], second = angles[1];
            uint4 w = *x;
            bf16_2 *pairs = reinterpret_cast<bf16_2 *>(&w);
            rotate_pair(pairs[0], first.x, first.y);
            rotate_pair(pairs[1], first.z, first.w);
            rotate_pair(pairs[2], second.x, second.y);
            rotate_pair(pairs[3], second.z, second.w);
            *x = w;
        }
        // Every lane arrives for its own writes: racecheck does not accept one arrival for all.
        arrive(shared.arrived[stage]);
    }
    __device__ static void rotate_pair(bf16_2 &pair, float c, float s) {
        const float2 x = widen(pair);
        pair = narrow({x.x * c - x.y * s, x.x * s + x.y * c});
    }
};

template <typename L> struct linear_consumer {
    static constexpr int ROWS = L::ROWS;
    static constexpr int TALL = ROWS / 16;    // 16-row tiles of a mini-batch
    static constexpr int OWN = L::COLS / 16;  // 16-column tiles a warp owns
    static constexpr int ALL = HEAD_DIM / 16;
    // If s_{m-1} is 0, W must not change. Mini-batches of 32 branch around the matmuls. With 16 a branch would keep the
    // compiler from filling the chain's waits, so a number too small to change W replaces s_{m-1}.
    static constexpr bool ALWAYS_UPDATES = TALL == 1;
    using own_fl = rt_fl<ROWS, L::COLS>;      // [tokens, own columns]
    using own_in = rt<bf16, ROWS, L::COLS>;
    using own_vec = row_vec<own_fl>;          // one value per column, e.g. gamma

    const typename L::globals &g;
    typename L::head_shared &shared;
    const int warp, lane, head, sequence, slot;
    const int row, pair;            // a lane's elements of a tile: rows `row`, + 8; columns 2 `pair`, + 1, + 8, + 9
    uint32_t tile_offset, tile_offset_b;  // of this lane's ldmatrix row in a tile, see load()

    rt_fl<L::COLS, HEAD_DIM> Wt;    // W^T of the own columns, minus its mean over columns
    rt_fl<16, L::COLS> bias;        // b in every row
    own_vec gamma, beta, gamma_sq;
    bf16_2 of_zz[OWN][2], of_z[OWN][2], of_uz, of_u;  // B operands that sum rows, in moments()
    float ratio[TALL][2];           // s_i / last_scale of rows `row`, `row` + 8 of a tile
    float last_scale;
    bool updates;

    __device__ linear_consumer(const typename L::globals &g_, typename L::head_shared &shared_, int sequence_,
                               int warp_, int slot_)
        : g(g_), shared(shared_), warp(warp_), lane(::kittens::laneid()), head(sequence_ % g_.heads),
          sequence(sequence_), slot(slot_), row(lane / 4), pair(lane % 4) {
        // In st's 128-byte swizzle: the quarters of a 16 x 16 tile, in the order of an A operand and of two B operands
        const auto at = [&](int r, int half) { return r * 128 + ((warp * OWN * 32 + half * 16) ^ ((r & 7) << 4)); };
        tile_offset = at(lane % 16, lane / 16);
        tile_offset_b = at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }

    __device__ void sync() const {
        if constexpr (L::WARPS == 1) __syncwarp();
        else asm volatile("bar.sync %0, %1;" ::"r"(1 + slot), "n"(L::WARPS * WARP_THREADS) : "memory");
    }
    // A lane's first column in a local 16-column tile. Tiles are numbered so that a warp's own come first.
    __device__ int column_of(int j) const { return (j ^ (warp * OWN)) * 16 + 2 * pair; }

    __device__ void load_parameters() {
        const float *weight = g.ln_weight + head * HEAD_DIM, *shift = g.ln_bias + head * HEAD_DIM;
        const auto only = [&](bool here, float x, float y) { return here ? pack(x, y) : pack(0.f, 0.f); };
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int c = column_of(j) + 8 * h;
                const float2 w = {weight[c], weight[c + 1]}, o = {shift[c], shift[c + 1]};
                const float2 sq = {w.x * w.x, w.y * w.y};
                gamma[j][h] = w;
                beta[j][h] = o;
                gamma_sq[j][h] = sq;
                const bf16_2 high = pack(sq.x, sq.y);
                const float2 low = {sq.x - __low2float(high), sq.y - __high2float(high)};
                of_zz[j][h] = row == 1 ? high : row == 2 ? pack(low.x, low.y) : only(row == 0, 1.f, 1.f);
                of_z[j][h] = row == 3 ? high : row == 4 ? pack(low.x, low.y) : only(row == 5, 1.f, 1.f);
            }
        }
        of_uz = only(row == 6, 1.f, 1.f);
        of_u = only(row == 7, 1.f, 1.f);

        // G is stored as -last_scale lr G with last_scale = s_{m-1}, so that W^T += G^T K.
        const float last = g.token_scale[ROWS - 1];
        updates = last > 0.f;
        last_scale = updates ? last : ALWAYS_UPDATES ? 0x1p-60f : 1.f;
        #pragma unroll
        for (int i = 0; i < 2 * TALL; ++i) ratio[i / 2][i % 2] = g.token_scale[row + 8 * i] / last_scale;
    }

    // Loads W^T and b and subtracts their means over columns. The means stay in shared memory.
    __device__ void load_state() {
        const float *W = g.W_in + size_t(sequence) * HEAD_DIM * HEAD_DIM, *b = g.b_in + size_t(sequence) * HEAD_DIM;
        #pragma unroll
        for (int m = 0; m < OWN; ++m) {
            #pragma unroll
            for (int n = 0; n < ALL; ++n) {
                #pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const int e = warp * L::COLS + 16 * m + row + 8 * (p % 2), d = column_of(n) + 8 * (p / 2);
                    Wt.tiles[m][n].data[p] = {W[d * HEAD_DIM + e], W[(d + 1) * HEAD_DIM + e]};
                }
            }
        }
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                const int e = column_of(j) + 8 * (p / 2);
                bias.tiles[0][j].data[p] = {b[e], b[e + 1]};
            }
        }
        take_out_mean(shared.mean);
    }
    // Subtracts from W and b their means over columns, and stores the means in `parts`.
    __device__ void take_out_mean(typename L::mean_parts &parts) {
        float total = 0.f;
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int h = 0; h < 2; ++h) total += bias.tiles[0][j].data[2 * h].x + bias.tiles[0][j].data[2 * h].y;
        }
        total = row_sum(total);
        if (lane == 0) parts[warp][HEAD_DIM] = total / HEAD_DIM;
        #pragma unroll
        for (int n = 0; n < ALL; ++n) {
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                float2 sum = {0.f, 0.f};
                #pragma unroll
                for (int m = 0; m < OWN; ++m) {
                    const float2 a = Wt.tiles[m][n].data[2 * h], c = Wt.tiles[m][n].data[2 * h + 1];
                    sum.x += a.x + c.x;
                    sum.y += a.y + c.y;
                }
                sum.x = column_sum(sum.x);
                sum.y = column_sum(sum.y);
                if (row == 0) {
                    parts[warp][column_of(n) + 8 * h] = sum.x / HEAD_DIM;
                    parts[warp][column_of(n) + 8 * h + 1] = sum.y / HEAD_DIM;
                }
            }
        }
        sync();
        subtract_mean(parts);
    }
    __device__ static float mean_of(const typename L::mean_parts &parts, int d) {
        float mean = 0.f;
        #pragma unroll
        for (int w = 0; w < L::WARPS; ++w) mean += parts[w][d];
        return mean;
    }
    __device__ void subtract_mean(const typename L::mean_parts &parts) {
        #pragma unroll
        for (int n = 0; n < ALL; ++n) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                const int d = column_of(n) + 8 * (p / 2);
                const float x = mean_of(parts, d), y = mean_of(parts, d + 1);
                #pragma unroll
                for (int m = 0; m < OWN; ++m) {
                    Wt.tiles[m][n].data[p].x -= x;
                    Wt.tiles[m][n].data[p].y -= y;
                }
            }
        }
        const float mean = mean_of(parts, HEAD_DIM);
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                bias.tiles[0][j].data[p].x -= mean;
                bias.tiles[0][j].data[p].y -= mean;
            }
        }
    }
    __device__ void store_state() const {
        float *W = g.W_out + size_t(sequence) * HEAD_DIM * HEAD_DIM, *b = g.b_out + size_t(sequence) * HEAD_DIM;
        #pragma unroll
        for (int n = 0; n < ALL; ++n) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                const int d = column_of(n) + 8 * (p / 2);
                const float x = mean_of(shared.mean, d), y = mean_of(shared.mean, d + 1);
                asm volatile("" ::: "memory");  // delays loads of later means, which saves registers
                #pragma unroll
                for (int m = 0; m < OWN; ++m) {
                    const int e = warp * L::COLS + 16 * m + row + 8 * (p % 2);
                    W[d * HEAD_DIM + e] = Wt.tiles[m][n].data[p].x + x;
                    W[(d + 1) * HEAD_DIM + e] = Wt.tiles[m][n].data[p].y + y;
                }
            }
        }
        if (row == 0) {
            const float mean = mean_of(shared.mean, HEAD_DIM);
            #pragma unroll
            for (int j = 0; j < OWN; ++j) {
                #pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 x = bias.tiles[0][j].data[2 * h];
                    *reinterpret_cast<float2 *>(&b[column_of(j) + 8 * h]) = {x.x + mean, x.y + mean};
                }
            }
        }
    }

    // ldmatrix at an offset computed once: st::idx would compute the swizzle at every load. Sixteen rows start at a
    // multiple of 2048 bytes, so column tile j is one XOR away. B operands of x y^T have their own order: ldmatrix
    // fills neighbouring registers, and a B operand consists of two neighbours.
    template <bool B_OPERAND = false, typename RT>
    __device__ void load(RT &x, const typename L::tile &source, int i = 0, int first = 0) const {
        const uint32_t base = address(source) + 2048 * i + (B_OPERAND ? tile_offset_b : tile_offset);
        #pragma unroll
        for (int j = 0; j < RT::width; ++j) {
            bf16_2 *d = x.tiles[0][j].data;
            const uint32_t from = base ^ ((first + j) * 32);
            if constexpr (ducks::rt::col_layout<RT>) move<bf16_2>::ldsm4t(d[0], d[2], d[1], d[3], from);
            else if constexpr (B_OPERAND) move<bf16_2>::ldsm4(d[0], d[2], d[1], d[3], from);
            else move<bf16_2>::ldsm4(d[0], d[1], d[2], d[3], from);
        }
    }
    __device__ void store(typename L::tile &target, own_in &x) const {
        #pragma unroll
        for (int i = 0; i < TALL; ++i) {
            const uint32_t base = address(target) + 2048 * i + tile_offset;
            #pragma unroll
            for (int j = 0; j < OWN; ++j) {
                bf16_2 *d = x.tiles[i][j].data;
                move<bf16_2>::stsm4(base ^ (j * 32), d[0], d[1], d[2], d[3]);
            }
        }
    }
    __device__ static bf16_2 pack(float x, float y) { return __floats2bfloat162_rn(x, y); }
    // A row of tiles d += x y^T over one inner tile
    template <int M>
    __device__ static void multiply_t(rt_base_fl<> (&d)[M], const rt_base<bf16, ducks::rt_layout::row> &x,
                                     const rt<bf16, 16 * M, 16> &y) {
        #pragma unroll
        for (int m = 0; m < M; ++m) warp::mma_ABt_base(d[m], x, y.tiles[m][0], d[m]);
    }

    // Sums of each row over the own columns by tensor cores, in the eight columns of one matmul:
    //     z^2, gamma^2 z^2 (two columns: high and low halves of gamma^2), gamma^2 z (two), z, u z, u.
    // The A operands are rounded to bf16: their errors average out. The error of a rounded gamma^2 would not.
    __device__ void moments(const own_fl &z, const own_fl &u, int i, unsigned n) const {
        float2 a[2] = {}, b[2] = {}, c[2] = {};  // columns 2 `pair`, + 1 of rows `row`, `row` + 8
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            bf16_2 zz[4], z_in[4], uz[4], u_in[4];
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                const float2 x = z.tiles[i][j].data[p], w = u.tiles[i][j].data[p];
                u_in[p] = pack(w.x, w.y);
                z_in[p] = pack(x.x, x.y);
                zz[p] = pack(x.x * x.x, x.y * x.y);
                uz[p] = pack(x.x * w.x, x.y * w.y);
            }
            warp::hmma16816(a[0], a[1], u_in[0], u_in[1], u_in[2], u_in[3], of_u, of_u, a[0], a[1]);
            warp::hmma16816(a[0], a[1], z_in[0], z_in[1], z_in[2], z_in[3], of_z[j][0], of_z[j][1], a[0], a[1]);
            warp::hmma16816(b[0], b[1], zz[0], zz[1], zz[2], zz[3], of_zz[j][0], of_zz[j][1], b[0], b[1]);
            warp::hmma16816(c[0], c[1], uz[0], uz[1], uz[2], uz[3], of_uz, of_uz, c[0], c[1]);
        }
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            float2 *target = reinterpret_cast<float2 *>(shared.moments[n % 2][warp][16 * i + row + 8 * r]) + pair;
            *target = {a[r].x + (b[r].x + c[r].x), a[r].y + (b[r].y + c[r].y)};
        }
    }

    __device__ void run() {
        load_parameters();
        load_state();

        const unsigned whole = g.length / ROWS;
        own_fl zbar;
        warp::zero(zbar);
        unsigned n = 0;
        while (n < whole) {
            const unsigned end = min(n + L::DRIFT_PERIOD, whole);
            for (; n < end; ++n) step<true>(zbar, n);
            take_out_mean(shared.drift);
        }
        store_state();
        if (g.length % ROWS) step<false>(zbar, n++);  // a short mini-batch: its rows are stored, W does not change
        else zero_rows();
        leave_squares(zbar, n);
        sync();
        own_in out;
        finish(out, zbar, n);
        hand_over(out, n);
    }

    template <bool COMPLETE> __device__ void step(own_fl &zbar, unsigned n) {
        const unsigned stage = n % L::STAGES;
        auto &in = shared.stages[stage];
        wait(shared.arrived[stage], n / L::STAGES & 1);
        leave_squares(zbar, n);

        own_fl z, zq, u;
        rt_fl<ROWS, ROWS> scores;  // Q K^T, the lower triangle only
        #pragma unroll
        for (int i = 0; i < TALL; ++i) {
            offsets(u, in, i);
            project(z, zq, scores, in, i);
            moments(z, u, i, n);
        }
        sync();

        // Output of the previous mini-batch, whose squares this sync made visible. It is not on the chain, so it fills
        // the chain's waits.
        own_in out;
        finish(out, zbar, n);

        // G = -last_scale lr ln_l2_grad(Z, V - K), and its transpose
        own_fl G;
        own_in G_in;
        rt<bf16, L::COLS, 16> Gt[TALL];
        #pragma unroll
        for (int i = 0; i < TALL; ++i) gradient(G, z, u, i, n);
        warp::copy(G_in, G);
        #pragma unroll
        for (int i = 0; i < TALL; ++i) transpose(Gt[i], G_in, i);

        // W^T += G^T K ; b += sum_j G_j
        if (COMPLETE && (ALWAYS_UPDATES || updates)) {
            rt<bf16, 16, 16> ones;
            warp::one(ones);
            #pragma unroll
            for (int i = 0; i < TALL; ++i) {
                #pragma unroll
                for (int c = 0; c < ALL; ++c) {
                    rt<bf16, 16, 16, ducks::rt_layout::col> k;
                    load(k, in.k, i, c);
                    #pragma unroll
                    for (int m = 0; m < OWN; ++m)
                        warp::mma_AB_base(Wt.tiles[m][c], Gt[i].tiles[m][0], k.tiles[0][0], Wt.tiles[m][c]);
                }
                multiply_t(bias.tiles[0], ones.tiles[0][0], Gt[i]);
            }
        }

        // Zbar = Zq + tril(s_i / last_scale (scores + 1)) G
        #pragma unroll
        for (int i = 0; i < TALL; ++i) {
            #pragma unroll
            for (int j = 0; j < OWN; ++j) zbar.tiles[i][j] = zq.tiles[i][j];
            #pragma unroll
            for (int l = 0; l <= i; ++l) {
                rt<bf16, 16, 16> A;
                mask(A, scores, i, l);
                multiply_t(zbar.tiles[i], A.tiles[0][0], Gt[l]);
            }
        }

        if (n > 0) hand_over(out, n);
        if constexpr (!COMPLETE) store_rows(in, G);
    }

    // u = gamma (beta - (V - K)), the part of G that does not depend on Z
    __device__ void offsets(own_fl &u, const typename L::stage &in, int i) const {
        rt<bf16, 16, L::COLS> k, v;
        load(k, in.k, i);
        load(v, in.v, i);
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                const float2 vv = widen(v.tiles[0][j].data[p]), kk = widen(k.tiles[0][j].data[p]);
                const float2 w = gamma[j][p / 2], o = beta[j][p / 2];
                u.tiles[i][j].data[p] = {w.x * (o.x - (vv.x - kk.x)), w.y * (o.y - (vv.y - kk.y))};
            }
        }
    }

    // Z = K W + b, Zq = Q W + b, scores = Q K^T; one 16-column tile of K and Q at a time saves registers
    __device__ void project(own_fl &z, own_fl &zq, rt_fl<ROWS, ROWS> &scores, const typename L::stage &in,
                             int i) const {
        #pragma unroll
        for (int j = 0; j < OWN; ++j) z.tiles[i][j] = zq.tiles[i][j] = bias.tiles[0][j];
        #pragma unroll
        for (int l = 0; l <= i; ++l) scores.tiles[i][l] = {};
        #pragma unroll
        for (int n = 0; n < ALL; ++n) {
            rt<bf16, 16, 16> k, q;
            rt<bf16, L::COLS, 16> w;
            load(k, in.k, i, n);
            load(q, in.q, i, n);
            #pragma unroll
            for (int m = 0; m < OWN; ++m) warp::copy(w.tiles[m][0], Wt.tiles[m][n]);
            multiply_t(z.tiles[i], k.tiles[0][0], w);
            multiply_t(zq.tiles[i], q.tiles[0][0], w);
            #pragma unroll
            for (int l = 0; l <= i; ++l) {
                rt<bf16, 16, 16> kb;
                load<true>(kb, in.k, l, n);
                warp::mma_ABt_base(scores.tiles[i][l], q.tiles[0][0], kb.tiles[0][0], scores.tiles[i][l]);
            }
        }
    }

    // -last_scale lr G = (c1 gamma^2 + c2) z + c3 u + c4, with four coefficients per row
    __device__ void gradient(own_fl &G, const own_fl &z, const own_fl &u, int i, unsigned n) const {
        float c1[2], c2[2], c3[2], c4[2];
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int token = 16 * i + row + 8 * r;
            float4 a = shared.moments[n % 2][0][token][0], b = shared.moments[n % 2][0][token][1];
            #pragma unroll
            for (int w = 1; w < L::WARPS; ++w) {
                const float4 c = shared.moments[n % 2][w][token][0], d = shared.moments[n % 2][w][token][1];
                a.x += c.x;
                a.y += c.y;
                a.z += c.z;
                a.w += c.w;
                b.x += d.x;
                b.y += d.y;
                b.z += d.z;
                b.w += d.w;
            }
            const float zz = a.x, gzz = a.y + a.z, gz = a.w + b.x, z_sum = b.y, uz = b.z, u_sum = b.w;
            const float rstd = reciprocal_root(zz / HEAD_DIM + LN_EPS);
            const float mean_gx = rstd * (rstd * gzz + uz) / HEAD_DIM;
            c3[r] = -last_scale * shared.lr[n % L::STAGES][token] * rstd;
            c1[r] = c3[r] * rstd;
            c2[r] = -c1[r] * mean_gx;
            c4[r] = -(c1[r] * gz + c2[r] * z_sum + c3[r] * u_sum) / HEAD_DIM;  // rows sum to zero
        }
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                const int r = p % 2;
                const float2 a = gamma_sq[j][p / 2], x = z.tiles[i][j].data[p], w = u.tiles[i][j].data[p];
                G.tiles[i][j].data[p] = {(c1[r] * a.x + c2[r]) * x.x + (c3[r] * w.x + c4[r]),
                                         (c1[r] * a.y + c2[r]) * x.y + (c3[r] * w.y + c4[r])};
            }
        }
    }

    __device__ static void transpose(rt<bf16, L::COLS, 16> &d, const own_in &x, int i) {
        #pragma unroll
        for (int j = 0; j < OWN; ++j) {
            #pragma unroll
            for (int p = 0; p < 4; ++p) {  // quarter p of the tile goes to the mirrored quarter
                const int mirrored = p == 1 ? 2 : p == 2 ? 1 : p;
                asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                             : "=r"(*reinterpret_cast<uint32_t *>(&d.tiles[j][0].data[mirrored]))
                             : "r"(*reinterpret_cast<const uint32_t *>(&x.tiles[i][j].data[p])));
            }
        }
    }
    // Tile (i, l) of tril(s_i / last_scale (scores + 1)), l <= i
    __device__ void mask(rt<bf16, 16, 16> &A, const rt_fl<ROWS, ROWS> &scores, int i, int l) const {
        const float2 *x = scores.tiles[i][l].data;
        const auto scaled = [](float2 x, float a, float b) {
            return narrow({x.x * a + a, x.y * b + b});
        };
        // whether to keep each element of a pair in the two diagonal quarters of a diagonal tile
        const bool left = l < i || 2 * pair <= row, right = l < i || 2 * pair + 1 <= row;
        bf16_2 *d = A.tiles[0][0].data;
        d[0] = scaled(x[0], left ? ratio[i][0] : 0.f, right ? ratio[i][0] : 0.f);
        d[1] = scaled(x[1], ratio[i][1], ratio[i][1]);
        d[2] = l < i ? scaled(x[2], ratio[i][0], ratio[i][0]) : narrow({0.f, 0.f});
        d[3] = scaled(x[3], left ? ratio[i][1] : 0.f, right ? ratio[i][1] : 0.f);
    }

    // Sums of squares of each row of Zbar over the own columns, for finish() after the next sync
    __device__ void leave_squares(const own_fl &zbar, unsigned n) {
        #pragma unroll
        for (int i = 0; i < TALL; ++i) {
            float2 sum = {0.f, 0.f};
            #pragma unroll
            for (int j = 0; j < OWN; ++j) {
                #pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 a = zbar.tiles[i][j].data[2 * h], b = zbar.tiles[i][j].data[2 * h + 1];
                    sum.x += a.x * a.x + a.y * a.y;
                    sum.y += b.x * b.x + b.y * b.y;
                }
            }
            sum.x = row_sum(sum.x);
            sum.y = row_sum(sum.y);
            if (pair < 2) shared.squares[n % 2][warp][16 * i + row + 8 * pair] = pair ? sum.y : sum.x;
        }
    }
    // out = Q + gamma zbar / std + beta of mini-batch n - 1
    __device__ void finish(own_in &out, const own_fl &zbar, unsigned n) const {
        #pragma unroll
        for (int i = 0; i < TALL; ++i) {
            rt<bf16, 16, L::COLS> q;
            load(q, shared.stages[(n - 1) % L::STAGES].q, i);
            float rstd[2];
            #pragma unroll
            for (int r = 0; r < 2; ++r) {
                float sum = 0.f;
                #pragma unroll
                for (int w = 0; w < L::WARPS; ++w) sum += shared.squares[n % 2][w][16 * i + row + 8 * r];
                rstd[r] = reciprocal_root(sum / HEAD_DIM + LN_EPS);
            }
            #pragma unroll
            for (int j = 0; j < OWN; ++j) {
                #pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const float2 x = zbar.tiles[i][j].data[p], w = gamma[j][p / 2], o = beta[j][p / 2];
                    const float2 qq = widen(q.tiles[0][j].data[p]);
                    out.tiles[i][j].data[p] = narrow(
                        {x.x * (w.x * rstd[p % 2]) + (qq.x + o.x), x.y * (w.y * rstd[p % 2]) + (qq.y + o.y)});
                }
            }
        }
    }
    // Writes out over q's tile; the producer then stores it
    __device__ void hand_over(own_in &out, unsigned n) {
        const unsigned stage = (n - 1) % L::STAGES;
        store(shared.stages[stage].q, out);
        __syncwarp();
        if (lane == 0) arrive(shared.finished[stage]);
    }

    // Stores k and lr G of a short mini-batch. Rows beyond its end are 0, because k and lr are 0 there.
    __device__ void store_rows(const typename L::stage &in, const own_fl &G) const {
        rt<bf16, 16, L::COLS> k[TALL];
        #pragma unroll
        for (int i = 0; i < TALL; ++i) load(k[i], in.k, i);
        each_row([&](float2 &k_row, float2 &g_row, int i, int j, int p) {
            k_row = widen(k[i].tiles[0][j].data[p]);
            g_row = {-G.tiles[i][j].data[p].x / last_scale, -G.tiles[i][j].data[p].y / last_scale};
        });
    }
    __device__ void zero_rows() const {
        each_row([](float2 &k_row, float2 &g_row, int, int, int) { k_row = g_row = {0.f, 0.f}; });
    }
    template <typename F> __device__ void each_row(F write) const {
        const size_t rows = size_t(sequence) * ROWS * HEAD_DIM;
        #pragma unroll
        for (int i = 0; i < TALL; ++i) {
            #pragma unroll
            for (int j = 0; j < OWN; ++j) {
                #pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const size_t at = rows + (16 * i + row + 8 * (p % 2)) * HEAD_DIM + column_of(j) + 8 * (p / 2);
                    write(reinterpret_cast<float2 &>(g.k_rows[at]), reinterpret_cast<float2 &>(g.g_rows[at]), i, j, p);
                }
            }
        }
    }
};

// Angles position * 10000^(-2 i / D) of pair i, by position in the mini-batch
template <typename L> __device__ void fill_rotations(typename L::rotations &rotations) {
    for (int at = threadIdx.x; at < L::ROWS * HEAD_DIM / 2; at += L::THREADS) {
        const int position = at / (HEAD_DIM / 2), i = at % (HEAD_DIM / 2);
        const float angle = position * exp2f(-13.287712379549449f * 2 * i / HEAD_DIM);  // log2(10000)
        sincospif(angle * 0.3183098861837907f, &rotations[position][i].y, &rotations[position][i].x);
    }
}

template <typename L>
__global__ __launch_bounds__(L::THREADS, L::BLOCKS) void linear_forward(const __grid_constant__ typename L::globals g) {
    extern __shared__ int raw[];
    const uint32_t start = static_cast<uint32_t>(__cvta_generic_to_shared(&raw[0]));
    // swizzled tiles start at multiples of 1024 bytes
    auto *heads = reinterpret_cast<typename L::head_shared *>(reinterpret_cast<char *>(raw) + (-start & 1023));
    auto &rotations = *reinterpret_cast<typename L::rotations *>(heads + L::HEADS);

    const int warp = kittens::warpid(), first = blockIdx.x * L::HEADS;
    if (threadIdx.x == 0) {
        for (int h = 0; h < L::HEADS; ++h) {
            for (int i = 0; i < L::STAGES; ++i) {
                // arrivals: one rate per row, and one set of tiles
                init_semaphore(L::ROPE ? heads[h].landed[i] : heads[h].arrived[i], L::ROWS, 1);
                if (L::ROPE) init_semaphore(heads[h].arrived[i], WARP_THREADS);
                init_semaphore(heads[h].finished[i], L::WARPS);
            }
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (L::ROPE) fill_rotations<L>(rotations);
    __syncthreads();
    if (warp >= L::CONSUMERS) {
        if constexpr (L::MOVE_REGISTERS) warpgroup::decrease_registers<L::PRODUCER_REGISTERS>();
        const int slot = warp - L::CONSUMERS;
        const int own = L::HEADS == 1 ? 0 : slot;
        if ((slot < L::HEADS || L::ROPE) && first + own < g.sequences)
            linear_producer<L>{g, heads[own], rotations, first + own}.run(slot);
    } else {
        if constexpr (L::MOVE_REGISTERS) warpgroup::increase_registers<L::CONSUMER_REGISTERS>();
        const int slot = warp / L::WARPS;
        if (first + slot < g.sequences)
            linear_consumer<L>(g, heads[slot], first + slot, warp % L::WARPS, slot).run();
    }
}

void linear_forward_launch(TensorView q, TensorView k, TensorView v, TensorView lr, TensorView token_scale,
                           TensorView ln_weight, TensorView ln_bias, TensorView W_in, TensorView b_in, TensorView out,
                           TensorView W_out, TensorView b_out, TensorView k_rows, TensorView g_rows, bool rope,
                           int64_t warps, int64_t heads) {
    const int64_t B = q.size(0), T = q.size(1), H = q.size(2), D = HEAD_DIM, rows = token_scale.size(0);
    const auto launch = [&]<typename L>(L) {
        const auto tokens = [&](const char *name, const TensorView &x) {
            check_shape(name, x, {B, T, H, D});
            TVM_FFI_ICHECK(is_bf16(x)) << name << ": must be bfloat16";
            return strided_tokens<typename L::tokens, typename L::tile>(x);
        };
        const typename L::globals g{
            tokens("q", q), tokens("k", k), tokens("v", v), tokens("out", out),
            checked<float>("lr", lr, {B, T, H}), checked<float>("token_scale", token_scale, {rows}),
            checked<float>("ln_weight", ln_weight, {H, D}), checked<float>("ln_bias", ln_bias, {H, D}),
            checked<float>("W_in", W_in, {B, H, D, D}), checked<float>("b_in", b_in, {B, H, D}),
            checked<float>("W_out", W_out, {B, H, D, D}), checked<float>("b_out", b_out, {B, H, D}),
            checked<float>("k_rows", k_rows, {B, H, rows, D}), checked<float>("g_rows", g_rows, {B, H, rows, D}),
            int(T), int(H), int(B * H)};
        const int blocks = (g.sequences + L::HEADS - 1) / L::HEADS;
        launch_kernel(linear_forward<L>, blocks, L::THREADS, L::SHARED_BYTES, stream_of(q), g);
    };
    const auto dispatch = [&]<bool ROPE>(std::bool_constant<ROPE>) {
        if (rows == 16 && warps == 2 && heads == 4) return launch(linear_layout<16, 2, 4, ROPE>{});
        if (rows == 16 && warps == 4 && heads == 1) return launch(linear_layout<16, 4, 1, ROPE>{});
        if (rows == 32 && warps == 4 && heads == 1) return launch(linear_layout<32, 4, 1, ROPE>{});
        TVM_FFI_THROW(ValueError) << "no kernel for mini-batches of " << rows << ", " << warps
                                  << " warps per head and " << heads << " heads per block";
    };
    rope ? dispatch(std::true_type{}) : dispatch(std::false_type{});
}

}  // namespace ttt

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, ttt::linear_forward_launch);
