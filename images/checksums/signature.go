package checksums

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/bareyard/bareyard/machine"
)

// ClearSigned reports whether a file of checksums carries its signature itself.
func ClearSigned(text []byte) bool {
	block, _ := clearsign.Decode(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")))
	return block != nil
}

// Verify returns the part of a file of checksums that a key of the keyring has signed, and who did. The signature is a detached one, or nil
// for one that the text carries itself. Keyring and signature may be armored or not. A key that has expired or was revoked by now
// counts as little as one that nobody knows.
func Verify(text, signature, keyring []byte, now time.Time) (signed []byte, signer string, err error) {
	keys, err := readKeys(keyring)
	if err != nil {
		return nil, "", err
	}
	config := &packet.Config{Time: func() time.Time { return now }}
	var by *openpgp.Entity
	if signature != nil && len(signature) == 0 {
		return nil, "", signatureError("the signature of the checksums is empty", "fetch it again")
	}
	if signature == nil {
		block, _ := clearsign.Decode(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")))
		if block == nil {
			return nil, "", signatureError("the checksums carry no signature", "give the publisher's detached one by --sums-signature")
		}
		text = block.Plaintext
		by, err = block.VerifySignature(keys, config)
	} else {
		by, err = detached(keys, text, signature, config)
	}
	if err != nil {
		return nil, "", explain(err)
	}
	for name := range by.Identities {
		signer = name
	}
	return text, fmt.Sprintf("%s (%X)", signer, by.PrimaryKey.Fingerprint), nil
}

func detached(keys openpgp.KeyRing, text, signature []byte, config *packet.Config) (*openpgp.Entity, error) {
	if block, err := armor.Decode(bytes.NewReader(signature)); err == nil {
		return openpgp.CheckDetachedSignature(keys, bytes.NewReader(text), block.Body, config)
	}
	return openpgp.CheckDetachedSignature(keys, bytes.NewReader(text), bytes.NewReader(signature), config)
}

func readKeys(keyring []byte) (openpgp.EntityList, error) {
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(keyring))
	if err != nil {
		keys, err = openpgp.ReadKeyRing(bytes.NewReader(keyring))
	}
	if err != nil || len(keys) == 0 {
		return nil, &machine.Error{Code: machine.Invalid, Field: "sums_key", Message: "the keyring holds no key that can be read", Hint: "export the publisher's key: gpg --export --armor KEY >publisher.asc"}
	}
	return keys, nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, pgperrors.ErrUnknownIssuer):
		return signatureError("the checksums are signed by a key that is not in the keyring", "get the publisher's key from where you can trust it; never from beside the checksums")
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return signatureError("the key that signed the checksums has expired", "get the publisher's present key, and checksums that are signed by it")
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return signatureError("the key that signed the checksums was revoked", "ask the publisher: do not use the image")
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		return signatureError("the signature of the checksums has expired", "fetch the publisher's present ones")
	}
	return signatureError(fmt.Sprintf("the signature of the checksums is not good: %v", err), "fetch both again; if it stays so, do not use the image")
}

func signatureError(message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: "sums_signature", Message: message, Hint: hint}
}
