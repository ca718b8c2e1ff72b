# completion
# Completions of names and attributes.
import builtins
import keyword
import re

MATCHES_MAX = 1000


def complete(names, before):
    """Returns where the completions of the text before the cursor start, and what they are."""
    path = re.search(r"(?:\w+\.)*\w*$", before).group()
    *parents, prefix = path.split(".")
    if parents:
        value = names.get(parents[0], getattr(builtins, parents[0], None))
        for parent in parents[1:]:
            value = getattr(value, parent)
        found = dir(value) if parents[0] in names or hasattr(builtins, parents[0]) else []
    else:
        found = [*names, *dir(builtins), *keyword.kwlist]
    # Names that begin with an underscore are asked for by one.
    matches = sorted({name for name in found if name.startswith(prefix) and (prefix or not name.startswith("_"))})
    return len(before) - len(prefix), [name for name in matches if not name.startswith("__tidebox")][:MATCHES_MAX]
