package files

import (
	"strconv"
	"strings"
)

// acceptsIdentity tells whether a client takes an uncompressed answer (RFC 9110, section 12.5.3): it does unless it gives
// "identity", or "*" without "identity", the weight 0.
func acceptsIdentity(headers []string) bool {
	accepted := true
	for item := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		name, parameters, _ := strings.Cut(item, ";")
		weight := 1.0
		if value, ok := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(parameters), " ", ""), "q="); ok {
			if parsed, err := strconv.ParseFloat(value, 64); err == nil {
				weight = parsed
			}
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "identity":
			return weight > 0
		case "*":
			accepted = weight > 0
		}
	}
	return accepted
}
