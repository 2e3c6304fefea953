//! What takes a disk long: a sync, and what belongs to it.
//!
//! Where clients wait for each sync, it is done at once. Else another thread does it (`thread`),
//! and the log is written on meanwhile.

use std::io;
use std::sync::Arc;

use super::segment::TEMPORARY;
use crate::disk::{Disk, File};

/// Something to be done with a segment beside the writing of the log.
#[must_use = "the log waits for its outcome"]
pub struct Errand<D: Disk> {
    pub(super) disk: Arc<D>,
    pub(super) file: Arc<D::File>,
    /// The name that the file has or gets.
    pub(super) name: Arc<str>,
    pub(super) task: Task,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// What was written is to be on the disk, where the next process finds it.
    Sync,
    /// A new segment is to be on the disk, and to get its name then.
    Name,
    /// The segment before is to say that it has an end; all is kept without that, too.
    Mark,
}

/// What came of an errand.
#[must_use = "the log waits for it"]
#[derive(Debug)]
pub struct Outcome {
    pub(super) done: io::Result<()>,
    /// The segment is no longer in its place, or the directory is not.
    pub(super) is_lost: bool,
}

impl<D: Disk> Errand<D> {
    /// Does it.
    pub fn run(self) -> Outcome {
        if let Err(error) = self.file.sync() {
            return Outcome { done: Err(error), is_lost: false };
        }
        let done = match self.task {
            Task::Sync => self.disk.check(Some((&self.name, &self.file))),
            Task::Name => self.give_name(),
            Task::Mark => Ok(()),
        };
        let is_lost = self.task == Task::Sync && done.is_err();
        Outcome { done, is_lost }
    }

    fn give_name(&self) -> io::Result<()> {
        self.disk.rename(&temporary(&self.name), &self.name)?;
        self.disk.sync()
    }
}

/// The name of a segment before it is on the disk.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY}")
}
