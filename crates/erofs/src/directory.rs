//! Entries of a directory, in blocks: in each first the entries, then their names.

use super::format::{BLOCK, ENTRY_BYTES, Kind};

/// Entry of a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    /// Number of the inode, once that is known.
    pub(crate) inode: u64,
}

/// Returns the entries that every directory has, for itself and the one above it.
pub(crate) fn dots() -> Vec<Entry> {
    [".", ".."].map(|name| Entry { name: name.as_bytes().to_vec(), kind: Kind::Directory, inode: 0 }).into()
}

/// Sorts entries as a directory has them, by the bytes of their names.
pub(crate) fn sort(entries: &mut [Entry]) {
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
}

/// Returns the lengths of what each block holds. The entries are sorted by name.
pub(crate) fn blocks(entries: &[Entry]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for entry in entries {
        let bytes = ENTRY_BYTES + entry.name.len();
        match blocks.last_mut() {
            Some(last) if last.bytes + bytes <= BLOCK => {
                last.bytes += bytes;
                last.entries += 1;
            }
            _ => blocks.push(Block { entries: 1, bytes }),
        }
    }
    blocks
}

/// Entries that share a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    entries: usize,
    bytes: usize,
}

/// Returns the length of a directory's content.
pub(crate) fn size(blocks: &[Block]) -> usize {
    blocks.last().map_or(0, |last| (blocks.len() - 1) * BLOCK + last.bytes)
}

/// Returns the content of a directory, as long as [`size`] says.
pub(crate) fn content(entries: &[Entry], blocks: &[Block]) -> Vec<u8> {
    let mut content = Vec::with_capacity(size(blocks));
    let mut entries = entries;
    for block in blocks {
        content.resize(content.len().next_multiple_of(BLOCK), 0);
        let (here, rest) = entries.split_at(block.entries);
        entries = rest;
        let mut name_at = here.len() * ENTRY_BYTES;
        for entry in here {
            content.extend_from_slice(&entry.inode.to_le_bytes());
            // Below the size of a block.
            content.extend_from_slice(&u16::try_from(name_at).unwrap_or(u16::MAX).to_le_bytes());
            content.extend_from_slice(&[entry.kind as u8, 0]);
            name_at += entry.name.len();
        }
        here.iter().for_each(|entry| content.extend_from_slice(&entry.name));
    }
    content
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_block_is_filled_and_never_overfull() {
        let entries: Vec<Entry> = (0..100u64)
            .map(|n| Entry { name: format!("{n:0>116}").into_bytes(), kind: Kind::File, inode: n })
            .collect();
        let blocks = blocks(&entries);
        // 32 entries of 128 bytes fill a block.
        assert_eq!(blocks.iter().map(|block| block.entries).collect::<Vec<_>>(), [32, 32, 32, 4]);
        assert_eq!(size(&blocks), 3 * BLOCK + 4 * 128);
        let content = content(&entries, &blocks);
        assert_eq!(content.len(), size(&blocks));
        assert_eq!(&content[BLOCK..BLOCK + 12], [32, 0, 0, 0, 0, 0, 0, 0, 128, 1, 1, 0]);
        assert!(content[BLOCK + 32 * 12..].starts_with(&entries[32].name));
    }
}
