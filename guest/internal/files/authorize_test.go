package files

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"aenv/envd/internal/session"
)

func TestAuthorization(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	token := "secret"
	c.state.Update(session.Change{Token: &token})
	path := folder + "/f"
	os.WriteFile(path, []byte("x"), 0o644)
	signed := func(operation, expiration string) string {
		query := at(path) + "&signature=" + url.QueryEscape(Signature(path, operation, "", token, expiration))
		if expiration != "" {
			query += "&signature_expiration=" + expiration
		}
		return query
	}
	future, past := fmt.Sprint(time.Now().Add(time.Hour).Unix()), "1000"
	for _, test := range []struct {
		path, header, message string
	}{
		{at(path), "X-Access-Token: secret", ""},
		{at(path), "X-Access-Token: wrong", "unauthorized access, please provide a valid access token or method signing if supported"},
		{at(path), "Accept: x", "missing signature query parameter"},
		{signed("read", ""), "Accept: x", ""},
		{signed("read", future), "Accept: x", ""},
		{signed("read", past), "Accept: x", "signature is already expired"},
		{signed("write", ""), "Accept: x", "invalid signature"},
		{signed("read", "") + "&signature_expiration=" + future, "Accept: x", "invalid signature"},
		{signed("read", "") + "&username=root", "Accept: x", "invalid signature"},
	} {
		response, body := c.do("GET", test.path, nil, test.header)
		if test.message == "" && response.StatusCode != 200 {
			t.Errorf("%s: %s", test.path, body)
		}
		if want := `{"code":401,"message":"` + test.message + `"}`; test.message != "" && (response.StatusCode != 401 || body != want) {
			t.Errorf("%s: %d %s, want %s", test.path, response.StatusCode, body, want)
		}
	}
	if response, body := c.do("POST", signed("write", future), strings.NewReader("y"), "Content-Type: "+octets); response.StatusCode != 200 {
		t.Errorf("signed upload: %s", body)
	}
	if response, _ := c.do("POST", "/files/compose", strings.NewReader("{}")); response.StatusCode != 401 {
		t.Errorf("compose without a token: %d", response.StatusCode)
	}
}

func TestSignatureOfTheContract(t *testing.T) {
	// Computed with: printf '%s' '/a:read:user:tok:5' | sha256sum | xxd -r -p | base64
	if got, want := Signature("/a", "read", "user", "tok", "5"), "v1_gtbZ9wMQROoH5fIDWw3Cg9FjoGhCOG6Ccz6vR4KcQQ8"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
