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

template <bool ROPE> void start(const mlp_block::arguments &a, int batch, cudaStream_t stream) {
    const auto kernel = forward_kernel<ROPE>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, mlp_block::BYTES),
               "shared memory");
    kernel<<<dim3(batch, a.H), mlp_block::THREADS, mlp_block::BYTES, stream>>>(a);
    check_cuda(cudaGetLastError(), "launch");
}

void launch(const tensors &x, bool rope, cudaStream_t stream) {
    mlp_block::arguments a;
    set_arguments(a, x, mlp_block::B);
    a.q_map = sm90::map_tokens(x.q);
    a.k_map = sm90::map_tokens(x.k);
    a.v_map = sm90::map_tokens(x.v);
    a.set_length(a.T);
    (rope ? start<true> : start<false>)(a, x.q.size(0), stream);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, ttt::mlp::forward<launch>);
