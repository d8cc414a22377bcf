/* What kernels.cu needs to be compiled for the processor, one thread after the other; the tests' stand-in for libcuda includes it. */
#pragma once
#include <string.h>

#define __device__
#define KERNEL static

struct uint4 {
	unsigned x, y, z, w;
};
static __thread struct { unsigned x; } threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, sizeof u); return u; }
static inline unsigned atomicAdd(unsigned *p, unsigned v) { unsigned old = *p; *p += v; return old; }

/* mma stands for the one instruction that a processor has not: something of the same inputs that adds up. */
static inline void mma(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
	for (int i = 0; i < 4; i++)
		c[i] += (float)(short)(a[i] ^ b0) / 4096.0f + (float)(short)(a[i] ^ (b1 >> 16)) / 8192.0f;
}
