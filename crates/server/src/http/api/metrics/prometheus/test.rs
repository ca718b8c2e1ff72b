//! A strict parser of both formats, and tests of the written text with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use proptest::prelude::*;

use super::{Format, Kind, MetricFamily};
use crate::operation_metrics::Histogram;

type Series = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Parses a text as strictly as the formats require; panics with the line at fault.
fn read(format: Format, text: &str) -> Series {
    let body = match format {
        Format::Text => text,
        Format::OpenMetrics => text.strip_suffix("# EOF\n").expect("the end is marked"),
    };
    assert!(body.is_empty() || body.ends_with('\n'), "the last line ends");
    let mut series = Series::new();
    let mut seen = BTreeSet::new();
    let (mut help, mut family, mut kind) = (None, String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(!words.is_empty() && seen.insert(name.to_owned()), "{line}");
            help = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert_eq!(help.take().as_deref(), Some(name), "{line}");
            (family, kind) = (name.to_owned(), of.to_owned());
        } else {
            let (name, labels, value) = sample(line);
            let ending = name.strip_prefix(&family).unwrap_or_else(|| panic!("`{line}` is not of `{family}`"));
            let endings: &[&str] = match (kind.as_str(), format) {
                ("counter", Format::Text) | ("gauge", _) => &[""],
                ("counter", Format::OpenMetrics) => &["_total"],
                ("info", Format::OpenMetrics) => &["_info"],
                ("summary", _) => &["_sum", "_count"],
                ("histogram", _) => &["_bucket", "_sum", "_count"],
                _ => panic!("`{kind}` is no type here: {line}"),
            };
            assert!(endings.contains(&ending), "{line}");
            assert!(kind != "counter" || format == Format::OpenMetrics || name.ends_with("_total"), "{line}");
            assert_eq!(ending == "_bucket", labels.iter().any(|(label, _)| label == "le"), "{line}");
            if format == Format::OpenMetrics
                && let Some((_, bound)) = labels.iter().find(|(label, _)| label == "le")
            {
                assert!(bound == "+Inf" || bound.contains('.'), "not canonical: {line}");
            }
            assert!(series.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    assert_eq!(help, None, "a description without a type");
    series
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(after) = rest.strip_prefix('{') {
        rest = after;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label) && labels.iter().all(|(known, _)| known != label), "{line}");
            let mut chars = value.char_indices();
            let mut read = String::new();
            let end = loop {
                match chars.next().unwrap_or_else(|| panic!("{line}")) {
                    (at, '"') => break at,
                    (_, '\\') => read.push(match chars.next() {
                        Some((_, 'n')) => '\n',
                        Some((_, c @ ('"' | '\\'))) => c,
                        other => panic!("{other:?} after a backslash: {line}"),
                    }),
                    (_, c) => read.push(c),
                }
            };
            labels.push((label.to_owned(), read));
            rest = &value[end + 1..];
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(!value.contains(' '), "{line}");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

fn at(series: &Series, name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    series[&(name.to_owned(), labels)]
}

const FORMATS: [Format; 2] = [Format::Text, Format::OpenMetrics];

#[test]
fn each_kind_is_written_by_its_rules() {
    let mut times = Histogram::default();
    for ms in [1, 20, 700, 900_000] {
        times.observe(Duration::from_millis(ms));
    }
    let families = [
        MetricFamily::new(Kind::Counter, "a", "A.").with(&[], 3.0),
        MetricFamily::new(Kind::Gauge, "b", "B.").with(&[("x", "1")], 0.5).with(&[("x", "2")], 1.0),
        MetricFamily::new(Kind::Info, "c", "C.").with(&[("version", "1")], 1.0),
        MetricFamily::new(Kind::Summary, "d", "D.").with_sum(&[], 2.5, 2),
        MetricFamily::new(Kind::Histogram, "e", "E.").with_histogram(&[("p", "x")], &times),
        MetricFamily::new(Kind::Gauge, "f", "Nothing."),
    ];
    for format in FORMATS {
        let series = read(format, &format.write(&families));
        assert_eq!(at(&series, "a_total", &[]), 3.0);
        assert_eq!(at(&series, "b", &[("x", "1")]), 0.5);
        assert_eq!(at(&series, "c_info", &[("version", "1")]), 1.0);
        assert_eq!((at(&series, "d_sum", &[]), at(&series, "d_count", &[])), (2.5, 2.0));
        assert_eq!(at(&series, "e_bucket", &[("p", "x"), ("le", "0.001")]), 1.0);
        assert_eq!(at(&series, "e_bucket", &[("p", "x"), ("le", "0.025")]), 2.0);
        assert_eq!(at(&series, "e_bucket", &[("p", "x"), ("le", "+Inf")]), 4.0);
        assert_eq!(at(&series, "e_count", &[("p", "x")]), 4.0);
        assert_eq!(at(&series, "e_sum", &[("p", "x")]), 900.721);
    }
    let text = Format::Text.write(&families);
    assert!(text.contains("# TYPE a_total counter\na_total 3\n"), "{text}");
    assert!(text.contains("# TYPE c_info gauge\n"), "{text}");
    assert!(text.contains("le=\"1\"") && !text.contains("# EOF"), "{text}");
    let open = Format::OpenMetrics.write(&families);
    assert!(open.contains("# TYPE a counter\na_total 3\n"), "{open}");
    assert!(open.contains("# TYPE c info\nc_info{version=\"1\"} 1\n"), "{open}");
    assert!(open.contains("le=\"1.0\"") && open.ends_with("# EOF\n"), "{open}");
}

#[test]
fn the_reader_refuses_what_is_wrong() {
    for text in [
        "# HELP a A.\n# TYPE a counter\na 1\n",
        "# HELP a A.\n# TYPE a gauge\na 1",
        "# HELP a A.\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a A.\n# TYPE a gauge\na{x=\"1} 1\n",
        "# HELP a A.\n# TYPE a gauge\na{x=\"\\t\"} 1\n",
        "# HELP a A.\n# TYPE a gauge\nb 1\n",
        "# TYPE a gauge\na 1\n",
    ] {
        assert!(std::panic::catch_unwind(|| read(Format::Text, text)).is_err(), "{text}");
    }
}

#[track_caller]
fn check(accept: &str, expected: Format) {
    let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())]);
    assert_eq!(Format::preferred(&headers), expected, "{accept}");
}

#[test]
fn the_format_is_the_one_that_is_liked_better() {
    use Format::{OpenMetrics, Text};
    assert_eq!(Format::preferred(&HeaderMap::new()), Text);
    for accept in [
        "",
        "*/*",
        "text/plain",
        "text/*",
        "application/json",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=0.3,text/plain;q=0.4",
        "application/openmetrics-text;q=0.5,*/*;q=0.5",
        "application/openmetrics-text; version=2.0.0",
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;q=2",
        "openmetrics-text",
        "application/*;q=0.1, text/plain; version=0.0.4",
        // A release before OpenMetrics.
        "text/plain;version=0.0.4;q=1,*/*;q=0.1",
        // The protobuf format first, which is not supported here.
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
         text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    ] {
        check(accept, Text);
    }
    for accept in [
        "application/openmetrics-text",
        "Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8",
        "text/plain;q=0.5, application/openmetrics-text;version=1.0.0;q=0.6",
        "text/plain;q=0, */*;q=0.1",
        // The headers of Prometheus 2 and 3.
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
         text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
         application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
         text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    ] {
        check(accept, OpenMetrics);
    }
}

#[test]
fn accept_may_come_in_several_headers() {
    let mut headers = HeaderMap::new();
    headers.append(header::ACCEPT, HeaderValue::from_static("text/plain;q=0.1"));
    headers.append(header::ACCEPT, HeaderValue::from_static("application/openmetrics-text"));
    assert_eq!(Format::preferred(&headers), Format::OpenMetrics);
}

proptest! {
    #[test]
    fn whatever_stands_in_a_label_is_read_back(
        values in prop::collection::btree_set(any::<String>(), 1..8),
        number in any::<f64>().prop_filter("a number", |number| !number.is_nan()),
    ) {
        let family = MetricFamily::new(Kind::Gauge, "g", "G.")
            .with_each(&values, |family, value| family.with(&[("a", value), ("b", "x")], number));
        for format in FORMATS {
            let series = read(format, &format.write(std::slice::from_ref(&family)));
            prop_assert_eq!(series.len(), values.len());
            for value in &values {
                prop_assert_eq!(at(&series, "g", &[("a", value), ("b", "x")]), number);
            }
        }
    }

    #[test]
    fn no_header_makes_the_choice_panic(accept in "[ -~]{0,80}") {
        let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(&accept).unwrap())]);
        let _ = Format::preferred(&headers);
    }
}
