package hostmem

import (
	"testing"
	"testing/fstest"
)

func TestLimit(t *testing.T) {
	const (
		unified = "32 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		legacy  = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755\n" +
			"34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
			"35 31 0:32 / /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		meminfo = "MemTotal:       65536 kB\nMemFree:        1024 kB\nMemAvailable:   16384 kB\n"
	)
	tests := []struct {
		name   string
		files  map[string]string
		bytes  int64
		source string
	}{
		{"no such system", nil, 0, "unknown"},
		{"no group", map[string]string{"proc/meminfo": meminfo}, 16 * mib, "MemAvailable"},
		{"own group", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": unified,
			"sys/fs/cgroup/job/memory.max": "8388608\n",
		}, 8 * mib, "/sys/fs/cgroup/job/memory.max"},
		{"the machine has less than the group", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": unified,
			"sys/fs/cgroup/job/memory.max": "33554432\n",
		}, 16 * mib, "MemAvailable"},
		{"no limit", map[string]string{
			"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": unified,
			"sys/fs/cgroup/job/memory.max": "max\n", "sys/fs/cgroup/job/memory.high": "max\n",
		}, 0, "unknown"},
		{"an outer group has the limit", map[string]string{
			"proc/self/cgroup": "0::/pod/a/b\n", "proc/self/mountinfo": unified,
			"sys/fs/cgroup/pod/a/b/memory.max": "max\n", "sys/fs/cgroup/pod/a/memory.max": "9000000\n",
			"sys/fs/cgroup/pod/memory.max": "7000000\n",
		}, 7000000, "/sys/fs/cgroup/pod/memory.max"},
		{"the limit that throttles", map[string]string{
			"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": unified,
			"sys/fs/cgroup/job/memory.max": "9000000\n", "sys/fs/cgroup/job/memory.high": "8000000\n",
		}, 8000000, "/sys/fs/cgroup/job/memory.high"},
		{"a container sees its group as the root", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": unified,
			"sys/fs/cgroup/memory.max": "5000000\n",
		}, 5000000, "/sys/fs/cgroup/memory.max"},
		{"version 1", map[string]string{
			"proc/self/cgroup": "4:memory:/a/b\n1:cpu:/c\n0::/\n", "proc/self/mountinfo": legacy,
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "6000000\n",
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes":   "1000000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
		}, 6000000, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes"},
		{"version 1, the container's group is mounted as the root", map[string]string{
			"proc/self/cgroup":                               "4:cpu,memory:/docker/1f/sub\n",
			"proc/self/mountinfo":                            "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "6000000\n",
			"sys/fs/cgroup/memory/sub/memory.limit_in_bytes": "4000000\n",
		}, 4000000, "/sys/fs/cgroup/memory/sub/memory.limit_in_bytes"},
		{"the own group is not below what is mounted", map[string]string{
			"proc/self/cgroup":         "0::/docker/1f2\n",
			"proc/self/mountinfo":      "35 31 0:32 /docker/1f /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory.max": "6000000\n",
		}, 6000000, "/sys/fs/cgroup/memory.max"},
		{"damaged files", map[string]string{
			"proc/meminfo": "MemAvailable: lots\n", "proc/self/cgroup": "0\n\n:::\n0::/job\n",
			"proc/self/mountinfo": "\n- - -\n1 2 3\n" + unified, "sys/fs/cgroup/job/memory.max": "",
			"sys/fs/cgroup/memory.max": "-1",
		}, 0, "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bytes, source := Limit(files(tt.files))
			if bytes != tt.bytes || source != tt.source {
				t.Errorf("got %d from %q, want %d from %q", bytes, source, tt.bytes, tt.source)
			}
		})
	}
}

func TestLocked(t *testing.T) {
	const head = "Limit                     Soft Limit           Hard Limit           Units     \n"
	tests := []struct {
		name, limits string
		bytes        int64
		ok           bool
	}{
		{"a limit", head + "Max locked memory         8388608              8388608              bytes     \n", 8 * mib, true},
		{"no limit", head + "Max locked memory         unlimited            unlimited            bytes     \n", 0, false},
		{"not known", head, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bytes, ok := Locked(files(map[string]string{"proc/self/limits": tt.limits}))
			if bytes != tt.bytes || ok != tt.ok {
				t.Errorf("got %d %v, want %d %v", bytes, ok, tt.bytes, tt.ok)
			}
		})
	}
}

// files returns a file system with the given contents.
func files(contents map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, s := range contents {
		fsys[name] = &fstest.MapFile{Data: []byte(s)}
	}
	return fsys
}
