// Kernels of Bareyard's load tests, for the CUDA driver API. build.sh compiles them to kernels.ptx, which is part of the repository and of the
// program: no CUDA toolkit is needed, neither to build nor to run. PTX 7.0 for sm_80; the driver compiles it for what the card is.
//
// The tests compile the same text for the processor (host.h), all but the one instruction that multiplies.
#ifdef ON_HOST
#include "host.h"
#else
#include "device.h"
#endif

// mix is a hash of 32 bits (the finaliser of MurmurHash3).
__device__ static unsigned mix(unsigned h)
{
	h ^= h >> 16;
	h *= 0x85ebca6bu;
	h ^= h >> 13;
	h *= 0xc2b2ae35u;
	h ^= h >> 16;
	return h;
}

// pair makes two bf16 of random sign and mantissa between 0.5 and 2: zeros, or equal numbers, burn little power.
__device__ static unsigned pair(unsigned h)
{
	return (mix(h) & 0x80ff80ffu) | 0x3f003f00u;
}

// burn multiplies matrices out of registers, every warp the same ones, so that all of them must come to the same result on every multiprocessor
// and every card. The second operand changes its sign each time, which keeps the sums bounded. out has one word for each thread.
KERNEL void burn(unsigned *out, unsigned iterations, unsigned seed)
{
	unsigned lane = threadIdx.x & 31;
	unsigned a[4], b[8];
	float c[4][4];
	for (int i = 0; i < 4; i++)
		a[i] = pair(seed + lane * 16 + i);
	for (int i = 0; i < 8; i++)
		b[i] = pair(seed + 0x10000 + lane * 16 + i);
	for (int t = 0; t < 4; t++)
		for (int i = 0; i < 4; i++)
			c[t][i] = 0.0f;
	for (unsigned n = 0; n < iterations; n++) {
		for (int t = 0; t < 4; t++) {
			mma(c[t], a, b[2 * t], b[2 * t + 1]);
			b[2 * t] ^= 0x80008000u;
			b[2 * t + 1] ^= 0x80008000u;
		}
		// An odd number of steps with changing mantissas, so that the sums do not just come back to zero.
		if ((n & 1023) == 1022)
			for (int t = 0; t < 4; t++)
				b[2 * t] = pair(b[2 * t] + n);
	}
	unsigned h = seed;
	for (int t = 0; t < 4; t++)
		for (int i = 0; i < 4; i++)
			h = mix(h ^ __float_as_uint(c[t][i]));
	out[blockIdx.x * blockDim.x + threadIdx.x] = h;
}

// wanted is what the word at an index holds under a pattern: a fixed word, its opposite, the address's hash, or its opposite.
__device__ static unsigned wanted(unsigned long long i, unsigned pattern, unsigned seed)
{
	switch (pattern) {
	case 0: return 0x55555555u;
	case 1: return 0xaaaaaaaau;
	case 2: return mix((unsigned)i ^ mix((unsigned)(i >> 32) + seed));
	default: return ~mix((unsigned)i ^ mix((unsigned)(i >> 32) + seed));
	}
}

// fill writes a pattern to memory.
KERNEL void fill(unsigned *memory, unsigned long long words, unsigned long long first, unsigned pattern, unsigned seed)
{
	unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
	for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
		memory[i] = wanted(first + i, pattern, seed);
}

// check reads it back. found: number of wrong words, then of the first one index (low, high), what it was and what it should be.
KERNEL void check(const unsigned *memory, unsigned long long words, unsigned long long first, unsigned pattern, unsigned seed, unsigned *found)
{
	unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
	for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) {
		unsigned got = memory[i], want = wanted(first + i, pattern, seed);
		if (got != want && atomicAdd(found, 1u) == 0) {
			found[1] = (unsigned)(first + i);
			found[2] = (unsigned)((first + i) >> 32);
			found[3] = got;
			found[4] = want;
		}
	}
}

// sum adds up memory, 16 bytes at a time: the bandwidth of reading.
KERNEL void sum(const struct uint4 *memory, unsigned long long quads, unsigned *total)
{
	unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
	unsigned s = 0;
	for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += step) {
		struct uint4 v = memory[i];
		s += v.x ^ v.y ^ v.z ^ v.w;
	}
	if (s == 0x12345678u) // never left out, hardly ever written
		atomicAdd(total, s);
}
