//! How far reading back is, for those who wait for it.

use std::fmt;
use std::sync::Arc;

use super::segment::segment_first;
use super::{Fields, ReplayError};
use crate::disk::{Disk, File};
use crate::snapshot::{newest, snapshot_name};

/// Bytes that are read between two reports.
const REPORTED: u64 = 1 << 20;

type Tell = dyn Fn(u64, u64) + Send + Sync;

/// Who is told how far reading back is: so many bytes are read, of so many.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Tell>>);

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.0.is_some()).finish()
    }
}

impl Progress {
    /// Tells by calling this; when all is read, or reading fails, with two equal numbers.
    pub fn new(tell: impl Fn(u64, u64) + Send + Sync + 'static) -> Progress {
        Progress(Some(Arc::new(tell)))
    }

    /// Reading of a directory begins.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Io`].
    pub fn begin<D: Disk>(&self, disk: &D) -> Result<Reading<'_>, ReplayError> {
        let mut reading = Reading { tell: self.0.as_deref(), read: 0, told: 0, all: 0 };
        if reading.tell.is_some() {
            reading.all = bytes_of(disk)?;
        }
        Ok(reading)
    }
}

/// The bytes of the newest snapshot and of the log.
fn bytes_of<D: Disk>(disk: &D) -> Result<u64, ReplayError> {
    let failed = |source| ReplayError::Io { place: disk.place(), file: ".".to_owned(), source };
    let mut names = disk.list().map_err(failed)?;
    names.retain(|name| segment_first(name).is_some());
    let snapshot = newest(disk).map_err(failed)?;
    names.extend(snapshot.map(snapshot_name));
    // (Of a file that cannot be opened, those who read it hear.)
    let length = |name: &String| disk.open_to_read(name).and_then(|file| file.length());
    Ok(names.iter().map(|name| length(name).unwrap_or(0)).sum())
}

/// Reading that is under way. Dropping it says that it has ended.
pub struct Reading<'p> {
    tell: Option<&'p Tell>,
    read: u64,
    told: u64,
    all: u64,
}

impl Reading<'_> {
    /// A record is read.
    pub fn add(&mut self, fields: &Fields<'_>) {
        let Some(tell) = self.tell else { return };
        self.read += fields.length() as u64;
        if self.read - self.told >= REPORTED {
            self.told = self.read;
            tell(self.read.min(self.all), self.all);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(tell) = self.tell {
            tell(self.all, self.all);
        }
    }
}
