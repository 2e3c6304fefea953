//! Services that a server sets up once, and that clients use by a SEND each: nobody on the server's
//! host has a part in them (RedN §5), and no client has a key to its memory (§3.5, Security).
//!
//! Each connection has a copy of the program. The client's message is scattered into the program's
//! requests; the answer is one SEND: the value, or nothing if there is none. Then the program has
//! put itself back, and takes the next message. A connection serves one message at a time: a client
//! that wants more at once opens more connections.
//!
//! Programs take memory from outside by two names: [`TABLE`], where structures lie, and [`VALUES`],
//! where what they point to lies. Both may be one region. A client chooses addresses; the keys in
//! the program's requests decide what they can mean.

pub mod list;
pub mod lookup;
pub mod table;

use super::element::{Field, Label, QueueId};
use super::place::{Place, Span, Word};
use super::program::{Kind, Program, Start};
use super::request::{Count, Request};
use super::verb::Verb;

/// The import in which buckets and nodes lie.
pub const TABLE: &str = "table";
/// The import in which values lie.
pub const VALUES: &str = "values";

/// What every service has.
struct Service {
    program: Program,
    table: Place,
    /// Where the client's messages come in; one element, used again and again.
    requests: QueueId,
    /// Where answers go out; likewise.
    replies: QueueId,
    /// The answer.
    reply: Label,
    /// Bytes that nobody wants.
    scratch: Span,
}

impl Service {
    fn new() -> Service {
        let mut program = Program::new();
        let table = program.import(TABLE);
        let values = program.import(VALUES);
        let requests = program.queue("requests", Kind::Receive, true, Start::Elements(1));
        let replies = program.queue("replies", Kind::Reply, true, Start::Asleep);
        let reply = program.label("reply");
        program.put(replies, reply, Request::send(&[values.span(0)]));
        let scratch = program.bytes("scratch", &[0; 8]);
        Service { program, table, requests, replies, reply, scratch }
    }

    /// Where the answer is taken from: an address, and behind it a length.
    fn answer(&self) -> Place {
        self.reply.field(Field::Addr(0)).at
    }

    /// The client's message goes into these.
    fn receive(&mut self, pieces: &[Span]) {
        self.program.push(self.requests, Request::receive(pieces));
    }

    /// A message has come.
    fn wait(&self) -> Request {
        Request::wait(self.requests, Count::Number(1))
    }

    /// The next message may come.
    fn ready(&self) -> Request {
        Request::enable_recv(self.requests, Count::Number(2))
    }

    /// The answer goes.
    fn send(&self) -> Request {
        Request::enable(self.replies, Count::Number(1))
    }

    /// No answer yet.
    fn clear(&self) -> Request {
        Request::write_inline(Word::Number(0), 4, self.reply.field(Field::Len(0)).at).silent()
    }
}

/// Raises the count of a WAIT or ENABLE.
fn raise(label: Label, by: u64) -> Request {
    Request::calc(Verb::Add, label.field(Field::Remote).at, Word::Number(by)).silent()
}

/// The 6 bytes of a key of 48 bits.
fn key_bytes(key: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = key.to_le_bytes();
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests;
