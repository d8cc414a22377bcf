/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1: the functions that Bareyard's validator calls, answered from what the PCI bus shows, so that a
 * virtual machine with one card fewer shows one card fewer. It is written against NVIDIA's own header, which go-nvml carries.
 *
 * Faults are statements "SLOT WORD [VALUE]" divided by new lines or semicolons, SLOT a PCI address or * for every card or the driver:
 *
 *   lost            every call about the card answers "GPU is lost"
 *   handle N        getting its handle answers error N
 *   vanish          the driver does not count it
 *   ecc N           N uncorrected errors since the driver was loaded
 *   ever N          N uncorrected errors in its life
 *   remap-pending, remap-failed, mig
 *   recovery N      nvmlDeviceGpuRecoveryAction_t
 *   memory MIB      total memory
 *   link15          link registers as all ones
 *   busy            the card works: link at its best, 60 degrees, clocks up
 *   load-gen N, load-width N   the link of a busy card
 *   temp N          degrees Celsius
 *   reasons N       why its clocks are held back, nvmlClocksEventReasons
 *   replay N        packets sent again over PCIe
 *   inforom         corrupt
 *   banks N         memory banks without a spare row
 *   process N       programs that use the card
 *   persistence-off, cap WATT (enforced power limit)
 *   nvlinks N       NVLinks, of which nvlink-down N is down, with nvlink-errors N
 *   fabric N        state of the fabric, nvmlGpuFabricState_t
 *   hang FUNCTION   the function never returns, deaf to SIGTERM
 *   crash FUNCTION  the function writes through a null pointer
 *   chatter         a gigabyte on standard output while starting
 *   init N          nvmlInit answers error N
 *
 * They are read when the library starts, from the file that MOCK_NVML_FAULTS names (/etc/mocknvml/faults without it), from the fw_cfg item
 * opt/mocknvml/faults, and from an SMBIOS product family that begins with "mocknvml:" (qemu -smbios type=1,family=...).
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CARDS 64
#define MAX_FAULTS 64

struct nvmlDevice_st {
	char slot[16];
	unsigned device, subsystem;
};

struct fault {
	char slot[16], word[16], value[64];
};

struct model {
	unsigned device;
	const char *name;
	unsigned mib, watts, gen;
	int ecc;
};

static const struct model models[] = {
	{0x2b85, "NVIDIA GeForce RTX 5090", 32607, 575, 5, 0},
	{0x2bb9, "NVIDIA RTX 6000D", 85651, 600, 5, 0},
	{0x20b2, "NVIDIA A100-SXM4-80GB", 81920, 400, 4, 1},
	{0x2329, "NVIDIA H20", 97871, 500, 5, 1},
	{0x2330, "NVIDIA H100 80GB HBM3", 81559, 700, 5, 1},
	{0x2335, "NVIDIA H200", 143771, 700, 5, 1},
	{0, "NVIDIA Graphics Device", 16384, 250, 4, 0},
};

static struct nvmlDevice_st cards[MAX_CARDS];
static struct fault faults[MAX_FAULTS];
static int ncards, nfaults, started;

static const struct model *model_of(nvmlDevice_t d)
{
	const struct model *m = models;
	while (m->device && m->device != d->device)
		m++;
	return m;
}

/* fault finds a fault of a card, or of the driver when d is null. */
static const struct fault *fault(nvmlDevice_t d, const char *word)
{
	for (int i = 0; i < nfaults; i++)
		if (!strcmp(faults[i].word, word) && (!strcmp(faults[i].slot, "*") || (d && !strcmp(faults[i].slot, d->slot))))
			return &faults[i];
	return NULL;
}

static unsigned long long number(nvmlDevice_t d, const char *word, unsigned long long otherwise)
{
	const struct fault *f = fault(d, word);
	return f ? strtoull(f->value, NULL, 0) : otherwise;
}

/* enter is the beginning of every function: it may not come back. */
static nvmlReturn_t enter(nvmlDevice_t d, const char *function)
{
	const struct fault *f;
	if (!started)
		return NVML_ERROR_UNINITIALIZED;
	if ((f = fault(d, "hang")) && !strcmp(f->value, function)) {
		signal(SIGTERM, SIG_IGN);
		for (;;)
			pause();
	}
	if ((f = fault(d, "crash")) && !strcmp(f->value, function))
		*(volatile int *)0 = 1;
	if (d && fault(d, "lost"))
		return NVML_ERROR_GPU_IS_LOST;
	return NVML_SUCCESS;
}

#define ENTER(d)                                      \
	do {                                          \
		nvmlReturn_t r_ = enter(d, __func__); \
		if (r_ != NVML_SUCCESS)               \
			return r_;                    \
	} while (0)

static void statements(char *text)
{
	char *outer, *s;
	for (s = strtok_r(text, ";\n", &outer); s && nfaults < MAX_FAULTS; s = strtok_r(NULL, ";\n", &outer)) {
		struct fault *f = &faults[nfaults];
		memset(f, 0, sizeof *f);
		if (sscanf(s, "%15s %15s %63s", f->slot, f->word, f->value) >= 2 && f->slot[0] != '#')
			nfaults++;
	}
}

static int slurp(const char *path, char *buf, size_t size)
{
	FILE *f = fopen(path, "r");
	size_t n = 0;
	if (f) {
		n = fread(buf, 1, size - 1, f);
		fclose(f);
	}
	buf[n] = 0;
	return n > 0;
}

static const char *root(void)
{
	const char *r = getenv("MOCK_NVML_SYSFS");
	return r ? r : "/sys";
}

static unsigned hexfile(const char *slot, const char *name)
{
	char path[512], buf[64];
	snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", root(), slot, name);
	return slurp(path, buf, sizeof buf) ? strtoul(buf, NULL, 16) : 0;
}

static int by_slot(const void *a, const void *b) { return strcmp(((struct nvmlDevice_st *)a)->slot, ((struct nvmlDevice_st *)b)->slot); }

static void read_bus(void)
{
	char path[512];
	struct dirent *e;
	DIR *dir;
	snprintf(path, sizeof path, "%s/bus/pci/devices", root());
	if (!(dir = opendir(path)))
		return;
	while ((e = readdir(dir)) && ncards < MAX_CARDS) {
		struct nvmlDevice_st *c = &cards[ncards];
		unsigned class = 0;
		if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof c->slot || hexfile(e->d_name, "vendor") != 0x10de)
			continue;
		class = hexfile(e->d_name, "class") >> 8;
		if (class != 0x0300 && class != 0x0302)
			continue;
		memcpy(c->slot, e->d_name, strlen(e->d_name) + 1);
		c->device = hexfile(e->d_name, "device");
		c->subsystem = hexfile(e->d_name, "subsystem_device") << 16 | hexfile(e->d_name, "subsystem_vendor");
		if (!fault(c, "vanish"))
			ncards++;
	}
	closedir(dir);
	qsort(cards, ncards, sizeof cards[0], by_slot);
}

static nvmlReturn_t start(void)
{
	char text[4096], path[512];
	const char *file = getenv("MOCK_NVML_FAULTS");
	if (started++)
		return NVML_SUCCESS;
	ncards = nfaults = 0;
	if (slurp(file ? file : "/etc/mocknvml/faults", text, sizeof text))
		statements(text);
	snprintf(path, sizeof path, "%s/firmware/qemu_fw_cfg/by_name/opt/mocknvml/faults/raw", root());
	if (slurp(path, text, sizeof text))
		statements(text);
	snprintf(path, sizeof path, "%s/class/dmi/id/product_family", root());
	if (slurp(path, text, sizeof text) && !strncmp(text, "mocknvml:", 9))
		statements(text + 9);
	read_bus();
	if (fault(NULL, "chatter"))
		for (int i = 0; i < 1 << 20; i++)
			if (write(1, memset(text, '!', 1024), 1024) < 0)
				break;
	return enter(NULL, "nvmlInit_v2") == NVML_SUCCESS ? (nvmlReturn_t)number(NULL, "init", NVML_SUCCESS) : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlInit_v2(void) { return start(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return start(); }

nvmlReturn_t nvmlShutdown(void)
{
	if (!started)
		return NVML_ERROR_UNINITIALIZED;
	started--;
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t r)
{
	switch (r) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	default: return "Unknown Error";
	}
}

static nvmlReturn_t put(char *to, unsigned int size, const char *text)
{
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { ENTER(NULL); return put(version, length, "570.86.15"); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) { ENTER(NULL); return put(version, length, "12.570.86.15"); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(NULL); *version = 12080; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { ENTER(NULL); *count = ncards; return NVML_SUCCESS; }

#ifndef NO_HANDLE
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *d)
{
	ENTER(NULL);
	if (index >= (unsigned)ncards)
		return NVML_ERROR_INVALID_ARGUMENT;
	*d = &cards[index];
	ENTER(*d);
	return (nvmlReturn_t)number(*d, "handle", NVML_SUCCESS);
}
#endif

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *d)
{
	unsigned domain, b, dev;
	char slot[32];
	ENTER(NULL);
	if (sscanf(bus, "%x:%x:%x", &domain, &b, &dev) != 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(slot, sizeof slot, "%04x:%02x:%02x.0", domain, b, dev);
	for (int i = 0; i < ncards; i++)
		if (!strcmp(cards[i].slot, slot)) {
			*d = &cards[i];
			ENTER(*d);
			return (nvmlReturn_t)number(*d, "handle", NVML_SUCCESS);
		}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *index) { ENTER(d); *index = d - cards; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length) { ENTER(d); return put(name, length, model_of(d)->name); }

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *serial, unsigned int length)
{
	char text[32];
	ENTER(d);
	if (!model_of(d)->ecc) /* GeForce cards have none to tell */
		return NVML_ERROR_NOT_SUPPORTED;
	snprintf(text, sizeof text, "165012400%04d", (int)(d - cards));
	return put(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length)
{
	char text[64];
	ENTER(d);
	snprintf(text, sizeof text, "GPU-00000000-0000-4000-8000-%08x%04x", d->device, (unsigned)(d - cards));
	return put(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *version, unsigned int length) { ENTER(d); return put(version, length, "98.02.2e.00.01"); }

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	ENTER(d);
	memset(pci, 0, sizeof *pci);
	sscanf(d->slot, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
	pci->pciDeviceId = d->device << 16 | 0x10de;
	pci->pciSubSystemId = d->subsystem;
	return NVML_SUCCESS;
}

static unsigned long long bytes(nvmlDevice_t d) { return number(d, "memory", model_of(d)->mib) << 20; }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	ENTER(d);
	m->total = bytes(d);
	m->used = 1 << 20;
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, nvmlEnableState_t *now, nvmlEnableState_t *next)
{
	ENTER(d);
	if (!model_of(d)->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	*now = *next = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *n)
{
	ENTER(d);
	if (!model_of(d)->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	*n = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? number(d, counter == NVML_VOLATILE_ECC ? "ecc" : "ever", 0) : 0;
	return NVML_SUCCESS;
}

#ifndef NO_REMAPPED_ROWS
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
	ENTER(d);
	if (!model_of(d)->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	*corrected = 0;
	*pending = fault(d, "remap-pending") != NULL;
	*failed = fault(d, "remap-failed") != NULL;
	*uncorrected = *pending || *failed;
	return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
	ENTER(d);
	for (int i = 0; i < count; i++) {
		if (values[i].fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
			values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
			continue;
		}
		values[i].nvmlReturn = NVML_SUCCESS;
		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		values[i].value.uiVal = number(d, "recovery", 0);
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *now, unsigned int *next)
{
	ENTER(d);
	if (!model_of(d)->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	*now = *next = fault(d, "mig") ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, nvmlComputeMode_t *mode) { ENTER(d); *mode = NVML_COMPUTEMODE_DEFAULT; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, nvmlEnableState_t *mode) { ENTER(d); *mode = fault(d, "persistence-off") ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t d)
{
	ENTER(d);
	if (!model_of(d)->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	return fault(d, "inforom") ? NVML_ERROR_CORRUPTED_INFOROM : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *h)
{
	ENTER(d);
	if (!model_of(d)->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(h, 0, sizeof *h);
	h->none = number(d, "banks", 0);
	h->max = 640 - h->none;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t d, unsigned int *n) { ENTER(d); *n = number(d, "replay", 0); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos)
{
	unsigned n = number(d, "process", 0), room = *count;
	ENTER(d);
	*count = n;
	if (n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memset(infos, 0, n * sizeof *infos);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, nvmlEnableState_t *active)
{
	const struct fault *down = fault(d, "nvlink-down");
	ENTER(d);
	if (!fault(d, "nvlinks"))
		return NVML_ERROR_NOT_SUPPORTED;
	if (link >= number(d, "nvlinks", 0))
		return NVML_ERROR_INVALID_ARGUMENT;
	*active = down && link == strtoul(down->value, NULL, 0) ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, unsigned int link, nvmlNvLinkErrorCounter_t counter, unsigned long long *n)
{
	ENTER(d);
	*n = link == 0 && counter == NVML_NVLINK_ERROR_DL_RECOVERY ? number(d, "nvlink-errors", 0) : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, nvmlGpuFabricInfo_t *f)
{
	ENTER(d);
	if (!fault(d, "nvlinks"))
		return NVML_ERROR_NOT_SUPPORTED;
	memset(f, 0, sizeof *f);
	f->state = number(d, "fabric", NVML_GPU_FABRIC_STATE_COMPLETED);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, nvmlTemperatureThresholds_t kind, unsigned int *celsius)
{
	ENTER(d);
	if (kind != NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	*celsius = 90;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned int *mhz) { ENTER(d); (void)type; *mhz = fault(d, "busy") ? 1980 : 210; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) { ENTER(d); u->gpu = u->memory = fault(d, "busy") ? 100 : 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *bits) { ENTER(d); *bits = number(d, "reasons", fault(d, "busy") ? 0 : 1); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t d, char *part, unsigned int length) { ENTER(d); return put(part, length, "900-MOCK-0000-000"); }
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t d, char *version) { ENTER(d); return put(version, 64, "570.86.15"); }

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	ENTER(d);
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = number(d, "temp", fault(d, "busy") ? 60 : 31 + (d - cards) % 4);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *mw) { ENTER(d); *mw = fault(d, "busy") ? model_of(d)->watts * 950 : 21500; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned int *mw) { ENTER(d); *mw = number(d, "cap", model_of(d)->watts) * 1000; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t d, unsigned int *mw) { ENTER(d); *mw = model_of(d)->watts * 1000; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned int *gen) { ENTER(d); *gen = fault(d, "link15") ? 15 : fault(d, "busy") ? number(d, "load-gen", model_of(d)->gen) : 1; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned int *width) { ENTER(d); *width = fault(d, "link15") ? 63 : fault(d, "busy") ? number(d, "load-width", 16) : 16; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t d, unsigned int *gen) { ENTER(d); *gen = model_of(d)->gen; return NVML_SUCCESS; }

#ifdef UNDEFINED
/* A library whose own parts do not fit together: the loader ends the process at the first call. */
void mocknvml_missing_half(void);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned int *width) { ENTER(d); mocknvml_missing_half(); *width = 16; return NVML_SUCCESS; }
#else
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned int *width) { ENTER(d); *width = 16; return NVML_SUCCESS; }
#endif
