"""Path parameters. Routes are matched on the raw path, so a segment arrives with its percent signs."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from pydantic import AfterValidator

SandboxId = Annotated[str, Path(), AfterValidator(unquote)]
TemplateName = Annotated[str, Path(), AfterValidator(unquote)]
TagName = Annotated[str, Path(), AfterValidator(unquote)]
