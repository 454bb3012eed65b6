package process

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"syscall"

	"aenv/envd/internal/connect"
)

// The messages of process.proto, in their JSON form.

type config struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitempty"`
}

type terminalSize struct {
	Cols connect.Uint32 `json:"cols"`
	Rows connect.Uint32 `json:"rows"`
}

type terminal struct {
	Size *terminalSize `json:"size"`
}

type startRequest struct {
	Process *config   `json:"process"`
	PTY     *terminal `json:"pty"`
	Tag     *string   `json:"tag"`
	Stdin   *bool     `json:"stdin"`
}

type selector struct {
	PID *connect.Uint32 `json:"pid"`
	Tag *string         `json:"tag"`
}

// selected is a request that only names a process: Connect and CloseStdin.
type selected struct {
	Process selector `json:"process"`
}

type updateRequest struct {
	Process selector  `json:"process"`
	PTY     *terminal `json:"pty"`
}

type input struct {
	Stdin *[]byte `json:"stdin"`
	PTY   *[]byte `json:"pty"`
}

type sendInputRequest struct {
	Process selector `json:"process"`
	Input   input    `json:"input"`
}

type streamInputRequest struct {
	Start *selected `json:"start"`
	Data  *struct {
		Input input `json:"input"`
	} `json:"data"`
}

type sendSignalRequest struct {
	Process selector   `json:"process"`
	Signal  signalName `json:"signal"`
}

// signalName is the enum process.Signal, by name or by number.
type signalName syscall.Signal

// UnmarshalJSON implements json.Unmarshaler.
func (s *signalName) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case `"SIGNAL_SIGKILL"`, "9":
		*s = signalName(syscall.SIGKILL)
	case `"SIGNAL_SIGTERM"`, "15":
		*s = signalName(syscall.SIGTERM)
	case `"SIGNAL_UNSPECIFIED"`, "0", "null":
		*s = 0
	default:
		return fmt.Errorf("unknown signal %s", data)
	}
	return nil
}

type empty struct{}

type info struct {
	Config *config `json:"config"`
	PID    int     `json:"pid"`
	Tag    *string `json:"tag,omitempty"`
}

type listResponse struct {
	Processes []info `json:"processes"`
}

// event is a ProcessEvent, wrapped as StartResponse and ConnectResponse wrap it. One of its parts is set.
type event struct {
	start     int    // the process's PID
	stream    string // "stdout", "stderr" or "pty"
	data      []byte // what came out of stream
	end       *ending
	keepalive bool
}

// ending is how a process ended.
type ending struct {
	ExitCode int     `json:"exitCode"` // -1 if a signal ended it
	Exited   bool    `json:"exited"`
	Status   string  `json:"status"`
	Error    *string `json:"error,omitempty"`
}

// AppendJSON implements connect.Appender.
func (e *event) AppendJSON(dst []byte) []byte {
	switch {
	case e.data != nil:
		dst = append(dst, `{"event":{"data":{"`...)
		dst = append(append(dst, e.stream...), `":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, e.data)
		return append(dst, `"}}}`...)
	case e.end != nil:
		body, _ := json.Marshal(e.end)
		dst = append(append(dst, `{"event":{"end":`...), body...)
	case e.keepalive:
		dst = append(dst, `{"event":{"keepalive":{}`...)
	default:
		dst = append(dst, `{"event":{"start":{"pid":`...)
		dst = append(strconv.AppendInt(dst, int64(e.start), 10), '}')
	}
	return append(dst, `}}`...)
}
