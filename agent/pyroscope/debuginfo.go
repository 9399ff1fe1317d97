package pyroscope

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/unspool/unspool/agent/export"
)

// service is debuginfo.v1alpha1.DebuginfoService: by the Connect protocol with JSON, but for the file itself, which is the body of a request.
const service = "debuginfo.v1alpha1.DebuginfoService/"

// The messages, as protobuf's JSON has them.
type (
	question struct {
		File file `json:"file"`
	}
	file struct {
		GnuBuildID string `json:"gnuBuildId"`
		Name       string `json:"name"`
		Type       string `json:"type"`
	}
	finished struct {
		GnuBuildID string `json:"gnuBuildId"`
	}
)

// call makes a call, and reads its answer into out; nil: it is not looked at.
func (e *Exporter) call(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	a, err := e.client.Post(ctx, service+method, http.Header{"Content-Type": {"application/json"}, "Connect-Protocol-Version": {"1"}}, body)
	if err == nil {
		err = a.Err()
	}
	if err != nil || out == nil {
		return err
	}
	if json.Unmarshal(a.Body, out) != nil {
		return &export.Refused{Status: "Pyroscope's answer cannot be read"}
	}
	return nil
}

// Wants implements export.Symbolizer. Pyroscope expects the file from whoever it says yes to, for some minutes.
func (e *Exporter) Wants(ctx context.Context, f *export.DebugFile) (bool, time.Duration, error) {
	kind := "TYPE_EXECUTABLE_NO_TEXT"
	if f.Text {
		kind = "TYPE_EXECUTABLE_FULL"
	}
	var answer struct {
		ShouldInitiateUpload bool
		Reason               string
	}
	err := e.call(ctx, "ShouldInitiateUpload", question{file{f.BuildID, strings.ToValidUTF8(f.Name, "\ufffd"), kind}}, &answer)
	if err == nil && !answer.ShouldInitiateUpload && strings.Contains(answer.Reason, "in-progress") {
		return false, export.StaleUpload, nil
	}
	return answer.ShouldInitiateUpload, 0, err
}

// Upload implements export.Symbolizer.
func (e *Exporter) Upload(ctx context.Context, f *export.DebugFile) error {
	a, err := e.client.PostLong(ctx, service+"Upload/"+f.BuildID, http.Header{"Content-Type": {"application/octet-stream"}}, f.Body(ctx), f.Size)
	if err == nil {
		err = a.Err()
	}
	if err != nil {
		return err
	}
	return e.call(ctx, "UploadFinished", finished{f.BuildID}, nil)
}
