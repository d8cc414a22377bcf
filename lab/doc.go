// Package lab is a virtual data centre on one Linux box: QEMU machines, or simulated ones, with BMCs, two switches, an edge router and an
// internet, all in network namespaces that nothing leaves.
//
// The namespaces of a lab called by, and what is in them:
//
//	by-fabric    the switches, layer 2 only: bridge br-prov joins every machine's provisioning port, bridge br-pub every
//	             public port; the QEMU processes run here, where their taps are
//	by-mgmt      the controller: prov0 10.77.0.1/24 on br-prov, bmc0 10.78.0.1/24 towards the BMCs
//	by-bmc       the BMCs: 10.78.0.11 is the first machine's
//	by-edge      the edge router: down0 on br-pub, up0 198.51.100.1/30 towards the internet
//	by-internet  a customer's end: up0 198.51.100.2/30, with routes to 203.0.113.0/24 (the BGP line) and 192.0.2.0/24
//	             (the telecom line) through the edge
//	by-racks     the simulated machines, if there are any: rack0 on br-prov has all their addresses
//
// There is no default route and no link to the box's own network. One process owns all of it (see Start): its children
// die with it, and whatever a killed one left behind is removed before the next lab of that name comes up.
//
// What the lab cannot show: real switch ports (the fabric's are bridge ports), real accelerators (the cards of lab/fakecard
// have the PCI ids and nothing else), and the speed of hardware; without /dev/kvm a machine boots ten to thirty times slower.
package lab
