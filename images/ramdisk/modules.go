package ramdisk

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// addModules adds the named modules, what they depend on, and modules.dep, modules.alias and modules.builtin cut down to them.
func addModules(ctx context.Context, files map[string][]byte, from, to string, names []string) error {
	deps, err := readDeps(filepath.Join(from, "modules.dep"))
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, n := range names {
		if file, ok := deps.byName[n]; ok {
			wanted[file] = true
			for _, d := range deps.needs[file] {
				wanted[d] = true
			}
		}
	}
	if len(wanted) == 0 {
		return fmt.Errorf("pick modules from %s: %w", from, errNoModules)
	}
	var dep bytes.Buffer
	for _, file := range deps.order {
		if !wanted[file] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		content, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			return fmt.Errorf("read module: %w", err)
		}
		files[path.Join(to, file)] = content
		fmt.Fprintf(&dep, "%s:", file)
		for _, d := range deps.needs[file] {
			fmt.Fprintf(&dep, " %s", d)
		}
		dep.WriteByte('\n')
	}
	files[path.Join(to, "modules.dep")] = dep.Bytes()
	for _, list := range []string{"modules.builtin", "modules.order"} {
		if files[path.Join(to, list)], err = os.ReadFile(filepath.Join(from, list)); err != nil {
			return fmt.Errorf("read module list: %w", err)
		}
	}
	files[path.Join(to, "modules.alias")], err = cutAliases(filepath.Join(from, "modules.alias"), func(module string) bool {
		return wanted[deps.byName[module]]
	})
	return err
}

// moduleDeps is modules.dep.
type moduleDeps struct {
	byName map[string]string   // module name, with underscores, to file
	needs  map[string][]string // file to the files that it needs, in the order in which to unload
	order  []string            // files as listed
}

func readDeps(file string) (moduleDeps, error) {
	d := moduleDeps{byName: map[string]string{}, needs: map[string][]string{}}
	text, err := os.ReadFile(file)
	if err != nil {
		return d, fmt.Errorf("read module dependencies: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		d.order = append(d.order, name)
		d.needs[name] = strings.Fields(needs)
		d.byName[moduleName(name)] = name
	}
	return d, nil
}

// moduleName is the name of the module in a file: virtio-net.ko.xz holds virtio_net.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// cutAliases keeps the aliases of the modules that keep names: the whole table is a megabyte.
func cutAliases(file string, keep func(module string) bool) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read module aliases: %w", err)
	}
	defer f.Close()
	var out bytes.Buffer
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // alias pci:v…* module
		if len(fields) == 3 && fields[0] == "alias" && keep(strings.ReplaceAll(fields[2], "-", "_")) {
			fmt.Fprintln(&out, lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read module aliases: %w", err)
	}
	return out.Bytes(), nil
}
