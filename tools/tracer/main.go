// Command tracer is a program with Datadog's library for Go, which publishes OpenTelemetry's process context. It prints "ready" when the library has
// started, and waits until it is killed.
package main

import (
	"fmt"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
)

func main() {
	if err := tracer.Start(); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	select {}
}
