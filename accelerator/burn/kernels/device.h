// The few things of CUDA that kernels.cu needs, so that clang compiles it without NVIDIA's headers.
#pragma once
#define __device__ __attribute__((device))
#define KERNEL extern "C" __attribute__((global))

struct __attribute__((aligned(16))) uint4 {
	unsigned x, y, z, w;
};

struct thread_index {
	struct { __attribute__((device)) operator unsigned() const { return __nvvm_read_ptx_sreg_tid_x(); } } x;
};
struct block_index {
	struct { __attribute__((device)) operator unsigned() const { return __nvvm_read_ptx_sreg_ctaid_x(); } } x;
};
struct block_size {
	struct { __attribute__((device)) operator unsigned() const { return __nvvm_read_ptx_sreg_ntid_x(); } } x;
};
struct grid_size {
	struct { __attribute__((device)) operator unsigned() const { return __nvvm_read_ptx_sreg_nctaid_x(); } } x;
};
extern __device__ const thread_index threadIdx;
extern __device__ const block_index blockIdx;
extern __device__ const block_size blockDim;
extern __device__ const grid_size gridDim;

__device__ static inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
__device__ static inline unsigned atomicAdd(unsigned *p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

// mma adds the product of a 16×16 and a 16×8 matrix of bf16, spread over the registers of a warp, to one of fp32.
__device__ static inline void mma(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
