// Shared by the .cu files: argument checks at the tvm-ffi boundary, the stream, TMA descriptors, one-line PTX.
#pragma once

#include "kittens.cuh"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ttt {

using namespace kittens;
using tvm::ffi::TensorView;

inline bool is_bf16(const TensorView &x) { return x.dtype() == DLDataType{kDLBfloat, 16, 1}; }
inline bool is_fp32(const TensorView &x) { return x.dtype() == DLDataType{kDLFloat, 32, 1}; }

// The Python side reports users' mistakes; these checks guard the pointers.
inline void check_shape(const char *name, const TensorView &x, std::initializer_list<int64_t> shape) {
    TVM_FFI_ICHECK_EQ(x.ndim(), static_cast<int>(shape.size())) << name << ": wrong number of dimensions";
    TVM_FFI_ICHECK_EQ(static_cast<int>(x.device().device_type), static_cast<int>(kDLCUDA)) << name << ": not on a GPU";
    for (int axis = 0; axis < x.ndim(); ++axis)
        TVM_FFI_ICHECK_EQ(x.size(axis), shape.begin()[axis]) << name << ": wrong extent of dimension " << axis;
}
template <typename T> inline T *pointer(const TensorView &x) {
    return reinterpret_cast<T *>(static_cast<char *>(x.data_ptr()) + x.byte_offset());
}

// The address of a contiguous tensor of this shape. If T is float, also checks its dtype.
template <typename T> T *checked(const char *name, const TensorView &x, std::initializer_list<int64_t> shape) {
    check_shape(name, x, shape);
    TVM_FFI_ICHECK(x.IsContiguous()) << name << ": must be contiguous";
    if constexpr (std::is_same_v<std::remove_const_t<T>, float>)
        TVM_FFI_ICHECK(is_fp32(x)) << name << ": must be float32";
    return pointer<T>(x);
}

// The current stream of the caller's framework on x's device.
inline cudaStream_t stream_of(const TensorView &x) {
    return static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
}

inline void check_cuda(cudaError_t status, const char *what) {
    TVM_FFI_ICHECK(status == cudaSuccess) << what << ": " << cudaGetErrorString(status);
}

template <typename Kernel, typename Arguments>
void launch_kernel(Kernel kernel, dim3 grid, int threads, int shared_bytes, cudaStream_t stream, const Arguments &a) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "shared memory");
    kernel<<<grid, threads, shared_bytes, stream>>>(a);
    check_cuda(cudaGetLastError(), "launch");
}

// Makes a TMA descriptor of bfloat16 x [B, T, H, D]. D is contiguous; other strides are free (slice of a projection).
// Tiles are T by D; rows at or beyond T read as zero and are not written.
template <typename GL, typename ST> GL strided_tokens(const TensorView &x) {
    using T = typename ST::dtype;
    GL layout(pointer<T>(x), x.size(0), x.size(1), x.size(2), nullptr);
    constexpr uint64_t wide = ST::swizzle_bytes / sizeof(T);  // elements in one swizzled row
    const auto extent = [&](int axis) { return uint64_t(x.size(axis)); };
    const auto bytes = [&](int axis) { return uint64_t(x.stride(axis)) * sizeof(T); };
    const uint64_t shape[5] = {wide, extent(1), extent(3) / wide, extent(2), extent(0)};
    const uint64_t strides[4] = {bytes(1), ST::swizzle_bytes, bytes(2), bytes(0)};
    const uint32_t box[5] = {uint32_t(wide), ST::rows, ST::cols / uint32_t(wide), 1, 1};
    const uint32_t steps[5] = {1, 1, 1, 1, 1};
    static_assert(std::is_same_v<T, bf16>);
    const CUresult status = cuTensorMapEncodeTiled(
        &layout.tma_descs.tma_desc, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, pointer<T>(x), shape, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TVM_FFI_ICHECK(status == CUDA_SUCCESS) << "TMA refuses the tensor: strides must be multiples of 16 bytes";
    return layout;
}

template <typename T> __device__ inline uint32_t address(const T &x) {  // in shared memory
    return static_cast<uint32_t>(__cvta_generic_to_shared(&x));
}
// Starts a copy of 4 or 16 bytes from global to shared memory; writes zeros if not `there`. `from` must always be a
// valid address.
template <typename T> __device__ inline void copy_ahead(T &to, const void *from, bool there) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 16);
    const int bytes = there ? sizeof(T) : 0;
    if constexpr (sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(address(to)), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     ::"r"(address(to)), "l"(from), "r"(bytes) : "memory");
}

// Sum over the four lanes that share a row of an accumulator.
__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// 1 / sqrt(x) of a normal number; rsqrtf also handles denormals and is slower.
__device__ inline float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace ttt
