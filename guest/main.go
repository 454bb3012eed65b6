// Envd is the guest's side of a sandbox: as PID 1 it boots the guest, and on one HTTP port it serves processes, terminals,
// files and watches to the E2B SDKs, and its identity to the host.
package main

import (
	"flag"
	"fmt"
	"os"

	"aenv/envd/internal/boot"
	"aenv/envd/internal/server"
	"aenv/envd/internal/version"
)

func main() {
	if os.Getpid() == 1 {
		// No flags: the kernel hands init the arguments that it doesn't know itself.
		if boot.Init() == nil {
			_ = boot.Fail(server.Run(server.DefaultPort))
		}
		select {} // a PID 1 that ends panics the kernel
	}
	port := flag.Int("port", server.DefaultPort, "TCP `port` to serve on")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println(version.Version)
		return
	}
	fmt.Fprintln(os.Stderr, "envd:", server.Run(*port))
	os.Exit(1)
}
