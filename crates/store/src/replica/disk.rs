//! Whether a node's disk answers, as far as its replica can see: by what it keeps.

use super::history::Mark;

/// For how long a disk has kept nothing of what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DiskWatch {
    kept: Mark,
    since_ns: u64,
    looked_ns: u64,
    /// It was so for the whole patience.
    pub(super) is_silent: bool,
}

impl DiskWatch {
    /// What the disk has kept at `now_ns`, and whether anything waits. A process that stood still
    /// for half of the patience has not heard what its disk has kept meanwhile: it begins anew.
    pub(super) fn look(&mut self, kept: Mark, waits: bool, patience_ns: u64, now_ns: u64) {
        let stood_still = now_ns.saturating_sub(self.looked_ns) > patience_ns / 2;
        if !waits || kept != self.kept || stood_still {
            (self.kept, self.since_ns) = (kept, now_ns);
        }
        self.looked_ns = now_ns;
        self.is_silent = waits && now_ns.saturating_sub(self.since_ns) >= patience_ns;
    }
}
