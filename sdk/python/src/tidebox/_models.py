"""Values that the SDK returns. Records of the API, such as a sandbox's description, are `TypedDict`s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, AnyStr, Generic, Literal

from ._encode import parse_seconds

_ENDS = {
    "timed_out": "the code ran into its deadline; raise `timeout`",
    "interrupted": "the code was interrupted",
    "died": "the interpreter ended",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a command."""

    exit_code: int
    timed_out: bool = False
    oom_killed: bool = False
    pids_exhausted: bool = False
    stream: Literal["exit"] = "exit"

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Exit:
        """Reads the end of a stream."""
        return cls(
            exit_code=int(fields["exit_code"]),
            timed_out=bool(fields.get("timed_out", False)),
            oom_killed=bool(fields.get("oom_killed", False)),
            pids_exhausted=bool(fields.get("pids_exhausted", False)),
        )


@dataclass(frozen=True, slots=True)
class Output(Generic[AnyStr]):
    """Piece of output."""

    stream: Literal["stdout", "stderr"]
    data: AnyStr


@dataclass(frozen=True, slots=True)
class Gap:
    """Output that is no longer kept: `missing` bytes."""

    missing: int
    stream: Literal["gap"] = "gap"


@dataclass(frozen=True, slots=True)
class Result(Generic[AnyStr]):
    """Outcome of a command. A non-zero exit code is a result; `check()` raises for it."""

    stdout: AnyStr
    stderr: AnyStr
    exit_code: int
    duration: float
    """Seconds from the request to the end."""
    timed_out: bool = False
    oom_killed: bool = False
    pids_exhausted: bool = False
    truncated: bool = False
    """True if output beyond `max_output_bytes` was dropped."""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> Result[AnyStr]:
        """Returns this result, or raises `CommandFailed` if the exit code is not 0."""
        if self.exit_code != 0:
            from ._errors import CommandFailed

            raise CommandFailed(self)
        return self


_NAMES = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
    "chart": "application/vnd.tidebox.chart+json",
    "frame": "application/vnd.tidebox.frame+json",
}


@dataclass(frozen=True, slots=True)
class CodeResult:
    """Value of the last expression of code (`main`), or something that it displayed.

    `data` has the representations by MIME type: text as it is, binary data in base64, JSON as a value.
    """

    data: dict[str, Any]
    main: bool = False

    def _text(self, name: str) -> str | None:
        value = self.data.get(_NAMES[name])
        return value if value is None or isinstance(value, str) else str(value)

    @property
    def text(self) -> str | None:
        """Plain text."""
        return self._text("text")

    @property
    def html(self) -> str | None:
        """HTML."""
        return self._text("html")

    @property
    def markdown(self) -> str | None:
        """Markdown."""
        return self._text("markdown")

    @property
    def svg(self) -> str | None:
        """SVG image."""
        return self._text("svg")

    @property
    def png(self) -> str | None:
        """PNG image in base64."""
        return self._text("png")

    @property
    def jpeg(self) -> str | None:
        """JPEG image in base64."""
        return self._text("jpeg")

    @property
    def pdf(self) -> str | None:
        """PDF document in base64."""
        return self._text("pdf")

    @property
    def latex(self) -> str | None:
        """LaTeX."""
        return self._text("latex")

    @property
    def json(self) -> Any:
        """JSON value."""
        return self.data.get(_NAMES["json"])

    @property
    def javascript(self) -> str | None:
        """JavaScript."""
        return self._text("javascript")

    @property
    def chart(self) -> Any:
        """Data of a figure."""
        return self.data.get(_NAMES["chart"])

    @property
    def frame(self) -> Any:
        """Columns of a table."""
        return self.data.get(_NAMES["frame"])

    def formats(self) -> list[str]:
        """Returns the MIME types of the representations."""
        return list(self.data)


@dataclass(frozen=True, slots=True)
class CodeError:
    """Error that code raised."""

    name: str
    value: str
    traceback: str


@dataclass(slots=True)
class Execution:
    """Outcome of code. An error of the code is a part of it; `check()` raises for it."""

    results: list[CodeResult] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    error: CodeError | None = None
    outcome: str = ""
    """`ok`, `error`, `interrupted`, `timed_out` or `died`."""
    execution_count: int | None = None
    context_id: str | None = None
    duration: float = 0.0
    """Seconds that the code ran."""
    restarted: bool = False
    """True if the interpreter was replaced."""
    state_lost: bool = False
    """True if another interpreter was started before this run."""
    dropped: int = 0
    """Results that the server left out for lack of memory."""
    truncated: bool = False
    """True if output beyond `max_output_bytes` was dropped."""

    @property
    def text(self) -> str | None:
        """Text of the last expression's value."""
        return next((result.text for result in reversed(self.results) if result.main), None)

    @property
    def ok(self) -> bool:
        """True if the code came to its end without an error."""
        return self.outcome == "ok"

    def __str__(self) -> str:
        """Returns what the code showed, as a person or a model reads it; `[image]` for an image."""
        shown = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        shown += ["[image]" if result.png or result.jpeg else result.text or "" for result in self.results]
        if self.error is not None:
            shown.append(self.error.traceback or f"{self.error.name}: {self.error.value}")
        elif not self.ok:
            shown.append(_ENDS.get(self.outcome, self.outcome))
        return "\n".join(part for part in shown if part)

    def check(self) -> Execution:
        """Returns this execution, or raises `CodeFailed` if the outcome is not `ok`."""
        if not self.ok:
            from ._errors import CodeFailed

            raise CodeFailed(self)
        return self

    def add(self, line: Mapping[str, Any]) -> Any:
        """Adds a line of the run, and returns what a callback gets for it."""
        kind = line.get("type")
        if kind == "started":
            self.context_id = line.get("context_id")
            self.execution_count = line.get("execution_count")
            self.state_lost = bool(line.get("state_lost", False))
        elif kind == "result":
            self.results.append(CodeResult(dict(line.get("data", {})), bool(line.get("main", False))))
            return self.results[-1]
        elif kind == "error":
            self.error = CodeError(line.get("name", ""), line.get("value", ""), line.get("traceback", ""))
            return self.error
        elif kind == "dropped":
            self.dropped += 1
        elif kind == "end":
            self.outcome = line.get("outcome", "")
            self.duration = parse_seconds(line.get("duration"))
            self.restarted = bool(line.get("restarted", False))
        return line.get("text")


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a synchronization changed."""

    sent: int
    """Files and links that were sent."""
    removed: int
    """Entries that were removed."""
    unchanged: int
    """Files and links that were the same already."""
    failures: tuple[str, ...] = ()
    """Paths of the sandbox that could not be changed, each with the reason; at most 100 for one request."""
