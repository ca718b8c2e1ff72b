//! Structures of the format. Numbers are little-endian.

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// Binary logarithm of [`BLOCK`].
const BLOCK_BITS: u8 = 12;
/// Offset of the superblock in the image.
const SUPERBLOCK_AT: usize = 1024;
const SUPERBLOCK_BYTES: usize = 128;
const MAGIC: u32 = 0xE0F5_E1E2;
/// Unit of the numbers of inodes: an inode is at its number times this.
pub(crate) const SLOT: usize = 32;
/// Bytes of an inode in the extended form, the only one used here.
pub(crate) const INODE_BYTES: usize = 64;
/// Bytes of an entry of a directory, without the name.
pub(crate) const ENTRY_BYTES: usize = 12;
/// Bytes before the attributes of an inode.
pub(crate) const ATTRIBUTES_HEAD: usize = 12;
/// Most bytes of the attributes of an inode, which counts them in units of four.
pub(crate) const ATTRIBUTES_BYTES_MAX: usize = ATTRIBUTES_HEAD + 4 * (u16::MAX as usize - 1);

/// Place of an inode's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All of it in blocks.
    Plain,
    /// Whole blocks, and the rest behind the inode.
    Inline,
}

/// Kind of an inode, as entries of directories have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    File = 1,
    Directory = 2,
    Characters = 3,
    Blocks = 4,
    Fifo = 5,
    Socket = 6,
    Link = 7,
}

/// Fields of an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inode {
    pub(crate) layout: Layout,
    pub(crate) mode: u16,
    pub(crate) size: u64,
    /// First block of the content, or the number of a device.
    pub(crate) place: u32,
    pub(crate) number: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: u64,
    pub(crate) mtime_nsec: u32,
    pub(crate) links: u32,
}

impl Inode {
    /// Encodes the inode, with the length of the attributes that follow it.
    pub(crate) fn encode(&self, attribute_bytes: usize) -> [u8; INODE_BYTES] {
        const EXTENDED: u16 = 1;
        let layout: u16 = match self.layout {
            Layout::Plain => 0,
            Layout::Inline => 2,
        };
        // The head counts as one unit, whatever its length.
        let units = attribute_bytes.checked_sub(ATTRIBUTES_HEAD).map_or(0, |bytes| bytes / 4 + 1);
        let mut fields = Fields([0; INODE_BYTES]);
        fields.put(0, &(EXTENDED | layout << 1).to_le_bytes());
        fields.put(2, &u16::try_from(units).unwrap_or(u16::MAX).to_le_bytes());
        fields.put(4, &self.mode.to_le_bytes());
        fields.put(8, &self.size.to_le_bytes());
        fields.put(16, &self.place.to_le_bytes());
        fields.put(20, &self.number.to_le_bytes());
        fields.put(24, &self.uid.to_le_bytes());
        fields.put(28, &self.gid.to_le_bytes());
        fields.put(32, &self.mtime.to_le_bytes());
        fields.put(40, &self.mtime_nsec.to_le_bytes());
        fields.put(44, &self.links.to_le_bytes());
        fields.0
    }
}

/// Returns the start of an image, up to the end of its superblock.
pub(crate) fn start(root: u16, inodes: u64, blocks: u32) -> [u8; SUPERBLOCK_AT + SUPERBLOCK_BYTES] {
    let mut fields = Fields([0; SUPERBLOCK_AT + SUPERBLOCK_BYTES]);
    fields.put(SUPERBLOCK_AT, &MAGIC.to_le_bytes());
    fields.put(SUPERBLOCK_AT + 12, &[BLOCK_BITS]);
    fields.put(SUPERBLOCK_AT + 14, &root.to_le_bytes());
    fields.put(SUPERBLOCK_AT + 16, &inodes.to_le_bytes());
    fields.put(SUPERBLOCK_AT + 36, &blocks.to_le_bytes());
    fields.0
}

/// Returns the number of a device in the form that the format wants.
pub(crate) fn device(major: u32, minor: u32) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

struct Fields<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Fields<BYTES> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
