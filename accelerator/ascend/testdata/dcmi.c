/* A stand-in for Huawei's libdcmi.so: two cards; DCMI_FAULT makes trouble. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *word) { const char *f = getenv("DCMI_FAULT"); return f && !strcmp(f, word); }

int dcmi_init(void)
{
	if (is("hang"))
		for (;;)
			pause();
	if (is("crash"))
		*(volatile int *)0 = 1;
	return is("refuse") ? -8005 : 0;
}
int dcmi_get_card_list(int *n, int *list, int room) { (void)room; *n = 2; list[0] = 0; list[1] = 1; return 0; }
int dcmi_get_device_num_in_card(int card, int *n) { (void)card; *n = 1; return 0; }
#ifndef NO_HEALTH
int dcmi_get_device_health(int card, int chip, unsigned *h) { (void)chip; *h = card == 1 && is("critical") ? 3 : 0; return 0; }
#endif
struct pcie { unsigned deviceid, vendorid, subvendorid, subdeviceid, device, bus, function; };
int dcmi_get_device_pcie_info(int card, int chip, struct pcie *p) { (void)chip; memset(p, 0, sizeof *p); p->bus = card ? 0x01 : 0xc1; return 0; }
int dcmi_get_device_errorcode_v2(int card, int chip, int *n, unsigned *list, unsigned room) { (void)chip; (void)room; *n = card == 1 && is("critical"); list[0] = 0x80c98001; return 0; }
