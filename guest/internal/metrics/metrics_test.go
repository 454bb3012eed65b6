package metrics

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestMetricsOfThisMachine(t *testing.T) {
	mux := http.NewServeMux()
	Register(mux)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	var s sample
	if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil || answer.Code != 200 {
		t.Fatalf("%d %s: %v", answer.Code, answer.Body, err)
	}
	if s.CPUCount < 1 || s.CPUUsed < 0 || s.CPUUsed > 100 || s.MemTotal == 0 || s.MemUsed == 0 || s.MemUsed > s.MemTotal ||
		s.MemTotalMiB != s.MemTotal>>20 || s.DiskTotal == 0 || s.DiskUsed > s.DiskTotal {
		t.Errorf("%+v", s)
	}
	if age := time.Now().Unix() - s.Timestamp; age < 0 || age > 60 {
		t.Errorf("the timestamp is %d s old", age)
	}
}

func TestCPUUseIsTheShareSinceTheLastSample(t *testing.T) {
	before := parseStat([]byte("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n"))
	now := parseStat([]byte("cpu  150 0 100 940 10 0 0 0 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\n"))
	if before.count != 2 || before.total != 1000 || before.busy != 200 {
		t.Errorf("%+v", before)
	}
	if got := usedPercent(before, now); got != 25 {
		t.Errorf("%v %%", got)
	}
	if got := usedPercent(now, now); got != 0 {
		t.Errorf("without time between: %v %%", got)
	}
}

func TestMeminfoIsInBytes(t *testing.T) {
	values := parseMeminfo([]byte("MemTotal:  2048 kB\nMemFree: 1 kB\n"))
	if values["MemTotal"] != 2<<20 || values["MemFree"] != 1024 {
		t.Errorf("%v", values)
	}
}
