/*
 * A stand-in for NVIDIA's libcuda.so.1: the functions that the load test calls, on cards whose memory is the process's own and whose kernels are the
 * text of kernels.cu compiled for the processor. Build: gcc -shared -fPIC -Wl,-soname,libcuda.so.1 (see burn_test.go).
 *
 * FAKE_CUDA_CARDS lists the cards' PCI addresses. FAKE_CUDA_FAULTS are statements "SLOT WORD [VALUE]" divided by semicolons, SLOT * for all:
 *
 *   init N          cuInit answers N
 *   hang FUNCTION   the function never returns, deaf to SIGTERM
 *   crash FUNCTION  the function writes through a null pointer
 *   refuse FUNCTION N   the function answers N
 *   wrong           from the fifth launch on one thread of the burn comes to another word
 *   other           every thread comes to another word than on other cards
 *   lazy            the burn's launch does nothing
 *   stuck           a bit of memory is stuck at 1
 *   slow N          launches and copies take N ms more
 *   nopeer          no direct access to other cards
 *   garble          a copy to another card changes a byte
 *
 * FAKE_CUDA_STEPS is how many iterations a burn makes at most: a processor is no card.
 */
#define ON_HOST 1
#include "../kernels/kernels.cu"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MAX 16
#define TOTAL (16ull << 20)

static char slots[MAX][16];
static int ncards, current, launches;
static uint64_t used;

struct fault { char slot[16], word[16], value[40], more[16]; };
static struct fault faults[MAX];
static int nfaults;

static void start(void)
{
	const char *cards = getenv("FAKE_CUDA_CARDS"), *text = getenv("FAKE_CUDA_FAULTS");
	char buf[1024], *save, *s;
	if (ncards)
		return;
	snprintf(buf, sizeof buf, "%s", cards ? cards : "");
	for (s = strtok_r(buf, ",", &save); s && ncards < MAX; s = strtok_r(NULL, ",", &save))
		snprintf(slots[ncards++], sizeof slots[0], "%.12s", s);
	snprintf(buf, sizeof buf, "%s", text ? text : "");
	for (s = strtok_r(buf, ";", &save); s && nfaults < MAX; s = strtok_r(NULL, ";", &save))
		if (sscanf(s, "%15s %15s %39s %15s", faults[nfaults].slot, faults[nfaults].word, faults[nfaults].value, faults[nfaults].more) >= 2)
			nfaults++;
}

static const struct fault *fault(int card, const char *word, const char *value)
{
	for (int i = 0; i < nfaults; i++)
		if (!strcmp(faults[i].word, word) && (!value || !strcmp(faults[i].value, value)) &&
		    (!strcmp(faults[i].slot, "*") || (card >= 0 && !strcmp(faults[i].slot, slots[card]))))
			return &faults[i];
	return NULL;
}

static int enter(int card, const char *function)
{
	const struct fault *f;
	start();
	if (fault(card, "hang", function)) {
		signal(SIGTERM, SIG_IGN);
		for (;;)
			pause();
	}
	if (fault(card, "crash", function))
		*(volatile int *)0 = 1;
	f = fault(card, "refuse", function);
	return f ? atoi(f->more) : 0;
}

#define ENTER(card)                                  \
	do {                                         \
		int r_ = enter(card, __func__);      \
		if (r_)                              \
			return r_;                   \
	} while (0)

static void nap(int card)
{
	const struct fault *f = fault(card, "slow", NULL);
	struct timespec t = {0, (f ? atol(f->value) : 0) * 1000000};
	nanosleep(&t, NULL);
}

int cuInit(unsigned flags)
{
	const struct fault *f;
	(void)flags;
	ENTER(-1);
	f = fault(-1, "init", NULL);
	return f ? atoi(f->value) : ncards ? 0 : 100;
}

int cuDeviceGetByPCIBusId(int *device, const char *slot)
{
	start();
	for (int i = 0; i < ncards; i++)
		if (!strcmp(slots[i], slot)) {
			ENTER(i);
			*device = i;
			return 0;
		}
	return 101;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) { ENTER(device); *value = attribute == 16 ? 2 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { ENTER(device); *context = (void *)(uintptr_t)(device + 1); return 0; }
int cuCtxSetCurrent(void *context) { current = (int)(uintptr_t)context - 1; ENTER(current); return 0; }
int cuCtxSynchronize(void) { ENTER(current); return 0; }

int cuModuleLoadDataEx(void **module, const char *text, unsigned n, void *options, void *values)
{
	(void)n, (void)options, (void)values;
	ENTER(current);
	if (!strstr(text, ".version 7.0") || !strstr(text, ".visible .entry burn("))
		return 218;
	*module = (void *)1;
	return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	static const char *names[] = {"burn", "fill", "check", "sum"};
	(void)module;
	ENTER(current);
	for (unsigned i = 0; i < 4; i++)
		if (!strcmp(names[i], name)) {
			*function = (void *)(uintptr_t)(i + 1);
			return 0;
		}
	return 500;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) { ENTER(current); *available = TOTAL - used; *total = TOTAL; return 0; }

int cuMemAlloc_v2(uint64_t *at, size_t n)
{
	ENTER(current);
	if (used + n > TOTAL)
		return 2;
	uint64_t *p = malloc(n + 16);
	*p = n;
	used += n;
	*at = (uint64_t)(uintptr_t)(p + 2);
	return 0;
}

int cuMemFree_v2(uint64_t at)
{
	uint64_t *p = (uint64_t *)(uintptr_t)at - 2;
	ENTER(current);
	used -= *p;
	free(p);
	return 0;
}

int cuMemAllocHost_v2(void **p, size_t n) { ENTER(current); *p = malloc(n); return 0; }
int cuMemFreeHost(void *p) { ENTER(current); free(p); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { ENTER(current); nap(current); memcpy((void *)(uintptr_t)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { ENTER(current); nap(current); memcpy(to, (void *)(uintptr_t)from, n); return 0; }
int cuMemsetD8_v2(uint64_t to, unsigned char v, size_t n) { ENTER(current); memset((void *)(uintptr_t)to, v, n); return 0; }

#define ARG(type, i) (*(type *)args[i])
#define MEMORY(i) ((unsigned *)(uintptr_t)ARG(uint64_t, i))

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra)
{
	(void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
	ENTER(current);
	nap(current);
	const char *most = getenv("FAKE_CUDA_STEPS");
	unsigned steps = most ? strtoul(most, NULL, 0) : ~0u;
	gridDim.x = gx, blockDim.x = bx;
	int kind = (int)(uintptr_t)function;
	if (kind == 1) {
		if (fault(current, "lazy", NULL))
			return 0;
		launches++;
	}
	for (blockIdx.x = 0; blockIdx.x < gx; blockIdx.x++)
		for (threadIdx.x = 0; threadIdx.x < bx; threadIdx.x++)
			switch (kind) {
			case 1: burn(MEMORY(0), ARG(unsigned, 1) < steps ? ARG(unsigned, 1) : steps, ARG(unsigned, 2) + (fault(current, "other", NULL) ? 1 : 0)); break;
			case 2: fill(MEMORY(0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(unsigned, 3), ARG(unsigned, 4)); break;
			case 3: check(MEMORY(0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(unsigned, 3), ARG(unsigned, 4), MEMORY(5)); break;
			case 4: sum((struct uint4 *)MEMORY(0), ARG(uint64_t, 1), MEMORY(2)); break;
			default: return 400;
			}
	if (kind == 1 && launches >= 5 && fault(current, "wrong", NULL))
		MEMORY(0)[37] ^= 0x400;
	if (kind == 2 && fault(current, "stuck", NULL))
		MEMORY(0)[1001] |= 0x10;
	return 0;
}

int cuDeviceCanAccessPeer(int *can, int a, int b) { ENTER(a); *can = a != b && !fault(a, "nopeer", NULL); return 0; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) { (void)context, (void)flags; ENTER(current); return 0; }

#ifndef NO_PEER
int cuMemcpyPeer(uint64_t to, void *toContext, uint64_t from, void *fromContext, size_t n)
{
	(void)toContext, (void)fromContext;
	ENTER(current);
	nap(current);
	memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
	if (fault(current, "garble", NULL))
		((char *)(uintptr_t)to)[4242] ^= 1;
	return 0;
}
#endif
