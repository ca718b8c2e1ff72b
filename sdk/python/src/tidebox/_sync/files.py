# Generated from _async by generate.py. Do not edit.
"""Files of a sandbox."""

from __future__ import annotations

import os
import tempfile
from builtins import list as list_
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload
from urllib.parse import unquote_to_bytes

from .._decode import LINES, LineSplitter, parse_object
from .._encode import body, encode, file_path, file_segments, mode, query, seconds
from .._errors import NotFoundError, StreamInterrupted
from .._models import SyncResult
from .._tar import TAR, Entry, check_directory, pack, parts, unpack, walk
from . import _io
from .connection import Body, Connection
from .streams import EventStream

if TYPE_CHECKING:
    from .. import _wire as wire

RAW = "application/octet-stream"
# Paths in one request of `amend`, and their bytes.
_PATHS_MAX, _PATHS_BYTES_MAX = 4096, 256 * 1024


class Files:
    """Files of a sandbox. Paths are absolute; a byte that is not UTF-8 is written as `\\xe9`."""

    def __init__(self, connection: Connection, sandbox: str) -> None:
        self._connection = connection
        self._path = sandbox + "/files"

    @overload
    def read(self, path: str, format: Literal["text"] = "text", *, encoding: str = "utf-8") -> str: ...

    @overload
    def read(self, path: str, format: Literal["bytes"]) -> bytes: ...

    @overload
    def read(self, path: str, format: Literal["stream"]) -> FileStream: ...

    def read(
        self, path: str, format: Literal["text", "bytes", "stream"] = "text", *, encoding: str = "utf-8"
    ) -> str | bytes | FileStream:
        """Reads a file as text, as bytes, or as a stream with flat memory that must be read or closed."""
        url = self._path + query({"path": file_path(path)})
        stream = FileStream(self._connection.open("GET", url, media=(RAW,)))
        if format == "stream":
            return stream
        data = bytearray()
        with stream:
            for piece in stream:
                data += piece
        return bytes(data) if format == "bytes" else data.decode(encoding, "replace")

    def write(self, path: str, data: _io.Data, *, mode: int | str | None = None) -> None:
        """Writes a file: text, bytes, an open file, or an iterator of bytes, which is streamed.

        Missing parents are made, and the file appears whole or not at all. `mode` is its permission bits,
        such as `0o755` or `"755"`.
        """
        url = f"{self._path}/{file_segments(path)}{query({'mode': _mode(mode)})}"
        content: Any = data
        if isinstance(data, str):
            content = data.encode("utf-8", "surrogateescape")
        elif isinstance(data, (bytearray, memoryview)):
            content = bytes(data)
        headers = {"content-type": RAW}
        size = _size(content)
        if size is not None:
            headers["content-length"] = str(size)
        self._connection.json("PUT", url, content=content, headers=headers)

    def list(self, path: str = "/workspace") -> list_[wire.FileInfo]:
        """Returns the entries of a directory by name. Links are not followed."""
        url = f"{self._path}/list{query({'path': file_path(path)})}"
        return cast("list_[wire.FileInfo]", self._connection.json("GET", url))

    def stat(self, path: str) -> wire.FileInfo:
        """Returns the description of a file, directory or link. A link is not followed."""
        url = f"{self._path}/stat{query({'path': file_path(path)})}"
        return cast("wire.FileInfo", self._connection.json("GET", url))

    def exists(self, path: str) -> bool:
        """Returns whether something is at a path."""
        try:
            self.stat(path)
        except NotFoundError:
            # The sandbox itself may be what is not found.
            self._connection.json("GET", self._path.removesuffix("/files"))
            return False
        return True

    def make_dir(self, path: str) -> None:
        """Makes a directory, and missing parents. One that exists stays as it is."""
        url = f"{self._path}/archive{query({'path': file_path(path)})}"
        self._connection.json("POST", url, content=bytes(1024), headers={"content-type": TAR})

    def move(self, old_path: str, new_path: str) -> None:
        """Moves a file or directory. A file at the new path is replaced."""
        fields = {"old_path": file_path(old_path), "new_path": file_path(new_path)}
        self._connection.json("POST", self._path + "/move", fields)

    rename = move

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, link or directory; a directory with entries only with `recursive`."""
        self._connection.json(
            "DELETE", self._path + query({"path": file_path(path), "recursive": recursive})
        )

    def chmod(self, path: str, mode: int | str) -> None:
        """Sets the permission bits of a file, such as `0o755` or `"755"`."""
        fields = {"path": file_path(path), "mode": _mode(mode)}
        self._connection.json("POST", self._path + "/chmod", fields)

    def glob(self, pattern: str) -> list_[str]:
        """Returns the paths that match a pattern with `*`, `?`, `[...]`, `{a,b}` and `**`."""
        url = f"{self._path}/glob{query({'pattern': file_path(pattern)})}"
        return cast("list_[str]", self._connection.json("GET", url))

    def search(
        self,
        pattern: str,
        path: str | None = None,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        whole_words: bool = False,
        hidden: bool = False,
        gitignore: bool = False,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        context: int | None = None,
        max_matches: int | None = None,
        timeout: float | None = None,
    ) -> wire.SearchResult:
        """Searches in the content of files by a regular expression in Rust's syntax."""
        fields = body(
            pattern=pattern,
            path=path,
            literal=literal,
            ignore_case=ignore_case,
            whole_words=whole_words,
            hidden=hidden,
            gitignore=gitignore,
            include=_texts(include),
            exclude=_texts(exclude),
            context=context,
            max_matches=max_matches,
            timeout=seconds("timeout", timeout),
        )
        longest = (timeout or 30) + self._connection.config.timeout
        answer = self._connection.json("POST", self._path + "/search", fields, timeout=longest)
        return cast("wire.SearchResult", answer)

    def replace(
        self,
        pattern: str,
        replacement: str,
        path: str | None = None,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        whole_words: bool = False,
        hidden: bool = False,
        gitignore: bool = False,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        dry_run: bool = False,
        max_files: int | None = None,
        timeout: float | None = None,
    ) -> wire.ReplaceResult:
        """Replaces in the content of files; `$1` and `${name}` insert groups. `dry_run` only counts."""
        fields = body(
            pattern=pattern,
            replacement=replacement,
            path=path,
            literal=literal,
            ignore_case=ignore_case,
            whole_words=whole_words,
            hidden=hidden,
            gitignore=gitignore,
            include=_texts(include),
            exclude=_texts(exclude),
            dry_run=dry_run,
            max_files=max_files,
            timeout=seconds("timeout", timeout),
        )
        longest = (timeout or 30) + self._connection.config.timeout
        answer = self._connection.json("POST", self._path + "/replace", fields, timeout=longest)
        return cast("wire.ReplaceResult", answer)

    def watch(self, path: str, *, recursive: bool = False) -> EventStream:
        """Returns the stream of changes of a file or of a directory's entries.

        Enter it (`with`) before the changes that it should report.
        """
        url = f"{self._path}/watch{query({'path': file_path(path), 'recursive': recursive})}"
        return EventStream(self._connection, url, resume=False)

    def upload(self, local: str | os.PathLike[str], remote: str) -> None:
        """Copies a local file, or the content of a local directory, to a path of the sandbox."""
        source = os.fspath(local)
        if _io.in_thread(os.path.isdir, source):
            entries = _io.in_thread(walk, source)
            self._unpack(remote, source, entries)
            return
        permissions = (_io.in_thread(os.stat, source)).st_mode & 0o777
        with open(source, "rb") as file:
            self.write(remote, file, mode=permissions)

    def download(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copies a file, or the content of a directory, to a local path.

        The sandbox is not trusted: nothing is written outside of `local`, and no link is followed.
        """
        target = os.fspath(local)
        if (self.stat(remote))["is_dir"]:
            url = f"{self._path}/archive{query({'path': file_path(remote)})}"
            stream = FileStream(self._connection.open("GET", url, media=(TAR,)))
            with tempfile.TemporaryFile() as archive:
                with stream:
                    for piece in stream:
                        _io.in_thread(archive.write, piece)
                archive.seek(0)
                _io.in_thread(unpack, archive, target)
            return
        stream = self.read(remote, "stream")
        partial = f"{target}.partial-{os.getpid()}"
        try:
            with open(partial, "wb") as file:
                with stream:
                    for piece in stream:
                        _io.in_thread(file.write, piece)
            os.replace(partial, target)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    def sync(
        self, local: str | os.PathLike[str], remote: str, *, delete: bool = False, checksum: bool = False
    ) -> SyncResult:
        """Makes a directory of the sandbox like a local one, and sends only the differences.

        Files with the same size and time count as equal, unless `checksum` compares their content. `delete`
        removes what the local directory does not have.
        """
        root = check_directory(local)
        entries = _io.in_thread(walk, root)
        there = self._manifest(remote, checksum)
        changed, attributes = [], []
        in_the_way: set[bytes] = set()
        failures: list_[str] = []
        unchanged = 0
        for entry in entries:
            found = there.pop(entry.path, None)
            if found is None or not _io.in_thread(_is_same, root, entry, found, checksum):
                changed.append(entry)
                if found is not None and (found.get("type") == "directory") != (entry.kind == "directory"):
                    in_the_way.add(entry.path)
            elif entry.kind == "symlink":
                unchanged += 1
            else:
                unchanged += entry.kind == "file"
                if int(found.get("mode") or "0", 8) != entry.mode or (
                    entry.kind == "file" and _time(found.get("mtime")) != entry.mtime_ns
                ):
                    attributes.append(
                        {"path": _url(entry.path), "mode": f"{entry.mode:o}", "mtime": entry.mtime}
                    )
        sent = sum(entry.kind != "directory" for entry in changed)
        removed = 0
        if delete:
            # A directory in the place of a file, or the reverse, must be removed before the archive is
            # unpacked. The rest goes last, so that nothing is lost if a local file cannot be read.
            first = in_the_way | {
                path for path in there if any(path.startswith(p + b"/") for p in in_the_way)
            }
            removed += self._amend(remote, first, [], failures)
            there = {path: entry for path, entry in there.items() if path not in first}
        if changed or not entries:
            self._unpack(remote, root, changed)
        removed += self._amend(remote, there if delete else (), attributes, failures)
        return SyncResult(sent=sent, removed=removed, unchanged=unchanged, failures=tuple(failures))

    def _unpack(self, remote: str, root: str, entries: list_[Entry]) -> None:
        url = f"{self._path}/archive{query({'path': file_path(remote)})}"
        for part in parts(entries):
            self._connection.json("POST", url, content=pack(root, part), headers={"content-type": TAR})

    def _manifest(self, remote: str, checksum: bool) -> dict[bytes, dict[str, Any]]:
        url = f"{self._path}/manifest{query({'path': file_path(remote), 'checksum': checksum})}"
        try:
            stream = self._connection.open("GET", url, media=(LINES,))
        except NotFoundError:
            self._connection.json("GET", self._path.removesuffix("/files"))
            return {}
        found: dict[bytes, dict[str, Any]] = {}
        complete = False
        try:
            lines = LineSplitter()
            for data in stream.pieces():
                for line in lines.feed(data):
                    entry = parse_object(line)
                    if entry.get("type") == "end":
                        complete = True
                    elif entry.get("path"):
                        found[unquote_to_bytes(entry["path"])] = entry
        finally:
            stream.close()
        if not complete:
            raise StreamInterrupted("the manifest of the directory is incomplete; nothing was changed")
        return found

    def _amend(
        self, remote: str, remove: Iterable[bytes], attributes: list_[dict[str, str]], failures: list_[str]
    ) -> int:
        removed = 0
        # Children come before their directories, which must be empty.
        changes: list_[tuple[str, Any]] = [("remove", _url(path)) for path in sorted(remove, reverse=True)]
        changes += [("attributes", change) for change in attributes]
        while changes:
            fields: dict[str, Any] = {"path": remote}
            size = count = 0
            for kind, change in changes:
                size += len(change if isinstance(change, str) else change["path"])
                if count and (count == _PATHS_MAX or size > _PATHS_BYTES_MAX):
                    break
                fields.setdefault(kind, []).append(change)
                count += 1
            changes = changes[count:]
            answer = self._connection.json("POST", self._path + "/amend", fields)
            removed += answer["removed"]
            failures += [f"{failure['path']}: {failure['message']}" for failure in answer.get("failures", ())]
        return removed


class FileStream:
    """Content of a file as it comes. Read it to its end, or close it."""

    def __init__(self, body_: Body) -> None:
        self._body = body_
        self.size = _number(body_.headers.get("content-length"))

    def __enter__(self) -> FileStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body.pieces():
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Closes the stream."""
        self._body.close()


_mode = mode


def _texts(values: Sequence[str] | None) -> list[str] | None:
    return list(values) if values is not None else None


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


def _size(content: Any) -> int | None:
    """Returns the size of a body, if it is known before it is read."""
    # The size of a file in text mode is in characters of another encoding.
    if isinstance(content, bytes) or hasattr(content, "encoding"):
        return None
    try:
        return max(os.fstat(content.fileno()).st_size - content.tell(), 0) or None
    except (AttributeError, OSError, ValueError):
        return None


def _url(path: bytes) -> str:
    """Encodes a relative path as the manifest does."""
    return "/".join(
        encode(part.decode("utf-8", "surrogateescape")) if _is_text(part) else _raw(part)
        for part in path.split(b"/")
    )


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def _raw(part: bytes) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(part, safe="-._~")


def _time(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    whole, _, fraction = value.partition(".")
    return int(whole) * 10**9 + int(fraction.ljust(9, "0")[:9] or "0")


def _is_same(root: str, entry: Entry, found: dict[str, Any], checksum: bool) -> bool:
    if found.get("type") != entry.kind:
        return False
    if entry.kind == "symlink":
        return unquote_to_bytes(found.get("target") or "") == entry.target
    if entry.kind == "directory":
        return True
    if found.get("size") != entry.size:
        return False
    if not checksum:
        return _time(found.get("mtime")) == entry.mtime_ns
    import hashlib

    with open(os.path.join(os.fsencode(root), entry.path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == found.get("sha256")
