// Command debuginfo is a server of parca.debuginfo.v1alpha1.DebuginfoService, by Parca's own generated code. It listens on a port of the loopback,
// which it prints, and then prints a line for each call: its method, its request in JSON, and of an upload its size and SHA-256. The build ID's
// first byte says how it answers: 00, that it wants nothing; 01, that another client sends; 02, with a signed URL; 03, with instructions for another
// file; 04, that it has kept less; 05, that it is away; 06, never; all others, as Parca does.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"

	pb "github.com/parca-dev/parca/gen/proto/go/parca/debuginfo/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type server struct {
	pb.UnimplementedDebuginfoServiceServer
	sync.Mutex
	bucket string // of signed URLs
}

func (s *server) log(method string, m proto.Message) {
	s.Lock()
	defer s.Unlock()
	b, err := protojson.Marshal(m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s %s\n", method, b)
}

func (s *server) ShouldInitiateUpload(ctx context.Context, r *pb.ShouldInitiateUploadRequest) (*pb.ShouldInitiateUploadResponse, error) {
	s.log("should", r)
	switch {
	case r.BuildIdType != pb.BuildIDType_BUILD_ID_TYPE_GNU:
		return nil, status.Error(codes.InvalidArgument, "no type of the build ID")
	case strings.HasPrefix(r.BuildId, "00"):
		return &pb.ShouldInitiateUploadResponse{Reason: "Debuginfo already exists and is not marked as invalid, therefore no new upload is needed."}, nil
	case strings.HasPrefix(r.BuildId, "01"):
		return &pb.ShouldInitiateUploadResponse{Reason: "A previous upload is still in-progress and not stale yet (only stale uploads can be retried)."}, nil
	case strings.HasPrefix(r.BuildId, "05"):
		return nil, status.Error(codes.Unavailable, "away")
	case strings.HasPrefix(r.BuildId, "06"):
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &pb.ShouldInitiateUploadResponse{ShouldInitiateUpload: true, Reason: "First time we see this Build ID"}, nil
}

func (s *server) InitiateUpload(_ context.Context, r *pb.InitiateUploadRequest) (*pb.InitiateUploadResponse, error) {
	s.log("initiate", r)
	if r.Hash == "" || r.Size == 0 {
		return nil, status.Error(codes.InvalidArgument, "hash and size must be set")
	}
	i := &pb.UploadInstructions{BuildId: r.BuildId, UploadId: "id of " + r.BuildId, UploadStrategy: pb.UploadInstructions_UPLOAD_STRATEGY_GRPC}
	switch r.BuildId[:2] {
	case "02":
		i.UploadStrategy, i.SignedUrl = pb.UploadInstructions_UPLOAD_STRATEGY_SIGNED_URL, s.bucket+"/"+r.BuildId+"?signature=x"
	case "03":
		i.BuildId = "0303"
	}
	return &pb.InitiateUploadResponse{UploadInstructions: i}, nil
}

func (s *server) Upload(stream pb.DebuginfoService_UploadServer) error {
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	info := r.GetInfo()
	if info == nil || info.UploadId != "id of "+info.BuildId {
		return status.Error(codes.InvalidArgument, "the upload ID does not match")
	}
	sum, size := sha256.New(), uint64(0)
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		sum.Write(r.GetChunkData())
		size += uint64(len(r.GetChunkData()))
	}
	s.Lock()
	fmt.Printf("upload %s %d %x\n", info.BuildId, size, sum.Sum(nil))
	s.Unlock()
	if strings.HasPrefix(info.BuildId, "04") {
		size--
	}
	return stream.SendAndClose(&pb.UploadResponse{BuildId: info.BuildId, Size: size})
}

func (s *server) MarkUploadFinished(_ context.Context, r *pb.MarkUploadFinishedRequest) (*pb.MarkUploadFinishedResponse, error) {
	s.log("finished", r)
	return &pb.MarkUploadFinishedResponse{}, nil
}

func listen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return l
}

func main() {
	l, bucket := listen(), listen()
	s := &server{bucket: "http://" + bucket.Addr().String()}
	go http.Serve(bucket, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, _ := io.Copy(sum, r.Body)
		s.Lock()
		fmt.Printf("%s %s %d %x %q\n", r.Method, r.URL, n, sum.Sum(nil), r.Header.Get("Authorization"))
		s.Unlock()
	}))
	fmt.Println(l.Addr())
	g := grpc.NewServer()
	pb.RegisterDebuginfoServiceServer(g, s)
	log.Fatal(g.Serve(l))
}
