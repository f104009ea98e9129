// TTT-MLP forward (dual form) on Hopper for mini-batches of 16 tokens: the launcher of block_sm90.cuh.
#include "arguments_sm90.cuh"
#include "instructions_sm90.cuh"

#include "block_sm90.cuh"

#include <cmath>

using namespace ttt;
using ttt::mlp::set_arguments;
using ttt::mlp::tensors;

namespace {

template <bool ROPE>
__global__ __launch_bounds__(mlp_block::THREADS, 1)
void forward_kernel(const __grid_constant__ mlp_block::arguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    if (address(*memory) != mlp_block::BASE) asm volatile("trap;");  // addresses are absolute
    mlp_block::forward<ROPE>(a);
}

void launch(const tensors &x, bool rope, cudaStream_t stream) {
    mlp_block::arguments a;
    set_arguments(a, x, mlp_block::B);
    a.q_map = sm90::map_tokens(x.q);
    a.k_map = sm90::map_tokens(x.k);
    a.v_map = sm90::map_tokens(x.v);
    a.set_length(a.T);
    const auto kernel = rope ? forward_kernel<true> : forward_kernel<false>;
    launch_kernel(kernel, dim3(x.q.size(0), a.H), mlp_block::THREADS, mlp_block::BYTES, stream, a);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, ttt::mlp::forward<launch>);
