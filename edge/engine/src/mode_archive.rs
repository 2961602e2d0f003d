//! An archive that sets the mode of directories. Pure.

/// Length of a block of a tar archive, in bytes.
const BLOCK: usize = 512;

/// A tar archive of directories of root with this mode, and nothing in them. The paths are relative,
/// and short enough for the header (100 bytes).
pub fn mode_archive(paths: impl Iterator<Item = String>, mode: u32) -> Vec<u8> {
    let mut archive: Vec<u8> = paths.flat_map(|path| header(&path, mode)).collect();
    // Two empty blocks end an archive.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

/// The header of a directory, in the format ustar of POSIX.1-1988.
fn header(path: &str, mode: u32) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut set =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    set(0, path);
    set(100, &format!("{mode:07o}"));
    // User, group, size and time of change are zero.
    for (at, length) in [(108, 7), (116, 7), (124, 11), (136, 11)] {
        set(at, &"0".repeat(length));
    }
    // The checksum counts as spaces while it is computed.
    set(148, "        ");
    set(156, "5");
    set(257, "ustar");
    set(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn archive_has_a_header_per_directory_and_two_empty_blocks() {
        let archive = mode_archive(["a/0".to_owned(), "a/1".to_owned()].into_iter(), 0o777);
        assert_eq!(archive.len(), 4 * BLOCK);
        assert!(archive[2 * BLOCK..].iter().all(|byte| *byte == 0));
        let text =
            |at: usize, length: usize| std::str::from_utf8(&archive[at..at + length]).unwrap();
        assert_eq!((text(0, 4), text(BLOCK, 4)), ("a/0\0", "a/1\0"));
        assert_eq!((text(100, 8), text(156, 1)), ("0000777\0", "5"));
        let checksum = u32::from_str_radix(text(148, 6), 8).unwrap();
        let sum: u32 = archive[..BLOCK].iter().map(|byte| u32::from(*byte)).sum();
        let of_checksum: u32 = archive[148..156].iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(checksum, sum - of_checksum + 8 * u32::from(b' '));
    }
}
