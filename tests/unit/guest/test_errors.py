"""Errors that a guest reports keep their kind, whatever form they come in."""

from __future__ import annotations

import pytest

from aenv.errors import AenvError, Retry
from aenv.guest.errors import Code, GuestError, error_of_fields, error_of_response


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (404, b'{"code":"not_found","message":"no such process"}', Code.NOT_FOUND, "no such process"),
        (400, b'{"code":400,"message":"path is a directory"}', Code.INVALID_ARGUMENT, "path is a directory"),
        (507, b'{"code":507,"message":"disk full"}', Code.RESOURCE_EXHAUSTED, "disk full"),
        (
            502,
            b'{"sandboxId":"i1","message":"The sandbox was not found","code":502}',
            Code.UNAVAILABLE,
            "The sandbox was not found",
        ),
        (401, b'{"code":401,"message":"unauthorized"}', Code.UNAUTHENTICATED, "unauthorized"),
        (500, b"<html>oh no", Code.INTERNAL, "the guest answered with HTTP status 500: <html>oh no"),
        (418, b"", Code.UNKNOWN, "the guest answered with HTTP status 418: no text"),
        (404, b'{"code":"nonsense"}', Code.NOT_FOUND, "not_found"),
        (404, b"[1]", Code.NOT_FOUND, "envd reported an error without details"),
    ],
)
def test_answers_that_are_errors(status: int, body: bytes, code: Code, message: str) -> None:
    error = error_of_response(status, body)
    assert (error.code, error.message) == (code, message)


def test_statuses_of_codes_are_connects() -> None:
    assert {code: code.http_status for code in (Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.UNKNOWN)} == {
        Code.NOT_FOUND: 404,
        Code.ALREADY_EXISTS: 409,
        Code.UNKNOWN: 500,
    }


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        (Code.NOT_FOUND, Retry.PERMANENT),
        (Code.UNAVAILABLE, Retry.TRANSIENT),
        (Code.INTERNAL, Retry.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, Retry.UNKNOWN),
    ],
)
def test_errors_say_whether_a_retry_is_safe(code: Code, retry: Retry) -> None:
    error = GuestError(code, "so it is")
    assert isinstance(error, AenvError)
    assert error.retry is retry


def test_an_error_without_fields_is_still_an_error() -> None:
    assert error_of_fields(None).code is Code.UNKNOWN
