package process

import (
	"strconv"
	"strings"

	"aenv/envd/internal/journal"
)

// logger is what entries about processes are filed under.
const logger = "process"

func noteStart(j *journal.Journal, p *running, user string) {
	if j == nil {
		return
	}
	line := strings.Join(append([]string{p.config.Cmd}, p.config.Args...), " ")
	pid := strconv.Itoa(p.pid)
	j.Add(journal.Info, logger, "process "+pid+" started by "+user+": "+line,
		journal.Fields{"event": "start", "pid": pid, "user": user, "command": line})
}

func noteEnd(j *journal.Journal, p *running) {
	if j == nil {
		return
	}
	pid := strconv.Itoa(p.pid)
	j.Add(journal.Info, logger, "process "+pid+" ended: "+p.end.Status,
		journal.Fields{"event": "end", "pid": pid, "exit_code": strconv.Itoa(p.end.ExitCode), "status": p.end.Status})
}
