//! The value that follows a line of text, and what several commands of text answer.

use crate::front::memcached::conversation::{Call, Taken};
use crate::front::memcached::operations::longest;
use crate::stats::Op;

/// The version that clients are told.
pub(super) const VERSION: &str = concat!("1.6.21-remora-", env!("CARGO_PKG_VERSION"));

pub(super) const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format";
pub(super) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";
pub(super) const NO_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value";

/// The value that follows a line, if it is whole.
pub(super) enum Chunk<'a> {
    /// It is whole; its request takes so many bytes.
    Whole(&'a [u8], usize),
    /// What is to be done with the request instead.
    Otherwise(Taken),
}

/// Reads a value of `len` bytes from `data`, which begins with it. `head` is the length of the
/// line before it.
pub(super) fn chunk<'a>(call: &mut Call<'_>, data: &'a [u8], head: usize, len: u64) -> Chunk<'a> {
    let refused = len > longest(call.turn) as u64;
    if refused {
        // The value is passed over as it comes, and is kept nowhere.
        call.line(TOO_LARGE);
        call.turn.counts.errors.add(1);
        let whole = usize::try_from(len).ok().and_then(|len| len.checked_add(head + 2));
        let Some(whole) = whole.filter(|whole| *whole <= 1 << 40) else {
            return Chunk::Otherwise(Taken::Close);
        };
        return Chunk::Otherwise(Taken::Request(whole, Op::Put));
    }
    let len = len as usize;
    if data.len() < len + 2 {
        return Chunk::Otherwise(Taken::Wants(len + 2 - data.len()));
    }
    if &data[len..len + 2] == b"\r\n" {
        return Chunk::Whole(&data[..len], head + len + 2);
    }
    call.turn.counts.errors.add(1);
    call.line(BAD_CHUNK);
    // As memcached does: what follows the announced bytes is read as a line.
    Chunk::Otherwise(Taken::Request(head + len + 2, Op::Put))
}
