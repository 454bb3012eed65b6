package connect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// MaxMessageSize bounds one message, in bytes of JSON. It protects a guest of a few hundred MiB from one request.
const MaxMessageSize = 64 << 20

// Flags of a frame, its first byte (https://connectrpc.com/docs/protocol#streaming-rpcs).
const (
	flagCompressed = 0x01
	flagEnd        = 0x02
	headerSize     = 5
)

// readFrame reads the next message of a request stream. It returns io.EOF where a stream may end.
// A length that lies never allocates more than the bytes that really came.
func readFrame(r io.Reader, limit int64) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, Errorf(InvalidArgument, "the request ends inside the header of a message")
		}
		return nil, readError(err)
	}
	if header[0]&flagCompressed != 0 {
		return nil, Errorf(InvalidArgument, "the message is compressed, but no compression was agreed on")
	}
	if header[0] != 0 {
		return nil, Errorf(InvalidArgument, "unexpected message flags %#02x", header[0])
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	if size > limit {
		return nil, tooLarge(limit)
	}
	var body bytes.Buffer
	n, err := io.CopyN(&body, r, size)
	if n < size && errors.Is(err, io.EOF) {
		return nil, Errorf(InvalidArgument, "the request ends inside a message: %d of %d bytes", n, size)
	}
	return body.Bytes(), readError(err)
}

// readError keeps io.EOF and nil, and words what else can go wrong while a request's body is read.
func readError(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return Errorf(Canceled, "reading the request: %s", err.Error())
}

func tooLarge(limit int64) *Error {
	return Errorf(ResourceExhausted, "the message is larger than %d bytes", limit)
}

// appendFrame appends a whole frame (header and message) to dst.
func appendFrame(dst []byte, flags byte, msg any) ([]byte, error) {
	start := len(dst)
	dst, err := appendMessage(append(dst, flags, 0, 0, 0, 0), msg)
	if err != nil {
		return dst[:start], err
	}
	binary.BigEndian.PutUint32(dst[start+1:], uint32(len(dst)-start-headerSize))
	return dst, nil
}
