package files

import (
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"
)

func TestEncodings(t *testing.T) {
	for header, want := range map[string]struct{ identity, wantsGzip bool }{
		"":                     {true, false},
		"gzip":                 {true, true},
		"gzip, deflate, br":    {true, false},
		"gzip, deflate;q=0":    {true, true},
		"gzip;q=0":             {true, false},
		"*":                    {true, false},
		"identity, gzip":       {true, false},
		"identity;q=0":         {false, false},
		"gzip, identity;q=0":   {false, true},
		"*;q=0":                {false, false},
		"*;q=0, identity":      {true, false},
		"gzip;q=1.0, *; q=0":   {false, true},
		"identity;q=0, *;q=.5": {false, true},
	} {
		e := parseEncodings([]string{header})
		if e.identity() != want.identity || e.wantsGzip() != want.wantsGzip {
			t.Errorf("%q: identity %v, wants gzip %v", header, e.identity(), e.wantsGzip())
		}
	}
}

func TestAFileIsCompressedForAClientThatAsksForIt(t *testing.T) {
	c, folder := newClient(t), t.TempDir()
	content := "<html>" + strings.Repeat("content ", 20_000)
	os.WriteFile(folder+"/page", []byte(content), 0o644)
	os.WriteFile(folder+"/empty", nil, 0o644)
	response, body := c.do("GET", at(folder+"/page"), nil, "Accept-Encoding: gzip")
	if response.Header.Get("Content-Encoding") != "gzip" || len(body) > len(content)/10 {
		t.Fatalf("%v, %d bytes", response.Header, len(body))
	}
	if kind := response.Header.Get("Content-Type"); kind != "text/html; charset=utf-8" {
		t.Error(kind)
	}
	reader, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(reader); err != nil || string(got) != content {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if response, body := c.do("GET", at(folder+"/empty"), nil, "Accept-Encoding: gzip"); response.Header.Get("Content-Length") != "0" || body != "" {
		t.Errorf("empty: %v", response.Header)
	}
	if response, body := c.do("GET", at(folder+"/page"), nil, "Accept-Encoding: gzip", "Range: bytes=1-4"); response.StatusCode != 206 || body != "html" {
		t.Errorf("range: %d %q", response.StatusCode, body)
	}
	if response, _ := c.do("GET", at(folder+"/page"), nil, "Accept-Encoding: gzip, identity;q=0", "Range: bytes=1-4"); response.StatusCode != 406 {
		t.Errorf("a part, not as it is: %d", response.StatusCode)
	}
}
