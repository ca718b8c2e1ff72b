//! Modules that a guest needs, with those that they need, in the order in which they are loaded.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path};

use super::error::{Error, Result};
use super::{packed, release};

/// Modules that a guest needs, where they are not built in, with the options that make them.
const NEEDED: &[(&str, &str)] = &[
    ("virtio_mmio", "CONFIG_VIRTIO_MMIO"),
    ("virtio_blk", "CONFIG_VIRTIO_BLK"),
    ("vmw_vsock_virtio_transport", "CONFIG_VIRTIO_VSOCKETS"),
    ("virtio_rng", "CONFIG_HW_RANDOM_VIRTIO"),
    ("ext4", "CONFIG_EXT4_FS"),
    ("overlay", "CONFIG_OVERLAY_FS"),
];

/// Maximum size of an index; those of distributions have 2 MB.
const INDEX_LEN_MAX: u64 = 64 << 20;
/// Maximum size of a module, unpacked or not; those in use have less than 2 MB.
const MODULE_LEN_MAX: u64 = 64 << 20;
/// Maximum number of modules, which also bounds the depth of their needs; those in use are 15.
const COUNT_MAX: usize = 256;
/// Endings of a module's file.
const ENDINGS: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];

/// Module as the kernel loads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// File's name, such as `virtio_blk.ko`.
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// Reads the modules that a guest needs from the folder of a kernel's modules, in the order in which
/// they are loaded. Each has to be for the kernel of this release, if it is known.
///
/// # Errors
/// If one is missing, damaged, or for another kernel, or the folder cannot be read.
pub(super) fn read(folder: &Path, release: Option<&str>) -> Result<Vec<Module>> {
    let index = Index::read(folder)?;
    let mut order = Order::of(&index);
    for (module, option) in NEEDED {
        if !index.builtin.contains(*module) && !index.files.contains_key(*module) {
            return Err(Error::ModuleMissing { module: (*module).to_owned(), option, folder: folder.to_owned() });
        }
        order.add(module);
    }
    if order.is_cut {
        return Err(Error::damaged(
            &folder.join("modules.dep"),
            format!("a guest would need over {COUNT_MAX} modules"),
        ));
    }
    order.paths.into_iter().map(|path| read_module(folder, path, release)).collect()
}

/// Files of kmod that say which modules there are, and what they need.
#[derive(Debug, Default)]
struct Index {
    /// Paths below the folder, by the modules' names.
    files: HashMap<String, String>,
    /// All modules without which the symbols of another are not there, in the order of `modules.dep`:
    /// each behind those that need it.
    needs: HashMap<String, Vec<String>>,
    /// Modules to be loaded before another where they exist, by their names or aliases.
    wishes: HashMap<String, Vec<String>>,
    aliases: HashMap<String, Vec<String>>,
    builtin: HashSet<String>,
}

impl Index {
    fn read(folder: &Path) -> Result<Index> {
        let mut index = Index::default();
        for line in text(folder, "modules.builtin")?.lines() {
            index.builtin.extend(name_of(line.trim()));
        }
        for line in text(folder, "modules.dep")?.lines() {
            let Some((path, needs)) = line.split_once(':') else { continue };
            let Some(name) = name_of(path) else { continue };
            index.needs.insert(name.clone(), needs.split_whitespace().filter_map(name_of).collect());
            index.files.insert(name, path.to_owned());
        }
        for line in text(folder, "modules.softdep")?.lines() {
            let mut words = line.split_whitespace();
            let (Some("softdep"), Some(name)) = (words.next(), words.next()) else { continue };
            let before = words.skip_while(|word| *word != "pre:").skip(1).take_while(|word| *word != "post:");
            index.wishes.entry(normal(name)).or_default().extend(before.map(normal));
        }
        for line in text(folder, "modules.alias")?.lines() {
            let mut words = line.split_whitespace();
            let (Some("alias"), Some(alias), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            index.aliases.entry(normal(alias)).or_default().push(normal(name));
        }
        Ok(index)
    }
}

/// Search through what modules need, depth first.
struct Order<'a> {
    index: &'a Index,
    seen: HashSet<&'a str>,
    /// Modules whose needs are being added.
    waiting: Vec<&'a str>,
    /// Files of the modules, in the order in which they are loaded.
    paths: Vec<&'a str>,
    /// True if there were more modules than there may be.
    is_cut: bool,
}

impl<'a> Order<'a> {
    fn of(index: &'a Index) -> Order<'a> {
        Order { index, seen: HashSet::new(), waiting: Vec::new(), paths: Vec::new(), is_cut: false }
    }

    /// Adds a module behind what it needs. One that has no file is built in, or only wished for.
    fn add(&mut self, name: &str) {
        let Some((name, path)) = self.index.files.get_key_value(name) else { return };
        if self.seen.len() >= COUNT_MAX {
            self.is_cut |= !self.seen.contains(name.as_str());
            return;
        }
        if !self.seen.insert(name) {
            return;
        }
        self.waiting.push(name);
        for wish in self.index.wishes.get(name).into_iter().flatten() {
            self.add_wished(wish);
            self.index.aliases.get(wish).into_iter().flatten().for_each(|module| self.add_wished(module));
        }
        for need in self.index.needs.get(name).into_iter().flatten().rev() {
            self.add(need);
        }
        self.waiting.pop();
        self.paths.push(path);
    }

    /// Adds a module, unless it needs one that is to come behind it.
    fn add_wished(&mut self, name: &str) {
        let mut needs = self.index.needs.get(name).into_iter().flatten();
        if !needs.any(|need| self.waiting.contains(&need.as_str())) {
            self.add(name);
        }
    }
}

/// Returns a module's name as `lsmod` shows it, from the path of its file.
fn name_of(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    ENDINGS.iter().find_map(|ending| file.strip_suffix(ending)).filter(|name| !name.is_empty()).map(normal)
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns an index; one that is not there is empty.
fn text(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(name);
    match read_bounded(&path, INDEX_LEN_MAX) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| Error::damaged(&path, "it is not text")),
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn read_module(folder: &Path, inner: &str, release: Option<&str>) -> Result<Module> {
    let path = folder.join(inner);
    if Path::new(inner).components().any(|part| !matches!(part, Component::Normal(_))) {
        return Err(Error::damaged(
            &folder.join("modules.dep"),
            format!("it points outside of the folder, to {inner}"),
        ));
    }
    let unpacked = packed::unpack_module(read_bounded(&path, MODULE_LEN_MAX)?, MODULE_LEN_MAX);
    let content = unpacked.map_err(|reason| Error::damaged(&path, reason))?;
    if let (Some(release), Some(found)) = (release, built_for(&content))
        && release != found
    {
        return Err(Error::OtherRelease { path, found: found.to_owned(), release: release.to_owned() });
    }
    let file = inner.rsplit('/').next().unwrap_or(inner);
    let name = file.split_once(".ko").map_or(file, |(name, _)| name);
    Ok(Module { name: format!("{name}.ko"), content })
}

/// Returns the release of the kernel that a module was built for.
fn built_for(module: &[u8]) -> Option<&str> {
    const MAGIC: &[u8] = b"\0vermagic=";
    let at = module.windows(MAGIC.len()).position(|text| text == MAGIC)?;
    release::leading(&module[at + MAGIC.len()..])
}

fn read_bounded(path: &Path, len_max: u64) -> Result<Vec<u8>> {
    // Anything but a file could block for ever.
    if !std::fs::metadata(path).map_err(Error::reading(path))?.is_file() {
        return Err(Error::read(path, io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(len_max + 1).read_to_end(&mut bytes)).map_err(Error::reading(path))?;
    if bytes.len() as u64 > len_max {
        return Err(Error::damaged(path, format!("it has more than {len_max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod test;
