//! Files, as the log and snapshots reach them.
//!
//! The log and snapshots need little of a file system: files in one flat directory, written at an
//! offset, read at an offset, synced, renamed and removed. [`Disk`] and [`File`] are that little.
//! [`Directory`] is a real directory. [`Faulty`] is one in memory that loses, tears and refuses by
//! a seed, for tests and simulated worlds.
//!
//! What the traits promise, and no more:
//!
//! - Bytes that were written before a [`File::sync`] began that succeeded are there after a crash.
//!   Other bytes may be there, may be missing, and may be there in part.
//! - Names that were created, renamed or removed before a [`Disk::sync`] that succeeded are so
//!   after a crash.
//! - After a `sync` that failed nothing is known of the bytes since the one before, and a second
//!   `sync` that succeeds proves nothing: Linux forgets after it has reported the error once. The
//!   caller writes them again, to another file.

mod directory;
mod faulty;
#[cfg(test)]
#[path = "../tests/support/temporary.rs"]
mod temporary;

use std::io;

pub use directory::{Directory, DirectoryError};
pub use faulty::{Fault, Faulty};

/// A directory of files.
pub trait Disk: Send + Sync {
    /// An open file.
    type File: File;

    /// A new, empty file called `name`. A file that has this name already is emptied.
    ///
    /// # Errors
    ///
    /// What the operating system says, such as a full disk.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// The file called `name`, to read, to write and to sync.
    ///
    /// # Errors
    ///
    /// `NotFound` where there is none; else what the operating system says.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// The same, to read only: where nothing can be written, files are read nevertheless.
    ///
    /// # Errors
    ///
    /// As [`Disk::open`].
    fn open_to_read(&self, name: &str) -> io::Result<Self::File> {
        self.open(name)
    }

    /// The names of all files, in no order.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Gives the file `from` the name `to`, in one step; a file that had that name is gone.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names last: see the module's promises.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn sync(&self) -> io::Result<()>;

    /// Whether the directory, and an open file of it, are still where the next process looks for
    /// them, the file under this name: one that was removed or moved takes all that is written, and
    /// nobody finds that again.
    ///
    /// # Errors
    ///
    /// What is not there any more; else what the operating system says.
    fn check(&self, file: Option<(&str, &Self::File)>) -> io::Result<()>;

    /// Where the directory is, for messages to people.
    fn place(&self) -> String;
}

/// An open file. One thread may sync it while another writes to it.
pub trait File: Send + Sync {
    /// Writes all of `bytes` at `at` bytes from the beginning, and makes the file longer where
    /// needed.
    ///
    /// # Errors
    ///
    /// What the operating system says; a part may have been written.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads at `at` bytes from the beginning; answers how many bytes it read, which may be fewer
    /// than `dst` has, and is 0 only at the end of the file or for an empty `dst`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn read_at(&self, at: u64, dst: &mut [u8]) -> io::Result<usize>;

    /// Makes what was written before it began last: see the module's promises.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn sync(&self) -> io::Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn length(&self) -> io::Result<u64>;
}

/// Fills as much of `dst` as the file has from `at` on; answers how many bytes that are.
///
/// # Errors
///
/// As [`File::read_at`].
pub(crate) fn read_full<F: File>(file: &F, at: u64, dst: &mut [u8]) -> io::Result<usize> {
    let (done, ended) = read_on(file, at, dst);
    ended.map(|()| done)
}

/// Reads as [`read_full`] does, and answers how many bytes it has read, and why it did not go on.
pub(crate) fn read_on<F: File>(file: &F, at: u64, dst: &mut [u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while done < dst.len() {
        match file.read_at(at + done as u64, &mut dst[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}
