package files

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"aenv/envd/internal/rest"
)

// Operations that a signature can allow.
const (
	operationRead  = "read"
	operationWrite = "write"
)

// authorize lets a request pass that carries the access token, or a valid signature over its path and user name exactly as they
// are in the query.
func (s *service) authorize(r *http.Request, operation string) error {
	token := s.state.Token()
	if token == "" {
		return nil
	}
	if given := r.Header.Get("X-Access-Token"); given != "" {
		if !s.state.Authorized(given) {
			return &failure{http.StatusUnauthorized, rest.Unauthorized}
		}
		return nil
	}
	query := r.URL.Query()
	if !query.Has("signature") {
		return &failure{http.StatusUnauthorized, "missing signature query parameter"}
	}
	expiration := query.Get("signature_expiration")
	want := Signature(query.Get("path"), operation, query.Get("username"), token, expiration)
	if subtle.ConstantTimeCompare([]byte(query.Get("signature")), []byte(want)) != 1 {
		return &failure{http.StatusUnauthorized, "invalid signature"}
	}
	if expiration != "" {
		end, err := strconv.ParseInt(expiration, 10, 64)
		if err != nil {
			return &failure{http.StatusUnauthorized, "invalid signature"}
		}
		if end < time.Now().Unix() {
			return &failure{http.StatusUnauthorized, "signature is already expired"}
		}
	}
	return nil
}

// Signature returns the signature that allows operation on path; expiration is in seconds since 1970, or "".
func Signature(path, operation, username, token, expiration string) string {
	text := strings.Join([]string{path, operation, username, token}, ":")
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
