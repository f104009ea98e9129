// SwiGLU on Hopper: hidden = silu(x Wg^T) * (x Wu^T), one GEMM of gate and up with the activation in its epilogue.
//
// x [M, K], weights [2 F, K] with Wg before Wu, hidden [M, F], all bfloat16. Arithmetic is float32, rounded once. The
// [M, 2 F] result of the GEMM stays in registers.
//
// A block computes tiles of 128 rows and OUTPUTS columns. Two warpgroups hold 64 rows each: gate and up are one
// accumulator [64, 2 OUTPUTS], and columns j and OUTPUTS + j are in the same thread. A third warpgroup loads by TMA,
// STAGES steps of 64 columns of x ahead, also across tiles. The grid has one block per SM. Blocks take tiles
// round-robin, or from a counter, because some blocks start late if other kernels hold SMs. OUTPUTS = 128 does the most
// work per loaded byte; 96 is chosen if the busiest SM then computes over 10% fewer columns (wave quantization).
#include "forward/common.cuh"

using namespace kittens;

namespace ttt {

template <int OUTPUTS_> struct layout {
    static constexpr int OUTPUTS = OUTPUTS_, STAGES = OUTPUTS == 128 ? 4 : 5;
    static constexpr int CONSUMERS = 2, DEPTH = 64, ROWS = 64 * CONSUMERS;
    static constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP_THREADS;
    static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // 504 in total: 3 x 168 at launch
    static constexpr int BAND = 16;  // row tiles of a band, which runs column by column: its rows of x stay in the L2

    using rows_tile = st_bf<64, DEPTH>;
    using weights_tile = st_bf<OUTPUTS, DEPTH>;
    using pair_tile = st_bf<2 * OUTPUTS, DEPTH>;  // gate's rows, then up's
    using out_tile = st_bf<64, OUTPUTS>;
    struct globals {
        gl<bf16, 1, 1, -1, -1, rows_tile> x;
        gl<bf16, 1, 1, -1, -1, weights_tile> weights[2];
        gl<bf16, 1, 1, -1, -1, out_tile> hidden;
        int row_tiles, column_tiles, steps;
        int *taken;  // counter of tiles that blocks took after their first; null: round-robin
    };
    struct stage {
        rows_tile x[CONSUMERS];
        weights_tile weights[2];
    };
    struct alignas(1024) shared {
        stage stages[STAGES];
        out_tile out[CONSUMERS];
        semaphore full[STAGES], empty[STAGES];
        int number[STAGES];  // of the tile whose first step is in a stage; negative: no more tiles
    };
    static constexpr int SHARED_BYTES = sizeof(shared) + 1024;
};

// Tile number -> (row tile, column tile): bands of BAND row tiles, each column by column.
template <typename L> __device__ inline int2 tile_of(const typename L::globals &g, int number) {
    const int whole = g.row_tiles / L::BAND * L::BAND * g.column_tiles;
    const int first = number < whole ? number / (L::BAND * g.column_tiles) * L::BAND : g.row_tiles / L::BAND * L::BAND;
    const int height = min(L::BAND, g.row_tiles - first), within = number - first * g.column_tiles;
    return {first + within % height, within / height};
}

template <typename L> struct ring_position {
    int stage = 0, phase = 0;
    __device__ void next() {
        if (++stage == L::STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

template <typename L> __device__ inline void produce(const typename L::globals &g, typename L::shared &s) {
    const int tiles = g.row_tiles * g.column_tiles;
    ring_position<L> at;
    for (int number = blockIdx.x, next; number < tiles; number = next) {
        const int2 tile = tile_of<L>(g, number);
        next = gridDim.x + (g.taken ? atomicAdd(g.taken, 1) : number);
        for (int k = 0; k < g.steps; ++k, at.next()) {
            auto &stage = s.stages[at.stage];
            auto &full = s.full[at.stage];
            wait(s.empty[at.stage], at.phase ^ 1);
            if (k == 0) s.number[at.stage] = number;
            tma::expect_bytes(full, sizeof(stage));
            #pragma unroll
            for (int i = 0; i < L::CONSUMERS; ++i)
                tma::load_async(stage.x[i], g.x, {0, 0, L::CONSUMERS * tile.x + i, k}, full);
            #pragma unroll
            for (int i = 0; i < 2; ++i)
                tma::load_async(stage.weights[i], g.weights[i], {0, 0, tile.y, k}, full);
        }
    }
    wait(s.empty[at.stage], at.phase ^ 1);
    s.number[at.stage] = -1;
    arrive(s.full[at.stage]);
}

// silu(gate) * up. Four elements share one reciprocal, of the product of their 1 + e^-gate, each at most about 2^28.
__device__ inline void activate(float2 &first, float2 &second, float2 gate0, float2 gate1, float2 up0, float2 up1) {
    const auto power = [](float x) {  // e^-x
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fminf(-1.4426950408889634f * x, 28.f)));
        return y;
    };
    const float a = 1.f + power(gate0.x), b = 1.f + power(gate0.y), c = 1.f + power(gate1.x), d = 1.f + power(gate1.y);
    const float ab = a * b, cd = c * d;
    float all;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(all) : "f"(ab * cd));
    const float of_ab = all * cd, of_cd = all * ab;
    first = {gate0.x * up0.x * (of_ab * b), gate0.y * up0.y * (of_ab * a)};
    second = {gate1.x * up1.x * (of_cd * d), gate1.y * up1.y * (of_cd * c)};
}

template <typename L>
__device__ inline void consume(const typename L::globals &g, typename L::shared &s, int group) {
    ring_position<L> at;
    const auto release = [&](int stage) {
        if (warpgroup::laneid() == 0) arrive(s.empty[stage]);
    };
    while (true) {
        wait(s.full[at.stage], at.phase);
        const int number = s.number[at.stage];
        if (number < 0) break;
        rt_fl<16, 2 * L::OUTPUTS> sums;
        const auto multiply = [&](auto first) {
            auto &stage = s.stages[at.stage];
            wait(s.full[at.stage], at.phase);
            auto &weights = reinterpret_cast<typename L::pair_tile &>(stage.weights);
            using sums_tile = decltype(sums);
            // Only a tile's first matmul needs a fence: other instructions used the registers of sums.
            if constexpr (decltype(first)::value)
                warpgroup::mm_ABt(sums, stage.x[group], weights);
            else
                warpgroup::mma_ABt<sums_tile, typename L::rows_tile, typename L::pair_tile, 0, 1>(
                    sums, stage.x[group], weights);
        };
        multiply(std::true_type{});
        int before = at.stage;
        at.next();
        for (int k = 1; k < g.steps; ++k) {
            multiply(std::false_type{});
            warpgroup::mma_async_wait<1>();
            release(before);
            before = at.stage;
            at.next();
        }
        warpgroup::mma_async_wait<0>();
        release(before);

        const int2 tile = tile_of<L>(g, number);
        rt_bf<16, L::OUTPUTS> out;
        constexpr int HALF = L::OUTPUTS / 16;
        #pragma unroll
        for (int j = 0; j < HALF; ++j) {
            #pragma unroll
            for (int p = 0; p < 4; p += 2) {
                float2 first, second;
                const auto *gate = &sums.tiles[0][j].data[p], *up = &sums.tiles[0][j + HALF].data[p];
                activate(first, second, gate[0], gate[1], up[0], up[1]);
                out.tiles[0][j].data[p] = __float22bfloat162_rn(first);
                out.tiles[0][j].data[p + 1] = __float22bfloat162_rn(second);
            }
        }
        if (warpgroup::laneid() == 0) tma::store_async_read_wait<0>();  // wait until TMA has read the previous tile
        warpgroup::sync(1 + group);
        warpgroup::store(s.out[group], out);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        warpgroup::sync(1 + group);
        if (warpgroup::laneid() == 0)
            tma::store_async(g.hidden, s.out[group], {0, 0, L::CONSUMERS * tile.x + group, tile.y});
    }
    if (warpgroup::laneid() == 0) tma::store_async_wait<0>();
}

template <typename L>
__global__ __launch_bounds__(L::THREADS, 1) void swiglu_product(const __grid_constant__ typename L::globals g) {
    extern __shared__ int raw[];
    const uint32_t start = static_cast<uint32_t>(__cvta_generic_to_shared(&raw[0]));
    auto &s = *reinterpret_cast<typename L::shared *>(reinterpret_cast<char *>(raw) + (-start & 1023));
    if (threadIdx.x == 0) {
        for (int i = 0; i < L::STAGES; ++i) {
            init_semaphore(s.full[i], 0, 1);
            init_semaphore(s.empty[i], L::CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int group = warpgroup::groupid();
    if (group == L::CONSUMERS) {
        warpgroup::decrease_registers<L::PRODUCER_REGISTERS>();
        if (warpgroup::laneid() == 0) produce<L>(g, s);
    } else {
        warpgroup::increase_registers<L::CONSUMER_REGISTERS>();
        consume<L>(g, s, group);
    }
}

constexpr int tiles_of(int64_t size, int each) { return int((size + each - 1) / each); }

// taken: the counter of tiles, an int32 that is 0 at the start; empty: round-robin
void swiglu_product_launch(TensorView x, TensorView weights, TensorView hidden, TensorView taken) {
    const size_t M = x.size(0), K = x.size(1), F = hidden.size(1);
    TVM_FFI_ICHECK(is_bf16(x) && is_bf16(weights) && is_bf16(hidden)) << "x, weights and hidden must be bfloat16";
    TVM_FFI_ICHECK(taken.dtype() == DLDataType({kDLInt, 32, 1}) && taken.numel() <= 1)
        << "taken must be at most one int32";
    TVM_FFI_ICHECK(M > 0 && F % 64 == 0 && K % 64 == 0) << "F and K must be multiples of 64";
    bf16 *rows = checked<bf16>("x", x, {int64_t(M), int64_t(K)});
    bf16 *halves = checked<bf16>("weights", weights, {int64_t(2 * F), int64_t(K)});
    bf16 *out = checked<bf16>("hidden", hidden, {int64_t(M), int64_t(F)});
    int processors = 0;
    const int device = x.device().device_id;
    check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "attribute");
    const auto launch = [&]<typename L>(L) {
        using half = gl<bf16, 1, 1, -1, -1, typename L::weights_tile>;
        const typename L::globals g{{rows, nullptr, nullptr, M, K},
                                    {half{halves, nullptr, nullptr, F, K},
                                     half{halves + F * K, nullptr, nullptr, F, K}},
                                    {out, nullptr, nullptr, M, F},
                                    tiles_of(M, L::ROWS), tiles_of(F, L::OUTPUTS), int(K / L::DEPTH),
                                    taken.numel() ? pointer<int>(taken) : nullptr};
        const int blocks = std::min(processors, g.row_tiles * g.column_tiles);
        launch_kernel(swiglu_product<L>, blocks, L::THREADS, L::SHARED_BYTES, stream_of(x), g);
    };
    const auto columns_per_sm = [&](int outputs) {  // columns that the busiest SM computes
        return outputs * tiles_of(int64_t(tiles_of(M, 128)) * tiles_of(F, outputs), processors);
    };
    if (10 * columns_per_sm(96) < 9 * columns_per_sm(128))
        launch(layout<96>{});
    else
        launch(layout<128>{});
}

}  // namespace ttt

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, ttt::swiglu_product_launch);
