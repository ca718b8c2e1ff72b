//! Differences of two trees, and what makes the target like the source.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::listing::{Entry, Kind, Tree, shown};
use super::steps::split;

/// Changes that make the target like the source.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Entries of the target to remove, those in a directory before it, each with whether it is a directory.
    pub remove: Vec<(Vec<u8>, bool)>,
    /// Directories to make, each before those in it.
    pub directories: Vec<Vec<u8>>,
    /// Files and links to send, by name.
    pub send: Vec<Vec<u8>>,
    /// Files and links of which only mode or time differ.
    pub attributes: BTreeSet<Vec<u8>>,
    /// Directories whose mode and time are set at the end, each before those in it; new ones are among them.
    pub settle: Vec<Vec<u8>>,
    /// Number of entries that are equal.
    pub equal: u64,
    /// Number of entries of the target that the source does not have, and that stay.
    pub extra: u64,
    /// Number of devices, FIFOs and sockets of the source.
    pub left_out: u64,
}

/// Rules of a comparison.
pub struct Rules {
    pub delete: bool,
    /// Mode bits that count.
    pub mode: u32,
}

/// Answer to whether the contents of two files of one size and name are equal, or the error of reading one.
pub type SameContent<'a> = dyn FnMut(&[u8], &Entry, &Entry) -> std::io::Result<bool> + 'a;

/// Compares two trees. `same_content` is asked for files of the same size, if contents are to be compared.
///
/// # Errors
/// If a directory stands in the way of a file, or the reverse, and may not be removed; or if a file cannot be
/// read.
pub fn plan(
    source: &Tree,
    target: &Tree,
    rules: &Rules,
    mut same_content: Option<&mut SameContent<'_>>,
) -> std::io::Result<Plan> {
    let mut plan = Plan::default();
    // Incomplete knowledge of the source is no reason to delete.
    let delete = rules.delete && source.unreadable == 0;
    let mut removed = BTreeMap::new();
    for (path, entry) in &target.entries {
        let is_dir = entry.kind == Kind::Directory;
        match source.entries.get(path) {
            None if delete => drop(removed.insert(path.clone(), is_dir)),
            None => plan.extra += 1,
            Some(of_source) if of_source.kind == Kind::Other => {}
            Some(of_source) if is_dir != (of_source.kind == Kind::Directory) => {
                if !delete {
                    return Err(std::io::Error::other(format!(
                        "`{}` is a directory on one side only; use --delete to replace it",
                        shown(path)
                    )));
                }
                removed.insert(path.clone(), is_dir);
            }
            Some(_) => {}
        }
    }
    let mut changed = BTreeSet::new();
    let mut settle = BTreeSet::new();
    for (path, entry) in &source.entries {
        let there = target.entries.get(path).filter(|_| !removed.contains_key(path));
        match (&entry.kind, there) {
            (Kind::Other, _) => plan.left_out += 1,
            (Kind::Directory, None) => {
                plan.directories.push(path.clone());
                settle.insert(path.clone());
            }
            (Kind::Directory, Some(there)) if has_same_attributes(entry, there, rules) => plan.equal += 1,
            (Kind::Directory, Some(_)) => drop(settle.insert(path.clone())),
            (_, Some(there)) if is_same(path, entry, there, &mut same_content)? => {
                if has_same_attributes(entry, there, rules) {
                    plan.equal += 1;
                } else {
                    plan.attributes.insert(path.clone());
                }
            }
            _ => drop(changed.insert(path.clone())),
        }
    }
    whole_groups(source, &mut plan, &mut changed);
    // What is made or removed in a directory changes its time.
    for path in changed.iter().chain(removed.keys()).chain(&plan.directories) {
        let (above, _) = split(path);
        let stays = source.entries.get(above).is_some_and(|entry| entry.kind == Kind::Directory);
        if stays && !path.is_empty() && settle.insert(above.to_vec()) {
            plan.equal = plan.equal.saturating_sub(1);
        }
    }
    plan.send = changed.into_iter().collect();
    plan.settle = settle.into_iter().collect();
    plan.remove = removed.into_iter().rev().collect();
    Ok(plan)
}

/// Returns whether two entries have the same time and, unless they are links, the same mode.
fn has_same_attributes(entry: &Entry, there: &Entry, rules: &Rules) -> bool {
    let has_mode = !matches!(entry.kind, Kind::Link { .. });
    there.mtime == entry.mtime && !(has_mode && (there.mode ^ entry.mode) & rules.mode != 0)
}

/// Returns whether two entries have the same content.
fn is_same(
    path: &[u8],
    entry: &Entry,
    there: &Entry,
    same_content: &mut Option<&mut SameContent<'_>>,
) -> std::io::Result<bool> {
    match (&entry.kind, &there.kind) {
        (Kind::File { size: a, first: a_first, .. }, Kind::File { size: b, first: b_first, .. }) => {
            if a != b || a_first != b_first {
                return Ok(false);
            }
            match same_content {
                Some(same_content) => same_content(path, entry, there),
                None => Ok(entry.mtime == there.mtime),
            }
        }
        (Kind::Link { target: a }, Kind::Link { target: b }) => Ok(a == b),
        _ => Ok(false),
    }
}

/// Sends all names of a file of which one is sent: a new file replaces the old one under each of them.
fn whole_groups(source: &Tree, plan: &mut Plan, changed: &mut BTreeSet<Vec<u8>>) {
    let touched: BTreeSet<Vec<u8>> =
        changed.iter().chain(&plan.attributes).filter_map(|path| first_name(source, path)).collect();
    if touched.is_empty() {
        return;
    }
    let mut groups: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
    for path in source.entries.keys() {
        if let Some(first) = first_name(source, path).filter(|first| touched.contains(first)) {
            groups.entry(first).or_default().push(path.clone());
        }
    }
    for path in groups.into_values().flatten() {
        if !plan.attributes.remove(&path) && !changed.contains(&path) {
            plan.equal = plan.equal.saturating_sub(1);
        }
        changed.insert(path);
    }
}

/// Returns the first name of a file that has several.
fn first_name(source: &Tree, path: &[u8]) -> Option<Vec<u8>> {
    match source.entries.get(path) {
        Some(Entry { kind: Kind::File { first, .. }, .. }) => first.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn entry(kind: Kind) -> Entry {
        Entry { kind, mode: 0o755, mtime: (1, 5) }
    }

    fn file(size: u64) -> Entry {
        entry(Kind::File { size, sha256: None, first: None })
    }

    fn tree(entries: &[(&str, Entry)]) -> Tree {
        let root = (Vec::new(), entry(Kind::Directory));
        let entries = entries.iter().map(|(path, entry)| (path.as_bytes().to_vec(), entry.clone()));
        Tree { entries: entries.chain([root]).collect(), ..Tree::default() }
    }

    fn paths(paths: &[Vec<u8>]) -> Vec<&str> {
        paths.iter().map(|path| str::from_utf8(path).unwrap()).collect()
    }

    fn set(paths: &BTreeSet<Vec<u8>>) -> Vec<&str> {
        paths.iter().map(|path| str::from_utf8(path).unwrap()).collect()
    }

    const RULES: Rules = Rules { delete: true, mode: 0o777 };

    #[test]
    fn only_what_differs_is_in_the_plan() {
        let dir = || entry(Kind::Directory);
        let source = tree(&[("a", file(1)), ("d", dir()), ("d/b", file(2)), ("d/new", file(3)), ("e", dir())]);
        let target = tree(&[("a", file(1)), ("d", dir()), ("d/b", file(9)), ("x", dir()), ("x/y", file(1))]);
        let done = plan(&source, &target, &RULES, None).unwrap();
        assert_eq!(paths(&done.send), ["d/b", "d/new"]);
        assert_eq!(paths(&done.directories), ["e"]);
        assert_eq!(paths(&done.settle), ["", "d", "e"]);
        assert_eq!(done.remove, [(b"x/y".to_vec(), false), (b"x".to_vec(), true)]);
        let kept = plan(&source, &target, &Rules { delete: false, ..RULES }, None).unwrap();
        assert_eq!((kept.remove.len(), kept.extra), (0, 2));
        let again = plan(&source, &source, &RULES, None).unwrap();
        assert_eq!(again, Plan { equal: 6, ..Plan::default() });
    }

    #[test]
    fn a_source_that_is_not_wholly_known_deletes_nothing() {
        let source = Tree { unreadable: 1, ..tree(&[]) };
        let target = tree(&[("x", file(1))]);
        assert!(plan(&source, &target, &RULES, None).unwrap().remove.is_empty());
    }

    #[test]
    fn a_directory_in_the_way_of_a_file_is_replaced_only_if_it_may_be_deleted() {
        let source = tree(&[("a", file(1))]);
        let target = tree(&[("a", entry(Kind::Directory)), ("a/b", file(1))]);
        assert!(plan(&source, &target, &Rules { delete: false, ..RULES }, None).is_err());
        let done = plan(&source, &target, &RULES, None).unwrap();
        assert_eq!(done.remove, [(b"a/b".to_vec(), false), (b"a".to_vec(), true)]);
        assert_eq!(paths(&done.send), ["a"]);
        let reverse = plan(&target, &source, &RULES, None).unwrap();
        assert_eq!((paths(&reverse.directories), paths(&reverse.send)), (vec!["a"], vec!["a/b"]));
        assert_eq!(reverse.remove, [(b"a".to_vec(), false)]);
    }

    #[test]
    fn modes_and_times_alone_send_no_content_and_contents_of_one_time_are_compared_on_request() {
        let mut later = file(1);
        later.mode = 0o700;
        let source = tree(&[("a", later), ("b", file(1))]);
        let target = tree(&[("a", file(1)), ("b", file(1))]);
        let done = plan(&source, &target, &RULES, None).unwrap();
        assert_eq!((set(&done.attributes), done.send.len(), done.settle.len()), (vec!["a"], 0, 0));
        let mut differ = |path: &[u8], _: &Entry, _: &Entry| Ok(path != b"b");
        let done = plan(&source, &target, &RULES, Some(&mut differ)).unwrap();
        assert_eq!((set(&done.attributes), paths(&done.send)), (vec!["a"], vec!["b"]));
    }

    #[test]
    fn all_names_of_a_file_go_together() {
        let named = |size| entry(Kind::File { size, sha256: None, first: Some(b"a".to_vec()) });
        let source = tree(&[("a", named(1)), ("b", named(1))]);
        let target = tree(&[("a", file(1)), ("b", file(1))]);
        assert_eq!(paths(&plan(&source, &target, &RULES, None).unwrap().send), ["a", "b"]);
        let target = tree(&[("a", named(2)), ("b", named(1))]);
        assert_eq!(paths(&plan(&source, &target, &RULES, None).unwrap().send), ["a", "b"]);
        assert!(plan(&source, &source, &RULES, None).unwrap().send.is_empty());
    }
}
