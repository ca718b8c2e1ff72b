"""Types of the API's records, for annotations, such as `types.SandboxStats`."""

from ._wire import *  # noqa: F403
