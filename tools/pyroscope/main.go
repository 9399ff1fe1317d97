// Command pyroscope is the handler of pushes of Grafana Pyroscope's own API module. It listens on a port of the loopback, which it prints, and
// then prints each request that it has read, a line of JSON each. A request that Pyroscope refuses for its labels is refused.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect"
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

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr())
	mux := http.NewServeMux()
	mux.Handle(pushv1connect.NewPusherServiceHandler(&pusher{}))
	log.Fatal(http.Serve(l, mux))
}
