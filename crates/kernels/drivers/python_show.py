# show
# Representations of values.
import base64
import io
import sys
import weakref

MIB = 1024 * 1024
# Largest representation, and all of a value's together, in bytes.
BYTES_MAX = 10 * MIB
ALL_BYTES_MAX = 15 * MIB
# Most values within a list, frame or chart that are shown as data, and most levels.
JSON_VALUES_MAX = 200_000
JSON_LEVELS_MAX = 60
# Most pixels of a figure; larger ones are scaled down.
PIXELS_MAX = 25_000_000

FRAME = "application/vnd.tidebox.frame+json"
CHART = "application/vnd.tidebox.chart+json"
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}
# A method that no class has: an object with it has any, and those say nothing about it.
CANARY = "_ipython_canary_method_should_not_exist_"


# JSON


class NotJson(Exception):
    """A value has no form in JSON, or too large a one."""


def jsonable(value, other=None):
    """Returns a value with what JSON has alone; `other` makes something of what it has not."""
    left = JSON_VALUES_MAX
    numpy = sys.modules.get("numpy")
    arrays = getattr(numpy, "ndarray", ())
    scalars = getattr(numpy, "generic", ())

    def convert(value, level):
        nonlocal left
        left -= 1
        if left < 0 or level > JSON_LEVELS_MAX:
            raise NotJson
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            left -= len(value) // 64
            return str.__str__(value)
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 64:
                raise NotJson
            return int(value)
        if isinstance(value, float):
            return float(value) if value - value == 0 else None
        if isinstance(value, dict):
            return {key(name): convert(item, level + 1) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [convert(item, level + 1) for item in value]
        if type(value).__name__ in ("NaTType", "NAType"):
            return None
        if hasattr(value, "isoformat"):
            date = value.isoformat()
            if isinstance(date, str):
                return date
        if isinstance(value, arrays):
            if value.size > left:
                raise NotJson
            return convert(value.tolist(), level)
        if isinstance(value, scalars):
            item = value.item()
            # Of nanoseconds it would be a number.
            return str(value) if type(value).__name__ == "datetime64" else convert(item, level)
        if other is None:
            raise NotJson
        return other(value)

    def key(name):
        if isinstance(name, str):
            return str.__str__(name)
        if name is None or isinstance(name, (bool, int, float)) or other is not None:
            return str(name)
        if isinstance(name, scalars) or hasattr(name, "isoformat"):
            return str(name)
        raise NotJson

    try:
        return convert(value, 0)
    except RecursionError:
        raise NotJson from None


# Messages


def pack(data):
    """Returns representations in JSON by MIME type, without those that are too large."""
    parts, notes = {}, []
    for mime, value in data.items():
        mime = str(mime)
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = "x" * len(value) if len(value) > BYTES_MAX else base64.b64encode(value).decode()
        is_json = mime == "application/json" or mime.endswith("+json")
        if not isinstance(value, str):
            try:
                value = jsonable(value, other=str) if is_json or isinstance(value, (dict, list)) else str(value)
            except NotJson:
                notes.append(f"{mime} was left out: it is not JSON, or has more than {JSON_VALUES_MAX} values")
                continue
        size = len(value) if isinstance(value, str) else 0
        if size <= BYTES_MAX:
            parts[mime] = driver.text_bytes(driver.dumps(value))
            size = len(parts[mime])
        if size > BYTES_MAX:
            parts.pop(mime, None)
            notes.append(f"{mime} was left out: {size / 1e6:.1f} MB are more than {BYTES_MAX // MIB} MiB")
    while sum(map(len, parts.values())) > ALL_BYTES_MAX:
        mime = max(parts, key=lambda mime: len(parts[mime]))
        notes.append(f"{mime} was left out: all together are more than {ALL_BYTES_MAX // MIB} MiB")
        del parts[mime]
    if notes:
        text = data["text/plain"] + "\n" if "text/plain" in parts else ""
        parts["text/plain"] = driver.text_bytes(driver.dumps(str(text) + "\n".join(notes)))
    return parts


def complain(what, value, error):
    text = " ".join(driver.error_value(error).split())
    print(f"`{what}` of {type(value).__name__} raised {type(error).__name__}: {text[:500]}", file=sys.stderr)


# Values


def represent(value):
    """Returns the representations of a value by MIME type."""
    data = {"text/plain": text(value)}
    if not isinstance(value, type):
        try:
            has_any = getattr(value, CANARY, None) is not None
        except Exception:
            has_any = True
        if not has_any:
            data.update(own(value))
    data.update(more(value))
    return data


def own(value):
    """Returns what the methods of a value return."""
    data = {}
    bundle = call(value, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(bundle, tuple):
        bundle = bundle[0]
    if isinstance(bundle, dict):
        data.update(bundle)
    for mime, name in METHODS.items():
        if mime not in data:
            shown = call(value, name)
            if isinstance(shown, tuple):
                # With metadata.
                shown = shown[0]
            if shown is not None:
                data[mime] = shown
    return data


def call(value, name, **arguments):
    try:
        method = getattr(value, name, None)
        return method(**arguments) if callable(method) else None
    except NotImplementedError:
        return None
    except Exception as error:
        complain(name, value, error)
        return None


def text(value):
    try:
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict):
            value = first_items(value, kind)
        plain = repr(value)
        if kind in (list, tuple, set, frozenset, dict) and 79 < len(plain) < MIB:
            from pprint import pformat

            plain = pformat(value, width=79, sort_dicts=False)
        return plain
    except Exception as error:
        complain("__repr__", value, error)
        return object.__repr__(value)


class Rest:
    """Stands for the items that are left out."""

    def __repr__(self):
        return "..."


def first_items(value, kind, count=1000):
    from itertools import islice

    if len(value) <= count:
        return value
    if kind is dict:
        return {**dict(islice(value.items(), count)), Rest(): Rest()}
    return kind([*islice(value, count), Rest()])


def more(value):
    """Returns the representations that are made for some types, beyond those of their methods."""
    if type(value) in (list, dict, tuple):
        return optional("application/json", value) if type(value) is not tuple else {}
    pandas = sys.modules.get("pandas")
    if isinstance(value, getattr(pandas, "DataFrame", ())):
        return optional(FRAME, value, frame)
    if isinstance(value, getattr(pandas, "Series", ())):
        return optional(FRAME, value, lambda series: {series.name or 0: series.tolist()})
    figure = sys.modules.get("matplotlib.figure")
    if isinstance(value, getattr(figure, "Figure", ())):
        return figure_data(value)
    return {}


def optional(mime, value, convert=lambda value: value, other=None):
    """Returns a representation that is left out where there is none, without a word."""
    try:
        data = jsonable(convert(value), other=None if mime == "application/json" else str)
    except Exception:
        return {}
    if mime == "application/json" and len(driver.dumps(data)) > MIB:
        return {}
    return {mime: data}


def frame(frame):
    if frame.size > JSON_VALUES_MAX:
        raise NotJson
    return {name: frame.iloc[:, at].tolist() for at, name in enumerate(frame.columns)}


# Display


def display(*values, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False, **others):
    """Shows values; with `raw`, dicts of representations by MIME type."""
    for value in values:
        driver.send(value if raw else driver.Kernel.backend.represent(value), False)


# Figures


shown = weakref.WeakSet()


def figure_data(figure):
    shown.add(figure)
    data = {"text/plain": text(figure), "image/png": figure_png(figure)}
    try:
        chart = part("charts").chart(figure)
        if chart is not None:
            data[CHART] = jsonable(chart, other=str)
    except Exception:
        # The picture says it all.
        pass
    return data


def figure_png(figure):
    width, height = figure.get_size_inches()
    dpi = min(figure.dpi, (PIXELS_MAX / (width * height)) ** 0.5)
    colors = {"facecolor": figure.get_facecolor(), "edgecolor": figure.get_edgecolor()}
    buffer = io.BytesIO()
    figure.canvas.print_figure(buffer, format="png", dpi=dpi, bbox_inches="tight", **colors)
    return buffer.getvalue()


def open_figures():
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    managers = helpers.Gcf.get_all_fig_managers() if helpers else []
    return [manager.canvas.figure for manager in managers]


def close(figure):
    sys.modules["matplotlib.pyplot"].close(figure)


def show_figure(figure):
    try:
        driver.send(figure_data(figure), False)
    finally:
        close(figure)


def show_figures():
    """Shows the open figures, and closes them."""
    for figure in open_figures():
        show_figure(figure)


def end_figures():
    """Shows the figures that the code left open and did not show."""
    try:
        for figure in open_figures():
            if figure in shown:
                close(figure)
            else:
                show_figure(figure)
    finally:
        shown.clear()
