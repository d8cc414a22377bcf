// Package fat writes a small FAT16 file system that holds a few files: the NoCloud seed partition.
package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"
)

// Size is the size of the file system in bytes. With clusters of 2 KiB it has 8,167 of them, in the middle of what makes a
// FAT16 (4,085 to 65,524), so that no reader takes it for FAT12 or FAT32.
const Size = 16 << 20

const (
	sector      = 512
	perCluster  = 4
	cluster     = perCluster * sector
	reserved    = 4  // sectors before the first FAT; with it the data area begins on a cluster boundary
	fatSectors  = 32 // 2 bytes a cluster: room for 8,192
	rootEntries = 512
	rootStart   = reserved + 2*fatSectors
	dataStart   = rootStart + rootEntries*32/sector
	clusters    = (Size/sector - dataStart) / perCluster
)

// Encode returns a file system of Size bytes with a volume label (up to 11 characters, upper case) and files in its root
// folder. Names are kept as they are, by VFAT's long names.
func Encode(label string, files map[string]string) ([]byte, error) {
	if len(label) > 11 || label != strings.ToUpper(label) || !plain(label) {
		return nil, fmt.Errorf("make FAT: bad label %q", label)
	}
	label = fmt.Sprintf("%-11s", label)
	img := make([]byte, Size)
	fat := make([]byte, fatSectors*sector)
	binary.LittleEndian.PutUint16(fat[0:], 0xfff8)
	binary.LittleEndian.PutUint16(fat[2:], 0xffff)
	root := img[rootStart*sector : dataStart*sector]
	entry := 0 // next free in root
	put := func(e []byte) {
		copy(root[32*entry:], e)
		entry++
	}
	put(shortEntry(label, 0x08, 0, 0))

	next, sum := 2, crc32.NewIEEE()
	seen := map[string]bool{}
	for i, name := range slices.Sorted(maps.Keys(files)) {
		data := files[name]
		sum.Write([]byte(name + "\x00" + data))
		if name == "" || len(name) > 100 || !plain(name) || strings.Trim(name, " .") != name {
			return nil, fmt.Errorf("make FAT: bad file name %q", name)
		}
		if key := strings.ToUpper(name); seen[key] {
			return nil, fmt.Errorf("make FAT: two files are named %q", key)
		} else {
			seen[key] = true
		}
		alias := shortName(name, i+1)
		long := longEntries(name, alias)
		if entry+len(long)+1 > rootEntries {
			return nil, errors.New("make FAT: too many files")
		}
		for _, e := range long {
			put(e)
		}
		n := (len(data) + cluster - 1) / cluster
		if next+n > clusters+2 {
			return nil, fmt.Errorf("make FAT: files larger than %d bytes", Size)
		}
		first := 0
		if n > 0 {
			first = next
		}
		put(shortEntry(alias, 0x20, first, len(data)))
		copy(img[dataStart*sector+(next-2)*cluster:], data)
		for c := range n {
			link := uint16(next + c + 1)
			if c == n-1 {
				link = 0xffff
			}
			binary.LittleEndian.PutUint16(fat[2*(next+c):], link)
		}
		next += n
	}
	copy(img[reserved*sector:], fat)
	copy(img[(reserved+fatSectors)*sector:], fat)
	bootSector(img, label, sum.Sum32())
	return img, nil
}

// plain reports whether s has only characters that both long and short names allow.
func plain(s string) bool {
	for _, c := range s {
		if c < 0x20 || c > 0x7e || strings.ContainsRune(`"*/:<>?\|`, c) {
			return false
		}
	}
	return true
}

func bootSector(b []byte, label string, id uint32) {
	copy(b, "\xeb\x3c\x90BAREYARD")
	binary.LittleEndian.PutUint16(b[11:], sector)
	b[13] = perCluster
	binary.LittleEndian.PutUint16(b[14:], reserved)
	b[16] = 2 // FATs
	binary.LittleEndian.PutUint16(b[17:], rootEntries)
	binary.LittleEndian.PutUint16(b[19:], Size/sector)
	b[21] = 0xf8 // fixed disk
	binary.LittleEndian.PutUint16(b[22:], fatSectors)
	binary.LittleEndian.PutUint16(b[24:], 32) // sectors per track, heads: nobody asks any more
	binary.LittleEndian.PutUint16(b[26:], 64)
	b[36] = 0x80
	b[38] = 0x29 // the three fields below are there
	binary.LittleEndian.PutUint32(b[39:], id)
	copy(b[43:], label)
	copy(b[54:], "FAT16   ")
	b[510], b[511] = 0x55, 0xaa
}

// shortEntry makes a directory entry. All dates are 1980-01-01, the first that FAT has: the same seed makes the same bytes.
func shortEntry(name string, attributes byte, first, size int) []byte {
	e := make([]byte, 32)
	copy(e, name)
	e[11] = attributes
	const date = 1<<5 | 1
	binary.LittleEndian.PutUint16(e[16:], date)
	binary.LittleEndian.PutUint16(e[18:], date)
	binary.LittleEndian.PutUint16(e[24:], date)
	binary.LittleEndian.PutUint16(e[26:], uint16(first))
	binary.LittleEndian.PutUint32(e[28:], uint32(size))
	return e
}

// shortName makes the 8.3 alias of the n-th file, e.g. "META~2     ".
func shortName(name string, n int) string {
	base := strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToUpper(name))
	tail := fmt.Sprintf("~%d", n)
	return fmt.Sprintf("%-11s", base[:min(len(base), 8-len(tail))]+tail)
}

// longEntries makes the VFAT entries of a name, last part first, as they lie before the short one.
func longEntries(name, alias string) [][]byte {
	var sum byte
	for i := range 11 {
		sum = sum>>1 | sum<<7
		sum += alias[i]
	}
	units := utf16.Encode([]rune(name))
	n := (len(units) + 12) / 13
	if len(units)%13 != 0 {
		units = append(units, 0)
	}
	for len(units)%13 != 0 {
		units = append(units, 0xffff)
	}
	places := []int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30}
	var entries [][]byte
	for i := n; i >= 1; i-- {
		e := make([]byte, 32)
		e[0] = byte(i)
		if i == n {
			e[0] |= 0x40
		}
		e[11] = 0x0f
		e[13] = sum
		for j, at := range places {
			binary.LittleEndian.PutUint16(e[at:], units[13*(i-1)+j])
		}
		entries = append(entries, e)
	}
	return entries
}
