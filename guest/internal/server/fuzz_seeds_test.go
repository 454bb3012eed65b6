package server

// seed is a request the fuzzer starts from; nothing here changes the machine that runs it as a plain test.
type seed struct{ method, target, header, body string }

const (
	jsonType  = "Content-Type: application/json"
	frameType = "Content-Type: application/connect+json"
)

var seeds = []seed{
	{"GET", "/health", "Origin: http://page", ""},
	{"OPTIONS", "/files", "Origin: http://page\r\nAccess-Control-Request-Method: POST", ""},
	{"GET", "/envs", "", ""},
	{"DELETE", "*", "", ""},
	{"GET", "/metrics", "", ""},
	{"POST", "/init", jsonType, `{"envVars":{"A":"b"},"accessToken":"t","timestamp":"2026-01-01T00:00:00Z","defaultUser":"root","entropy":"AAAA"}`},
	{"POST", "/freeze", "", ""},
	{"POST", "/unfreeze", "", ""},
	{"GET", "/files?path=/nowhere&username=root&signature=v1_x&signature_expiration=1", "Range: bytes=1-2", ""},
	{"GET", "/files?path=~root/nowhere", "Accept-Encoding: gzip, identity;q=0", ""},
	{"POST", "/files?path=/nowhere/%00", "Content-Type: application/octet-stream\r\nX-Metadata-A: b", "content"},
	{"POST", "/files?path=/nowhere/%00", "Content-Type: application/octet-stream\r\nContent-Encoding: gzip", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"},
	{"POST", "/files", "Content-Type: multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"\\u0000\"\r\n\r\nx\r\n--b--\r\n"},
	{"POST", "/files/compose", jsonType, `{"source_paths":["/nowhere"],"destination":"/nowhere"}`},
	{"POST", "/filesystem.Filesystem/Stat", jsonType, `{"path":"/"}`},
	{"POST", "/filesystem.Filesystem/ListDir", jsonType, `{"path":"/proc/self/fdinfo","depth":2}`},
	{"POST", "/filesystem.Filesystem/MakeDir", jsonType, `{"path":"/"}`},
	{"POST", "/filesystem.Filesystem/Move", jsonType, `{"source":"/nowhere","destination":"/nowhere/else"}`},
	{"POST", "/filesystem.Filesystem/Remove", jsonType, `{"path":"/"}`},
	{"POST", "/filesystem.Filesystem/CreateWatcher", jsonType, `{"path":"/","includeEntry":true}`},
	{"POST", "/filesystem.Filesystem/GetWatcherEvents", jsonType, `{"watcherId":"w"}`},
	{"POST", "/filesystem.Filesystem/WatchDir", frameType, "\x00\x00\x00\x00\x0c{\"path\":\"/\"}"},
	{"POST", "/process.Process/List", jsonType, "{}"},
	{"POST", "/process.Process/Start", frameType + "\r\nConnect-Timeout-Ms: 10", "\x00\x00\x00\x00\x1e{\"process\":{\"cmd\":\"/nowhere\"}}"},
	{"POST", "/process.Process/Connect", frameType, "\x00\x00\x00\x00\x15{\"process\":{\"pid\":1}}"},
	{"POST", "/process.Process/StreamInput", frameType, "\x00\x00\x00\x00\x20{\"start\":{\"process\":{\"pid\":42}}}\x00\x00\x00\x00\x23{\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}"},
	{"POST", "/process.Process/SendInput", jsonType, `{"process":{"pid":42},"input":{"stdin":"YWJj"}}`},
	{"POST", "/process.Process/SendSignal", jsonType, `{"process":{"tag":"x"},"signal":"SIGNAL_SIGKILL"}`},
	{"POST", "/process.Process/CloseStdin", jsonType, `{"process":{"pid":42}}`},
	{"POST", "/process.Process/Update", jsonType, `{"process":{"pid":42},"pty":{"size":{"cols":90,"rows":30}}}`},
}

// jailedSeeds do change files.
var jailedSeeds = []seed{
	{"POST", "/files?path=new/file&username=user", "Content-Type: application/octet-stream\r\nX-Metadata-A: b", "content"},
	{"POST", "/files?path=/tmp/packed", "Content-Type: application/octet-stream\r\nContent-Encoding: gzip",
		"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\xaa\x02\x00\xa1\x1b\xd9\x24\x02\x00\x00\x00"},
	{"POST", "/files", "Content-Type: multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/a\"\r\n\r\nx\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"b/c\"\r\n\r\ny\r\n--b--\r\n"},
	{"GET", "/files?path=/etc/passwd", "", ""},
	{"GET", "/files?path=/etc/passwd", "Accept-Encoding: gzip", ""},
	{"GET", "/files?path=/etc/passwd", "Range: bytes=2-4, -3\r\nIf-Range: Thu, 01 Jan 1970 00:00:00 GMT", ""},
	{"GET", "/files?path=~user", "", ""},
	{"POST", "/files/compose", jsonType, `{"source_paths":["/tmp/a","/tmp/b"],"destination":"/tmp/c","username":"user"}`},
	{"POST", "/filesystem.Filesystem/ListDir", jsonType, `{"path":"/","depth":3}`},
	{"POST", "/filesystem.Filesystem/Stat", jsonType, `{"path":"~user/new/file"}`},
	{"POST", "/filesystem.Filesystem/MakeDir", jsonType + "\r\nAuthorization: Basic dXNlcjo=", `{"path":"a/b/c"}`},
	{"POST", "/filesystem.Filesystem/Move", jsonType, `{"source":"/home/user","destination":"/tmp/x/y"}`},
	{"POST", "/filesystem.Filesystem/Remove", jsonType, `{"path":"/tmp/x"}`},
	{"POST", "/filesystem.Filesystem/CreateWatcher", jsonType, `{"path":"/","recursive":true,"includeEntry":true}`},
	{"POST", "/filesystem.Filesystem/WatchDir", frameType + "\r\nKeepalive-Ping-Interval: 1", "\x00\x00\x00\x00\x1d{\"path\":\"/\",\"recursive\":true}"},
	{"POST", "/process.Process/Start", frameType, "\x00\x00\x00\x00\x2e{\"process\":{\"cmd\":\"/etc/passwd\",\"cwd\":\"/tmp\"}}"},
	{"POST", "/process.Process/Start", frameType, "\x00\x00\x00\x00\x43{\"process\":{\"cmd\":\"x\",\"envs\":{\"A\":\"b\"}},\"pty\":{\"size\":{\"cols\":80}}}"},
}
