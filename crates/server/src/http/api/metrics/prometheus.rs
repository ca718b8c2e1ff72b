//! Metrics as text for Prometheus: the format 0.0.4, and OpenMetrics 1.0 for clients that ask
//! for it.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>,
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>

#[cfg(test)]
mod test;

use std::fmt::Write as _;

use axum::http::{HeaderMap, header};

use crate::operation_metrics::Histogram;

/// Types of metric families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Value that only rises; its name ends in `_total`.
    Counter,
    /// Value that rises and falls.
    Gauge,
    /// Labels with the constant value 1; its name ends in `_info`.
    Info,
    /// A sum and a count.
    Summary,
    /// Buckets, a sum and a count.
    Histogram,
}

/// Labels of one series.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Metric family: the series of one name.
#[derive(Debug, Clone)]
pub struct MetricFamily {
    /// Name without the suffix of the kind.
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone)]
struct Sample {
    ending: &'static str,
    labels: Vec<(&'static str, String)>,
    /// Upper bound of a bucket, in seconds; infinite for the last.
    bound: Option<f64>,
    value: f64,
}

impl MetricFamily {
    /// Returns a family without series. `name` lacks the suffix of the kind.
    #[must_use]
    pub fn new(kind: Kind, name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind, samples: Vec::new() }
    }

    /// Adds a series of a counter, gauge or info.
    #[must_use]
    pub fn with(mut self, labels: Labels<'_>, value: f64) -> Self {
        self.push(self.ending(), labels, None, value);
        self
    }

    /// Adds one series for each item.
    #[must_use]
    pub fn with_each<T>(self, items: impl IntoIterator<Item = T>, add: impl Fn(Self, T) -> Self) -> Self {
        items.into_iter().fold(self, add)
    }

    /// Adds the series of a summary.
    #[must_use]
    pub fn with_sum(mut self, labels: Labels<'_>, sum: f64, count: u64) -> Self {
        self.push("_sum", labels, None, sum);
        self.push("_count", labels, None, count as f64);
        self
    }

    /// Adds the series of a histogram, in seconds.
    #[must_use]
    pub fn with_histogram(mut self, labels: Labels<'_>, histogram: &Histogram) -> Self {
        for (bound, count) in histogram.cumulative() {
            self.push("_bucket", labels, Some(bound.as_secs_f64()), count as f64);
        }
        self.push("_bucket", labels, Some(f64::INFINITY), histogram.count as f64);
        self.push("_sum", labels, None, histogram.total.as_secs_f64());
        self.push("_count", labels, None, histogram.count as f64);
        self
    }

    fn push(&mut self, ending: &'static str, labels: Labels<'_>, bound: Option<f64>, value: f64) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push(Sample { ending, labels, bound, value });
    }

    /// Returns the suffix that the kind adds to the name of a series.
    fn ending(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Summary | Kind::Histogram => "",
        }
    }
}

/// Text formats of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the format that `Accept` prefers; the text format if it prefers both alike,
    /// accepts neither, or is missing.
    #[must_use]
    pub fn preferred(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<Range<'_>> = values.flat_map(|value| value.split(',')).filter_map(Range::parse).collect();
        let open = quality(&ranges, "application", "openmetrics-text", "1.0.0");
        let text = quality(&ranges, "text", "plain", "0.0.4");
        if open > text { Format::OpenMetrics } else { Format::Text }
    }

    /// Writes all of `families`.
    #[must_use]
    pub fn write(self, families: &[MetricFamily]) -> String {
        let mut text = String::with_capacity(16 * 1024);
        for family in families {
            self.write_family(&mut text, family);
        }
        if self == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn write_family(self, text: &mut String, family: &MetricFamily) {
        let ending = match self {
            // This format describes the full name of the series.
            Format::Text => family.ending(),
            Format::OpenMetrics => "",
        };
        let kind = match (family.kind, self) {
            (Kind::Counter, _) => "counter",
            (Kind::Info, Format::OpenMetrics) => "info",
            (Kind::Gauge, _) | (Kind::Info, Format::Text) => "gauge",
            (Kind::Summary, _) => "summary",
            (Kind::Histogram, _) => "histogram",
        };
        let name = family.name;
        let _ = writeln!(text, "# HELP {name}{ending} {}", family.help);
        let _ = writeln!(text, "# TYPE {name}{ending} {kind}");
        for sample in &family.samples {
            text.push_str(name);
            text.push_str(sample.ending);
            let bound = sample.bound.map(|bound| ("le", self.number(bound)));
            let labels = sample.labels.iter().map(|(name, value)| (*name, value.as_str()));
            let labels = labels.chain(bound.iter().map(|(name, value)| (*name, value.as_str())));
            for (index, (label, value)) in labels.enumerate() {
                text.push(if index == 0 { '{' } else { ',' });
                let _ = write!(text, "{label}=\"");
                escape(text, value);
                text.push('"');
            }
            if !sample.labels.is_empty() || bound.is_some() {
                text.push('}');
            }
            let _ = writeln!(text, " {}", plain(sample.value));
        }
    }

    /// Writes a bound as a label. OpenMetrics requires a decimal point in it.
    fn number(self, bound: f64) -> String {
        match self {
            _ if bound.is_infinite() => "+Inf".to_owned(),
            Format::Text => bound.to_string(),
            Format::OpenMetrics => format!("{bound:?}"),
        }
    }
}

fn plain(value: f64) -> String {
    if value.is_infinite() { (if value > 0.0 { "+Inf" } else { "-Inf" }).to_owned() } else { value.to_string() }
}

/// Escapes a label value:
/// <https://prometheus.io/docs/instrumenting/exposition_formats/#comments-help-text-and-type-information>.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

/// One range of `Accept`: <https://www.rfc-editor.org/rfc/rfc9110#section-12.5.1>.
struct Range<'a> {
    kind: &'a str,
    sub: &'a str,
    version: Option<&'a str>,
    /// Weight (`q`) in thousandths.
    quality: u16,
}

impl<'a> Range<'a> {
    /// Parses a range. Returns `None` if it is malformed.
    fn parse(part: &'a str) -> Option<Self> {
        let mut parameters = part.split(';').map(str::trim);
        let (kind, sub) = parameters.next()?.split_once('/')?;
        let mut range = Range { kind, sub, version: None, quality: 1000 };
        for (name, value) in parameters.filter_map(|parameter| parameter.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim() {
                "q" | "Q" => {
                    let quality: f64 = value.parse().ok().filter(|quality| (0.0..=1.0).contains(quality))?;
                    range.quality = (quality * 1000.0).round() as u16;
                }
                name if name.eq_ignore_ascii_case("version") => range.version = Some(value),
                _ => {}
            }
        }
        Some(range)
    }

    /// Returns how specifically the range matches the type, from 0 to 3; `None` if it does not
    /// match.
    fn closeness(&self, kind: &str, sub: &str, version: &str) -> Option<u8> {
        let is_kind = self.kind.eq_ignore_ascii_case(kind);
        let is_sub = self.sub.eq_ignore_ascii_case(sub);
        match (self.version, is_kind, is_sub) {
            (Some(asked), true, true) => (asked == version).then_some(3),
            (None, true, true) => Some(2),
            (_, true, false) if self.sub == "*" => Some(1),
            (_, false, _) if self.kind == "*" && self.sub == "*" => Some(0),
            _ => None,
        }
    }
}

/// Returns the weight of the most specific range that matches the type, in thousandths; 0 if
/// none does.
fn quality(ranges: &[Range<'_>], kind: &str, sub: &str, version: &str) -> u16 {
    let close = ranges.iter().filter_map(|range| Some((range.closeness(kind, sub, version)?, range.quality)));
    close.max().map_or(0, |(_, quality)| quality)
}
