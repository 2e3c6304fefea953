//! The thread that writes the log.

use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remora::threads::without_signals;

use super::append::Wake;
use super::commit::{Committer, Turn};
use super::{Fsync, Log};
use crate::disk::Disk;

/// Where a record is to be on the disk before its client is told, it is written when that client
/// waits: by then all that came with it has been appended, and one sync serves all. What nobody
/// waits for is written after this time.
const UNASKED: Duration = Duration::from_millis(100);

/// A thread that writes a log until this is dropped, and then what was appended so far.
#[derive(Debug)]
pub struct CommitThread {
    log: Log,
    thread: Option<JoinHandle<()>>,
}

impl CommitThread {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// What the operating system says if it has no thread to give.
    pub fn start<D: Disk + 'static>(committer: Committer<D>) -> io::Result<CommitThread>
    where
        D::File: 'static,
    {
        let log = committer.log().clone();
        let named = Builder::new().name("log".to_owned());
        let thread = Some(without_signals(|| named.spawn(move || run(committer)))?);
        Ok(CommitThread { log, thread })
    }

    /// Writes all that was appended, and ends; the log takes no more.
    ///
    /// # Errors
    ///
    /// Why not all could be written, in words.
    pub fn close(mut self) -> Result<(), String> {
        let last = self.log.last();
        self.stop();
        if self.log.durable() >= last {
            return Ok(());
        }
        Err(format!(
            "changes from position {} to {last} could not be written to the log",
            self.log.durable()
        ))
    }

    fn stop(&mut self) {
        self.log.close();
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it happened, and everything unwritten is reported above.
            _ = thread.join();
        }
    }
}

impl Drop for CommitThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whatever ends the thread ends the waiting for it.
struct Closing(Log);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed();
    }
}

fn run<D: Disk>(mut committer: Committer<D>) {
    let log = committer.log().clone();
    let _closing = Closing(log.clone());
    // The clock of the day may go back; this one does not.
    let (began, unix) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH));
    let unix = unix.unwrap_or_default();
    let now_ms = || (unix + began.elapsed()).as_millis() as u64;
    while !log.is_closing() {
        let (before, (_, waiters)) = (Instant::now(), log.crowd());
        let now = now_ms();
        let until = |at: u64| Some(Duration::from_millis(at.saturating_sub(now)));
        match committer.turn(now) {
            Turn::Synced(records) => {
                let records = records + log.crowd().0;
                gather(&log, Wake::Crowd { records, waiters }, before);
            }
            Turn::Idle if log.options().fsync == Fsync::Always => {
                log.wait_for_work(Wake::Haste, Some(UNASKED));
            }
            Turn::Idle => log.wait_for_work(Wake::Any, None),
            Turn::Until(at) => log.wait_for_work(Wake::Any, until(at)),
            Turn::Refused(at) => log.wait_for_work(Wake::Nothing, until(at)),
        }
    }
    committer.finish(now_ms());
}

/// After a group was synced, those who waited for it are about to append again, and to wait. A
/// group that is begun at once has only those who came meanwhile, and the others wait for two
/// syncs, by turns; so the thread waits until as many have come again, too, for a part of the time
/// that a sync takes.
fn gather(log: &Log, crowd: Wake, before: Instant) {
    if log.options().fsync == Fsync::Always {
        log.wait_for_work(crowd, Some(before.elapsed() / 4));
        log.wait_for_work(Wake::Haste, Some(UNASKED));
    }
}
