package provisioner

import (
	"maps"
	"sync"

	"github.com/bareyard/bareyard/accelerator"
)

// profileFolder is an operator's folder of profiles of cards. It is read each time, so that an operator who corrects a file restarts nothing; while
// there is a mistake in it, the last set without one stays in force: a slip of the pen must not quarantine a site's stock.
type profileFolder struct {
	mu   sync.Mutex
	good profileSet
	seen map[string]string // texts as they were read last
	bad  error             // what is wrong with those; nil: they are the good set
}

// profileSet is what a folder of profiles held at one time.
type profileSet struct {
	files map[string]string // text by file name
	rules accelerator.Rules
}

// read returns the set in force, and what is wrong with the folder as it is now. changed reports whether the last reading said something else.
func (f *profileFolder) read(dir string) (set profileSet, bad error, changed bool) {
	if dir == "" {
		return profileSet{}, nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.bad
	files, err := accelerator.ProfileFiles(dir)
	switch {
	case err != nil:
		f.seen, f.bad = nil, err
	case f.seen == nil || !maps.Equal(files, f.seen): // parsing takes longer than a judgement
		list, err := accelerator.ParseFolder(dir, files)
		if f.seen, f.bad = files, err; err == nil {
			f.good = profileSet{files: files, rules: accelerator.Rules{Profiles: list}}
		}
	}
	return f.good, f.bad, (before == nil) != (f.bad == nil) || before != nil && before.Error() != f.bad.Error()
}

// trouble is what was wrong with the folder when it was read last.
func (f *profileFolder) trouble() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bad
}

// ReadProfiles reads the operator's profiles of cards, so that a mistake that is made in them later finds a set that could be read.
func (e *Engine) ReadProfiles() error {
	_, bad, _ := e.folder.read(e.Validation.Profiles)
	return bad
}

// inForce are the profiles that machines are judged by now. That others lie in the folder is said once.
func (e *Engine) inForce() profileSet {
	set, bad, changed := e.folder.read(e.Validation.Profiles)
	switch {
	case changed && bad != nil:
		e.log().Error("profiles of cards cannot be used, the last that could be are", "folder", e.Validation.Profiles, "err", bad)
	case changed:
		e.log().Info("profiles of cards can be used again", "folder", e.Validation.Profiles)
	}
	return set
}

// noteProfiles says for operators, by the machine alone, that its judgement used older profiles than lie in the folder.
func (e *Engine) noteProfiles(w *Work) {
	if bad := e.folder.trouble(); bad != nil {
		w.tellOperators("validation.profiles", "judged by the profiles that could be read last: "+bad.Error())
	}
}
