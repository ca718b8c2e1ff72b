//! Suggestions for misspelt names.

/// Least likeness of a suggestion; below it, one would only confuse.
const LIKENESS_MIN: f64 = 0.5;

/// Returns the dotted name that is most like `name`, or whose last part is: a key in the wrong
/// section is a common slip.
pub(super) fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let rated = names.map(|candidate| (likeness(name, candidate), candidate));
    let best = rated.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(likeness, _)| *likeness >= LIKENESS_MIN).map(|(_, name)| name)
}

fn likeness(name: &str, candidate: &str) -> f64 {
    let whole = strsim::normalized_damerau_levenshtein(name, candidate);
    let of_last = strsim::normalized_damerau_levenshtein(last(name), last(candidate));
    // Slightly less, so that the right section wins between equals.
    whole.max(0.95 * of_last)
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: Option<&str>) {
        let names = ["server.port", "server.host", "defaults.ttl", "defaults.max_ttl", "data_dir"];
        assert_eq!(nearest(name, names.into_iter()), expected, "{name}");
    }

    #[test]
    fn a_slip_finds_what_was_meant() {
        check("server.prot", Some("server.port"));
        check("port", Some("server.port"));
        check("limits.max_ttl", Some("defaults.max_ttl"));
        check("datadir", Some("data_dir"));
        check("completely_different_thing", None);
    }
}
