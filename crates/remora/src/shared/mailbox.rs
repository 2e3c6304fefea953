//! The mailbox of a virtual machine: requests and answers of a client that has no socket, in memory
//! behind the arena.
//!
//! ```text
//! byte    0  magic u64                                         written once, by the daemon
//!        64  number of the request u32, its length u32         written by the client
//!       128  number of the answered request u32, length u32    written by the daemon
//!       192  number of the dismissed greeting u32, length u32  written by the daemon
//!       256  why the client was dismissed
//!      4096  the request
//!            the answer
//! ```
//!
//! The client writes a request's bytes, then its length, then its number, and rings; the answer
//! bears the same number. A request without bytes says that the client ends, as the closing of a
//! socket does. A client is dismissed at any time, answer or none.
//!
//! The daemon reads each word and each byte of a request once, and never what it has written
//! itself. A client that changes a request meanwhile has sent what the daemon happens to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::memory::Buffer;
use crate::message::MESSAGE_MAX;

/// Bytes of a mailbox, a multiple of the page size.
pub const MAILBOX: usize = AT_ANSWER + MESSAGE_MAX;

const MAGIC: u64 = u64::from_le_bytes(*b"remora\0m");
const AT_REQUEST_NUMBER: usize = 64;
const AT_ANSWER_NUMBER: usize = 128;
const AT_DISMISSED: usize = 192;
const AT_REASON: usize = 256;
const AT_REQUEST: usize = 4096;
const AT_ANSWER: usize = AT_REQUEST + MESSAGE_MAX;
/// The longest reason.
const REASON_MAX: usize = AT_REQUEST - AT_REASON;
/// From the number of something to its length.
const LENGTH: usize = 4;

/// A request that claims more bytes than a message may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// The daemon's end. A clone is another handle of the same mailbox.
#[derive(Clone, Debug)]
pub struct MailboxServer {
    memory: Arc<Buffer>,
}

impl MailboxServer {
    /// Makes a mailbox of zeroed memory of [`MAILBOX`] bytes.
    ///
    /// # Panics
    /// If the memory is shorter.
    pub fn new(memory: Buffer) -> MailboxServer {
        assert!(memory.len() >= MAILBOX, "a mailbox has {MAILBOX} bytes");
        memory.store_u64(0, MAGIC).expect("a mailbox begins with its mark");
        MailboxServer { memory: Arc::new(memory) }
    }

    /// Takes the request behind that of number `last` into `message`; returns its number. `None`:
    /// there is none.
    pub fn receive(&self, last: u32, message: &mut Vec<u8>) -> Option<(u32, Result<(), TooLong>)> {
        let number = word(&self.memory, AT_REQUEST_NUMBER).load(Ordering::Acquire);
        if number == last {
            return None;
        }
        let len = word(&self.memory, AT_REQUEST_NUMBER + LENGTH).load(Ordering::Relaxed) as usize;
        if len > MESSAGE_MAX {
            return Some((number, Err(TooLong)));
        }
        message.resize(len, 0);
        self.memory.read_at(AT_REQUEST, message).expect("a message fits a mailbox");
        Some((number, Ok(())))
    }

    /// Answers the request of this number. Bytes behind [`MESSAGE_MAX`] are cut off.
    pub fn answer(&self, number: u32, message: &[u8]) {
        put(&self.memory, (AT_ANSWER_NUMBER, number), (AT_ANSWER, MESSAGE_MAX), message);
    }

    /// Dismisses the client whose greeting had this number.
    pub fn dismiss(&self, greeting: u32, reason: &str) {
        put(&self.memory, (AT_DISMISSED, greeting), (AT_REASON, REASON_MAX), reason.as_bytes());
    }
}

/// The client's end.
#[derive(Debug)]
pub struct MailboxClient {
    memory: Buffer,
    /// The number of the last request.
    last: u32,
    /// That of the greeting.
    greeting: u32,
}

impl MailboxClient {
    /// The mailbox in this memory; `None` if a daemon has made none there.
    pub fn open(memory: Buffer) -> Option<MailboxClient> {
        let is_one = memory.len() >= MAILBOX && memory.load_u64(0) == Ok(MAGIC);
        let last = is_one.then(|| word(&memory, AT_REQUEST_NUMBER).load(Ordering::Relaxed))?;
        Some(MailboxClient { memory, last, greeting: 0 })
    }

    /// Has the last request, which may be that of a client before this one, been answered?
    pub fn is_quiet(&self) -> bool {
        word(&self.memory, AT_ANSWER_NUMBER).load(Ordering::Acquire) == self.last
    }

    /// Sends the greeting. The caller rings behind this.
    ///
    /// # Errors
    /// It is longer than [`MESSAGE_MAX`].
    pub fn greet(&mut self, message: &[u8]) -> Result<(), TooLong> {
        self.send(message)?;
        self.greeting = self.last;
        Ok(())
    }

    /// Sends a request. The caller rings behind this.
    ///
    /// # Errors
    /// It is longer than [`MESSAGE_MAX`].
    pub fn send(&mut self, message: &[u8]) -> Result<(), TooLong> {
        if message.len() > MESSAGE_MAX {
            return Err(TooLong);
        }
        // Zero is no request's number.
        self.last = self.last.wrapping_add(1).max(1);
        put(&self.memory, (AT_REQUEST_NUMBER, self.last), (AT_REQUEST, MESSAGE_MAX), message);
        Ok(())
    }

    /// Takes the answer to the last request into `message`; returns whether it is there.
    pub fn receive(&self, message: &mut Vec<u8>) -> bool {
        let is_there = self.is_quiet();
        if is_there {
            *message = got(&self.memory, AT_ANSWER_NUMBER, (AT_ANSWER, MESSAGE_MAX));
        }
        is_there
    }

    /// Why the daemon has dismissed this client, if it has.
    pub fn dismissal(&self) -> Option<String> {
        let greeting = word(&self.memory, AT_DISMISSED).load(Ordering::Acquire);
        (greeting == self.greeting && greeting != 0).then(|| {
            let reason = got(&self.memory, AT_DISMISSED, (AT_REASON, REASON_MAX));
            String::from_utf8_lossy(&reason).into_owned()
        })
    }
}

/// Writes bytes, as far as there is room, then their length, then the number that announces them.
fn put(memory: &Buffer, (at, number): (usize, u32), (to, room): (usize, usize), bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(room)];
    memory.write_at(to, bytes).expect("the mailbox has the room");
    word(memory, at + LENGTH).store(bytes.len() as u32, Ordering::Relaxed);
    word(memory, at).store(number, Ordering::Release);
    // Before the doorbell, which may be a register of a device.
    fence(Ordering::SeqCst);
}

/// The bytes that the number at `at` announces.
fn got(memory: &Buffer, at: usize, (from, room): (usize, usize)) -> Vec<u8> {
    let len = word(memory, at + LENGTH).load(Ordering::Relaxed) as usize;
    let mut bytes = vec![0; len.min(room)];
    memory.read_at(from, &mut bytes).expect("the mailbox has the room");
    bytes
}

fn word(memory: &Buffer, at: usize) -> &AtomicU32 {
    memory.word32(at).expect("the layout is aligned, and the mailbox holds it")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::memfd;

    fn ends() -> (MailboxServer, MailboxClient, Buffer) {
        let file = memfd::sealed("remora-test", MAILBOX as u64).unwrap();
        let map = || Buffer::map(file.as_fd(), 0, MAILBOX).unwrap();
        assert!(MailboxClient::open(map()).is_none(), "no daemon has made it");
        let server = MailboxServer::new(map());
        (server, MailboxClient::open(map()).unwrap(), map())
    }

    #[test]
    fn requests_and_answers_bear_numbers() {
        let (server, mut client, _) = ends();
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        assert_eq!(server.receive(0, &mut asked), None);
        client.greet(b"hello").unwrap();
        assert!(!client.is_quiet() && !client.receive(&mut answered));
        let (first, taken) = server.receive(0, &mut asked).unwrap();
        assert_eq!((taken, &asked[..]), (Ok(()), &b"hello"[..]));
        assert_eq!(server.receive(first, &mut asked), None, "each request is taken once");
        server.answer(first, b"welcome");
        assert!(client.receive(&mut answered));
        assert_eq!(answered, b"welcome");

        client.send(&[7; MESSAGE_MAX]).unwrap();
        assert!(!client.receive(&mut answered), "that was the answer to another request");
        let (second, taken) = server.receive(first, &mut asked).unwrap();
        assert_eq!((taken, &asked[..]), (Ok(()), &[7; MESSAGE_MAX][..]));
        server.answer(second, &[8; MESSAGE_MAX]);
        assert!(client.receive(&mut answered));
        assert_eq!(answered, [8; MESSAGE_MAX]);
        assert_eq!(client.send(&[0; MESSAGE_MAX + 1]), Err(TooLong));
    }

    #[test]
    fn a_client_is_dismissed_by_its_greeting() {
        let (server, mut client, memory) = ends();
        assert_eq!(client.dismissal(), None);
        client.greet(b"hello").unwrap();
        let mut asked = Vec::new();
        let (greeting, _) = server.receive(0, &mut asked).unwrap();
        server.dismiss(greeting.wrapping_add(1), "somebody else");
        assert_eq!(client.dismissal(), None);
        server.dismiss(greeting, "it was evicted");
        assert_eq!(client.dismissal().as_deref(), Some("it was evicted"));
        // The next client in the same memory is another one.
        let mut next = MailboxClient::open(memory).unwrap();
        assert!(!next.is_quiet());
        next.greet(b"hello").unwrap();
        assert_eq!(next.dismissal(), None);
    }

    #[test]
    fn what_a_client_claims_is_held_against_the_room() {
        let (server, mut client, memory) = ends();
        client.send(b"hello").unwrap();
        word(&memory, AT_REQUEST_NUMBER + LENGTH).store(u32::MAX, Ordering::Relaxed);
        let mut asked = Vec::new();
        assert!(matches!(server.receive(0, &mut asked), Some((_, Err(TooLong)))));
        // And what a daemon claims, too.
        word(&memory, AT_ANSWER_NUMBER + LENGTH).store(u32::MAX, Ordering::Relaxed);
        word(&memory, AT_ANSWER_NUMBER).store(client.last, Ordering::Relaxed);
        assert!(client.receive(&mut asked) && asked.len() == MESSAGE_MAX);
        server.dismiss(9, &"x".repeat(1 << 16));
        client.greeting = 9;
        assert_eq!(client.dismissal().map(|reason| reason.len()), Some(REASON_MAX));
    }
}
