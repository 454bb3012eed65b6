// Package version says which envd this is.
package version

// Version is the level of the E2B envd interface this program offers. SDKs and the server switch features by it.
const Version = "0.6.13"
