"""What a profiler found of one case: its schema, and its file RUN/profiles/KEY.json.

Times are those of a profiler that lets kernels run as they do (Nsight Systems or PyTorch's Kineto). What Nsight Compute
counted, which replays each kernel alone, is under `counters`, as means of one launch.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from harness.case import Case, CaseError
from harness.files import refusing, write_atomically
from harness.profile_region import ProfileError, Region
from harness.record import STATUSES

SCHEMA_VERSION = 1
TOOL = "ttt-bench profile"
_SIZE_LIMIT = 16 << 20  # bytes of a file


@dataclass(frozen=True)
class Profile(Region):
    """What a profiler found of a case.

    status, reason: as in a record; all but "ok" have a reason and no kernels. tools: name -> version. commands: without
    folders. notes: sentences on what is missing. environment: device, device_kind, gpu, software, commit, dirty, as
    in a record. stages_s: how long it took, by "build" (the model, for each profiler), "times" and "ratios", the start
    of workers included.
    """

    case: Annotated[
        Case,
        PlainValidator(lambda value: value if isinstance(value, Case) else Case.from_dict(value)),
        PlainSerializer(lambda case: case.to_dict()),
    ] = field(kw_only=True)
    status: str = "ok"
    reason: str = ""
    tools: dict[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    stages_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}, must be one of {', '.join(STATUSES)}")
        if self.status != "ok" and (self.kernels or not self.reason):
            raise ValueError(f"status {self.status!r} {'with kernels' if self.kernels else 'without a reason'}")
        if self.status == "ok" and not self.kernels:
            raise ValueError("no kernels: a profile that found nothing is a failed one")

    @classmethod
    def from_values(cls, values: Mapping[str, Any], where: str = "profile") -> "Profile":
        """The profile in JSON values or dataclasses; ProfileError says where they came from and what is wrong."""
        try:
            return _ADAPTER.validate_json(json.dumps(values, allow_nan=False, default=asdict))
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(map(str, first["loc"]))
            what = first["msg"].removeprefix("Value error, ")
            raise ProfileError(f"{where}: {at + ': ' if at else ''}{what}") from None
        except (CaseError, TypeError, ValueError, RecursionError) as error:
            raise ProfileError(f"{where}: {error}") from None

    def to_json(self) -> str:
        """One line of JSON, the tool and the schema first."""
        values = {"tool": TOOL, "schema": SCHEMA_VERSION, **_ADAPTER.dump_python(self, mode="json")}
        return json.dumps(values, separators=(",", ":"), allow_nan=False)


def profile_path(folder: Path, key: str) -> Path:
    """Where the profile of a case lies in the folder of a run."""
    return folder / "profiles" / f"{key}.json"


def write_profile(folder: Path, profile: Profile) -> None:
    """Put a profile into the folder of a run, in the place of an earlier one of its case. Raises ProfileError."""
    path = profile_path(folder, profile.case.key)
    with refusing(path, "written", ProfileError):
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, profile.to_json() + "\n")


def read_profile(path: Path) -> Profile:
    """The profile in a file; ProfileError where it is none."""
    with refusing(path, "read", ProfileError):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SIZE_LIMIT:
            raise ProfileError(f"{path}: is no profile: it is too large or no regular file")
        data = path.read_bytes()
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ProfileError(f"{path}: is not JSON, so it is damaged or no profile; delete it, profile again") from None
    if not isinstance(values, Mapping) or values.get("tool") != TOOL:
        raise ProfileError(f"{path}: is no profile: it does not say that {TOOL!r} made it")
    if values.get("schema") != SCHEMA_VERSION:
        raise ProfileError(
            f"{path}: has schema {str(values.get('schema'))[:20]}, this program reads schema {SCHEMA_VERSION}"
        )
    rest = {name: value for name, value in values.items() if name not in ("tool", "schema")}
    profile = Profile.from_values(rest, str(path))
    if path.stem != profile.case.key:
        raise ProfileError(f"{path}: is of another case: {profile.case.label}")
    return profile


_ADAPTER: TypeAdapter[Profile] = TypeAdapter(Profile)
