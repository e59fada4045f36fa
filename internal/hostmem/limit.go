package hostmem

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limit returns how much memory the process may have and what says so: the
// smallest limit of its memory group and of the groups that this one is in
// (a container is such a group), and what the machine has available, MemAvailable.
// A process beyond the first is killed or throttled, and pinned memory cannot
// be swapped out. What the process uses already is part of the group's limit.
//
// fsys is the root of the file system, os.DirFS("/"). Where nothing is found, as
// on systems other than Linux, Limit returns 0 and "unknown".
//
// The limit on locked memory is not part of it: see [Locked].
func Limit(fsys fs.FS) (bytes int64, source string) {
	bytes, source = 0, "unknown"
	lower := func(n int64, from string) {
		if bytes == 0 || n < bytes {
			bytes, source = n, from
		}
	}
	if kib, ok := field(fsys, "proc/meminfo", "MemAvailable:"); ok {
		lower(kib<<10, "MemAvailable")
	}
	for _, g := range groups(fsys) {
		for _, name := range g.files {
			for dir := g.dir; ; dir = path.Dir(dir) {
				file := path.Join(g.mount, dir, name)
				if n, ok := number(fsys, file); ok {
					lower(n, file)
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return bytes, source
}

// Locked returns the limit on locked memory (ulimit -l) in bytes, and false
// where there is none. It is worth a word when a pin has failed, but it is no
// bound: CUDA's pinned allocations are not counted against it (measured: an
// unprivileged process pinned 256 MiB under a limit of 64 KiB), and the usual
// limit of a few MiB would only forbid what works.
func Locked(fsys fs.FS) (bytes int64, ok bool) {
	return field(fsys, "proc/self/limits", "Max locked memory")
}

// group is where the limits of the memory group of the process are.
type group struct {
	mount string   // directory of the outermost group that can be seen
	dir   string   // of the own group, below mount; "/" where they are the same
	files []string // that hold a limit
}

// groups returns the memory group of the process in each of the two versions
// of control groups; usually there is one.
func groups(fsys fs.FS) (gs []group) {
	own := lines(fsys, "proc/self/cgroup")
	for _, line := range lines(fsys, "proc/self/mountinfo") {
		// "36 35 0:33 ROOT MOUNT OPTIONS [TAGS] - TYPE SOURCE OPTIONS"
		left, right, _ := strings.Cut(line, " - ")
		at, what := strings.Fields(left), strings.Fields(right)
		if len(at) < 5 || len(what) < 3 {
			continue
		}
		g, controller := group{mount: at[4]}, ""
		switch {
		case what[0] == "cgroup2":
			g.files = []string{"memory.max", "memory.high"}
		case what[0] == "cgroup" && slices.Contains(strings.Split(what[2], ","), "memory"):
			g.files, controller = []string{"memory.limit_in_bytes"}, "memory"
		default:
			continue
		}
		for _, line := range own {
			// "ID:CONTROLLERS:PATH", without controllers in version 2
			p := strings.SplitN(line, ":", 3)
			if len(p) == 3 && slices.Contains(strings.Split(p[1], ","), controller) {
				g.dir = below(at[3], p[2])
				gs = append(gs, g)
			}
		}
	}
	return gs
}

// below returns the path of the group as seen from the root of the mount. A
// group outside of it is seen as the root.
func below(root, group string) string {
	root, group = path.Clean("/"+root), path.Clean("/"+group)
	if root == "/" {
		return group
	}
	if rest, ok := strings.CutPrefix(group, root); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return "/"
}

// number reads a file that holds one number of bytes. "max", and the largest
// number that version 1 of control groups can say, mean that there is no limit.
func number(fsys fs.FS, file string) (int64, bool) {
	for _, line := range lines(fsys, file) {
		n, err := strconv.ParseInt(line, 10, 64)
		return n, err == nil && n >= 0 && n < maxBytes
	}
	return 0, false
}

// field returns the number after a name at the start of a line.
func field(fsys fs.FS, file, name string) (int64, bool) {
	for _, line := range lines(fsys, file) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			var n int64
			_, err := fmt.Sscan(rest, &n)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}

// lines returns the lines of a file; none if it cannot be read.
func lines(fsys fs.FS, file string) []string {
	b, err := fs.ReadFile(fsys, strings.TrimPrefix(file, "/"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}
