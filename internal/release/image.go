package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/outfile"
)

// The parts of an image (OCI Image Format Specification 1.1): documents that name each other by digest.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Platform    *platform         `json:"platform,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	manifest struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}
	index struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}
	imageConfig struct {
		platform
		Created time.Time `json:"created"`
		Config  struct {
			Env        []string
			Entrypoint []string
			Cmd        []string
			Labels     map[string]string
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
)

const mediaType = "application/vnd.oci.image."

// blobs are the documents of an image layout, by the paths at which it has them.
type blobs map[string][]byte

// add puts in a document, and returns what names it.
func (b blobs) add(kind string, v any) descriptor {
	data, ok := v.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(v); err != nil {
			panic("BUG: an image's document: " + err.Error())
		}
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	b["blobs/sha256/"+sum] = data
	return descriptor{MediaType: mediaType + kind, Digest: "sha256:" + sum, Size: len(data)}
}

// image returns an archive of an image for all machines of the files: an OCI image layout, which podman, skopeo and containerd read. The image has
// these files and no others. The same files make the same bytes.
func image(files map[string][]file, version string, when time.Time) []byte {
	all := blobs{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	many := index{SchemaVersion: 2, MediaType: mediaType + "index.v1+json"}
	for _, t := range targets {
		content, ok := files[t.arch]
		if !ok {
			continue
		}
		layer := archive("", content, when)
		c := imageConfig{platform: platform{t.arch, "linux"}, Created: when}
		c.Config.Env = []string{"PATH=/usr/bin", "UNSPOOL_CACHE=/var/cache/unspool"}
		c.Config.Entrypoint, c.Config.Cmd = []string{"/usr/bin/unspool"}, []string{"--help"}
		c.Config.Labels = map[string]string{"org.opencontainers.image.source": home, "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"}
		c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}
		d := all.add("manifest.v1+json", manifest{SchemaVersion: 2, MediaType: mediaType + "manifest.v1+json",
			Config: all.add("config.v1+json", c), Layers: []descriptor{all.add("layer.v1.tar+gzip", zip(layer))}})
		d.Platform = &c.platform
		many.Manifests = append(many.Manifests, d)
	}
	d := all.add("index.v1+json", many)
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": "unspool:latest"}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaType + "index.v1+json", Manifests: []descriptor{d}})
	if err != nil {
		panic("BUG: an image's index: " + err.Error())
	}
	all["index.json"] = top
	var out []file
	for name, data := range all {
		out = append(out, file{name, 0o644, data})
	}
	return archive("", out, when)
}

// writeImage builds the program from what is here, for all machines, and writes an image with it and its licence.
func writeImage(ctx context.Context, to string) error {
	tmp, err := os.MkdirTemp("", "unspool-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	licence, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	commit, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct %H").Output()
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	var at int64
	var version string
	if _, err := fmt.Sscan(string(commit), &at, &version); err != nil {
		return err
	}
	files := map[string][]file{}
	for _, t := range targets {
		exe := filepath.Join(tmp, t.arch)
		c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", exe, "./cmd/unspool")
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+t.arch, "GOAMD64=v1", "GOARM64=v8.0")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("go build for %s: %w\n%s", t.arch, err, strings.TrimSpace(string(out)))
		}
		program, err := os.ReadFile(exe)
		if err != nil {
			return err
		}
		files[t.arch] = []file{{"usr/bin/unspool", 0o755, program}, {"usr/share/doc/unspool/LICENSE", 0o644, licence}}
	}
	b := image(files, version, time.Unix(at, 0).UTC())
	if err := outfile.WriteFile(to, b, outfile.Options{}); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes, for", to, len(b))
	for _, t := range targets {
		fmt.Printf(" linux/%s", t.arch)
	}
	fmt.Println()
	return nil
}
