"""Writes what the servers of an own internet serve: a folder for each host name.

The arguments are the folder and the port of all of them."""

import base64
import gzip
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

root, port = pathlib.Path(sys.argv[1]), sys.argv[2]


def put(path, content):
    content = content.encode() if isinstance(content, str) else content
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return content


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return out.getvalue()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


put("web.example/page", "hello from web.example\n")

wheel = "tidepy-1.0.0-py3-none-any.whl"
info = "tidepy-1.0.0.dist-info"
content = put(f"pypi.example/files/{wheel}", zipped({
    "tidepy.py": "WORD = 'from the index'\n",
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: tidepy\nVersion: 1.0.0\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/RECORD": f"tidepy.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
}))
link = f"/files/{wheel}#sha256={sha256(content)}"
put("pypi.example/simple/tidepy/index.html", f'<!DOCTYPE html><a href="{link}">{wheel}</a>')

manifest = {"name": "tidejs", "version": "1.0.0", "main": "index.js"}
content = put("npm.example/files/tidejs-1.0.0.tgz", tarred({
    "package/package.json": json.dumps(manifest),
    "package/index.js": "module.exports = 'from the registry'\n",
}))
integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
dist = {"tarball": f"https://npm.example:{port}/files/tidejs-1.0.0.tgz", "integrity": integrity}
versions = {"1.0.0": manifest | {"dist": dist}}
put("npm.example/tidejs", json.dumps({"name": "tidejs", "dist-tags": {"latest": "1.0.0"}, "versions": versions}))

content = put("crates.example/files/tiders-1.0.0.crate", tarred({
    "tiders-1.0.0/Cargo.toml": '[package]\nname = "tiders"\nversion = "1.0.0"\nedition = "2021"\n',
    "tiders-1.0.0/src/lib.rs": "",
}))
put("crates.example/config.json", json.dumps({"dl": f"https://crates.example:{port}/files/{{crate}}-{{version}}.crate"}))
crate = {"name": "tiders", "vers": "1.0.0", "deps": [], "cksum": sha256(content), "features": {}, "yanked": False}
put("crates.example/ti/de/tiders", json.dumps(crate) + "\n")

module, mod = "code.example/tidego", "module code.example/tidego\n\ngo 1.19\n"
versions = f"go.example/{module}/@v"
put(f"{versions}/list", "v1.0.0\n")
put(f"{versions}/v1.0.0.info", '{"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}')
put(f"{versions}/v1.0.0.mod", mod)
put(f"{versions}/v1.0.0.zip", zipped({f"{module}@v1.0.0/go.mod": mod, f"{module}@v1.0.0/a.go": "package tidego\n"}))

packages = "Package: tidedeb\nVersion: 1.0.0\nArchitecture: all\nFilename: ./tidedeb.deb\nSize: 0\n" \
    f"SHA256: {sha256(b'')}\nDescription: from the repository\n"
content = put("deb.example/debian/Packages.gz", gzip.compress(packages.encode()))
plain = put("deb.example/debian/Packages", packages)
lines = "".join(f" {sha256(file)} {len(file)} {name}\n" for file, name in ((plain, "Packages"), (content, "Packages.gz")))
put("deb.example/debian/Release", f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{lines}")


def git(*arguments):
    subprocess.run(["git", *arguments], check=True, stdout=subprocess.DEVNULL, env={
        "PATH": "/usr/bin:/bin", "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a",
    })


put("work/file", "from the repository\n")
work, bare = str(root / "work"), str(root / "git.example/repository.git")
git("init", "--quiet", work)
git("-C", work, "add", "file")
git("-C", work, "commit", "--quiet", "--message", "A file")
git("clone", "--quiet", "--bare", work, bare)
git("-C", bare, "update-server-info")
