package machine

import "time"

// ErasureSchema names the form of an ErasureCertificate.
const ErasureSchema = "bareyard.erasure/1"

// ErasureCertificate says what became of the data on one disk, when a machine came back or was taken out of the hands of its tests.
type ErasureCertificate struct {
	Schema  string `json:"schema"`
	ID      string `json:"id"`
	Machine string `json:"machine"` // id
	Name    string `json:"name"`    // of the machine
	System  string `json:"system_serial,omitempty"`
	Order   string `json:"order,omitempty"` // whose data it was; empty where no order held the machine when it was taken back
	Job     string `json:"job"`
	Attempt int    `json:"attempt"`

	Erasure
	At time.Time `json:"at"` // by the server's clock: the disk was read back then
}

// Result says in a word what the certificate vouches for.
func (c ErasureCertificate) Result() string {
	if c.Clean {
		return "erased"
	}
	return "not erased"
}

// Erasure is the proof that one disk was erased.
type Erasure struct {
	Serial  string `json:"serial"`
	Size    int64  `json:"size"`
	Model   string `json:"model,omitempty"`
	Method  string `json:"method"`  // what was done, in order: e.g. "nvme-sanitize-block+blkdiscard+zeroout", "overwrite"
	Sampled int64  `json:"sampled"` // bytes read back
	Clean   bool   `json:"clean"`
	Detail  string `json:"detail,omitempty"` // why it is not

	Level ErasureLevel `json:"level,omitempty"`
	Lacks []string     `json:"lacks,omitempty"` // why no stronger method was used
}

// ErasureLevel is how thorough an erasure is, in the words of NIST SP 800-88.
type ErasureLevel string

// Levels.
const (
	Purge ErasureLevel = "purge" // the disk has erased itself as well, with the cells that no write reaches
	Clear ErasureLevel = "clear" // every address was overwritten: what a laboratory could read from spare cells is left
)
