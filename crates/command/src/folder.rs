//! A temporary folder of a command's own.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder that nobody else can read, removed on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one; `purpose` tells it from others of this process.
    pub fn new(purpose: &str) -> Result<Folder> {
        let name = format!("remora-{purpose}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Folder(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it cannot be removed, the system cleans temporary folders up.
        fs::remove_dir_all(&self.0).ok();
    }
}
