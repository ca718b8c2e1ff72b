//! Files whose zeros take no space.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};

/// Unit in which zeros become holes: the blocks of most file systems.
const BLOCK: usize = 4096;

/// Writes `content` at the position of a new file, and leaves blocks of zeros out: the caller sets the file's
/// length afterwards. Returns the bytes that were written.
///
/// # Errors
/// If the file cannot be written.
pub fn write_sparse(file: &mut File, content: &[u8]) -> io::Result<u64> {
    let mut written = 0;
    let mut left = content;
    while !left.is_empty() {
        let zeros = left.chunks(BLOCK).take_while(|block| is_zero(block)).map(<[u8]>::len).sum::<usize>();
        if zeros > 0 {
            file.seek(SeekFrom::Current(i64::try_from(zeros).unwrap_or(i64::MAX)))?;
        }
        left = left.get(zeros..).unwrap_or_default();
        let data = left.chunks(BLOCK).take_while(|block| !is_zero(block)).map(<[u8]>::len).sum::<usize>();
        let (run, rest) = left.split_at(data);
        file.write_all(run)?;
        written += data as u64;
        left = rest;
    }
    Ok(written)
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn zeros_take_no_space_and_are_read_back() {
        let path = tempfile::tempdir().unwrap();
        let path = path.path().join("file");
        let mut content = vec![0; 10 * BLOCK + 7];
        content[3 * BLOCK] = 1;
        content[10 * BLOCK + 6] = 2;
        let mut file = File::create_new(&path).unwrap();
        assert_eq!(write_sparse(&mut file, &content).unwrap(), BLOCK as u64 + 7);
        file.set_len(content.len() as u64).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert!(path.metadata().unwrap().blocks() * 512 <= 2 * BLOCK as u64);
    }
}
