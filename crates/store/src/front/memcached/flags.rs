//! The flags of a meta command: letters, some with a word behind them.
//!
//! As in memcached, each command takes the flags of all, and leaves those alone that mean nothing
//! to it.

use std::borrow::Cow;

use crate::front::memcached::base64;
use crate::front::memcached::chunk::BAD_LINE;
use crate::front::memcached::numbers::{end, signed, unsigned, unsigned_32};
use crate::front::memcached::operations::KEY_BYTES;

/// The most flags of a request.
pub(super) const MOST_FLAGS: usize = 17;
/// The longest opaque flag, in bytes: its letter and its word.
const OPAQUE_BYTES: usize = 32;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format";

/// The flags of a request, in their order, and what the words behind them say.
#[derive(Debug, Default)]
pub(super) struct Flags<'a> {
    all: [&'a [u8]; MOST_FLAGS],
    count: usize,
    /// `N`: the end of an item that is made, in ms of Unix time.
    pub(super) made: Option<Option<u64>>,
    /// `T`: the end of the item, in ms of Unix time.
    pub(super) moved: Option<Option<u64>>,
    /// `R`: an item that ends before this, in ms of Unix time, is to be filled anew.
    pub(super) refilled: Option<u64>,
    /// `C`: the version that the item must have.
    pub(super) compared: Option<u64>,
    /// `F`: the client's flags.
    pub(super) client: u32,
    /// `M`: the mode.
    pub(super) mode: Option<u8>,
    /// `D`: what is added or taken away.
    pub(super) delta: Option<u64>,
    /// `J`: the number of an item that is made.
    pub(super) initial: u64,
}

impl<'a> Flags<'a> {
    /// Reads the flags behind a key, `most` at most, and the key, which may be in base 64. `long`
    /// is the answer if there are more. Flags of `also` are known beside memcached's own.
    pub(super) fn read(
        key: &'a [u8],
        rest: impl Iterator<Item = &'a [u8]>,
        now: u64,
        (most, long): (usize, &'static [u8]),
        also: &[u8],
    ) -> Result<(Flags<'a>, Cow<'a, [u8]>), Fault> {
        if key.len() > KEY_BYTES {
            return Err(Fault::Line(BAD_LINE));
        }
        let mut flags = Flags::default();
        for flag in rest {
            if flags.count == most {
                return Err(Fault::Line(long));
            }
            flags.all[flags.count] = flag;
            flags.count += 1;
        }
        flags.parse(now, also).map_err(Fault::Flag)?;
        let mut decoded = Cow::Borrowed(key);
        if flags.has(b'b') {
            // Checked here: what is wrong with a flag is said first.
            let bytes = base64::decode(key);
            decoded =
                bytes.map(Cow::Owned).ok_or(Fault::Flag(b"CLIENT_ERROR error decoding key"))?;
        }
        let opaque = flags.all().iter().find(|flag| flag[0] == b'O');
        if opaque.is_some_and(|flag| flag.len() > OPAQUE_BYTES) {
            return Err(Fault::Line(b"CLIENT_ERROR opaque token too long"));
        }
        Ok((flags, decoded))
    }

    /// Reads the words. Of several that are wrong the last is told, but the first flag that is
    /// unknown or comes again ends it.
    fn parse(&mut self, now: u64, also: &[u8]) -> Result<(), &'static [u8]> {
        let (all, mut wrong) = (self.all, None);
        for (index, flag) in all[..self.count].iter().enumerate() {
            let (letter, word) = (flag[0], &flag[1..]);
            if !letter.is_ascii() || all[..index].iter().any(|before| before[0] == letter) {
                return Err(b"CLIENT_ERROR duplicate flag");
            }
            let mut number = |text: &'static [u8]| {
                let number = unsigned(word);
                wrong = if number.is_none() { Some(text) } else { wrong };
                number
            };
            match letter {
                b'b' | b'c' | b'f' | b'h' | b'k' | b'l' | b'q' | b's' | b't' | b'u' | b'v' => {}
                b'I' | b'L' | b'O' | b'P' => {}
                b'N' | b'R' | b'T' => match signed(word).map(|seconds| end(seconds, now)) {
                    Some(at) if letter == b'N' => self.made = Some(at),
                    Some(at) if letter == b'T' => self.moved = Some(at),
                    Some(at) => self.refilled = at,
                    None => wrong = Some(BAD_TOKEN),
                },
                b'C' => self.compared = number(BAD_TOKEN),
                b'D' => self.delta = number(b"CLIENT_ERROR invalid numeric delta value"),
                b'J' => {
                    let initial = number(b"CLIENT_ERROR invalid numeric initial value");
                    self.initial = initial.unwrap_or(0);
                }
                b'F' => match unsigned_32(word) {
                    Some(client) => self.client = client,
                    None => wrong = wrong.or(Some(BAD_LINE)),
                },
                b'M' => match word {
                    [mode] => self.mode = Some(*mode),
                    _ => wrong = Some(b"CLIENT_ERROR incorrect length for M token"),
                },
                _ if also.contains(&letter) => {}
                _ => return Err(b"CLIENT_ERROR invalid flag"),
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    pub(super) fn all(&self) -> &[&'a [u8]] {
        &self.all[..self.count]
    }

    pub(super) fn has(&self, letter: u8) -> bool {
        self.all().iter().any(|flag| flag[0] == letter)
    }

    /// The end of an item that is made, as the last flag says that does.
    pub(super) fn end_of_made(&self) -> Option<u64> {
        let last = self.all().iter().rev().find(|flag| matches!(flag[0], b'N' | b'T'));
        let end = if last.is_some_and(|flag| flag[0] == b'T') { self.moved } else { self.made };
        end.flatten()
    }
}

/// What is wrong with a request's line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A flag, or the word behind it.
    Flag(&'static [u8]),
    /// Something else.
    Line(&'static [u8]),
}

impl Fault {
    /// What the client is told.
    pub(super) fn text(self) -> &'static [u8] {
        match self {
            Fault::Flag(text) | Fault::Line(text) => text,
        }
    }

    /// The same of the commands that do not say which flag is wrong.
    pub(super) fn short(self) -> &'static [u8] {
        match self {
            Fault::Flag(_) => b"CLIENT_ERROR invalid or duplicate flag",
            Fault::Line(text) => text,
        }
    }
}
