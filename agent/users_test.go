package agent

import (
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestUsers: names are those that others read from the same file, and only a file that its owner alone can write is read.
func TestUsers(t *testing.T) {
	for uid, name := range passwd() {
		if u, err := osuser.LookupId(uid); err != nil || u.Username != name {
			t.Errorf("%s is %q: %v, %v", uid, name, u, err)
		}
	}
	if os.Getuid() == 0 {
		oracle.Need(t, "sleep")
		c := exec.Command("sleep", "100")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
		if got := userName(int32(c.Process.Pid), user(int32(c.Process.Pid))); got != "root" {
			t.Errorf("root's process is %q's", got)
		}
	}
	path, own := filepath.Join(t.TempDir(), "passwd"), uint32(os.Getuid())
	text := "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\n\n# no user\nbad:x:-1:0:::\n:x:3:0:::\nx:x:4\nlong" + strings.Repeat("g", 300) + ":x:007:0:::\nb\xffd:x:4294967295:0:::\n"
	for mode, want := range map[os.FileMode]int{0o644: 3, 0o664: 0, 0o646: 0} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		users := readUsers(path, own)
		if len(users) != want {
			t.Errorf("%v: %v", mode, users)
		}
		if want > 0 && (users["0"] != "root" || len(users["7"]) != maxService || users["4294967295"] != "b\ufffdd") {
			t.Errorf("readUsers(%s) = %q, want root for 0, %d bytes for 7 and %q for 4294967295", path, users, maxService, "b\ufffdd")
		}
	}
	if users := readUsers(path, own+1); users != nil {
		t.Errorf("another user's file: %v", users)
	}
}

func FuzzUsers(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\n")
	f.Fuzz(func(t *testing.T, s string) {
		for id, who := range parseUsers(strings.NewReader(s)) {
			if id == "" || who == "" || len(who) > 3*maxService || strings.ToValidUTF8(who, "") != who {
				t.Errorf("%q: %q", id, who)
			}
		}
	})
}
