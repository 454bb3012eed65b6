"""`aenv build` from a Dockerfile, with an image of a real registry, to a sandbox that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.images.builder import image
from tests.images.registries import running_registry
from tests.sdk.test_cli import Cli
from tests.sdk.test_pull import busybox
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(400)]

DOCKERFILE = """\
ARG IMAGE
FROM ${IMAGE} AS first
ARG VERSION=1
ENV GREETING="hello $VERSION" PLAIN='$HOME'
WORKDIR /srv/app
COPY --chmod=755 . .
COPY <<EOF note
of $VERSION
EOF
RUN pwd > where && id -u > who && echo "$0" > shell
SHELL ["/bin/sh", "-ec"]
RUN <<EOF
echo "$GREETING" > greeting
echo '$PLAIN' "$PLAIN" > plain
EOF
RUN ["/bin/sh", "-c", "echo exec > form"]
LABEL a=b
CMD cat greeting > started; exec sleep 1000
FROM first
"""


@pytest.mark.long
def test_from_a_dockerfile_to_a_sandbox(server: Server, tmp_path: Path) -> None:
    cli = Cli(server)
    folder = tmp_path / "context"
    folder.mkdir()
    for name, text in {"run.sh": "x", "left.log": "y", ".dockerignore": "*.log\nDockerfile\n.d*\n"}.items():
        (folder / name).write_text(text)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    arguments = ["--name", "built:v1", "--build-arg", "VERSION=2", "--memory", "256"]
    ready = ["--ready-cmd", "[ -s /srv/app/started ]"]
    (tmp_path / "registry").mkdir()
    with running_registry(tmp_path / "registry") as registry:
        name = registry.push("shell", image([busybox()], config={"Env": ["PATH=/bin"]}))
        arguments += ["--build-arg", f"IMAGE={name}"]
        assert cli("build", folder, *arguments, *ready) == "built:v1\n"
        (folder / "Dockerfile").write_text(DOCKERFILE + "RUN exit 3\n")
        failed = cli("build", folder, *arguments, *ready, code=1)
        assert "exit code 3" in failed.splitlines()[-1]
        assert "CACHED" in failed
    sandbox = cli("start", "built:v1", "--detach").strip()
    try:
        files = "where who greeting plain form note started run.sh"
        shown = cli("exec", sandbox, "sh", "-c", f"cd /srv/app; cat {files}; ls -l run.sh; ls; id -u")
        assert shown.startswith("/srv/app\n0\nhello 2\n$PLAIN $HOME\nexec\nof 2\nhello 2\nx")
        assert "-rwxr-xr-x" in shown
        assert "left.log" not in shown
        assert shown.endswith("\n0\n")
    finally:
        cli("rm", sandbox)
        cli("template", "rm", "built")
