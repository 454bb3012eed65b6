"""Settings of the server: environment variables `AENV_*`, with defaults that suit one machine.

The command line's options set the same names, so there is one list of settings.
"""

from __future__ import annotations

import hashlib
import re
from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from aenv.images.reference import DOCKER_HUB, checked_registry

HTTPS_PORT = 443
DEFAULT_TLS_PORT = 8443

_DOMAIN = re.compile(
    r"(?=[^:]{3,180}(:|$))([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9-]{1,63}(:[0-9]{1,5})?"
)
"""At least two labels, since TLS knows no wildcard right below the root; room for a sandbox's own label."""


def checked_domain(given: str) -> str:
    """The domain in lower case, with its port if it has one. Raises ValueError."""
    domain = given.lower().removesuffix(".")
    port = domain.partition(":")[2]
    if _DOMAIN.fullmatch(domain) is None or not 1 <= int(port or HTTPS_PORT) <= 65535:
        raise ValueError(
            "it must be a domain with a dot in it, such as sb.test, perhaps with a port behind it"
        )
    return domain


def listed(given: str) -> tuple[str, ...]:
    """What stands between the commas."""
    return tuple(item.strip() for item in given.split(",") if item.strip())


class Settings(BaseSettings):
    """Everything that can be set, each with its unit in the name or the description."""

    model_config = SettingsConfigDict(env_prefix="AENV_", frozen=True, extra="ignore")

    home: Path = Field(Path("/var/lib/aenv"), description="Folder of all state; made if missing")
    host: str = Field("127.0.0.1", description="Address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    domain: str | None = Field(
        None, description="Serve `api.DOMAIN` and `PORT-ID.DOMAIN` over TLS too; may end in `:port`"
    )
    tls_port: int | None = Field(
        None, ge=1, le=65535, description="Port to listen on for TLS; the domain's own if unset, else 8443"
    )
    tls_cert: Path | None = Field(
        None, description="Certificate chain for DOMAIN and `*.DOMAIN`, PEM; else the local authority's"
    )
    tls_key: Path | None = Field(None, description="Key of tls_cert, PEM, if it is not in the same file")

    runtime: Literal["auto", "qemu", "fake"] = Field("auto", description="Virtual machine monitor")
    accel: Literal["auto", "kvm", "tcg"] = Field("auto", description="QEMU accelerator")

    cpu_count: int = Field(2, ge=1, le=32, description="vCPUs of the base template")
    memory_mib: int = Field(512, ge=128, le=65536, description="Memory of the base template, MiB")
    disk_mib: int = Field(10240, ge=1024, description="Disk of the base template, MiB, sparse")

    hot_vms: int = Field(
        8, ge=0, le=64, description="Most restored, answering, stopped VMs kept per template; 0 keeps none"
    )
    bare_vms: int = Field(
        8, ge=0, le=64, description="Most spare VMM processes kept per memory base, for resumes and forks"
    )
    stopped_vms: int = Field(64, ge=0, le=1000, description="Most paused sandboxes whose VMM stays in memory")
    spare_memory_mib: int | None = Field(
        None, ge=0, description="Most memory of all these together, MiB; a quarter of the host's if unset"
    )
    reserved_memory_mib: int | None = Field(
        None, ge=0, description="Memory that starts leave free, MiB; a twentieth of the host's if unset"
    )
    prepared_slots: int = Field(
        16, ge=0, le=4000, description="Network slots prepared ahead, a third of a MiB each"
    )
    concurrent_starts: int = Field(4, ge=1, le=64, description="VM starts at once")
    max_queued_starts: int = Field(
        64, ge=1, le=10000, description="VM starts that may wait for their turn; more are refused with 503"
    )
    reserve_mib: int = Field(
        256, ge=0, description="Disk space kept free for pauses when the disk is full, MiB; 0 keeps none"
    )
    concurrent_builds: int = Field(2, ge=1, le=64, description="Templates built at once; more wait")
    max_build_time: float = Field(
        3600.0, gt=0, description="Seconds that the build of a template may take, without its wait for a turn"
    )
    max_upload_mib: int = Field(
        4096, ge=1, description="Largest archive that a client may upload for a template's COPY, MiB"
    )
    uploads_mib: int = Field(
        8192, ge=0, description="Most disk space of uploaded archives, MiB; the coldest go"
    )
    cached_disks_mib: int = Field(
        20480, ge=0, description="Most disk space of cached image layers and build steps, MiB; the coldest go"
    )
    max_start_wait: float = Field(
        30.0, gt=0, le=3600, description="Seconds that a start may wait for its turn before it is refused"
    )
    cpu_overcommit: float = Field(
        200.0, ge=0, description="vCPUs of all running sandboxes per CPU; more get 429. 0 is no limit"
    )
    memory_overcommit: float = Field(
        8.0,
        ge=0,
        description="Memory of all running guests per memory of the host; more get 429. 0 is no limit",
    )
    max_fork: int = Field(16, ge=1, le=100, description="Most children of one fork")

    default_timeout: int = Field(300, ge=1, description="Seconds to a sandbox's deadline, new API")
    default_timeout_v1: int = Field(15, ge=1, description="Seconds to a sandbox's deadline, old API")
    max_timeout: int = Field(
        30 * 24 * 3600, ge=1, description="Longest timeout that can be asked for, seconds"
    )
    auto_pause: bool = Field(True, description="Pause at the deadline when a create doesn't say")

    max_upload_idle: float = Field(
        120.0,
        ge=0,
        description="Seconds that a sandbox waits for more of a request's body, then 408; 0 is no bound",
    )

    metrics_interval: float = Field(
        10.0, ge=0, description="Seconds between samples of each sandbox's metrics and logs; 0 takes none"
    )

    image_registries: str = Field(
        DOCKER_HUB,
        description="Registries where images without a host in their name are looked for, in order: `a,b`",
    )
    insecure_registries: str = Field(
        "", description="Registries that may be without TLS, beside those on this machine: `host,host:port`"
    )
    image_cache_mib: int = Field(
        20480, ge=0, description="Most disk space for layers of images as they were pulled, MiB"
    )

    log_format: Literal["text", "json"] = Field(
        "text", description="What the server logs: `text` for people, or one `json` object a line"
    )

    slot_network: IPv4Network = Field(
        IPv4Network("10.11.0.0/16"), description="Addresses at which the host reaches guests"
    )
    veth_network: IPv4Network = Field(
        IPv4Network("10.12.0.0/16"), description="Addresses of the links into namespaces"
    )
    dns: str | None = Field(None, description="Name server of guests; the host's first one if unset")

    @field_validator("domain")
    @classmethod
    def _check_domain(cls, given: str | None) -> str | None:
        return None if given is None else checked_domain(given)

    @field_validator("tls_port", "tls_cert", "tls_key")
    @classmethod
    def _check_tls(cls, given: object, info: ValidationInfo) -> object:
        needed = "tls_cert" if info.field_name == "tls_key" else "domain"
        if given is not None and info.data.get(needed) is None:
            raise ValueError(f"it needs {needed} beside it")
        return given

    @field_validator("image_registries", "insecure_registries")
    @classmethod
    def _check_registries(cls, given: str) -> str:
        for name in listed(given):
            checked_registry(name)
        return given

    @property
    def listen_tls_port(self) -> int:
        """The port to listen on for TLS, if there is a domain."""
        port = (self.domain or "").partition(":")[2]
        return self.tls_port or int(port or DEFAULT_TLS_PORT)

    @property
    def public_domain(self) -> str | None:
        """The domain as clients need it: with the port, unless that is HTTPS's own."""
        if self.domain is None or ":" in self.domain or self.listen_tls_port == HTTPS_PORT:
            return self.domain
        return f"{self.domain}:{self.listen_tls_port}"

    @property
    def tls_dir(self) -> Path:
        """The local certificate authority and what it issued."""
        return self.home / "tls"

    @property
    def tag(self) -> str:
        """Six hex digits that tell this server's namespaces and links from another's on the host."""
        return hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:6]

    @property
    def bundle_dir(self) -> Path:
        """The guest kernel and initramfs."""
        return self.home / "bundle"

    @property
    def images_dir(self) -> Path:
        """Root file systems, immutable."""
        return self.home / "images"

    @property
    def blobs_dir(self) -> Path:
        """Manifests and layers of images, as they were pulled."""
        return self.home / "blobs"

    @property
    def workspace_dir(self) -> Path:
        """What live VMs are writing now: one folder per instance."""
        return self.home / "workspace"

    @property
    def captures_dir(self) -> Path:
        """Layers of paused sandboxes, snapshots and templates: one folder per capture."""
        return self.home / "captures"

    @property
    def uploads_dir(self) -> Path:
        """Archives that clients have uploaded for template builds."""
        return self.home / "uploads"

    @property
    def build_logs_dir(self) -> Path:
        """Logs of template builds: one file each."""
        return self.home / "build-logs"

    @property
    def logs_dir(self) -> Path:
        """Logs of sandboxes: one file each."""
        return self.home / "logs"

    @property
    def database(self) -> Path:
        """The SQLite file of all records."""
        return self.home / "aenv.db"

    @property
    def api_key_file(self) -> Path:
        """The deployment's API key, readable only by its owner."""
        return self.home / "secrets" / "api-key"
