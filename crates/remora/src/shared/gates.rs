//! Gates: words by which the owner of memory, the daemon, and those who write that memory
//! themselves agree on who is within.
//!
//! ```text
//! byte    0  64 senders, a line each: its turn u32, odd while it is within; and the gate u32, and
//!            the mark u64 of the pass, by which it went in last
//!      4096  1536 gates: u64, the mark of the pass that the gate is open for, or zero
//! ```
//!
//! One such page belongs to each session whose memory others may reach by a *pass*. A sender says
//! by which gate it goes within, and then looks whether that is still open; the daemon shuts the
//! gate, and then the owner waits until each sender that was within by a gate that is shut has been
//! without at least once. A sequentially consistent order stands between the two steps on either
//! side: so a sender that the owner does not wait for finds its gate shut. A mark is never used
//! again, so that an old pass does not open a gate that was given to another.
//!
//! A sender that is stopped within, as by a debugger, may stand there for ever. So the owner waits
//! for a while, once: it remembers for which it has waited in vain, until they go on.
//!
//! All three can write anything here. A sender that does has the memory mapped anyway; an owner
//! that does spoils its own; the daemon reads nothing that it depends on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::memory::Buffer;
use crate::memory::memfd::{self, MapError};

/// The most sessions that may reach the memory of one.
pub const SENDERS: u32 = 64;
/// The most passes for the memory of a session.
pub const GATES: u32 = 1536;
/// How long the owner of memory waits for those that write it. Each does a piece at a time, some
/// microseconds; so only one that is stopped in the middle takes longer.
const PATIENCE: Duration = Duration::from_secs(1);
const LINE: usize = 64;
/// Behind the turn.
const AT_GATE: usize = 4;
const AT_MARK: usize = 8;
const AT_GATES: usize = SENDERS as usize * LINE;
const LEN: usize = AT_GATES + GATES as usize * 8;

/// The gates of a session, mapped.
#[derive(Debug)]
pub struct Gates {
    memory: Buffer,
    /// Owner: those that it has waited for in vain.
    stopped: Vec<Within>,
}

/// A sender that is within by a gate that is shut. When it has been without, its turn is another;
/// and the mark is another sender's when that has its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Within {
    sender: u32,
    turn: u32,
    mark: u64,
}

impl Gates {
    /// Makes gates that are all shut.
    ///
    /// # Errors
    /// The process has too many open files, or no room.
    pub fn create() -> io::Result<(Gates, OwnedFd)> {
        let file = memfd::sealed("remora-gates", LEN as u64)?;
        let gates = Gates::open(file.as_fd()).map_err(io::Error::other)?;
        Ok((gates, file))
    }

    /// Maps gates that another process has made.
    ///
    /// # Errors
    /// The file is none of sealed memory, or too short.
    pub fn open(file: BorrowedFd<'_>) -> Result<Gates, MapError> {
        Ok(Gates { memory: Buffer::map(file, 0, LEN)?, stopped: Vec::new() })
    }

    /// Daemon: opens a gate for the pass with this mark, which is not zero.
    ///
    /// # Panics
    /// If there is no such gate.
    pub fn admit(&self, gate: u32, mark: u64) {
        self.gate(gate).store(mark, Ordering::SeqCst);
    }

    /// Daemon: shuts a gate. A sender may be within until the owner has waited
    /// ([`Gates::settle`]).
    ///
    /// # Panics
    /// If there is no such gate.
    pub fn shut(&self, gate: u32) {
        self.gate(gate).store(0, Ordering::SeqCst);
    }

    /// Daemon: a sender has ended, wherever it was.
    ///
    /// # Panics
    /// If there is no such sender.
    pub fn forget(&self, sender: u32) {
        self.turn(sender).store(0, Ordering::SeqCst);
    }

    /// Sender: goes in by a gate, if it is open for this pass. If so, [`Gates::leave`] must follow.
    ///
    /// # Panics
    /// If there is no such sender or gate.
    #[inline]
    pub fn enter(&self, sender: u32, gate: u32, mark: u64) -> bool {
        let (turn, (by, of)) = (self.turn(sender), self.way(sender));
        // One who finds them set sees that the turn before them is over, too.
        by.store(gate, Ordering::Release);
        of.store(mark, Ordering::Release);
        turn.store(turn.load(Ordering::Relaxed) | 1, Ordering::SeqCst);
        let is_open = self.gate(gate).load(Ordering::SeqCst) == mark;
        if !is_open {
            self.leave(sender);
        }
        is_open
    }

    /// Sender: goes out again.
    ///
    /// # Panics
    /// If there is no such sender.
    #[inline]
    pub fn leave(&self, sender: u32) {
        let turn = self.turn(sender);
        turn.store((turn.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Release);
    }

    /// Is the gate open for this pass?
    ///
    /// # Panics
    /// If there is no such gate.
    #[inline]
    pub fn is_open(&self, gate: u32, mark: u64) -> bool {
        self.gate(gate).load(Ordering::Relaxed) == mark
    }

    /// Owner: shuts all gates, since the daemon that opened them has gone.
    pub fn shut_all(&self) {
        (0..GATES).for_each(|gate| self.shut(gate));
    }

    /// Owner: waits until nobody is within by a gate that was shut before. One that stands still
    /// there is waited for once.
    pub fn wait(&mut self) {
        let in_vain = self.outwait(PATIENCE);
        if in_vain > 0 {
            tracing::error!(
                processes = in_vain,
                "other processes of this user were stopped while they wrote this one’s memory, and \
                 may write some bytes more when they go on"
            );
        }
    }

    /// As [`Gates::wait`]; returns how many it has waited for in vain, and remembers them.
    fn outwait(&mut self, patience: Duration) -> usize {
        let within = self.within().into_iter();
        let (mut stopped, mut left): (Vec<_>, _) = within.partition(|w| self.stopped.contains(w));
        self.outlast(&mut left, patience);
        stopped.extend(&left);
        self.stopped = stopped;
        left.len()
    }

    /// Owner: is one that was waited for in vain within still?
    pub fn has_stopped(&self) -> bool {
        self.stopped.iter().any(|within| self.found(within.sender) == Some(*within))
    }

    /// Owner: waits until each sender that is within by a gate that is shut has been without once,
    /// for `timeout` at most. Returns whether all were.
    pub fn settle(&self, timeout: Duration) -> bool {
        let mut left = self.within();
        self.outlast(&mut left, timeout);
        left.is_empty()
    }

    /// Waits until they have been without, for `timeout` at most; those that have not are left.
    fn outlast(&self, left: &mut Vec<Within>, timeout: Duration) {
        let mut until = None;
        while !left.is_empty() {
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + timeout) {
                return;
            }
            std::thread::yield_now();
            left.retain(|within| self.found(within.sender) == Some(*within));
        }
    }

    fn within(&self) -> Vec<Within> {
        (0..SENDERS).filter_map(|sender| self.found(sender)).collect()
    }

    /// The sender, if it is within by a gate that is shut.
    fn found(&self, sender: u32) -> Option<Within> {
        let turn = self.turn(sender).load(Ordering::SeqCst);
        if turn.is_multiple_of(2) {
            return None;
        }
        let (by, of) = self.way(sender);
        let (gate, mark) = (by.load(Ordering::Acquire), of.load(Ordering::Acquire));
        // Otherwise it has been without, and what was read may be of its next turn.
        let stays = self.turn(sender).load(Ordering::Acquire) == turn;
        let is_open = gate < GATES && mark != 0 && self.gate(gate).load(Ordering::SeqCst) == mark;
        (stays && !is_open).then_some(Within { sender, turn, mark })
    }

    #[inline]
    fn turn(&self, sender: u32) -> &AtomicU32 {
        assert!(sender < SENDERS, "there are {SENDERS} senders");
        self.memory.word32(sender as usize * LINE).expect("a line is within the page")
    }

    /// The gate and the mark by which a sender went in.
    #[inline]
    fn way(&self, sender: u32) -> (&AtomicU32, &AtomicU64) {
        let (line, within) = (sender as usize * LINE, "a line is within the page");
        let gate = self.memory.word32(line + AT_GATE).expect(within);
        (gate, self.memory.word(line + AT_MARK).expect(within))
    }

    #[inline]
    fn gate(&self, gate: u32) -> &AtomicU64 {
        assert!(gate < GATES, "there are {GATES} gates");
        self.memory.word(AT_GATES + gate as usize * 8).expect("a gate is within the page")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_gate_is_open_for_one_pass_only() {
        let (gates, file) = Gates::create().unwrap();
        let sender = Gates::open(file.as_fd()).unwrap();
        assert!(!sender.enter(0, 7, 1), "at first all are shut");
        gates.admit(7, 1);
        assert!(sender.enter(0, 7, 1) && sender.is_open(7, 1));
        sender.leave(0);
        gates.admit(7, 2);
        assert!(!sender.enter(0, 7, 1), "the gate was given to another");
        assert!(gates.settle(LONG), "and a sender that found it shut is without");
        gates.shut_all();
        assert!(!sender.enter(3, 7, 2));
    }

    #[test]
    fn an_owner_waits_for_those_that_are_within() {
        let (gates, file) = Gates::create().unwrap();
        gates.admit(0, 9);
        let sender = Gates::open(file.as_fd()).unwrap();
        assert!(sender.enter(5, 0, 9));
        gates.shut(0);
        assert!(!gates.settle(Duration::ZERO), "one is within");
        let leaves = thread::spawn(move || sender.leave(5));
        assert!(gates.settle(LONG));
        leaves.join().unwrap();
        // A sender that ends within is not waited for once the daemon knows.
        gates.admit(0, 10);
        assert!(gates.enter(6, 0, 10));
        gates.shut(0);
        assert!(!gates.settle(Duration::ZERO));
        gates.forget(6);
        assert!(gates.settle(Duration::ZERO));
    }

    #[test]
    fn one_that_is_within_by_an_open_gate_is_not_waited_for() {
        let (gates, file) = Gates::create().unwrap();
        let sender = Gates::open(file.as_fd()).unwrap();
        gates.admit(0, 9);
        gates.admit(1, 10);
        assert!(sender.enter(5, 0, 9));
        gates.shut(1);
        assert!(gates.settle(Duration::ZERO), "it may be within");
        gates.shut(0);
        assert!(!gates.settle(Duration::ZERO));
        gates.admit(0, 11);
        assert!(!gates.settle(Duration::ZERO), "the gate is open for another");
        sender.leave(5);
        assert!(gates.settle(Duration::ZERO));
    }

    #[test]
    fn one_that_stands_still_is_waited_for_once() {
        let (mut gates, file) = Gates::create().unwrap();
        let sender = Gates::open(file.as_fd()).unwrap();
        gates.admit(0, 9);
        assert!(sender.enter(5, 0, 9));
        gates.shut(0);
        assert_eq!(gates.outwait(Duration::ZERO), 1);
        assert_eq!(gates.outwait(LONG), 0, "it stands where it stood");
        assert!(gates.has_stopped());
        // Others are waited for as ever, those behind it, too.
        gates.admit(1, 10);
        assert!(sender.enter(6, 1, 10) && sender.enter(7, 1, 10));
        gates.shut(1);
        assert_eq!(gates.outwait(Duration::ZERO), 2);
        sender.leave(6);
        sender.leave(7);
        // And it, when it has gone on.
        sender.leave(5);
        assert!(!gates.has_stopped());
        gates.admit(0, 11);
        assert!(sender.enter(5, 0, 11));
        gates.shut(0);
        assert_eq!(gates.outwait(Duration::ZERO), 1);
        // Another one at the same place is another.
        gates.forget(5);
        gates.admit(0, 12);
        assert!(sender.enter(5, 0, 12));
        sender.leave(5);
        assert!(sender.enter(5, 0, 12), "in a turn of the same number");
        gates.shut(0);
        assert_eq!(gates.outwait(Duration::ZERO), 1);
    }

    #[test]
    fn nobody_writes_behind_the_wait() {
        let (gates, file) = Gates::create().unwrap();
        let data = AtomicU64::new(0);
        for mark in 1..200 {
            gates.admit(1, mark);
            let sender = Gates::open(file.as_fd()).unwrap();
            thread::scope(|threads| {
                threads.spawn(|| {
                    while sender.enter(2, 1, mark) {
                        data.fetch_add(1, Ordering::Relaxed);
                        sender.leave(2);
                    }
                });
                let before = data.load(Ordering::Relaxed);
                while data.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
                gates.shut(1);
                assert!(gates.settle(LONG));
                let then = data.load(Ordering::Relaxed);
                thread::yield_now();
                assert_eq!(data.load(Ordering::Relaxed), then);
            });
        }
    }

    #[test]
    fn other_files_are_no_gates() {
        let short = memfd::sealed("short", 64).unwrap();
        assert!(Gates::open(short.as_fd()).is_err());
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(Gates::open(null.as_fd()).is_err());
    }
}
