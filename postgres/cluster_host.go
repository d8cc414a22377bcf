package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/bareyard/bareyard/machine"
)

// oldestMajor is the oldest PostgreSQL that is still maintained and does what our SQL asks.
const oldestMajor = 14

// osUser is the account that PostgreSQL runs as: it refuses to be root.
type osUser struct {
	name     string
	uid, gid int
	drop     bool // we are root and must become it
}

// clusterUser is the distribution's account postgres when we are root, and ourselves otherwise.
func clusterUser() (osUser, error) {
	drop := os.Geteuid() == 0
	var u *user.User
	var err error
	if drop {
		u, err = user.Lookup("postgres")
	} else {
		u, err = user.Current()
	}
	if err != nil {
		return osUser{}, &machine.Error{
			Code:    machine.Unavailable,
			Message: fmt.Sprintf("no account to run PostgreSQL as: %v", err),
			Hint:    "apt-get install postgresql (its package makes the account postgres), or set database_url",
		}
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err, err2); err != nil {
		return osUser{}, fmt.Errorf("read account %s: %w", u.Username, err)
	}
	return osUser{name: u.Username, uid: uid, gid: gid, drop: drop}, nil
}

// attr makes a child run as this user and in no further group.
func (u osUser) attr() *syscall.SysProcAttr {
	if !u.drop {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.gid)}}
}

// reaches checks that the user may pass through every folder above dir.
func (u osUser) reaches(dir string) error {
	for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
		var st syscall.Stat_t
		if err := syscall.Stat(at, &st); err != nil {
			return fmt.Errorf("look at %s: %w", at, err)
		}
		open := st.Mode&0o001 != 0
		switch {
		case int(st.Uid) == u.uid:
			open = st.Mode&0o100 != 0
		case int(st.Gid) == u.gid:
			open = st.Mode&0o010 != 0
		}
		if !open {
			return &machine.Error{
				Code:    machine.Invalid,
				Field:   "data_dir",
				Message: fmt.Sprintf("PostgreSQL runs as %s, which may not enter %s", u.name, at),
				Hint:    fmt.Sprintf("choose a data_dir elsewhere, e.g. /var/lib/bareyard, or: chmod o+x %s", at),
			}
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// Binaries is the folder that holds initdb and postgres of one major version.
type Binaries struct {
	Folder string
	Major  int
}

// FindBinaries returns the newest PostgreSQL on this machine, or an Unavailable error that says what to install.
func FindBinaries() (Binaries, error) {
	all := installed()
	if len(all) == 0 {
		return Binaries{}, &machine.Error{
			Code:    machine.Unavailable,
			Message: fmt.Sprintf("no PostgreSQL %d or newer on this machine", oldestMajor),
			Hint:    "apt-get install postgresql, or set database_url to a server elsewhere",
		}
	}
	return slices.MaxFunc(all, func(a, b Binaries) int { return a.Major - b.Major }), nil
}

// binariesFor returns what runs the cluster in data: for one that exists its own major version, which alone can read it.
func binariesFor(data string) (Binaries, error) {
	text, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return FindBinaries()
	}
	if err != nil {
		return Binaries{}, fmt.Errorf("read version of the cluster: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return Binaries{}, fmt.Errorf("read version of the cluster: %w", err)
	}
	for _, b := range installed() {
		if b.Major == major {
			return b, nil
		}
	}
	return Binaries{}, &machine.Error{
		Code:    machine.Unavailable,
		Message: fmt.Sprintf("the data in %s is of PostgreSQL %d, which is not on this machine", data, major),
		Hint:    fmt.Sprintf("apt-get install postgresql-%d (to move to a newer one, dump with it first)", major),
	}
}

// installed lists every PostgreSQL that we can use: the distribution's places, then what PATH names.
func installed() []Binaries {
	var folders []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"} {
		found, _ := filepath.Glob(pattern) // fails on a bad pattern only
		folders = append(folders, found...)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
	}
	var all []Binaries
	for _, f := range folders {
		if b, ok := binariesIn(f); ok {
			all = append(all, b)
		}
	}
	return all
}

// binariesIn asks the postgres in folder what it is; "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)" is its answer.
func binariesIn(folder string) (Binaries, bool) {
	if _, err := os.Stat(filepath.Join(folder, "initdb")); err != nil {
		return Binaries{}, false
	}
	out, err := exec.Command(filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, false
	}
	_, version, _ := strings.Cut(string(out), "(PostgreSQL) ")
	digits := version[:len(version)-len(strings.TrimLeft(version, "0123456789"))]
	major, err := strconv.Atoi(digits)
	return Binaries{Folder: folder, Major: major}, err == nil && major >= oldestMajor
}
