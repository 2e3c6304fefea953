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

    /// The same, and waits no longer than this for a disk that keeps nothing meanwhile: what writes
    /// to that is left to itself.
    ///
    /// # Errors
    ///
    /// As [`CommitThread::close`].
    pub fn close_within(mut self, patience: Duration) -> Result<(), String> {
        self.log.close();
        if !self.log.closes_within(patience) {
            self.thread = None;
            self.log.closed();
        }
        self.close()
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::disk::{Faulty, File};
    use crate::log::{Fields, LogError, Operation, Options, Parts, Position, open_log};

    /// A disk whose syncs wait until they are let go, and say that they wait.
    struct Stuck {
        disk: Faulty,
        waits: Sender<()>,
        go: Arc<Mutex<Receiver<()>>>,
    }

    struct StuckFile {
        file: <Faulty as Disk>::File,
        waits: Sender<()>,
        go: Arc<Mutex<Receiver<()>>>,
    }

    impl Stuck {
        fn file(&self, file: <Faulty as Disk>::File) -> StuckFile {
            StuckFile { file, waits: self.waits.clone(), go: Arc::clone(&self.go) }
        }
    }

    impl Disk for Stuck {
        type File = StuckFile;

        fn create(&self, name: &str) -> io::Result<StuckFile> {
            Ok(self.file(self.disk.create(name)?))
        }

        fn open(&self, name: &str) -> io::Result<StuckFile> {
            Ok(self.file(self.disk.open(name)?))
        }

        fn list(&self) -> io::Result<Vec<String>> {
            self.disk.list()
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.disk.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.disk.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            self.disk.sync()
        }

        fn check(&self, file: Option<(&str, &StuckFile)>) -> io::Result<()> {
            self.disk.check(file.map(|(name, file)| (name, &file.file)))
        }

        fn place(&self) -> String {
            self.disk.place()
        }
    }

    impl File for StuckFile {
        fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.file.write_at(at, bytes)
        }

        fn read_at(&self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
            self.file.read_at(at, dst)
        }

        fn sync(&mut self) -> io::Result<()> {
            _ = self.waits.send(());
            // (All syncs go on once the test has ended.)
            _ = self.go.lock().unwrap().recv();
            self.file.sync()
        }

        fn length(&self) -> io::Result<u64> {
            self.file.length()
        }
    }

    #[test]
    fn an_end_does_not_wait_for_a_disk_that_does_not_answer() {
        let ((waits, waiting), (release, go)) = (channel(), channel());
        let go = Arc::new(Mutex::new(go));
        let disk = Arc::new(Stuck { disk: Faulty::new(1), waits, go });
        let log = Log::new(Options { fsync: Fsync::Always, ..Options::default() });
        let (committer, _) =
            open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(())).unwrap();
        let writer = CommitThread::start(committer).unwrap();
        let record = Fields { key: b"key", ..Fields::of(Operation::Put) };
        let position = log.append(&record).unwrap();
        log.hurry(position);
        waiting.recv().unwrap();
        let other = log.clone();
        let waiter = std::thread::spawn(move || other.wait(position));
        let closed = writer.close_within(Duration::from_millis(1));
        assert!(closed.unwrap_err().contains("could not be written"));
        assert_eq!(waiter.join().unwrap(), Err(LogError::Closed), "nor does anybody else");
        drop(release);
    }
}
