package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freeTCP checks that we can listen on host:port.
func freeTCP(address string) (string, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", portError(err, "tcp", address)
	}
	return "free", l.Close()
}

// freeUDP checks that we can receive at a port.
func freeUDP(address netip.AddrPort) (string, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(address))
	if err != nil {
		return "", portError(err, "udp", address.String())
	}
	return "free", c.Close()
}

// portError says in words why a port cannot be had, and who has it.
func portError(err error, protocol, address string) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		_, port, _ := net.SplitHostPort(address)
		if who := holders(protocol, port); len(who) > 0 {
			return fmt.Errorf("in use by %s", strings.Join(who, ", "))
		}
		return errors.New("in use")
	case errors.Is(err, unix.EACCES):
		return errors.New("this user may not have a port below 1024: run as root, or give the service CAP_NET_BIND_SERVICE")
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return errors.New("the address is not on this machine")
	}
	return err
}

// holders names the processes that hold a port: "dnsmasq (1234)". It finds those that this user may look at.
func holders(protocol, port string) []string {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/" + protocol, "/proc/net/" + protocol + "6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		for _, inode := range inodesAt(string(text), uint16(number)) {
			sockets["socket:["+inode+"]"] = true
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	var who []string
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // fails on a bad pattern only
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !sockets[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue
		}
		who = append(who, fmt.Sprintf("%s (%s)", strings.TrimSpace(string(name)), pid))
	}
	slices.Sort(who)
	return slices.Compact(who)
}

// inodesAt reads a table of /proc/net: the second field is the local address and port in hex, the fourth the state, the tenth the
// socket's inode. TCP sockets that do not listen hold no port that we want.
func inodesAt(table string, port uint16) []string {
	const listening, unconnected = "0A", "07"
	var inodes []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != listening && f[3] != unconnected {
			continue
		}
		_, local, _ := strings.Cut(f[1], ":")
		b, err := hex.DecodeString(local)
		if err == nil && len(b) == 2 && uint16(b[0])<<8|uint16(b[1]) == port {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}
