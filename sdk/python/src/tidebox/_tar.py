"""Archives of directories: packing without a temporary file, and unpacking without trust."""

from __future__ import annotations

import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from ._errors import InvalidArgument, ProtocolError
from ._transport import CHUNK

TAR = "application/x-tar"
PART_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a local directory. `path` is relative, in the bytes that the system has for it."""

    path: bytes
    kind: str
    size: int
    mode: int
    mtime_ns: int
    target: bytes | None = None

    @property
    def mtime(self) -> str:
        """Time of the last change as the API writes it."""
        return f"{self.mtime_ns // 10**9}.{self.mtime_ns % 10**9:09}"


def walk(root: str) -> list[Entry]:
    """Returns the entries below a directory: directories before what is in them."""
    entries: list[Entry] = []
    pending = [b""]
    top = os.fsencode(root)
    while pending:
        relative = pending.pop()
        for name in sorted(os.listdir(os.path.join(top, relative) if relative else top)):
            path = os.path.join(relative, name) if relative else name
            entry = look(top, path)
            if entry is not None:
                entries.append(entry)
                if entry.kind == "directory":
                    pending.append(path)
    return entries


def look(top: bytes, path: bytes) -> Entry | None:
    """Returns an entry; `None` for devices, FIFOs and sockets."""
    full = os.path.join(top, path)
    info = os.lstat(full)
    mode, mtime = stat.S_IMODE(info.st_mode), info.st_mtime_ns
    if stat.S_ISDIR(info.st_mode):
        return Entry(path, "directory", 0, mode, mtime)
    if stat.S_ISLNK(info.st_mode):
        return Entry(path, "symlink", 0, 0o777, mtime, os.readlink(full))
    if stat.S_ISREG(info.st_mode):
        return Entry(path, "file", info.st_size, mode, mtime)
    return None


def parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yields the entries in parts of at most 256 MiB, because a server bounds the size of an archive."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and size + entry.size > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size
    yield part


def pack(root: str, entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yields a tar of entries of a directory."""
    top = os.fsencode(root)
    for entry in entries:
        info = tarfile.TarInfo(entry.path.decode("utf-8", "surrogateescape"))
        info.mode = entry.mode
        info.mtime = entry.mtime_ns // 10**9
        info.pax_headers = {"mtime": entry.mtime}
        if entry.kind == "directory":
            info.type = tarfile.DIRTYPE
            yield _head(info)
        elif entry.kind == "symlink":
            info.type = tarfile.SYMTYPE
            info.linkname = (entry.target or b"").decode("utf-8", "surrogateescape")
            yield _head(info)
        else:
            with open(os.path.join(top, entry.path), "rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                yield _head(info)
                left = info.size
                while left:
                    piece = file.read(min(CHUNK, left))
                    # A file that shrinks is filled up, so that the archive stays whole.
                    piece = piece or bytes(min(CHUNK, left))
                    left -= len(piece)
                    yield piece
                yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _head(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def unpack(archive: IO[bytes], root: str) -> int:
    """Unpacks a tar below a directory, and returns the number of files.

    The archive is not trusted: nothing is written outside of the directory, no link is followed, and
    set-user-id, set-group-id and sticky bits are dropped.
    """
    top = Path(root)
    top.mkdir(parents=True, exist_ok=True)
    files = 0
    directories: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(fileobj=archive, mode="r:", errors="surrogateescape") as tar:
            for member in tar:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if member.name.startswith("/") or ".." in parts:
                    raise ProtocolError(
                        f"the archive has the unsafe name {member.name!r}; nothing more was written"
                    )
                if not parts:
                    continue
                parent = _parent(top, parts[:-1], member.name)
                target = parent / parts[-1]
                if member.isdir():
                    if target.is_symlink() or not target.is_dir():
                        target.mkdir(mode=0o700)
                    directories.append((target, member))
                elif member.issym():
                    _place(target, partial(os.symlink, member.linkname))
                    files += 1
                elif member.islnk():
                    linked = [part for part in member.linkname.split("/") if part not in ("", ".")]
                    if ".." in linked or not linked:
                        raise ProtocolError(f"the archive has the unsafe link {member.linkname!r}")
                    source = _parent(top, linked[:-1], member.linkname) / linked[-1]
                    _place(target, partial(os.link, source, follow_symlinks=False))
                    files += 1
                elif member.isfile():
                    content = tar.extractfile(member)
                    assert content is not None
                    _place(target, partial(_write, content, member))
                    files += 1
    except tarfile.TarError as error:
        raise ProtocolError(f"the archive is damaged: {error}") from error
    # At the end, because writing into a directory changes its time, and its mode may forbid it.
    for directory, member in reversed(directories):
        os.chmod(directory, (member.mode or 0o755) & 0o777)
        os.utime(directory, (member.mtime, member.mtime))
    return files


def _parent(top: Path, parts: list[str], name: str) -> Path:
    """Returns a directory below the top that is reached without a link, and makes it if needed."""
    path = top
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise ProtocolError(f"the archive's name {name!r} leads through a link; nothing more was written")
        path.mkdir(exist_ok=True)
    return path


def _place(target: Path, make: Callable[[Path], object]) -> None:
    """Makes an entry under a temporary name, and puts it in the place of an earlier one."""
    temporary = target.with_name(f".tidebox-{secrets.token_hex(8)}")
    try:
        make(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _write(content: IO[bytes], member: tarfile.TarInfo, path: Path) -> None:
    with open(path, "xb") as file:
        while piece := content.read(CHUNK):
            file.write(piece)
    os.chmod(path, member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))


def check_directory(path: str | os.PathLike[str]) -> str:
    """Returns the path of a local directory."""
    root = os.fspath(path)
    if not os.path.isdir(root):
        raise InvalidArgument(f"{root} is not a directory")
    return root
