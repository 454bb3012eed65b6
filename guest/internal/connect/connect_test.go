package connect

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

type inner struct {
	LongName string `json:"longName"`
}

type request struct {
	Text       string            `json:"text"`
	WatcherID  string            `json:"watcherId"`
	Size       Int64             `json:"size"`
	PID        Uint32            `json:"pid"`
	Data       []byte            `json:"data"`
	Envs       map[string]string `json:"envs"`
	Inner      *inner            `json:"inner"`
	InnerItems []inner           `json:"innerItems"`
}

type reply struct {
	Text string `json:"text"`
	Size Int64  `json:"size,omitempty"`
}

func serve(t *testing.T, register func(*http.ServeMux)) string {
	t.Helper()
	mux := http.NewServeMux()
	register(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func post(t *testing.T, url, contentType string, header http.Header, body io.Reader) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", contentType)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, data
}

func frame(flags byte, body string) string {
	header := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(body)))
	return string(header) + body
}

func TestUnaryAnswersJSON(t *testing.T) {
	url := serve(t, func(mux *http.ServeMux) {
		Unary(mux, "/a.B/C", func(_ context.Context, req *Request[request]) (*reply, error) {
			return &reply{Text: req.Msg.Text + req.Header.Get("X-Extra"), Size: 1 << 40}, nil
		})
	})
	res, body := post(t, url+"/a.B/C", "application/json", http.Header{"X-Extra": {"!"}}, strings.NewReader(`{"text":"hi","new":1}`))
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/json" {
		t.Fatal(res.Status, res.Header)
	}
	if string(body) != `{"text":"hi!","size":"1099511627776"}` {
		t.Fatal(string(body))
	}
}

func TestUnaryErrors(t *testing.T) {
	url := serve(t, func(mux *http.ServeMux) {
		Unary(mux, "/a.B/C", func(ctx context.Context, req *Request[request]) (*reply, error) {
			switch req.Msg.Text {
			case "wrapped":
				return nil, fmt.Errorf("context: %w", Errorf(NotFound, "no %s", "file"))
			case "plain":
				return nil, errors.New("oops")
			case "panic":
				panic("at the disco")
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	for _, c := range []struct {
		body, contentType, timeout, encoding string
		status                               int
		code                                 Code
	}{
		{`{"text":"wrapped"}`, "application/json", "", "", 404, NotFound},
		{`{"text":"plain"}`, "application/json; charset=utf-8", "", "", 500, Internal},
		{`{"text":"panic"}`, "application/json", "", "", 500, Internal},
		{`{"text":"slow"}`, "application/json", "30", "identity", 504, DeadlineExceeded},
		{`{"text":`, "application/json", "", "", 400, InvalidArgument},
		{`{"text":7}`, "application/json", "", "", 400, InvalidArgument},
		{`{}`, "application/json", "soon", "", 400, InvalidArgument},
		{`{}`, "application/json", "", "gzip", 501, Unimplemented},
		{`{}`, "application/proto", "", "", 415, Unknown},
		{strings.Repeat(" ", MaxMessageSize+1), "application/json", "", "", 429, ResourceExhausted},
	} {
		header := http.Header{}
		if c.timeout != "" {
			header.Set("Connect-Timeout-Ms", c.timeout)
		}
		if c.encoding != "" {
			header.Set("Content-Encoding", c.encoding)
		}
		res, body := post(t, url+"/a.B/C", c.contentType, header, strings.NewReader(c.body))
		var e Error
		if err := json.Unmarshal(body, &e); err != nil {
			t.Fatal(err, string(body))
		}
		if res.StatusCode != c.status || e.Code != c.code || e.Message == "" || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%.40s %s: got %d %s", c.body, c.contentType, res.StatusCode, body)
		}
	}
}

func TestServerStreamFramesAndEnds(t *testing.T) {
	url := serve(t, func(mux *http.ServeMux) {
		ServerStream(mux, "/a.B/C", func(_ context.Context, req *Request[request], send func(*reply) error) error {
			for i := range 2 {
				if err := send(&reply{Text: fmt.Sprint(req.Msg.Text, i)}); err != nil {
					return err
				}
			}
			if req.Msg.PID == 7 {
				return Errorf(NotFound, "gone")
			}
			if req.Msg.PID == 8 {
				panic("no")
			}
			return nil
		})
	})
	messages := frame(0, `{"text":"x0"}`) + frame(0, `{"text":"x1"}`)
	for request, want := range map[string]string{
		frame(0, `{"text":"x"}`):           messages + frame(2, `{}`),
		frame(0, `{"text":"x","pid":7}`):   messages + frame(2, `{"error":{"code":"not_found","message":"gone"}}`),
		frame(0, `{"text":"x","pid":"8"}`): messages + frame(2, `{"error":{"code":"internal","message":"panic: no"}}`),
		"":                                 frame(2, `{"error":{"code":"invalid_argument","message":"the request has no message"}}`),
		frame(0, `{}`) + frame(0, `{}`):    frame(2, `{"error":{"code":"invalid_argument","message":"the procedure takes one message, the request has more"}}`),
		"\x01" + frame(0, `{}`)[1:]:        frame(2, `{"error":{"code":"invalid_argument","message":"the message is compressed, but no compression was agreed on"}}`),
		"\x00\xff\xff\xff\xff{}":           frame(2, `{"error":{"code":"resource_exhausted","message":"the message is larger than 67108864 bytes"}}`),
		"\x00\x00\x00\x00\x09{}":           frame(2, `{"error":{"code":"invalid_argument","message":"the request ends inside a message: 2 of 9 bytes"}}`),
		"\x00\x00":                         frame(2, `{"error":{"code":"invalid_argument","message":"the request ends inside the header of a message"}}`),
		frame(2, `{}`):                     frame(2, `{"error":{"code":"invalid_argument","message":"unexpected message flags 0x02"}}`),
	} {
		res, body := post(t, url+"/a.B/C", "application/connect+json", nil, strings.NewReader(request))
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/connect+json" {
			t.Error(res.Status, res.Header)
		}
		if string(body) != want {
			t.Errorf("%q:\n got %q\nwant %q", request, body, want)
		}
	}
}

func TestServerStreamFlushesAndSeesTheClientGo(t *testing.T) {
	gone := make(chan error, 1)
	url := serve(t, func(mux *http.ServeMux) {
		ServerStream(mux, "/a.B/C", func(ctx context.Context, _ *Request[request], send func(*reply) error) error {
			if err := send(&reply{Text: "first"}); err != nil {
				return err
			}
			<-ctx.Done()
			gone <- ctx.Err()
			return ctx.Err()
		})
	})
	res, err := http.Post(url+"/a.B/C", "application/connect+json", strings.NewReader(frame(0, "{}")))
	if err != nil {
		t.Fatal(err)
	}
	want := frame(0, `{"text":"first"}`)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
		t.Fatal(err, string(got))
	}
	res.Body.Close()
	select {
	case err := <-gone:
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the handler was not told")
	}
}

func TestClientStreamReadsWhileTheClientWrites(t *testing.T) {
	received := make(chan string)
	url := serve(t, func(mux *http.ServeMux) {
		ClientStream(mux, "/a.B/C", func(_ context.Context, _ http.Header, recv func() (*request, error)) (*reply, error) {
			text := ""
			for {
				msg, err := recv()
				if errors.Is(err, io.EOF) {
					return &reply{Text: text}, nil
				}
				if err != nil {
					return nil, err
				}
				text += msg.Text
				received <- msg.Text
			}
		})
	})
	r, w := io.Pipe()
	go func() {
		for _, text := range []string{"a", "b"} {
			io.WriteString(w, frame(0, `{"text":"`+text+`"}`))
			if got := <-received; got != text {
				t.Errorf("got %q", got)
			}
		}
		w.Close()
	}()
	_, body := post(t, url+"/a.B/C", "application/connect+json", nil, r)
	if want := frame(0, `{"text":"ab"}`) + frame(2, `{}`); string(body) != want {
		t.Fatalf("%q", body)
	}
}

func TestDecodeAcceptsBothSpellingsAndNumbers(t *testing.T) {
	for _, text := range []string{
		`{"text":"a_b","watcherId":"w","size":"5","pid":3,"data":"AQI=","envs":{"long_name":"1"},"inner":{"longName":"x"},"innerItems":[{"longName":"y"}]}`,
		`{"text":"a_b","watcher_id":"w","size":5,"pid":"3","data":"AQI=","envs":{"long_name":"1"},"inner":{"long_name":"x"},"inner_items":[{"long_name":"y"}],"un_known":[1]}`,
	} {
		msg, err := decode[request]([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if msg.Text != "a_b" || msg.WatcherID != "w" || msg.Size != 5 || msg.PID != 3 || !bytes.Equal(msg.Data, []byte{1, 2}) ||
			msg.Envs["long_name"] != "1" || msg.Inner.LongName != "x" || msg.InnerItems[0].LongName != "y" {
			t.Errorf("%+v", msg)
		}
	}
	for _, text := range []string{`{"pid":-1}`, `{"pid":4294967296}`, `{"size":"x"}`, `{"data":"%"}`, `[1]`, `{"inner_items":{}}`} {
		if _, err := decode[request]([]byte(text)); err == nil || asError(err).Code != InvalidArgument {
			t.Errorf("%s: %v", text, err)
		}
	}
	if msg, err := decode[request]([]byte(`{"pid":null,"size":null,"inner":null,"inner_items":null}`)); err != nil || msg.PID != 0 {
		t.Error(err)
	}
}

func TestKeepaliveInterval(t *testing.T) {
	for text, want := range map[string]time.Duration{"50": 50 * time.Second, "": defaultKeepalive, "0": defaultKeepalive, "-1": defaultKeepalive, "x": defaultKeepalive} {
		if got := KeepaliveInterval(http.Header{"Keepalive-Ping-Interval": {text}}); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte(frame(0, `{"text":"x"}`) + frame(0, `{}`)))
	f.Add([]byte("\x00\xff\xff\xff\xff{}"))
	f.Add([]byte("\x00\x00\x00"))
	f.Add([]byte(frame(1, `{}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			start := r.Len()
			body, err := readFrame(r, 1<<10)
			if errors.Is(err, io.EOF) && start != 0 {
				t.Fatalf("a stream of %d more bytes looked like its end", start)
			}
			if err != nil {
				break
			}
			if start-r.Len() != headerSize+len(body) {
				t.Fatalf("read %d bytes for a message of %d", start-r.Len(), len(body))
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"watcher_id":"w","inner":{"long_name":"x"},"inner_items":[{"long_name":"y"},null]}`))
	f.Add([]byte(`{"size":"5","pid":3,"data":"AQI=","envs":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		msg, err := decode[request](data)
		if err != nil {
			if asError(err).Code != InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		encoded, err := json.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode[request](encoded)
		if err != nil {
			t.Fatal(err)
		}
		if second, _ := json.Marshal(again); !bytes.Equal(encoded, second) {
			t.Fatalf("%s became %s", encoded, second)
		}
	})
}
