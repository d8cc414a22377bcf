package images

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// boots is what the start of a disk says about booting from it.
type boots struct {
	BIOS bool // the boot sector has code and there is something for it to load
	UEFI bool // there is an EFI system partition
}

// Partition types, in the byte order of a GPT.
var (
	espType      = [16]byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b}
	biosBootType = [16]byte{0x48, 0x61, 0x68, 0x21, 0x49, 0x64, 0x6f, 0x6e, 0x74, 0x4e, 0x65, 0x65, 0x64, 0x45, 0x46, 0x49}
)

const (
	mbrProtective = 0xee
	mbrESP        = 0xef
	gptBootable   = 1 << 2 // "legacy BIOS bootable", what gptmbr.bin of syslinux looks for
)

// inspect reads the partition table at the start of a disk of size bytes and refuses what could never become a system: no table, a
// damaged one, one for another sector size, partitions that the image does not hold. It does not look into file systems: an EFI
// system partition without \EFI\BOOT\BOOTX64.EFI passes and shows at first boot.
func inspect(head []byte, size int64) (boots, error) {
	if len(head) < 512 || head[510] != 0x55 || head[511] != 0xaa {
		return boots{}, fileError("the image has no partition table", "give an image of a whole disk, not of one partition or an archive")
	}
	var b boots
	// A boot sector without code starts with zeros (sgdisk, parted), one with code with a jump.
	code := head[0] != 0 || head[1] != 0
	var gpt bool
	var used int
	for i := range 4 {
		e := head[446+16*i : 446+16*i+16]
		kind, start, sectors := e[4], int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
		switch {
		case e[0] != 0 && e[0] != 0x80:
			return boots{}, fileError("the boot sector has no valid partition table", "give an image of a whole disk, not of one partition")
		case kind == 0:
			continue
		case kind == mbrProtective:
			gpt = true
			continue
		case start == 0 || (start+sectors)*sectorSize > size:
			return boots{}, cutShort(i+1, (start+sectors)*sectorSize, size)
		}
		used++
		b.BIOS = b.BIOS || code
		b.UEFI = b.UEFI || kind == mbrESP
	}
	if gpt {
		return inspectGPT(head, size, code)
	}
	if used == 0 {
		return boots{}, fileError("the partition table is empty", "give an image of an installed disk")
	}
	return b, nil
}

func inspectGPT(head []byte, size int64, code bool) (boots, error) {
	le := binary.LittleEndian
	if len(head) >= 4096+8 && string(head[512:520]) != "EFI PART" && string(head[4096:4104]) == "EFI PART" {
		return boots{}, fileError("the image is made for disks with sectors of 4096 bytes", "give the publisher's image for 512-byte sectors")
	}
	if len(head) < 1024 || string(head[512:520]) != "EFI PART" {
		return boots{}, fileError("the image announces a GPT and has none", "fetch it again and compare its digest with the publisher's")
	}
	header := append([]byte(nil), head[512:1024]...)
	length, sum := le.Uint32(header[12:]), le.Uint32(header[16:])
	clear(header[16:20])
	if length < 92 || length > 512 || crc32.ChecksumIEEE(header[:length]) != sum {
		return boots{}, fileError("the header of the GPT is damaged", "fetch the image again and compare its digest with the publisher's")
	}
	at, count, each := le.Uint64(header[72:]), le.Uint32(header[80:]), le.Uint32(header[84:])
	if at < 2 || at > headSize/sectorSize || each < 128 || each > 4096 || count == 0 || count > 1024 ||
		int64(at)*sectorSize+int64(count)*int64(each) > int64(len(head)) {
		return boots{}, fileError("the GPT has its entries in an unusual place", "rewrite the table with sgdisk or parted")
	}
	entries := head[at*sectorSize:][:count*each]
	if crc32.ChecksumIEEE(entries) != le.Uint32(header[88:]) {
		return boots{}, fileError("the entries of the GPT are damaged", "fetch the image again and compare its digest with the publisher's")
	}
	var b boots
	var used int
	for i := range int(count) {
		e := entries[i*int(each):]
		kind := [16]byte(e)
		if kind == ([16]byte{}) {
			continue
		}
		used++
		first, last := le.Uint64(e[32:]), le.Uint64(e[40:])
		if last < first || first < 2 || last >= uint64(size)/sectorSize {
			return boots{}, cutShort(i+1, int64(min(last, 1<<53))*sectorSize, size)
		}
		b.UEFI = b.UEFI || kind == espType
		b.BIOS = b.BIOS || code && (kind == biosBootType || le.Uint64(e[48:])&gptBootable != 0)
	}
	if used == 0 {
		return boots{}, fileError("the partition table is empty", "give an image of an installed disk")
	}
	return b, nil
}

func cutShort(partition int, end, size int64) error {
	return fileError(fmt.Sprintf("partition %d ends at byte %d and the image at %d: it is cut short", partition, end, size),
		"fetch the image again and compare its digest with the publisher's")
}
