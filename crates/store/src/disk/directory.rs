//! A directory of the file system.

use std::fs;
use std::io;
use std::os::unix;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{Disk, File};

/// A directory of the file system that one process has to itself.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The directory, open: it is synced through this, and the lock on it ends with this.
    handle: fs::File,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// There is no such directory.
    #[error(
        "the store's directory {path} does not exist; create it (mkdir -p {path}), or name another"
    )]
    Missing {
        /// What was asked for.
        path: String,
    },
    /// Something else has that name.
    #[error("{path} is not a directory; name one that the store may keep its files in")]
    NotADirectory {
        /// What was asked for.
        path: String,
    },
    /// Another process has it.
    #[error(
        "another process keeps its store in {path}; stop that process, or name another directory"
    )]
    InUse {
        /// What was asked for.
        path: String,
    },
    /// It cannot be opened or locked.
    #[error("cannot use {path} for the store's files: {source}")]
    Unusable {
        /// What was asked for.
        path: String,
        /// What the operating system says.
        source: io::Error,
    },
}

impl Directory {
    /// The directory at `path`, locked until the value is dropped.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`]; a missing directory is not created, since a path that was mistyped would
    /// look like a store that lost everything.
    pub fn open(path: &Path) -> Result<Directory, DirectoryError> {
        let shown = path.display().to_string();
        let handle = match fs::File::open(path) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DirectoryError::Missing { path: shown });
            }
            Err(source) => return Err(DirectoryError::Unusable { path: shown, source }),
        };
        match handle.metadata() {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(DirectoryError::NotADirectory { path: shown }),
            Err(source) => return Err(DirectoryError::Unusable { path: shown, source }),
        }
        match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Directory { path: path.to_owned(), handle }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DirectoryError::InUse { path: shown }),
            Err(error) => Err(DirectoryError::Unusable { path: shown, source: error.into() }),
        }
    }
}

impl Disk for Directory {
    type File = fs::File;

    fn create(&self, name: &str) -> io::Result<fs::File> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).open(self.path.join(name))
    }

    fn open(&self, name: &str) -> io::Result<fs::File> {
        fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))
    }

    fn open_to_read(&self, name: &str) -> io::Result<fs::File> {
        fs::File::open(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // A name that is not Unicode is none of the store's.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn check(&self, file: Option<(&str, &fs::File)>) -> io::Result<()> {
        let gone = |what| Err(io::Error::new(io::ErrorKind::NotFound, what));
        if !is_at(&self.path, &self.handle)? {
            return gone("the directory was removed or moved");
        }
        match file {
            Some((name, file)) if !is_at(&self.path.join(name), file)? => {
                gone("the newest segment was removed or moved")
            }
            _ => Ok(()),
        }
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

/// Whether a path leads to what is open here.
fn is_at(path: &Path, open: &fs::File) -> io::Result<bool> {
    let own = open.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl File for fs::File {
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        unix::fs::FileExt::write_all_at(self, bytes, at)
    }

    fn read_at(&self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        unix::fs::FileExt::read_at(self, dst, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::read_full;
    use crate::disk::temporary::Temporary;

    #[test]
    fn files_are_written_read_renamed_and_removed() {
        let temporary = Temporary::new("files");
        let disk = Directory::open(&temporary.0).unwrap();
        let file = disk.create("a").unwrap();
        file.write_at(0, b"hello").unwrap();
        file.write_at(8, b"there").unwrap();
        file.sync().unwrap();
        disk.rename("a", "b").unwrap();
        disk.sync().unwrap();
        assert_eq!(disk.list().unwrap(), ["b"]);
        let file = disk.open("b").unwrap();
        assert_eq!(file.length().unwrap(), 13);
        let mut bytes = [0; 20];
        assert_eq!(read_full(&file, 0, &mut bytes).unwrap(), 13);
        assert_eq!(&bytes[..13], b"hello\0\0\0there");
        disk.remove("b").unwrap();
        assert!(disk.list().unwrap().is_empty());
        assert_eq!(disk.open("b").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_opened_to_be_read_is_not_written() {
        let temporary = Temporary::new("read-only");
        let disk = Directory::open(&temporary.0).unwrap();
        disk.create("a").unwrap().write_at(0, b"hello").unwrap();
        let file = disk.open_to_read("a").unwrap();
        let mut bytes = [0; 5];
        assert_eq!((read_full(&file, 0, &mut bytes).unwrap(), &bytes), (5, b"hello"));
        file.write_at(0, b"other").unwrap_err();
    }

    #[test]
    fn a_directory_has_one_owner() {
        let temporary = Temporary::new("owner");
        let first = Directory::open(&temporary.0).unwrap();
        let second = Directory::open(&temporary.0).unwrap_err();
        assert!(matches!(second, DirectoryError::InUse { .. }), "{second}");
        drop(first);
        Directory::open(&temporary.0).unwrap();
    }

    #[test]
    fn what_is_no_directory_is_refused_in_words() {
        let temporary = Temporary::new("refused");
        let missing = Directory::open(&temporary.0.join("nowhere")).unwrap_err();
        assert!(missing.to_string().contains("does not exist; create it"), "{missing}");
        fs::write(temporary.0.join("file"), b"").unwrap();
        let file = Directory::open(&temporary.0.join("file")).unwrap_err();
        assert!(file.to_string().contains("is not a directory"), "{file}");
    }
}
