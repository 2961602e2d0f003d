//! Limits the content of an archive, so that a small download cannot fill the disk. Pure.

/// Limits for the content of one archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Maximum size of one file, in bytes.
    pub file: u64,
    /// Maximum size of all files together, in bytes.
    pub total: u64,
    /// Maximum number of files and directories.
    pub entries: u64,
    /// Maximum ratio of unpacked bytes to downloaded bytes. Not applied to the first 16 MiB.
    pub ratio: u64,
}

impl Default for ArchiveLimits {
    /// 256 GiB in 100,000 entries with a ratio of 100. This is more than a node serves: weights
    /// compress 1.1 to 4 times, text 20 times.
    fn default() -> Self {
        let total = 256 << 30;
        Self { file: total, total, entries: 100_000, ratio: 100 }
    }
}

/// Number of unpacked bytes from which the ratio is checked. A small archive of empty files has a
/// high ratio.
pub const RATIO_FROM: u64 = 16 << 20;

/// Counts the entries and bytes that were unpacked from one archive.
#[derive(Debug)]
pub struct ArchiveUsage {
    limits: ArchiveLimits,
    entries: u64,
    bytes: u64,
    /// Bytes of the current file.
    file: u64,
}

impl ArchiveUsage {
    pub fn new(limits: ArchiveLimits) -> Self {
        Self { limits, entries: 0, bytes: 0, file: 0 }
    }

    /// Starts the next entry.
    pub fn add_entry(&mut self) -> Result<(), String> {
        self.entries += 1;
        self.file = 0;
        let max = self.limits.entries;
        if self.entries > max { Err(format!("more than {max} entries")) } else { Ok(()) }
    }

    /// Adds bytes of the current entry before they are written.
    pub fn add_bytes(&mut self, more: u64) -> Result<(), String> {
        self.file = self.file.saturating_add(more);
        self.bytes = self.bytes.saturating_add(more);
        let ArchiveLimits { file, total, .. } = self.limits;
        if self.file > file {
            Err(format!("file is larger than {file} bytes"))
        } else if self.bytes > total {
            Err(format!("unpacked content is larger than {total} bytes"))
        } else {
            Ok(())
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Checks the ratio of unpacked bytes to packed bytes.
pub fn check_ratio(limits: &ArchiveLimits, packed: u64, unpacked: u64) -> Result<(), String> {
    let ratio = limits.ratio;
    if unpacked > RATIO_FROM && unpacked > packed.saturating_mul(ratio) {
        return Err(format!("unpacked content is more than {ratio} times the packed size"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_exact() {
        let limits = ArchiveLimits { file: 10, total: 15, entries: 2, ratio: 3 };
        let mut usage = ArchiveUsage::new(limits);
        assert_eq!((usage.add_entry(), usage.add_bytes(10)), (Ok(()), Ok(())));
        assert_eq!((usage.add_entry(), usage.add_bytes(5)), (Ok(()), Ok(())));
        assert!(usage.add_bytes(1).is_err_and(|reason| reason.contains("larger than 15 bytes")));
        assert!(usage.add_entry().is_err_and(|reason| reason.contains("2 entries")));
        let mut usage = ArchiveUsage::new(limits);
        assert!(usage.add_bytes(11).is_err_and(|reason| reason.contains("10 bytes")));
        assert!(usage.add_bytes(u64::MAX).is_err());
        assert!(check_ratio(&limits, 0, RATIO_FROM).is_ok());
        assert!(check_ratio(&limits, RATIO_FROM, 3 * RATIO_FROM).is_ok());
        assert!(check_ratio(&limits, RATIO_FROM, 3 * RATIO_FROM + 1).is_err());
    }
}
