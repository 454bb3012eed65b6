package files

import (
	"strconv"
	"strings"
)

// encodings are the content codings of an Accept-Encoding header with their weights (RFC 9110, section 12.5.3).
type encodings map[string]float64

func parseEncodings(headers []string) encodings {
	accepted := encodings{}
	for item := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		name, parameters, _ := strings.Cut(item, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		weight := 1.0
		if value, ok := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(parameters), " ", ""), "q="); ok {
			if parsed, err := strconv.ParseFloat(value, 64); err == nil {
				weight = parsed
			}
		}
		accepted[name] = weight
	}
	return accepted
}

// identity tells whether a client takes an uncompressed answer: it does unless it gives "identity", or "*" without "identity",
// the weight 0.
func (e encodings) identity() bool {
	if weight, ok := e["identity"]; ok {
		return weight > 0
	}
	weight, ok := e["*"]
	return !ok || weight > 0
}

// gzip tells whether a client takes a gzip answer.
func (e encodings) gzip() bool {
	if weight, ok := e["gzip"]; ok {
		return weight > 0
	}
	return e["*"] > 0
}

// wantsGzip tells whether a client asks for gzip and for nothing else. Clients that merely can read it, as most do without having
// been told, get the file as it is: compressing costs the guest more time than the way through one host's memory.
func (e encodings) wantsGzip() bool {
	if !e.gzip() {
		return false
	}
	if !e.identity() {
		return true
	}
	for name, weight := range e {
		if name != "gzip" && weight > 0 {
			return false
		}
	}
	return true
}
