package connect

import (
	"context"
	"errors"
	"fmt"
)

// Code is the name of a Connect error code, as it is written on the wire.
type Code string

// The codes of the Connect protocol (https://connectrpc.com/docs/protocol#error-codes).
const (
	Canceled           Code = "canceled"
	Unknown            Code = "unknown"
	InvalidArgument    Code = "invalid_argument"
	DeadlineExceeded   Code = "deadline_exceeded"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	PermissionDenied   Code = "permission_denied"
	ResourceExhausted  Code = "resource_exhausted"
	FailedPrecondition Code = "failed_precondition"
	Aborted            Code = "aborted"
	OutOfRange         Code = "out_of_range"
	Unimplemented      Code = "unimplemented"
	Internal           Code = "internal"
	Unavailable        Code = "unavailable"
	DataLoss           Code = "data_loss"
	Unauthenticated    Code = "unauthenticated"
)

// HTTPStatus returns the status a unary call answers with for this code.
func (c Code) HTTPStatus() int {
	switch c {
	case Canceled:
		return 499
	case InvalidArgument, FailedPrecondition, OutOfRange:
		return 400
	case DeadlineExceeded:
		return 504
	case NotFound:
		return 404
	case AlreadyExists, Aborted:
		return 409
	case PermissionDenied:
		return 403
	case ResourceExhausted:
		return 429
	case Unimplemented:
		return 501
	case Unavailable:
		return 503
	case Unauthenticated:
		return 401
	}
	return 500
}

// Error is what a handler returns to choose the code its client sees.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, a ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, a...)}
}

// asError turns any error of a handler into the one that goes on the wire.
func asError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(DeadlineExceeded, "the call took longer than its Connect-Timeout-Ms")
	case errors.Is(err, context.Canceled):
		return Errorf(Canceled, "the call was cancelled")
	}
	return Errorf(Internal, "%s", err.Error())
}
