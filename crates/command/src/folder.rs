//! A temporary folder of a command's own.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder that nobody else can read, removed on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one; `purpose` tells it from others of this process. Those of the same purpose go
    /// that processes have left which were ended.
    pub fn new(purpose: &str) -> Result<Folder> {
        let prefix = format!("remora-{purpose}-");
        remove_left(&std::env::temp_dir(), &prefix);
        let folder = std::env::temp_dir().join(format!("{prefix}{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Folder(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Removes folders whose names are `prefix` and the number of a process that there is not any more.
/// What cannot be looked at or removed (as that of another user) stays.
fn remove_left(place: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if number.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists())
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it cannot be removed, the system cleans temporary folders up.
        fs::remove_dir_all(&self.0).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ended_process_has_left_goes() {
        let place = Folder::new("test-of-folders").unwrap();
        let me = std::process::id();
        // No process has the number 0, or one beyond the system's largest.
        let names = ["remora-x-0".to_owned(), format!("remora-x-{me}"), "remora-x-y".to_owned()];
        for name in &names {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        remove_left(place.path(), "remora-x-");
        let is_there = names.each_ref().map(|name| place.path().join(name).exists());
        assert_eq!(is_there, [false, true, true]);
    }
}
