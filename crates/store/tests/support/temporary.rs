//! Directories of tests.

use std::fs;
use std::path::PathBuf;

/// A directory of one test's own, removed at the end.
pub(crate) struct Temporary(pub(crate) PathBuf);

impl Temporary {
    pub(crate) fn new(name: &str) -> Temporary {
        let name = format!("remora-store-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
