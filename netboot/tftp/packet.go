package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// Operations of RFC 1350 and RFC 2347.
const (
	opRead  = 1
	opWrite = 2
	opData  = 3
	opAck   = 4
	opError = 5
	opOAck  = 6
)

// Error codes.
const (
	codeOther     = 0
	codeNotFound  = 1
	codeForbidden = 2
	codeIllegal   = 4
	codeBusy      = 3 // "disk full or allocation exceeded": too many transfers
)

// request is a read request with the options that we know; zero means that an option was not asked for.
type request struct {
	name    string
	text    bool // mode netascii
	block   int  // blksize, RFC 2348
	size    bool // tsize, RFC 2349
	timeout int  // seconds, RFC 2349
	window  int  // windowsize, RFC 7440
}

var errMode = errors.New("no such mode")

// parseRequest reads what follows the operation of a read request. Options that are unknown or out of range are as
// if they had not been sent: the OACK then leaves them out, and the client goes without.
func parseRequest(b []byte) (request, error) {
	var r request
	name, b, ok := field(b)
	if !ok || name == "" {
		return r, errors.New("request without a file name")
	}
	r.name = name
	mode, b, ok := field(b)
	if !ok {
		return r, errors.New("request without a mode")
	}
	switch strings.ToLower(mode) {
	case "octet":
	case "netascii":
		r.text = true
	default:
		return r, fmt.Errorf("%w as %q", errMode, mode)
	}
	for {
		var key, value string
		if key, b, ok = field(b); !ok {
			return r, nil
		}
		if value, b, ok = field(b); !ok {
			return r, nil
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			continue
		}
		switch strings.ToLower(key) {
		case "blksize":
			if n >= 8 && n <= 65464 {
				r.block = n
			}
		case "tsize":
			r.size = true
		case "timeout":
			if n >= 1 && n <= 255 {
				r.timeout = n
			}
		case "windowsize":
			if n >= 1 && n <= 65535 {
				r.window = n
			}
		}
	}
}

// field cuts a zero-terminated string off the front of b.
func field(b []byte) (string, []byte, bool) {
	s, rest, ok := bytes.Cut(b, []byte{0})
	return string(s), rest, ok
}

func errorPacket(code uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, opError)
	b = binary.BigEndian.AppendUint16(b, code)
	return append(append(b, text...), 0)
}

func option(b []byte, key string, value int) []byte {
	b = append(append(b, key...), 0)
	return append(strconv.AppendInt(b, int64(value), 10), 0)
}

// toNetASCII returns a file whose lines end as Telnet's do (RFC 764).
func toNetASCII(f File) (File, error) {
	defer f.Close()
	if f.Size() > maxText {
		return nil, fmt.Errorf("too large to be sent as text: %w", fs.ErrPermission)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	out := make([]byte, 0, len(b)+len(b)/16)
	for _, c := range b {
		switch c {
		case '\n':
			out = append(out, '\r', '\n')
		case '\r':
			out = append(out, '\r', 0)
		default:
			out = append(out, c)
		}
	}
	return Bytes(out), nil
}

// maxText bounds what is read into memory; nothing that boots is sent as text.
const maxText = 4 << 20
