//! The thread that writes the log.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remora::threads::without_signals;

use super::commit::{Committer, Turn};
use super::errand::{Errand, Outcome};
use super::work::Wake;
use super::{Fsync, Log};
use crate::disk::Disk;

/// Where a record is to be on the disk before its client is told, it is written when that client
/// waits: by then all that came with it has been appended, and one sync serves all. What nobody
/// waits for is written after this time.
const UNASKED: Duration = Duration::from_millis(100);

/// A thread that writes a log until this is dropped, and then what was appended so far. Where
/// nobody waits for each sync, another one syncs meanwhile.
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
    pub fn start<D: Disk + 'static>(mut committer: Committer<D>) -> io::Result<CommitThread>
    where
        D::File: 'static,
    {
        let log = committer.log().clone();
        let mut aside = None;
        if log.options().fsync != Fsync::Always {
            committer.sync_beside();
            aside = Some(Aside::start(&log)?);
        }
        let named = Builder::new().name("log".to_owned());
        let thread = Some(without_signals(|| named.spawn(move || run(committer, aside)))?);
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

fn run<D: Disk>(mut committer: Committer<D>, aside: Option<Aside<D>>) {
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
        let outcome = aside.as_ref().map(|aside| aside.outcomes.try_recv());
        let turn = match outcome.unwrap_or(Err(TryRecvError::Empty)) {
            Ok(outcome) => committer.ended(outcome, now),
            Err(TryRecvError::Empty) => committer.turn(now),
            Err(TryRecvError::Disconnected) => return,
        };
        if let (Some(aside), Some(errand)) = (&aside, committer.errand()) {
            aside.begin(errand);
        }
        match turn {
            Turn::Synced(records) => {
                let records = records + log.crowd().0;
                gather(&log, Wake::Crowd { records, waiters }, before);
            }
            Turn::Idle if log.options().fsync == Fsync::Always => {
                log.wait_for_work(Wake::Haste, Some(UNASKED));
            }
            Turn::Idle => log.wait_for_work(Wake::Any, None),
            Turn::Until(at) => log.wait_for_work(Wake::Any, until(at)),
            Turn::Beside => log.wait_for_work(Wake::More, None),
            Turn::Waits => log.wait_for_work(Wake::Returned, None),
            Turn::Refused(at) => log.wait_for_work(Wake::Nothing, until(at)),
        }
    }
    if let Some(aside) = &aside
        && committer.awaits_errand()
    {
        let Ok(outcome) = aside.outcomes.recv() else { return };
        committer.ended(outcome, now_ms());
    }
    committer.finish(now_ms());
}

/// A thread that does the errands of a committer, one after another, until this is dropped.
struct Aside<D: Disk> {
    errands: Option<Sender<Errand<D>>>,
    /// It ends if the thread panics, which was reported then; the log ends with it.
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Disk> Aside<D> {
    fn start(log: &Log) -> io::Result<Aside<D>>
    where
        D: 'static,
        D::File: 'static,
    {
        let (errands, given) = channel::<Errand<D>>();
        let (sender, outcomes) = channel();
        let done = Done { outcomes: Some(sender), log: log.clone() };
        let named = Builder::new().name("log-sync".to_owned());
        let work = move || given.into_iter().for_each(|errand| done.tell(errand.run()));
        let thread = Some(without_signals(|| named.spawn(work))?);
        Ok(Aside { errands: Some(errands), outcomes, thread })
    }

    fn begin(&self, errand: Errand<D>) {
        // (One who does not listen any more is noticed when the outcome does not come.)
        _ = self.errands.as_ref().map(|errands| errands.send(errand));
    }
}

impl<D: Disk> Drop for Aside<D> {
    fn drop(&mut self) {
        self.errands = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Tells a committer of outcomes, and wakes it for the last time when there will be none.
struct Done {
    outcomes: Option<Sender<Outcome>>,
    log: Log,
}

impl Done {
    fn tell(&self, outcome: Outcome) {
        _ = self.outcomes.as_ref().map(|outcomes| outcomes.send(outcome));
        self.log.returned();
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.outcomes = None;
        self.log.returned();
    }
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
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::disk::{Faulty, File};
    use crate::log::{
        Fields, LogError, Operation, Options, Parts, Position, open_log, segment_name,
    };

    /// For what comes at once, however slow the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

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
        fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.file.write_at(at, bytes)
        }

        fn read_at(&self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
            self.file.read_at(at, dst)
        }

        fn sync(&self) -> io::Result<()> {
            _ = self.waits.send(());
            // (All syncs go on once the test has ended.)
            _ = self.go.lock().unwrap().recv();
            self.file.sync()
        }

        fn length(&self) -> io::Result<u64> {
            self.file.length()
        }
    }

    /// A log on such a disk, its thread, and what tells of a sync and lets it go on.
    struct World {
        disk: Faulty,
        log: Log,
        writer: CommitThread,
        waiting: Receiver<()>,
        release: Sender<()>,
    }

    impl World {
        fn new(fsync: Fsync) -> World {
            let ((waits, waiting), (release, go)) = (channel(), channel());
            let (disk, go) = (Faulty::new(1), Arc::new(Mutex::new(go)));
            let stuck = Arc::new(Stuck { disk: disk.clone(), waits, go });
            let log = Log::new(Options { fsync, ..Options::default() });
            let (committer, _) =
                open_log(&stuck, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(())).unwrap();
            let writer = CommitThread::start(committer).unwrap();
            World { disk, log, writer, waiting, release }
        }

        fn append(&self, value: &[u8]) -> Position {
            let record = Fields { key: b"key", value, ..Fields::of(Operation::Put) };
            self.log.append(&record).unwrap()
        }

        /// Waits until a sync has begun.
        fn sync_begins(&self) {
            self.waiting.recv_timeout(PATIENCE).expect("a sync");
        }

        fn sync_goes_on(&self) {
            self.release.send(()).unwrap();
        }
    }

    #[test]
    fn an_end_does_not_wait_for_a_disk_that_does_not_answer() {
        for fsync in [Fsync::Always, Fsync::EverySecond] {
            let world = World::new(fsync);
            let position = world.append(b"value");
            world.log.hurry(position);
            world.sync_begins();
            let other = world.log.clone();
            let waiter = std::thread::spawn(move || other.wait(position));
            let closed = world.writer.close_within(Duration::from_millis(1));
            assert!(closed.unwrap_err().contains("could not be written"));
            assert_eq!(waiter.join().unwrap(), Err(LogError::Closed), "nor does anybody else");
        }
    }

    #[test]
    fn the_log_is_written_while_a_sync_stands_still() {
        for fsync in [Fsync::EverySecond, Fsync::No] {
            let world = World::new(fsync);
            let (tell, news) = channel();
            world.log.listen(move || _ = tell.send(()));
            // A segment is synced when it begins.
            let first = world.append(b"first");
            world.sync_begins();
            world.sync_goes_on();
            world.log.wait(first).unwrap();
            let second = world.append(b"second");
            world.log.hurry(second);
            world.sync_begins();
            let third = world.append(b"third");
            while world.log.kept() < third {
                news.recv_timeout(PATIENCE).expect("what is appended amid a sync is written");
            }
            let bytes = world.disk.contents(&segment_name(first)).unwrap();
            assert!(bytes.windows(5).any(|value| value == b"third"));
            assert_eq!(world.log.durable(), first);
            // That sync is for what was written before it began.
            world.sync_goes_on();
            world.log.wait(second).unwrap();
            assert_eq!(world.log.durable(), second);
            world.log.hurry(third);
            world.sync_begins();
            world.sync_goes_on();
            world.log.wait(third).unwrap();
            drop(world.release);
            world.writer.close().unwrap();
        }
    }

    #[test]
    fn a_log_ends_when_the_sync_that_is_under_way_has() {
        let world = World::new(Fsync::EverySecond);
        let first = world.append(b"first");
        world.sync_begins();
        world.sync_goes_on();
        world.log.wait(first).unwrap();
        world.log.hurry(world.append(b"second"));
        world.sync_begins();
        let third = world.append(b"third");
        let closing = std::thread::spawn(move || world.writer.close());
        drop(world.release);
        closing.join().unwrap().unwrap();
        assert_eq!(world.log.durable(), third);
    }
}
