//! Values, figures, frames and images, as kernels of Python show them.

use serde_json::{Value, json};

use super::{error_name, with_each, with_packages};
use crate::kernel::{Kernel, Outcome};

const CHART: &str = "application/vnd.tidebox.chart+json";
const FRAME: &str = "application/vnd.tidebox.frame+json";

/// Returns what the first value is shown as, by MIME type.
fn shown(kernel: &mut Kernel, code: &str) -> Value {
    let outcome = kernel.run(code);
    assert_eq!(outcome.error, None, "{code}");
    let (_, data) = outcome.results.into_iter().next().expect("shows something");
    data.into()
}

#[test]
fn values_show_themselves() {
    with_each(|_, kernel| {
        let code = "class A:\n    def __repr__(self): return 'a'\n    def _repr_html_(self): return '<b>'\n    \
                    def _repr_png_(self): return b'\\x89'\n    def _repr_latex_(self): return '$a$'\n    \
                    def _repr_json_(self): return {'a': float('nan')}\n    def _repr_svg_(self): return None\n    \
                    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/x': 'x'}\nA()";
        let expected = json!({
            "text/plain": "a", "text/html": "<b>", "image/png": "iQ==", "text/latex": "$a$",
            "application/json": {"a": null}, "text/x": "x",
        });
        assert_eq!(shown(kernel, code), expected);
        let outcome = kernel.run("print('before'); display(A(), 2); print('after')");
        assert_eq!(outcome.stdout(), "before\nafter\n");
        assert_eq!(outcome.results.iter().map(|(is_main, _)| *is_main).collect::<Vec<_>>(), [false, false]);
        assert_eq!(shown(kernel, "display({'text/latex': 'x'}, raw=True)"), json!({"text/latex": "x"}));
    });
}

#[test]
fn lists_and_dicts_are_shown_as_json_too() {
    with_each(|_, kernel| {
        let data = shown(kernel, "{'a': [1, 2.5, None], '\\ud800': (True, float('inf')), 3: '\\ud83d\\ude00'}");
        let expected = json!({"a": [1, 2.5, null], "\u{fffd}": [true, null], "3": "\u{1f600}"});
        assert_eq!(data["application/json"], expected);
        assert_eq!(data["text/plain"], r"{'a': [1, 2.5, None], '\ud800': (True, inf), 3: '\ud83d\ude00'}");
        for odd in ["[object()]", "[1 << 70]", "x = []; x.append(x); x", "[0] * 10_000_000", "'a'", "(1,)"] {
            assert_eq!(shown(kernel, odd).get("application/json"), None, "{odd}");
        }
        let nested = "x = []\nfor n in range(500): x = [x]\nx";
        assert_eq!(shown(kernel, nested).get("application/json"), None);
    });
}

#[test]
fn a_representation_that_fails_breaks_no_run() {
    with_each(|_, kernel| {
        let outcome = kernel.run("class A:\n    def _repr_html_(self): raise ValueError('no\\nhtml')\nA()");
        assert!(outcome.value().is_some_and(|value| value.contains("A ")), "{outcome:?}");
        assert_eq!(outcome.stderr(), "`_repr_html_` of A raised ValueError: no html\n");
        let outcome = kernel.run("class B:\n    def __repr__(self): raise ValueError('b')\nB()");
        assert!(outcome.value().is_some_and(|value| value.contains("B object")), "{outcome:?}");
        assert_eq!(outcome.stderr(), "`__repr__` of B raised ValueError: b\n");
    });
}

#[test]
fn what_is_too_large_to_show_is_named() {
    with_each(|_, kernel| {
        let code =
            "display({'text/plain': 'p', 'text/html': 'x' * 11_000_000, 'image/png': b'x' * 9_000_000}, raw=True)";
        let text = "p\ntext/html was left out: 11.0 MB are more than 10 MiB\n\
                    image/png was left out: 12.0 MB are more than 10 MiB";
        assert_eq!(shown(kernel, code), json!({"text/plain": text}));
        let code = "display({'text/plain': 'p', 'text/html': '\"' * 5_000_000, 'text/x': 'x' * 9_000_000}, raw=True)";
        let data = shown(kernel, code);
        assert_eq!(data["text/plain"], "p\ntext/html was left out: all together are more than 15 MiB");
        assert_eq!(data["text/x"].as_str().map(str::len), Some(9_000_000));
        let data = shown(kernel, "'x' * 200_000_000");
        assert_eq!(data, json!({"text/plain": "text/plain was left out: 200.0 MB are more than 10 MiB"}));
    });
}

/// Returns which of an outcome's results are a figure, by whether they are the value.
fn figures(outcome: &Outcome) -> Vec<bool> {
    assert_eq!(outcome.error, None);
    let is_figure = |data: &serde_json::Map<String, Value>| {
        let starts = |mime: &str, start: &str| data[mime].as_str().is_some_and(|text| text.starts_with(start));
        data.contains_key("image/png") && starts("image/png", "iVBOR") && starts("text/plain", "<Figure size ")
    };
    outcome.results.iter().filter(|(_, data)| is_figure(data)).map(|(is_main, _)| *is_main).collect()
}

#[test]
fn a_figure_is_shown_once() {
    let Some((_folder, mut kernel)) = with_packages(&["matplotlib"]) else { return };
    kernel.run("import matplotlib.pyplot as plt");
    for code in [
        "plt.plot([1, 2])\nplt.show()\nprint(plt.get_fignums())",
        "_ = plt.plot([1, 2])",
        "plt.plot([1, 2]); plt.gcf().show()",
        "import matplotlib; matplotlib.use('agg'); plt.plot([1, 2]); plt.show()",
        "figure, axes = plt.subplots(); axes.plot([1, 2]); display(figure)",
        "plt.plot([1]); plt.savefig('figure.png')",
    ] {
        let outcome = kernel.run(code);
        assert_eq!((figures(&outcome), outcome.stderr().as_str()), (vec![false], ""), "{code}");
    }
    assert_eq!(figures(&kernel.run("figure, axes = plt.subplots(); figure")), [true]);
    assert_eq!(figures(&kernel.run("plt.figure(); plt.figure(); plt.show()")), [false, false]);
    assert_eq!(figures(&kernel.run("plt.figure(figsize=(200, 200))")), [true]);
    let outcome = kernel.run("plt.plot([1]); raise ValueError");
    assert_eq!((outcome.results.len(), error_name(&outcome)), (1, Some("ValueError")));
    assert_eq!(error_name(&kernel.run(r"plt.title(r'$\bad{$')")), Some("ValueError"));
    assert_eq!(kernel.run("plt.get_fignums()").value(), Some("[]"));
}

#[test]
fn a_figure_is_shown_as_a_chart_too() {
    let Some((_folder, mut kernel)) = with_packages(&["matplotlib"]) else { return };
    kernel.run("import datetime, matplotlib.pyplot as plt");
    let mut chart = |code: &str| shown(&mut kernel, &format!("{code}\nplt.show()"))[CHART].clone();
    let labels = "plt.title('T'); plt.xlabel('X (s)'); plt.ylabel('Y')";
    let mut line = chart(&format!("plt.plot([datetime.date(2024, 1, 2)], [1], label='l'); {labels}"));
    let object = line.as_object_mut().expect("an object");
    for name in ["x_ticks", "x_tick_labels", "y_ticks", "y_tick_labels"] {
        let is_text = name != "y_ticks";
        let ticks = object.remove(name).expect("ticks");
        assert!(ticks.as_array().is_some_and(|ticks| ticks.iter().all(|tick| tick.is_string() == is_text)), "{name}");
    }
    let expected = json!({
        "type": "line", "title": "T", "x_label": "X (s)", "x_unit": "s", "y_label": "Y", "y_unit": null,
        "x_scale": "datetime", "y_scale": "linear",
        "elements": [{"label": "l", "points": [["2024-01-02", 1.0]]}],
    });
    assert_eq!(line, expected);
    let scatter = chart("plt.scatter([1, 2], [3, 4], label='s')");
    assert_eq!(scatter["elements"], json!([{"label": "s", "points": [[1.0, 3.0], [2.0, 4.0]]}]));
    let bar = chart("plt.bar(['a', 'b'], [1, 1], label='n')");
    let bars = json!([{"label": "a", "group": "n", "value": 1.0}, {"label": "b", "group": "n", "value": 1.0}]);
    assert_eq!((&bar["type"], &bar["elements"]), (&json!("bar"), &bars));
    let pie = chart("plt.pie([90, 10], labels=['a', 'b'], startangle=90)");
    let elements = json!([{"label": "a", "angle": 324.0, "radius": 1.0}, {"label": "b", "angle": 36.0, "radius": 1.0}]);
    assert_eq!(pie, json!({"type": "pie", "title": null, "elements": elements}));
    for options in ["", ", patch_artist=True", ", vert=False"] {
        let boxes = chart(&format!("plt.boxplot([[95, 89, 76, 91, 84, 87]]{options})"));
        let expected = json!([{
            "label": "1", "min": 84.0, "first_quartile": 84.75, "median": 88.0, "third_quartile": 90.5, "max": 95.0,
            "outliers": [76.0],
        }]);
        assert_eq!(boxes["elements"], expected, "{options}");
    }
    let both = chart("f, (a, b) = plt.subplots(1, 2); f.suptitle('S'); a.plot([1]); b.bar([1], [2])");
    assert_eq!((&both["type"], &both["title"]), (&json!("superchart"), &json!("S")));
    assert_eq!((&both["elements"][0]["type"], &both["elements"][1]["type"]), (&json!("line"), &json!("bar")));
    let circle = chart("_ = plt.gca().add_artist(plt.Circle((0, 0), 1))");
    assert_eq!(circle, json!({"type": "unknown", "title": null, "elements": []}));
    assert_eq!(chart("_ = plt.subplots()"), Value::Null);
}

#[test]
fn a_frame_is_shown_as_html_and_as_data() {
    let Some((_folder, mut kernel)) = with_packages(&["pandas"]) else { return };
    let code = "import pandas as pd\n\
                frame = pd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2024-01-02', None]), 'x': [None, .5]})\nframe";
    let data = shown(&mut kernel, code);
    assert_eq!(data[FRAME], json!({"a": [1, 2], "t": ["2024-01-02T00:00:00", null], "x": [null, 0.5]}));
    assert!(data["text/html"].as_str().is_some_and(|html| html.contains("<table")));
    assert!(data["text/plain"].as_str().is_some_and(|text| text.contains("2024-01-02")));
    assert_eq!(shown(&mut kernel, "frame.a")[FRAME], json!({"a": [1, 2]}));
    assert_eq!(shown(&mut kernel, "pd.DataFrame({'a': range(1_000_000)})").get(FRAME), None);
}

#[test]
fn an_image_is_shown_when_it_is_the_value_or_saved() {
    let Some((_folder, mut kernel)) = with_packages(&["PIL"]) else { return };
    kernel.run("from PIL import Image\nimage = Image.new('RGB', (2, 2))");
    for code in ["image", "image.show()", "image.save('image.png')"] {
        let data = shown(&mut kernel, code);
        assert!(data["image/png"].as_str().is_some_and(|png| png.starts_with("iVBOR")), "{code}");
    }
    assert_eq!(kernel.run("import io; image.save(io.BytesIO(), 'png')").results.len(), 0);
}
