//! Gates: words by which the owner of memory, the daemon, and those who write that memory
//! themselves agree on who is within.
//!
//! ```text
//! byte    0  the turns of 64 senders, a line each: u32, odd while the sender is within
//!      4096  1536 gates: u64, the mark of the pass that the gate is open for, or zero
//! ```
//!
//! One such page belongs to each session whose memory others may reach by a *pass*. A sender says
//! that it is within, and then looks whether its gate is still open; the daemon shuts the gate, and
//! then the owner waits until each sender has been without at least once. A sequentially consistent
//! order stands between the two steps on either side: so a sender that the owner does not wait for
//! finds its gate shut. A mark is never used again, so that an old pass does not open a gate that
//! was given to another.
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
const AT_GATES: usize = SENDERS as usize * LINE;
const LEN: usize = AT_GATES + GATES as usize * 8;

/// The gates of a session, mapped.
#[derive(Debug)]
pub struct Gates {
    memory: Buffer,
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
        Ok(Gates { memory: Buffer::map(file, 0, LEN)? })
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
        let turn = self.turn(sender);
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

    /// Owner: waits until nobody is within by a gate that was shut before.
    pub fn wait(&self) {
        if !self.settle(PATIENCE) {
            tracing::error!(
                "another process of this user was stopped while it wrote this one’s memory, and \
                 may write some bytes more when it goes on"
            );
        }
    }

    /// Owner: waits until each sender has been without once, for `timeout` at most. Returns
    /// whether all were.
    pub fn settle(&self, timeout: Duration) -> bool {
        let mut until = None;
        (0..SENDERS).all(|sender| {
            let turn = self.turn(sender);
            let found = turn.load(Ordering::SeqCst);
            while found % 2 == 1 && turn.load(Ordering::Acquire) == found {
                if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + timeout) {
                    return false;
                }
                std::thread::yield_now();
            }
            true
        })
    }

    #[inline]
    fn turn(&self, sender: u32) -> &AtomicU32 {
        assert!(sender < SENDERS, "there are {SENDERS} senders");
        self.memory.word32(sender as usize * LINE).expect("a line is within the page")
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
        assert!(gates.enter(6, 0, 10) && !gates.settle(Duration::ZERO));
        gates.forget(6);
        assert!(gates.settle(Duration::ZERO));
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
