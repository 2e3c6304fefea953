//! Arenas that take more memory than the daemon has given their clients of them.
//!
//! An arena is a file of memory that its client has mapped. So the client can write to all of it,
//! also to what it was not given, which counts for nobody's quota. To keep it from that is not
//! possible; but the system tells how much memory the file takes. Each second the daemon asks, and
//! ends sessions whose arenas take more than they may.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time from one look to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// What the system says about large pages.
const LARGE: &str = "/sys/kernel/mm/transparent_hugepage";

/// When arenas are looked at.
#[derive(Debug)]
pub(super) struct ArenaWatch {
    /// The least memory that the system gives a file at a time.
    page: usize,
    next: Instant,
}

impl Default for ArenaWatch {
    fn default() -> ArenaWatch {
        ArenaWatch { page: page(Path::new(LARGE)), next: Instant::now() }
    }
}

impl ArenaWatch {
    /// When the next look is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Begins a look, if one is due; returns the least memory that the system gives a file.
    pub(super) fn begin(&mut self, now: Instant) -> Option<usize> {
        (now >= self.next).then(|| {
            self.next = now + PERIOD;
            self.page
        })
    }
}

/// The least memory that the system gives a file in memory at a time. If it gives files large pages
/// unasked, it is the largest.
fn page(large: &Path) -> usize {
    let usual = rustix::param::page_size();
    let says = |file: &Path| {
        let said = fs::read_to_string(file).unwrap_or_default();
        ["[always]", "[within_size]", "[force]"].iter().any(|word| said.contains(word))
    };
    let folders = fs::read_dir(large).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files = folders.map(|folder| folder.join("shmem_enabled"));
    if !says(&large.join("shmem_enabled")) && !files.any(|file| says(&file)) {
        return usual;
    }
    let largest = fs::read_to_string(large.join("hpage_pmd_size"));
    largest.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(2 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_count_where_the_system_gives_them_unasked() {
        let folder = std::env::temp_dir().join(format!("remora-pages-{}", std::process::id()));
        let usual = rustix::param::page_size();
        assert_eq!(page(&folder), usual);
        fs::create_dir_all(folder.join("hugepages-64kB")).unwrap();
        fs::write(folder.join("hpage_pmd_size"), "4194304\n").unwrap();
        let large = folder.join("shmem_enabled");
        fs::write(&large, "always within_size advise [never] deny force\n").unwrap();
        assert_eq!(page(&folder), usual);
        fs::write(folder.join("hugepages-64kB/shmem_enabled"), "[always] never\n").unwrap();
        assert_eq!(page(&folder), 4 << 20);
        fs::remove_dir_all(folder).unwrap();
    }
}
