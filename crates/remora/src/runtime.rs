//! A folder for what lives as long as processes do: links, and what stands for `/sys`.
//!
//! It belongs to one user and nobody else can look into it, as programs will load libraries by
//! the links in it.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use thiserror::Error;

/// Why there is no such folder.
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
/// None of the places can be had for this user alone.
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

/// Makes a folder, or finds that it is there, the user's own, and closed to all others.
fn private(path: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not `metadata`: a link that another user has put there must not be followed.
    let found = fs::symlink_metadata(path)?;
    let wrong = if !found.is_dir() {
        "it is there, but is not a folder"
    } else if found.uid() != uid {
        "it belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "other users may look into it (chmod 700 it)"
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
