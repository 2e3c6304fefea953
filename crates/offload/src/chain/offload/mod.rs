//! Offloads: services that a server sets up once and that clients use with one SEND each. The
//! server's CPU takes no part in a call (RedN §5), and no client has a key to the server's memory
//! (RedN §3.5, Security).
//!
//! - [`lookup`]: in a hash table, which [`table`] lays out; [`list`]: in a linked list.
//!
//! Each connection has a copy of the program. The client's message is scattered into the program's
//! requests; the answer is one SEND with the value, which is empty if there is none. Then the
//! program restores itself and takes the next message. A connection serves one message at a time: a
//! client that wants more at once opens more connections.
//!
//! Programs take memory from outside by two names: [`TABLE`] for buckets and nodes, and [`VALUES`]
//! for the values that these point to. Both may be one region. A client chooses addresses, but the
//! keys in the program's requests decide what an address can reach.

pub mod list;
pub mod lookup;
pub mod table;

use super::element::{Field, Label, QueueId};
use super::place::{Place, Span, Word};
use super::program::{Kind, Program, Start};
use super::request::{Count, Request};
use super::verb::Verb;

/// The import that holds buckets and nodes.
pub const TABLE: &str = "table";
/// The import that holds values.
pub const VALUES: &str = "values";

/// The parts that all services have.
struct Service {
    program: Program,
    table: Place,
    /// The receive queue for the client's messages. Its one element is used again and again.
    requests: QueueId,
    /// The reply queue for answers. Its one element is used again and again.
    replies: QueueId,
    /// The SEND of the answer.
    reply: Label,
    /// The destination of bytes that no request uses.
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

    /// The place that describes the answer: an address, and then a length.
    fn answer(&self) -> Place {
        self.reply.field(Field::Addr(0)).at
    }

    /// Puts a receive element that scatters the client's message into `pieces`.
    fn receive(&mut self, pieces: &[Span]) {
        self.program.push(self.requests, Request::receive(pieces));
    }

    /// Waits for the next message.
    fn wait(&self) -> Request {
        Request::wait(self.requests, Count::Number(1))
    }

    /// Lets the receive queue take the next message.
    fn ready(&self) -> Request {
        Request::enable_recv(self.requests, Count::Number(2))
    }

    /// Sends the answer.
    fn send(&self) -> Request {
        Request::enable(self.replies, Count::Number(1))
    }

    /// Makes the answer empty.
    fn clear(&self) -> Request {
        Request::write_inline(Word::Number(0), 4, self.reply.field(Field::Len(0)).at).silent()
    }
}

/// Raises the count of a WAIT or ENABLE by `by`.
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
