# charts
# Charts as data, in the form that E2B's package reads.
import re

from matplotlib import dates
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle, Wedge


def chart(figure):
    """Returns the chart of a figure, or `None` if it shows no data."""
    axes = [ax for ax in figure.axes if not hasattr(ax, "_colorbar")]
    if not any(ax.has_data() for ax in axes):
        return None
    if len(axes) == 1:
        return axes_chart(axes[0])
    title = getattr(figure, "_suptitle", None)
    title = title.get_text() if title is not None else None
    return {"type": "superchart", "title": title or None, "elements": [axes_chart(ax) for ax in axes]}


def axes_chart(ax):
    artists = list(ax.get_children())
    lines = [line for line in ax.lines if is_of_data(line, ax)]
    points = [artist for artist in artists if isinstance(artist, PathCollection)]
    wedges = [artist for artist in artists if isinstance(artist, Wedge)]
    bars = [container for container in ax.containers if isinstance(container, BarContainer)]
    in_bars = {id(patch) for container in bars for patch in container}
    others = [patch for patch in ax.patches if id(patch) not in in_bars and not isinstance(patch, Wedge)]
    boxes = [box for box in map(Box.of, [*others, *lines]) if box]
    kinds = [name for name, found in (("scatter", points), ("pie", wedges), ("bar", bars)) if found]
    if boxes and not kinds:
        elements, is_upright = box_elements(ax, boxes, lines)
        if elements:
            return {"type": "box_and_whisker", **labels(ax, is_upright), "elements": elements}
    if others or ax.images:
        kinds.append("unknown")
    # A bar chart with a line of its error or mean is still one.
    if lines and kinds != ["bar"]:
        kinds.append("line")
    kind = kinds[0] if len(kinds) == 1 else "unknown"
    if kind == "bar":
        is_upright = all(getattr(container, "orientation", None) != "horizontal" for container in bars)
        elements = [bar for at, container in enumerate(bars) for bar in bar_elements(ax, container, at, is_upright)]
        return {"type": "bar", **labels(ax, is_upright), "elements": elements}
    if kind == "line":
        elements = [
            {"label": named(line, "Line", at), "points": pairs(ax, line.get_xdata(), line.get_ydata())}
            for at, line in enumerate(lines)
        ]
        return {"type": "line", **labels(ax), **scales(ax), "elements": elements}
    if kind == "scatter":
        elements = [
            {"label": named(cloud, "Points", at), "points": offsets(ax, cloud)} for at, cloud in enumerate(points)
        ]
        return {"type": "scatter", **labels(ax), **scales(ax), "elements": elements}
    if kind == "pie":
        elements = [
            {"label": wedge.get_label(), "angle": round(abs(wedge.theta2 - wedge.theta1), 4), "radius": float(wedge.r)}
            for wedge in wedges
        ]
        return {"type": "pie", "title": title_of(ax), "elements": elements}
    return {"type": "unknown", "title": title_of(ax), "elements": []}


def is_of_data(line, ax):
    """Returns whether a line shows data, unlike one that goes across all of the axes."""
    contains = getattr(line.get_transform(), "contains_branch_seperately", None)
    return contains is None or all(contains(ax.transData))


def named(artist, kind, at):
    label = str(artist.get_label())
    return f"{kind} {at}" if label.startswith("_") else label


# Axes


def title_of(ax):
    return next((title for title in map(ax.get_title, ("center", "left", "right")) if title), None)


def labels(ax, is_upright=True):
    """Returns the title and the labels; those of a chart on its side change places."""
    names = ("x", "y") if is_upright else ("y", "x")
    result = {"title": title_of(ax)}
    for name, text in zip(names, (ax.get_xlabel(), ax.get_ylabel())):
        unit = re.search(r"\s\(([^()]*)\)|\[([^\[\]]*)\]", text)
        result[f"{name}_label"] = text or None
        result[f"{name}_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return result


def scales(ax):
    result = {}
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        ticks = list(axis.get_majorticklocs())
        texts = [text.get_text() for text in axis.get_ticklabels()]
        if is_of_dates(axis):
            scale = "datetime"
        elif is_of_categories(axis, ticks, texts):
            scale = "categorical"
        else:
            scale = axis.get_scale()
        result.update({
            f"{name}_ticks": [number(axis, tick) for tick in ticks],
            f"{name}_tick_labels": texts,
            f"{name}_scale": scale,
        })
    return result


def converter(axis):
    get = getattr(axis, "get_converter", None)
    return get() if get else axis.converter


def is_of_dates(axis):
    found = type(converter(axis))
    return "Date" in found.__name__ or found.__name__ in ("PeriodConverter", "TimeConverter")


def is_of_categories(axis, ticks, texts):
    if type(converter(axis)).__name__ == "StrCategoryConverter":
        return True
    is_counted = axis.get_scale() == "linear" and ticks == list(range(len(ticks))) and len(ticks) == len(texts)
    return bool(ticks) and is_counted and all(str(at) != text for at, text in enumerate(texts))


# Points


def pairs(ax, xs, ys):
    return [[plain(ax.xaxis, x), plain(ax.yaxis, y)] for x, y in zip(listed(xs), listed(ys))]


def offsets(ax, cloud):
    return [[number(ax.xaxis, x), number(ax.yaxis, y)] for x, y in cloud.get_offsets().filled(float("nan")).tolist()]


def listed(values):
    # A list of them has no masked values, nor dates that are numbers of nanoseconds.
    if getattr(getattr(values, "dtype", None), "kind", "") == "M":
        return values.astype("datetime64[us]").tolist()
    return values.tolist() if hasattr(values, "tolist") else list(values)


def plain(axis, value):
    """Returns a value of the code, as text if it is a date."""
    if isinstance(value, str) or value is None:
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "to_timestamp"):
        return value.to_timestamp().isoformat()
    return float(value)


def number(axis, value):
    """Returns a number of an axis, as text if it stands for a date."""
    value = float(value)
    if value != value or not is_of_dates(axis):
        return value
    period = getattr(axis.axes, "freq", None)
    if type(converter(axis)).__name__ == "PeriodConverter" and period is not None:
        from pandas import Period

        return Period(ordinal=int(value), freq=period).to_timestamp().isoformat()
    return dates.num2date(value).isoformat()


# Bars


def bar_elements(ax, container, at, is_upright):
    group = str(container.get_label())
    group = f"Group {at}" if group.startswith("_") else group
    axis = ax.xaxis if is_upright else ax.yaxis
    known = Labels(axis)
    result = []
    for bar in container:
        left, size = (bar.get_x(), bar.get_width()) if is_upright else (bar.get_y(), bar.get_height())
        value = bar.get_height() if is_upright else bar.get_width()
        result.append({"label": known.of(left + size / 2), "group": group, "value": float(value)})
    return result


class Labels:
    """Labels of the ticks of an axis, by their places."""

    def __init__(self, axis):
        self.axis = axis
        self.ticks = [float(tick) for tick in axis.get_majorticklocs()]
        self.texts = [text.get_text() for text in axis.get_ticklabels()]
        # Bars side by side lie around the tick of their group.
        self.is_counted = is_of_categories(axis, self.ticks, self.texts) or type(axis.get_major_locator()).__name__ in (
            "FixedLocator",
            "StrCategoryLocator",
        )

    def of(self, place):
        if self.is_counted:
            near = [(abs(tick - place), text) for tick, text in zip(self.ticks, self.texts) if abs(tick - place) <= 0.5]
            if near and min(near)[1]:
                return min(near)[1]
        value = number(self.axis, place)
        return value if isinstance(value, str) else f"{round(value, 6):g}"


# Boxes


class Box:
    """Box of a box plot: from `low` to `high` in the direction of its values, around `center` in the other."""

    def __init__(self, corners):
        (self.left, self.bottom), (self.right, self.top) = corners

    @classmethod
    def of(cls, artist):
        if isinstance(artist, PathPatch):
            path = artist.get_path().vertices
        elif isinstance(artist, Line2D) and len(artist.get_xdata()) in (5, 11):
            path = artist.get_xydata()
        else:
            return None
        if len(path) not in (5, 6, 11, 12) or not (path[0] == path[4 if len(path) < 7 else 10]).all():
            return None
        sides = [(a[0] == b[0]) or (a[1] == b[1]) for a, b in zip(path[:4], path[1:5])]
        if len(path) < 7 and not all(sides):
            return None
        # The notch may reach beyond the box.
        corners = path[:5] if len(path) < 7 else path[[0, 1, 5, 6]]
        return cls((corners.min(axis=0).tolist(), corners.max(axis=0).tolist()))

    def span(self, is_upright):
        return (self.left, self.right, self.bottom, self.top) if is_upright else (
            self.bottom, self.top, self.left, self.right)


def box_elements(ax, boxes, lines):
    """Returns what box plots show, and whether they stand upright."""
    for is_upright in (True, False):
        known = Labels(ax.xaxis if is_upright else ax.yaxis)
        elements = [box_element(box.span(is_upright), lines, known, is_upright) for box in boxes]
        if all(elements):
            return elements, is_upright
    return None, True


def box_element(span, lines, known, is_upright):
    near, far, low, high = span
    center = (near + far) / 2
    found = {"outliers": []}
    reach = (high - low) * 1e-9

    for line in lines:
        xs, ys = line.get_xdata(orig=False).tolist(), line.get_ydata(orig=False).tolist()
        if not is_upright:
            xs, ys = ys, xs
        if not xs or not all(near <= x <= far for x in xs):
            continue
        if line.get_linestyle() == "None":
            if all(abs(x - center) <= (far - near) / 2 for x in xs):
                found["outliers"] += ys
        elif len(xs) == 2 and ys[0] == ys[1] and low <= ys[0] <= high and xs[0] != xs[1]:
            found.setdefault("median", ys[0])
        elif len(xs) == 2 and xs[0] == xs[1]:
            if abs(max(ys) - low) <= reach:
                found["min"] = min(ys)
            elif abs(min(ys) - high) <= reach:
                found["max"] = max(ys)
    if "median" not in found:
        return None
    return {
        "label": known.of(center),
        "min": float(found.get("min", low)),
        "first_quartile": float(low),
        "median": float(found["median"]),
        "third_quartile": float(high),
        "max": float(found.get("max", high)),
        "outliers": [float(value) for value in found["outliers"]],
    }
