// TTT-MLP forward (dual form) on Hopper for mini-batches of 16 tokens: the launcher of block_sm90.cuh.
#include "arguments_sm90.cuh"
#include "instructions_sm90.cuh"

#include "block_sm90.cuh"

#include <cmath>

using namespace ttt;
using ttt::mlp::arguments;
using ttt::mlp::tensors;

namespace {

template <bool ROPE>
__global__ __launch_bounds__(mlp_block::THREADS, 1)
void forward_kernel(const __grid_constant__ mlp_block::arguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    if (address(*memory) != mlp_block::BASE) asm volatile("trap;");  // addresses are absolute
    mlp_block::forward<ROPE>(a);
}

template <bool ROPE> void start(const mlp_block::arguments &a, int batch, cudaStream_t stream) {
    const auto kernel = forward_kernel<ROPE>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, mlp_block::BYTES),
               "shared memory");
    kernel<<<dim3(batch, a.H), mlp_block::THREADS, mlp_block::BYTES, stream>>>(a);
    check_cuda(cudaGetLastError(), "launch");
}

void launch(const arguments &x, const tensors &tokens, int batch, cudaStream_t stream) {
    mlp_block::arguments a{.q_map = sm90::map_tokens(tokens.q),
                           .k_map = sm90::map_tokens(tokens.k),
                           .v_map = sm90::map_tokens(tokens.v),
                           .q = reinterpret_cast<const uint16_t *>(x.q),
                           .k = reinterpret_cast<const uint16_t *>(x.k),
                           .out = reinterpret_cast<uint16_t *>(x.out),
                           .q_stride = {x.q_stride[0], x.q_stride[1], x.q_stride[2]},
                           .k_stride = {x.k_stride[0], x.k_stride[1], x.k_stride[2]},
                           .lr = x.lr,
                           .token_scale = x.token_scale,
                           .ln_weight = x.ln_weight,
                           .ln_bias = x.ln_bias,
                           .W1 = x.W1,
                           .b1 = x.b1,
                           .W2 = x.W2,
                           .b2 = x.b2,
                           .W1_out = x.W1_out,
                           .b1_out = x.b1_out,
                           .W2_out = x.W2_out,
                           .b2_out = x.b2_out,
                           .k_rows = x.k_rows,
                           .x2_rows = x.x2_rows,
                           .g1_rows = x.g1_rows,
                           .g2_rows = x.g2_rows,
                           .H = x.H};
    a.set_length(x.T);
    x.rope ? start<true>(a, batch, stream) : start<false>(a, batch, stream);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, (ttt::mlp::forward<mlp_block::B, launch>));
