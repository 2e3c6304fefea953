//! What of the log in the ring goes to the node's disk, and how far the disk is.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_store::disk::{Directory, DirectoryError, Disk};
use remora_store::log::{Log, ReplayError};
use remora_store::replica::{Mark, Replica};
use remora_store::snapshot::SnapshotFile;
use remora_store::way::region::Region;
use thiserror::Error;

/// How long after a copy that could not be written another one is asked for.
const AGAIN: Duration = Duration::from_secs(1);

/// Why a node's directory cannot be used.
#[derive(Debug, Error)]
pub enum KeepError {
    /// The directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// What is in it.
    #[error(transparent)]
    Files(#[from] ReplayError),
    /// It has a store that is no node's.
    #[error(
        "the store in {0} is no node of a group: name another directory; `remora store dump` and \
         `remora store load` take keys from one to the other"
    )]
    Alone(String),
    /// It has a node of another group.
    #[error(
        "{0} has a node of another group, or of one that was begun anew in etcd since: name the \
         directory of a node of this group, or an empty one for a new node. If etcd had lost its \
         data, and an empty node came first and began the group anew, end all nodes of the group, \
         delete what etcd has of it (etcdctl del --prefix /remora/CLUSTER/GROUP/) and its slots \
         (etcdctl del /remora/CLUSTER/slots), and start the nodes that have directories with \
         --restore"
    )]
    OtherGroup(String),
    /// Nothing can be written there.
    #[error("cannot write in {place}: {source}; the node needs it to start")]
    Write {
        /// The directory.
        place: String,
        /// What the operating system says.
        source: io::Error,
    },
}

/// What of the log in the ring the disk has.
#[derive(Debug)]
pub(crate) struct Feed {
    log: Log,
    pub(crate) disk: Arc<Directory>,
    /// The end of what the log was given.
    fed: Mark,
    /// Ends of records that the log was given, and has not kept yet.
    ends: VecDeque<Mark>,
    /// Why the log takes nothing, if that is so.
    refusal: Option<Arc<str>>,
    /// What is said of a disk that is silent, and whether this one is.
    silence: String,
    is_silent: bool,
    /// Why there was no copy, and until when none is asked for.
    no_copy: Option<(Instant, String)>,
}

impl Feed {
    /// A feed of a log that has all up to `fed`. Its disk is silent if it has kept nothing of what
    /// waits for this patience.
    pub(crate) fn new(log: Log, disk: Arc<Directory>, fed: Mark, patience: Duration) -> Feed {
        let place = disk.place();
        let silence = format!(
            "the disk of {place} does not answer: for {patience:?} it has kept nothing of what is \
             written to it; look at the disk"
        );
        let (ends, refusal, no_copy) = (VecDeque::new(), None, None);
        Feed { log, disk, fed, ends, refusal, silence, is_silent: false, no_copy }
    }

    /// What the log says of its disk now.
    pub(crate) fn hear(&mut self, refusal: Option<Arc<str>>) {
        if let (None, Some(reason)) = (&self.refusal, &refusal) {
            tracing::error!("{reason}");
        }
        self.refusal = refusal;
    }

    /// Whether the disk is silent now, as the replica has seen.
    pub(crate) fn hear_silence(&mut self, is_silent: bool) {
        if is_silent && !self.is_silent {
            tracing::error!("{}", self.silence);
        }
        self.is_silent = is_silent;
    }

    /// Why the disk takes nothing, if that is so.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let resting = self.no_copy.as_ref().filter(|(until, _)| Instant::now() < *until);
        let silence = self.is_silent.then_some(self.silence.as_str());
        self.refusal.as_deref().or(silence).or(resting.map(|(_, reason)| reason.as_str()))
    }

    /// A copy could not be written.
    pub(crate) fn rest(&mut self, reason: String) {
        self.no_copy = Some((Instant::now() + AGAIN, reason));
    }

    /// Gives the log what is new in the ring. Where the log does not take it, the ring keeps it.
    pub(crate) fn feed(&mut self, replica: &mut Replica, region: &Region) {
        while self.fed.offset < replica.last().offset {
            let Some((mark, record)) = replica.record_after(region, self.fed) else { return };
            if self.log.append_at(mark.position, record).is_err() {
                return;
            }
            self.fed = mark;
            self.ends.push_back(mark);
        }
    }

    /// The end of what the log has kept, if that is news.
    pub(crate) fn kept(&mut self) -> Option<Mark> {
        let (kept, mut end) = (self.log.kept(), None);
        while self.ends.front().is_some_and(|end| end.position <= kept) {
            end = self.ends.pop_front();
        }
        end
    }

    /// Records after a mark are no more.
    pub(crate) fn truncate(&mut self, to: Mark) {
        if to.offset < self.fed.offset {
            self.log.truncate(to.position);
            self.ends.retain(|end| end.offset <= to.offset);
            self.fed = to;
        }
    }

    /// A copy of another node's store gets its name on the disk, in the place of everything.
    ///
    /// # Errors
    /// Why it cannot, in words.
    pub(crate) fn begin_anew(
        &mut self,
        copy: SnapshotFile<Directory>,
        at: Mark,
    ) -> Result<(), String> {
        copy.name().map_err(|error| format!("cannot keep a copy on the disk: {error}"))?;
        self.log.begin_anew(at.position);
        self.ends.clear();
        self.fed = at;
        Ok(())
    }
}

/// A node's snapshots, whatever its store's memory is.
pub(crate) trait Saves: Send + Sync + std::fmt::Debug {
    /// Makes one: before it returns, or on its own.
    fn save(&self, background: bool) -> Result<(), String>;
    /// Makes one if the log has become long.
    fn keep_short(&self, log: &Log);
    /// When the last one was made, in seconds of Unix time.
    fn saved_s(&self) -> u64;
    /// What is said of them, as names and values.
    fn entries(&self) -> Vec<(&'static str, String)>;
}
