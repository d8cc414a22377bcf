package provisioner

import (
	"crypto/rand"
	"crypto/sha256"
	"strings"
)

// NewID returns a new random identifier with a prefix that says what it names: m machine, o order, j job.
func NewID(prefix string) string { return prefix + "-" + strings.ToLower(rand.Text()[:12]) }

// newSecret returns a secret of 128 bits or more and the hash that is kept of it.
func newSecret() (secret string, hash []byte) {
	secret = rand.Text()
	return secret, hashOf(secret)
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
