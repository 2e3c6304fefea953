//! The user's folder for files that processes need while they run: links to libraries, and the
//! files that stand for `/sys`.
//!
//! Programs load libraries by the links in it, so no other user may look into the folder or write
//! to it.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use thiserror::Error;

/// No folder can be made that only this user can reach.
#[derive(Debug, Error)]
#[error("no folder for links and device files: {}", Tries(.tried))]
pub struct NoFolder {
    /// Each place that was tried, and what was wrong with it.
    pub tried: Vec<(PathBuf, io::Error)>,
}

struct Tries<'a>(&'a [(PathBuf, io::Error)]);

impl fmt::Display for Tries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, error) in self.0 {
            write!(f, "{}: {error}; ", path.display())?;
        }
        f.write_str("set XDG_RUNTIME_DIR to a folder of your own")
    }
}

/// This user's folder, made if it is not there: in `XDG_RUNTIME_DIR`, else in the folder for
/// temporary files.
///
/// # Errors
/// At none of the places can this user have a folder that others cannot reach.
pub fn folder() -> Result<PathBuf, NoFolder> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places = [
        runtime.filter(|dir| dir.is_absolute()).map(|dir| dir.join("remora")),
        Some(env::temp_dir().join(format!("remora-{uid}"))),
    ];
    let mut tried = Vec::new();
    for place in places.into_iter().flatten() {
        match private(&place, uid) {
            Ok(()) => return Ok(place),
            Err(error) => tried.push((place, error)),
        }
    }
    Err(NoFolder { tried })
}

/// Makes a folder; one that exists must belong to the user and be closed to all others.
fn private(path: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // `metadata` would follow a link that another user may have put there.
    let found = fs::symlink_metadata(path)?;
    let wrong = if !found.is_dir() {
        "it exists, but is not a folder"
    } else if found.uid() != uid {
        "it belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "other users may look into it (run chmod 700 on it)"
    } else {
        return Ok(());
    };
    Err(io::Error::other(wrong))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_folder_of_ones_own_will_do() {
        let uid = rustix::process::geteuid().as_raw();
        let base = env::temp_dir().join(format!("remora-runtime-test-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let path = base.join("private");
        private(&path, uid).unwrap();
        private(&path, uid).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(private(&path, uid + 1).is_err());
        let link = base.join("link");
        symlink(&path, &link).unwrap();
        assert!(private(&link, uid).is_err(), "a link is not followed");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(private(&path, uid).is_err(), "open to others");
        assert!(private(&base.join("no/such"), uid).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
