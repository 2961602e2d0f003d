//! Decides how much an archive may hold, so that a small download cannot fill a node.

/// Caps on one archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one file in it.
    pub file: u64,
    /// Bytes of all files in it.
    pub total: u64,
    /// Files and directories in it.
    pub entries: u64,
    /// Bytes that one byte of the download may become. Looked at past [`RATIO_FROM`].
    pub ratio: u64,
}

impl Default for Limits {
    /// 256 GiB in 100,000 entries: beyond what a node serves. Weights pack 1.1 to 4 times, text 20.
    fn default() -> Self {
        let total = 256 << 30;
        Self { file: total, total, entries: 100_000, ratio: 100 }
    }
}

/// So much may come out whatever went in: a small archive of empty files packs well.
pub const RATIO_FROM: u64 = 16 << 20;

/// What has come out of one archive.
#[derive(Debug)]
pub struct Tally {
    limits: Limits,
    entries: u64,
    bytes: u64,
    file: u64,
}

impl Tally {
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: 0, bytes: 0, file: 0 }
    }

    /// A further entry begins.
    pub fn entry(&mut self) -> Result<(), String> {
        self.entries += 1;
        self.file = 0;
        let most = self.limits.entries;
        if self.entries > most { Err(format!("more than {most} entries")) } else { Ok(()) }
    }

    /// So much more of the entry is to be written.
    pub fn bytes(&mut self, more: u64) -> Result<(), String> {
        self.file = self.file.saturating_add(more);
        self.bytes = self.bytes.saturating_add(more);
        let Limits { file, total, .. } = self.limits;
        if self.file > file {
            Err(format!("a file of more than {file} bytes"))
        } else if self.bytes > total {
            Err(format!("more than {total} bytes in all"))
        } else {
            Ok(())
        }
    }

    pub fn total(&self) -> u64 {
        self.bytes
    }
}

/// Whether so much has come out of so little that nothing honest is left to come.
pub fn ratio(limits: &Limits, packed: u64, unpacked: u64) -> Result<(), String> {
    let ratio = limits.ratio;
    if unpacked > RATIO_FROM && unpacked > packed.saturating_mul(ratio) {
        return Err(format!("it grows more than {ratio} times"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cap_holds_exactly() {
        let limits = Limits { file: 10, total: 15, entries: 2, ratio: 3 };
        let mut tally = Tally::new(limits);
        assert_eq!((tally.entry(), tally.bytes(10)), (Ok(()), Ok(())));
        assert_eq!((tally.entry(), tally.bytes(5)), (Ok(()), Ok(())));
        assert!(tally.bytes(1).is_err_and(|why| why.contains("15 bytes in all")));
        assert!(tally.entry().is_err_and(|why| why.contains("2 entries")));
        let mut tally = Tally::new(limits);
        assert!(tally.bytes(11).is_err_and(|why| why.contains("10 bytes")));
        assert!(tally.bytes(u64::MAX).is_err());
        assert!(ratio(&limits, 0, RATIO_FROM).is_ok());
        assert!(ratio(&limits, RATIO_FROM, 3 * RATIO_FROM).is_ok());
        assert!(ratio(&limits, RATIO_FROM, 3 * RATIO_FROM + 1).is_err());
    }
}
