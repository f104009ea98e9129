// Arguments of the TTT-MLP forward kernels and their checks.
#pragma once

#include "forward/common.cuh"

namespace ttt::mlp {

constexpr int D = 64, F = 256;  // head dimension, hidden units

// q, k and v may be strided; the other tensors are contiguous. q, k, v and out are bfloat16, the others float32.
struct tensors {
    TensorView q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2;
    TensorView out, W1_out, b1_out, W2_out, b2_out, k_rows, x2_rows, g1_rows, g2_rows;
};

// Stores the address and the strides of tokens [batch, T, H, D].
template <typename T>
void set_tokens(const T *&to, int64_t (&stride)[3], const char *name, const TensorView &x,
                std::initializer_list<int64_t> shape) {
    check_shape(name, x, shape);
    for (int axis = 0; axis < 3; ++axis) stride[axis] = x.stride(axis);
    to = pointer<const T>(x);
}
// Checks the tensors and stores the addresses that both kernels take, in fields of the same names. m: mini-batch.
template <typename Arguments> void set_arguments(Arguments &a, const tensors &x, int64_t m) {
    const int64_t batch = x.q.size(0), T = x.q.size(1), H = x.q.size(2);
    TVM_FFI_ICHECK(is_bf16(x.q)) << "q, k, v must be bfloat16";
    set_tokens(a.q, a.q_stride, "q", x.q, {batch, T, H, D});
    set_tokens(a.k, a.k_stride, "k", x.k, {batch, T, H, D});
    check_shape("v", x.v, {batch, T, H, D});
    a.lr = checked<const float>("lr", x.lr, {batch, T, H});
    a.token_scale = checked<const float>("token_scale", x.token_scale, {m});
    a.ln_weight = checked<const float>("ln_weight", x.ln_weight, {H, D});
    a.ln_bias = checked<const float>("ln_bias", x.ln_bias, {H, D});
    a.W1 = checked<const float>("W1", x.W1, {batch, H, D, F});
    a.b1 = checked<const float>("b1", x.b1, {batch, H, F});
    a.W2 = checked<const float>("W2", x.W2, {batch, H, F, D});
    a.b2 = checked<const float>("b2", x.b2, {batch, H, D});
    a.out = checked<std::remove_pointer_t<decltype(a.out)>>("out", x.out, {batch, T, H, D});
    a.W1_out = checked<float>("W1_out", x.W1_out, {batch, H, D, F});
    a.b1_out = checked<float>("b1_out", x.b1_out, {batch, H, F});
    a.W2_out = checked<float>("W2_out", x.W2_out, {batch, H, F, D});
    a.b2_out = checked<float>("b2_out", x.b2_out, {batch, H, D});
    a.k_rows = checked<float>("k_rows", x.k_rows, {batch, H, m, D});
    a.x2_rows = checked<float>("x2_rows", x.x2_rows, {batch, H, m, F});
    a.g1_rows = checked<float>("g1_rows", x.g1_rows, {batch, H, m, F});
    a.g2_rows = checked<float>("g2_rows", x.g2_rows, {batch, H, m, D});
    a.T = T;
    a.H = H;
}

// The function that Python calls. LAUNCH takes (tensors, rope, stream).
template <auto LAUNCH>
void forward(TensorView q, TensorView k, TensorView v, TensorView lr, TensorView token_scale, TensorView ln_weight,
             TensorView ln_bias, TensorView W1, TensorView b1, TensorView W2, TensorView b2, TensorView out,
             TensorView W1_out, TensorView b1_out, TensorView W2_out, TensorView b2_out, TensorView k_rows,
             TensorView x2_rows, TensorView g1_rows, TensorView g2_rows, bool rope) {
    const tensors x{q,   k,      v,      lr,     token_scale, ln_weight, ln_bias, W1,      b1,     W2,
                    b2,  out,    W1_out, b1_out, W2_out,      b2_out,    k_rows,  x2_rows, g1_rows, g2_rows};
    LAUNCH(x, rope, stream_of(q));
}

}  // namespace ttt::mlp
