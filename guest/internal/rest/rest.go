// Package rest answers envd's plain HTTP routes in the one form their clients know.
package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Unauthorized is what a request hears that carries no valid token where one is needed.
const Unauthorized = "unauthorized access, please provide a valid access token or method signing if supported"

// Error answers with {"code": status, "message": …}.
func Error(w http.ResponseWriter, status int, format string, a ...any) {
	JSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, fmt.Sprintf(format, a...)})
}

// JSON answers with a body of exactly value's JSON.
func JSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"code":500,"message":"the answer has no JSON form"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
