//! What is counted of a log.

/// What the log has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Groups of records written.
    pub commits: u64,
    /// Groups made to last.
    pub syncs: u64,
    /// Errors of the disk.
    pub errors: u64,
    /// Segments begun.
    pub segments: u64,
    /// Changes refused since the disk did not keep up.
    pub behind: u64,
}
