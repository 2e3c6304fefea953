//! Options that several commands share: when a key ends, and what its value must be before.

use crate::front::keyspace::Seen;
use crate::front::redis::command::{Call, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::request::decimal;

/// The end that an option asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `KEEPTTL`.
    Keep,
    /// `PERSIST`.
    Never,
    /// A time, in ms of Unix time. It may have passed.
    At(u64),
}

/// The error of a time that is none.
pub(crate) fn invalid_expire(command: &str) -> Wrong {
    Wrong::says(format!("ERR invalid expire time in '{}' command", command.to_lowercase()))
}

/// A time as `EX`, `PX`, `EXAT` and `PXAT` give it, as ms of Unix time: `unit` is 1000 for seconds;
/// `from` is added to a time that is relative. None if it is beyond what a time can be.
pub(crate) fn time(number: i64, unit: i64, from: u64) -> Option<i64> {
    number.checked_mul(unit)?.checked_add(i64::try_from(from).ok()?)
}

/// The options of a command that say when a key ends. Their number is looked at when all options
/// have been read: what cannot stand together is said first.
#[derive(Default)]
pub(crate) struct EndOptions<'a> {
    kind: Option<Kind>,
    number: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Is(End),
    /// A time, in so many ms, and whether it counts from now.
    In(i64, bool),
}

impl<'a> EndOptions<'a> {
    /// Reads `EX`, `PX`, `EXAT` or `PXAT` at `index` with its number, or `also`, a word that says
    /// it alone. An option may come again, and its last number counts. The answer is false if the
    /// option is another.
    pub(crate) fn read(
        &mut self,
        call: &Call<'a>,
        index: &mut usize,
        also: (&str, End),
    ) -> Result<bool, Wrong> {
        let kind = match () {
            () if call.is(*index, also.0) => Kind::Is(also.1),
            () if call.is(*index, "ex") => Kind::In(1000, true),
            () if call.is(*index, "px") => Kind::In(1, true),
            () if call.is(*index, "exat") => Kind::In(1000, false),
            () if call.is(*index, "pxat") => Kind::In(1, false),
            () => return Ok(false),
        };
        agreed(&mut self.kind, kind)?;
        if let Kind::In(..) = kind {
            self.number = call.after(index)?;
        }
        Ok(true)
    }

    /// The end that they ask for.
    pub(crate) fn end(&self, call: &Call<'_>) -> Result<Option<End>, Wrong> {
        let (unit, is_relative) = match self.kind {
            None => return Ok(None),
            Some(Kind::Is(end)) => return Ok(Some(end)),
            Some(Kind::In(unit, is_relative)) => (unit, is_relative),
        };
        let number = decimal(self.number).ok_or(NOT_INTEGER)?;
        let from = if is_relative { call.turn.now } else { 0 };
        let at = time(number, unit, from).filter(|_| number > 0);
        let at = at.and_then(|at| u64::try_from(at).ok());
        let name = String::from_utf8_lossy(call.at(0));
        Ok(Some(End::At(at.ok_or_else(|| invalid_expire(&name))?)))
    }
}

/// What a value must be for a change to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueTest<'a> {
    /// `IFEQ`: it is this.
    Equal(&'a [u8]),
    /// `IFNE`: it is not this, or there is none.
    Differs(&'a [u8]),
    /// `IFDEQ`: this is its digest.
    Digest(&'a [u8]),
    /// `IFDNE`: this is not its digest, or there is none.
    DigestDiffers(&'a [u8]),
}

impl<'a> ValueTest<'a> {
    /// Reads a condition at `index` with its value; None if the option is another.
    pub(crate) fn read(call: &Call<'a>, index: &mut usize) -> Result<Option<ValueTest<'a>>, Wrong> {
        let make: fn(&'a [u8]) -> ValueTest<'a> = match () {
            () if call.is(*index, "ifeq") => ValueTest::Equal,
            () if call.is(*index, "ifne") => ValueTest::Differs,
            () if call.is(*index, "ifdeq") => ValueTest::Digest,
            () if call.is(*index, "ifdne") => ValueTest::DigestDiffers,
            () => return Ok(None),
        };
        let value = call.after(index)?;
        let condition = make(value);
        if let ValueTest::Digest(digest) | ValueTest::DigestDiffers(digest) = condition
            && !(digest.len() == 16 && digest.iter().all(u8::is_ascii_hexdigit))
        {
            return Err(Wrong::Is("ERR a digest is 16 hexadecimal digits, as DIGEST gives them"));
        }
        Ok(Some(condition))
    }

    /// Whether it holds.
    pub(crate) fn holds(&self, seen: Option<&Seen<'_>>) -> bool {
        let is_digest = |digest: &[u8]| {
            seen.is_some_and(|seen| digest.eq_ignore_ascii_case(digest_of(seen.value()).as_bytes()))
        };
        match self {
            ValueTest::Equal(value) => seen.is_some_and(|seen| seen.value() == *value),
            ValueTest::Differs(value) => seen.is_none_or(|seen| seen.value() != *value),
            ValueTest::Digest(digest) => is_digest(digest),
            ValueTest::DigestDiffers(digest) => !is_digest(digest),
        }
    }
}

/// A value's digest, as `DIGEST` gives it: its XXH3 of 64 bits, in 16 hexadecimal digits.
pub(crate) fn digest_of(value: &[u8]) -> String {
    format!("{:016x}", twox_hash::XxHash3_64::oneshot(value))
}

/// As [`once`], but an option may say again what it has said.
pub(crate) fn agreed<T: PartialEq>(place: &mut Option<T>, value: T) -> Result<(), Wrong> {
    if place.as_ref().is_some_and(|before| *before == value) { Ok(()) } else { once(place, value) }
}

/// The error of options that cannot stand together.
pub(crate) fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Wrong> {
    if place.replace(value).is_some() { Err(SYNTAX) } else { Ok(()) }
}
