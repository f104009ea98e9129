// One CTA of a Hopper GPU on a CPU: the instructions of tk_kernels/ttt_mlp/instructions_sm90.cuh for a kernel's own source.
//
// Every thread is a fibre; a warp or warpgroup instruction executes when all its threads have reached it. Threads, TMA
// copies and matmuls run in an order that the seed decides. The emulator reports, whatever the order:
//   - deadlock: no thread, copy or matmul can continue;
//   - races: each 4 bytes of shared memory record who last wrote and read them. Barriers alone must order an access
//     after the accesses that it conflicts with (vector clocks of warps and of TMA, and of the lanes within a warp);
//   - a matmul or TMA copy that reads an ordinary store which was not published before the barrier;
//   - an operand that changes before its matmul is waited for, and a read of shared memory that nobody has written.
// It does not model registers, bank conflicts or time.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define __device__
#define __forceinline__ inline

namespace machine {

constexpr int THREADS = 512, WARPS = THREADS / 32, WARPGROUPS = WARPS / 4, TMA = WARPS;  // TMA: one more, with a clock
constexpr uint32_t SHARED = 1024 + 232448, STACK = 192 * 1024;

using Clock = std::array<int, WARPS + 1>;
using Lanes = std::array<int, 32>;
template <size_t n> void join(std::array<int, n> &x, const std::array<int, n> &y) {
    for (size_t k = 0; k < n; ++k) x[k] = std::max(x[k], y[k]);
}
// The events of others that precede a warp or a barrier, and those of them whose stores matmuls and TMA see
struct Known {
    Clock seen{}, published{};
    void join(const Known &other) { machine::join(seen, other.seen), machine::join(published, other.published); }
};
struct Word {
    int writer = -1, written = 0;  // the warp that wrote last, and its event number
    int lane = -1, written_by_lane = 0;  // that warp's lane (-1: all lanes, or TMA), and the lane's event number
    int reader = -1;               // the warp that read last
    Lanes read_by_lane{};          // event numbers of its lanes
    Clock read{};
};

struct TokenMap {  // tokens [batch, T, H, 64] by strides
    const uint16_t *data;
    int64_t stride[3];
    int batch, T, H;
};
struct Copy { uint32_t to; const TokenMap *from; int batch, t, head; uint32_t barrier; Known known; };
struct Product {
    bool registers; int n, type, transpose_a, transpose_b, add; bool f16_sum;
    void *sum[128]; const uint32_t *left[128]; uint32_t left_was[128][4]; uint64_t a, b; long group;
    Known known[4];  // of its warps when it began
    bool done = false;
};
struct Together { int arrived = 0; long generation = 0; std::string what; };  // the threads of a warp or warpgroup
using LanesOfWarps = std::array<Lanes, WARPS>;
struct Named { int arrived = 0, expected = 0; long generation = 0; Known known, released; LanesOfWarps lanes{}; };
struct Mbarrier { bool live = false; int arrivals = 0, pending = 0, phase = 0; long bytes = 0; Known known, released[2]; LanesOfWarps lanes{}; };
struct Fibre { ucontext_t context; std::unique_ptr<char[]> stack{new char[STACK]}; bool done = false; std::function<bool()> blocked; long commits = 0;
    Lanes lanes{};  // events of its warp's lanes that came before
    std::vector<std::array<uint32_t, 2>> ahead;  // copies in flight: where to, what
};

struct Machine {
    std::vector<uint8_t> shared = std::vector<uint8_t>(SHARED, 0xff);  // NaN
    std::vector<Word> words = std::vector<Word>(SHARED / 4);
    std::vector<Mbarrier> mbarriers = std::vector<Mbarrier>(SHARED / 8);
    std::vector<Fibre> fibres = std::vector<Fibre>(THREADS);
    Known known[WARPS + 1];
    Together warp[WARPS], warpgroup[WARPGROUPS];
    Named named[16];
    std::deque<Product> products[WARPGROUPS];
    Product building[WARPGROUPS];
    std::vector<Copy> copies;
    uint32_t given[THREADS][8], taken[THREADS][4];
    float *sums[THREADS];
    float given_f[THREADS], taken_f[THREADS];
    ucontext_t main;
    int thread = 0, block[2] = {0, 0};
    std::mt19937 chance;
    std::string failure;
};
inline Machine *M;

[[noreturn]] __attribute__((noinline)) inline void fail(const std::string &what) {
    if (M->failure.empty()) M->failure = "warp " + std::to_string(M->thread / 32) + ": " + what;
    swapcontext(&M->fibres[M->thread].context, &M->main);
    abort();  // nobody goes on with a thread that failed
}
template <typename Condition> __attribute__((noinline)) void block_until(Condition condition) {
    if (condition()) return;
    M->fibres[M->thread].blocked = condition;
    swapcontext(&M->fibres[M->thread].context, &M->main);
}
// Waits until all `count` threads have come; the last one to come does the work
template <typename Work> __attribute__((noinline)) void together(Together &c, int count, const std::string &what, Work work) {
    if (c.arrived && c.what != what) fail("threads that should go together are at " + c.what + " and at " + what);
    c.what = what;
    const long generation = c.generation;
    if (++c.arrived < count) return block_until([&c, generation] { return c.generation != generation; });
    work();
    c.arrived = 0, ++c.generation;
}

// ---- who touched shared memory
inline int warp_index() { return M->thread / 32; }
inline std::string name(int who) { return who == TMA ? "TMA" : "warp " + std::to_string(who); }
inline void check_range(uint32_t at, uint32_t bytes) {
    if (at < 1024 || at + bytes > SHARED || at % bytes) fail("shared memory at " + std::to_string(at) + ", " + std::to_string(bytes) + " bytes");
}
// lane: the lane of the warp that reads or writes; none for a matmul, for TMA and for all lanes together.
inline void on_read(int who, const Known &reader, uint32_t at, bool by_product, int lane = -1) {
    Word &word = M->words[at / 4];
    if (word.writer < 0) fail(name(who) + " reads " + std::to_string(at) + ", which nobody has written");
    if (word.writer != who && reader.seen[word.writer] < word.written)
        fail("race: " + name(who) + " reads " + std::to_string(at) + " that " + name(word.writer) + " wrote");
    if (by_product && reader.published[word.writer] < word.written)
        fail("a product of " + name(who) + " reads " + std::to_string(at) + " that " + name(word.writer) + " has not published");
    word.read[who] = std::max(word.read[who], M->known[who].seen[who]);
    if (lane < 0) return;
    const Lanes &lanes = M->fibres[32 * who + lane].lanes;
    if (word.writer == who && word.lane >= 0 && word.lane != lane && lanes[word.lane] < word.written_by_lane)
        fail("race: lane " + std::to_string(lane) + " reads " + std::to_string(at) + " that lane " + std::to_string(word.lane) + " wrote");
    if (word.reader != who) word.reader = who, word.read_by_lane = {};
    word.read_by_lane[lane] = lanes[lane];
}
inline void on_write(int who, const Known &writer, uint32_t at, int lane = -1) {
    Word &word = M->words[at / 4];
    if (word.writer >= 0 && word.writer != who && writer.seen[word.writer] < word.written)
        fail("race: " + name(who) + " writes " + std::to_string(at) + " that " + name(word.writer) + " wrote");
    if (who == TMA && word.writer >= 0 && writer.published[word.writer] < word.written)
        fail("TMA writes " + std::to_string(at) + " where a store of " + name(word.writer) + " is not published");
    for (int reader = 0; reader <= WARPS; ++reader)
        if (reader != who && word.read[reader] > writer.seen[reader])
            fail("race: " + name(who) + " writes " + std::to_string(at) + " that " + name(reader) + " reads");
    word.writer = who, word.written = M->known[who].seen[who], word.lane = lane;
    if (lane < 0) return;
    const Lanes &lanes = M->fibres[32 * who + lane].lanes;
    for (int reader = 0; reader < 32; ++reader)
        if (word.reader == who && reader != lane && word.read_by_lane[reader] > lanes[reader])
            fail("race: lane " + std::to_string(lane) + " writes " + std::to_string(at) + " that lane " + std::to_string(reader) + " reads");
    word.written_by_lane = lanes[lane];
}
inline void event(int who) { ++M->known[who].seen[who]; }  // what follows a release is later than it
inline int lane_index() { return M->thread % 32; }
inline void release_lane(LanesOfWarps &to) {
    Lanes &lanes = M->fibres[M->thread].lanes;
    join(to[warp_index()], lanes), ++lanes[lane_index()];
}
inline void acquire_lane(const LanesOfWarps &from) { join(M->fibres[M->thread].lanes, from[warp_index()]); }
inline void join_lanes(int warp) {  // all of a warp that have come together
    Lanes all{};
    for (int lane = 0; lane < 32; ++lane) join(all, M->fibres[32 * warp + lane].lanes);
    for (int lane = 0; lane < 32; ++lane) M->fibres[32 * warp + lane].lanes = all, ++M->fibres[32 * warp + lane].lanes[lane];
}

template <typename T> T peek(uint32_t at) {
    T x;
    memcpy(&x, &M->shared[at], sizeof x);
    return x;
}
template <typename T> T read(uint32_t at) {
    check_range(at, sizeof(T));
    on_read(warp_index(), M->known[warp_index()], at, false, lane_index());
    return peek<T>(at);
}
inline void write(uint32_t at, uint32_t x) {
    check_range(at, 4);
    on_write(warp_index(), M->known[warp_index()], at, lane_index());
    memcpy(&M->shared[at], &x, 4);
}

// ---- numbers
inline float as_float(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
inline uint32_t as_bits(float f) { uint32_t x; memcpy(&x, &f, 4); return x; }
inline float from_f16(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return float(x); }
inline uint16_t round_f16(double v) { _Float16 x = _Float16(v); uint16_t h; memcpy(&h, &x, 2); return h; }
inline float from_bf16(uint16_t h) { return as_float(uint32_t(h) << 16); }
inline uint16_t round_bf16(float v) {
    const uint32_t x = as_bits(v);
    return (x & 0x7fffffff) > 0x7f800000 ? 0x7fff : uint16_t((x + 0x7fff + (x >> 16 & 1)) >> 16);
}
inline float number(uint16_t x, int type) { return type ? from_bf16(x) : from_f16(x); }
inline uint32_t packed(uint16_t first, uint16_t second) { return first | uint32_t(second) << 16; }

// ---- products
// Returns the address of element (row, k) of an operand, from its descriptor as wgmma reads it
inline uint32_t address_of(uint64_t descriptor, bool transposed, int row, int k) {
    const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    const int swizzle = descriptor >> 62;
    if (swizzle == 0 && !transposed) return start + row / 8 * stride + row % 8 * 16 + k / 8 * leading + k % 8 * 2;
    if (swizzle != 1) fail("a descriptor of a kind that is not known here");
    const uint32_t at = transposed ? start + row / 64 * leading + row % 64 * 2 + k / 8 * stride + k % 8 * 128
                                   : start + row / 8 * stride + row % 8 * 128 + k * 2;
    return at ^ (at >> 7 & 7) << 4;
}
inline float element(uint64_t descriptor, bool transposed, int row, int k, int type) {
    const uint32_t at = address_of(descriptor, transposed, row, k);
    if (at < 1024 || at + 2 > SHARED) fail("a product reads beyond shared memory");
    return number(peek<uint16_t>(at), type);
}
// Checks, when a matmul is waited for, that what it read in shared memory was published when the matmul began
inline void check_reads(int group, const Product &x) {
    const auto check = [&](uint64_t descriptor, bool transposed, int rows) {
        for (int row = 0; row < rows; row += transposed ? 2 : 1)
            for (int k = 0; k < 16; k += transposed ? 1 : 2)
                for (int w = 0; w < 4; ++w) on_read(4 * group + w, x.known[w], address_of(descriptor, transposed, row, k), true);
    };
    if (!x.registers) check(x.a, x.transpose_a, 64);
    check(x.b, x.transpose_b, x.n);
}
inline void execute(const Product &x) {
    float a[64][16], b[256][16];
    for (int m = 0; m < 64; ++m)
        for (int k = 0; k < 16; ++k) {
            if (!x.registers) { a[m][k] = element(x.a, x.transpose_a, m, k, x.type); continue; }
            const int lane = m / 16 * 32 + m % 8 * 4 + k % 8 / 2, word = m % 16 / 8 + 2 * (k / 8);
            if (x.left[lane][word] != x.left_was[lane][word]) fail("an operand of a product in flight has changed");
            a[m][k] = number(x.left_was[lane][word] >> 16 * (k & 1), x.type);
        }
    for (int n = 0; n < x.n; ++n)
        for (int k = 0; k < 16; ++k) b[n][k] = element(x.b, x.transpose_b, n, k, x.type);
    for (int m = 0; m < 64; ++m)
        for (int n = 0; n < x.n; ++n) {
            void *sums = x.sum[m / 16 * 32 + m % 8 * 4 + n % 8 / 2];
            const int which = n / 8 * 4 + m % 16 / 8 * 2 + (n & 1);
            float *wide = static_cast<float *>(sums) + which;
            uint16_t *narrow = static_cast<uint16_t *>(sums) + which;
            float s = !x.add ? 0.f : x.f16_sum ? from_f16(*narrow) : *wide;
            for (int k = 0; k < 16; ++k) s += a[m][k] * b[n][k];
            if (x.f16_sum) *narrow = round_f16(s);
            else *wide = s;
        }
}
inline void execute_next(int group) {  // the first matmul that is not done
    for (Product &x : M->products[group])
        if (!x.done) return execute(x), x.done = true, void();
}
__attribute__((noinline)) inline void issue(Product x, void *sum, const uint32_t *left) {
    const int thread = M->thread, group = thread / 128;
    Product &building = M->building[group];
    x.group = M->fibres[thread].commits;
    if (!M->warpgroup[group].arrived) building = x;
    if (building.a != x.a || building.b != x.b || building.n != x.n || building.group != x.group) fail("a product differs in its warpgroup");
    building.sum[thread % 128] = sum, building.left[thread % 128] = left;
    building.known[thread / 32 % 4] = M->known[warp_index()];
    if (left) memcpy(building.left_was[thread % 128], left, 16);
    together(M->warpgroup[group], 128, "a product", [group] { M->products[group].push_back(M->building[group]); });
}
// Completes all matmuls of this warpgroup except those of the last `pending` commits
__attribute__((noinline)) inline void await(int pending) {
    const int group = M->thread / 128;
    while (!M->products[group].empty() && M->products[group].front().group < M->fibres[M->thread].commits - pending) {
        Product &x = M->products[group].front();
        if (!x.done) execute(x);
        check_reads(group, x);
        M->products[group].pop_front();
    }
}

// ---- mbarriers and TMA
inline Mbarrier &mbarrier(uint32_t at) {
    Mbarrier &x = M->mbarriers.at(at / 8);
    if (!x.live) fail("an mbarrier that nobody made");
    return x;
}
inline void complete(Mbarrier &x) {
    if (x.pending || x.bytes) return;
    x.released[x.phase] = x.known, x.phase ^= 1, x.pending = x.arrivals;
}
inline void arrive(Mbarrier &x) {
    if (!x.pending) fail("more arrivals at an mbarrier than it expects");
    const int who = warp_index();
    x.known.join(M->known[who]), event(who), release_lane(x.lanes);
    --x.pending, complete(x);
}
inline void execute_copy(const Copy &c) {
    const TokenMap &from = *c.from;
    event(TMA);
    Known tma = c.known;
    tma.seen[TMA] = tma.published[TMA] = M->known[TMA].seen[TMA];
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 64; column += 2) {
            const int t = c.t + row;
            const bool there = t >= 0 && t < from.T;
            uint32_t x = 0, at = c.to + row * 128 + column * 2;
            if (there) memcpy(&x, from.data + c.batch * from.stride[0] + t * from.stride[1] + c.head * from.stride[2] + column, 4);
            at ^= (at >> 7 & 7) << 4;
            on_write(TMA, tma, at);
            memcpy(&M->shared[at], &x, 4);
        }
    Mbarrier &x = mbarrier(c.barrier);
    x.known.join(tma), x.bytes -= 2048, complete(x);
}

// Runs the threads of one CTA; returns the failure, or ""
inline std::string run(const std::array<int, 2> &block, unsigned seed, const std::function<void()> &body) {
    Machine machine;
    M = &machine;
    M->block[0] = block[0], M->block[1] = block[1], M->chance.seed(seed);
    for (int who = 0; who <= WARPS; ++who) M->known[who].seen[who] = 1;
    for (int thread = 0; thread < THREADS; ++thread) M->fibres[thread].lanes[thread % 32] = 1;
    static const std::function<void()> *thread_body;
    thread_body = &body;
    for (Fibre &fibre : M->fibres) {
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.get(), fibre.context.uc_stack.ss_size = STACK, fibre.context.uc_link = &M->main;
        makecontext(&fibre.context, +[] { (*thread_body)(); M->fibres[M->thread].done = true; }, 0);
    }
    const auto chance = [](unsigned n) { return M->chance() % n == 0; };
    int slow[WARPS] = {};  // of 8 rounds, how many a warp rests
    for (long round = 0;; ++round) {
        if (round % 64 == 0) for (int &x : slow) x = M->chance() % 8;
        bool left = false, moved = false;
        const int first = M->chance() % WARPS, lanes = chance(2) ? 31 : 0;
        for (int k = 0; k < WARPS; ++k) {
            const int warp = (5 * k + first) % WARPS;
            const bool rests = int(M->chance() % 8) < slow[warp];
            for (int lane = 0; lane < 32; ++lane) {
                M->thread = 32 * warp + (lane ^ lanes);
                Fibre &fibre = M->fibres[M->thread];
                if (fibre.done) continue;
                left = true;
                if (fibre.blocked && !fibre.blocked()) continue;
                moved = true;
                if (rests) continue;
                fibre.blocked = nullptr;
                swapcontext(&M->main, &fibre.context);
                if (!M->failure.empty()) return M->failure;
            }
        }
        if (!left) return "";
        for (int group = 0; group < WARPGROUPS; ++group)
            if (chance(4)) M->thread = 128 * group, execute_next(group);
        if (!M->copies.empty() && (chance(8) || !moved)) {
            const size_t which = M->chance() % M->copies.size();
            const Copy copy = M->copies[which];
            M->copies.erase(M->copies.begin() + which);
            execute_copy(copy), moved = true;
        }
        if (!moved) {
            std::string waiting;
            for (int warp = 0; warp < WARPS; ++warp)
                if (!M->fibres[32 * warp].done) waiting += " " + std::to_string(warp);
            return "deadlock: warps" + waiting + " wait for ever";
        }
    }
}

}  // namespace machine
