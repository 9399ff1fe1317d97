// Command pyroscope is the handlers of pushes and of debug information of Grafana Pyroscope's own API module. It listens on a port of the loopback,
// which it prints, and then prints each request that it has read, a line of JSON each, and of a file its size and SHA-256. A request that Pyroscope
// refuses for its labels is refused. A file is asked for once.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect"
	debuginfov1 "github.com/grafana/pyroscope/api/gen/proto/go/debuginfo/v1alpha1"
	debuginfov1connect "github.com/grafana/pyroscope/api/gen/proto/go/debuginfo/v1alpha1/debuginfov1alpha1connect"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	"google.golang.org/protobuf/encoding/protojson"
)

type pusher struct {
	pushv1connect.UnimplementedPusherServiceHandler
	sync.Mutex
}

func (p *pusher) Push(_ context.Context, req *connect.Request[pushv1.PushRequest]) (*connect.Response[pushv1.PushResponse], error) {
	for _, s := range req.Msg.Series {
		named := false
		for _, l := range s.Labels {
			if l.Name == "service_name" && l.Value == "limited" {
				return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("the limit is reached"))
			}
			named = named || l.Name == "service_name" && l.Value != ""
		}
		if !named {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("service_name is missing"))
		}
	}
	p.Lock()
	defer p.Unlock()
	fmt.Println(protojson.MarshalOptions{}.Format(req.Msg))
	return connect.NewResponse(&pushv1.PushResponse{}), nil
}

type debuginfo struct {
	debuginfov1connect.UnimplementedDebuginfoServiceHandler
	*pusher
	began map[string]bool
}

func (d *debuginfo) ShouldInitiateUpload(_ context.Context, req *connect.Request[debuginfov1.ShouldInitiateUploadRequest]) (*connect.Response[debuginfov1.ShouldInitiateUploadResponse], error) {
	d.Lock()
	defer d.Unlock()
	id := req.Msg.GetFile().GetGnuBuildId()
	if id == "" || req.Msg.File.Type == debuginfov1.FileMetadata_TYPE_UNSPECIFIED {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("invalid request"))
	}
	fmt.Println(protojson.MarshalOptions{}.Format(req.Msg))
	answer := &debuginfov1.ShouldInitiateUploadResponse{ShouldInitiateUpload: !d.began[id], Reason: "Debuginfo already exists"}
	d.began[id] = true
	return connect.NewResponse(answer), nil
}

func (d *debuginfo) UploadFinished(_ context.Context, req *connect.Request[debuginfov1.UploadFinishedRequest]) (*connect.Response[debuginfov1.UploadFinishedResponse], error) {
	d.Lock()
	defer d.Unlock()
	fmt.Println(protojson.MarshalOptions{}.Format(req.Msg))
	return connect.NewResponse(&debuginfov1.UploadFinishedResponse{}), nil
}

// upload is Pyroscope's own route for files: it is no method of the service.
func (d *debuginfo) upload(w http.ResponseWriter, r *http.Request) {
	sum := sha256.New()
	n, err := io.Copy(sum, r.Body)
	d.Lock()
	defer d.Unlock()
	fmt.Printf("upload %s %d %x %v\n", r.PathValue("id"), n, sum.Sum(nil), err)
}

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr())
	mux := http.NewServeMux()
	p := &pusher{}
	d := &debuginfo{pusher: p, began: map[string]bool{}}
	mux.Handle(pushv1connect.NewPusherServiceHandler(p))
	mux.Handle(debuginfov1connect.NewDebuginfoServiceHandler(d))
	mux.HandleFunc("POST /debuginfo.v1alpha1.DebuginfoService/Upload/{id}", d.upload)
	log.Fatal(http.Serve(l, mux))
}
