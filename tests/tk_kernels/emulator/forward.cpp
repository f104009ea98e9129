// TTT-MLP's forward kernel on a CPU, for Python: every CTA of a grid, one after the other, in an order that the seed decides.
#include "instructions.hpp"

#include "block_sm90.cuh"

namespace {
std::string failure;
}

// Pointers in the order of the operator's arguments and results; q, k, v, out [batch, T, H, 64], contiguous. Returns the failure, or "".
extern "C" const char *forward(void *const *x, int batch, int T, int H, int rope, unsigned seed) {
    using namespace ttt::mlp_block;
    const auto floats = [x](int k) { return static_cast<float *>(x[k]); };
    const int64_t stride[3] = {int64_t(T) * H * D, int64_t(H) * D, D};
    const auto map = [&](int k) { return machine::TokenMap{static_cast<uint16_t *>(x[k]), {stride[0], stride[1], stride[2]}, batch, T, H}; };
    arguments a{};
    a.q_map = map(0), a.k_map = map(1), a.v_map = map(2);
    a.q = a.q_map.data, a.k = a.k_map.data, a.out = static_cast<uint16_t *>(x[11]);
    for (int axis = 0; axis < 3; ++axis) a.q_stride[axis] = a.k_stride[axis] = stride[axis];
    a.lr = floats(3), a.token_scale = floats(4), a.ln_weight = floats(5), a.ln_bias = floats(6);
    a.W1 = floats(7), a.b1 = floats(8), a.W2 = floats(9), a.b2 = floats(10);
    a.W1_out = floats(12), a.b1_out = floats(13), a.W2_out = floats(14), a.b2_out = floats(15);
    a.k_rows = floats(16), a.x2_rows = floats(17), a.g1_rows = floats(18), a.g2_rows = floats(19);
    a.set_length(T), a.H = H;
    failure.clear();
    for (int b = 0; b < batch && failure.empty(); ++b)
        for (int h = 0; h < H && failure.empty(); ++h)
            failure = machine::run({b, h}, seed + b * H + h, [&] { rope ? ttt::mlp_block::forward<true>(a) : ttt::mlp_block::forward<false>(a); });
    return failure.c_str();
}
