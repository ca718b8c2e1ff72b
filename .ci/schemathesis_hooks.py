"""What Schemathesis cannot know of this API; see schemathesis.toml."""

import json
import re
import urllib.parse

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.openapi.checks import RejectedPositiveData, UseAfterFree


@schemathesis.hook
def before_call(context, case, kwargs):
    # 16.0 is an integer to JSON Schema and a mistake to the API, which reads strictly.
    if isinstance(case.body, dict):
        case.body = {name: whole(value) for name, value in case.body.items()}
    # A wait that is well-formed is as good when it is short.
    timeout = (case.query or {}).get("timeout")
    if case.path.endswith("/wait") and isinstance(timeout, str) and re.fullmatch(r"([0-9.]+(s|m))+", timeout):
        case.query["timeout"] = "20ms"
    # A stream of events is as good when it ends.
    if case.path.endswith("/events"):
        case.query = {**(case.query or {}), "follow": "false"}
    # A server that the operator drains takes no more sandboxes: 503, as it should be.
    if case.path.endswith("/admin/workers/{worker}/heartbeat") and case.path_parameters.get("worker") == "local":
        case.path_parameters["worker"] = "w1"
    # What is called like a route of ours is somewhere else: see `%73ummary`.
    if case.path.endswith("/quotas/{owner_id}") and case.path_parameters.get("owner_id", "").strip() == "summary":
        case.path_parameters["owner_id"] = "summary-2"


def is_plain(case):
    """Whether a request has characters of ASCII that can be seen, and spaces, only."""
    # `repr` writes all others with a backslash, or as they are.
    text = urllib.parse.unquote(repr([case.path_parameters, case.query, case.headers, case.body]))
    return text.isascii() and "\\" not in text


def whole(value):
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def filter_failure(context, failure, case, response):
    # A header that nobody knows is ignored, as HTTP asks for.
    if isinstance(failure, AcceptedNegativeData) and "x-schemathesis-unknown-property" in (case.headers or {}):
        return False
    # Which characters are invisible is a table of Unicode's: no pattern has room for it.
    if isinstance(failure, RejectedPositiveData) and "invisible characters" in response.text and not is_plain(case):
        return False
    # An owner is there, and has a usage, without a quota too: deleting the quota
    # does not delete the owner.
    return not (isinstance(failure, UseAfterFree) and case.path.endswith("/quotas/{owner_id}/usage"))


@schemathesis.deserializer("application/x-ndjson")
def chunks(context, response):
    """A stream is as good as its worst line; one without output has none."""
    lines = [json.loads(line) for line in response.content.decode().splitlines()]
    bad = [line for line in lines if not {"stream", "data"} <= set(line) and "type" not in line]
    return (bad + lines + [{"stream": "stdout", "data": ""}])[0]


@schemathesis.deserializer("text/csv")
def rows(context, response):
    """Text, to the description."""
    return response.content.decode()


@schemathesis.deserializer("application/octet-stream", "application/x-tar")
def file(context, response):
    """Bytes are right as they are."""
    return response.content.decode("latin-1")
