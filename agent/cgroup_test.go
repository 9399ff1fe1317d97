package agent

import (
	"os"
	"strings"
	"testing"
)

const (
	id  = "7be92808767a667f35c8505cbf40d14e931ef6db5b0210329cf193b15ba9d605"
	id2 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	pod = "2f1c4e2a-7a3b-4c5d-8e9f-0a1b2c3d4e5f"
)

// The paths are those that systemd, docker, containerd, CRI-O and podman make, with both versions and drivers.
func TestParseCgroups(t *testing.T) {
	under := strings.ReplaceAll(pod, "-", "_")
	for _, c := range []struct {
		name, text string
		want       Place
	}{
		{"service", "0::/system.slice/nginx.service\n", Place{Cgroup: "/system.slice/nginx.service", Unit: "nginx.service"}},
		{"template", "0::/system.slice/system-getty.slice/getty@tty1.service\n", Place{Cgroup: "/system.slice/system-getty.slice/getty@tty1.service", Unit: "getty@tty1.service"}},
		{"user", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox.scope\n", Place{
			Cgroup: "/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox.scope", Unit: "user@1000.service"}},
		{"session", "0::/user.slice/user-0.slice/session-3.scope\n", Place{Cgroup: "/user.slice/user-0.slice/session-3.scope", Unit: "session-3.scope"}},
		{"docker, systemd", "0::/system.slice/docker-" + id + ".scope\n", Place{Cgroup: "/system.slice/docker-" + id + ".scope", Container: id}},
		{"docker, cgroupfs, version 1", "12:cpu,cpuacct:/docker/" + id + "\n1:name=systemd:/docker/" + id + "\n0::/system.slice/containerd.service\n", Place{
			Cgroup: "/system.slice/containerd.service", Unit: "containerd.service", Container: id}},
		{"containerd, systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", Place{
			Cgroup: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope", Container: id, Pod: pod}},
		{"guaranteed", "0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-" + id + ".scope\n", Place{
			Cgroup: "/kubepods.slice/kubepods-pod" + under + ".slice/crio-" + id + ".scope", Container: id, Pod: pod}},
		{"cgroupfs", "0::/kubepods/besteffort/pod" + pod + "/" + id + "\n", Place{Cgroup: "/kubepods/besteffort/pod" + pod + "/" + id, Container: id, Pod: pod}},
		{"static pod", "0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/" + id + "\n", Place{
			Cgroup: "/kubepods/burstable/pod0123456789abcdef0123456789abcdef/" + id, Container: id, Pod: "0123456789abcdef0123456789abcdef"}},
		{"containerd's own names", "0::/system.slice/containerd.service/kubepods-burstable-pod" + under + ".slice:cri-containerd:" + id + "\n", Place{
			Cgroup: "/system.slice/containerd.service/kubepods-burstable-pod" + under + ".slice:cri-containerd:" + id, Unit: "containerd.service", Container: id, Pod: pod}},
		{"podman", "0::/machine.slice/libpod-" + id + ".scope/container\n", Place{Cgroup: "/machine.slice/libpod-" + id + ".scope/container", Container: id}},
		{"podman, cgroupfs", "0::/libpod_parent/libpod-" + id + "\n", Place{Cgroup: "/libpod_parent/libpod-" + id, Container: id}},
		{"podman of a user", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container\n", Place{
			Cgroup: "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container", Unit: "user@1000.service", Container: id, Claimed: true}},
		{"a pod of a user", "0::/user.slice/user-1000.slice/user@1000.service/kubepods-pod" + under + ".slice/crio-" + id + ".scope\n", Place{
			Cgroup: "/user.slice/user-1000.slice/user@1000.service/kubepods-pod" + under + ".slice/crio-" + id + ".scope", Unit: "user@1000.service", Container: id, Claimed: true}},
		{"a user's manager in another slice", "0::/people.slice/user@1000.service/kubepods/pod" + pod + "/" + id + "\n", Place{
			Cgroup: "/people.slice/user@1000.service/kubepods/pod" + pod + "/" + id, Unit: "user@1000.service", Container: id, Claimed: true}},
		{"a pod of a session", "0::/user.slice/user-1000.slice/session-3.scope/pod" + pod + "\n", Place{
			Cgroup: "/user.slice/user-1000.slice/session-3.scope/pod" + pod, Unit: "session-3.scope"}},
		{"a user in a pod", "0::/kubepods/pod" + pod + "/" + id + "/user.slice/x.scope\n", Place{Cgroup: "/kubepods/pod" + pod + "/" + id + "/user.slice/x.scope", Unit: "x.scope", Container: id, Pod: pod}},
		{"a user's container in a pod", "0::/kubepods/pod" + pod + "/" + id + "/user.slice/pod" + id[:32] + "/" + id2 + "\n", Place{
			Cgroup: "/kubepods/pod" + pod + "/" + id + "/user.slice/pod" + id[:32] + "/" + id2, Container: id2, Pod: pod, Claimed: true}},
		{"a user's container in version 1", "2:cpu:/docker/" + id + "\n1:name=systemd:/user.slice/user@1000.service/" + id2 + "\n", Place{
			Cgroup: "/user.slice/user@1000.service/" + id2, Unit: "user@1000.service", Container: id2, Claimed: true}},
		{"its monitor", "0::/machine.slice/libpod-conmon-" + id + ".scope\n", Place{Cgroup: "/machine.slice/libpod-conmon-" + id + ".scope"}},
		{"docker in docker", "0::/system.slice/docker-" + id + ".scope/docker/" + id2 + "\n", Place{Cgroup: "/system.slice/docker-" + id + ".scope/docker/" + id2, Container: id2}},
		{"version 1", "11:memory:/user.slice\n4:cpu:/\n1:name=systemd:/system.slice/cron.service\n", Place{Cgroup: "/system.slice/cron.service", Unit: "cron.service"}},
		{"both versions", "1:name=systemd:/system.slice/cron.service\n0::/\n", Place{Cgroup: "/system.slice/cron.service", Unit: "cron.service"}},
		{"from within a container", "0::/../../kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", Place{
			Cgroup: "/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope", Container: id, Pod: pod}},
		{"root", "0::/\n", Place{Cgroup: "/"}},
		{"deleted", "0::/system.slice/nginx.service (deleted)\n", Place{Cgroup: "/system.slice/nginx.service", Unit: "nginx.service"}},
		{"not a unit", "0::/a b.service/\xff.scope\n", Place{Cgroup: "/a b.service/\ufffd.scope"}},
		{"not an ID", "0::/docker/" + id[1:] + "\n", Place{Cgroup: "/docker/" + id[1:]}},
		{"nothing", "", Place{}},
		{"no paths", "::\n0:\n:\n0::x\n", Place{}},
	} {
		// Where a container's scope looks like a unit, it is the container's.
		if got := ParseCgroups(c.text); got != c.want {
			t.Errorf("%s: %q:\n got %+v\nwant %+v", c.name, c.text, got, c.want)
		}
	}
	if p := PlaceOf(int32(os.Getpid())); p.Cgroup == "" {
		t.Errorf("this process: %+v", p)
	}
}

func FuzzParseCgroups(f *testing.F) {
	f.Add("0::/system.slice/docker-" + id + ".scope\n")
	f.Fuzz(func(t *testing.T, s string) {
		p := ParseCgroups(s)
		if p.Container != "" && len(p.Container) != 64 || strings.ToValidUTF8(p.Cgroup+p.Unit+p.Pod, "") != p.Cgroup+p.Unit+p.Pod {
			t.Errorf("%q: %+v", s, p)
		}
	})
}
