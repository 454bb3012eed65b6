package journal

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

type client struct {
	*testing.T
	mux *http.ServeMux
}

func serve(t *testing.T, j *Journal) client {
	mux := http.NewServeMux()
	j.Register(mux)
	return client{t, mux}
}

func (c client) get(query string) answer {
	c.Helper()
	recorder := httptest.NewRecorder()
	c.mux.ServeHTTP(recorder, httptest.NewRequest("GET", "/logs"+query, nil))
	var got answer
	if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil || recorder.Code != 200 {
		c.Fatalf("%d %s: %v", recorder.Code, recorder.Body, err)
	}
	return got
}

func TestEntriesAreServedAfterASequenceNumber(t *testing.T) {
	j := New()
	c := serve(t, j)
	if got := c.get(""); got.Journal == "" || got.Entries == nil || len(got.Entries) != 0 || got.More {
		t.Errorf("%+v", got)
	}
	j.Add(Info, "process", "one", Fields{"pid": "7"})
	j.Add(Warn, "kernel", "two", nil)
	got := c.get("")
	if len(got.Entries) != 2 || got.Entries[0].Sequence != 1 || got.Entries[1].Message != "two" || got.Entries[0].Fields["pid"] != "7" {
		t.Fatalf("%+v", got)
	}
	if age := time.Since(got.Entries[0].Time); age < 0 || age > time.Minute {
		t.Error(age)
	}
	if rest := c.get("?after=1&journal=" + got.Journal); len(rest.Entries) != 1 || rest.Entries[0].Message != "two" {
		t.Errorf("%+v", rest)
	}
	if rest := c.get("?after=2&journal=" + got.Journal); len(rest.Entries) != 0 {
		t.Errorf("%+v", rest)
	}
}

func TestTheNumbersOfAnotherBootMeanNothing(t *testing.T) {
	j := New()
	j.Add(Info, "process", "one", nil)
	if got := serve(t, j).get("?after=1000&journal=another"); len(got.Entries) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestAWrongNumberIsRefused(t *testing.T) {
	recorder := httptest.NewRecorder()
	serve(t, New()).mux.ServeHTTP(recorder, httptest.NewRequest("GET", "/logs?after=-1", nil))
	if recorder.Code != 400 {
		t.Error(recorder.Code, recorder.Body)
	}
}

func TestTheOldestGiveWay(t *testing.T) {
	j := New()
	for i := range maxEntries + 10 {
		j.Add(Debug, "files", strconv.Itoa(i), nil)
	}
	if len(j.entries) != maxEntries || j.entries[0].Sequence != 11 {
		t.Error(len(j.entries), j.entries[0].Sequence)
	}
	long := strings.Repeat("x", 2*maxText)
	for range maxEntries {
		j.Add(Debug, "files", long, Fields{"path": long})
	}
	if j.size > maxSize || j.entries[0].Sequence < 1000 || len(j.entries[0].Message) > maxText+4 {
		t.Error(j.size, j.entries[0].Sequence, len(j.entries[0].Message))
	}
	sum := 0
	for _, entry := range j.entries {
		sum += entry.size()
	}
	if sum != j.size {
		t.Error("the size is counted wrong:", sum, j.size)
	}
}

func TestALongJournalComesInPages(t *testing.T) {
	j := New()
	for range 200 {
		j.Add(Info, "files", strings.Repeat("x", 2000), nil)
	}
	c := serve(t, j)
	var after uint64
	pages, entries := 0, 0
	for {
		got := c.get("?after=" + strconv.FormatUint(after, 10) + "&journal=" + j.id)
		pages++
		entries += len(got.Entries)
		if !got.More {
			break
		}
		after = got.Entries[len(got.Entries)-1].Sequence
	}
	if pages < 2 || entries != 200 {
		t.Error(pages, entries)
	}
}

func TestAForgottenJournalGoesOnCounting(t *testing.T) {
	j := New()
	j.Add(Info, "process", "of another sandbox", nil)
	j.Forget()
	j.Add(Info, "process", "mine", nil)
	if got := serve(t, j).get(""); len(got.Entries) != 1 || got.Entries[0].Sequence != 2 {
		t.Errorf("%+v", got)
	}
}

func TestNoJournalIsFine(t *testing.T) {
	var j *Journal
	j.Add(Info, "process", "nobody hears it", nil)
	j.Forget()
}

// records returns one record, or error, for each read.
type records []any

func (r *records) Read(p []byte) (int, error) {
	if len(*r) == 0 {
		return 0, io.EOF
	}
	next := (*r)[0]
	*r = (*r)[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(p, next.(string)), nil
}

func TestKernelWarningsAreKept(t *testing.T) {
	j := New()
	err := j.follow(&records{
		"6,1,100,-;information\n",
		"4,2,200,-;a warning; with a semicolon\n SUBSYSTEM=block\n DEVICE=b254:0\n",
		syscall.EPIPE,
		"3,3,300,-;an error\n",
		"12,4,400,-;a program's own warning\n", // facility 1
		"nonsense",
		"x,5;nonsense",
		"2,6,600,c,caller=T1;critical",
	})
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	want := []Entry{{Level: Warn, Message: "a warning; with a semicolon"}, {Level: Error, Message: "an error"}, {Level: Error, Message: "critical"}}
	if len(j.entries) != len(want) {
		t.Fatalf("%+v", j.entries)
	}
	for i, entry := range j.entries {
		if entry.Level != want[i].Level || entry.Message != want[i].Message || entry.Logger != "kernel" {
			t.Errorf("%+v", entry)
		}
	}
}
